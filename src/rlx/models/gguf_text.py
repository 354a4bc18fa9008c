"""Tokenizers and chats from the metadata of GGUF files, made with the package `tokenizers`.

How texts are split before their pieces merge is not in a file, which has a name for it: the expressions are those that
the models of that name were trained with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlx.frontends.gguf import File
from rlx.models.sampling import Settings
from rlx.models.text import Text, package
from rlx.records import dataclass

_UNKNOWN, _CONTROL, _OF_USERS = 2, 3, 4
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_MODEL, _TOKENS, _MERGES = "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
_ENDS = ("eos", "eot", "eom")
MOST_LETTERS, MOST_OF_TOKEN = 1 << 24, 512
"""Of all tokens together, and of one, of which merges are found where a file lists none."""

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"{_WORD}*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+%|{_WORD}+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*%"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _CASED.replace("%", "") + r"|\p{N}" + _REST
_GPT_4O = _CASED.replace("%", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?") + r"|\p{N}{1,3}" + _REST
_SPLITS: dict[str, str | None] = {
    **dict.fromkeys(("default", "gpt-2", "olmo", "jais", "mpt", "trillion"), None),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "command-r"), r"\p{N}"),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo"), _QWEN2),
    "tekken": _TEKKEN,
    "gpt-4o": _GPT_4O,
}
"""What cuts texts, by the file's name for it. Where that is a part, or nothing, GPT-2's expression cuts the rest."""
_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken")
"""Where a piece that is a token does not merge, but is it; those of Llama 3 begin texts with a token, too."""


@dataclass(frozen=True)
class GgufOrigin:
    """A GGUF file as where a decoder is from.

    source     the file, which is opened again for its texts
    has_text   whether it has a tokenizer
    ends       tokens that end a text
    """

    source: Path | bytes
    has_text: bool
    ends: tuple[int, ...]

    @staticmethod
    def of(file: File) -> GgufOrigin:
        ends = [_id(file, name) for name in _ENDS]
        return GgufOrigin(file.source, file.count(_TOKENS) > 0, tuple(dict.fromkeys(i for i in ends if i is not None)))

    def text(self) -> Text:
        return text_of(File(self.source))

    def settings(self) -> Settings:
        return Settings(eos_token_id=self.ends)


def _id(file: File, name: str) -> int | None:
    """A special token. Raises ModelError for what is no token."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = file.get(key)
    if value is None:
        return None
    count = file.count(_TOKENS)
    if type(value) is not int or value < 0 or (count and value >= count):
        raise file.wrong(f"a token from 0 to {count - 1}", value, key)
    return value


def text_of(file: File) -> Text:
    """The tokenizer of a file, and its template of chats. Raises MissingExtra, ModelError."""
    kind, tokens = file.get(_MODEL), file.get(_TOKENS)
    if not isinstance(tokens, list) or not tokens:
        raise file.wrong("texts of tokens", "none", _TOKENS)
    if kind not in ("gpt2", "llama"):
        raise file.wrong("a tokenizer of gpt2 or llama", repr(kind), _MODEL)
    kinds = _numbers(file, "tokenizer.ggml.token_type", len(tokens)) or [1] * len(tokens)
    try:
        tokenizer = _of_bytes(file, tokens) if kind == "gpt2" else _of_pieces(file, tokens, kinds)
        _add_special(file, tokenizer, tokens, kinds)
    except Exception as error:
        if type(error).__module__.startswith("rlx."):
            raise
        # the package raises no class of its own
        raise file.wrong("a tokenizer", f"what does not go together ({error})", _TOKENS) from None
    names = {name: _id(file, key) for name, key in _SPECIAL.items()}
    settings = {name: tokens[i] for name, i in names.items() if i is not None}
    template = file.get("tokenizer.chat_template")
    return Text(tokenizer, settings, template if isinstance(template, str) else None, file.where)


_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def _numbers(file: File, key: str, count: int) -> list[Any]:
    """An array of a number for each token; empty if there is none."""
    if key not in file:
        return []
    array = file.get(key)
    if isinstance(array, (list, int, float, str)) or array.ndim != 1 or len(array) != count:
        raise file.wrong(f"{count} numbers", "others", key)
    return list(array.tolist())


def _merges(file: File, has: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs that merge, as the file lists them. Those of tokens that are not there are left out."""
    listed = file.get(_MERGES)
    if not isinstance(listed, list):
        raise file.wrong("pairs of tokens that merge", "none", _MERGES)
    pairs = []
    for merge in listed:
        at = merge.find(" ", 1)
        left, right = merge[:at], merge[at + 1 :]
        if at < 0 or left not in has or right not in has or left + right not in has:
            raise file.wrong("pairs of tokens that make a token", repr(merge), _MERGES)
        pairs.append((left, right))
    return pairs


def _of_bytes(file: File, tokens: Sequence[str]) -> Any:
    """Pieces of bytes that merge, each byte written as a letter."""
    library = package()
    name = file.get("tokenizer.ggml.pre", "default")
    if name not in _SPLITS:
        raise file.wrong(f"texts cut as by {', '.join(_SPLITS)}", repr(name), "tokenizer.ggml.pre")
    ids = {token: i for i, token in enumerate(tokens)}
    model = library.models.BPE(ids, _merges(file, ids), ignore_merges=name in _WHOLE_WORDS)
    tokenizer = library.Tokenizer(model)
    split, by_bytes = _SPLITS[name], library.pre_tokenizers.ByteLevel
    whole = split is None or split == r"\p{N}"
    steps = [by_bytes(add_prefix_space=False, use_regex=whole)]
    if split is not None:
        steps.insert(0, library.pre_tokenizers.Split(library.Regex(split), "isolated"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence(steps)
    if split == _QWEN2:
        tokenizer.normalizer = library.normalizers.NFC()
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def _of_pieces(file: File, tokens: Sequence[str], kinds: Sequence[int]) -> Any:
    """SentencePiece: pieces of letters with spaces as a letter, and single bytes where no letter is known."""
    library = package()
    is_gemma = str(file.get("general.architecture")).startswith("gemma")
    if is_gemma:  # their tokens of several spaces are written as such
        tokens = [_SPACE * len(token) if token.isspace() and set(token) == {" "} else token for token in tokens]
    ids = {token: i for i, token in enumerate(tokens)}
    scores = _numbers(file, "tokenizer.ggml.scores", len(tokens))
    if is_gemma or not scores:
        scores = [-float(i) for i in range(len(tokens))]
    merges = _merges(file, ids) if _MERGES in file else _merges_of(file, ids, scores)
    unknown = next((tokens[i] for i, kind in enumerate(kinds) if kind == _UNKNOWN), None)
    model = library.models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = library.Tokenizer(model)
    has_prefix = file.get("tokenizer.ggml.add_space_prefix", not is_gemma)
    spaces = library.normalizers.Replace(" ", _SPACE)
    first = [library.normalizers.Prepend(_SPACE)] if has_prefix else []
    tokenizer.normalizer = library.normalizers.Sequence([*first, spaces])
    steps = [library.decoders.Replace(_SPACE, " "), library.decoders.ByteFallback(), library.decoders.Fuse()]
    tokenizer.decoder = library.decoders.Sequence(
        [*steps, *([library.decoders.Strip(" ", 1, 0)] if has_prefix else [])]
    )
    return tokenizer


def _merges_of(file: File, ids: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Pairs of tokens that make a token, those of the best tokens first."""
    lengths = [len(token) for token in ids]
    if sum(lengths) > MOST_LETTERS or max(lengths) > MOST_OF_TOKEN:
        most = f"tokens of at most {MOST_OF_TOKEN} letters, and of {MOST_LETTERS} together"
        raise file.wrong(most, f"{max(lengths)} and {sum(lengths)}", _TOKENS)
    pairs = []
    for token, i in ids.items():
        of_token = []
        for at in range(1, len(token)):
            left, right = ids.get(token[:at]), ids.get(token[at:])
            if left is not None and right is not None:
                of_token.append((-scores[i], left, right, token[:at], token[at:]))
        pairs += of_token
    pairs.sort(key=lambda pair: pair[:3])
    return [(left, right) for *_, left, right in pairs]


def _add_special(file: File, tokenizer: Any, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Tokens that are never cut, and those that begin and end a text."""
    library = package()
    for kind, special in ((_CONTROL, True), (_OF_USERS, False)):
        found = [tokens[i] for i, each in enumerate(kinds) if each == kind and tokens[i]]
        found = [
            token for token in found if tokenizer.token_to_id(token) is not None
        ]  # as they are: not Gemma's spaces
        made = [library.AddedToken(token, normalized=False, special=special) for token in found]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(made)
    pieces = file.get(_MODEL) == "llama"
    usual = pieces or file.get("tokenizer.ggml.pre") in _WHOLE_WORDS
    first = _id(file, "bos") if file.get("tokenizer.ggml.add_bos_token", usual) else None
    last = _id(file, "eos") if file.get("tokenizer.ggml.add_eos_token", False) else None
    if first is None and last is None:
        return
    template = [*([tokens[first]] if first is not None else []), "$A", *([tokens[last]] if last is not None else [])]
    used = [(tokens[i], i) for i in (first, last) if i is not None]
    tokenizer.post_processor = library.processors.TemplateProcessing(template, special_tokens=list(dict(used).items()))
