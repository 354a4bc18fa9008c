"""Tokenizers from the metadata of GGUF files, against those that transformers makes of the same."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from gguf_files import whole
from rlx.errors import ModelError
from rlx.frontends.gguf import File
from rlx.models.gguf_text import _SPLITS, _TOKENS, GgufOrigin, text_of

tokenizers = pytest.importorskip("tokenizers")
CORPUS = (
    "The capital of France is Paris. It's 12345 o'clock, they'll say; don't you know?\n\n"
    "  def f(x):\n\treturn x + 1\r\n",
    "na\u00efve caf\u00e9 \u2014 \u65e5\u672c\u8a9e \U0001f642 \u00dcBER Stra\u00dfe 3.14 <b>HTML</b> CamelCase "
    "snake_case I'LL e\u0301",
    "  two spaces   and more    \n\n\n x=[1,22,333,4444]; // comment -- ** !!?? \u0e20\u0e32\u0e29\u0e32"
    "\u0e44\u0e17\u0e22",
)
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


@cache
def byte_level() -> dict[str, Any]:
    """The metadata of a tokenizer of bytes that was trained on a few lines."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|end|>", "<|begin|>", "<|user|>"],
    )  # fmt: skip
    tokenizer.train_from_iterator(CORPUS, trainer)
    import json

    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(pair) for pair in model["merges"]]
    tokens.append("<think>")
    return {
        "general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (len(tokens) - 4), 4], "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 2,
    }  # fmt: skip


def pieces(architecture: str) -> dict[str, Any]:
    """The metadata of a tokenizer of pieces."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "  " if architecture != "llama" else "<b>"]
    letters = sorted(set("".join(CORPUS[0])) - set(" \n\t\r"))
    tokens += [SPACE, *letters, "th", "he", "is", f"{SPACE}is", "ca", "cap", f"{SPACE}cap", "it", "al", f"{SPACE}t"]
    tokens += [f"{SPACE}th", f"{SPACE}the", "ou", "you", "Fr", "an", "Fran", "ce", "France", f"{SPACE}Fran", "ap"]
    scores = [0.0] * 260 + [-float(i) for i in range(len(tokens) - 260)]
    kinds = [2, 3, 3, *[6] * 256, 4, *[1] * (len(tokens) - 260)]
    return {
        "general.architecture": architecture, "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip


def ours(keys: dict[str, Any]) -> Any:
    return text_of(File(whole(list(keys.items()))))


def theirs(keys: dict[str, Any]) -> Any:
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    pytest.importorskip("torch")
    names = mapping.GGUF_TOKENIZER_MAPPING["tokenizer"]
    said = {name: keys[f"tokenizer.{key}"] for key, name in names.items() if f"tokenizer.{key}" in keys}
    return mapping.convert_gguf_tokenizer(keys["general.architecture"], said)[0]


@pytest.mark.parametrize("name", ["default", "llama-bpe", "qwen2", "tekken", "gpt-4o", "dbrx"])
def test_texts_are_cut_as_in_transformers(name: str) -> None:
    keys = byte_level() | {"tokenizer.ggml.pre": name}
    text, reference = ours(keys), theirs(keys)
    for line in CORPUS:
        line = line.replace("e\u0301", "") if name == "qwen2" else line  # which Qwen's own tokenizers compose
        ids = text.encode(f"{line}<|user|>hi", special=False)
        assert ids == reference.encode(f"{line}<|user|>hi", add_special_tokens=False).ids
        assert text.decode(ids) == f"{line}hi"


def test_every_name_of_a_cut_gives_a_text_back() -> None:
    for name in _SPLITS:
        text = ours(byte_level() | {"tokenizer.ggml.pre": name})
        for line in CORPUS:
            line = line.replace("e\u0301", "")
            assert text.decode(text.encode(line, special=False)) == line


def test_digits_stand_alone_in_smollm() -> None:
    text = ours(byte_level() | {"tokenizer.ggml.pre": "smollm"})
    assert len(text.encode("12345", special=False)) == 5


@pytest.mark.parametrize("architecture", ["llama", "gemma"])
def test_pieces_merge_as_in_transformers(architecture: str) -> None:
    keys = pieces(architecture)
    text, reference = ours(keys), theirs(keys)
    for line in (*CORPUS[:2], "the capital is", "it's the  cap"):
        line = line.replace("<b>", "")
        ids = text.encode(line, special=False)
        assert ids == reference.encode(line, add_special_tokens=False).ids and max(ids) < len(keys[_TOKENS])
        assert text.decode(ids) == line


def test_a_space_is_before_texts_and_behind_special_tokens() -> None:
    """As llama.cpp does it, and tokenizers of Llama 2: others leave it out where there is one, or behind tokens."""
    text, tokens = ours(pieces("llama")), pieces("llama")[_TOKENS]
    for line, first in (("you", [SPACE, "you"]), (" you", [SPACE, SPACE, "you"]), ("</s>you", ["</s>", SPACE, "you"])):
        ids = text.encode(line, special=False)
        assert [tokens[i] for i in ids] == first


def test_what_begins_and_ends_texts() -> None:
    keys = byte_level()
    assert ours(keys).encode("a")[0] != 1 and ours(keys | {"tokenizer.ggml.pre": "llama-bpe"}).encode("a")[0] == 1
    both = keys | {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    ids = ours(both).encode("a")
    assert (ids[0], ids[-1]) == (1, 0) and ours(both).encode("a", special=False) == ids[1:-1]
    assert ours(pieces("llama")).encode("you")[0] == 1
    assert ours(pieces("llama") | {"tokenizer.ggml.add_bos_token": False}).encode("you")[0] != 1
    without = ours(pieces("llama") | {"tokenizer.ggml.add_space_prefix": False})
    assert len(without.encode("you", special=False)) == 1
    assert GgufOrigin.of(File(whole(list(keys.items())))).ends == (0, 2)


def test_words_of_users_stay_whole_and_are_told() -> None:
    text = ours(byte_level())
    (think,) = text.encode("<think>", special=False)
    assert text.decode([think]) == "<think>" and text.decode([2]) == ""


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tokenizer.ggml.model": "t5"}, "a tokenizer of gpt2 or llama, got 't5'"),
        ({"tokenizer.ggml.pre": "xyz"}, "texts cut as by .*got 'xyz'"),
        ({"tokenizer.ggml.merges": ["a b", "zz qq"]}, "pairs of tokens that make a token"),
        ({"tokenizer.ggml.merges": 3}, "pairs of tokens that merge"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "numbers, got others"),
        ({"tokenizer.ggml.bos_token_id": 100_000}, "a token from 0 to"),
        ({"tokenizer.ggml.tokens": "abc"}, "texts of tokens"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        ours(byte_level() | change)


def test_tokens_too_long_to_look_for_pairs_in_are_refused() -> None:
    keys = pieces("llama")
    keys["tokenizer.ggml.tokens"][-1] = "a" * 1000
    with pytest.raises(ModelError, match="at most 512 letters"):
        ours(keys)
