"""Text from decoders: greedy and sampled, streams, limits, conversations, chats, and the command line."""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from models.decoder_reference import CONFIGS, logits, weights, write_folder
from rlx.cli import main
from rlx.errors import CapabilityError, ClosedError, DeviceLost, InputError, ModelError, RunCancelled, RunTimeout
from rlx.models.context import CHUNK, FIRST_CAPACITY
from rlx.models.sampling import Sampler, Settings
from rlx.models.text import TextStream

LONG = {**CONFIGS["llama"], "max_position_embeddings": 700}
PROMPT = [int(i) for i in np.random.default_rng(2).integers(0, 40, 9)]
WORDS = ["<end>", "<user>", "<bot>", *(f"w{i}" for i in range(37))]
ENDLESS = {"eos_token_id": -1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("decoder"), LONG, weights(LONG))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[rlx.Model]:
    with rlx.load(folder, device="cpu") as opened:
        yield opened


@pytest.fixture
def speaking(folder: Path, tmp_path: Path) -> rlx.Model:
    """The same model with a tokenizer, a word for each token, and a chat template."""
    tokenizers = pytest.importorskip("tokenizers")
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<end>", "<user>", "<bot>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
        "<{{ 'bot' if m.role == 'assistant' else m.role }}> {{ m.content }} {% endfor %}<bot>"
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<end>"}))
    return rlx.load(tmp_path, device="cpu")


def expected_ids(count: int, prompt: list[int] = PROMPT) -> list[int]:
    """The likeliest tokens, by the reference."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(np.argmax(logits(LONG, weights(LONG), np.array([ids]))[0, -1])))
    return ids[len(prompt) :]


def test_the_likeliest_tokens(model: rlx.Model) -> None:
    result = model.generate(PROMPT, 24, **ENDLESS)
    assert result.ids == expected_ids(24) and result.ended == "length"
    assert result.text == "" and result.prompt_tokens == len(PROMPT) and result.prefill_s > 0 < result.decode_s
    assert model.generate(np.array(PROMPT), 24, **ENDLESS).ids == result.ids


def test_prompts_longer_than_a_chunk_and_contexts_longer_than_the_first_capacity(model: rlx.Model) -> None:
    prompt = [int(i) for i in np.random.default_rng(3).integers(0, 40, 2 * CHUNK - 6)]
    count = FIRST_CAPACITY - len(prompt) + 4
    assert model.generate(prompt, count, **ENDLESS).ids == expected_ids(count, prompt)


def test_several_prompts_at_once_are_those_one_by_one(model: rlx.Model) -> None:
    prompts = [PROMPT, PROMPT[::-1], [5] * len(PROMPT)]
    for choices in ({}, {"temperature": 1.5, "seed": 4}):
        batch = model.generate(prompts, 12, **ENDLESS, **choices)
        assert isinstance(batch, list)
        if not choices:
            assert [r.ids for r in batch] == [model.generate(p, 12, **ENDLESS).ids for p in prompts]
        assert batch == model.generate(prompts, 12, **ENDLESS, **choices) or [r.ids for r in batch] == [
            r.ids for r in model.generate(prompts, 12, **ENDLESS, **choices)
        ]
    end = model.generate(prompts, 12, **ENDLESS)[1].ids[3]
    ended = model.generate(prompts, 12, eos_token_id=[end])
    for result, p in zip(ended, prompts):
        assert result.ids == model.generate(p, 12, eos_token_id=[end]).ids, "rows that ended get nothing more"
    assert ended[1].ended == "stop" and ended[1].ids[-1] == end


def test_a_seed_gives_the_same_tokens(model: rlx.Model) -> None:
    drawn = [model.generate(PROMPT, 20, temperature=1.0, seed=seed, **ENDLESS).ids for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    unseeded = {tuple(model.generate(PROMPT, 20, temperature=1.0, **ENDLESS).ids) for _ in range(3)}
    assert len(unseeded) == 3
    assert model.generate(PROMPT, 20, temperature=1.0, top_k=1, **ENDLESS).ids == expected_ids(20)


def test_streams_are_what_generate_gives(model: rlx.Model) -> None:
    stream = model.stream(PROMPT, 12, **ENDLESS)
    assert [piece.token for piece in stream] == expected_ids(12)
    stream = model.stream(PROMPT, 12, **ENDLESS)
    assert next(stream).token == expected_ids(1)[0]
    stream.close()  # type: ignore[attr-defined]  # a generator
    assert model.generate(PROMPT, 5, **ENDLESS).ids == expected_ids(5)


def test_calls_of_several_threads(model: rlx.Model) -> None:
    results: dict[int, list[int]] = {}

    def work(number: int) -> None:
        results[number] = model.generate([number, *PROMPT], 15, **ENDLESS).ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: expected_ids(15, [i, *PROMPT]) for i in range(4)}


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda m: m.generate(PROMPT, 700), InputError, r"at most 700 tokens, got 9 and 700 new ones: 709"),
        (lambda m: m.generate([1] * 700), InputError, r"at most 700 tokens, got 700"),
        (lambda m: m.generate([40]), InputError, r"ids from 0 to 39, got 40"),
        (lambda m: m.generate([-1]), InputError, r"ids from 0 to 39, got -1"),
        (lambda m: m.generate([]), InputError, r"at least one token"),
        (lambda m: m.generate([0.5]), InputError, r"a text, ids or messages, got \[0\.5\]"),
        (lambda m: m.generate([[1, 2], [3]]), InputError, r"prompts of one length at once, got \[1, 2\]"),
        (lambda m: m.generate("text"), ModelError, r"ids of tokens, as there is no 'tokenizer\.json'"),
        (lambda m: m.generate([1], temprature=1), InputError, r"did you mean 'temperature'"),
        (lambda m: m.generate([1], temperature=-1), InputError, r"temperature to be a number of at least 0, got -1"),
        (lambda m: m.generate([1], temperature=float("nan")), InputError, r"temperature"),
        (lambda m: m.generate([1], top_k=1.5), InputError, r"top_k"),
        (lambda m: m.generate([1], top_p=0.0), InputError, r"top_p"),
        (lambda m: m.generate([1], min_p=2), InputError, r"min_p"),
        (lambda m: m.generate([1], repetition_penalty=0), InputError, r"repetition_penalty"),
        (lambda m: m.generate([1], seed=-1), InputError, r"seed"),
        (lambda m: m.generate([1], 0), InputError, r"max_new_tokens"),
        (lambda m: m.generate([1], stop=""), InputError, r"stop"),
        (lambda m: m.generate([1], timeout=0), InputError, r"timeout"),
        (lambda m: m.generate([1], stop="w1"), ModelError, r"tokenizer"),
    ],
)
def test_calls_that_are_refused(model: rlx.Model, call: Callable[[Any], Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        call(model)
    assert model.generate(PROMPT, 3, **ENDLESS).ids == expected_ids(3)


def test_limits_end_a_call_and_the_next_one_works(model: rlx.Model) -> None:
    with pytest.raises(RunTimeout, match=r"\[generate\] expected tokens within 0\.001 s"):
        model.generate(PROMPT, 600, timeout=0.001, **ENDLESS)
    token = rlx.CancelToken()
    seen = []
    with pytest.raises(RunCancelled):
        for piece in model.stream(PROMPT, 600, cancel=token, **ENDLESS):
            seen.append(piece.token)
            if len(seen) == 4:
                token.cancel()
    assert seen == expected_ids(4)
    assert model.generate(PROMPT, 8, timeout=600, cancel=rlx.CancelToken(), **ENDLESS).ids == expected_ids(8)


def test_generation_config_is_respected_and_overridden(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    end = expected_ids(6)[5]
    said = {"do_sample": False, "max_new_tokens": 9, "eos_token_id": [end, 39], "temperature": 0.6, "top_p": 0.9}
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    model = rlx.load(tmp_path, device="cpu")
    result = model.generate(PROMPT)
    assert result.ids == expected_ids(9)[: expected_ids(9).index(end) + 1] and result.ended == "stop"
    assert len(model.generate(PROMPT, eos_token_id=-1).ids) == 9
    assert len(model.generate(PROMPT, 11, eos_token_id=-1).ids) == 11
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 9.0}))
    model = rlx.load(tmp_path, device="cpu")
    assert model.generate(PROMPT, 20, seed=1).ids != model.generate(PROMPT, 20, seed=2).ids
    assert model.generate(PROMPT, 7, temperature=0).ids == expected_ids(7)
    for wrong in ({"temperature": "hot", "do_sample": True}, {"num_beams": 4}, {"eos_token_id": "x"}, {"top_k": -1}):
        (tmp_path / "generation_config.json").write_text(json.dumps(wrong))
        with pytest.raises(ModelError, match=next(iter(wrong))):
            rlx.load(tmp_path, device="cpu").generate(PROMPT)


@pytest.mark.parametrize("device", ["auto", ["cpu", "reference"], "reference"])
def test_other_ways_to_name_devices(folder: Path, device: Any) -> None:
    model = rlx.load(folder, device=device)
    assert model.generate(PROMPT, 6, **ENDLESS).ids == expected_ids(6)
    talk = model.conversation()
    assert talk.generate(PROMPT, 6, **ENDLESS).ids == expected_ids(6)


def test_models_can_be_pickled(folder: Path) -> None:
    model = rlx.load(folder, device="cpu")
    model.generate(PROMPT, 2)
    assert pickle.loads(pickle.dumps(model)).generate(PROMPT, 6, **ENDLESS).ids == expected_ids(6)


def test_models_that_generate_nothing_say_so() -> None:
    graph = rlx.Graph("plain")
    graph.output(graph.input("x", (2,)) * 2.0, name="y")
    from rlx.frontends.registry import Imported

    model = rlx.Model(Imported(graph, "rlx"), rlx.Session("reference"))
    with pytest.raises(
        CapabilityError, match=r"\[generate\] expected a decoder, of a GGUF file or a folder of llama, .*got 'plain'"
    ):
        model.generate([1])


def test_a_closed_model_generates_no_more(folder: Path) -> None:
    model = rlx.load(folder, device="cpu")
    model.generate(PROMPT, 2)
    model.close()
    with pytest.raises(ClosedError):
        model.generate(PROMPT, 2)


# conversations


def test_a_conversation_goes_on(model: rlx.Model, tmp_path: Path) -> None:
    talk = model.conversation()
    first = talk.generate(PROMPT, 6, **ENDLESS)
    second = talk.generate([3, 4], 6, **ENDLESS)
    whole = [*PROMPT, *first.ids, 3, 4]
    assert second.ids == expected_ids(6, whole) and talk.ids == [*whole, *second.ids]
    talk.save(tmp_path / "talk")
    again = model.conversation(tmp_path / "talk")
    assert again.ids == talk.ids
    assert again.generate([7], 5, **ENDLESS).ids == talk.generate([7], 5, **ENDLESS).ids == expected_ids(
        5, [*whole, *second.ids, 7]
    )  # fmt: skip


def test_what_fails_changes_no_conversation(model: rlx.Model) -> None:
    talk = model.conversation()
    talk.generate(PROMPT, 4, **ENDLESS)
    before = list(talk.ids)
    token = rlx.CancelToken()
    with pytest.raises(RunCancelled):
        for _ in talk.stream([1, 2], 50, cancel=token, **ENDLESS):
            token.cancel()
    for call in (lambda: talk.generate([99]), lambda: talk.generate([1], 700), lambda: talk.generate([1], top_p=7)):
        with pytest.raises(InputError):
            call()
    assert talk.ids == before
    assert talk.generate([8], 5, **ENDLESS).ids == expected_ids(5, [*before, 8])


def test_what_a_device_lost_is_computed_again(model: rlx.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = model.conversation()
    talk.generate(PROMPT, 4, **ENDLESS)
    before, program = list(talk.ids), talk._context.program

    def fail(*_: Any) -> None:
        raise DeviceLost("[run] expected a device that answers, got none")

    with monkeypatch.context() as patch:
        patch.setattr(program, "run_to", fail)
        with pytest.raises(DeviceLost):
            talk.generate([8], 5, **ENDLESS)
    assert talk.ids == before and talk._context.length == 0
    assert talk.generate([8], 5, **ENDLESS).ids == expected_ids(5, [*before, 8])


def test_a_stream_that_is_closed_early_stays_said(model: rlx.Model) -> None:
    talk = model.conversation()
    stream = talk.stream(PROMPT, 50, **ENDLESS)
    said = [next(stream).token for _ in range(3)]
    stream.close()  # type: ignore[attr-defined]  # a generator
    assert talk.ids == [*PROMPT, *said]
    assert talk.generate([8], 5, **ENDLESS).ids == expected_ids(5, [*PROMPT, *said, 8])


def test_files_that_are_no_conversation_of_the_model(model: rlx.Model, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "other", LONG, weights(LONG, seed=9))
    talk = rlx.load(other, device="cpu").conversation()
    talk.generate(PROMPT, 3, **ENDLESS)
    talk.save(tmp_path / "talk")
    with pytest.raises(InputError, match="with another"):
        model.conversation(tmp_path / "talk")
    with pytest.raises(ModelError, match="another file"):
        model.conversation(other / "model.safetensors")
    whole = (tmp_path / "talk").read_bytes()
    for count in (0, 7, 100, len(whole) - 1):
        (tmp_path / "talk").write_bytes(whole[:count])
        with pytest.raises(ModelError):
            model.conversation(tmp_path / "talk")


# text


def test_text_in_and_out(speaking: rlx.Model) -> None:
    ids = speaking.generate(PROMPT, 12, **ENDLESS).ids
    text = " ".join(WORDS[i] for i in PROMPT)
    result = speaking.generate(text, 12, **ENDLESS)
    assert result.ids == ids and str(result) == " ".join(WORDS[i] for i in ids if i > 2)
    pieces = list(speaking.stream(text, 12, **ENDLESS))
    assert "".join(piece.text for piece in pieces) == result.text and [p.token for p in pieces] == ids


def test_texts_that_stop(speaking: rlx.Model) -> None:
    words = speaking.generate(PROMPT, 12, **ENDLESS).text.split()
    stop = next(word for word in words if words.index(word) > 2)
    result = speaking.generate(PROMPT, 12, stop=["never", stop], **ENDLESS)
    assert result.ended == "stop" and result.text.split() == words[: words.index(stop)]
    streamed = "".join(p.text for p in speaking.stream(PROMPT, 12, stop=stop, **ENDLESS))
    assert streamed == result.text


def test_chats(speaking: rlx.Model) -> None:
    pytest.importorskip("jinja2")
    message = {"role": "user", "content": "w5 w6"}
    ids = speaking.decoder.ids_of([message])
    assert [WORDS[i] for i in ids] == ["<user>", "w5", "w6", "<bot>"]
    talk = speaking.conversation()
    answer = talk.say("w5 w6", 5, **ENDLESS)
    assert answer.ids == speaking.generate([message], 5, **ENDLESS).ids
    assert talk.messages == [message, {"role": "assistant", "content": answer.text}]
    second = talk.say("w7", 5, **ENDLESS)
    third = [*talk.messages[:2], {"role": "user", "content": "w7"}]
    assert second.ids == speaking.generate(third, 5, **ENDLESS).ids
    with pytest.raises(InputError, match="no system here"):
        speaking.generate([{"role": "system", "content": "w1"}])
    with pytest.raises(InputError, match="'role' and 'content'"):
        speaking.generate([{"content": "w1"}])


def test_templates_reach_nothing_outside(speaking: rlx.Model, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    for template in ("{{ messages.__class__.__mro__ }}", "{% for i in range(10**9) %}{% endfor %}", "{{ 1 + }}"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        fresh = rlx.load(tmp_path, device="cpu")
        with pytest.raises((InputError, ModelError)):
            fresh.generate([{"role": "user", "content": "w1"}])


@pytest.mark.parametrize("template, words", [
    ("{% for m in messages %}{% generation %}w1 {{ m.content }}{% endgeneration %} {% endfor %}", "w1 w5"),
    ("{%- for m in messages -%}{%- generation -%} w1 {%- endgeneration -%}{%- break -%}{%- endfor -%}", "w1"),
    ("{% if tools is not none or documents %}w2{% else %}w1{% endif %}", "w1"),
    ("{{ '<end>' | tojson }}", '"<end>"'),
    ("{{ strftime_now('w9') }}{{ '\n' }}{{ bos_token }}{{ eos_token }}", "w9\n<end>"),
])  # fmt: skip
def test_what_templates_use(speaking: rlx.Model, template: str, words: str, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    (tmp_path / "chat_template.jinja").write_text(template)
    assert speaking.decoder.text.rendered([{"role": "user", "content": "w5"}]).strip() == words


class _Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", ["plain", "größer 🦊🦊 ok", "日本語", "ends with half \N{FOX FACE}"])
def test_streams_hold_back_parts_of_characters(text: str) -> None:
    stream = TextStream(_Bytes())  # type: ignore[arg-type]  # it decodes, which is all that is asked for
    pieces = [stream.push(byte) for byte in text.encode()]
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == text


@pytest.mark.parametrize("text, stop, expected", [
    ("one two three", ["two"], "one "), ("aab", ["ab"], "a"), ("abc", ["abcd"], "abc"), ("xyx", ["q"], "xyx"),
    ("end", ["end"], ""), ("a b c", ["c", "b"], "a "),
])  # fmt: skip
def test_streams_hold_back_parts_of_what_stops_them(text: str, stop: list[str], expected: str) -> None:
    stream = TextStream(_Bytes(), stop)  # type: ignore[arg-type]
    out = ""
    for byte in text.encode():
        out += stream.push(byte)
        assert expected.startswith(out)
        if stream.stopped:
            break
    assert out + stream.finish() == expected and stream.stopped == (expected != text)


# the choice of a token

SCORES = np.array([2.0, 1.0, 0.5, -1.0, 3.0, 0.0], np.float32)


def shares(settings: Settings, seen: tuple[int, ...] = (), count: int = 4000) -> Any:
    drawn = [Sampler(settings, seen, 6, row).choose(SCORES) for row in range(count)]
    return np.bincount(drawn, minlength=6) / count


@pytest.mark.parametrize("choices", [
    {"temperature": 1.0}, {"temperature": 0.5}, {"temperature": 1.0, "top_k": 3}, {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.1}, {"temperature": 2.0, "top_k": 4, "top_p": 0.8},
    {"temperature": 1.0, "repetition_penalty": 2.0},
])  # fmt: skip
def test_tokens_are_drawn_by_their_probability(choices: dict[str, Any]) -> None:
    seen = (4, 3) if "repetition_penalty" in choices else ()
    scores = SCORES.astype(np.float64)
    for i in seen:
        scores[i] = scores[i] / 2 if scores[i] > 0 else scores[i] * 2
    scores = scores / choices["temperature"]
    if "top_k" in choices:
        scores[scores < np.sort(scores)[-choices["top_k"]]] = -np.inf
    expected = np.exp(scores) / np.exp(scores).sum()
    if "top_p" in choices:
        order = np.argsort(-expected)
        before = np.cumsum(expected[order]) - expected[order]
        expected[order[before >= choices["top_p"]]] = 0
    expected[expected < choices.get("min_p", 0) * expected.max()] = 0
    expected /= expected.sum()
    actual = shares(Settings(seed=7, **choices), seen)
    assert np.abs(actual - expected).max() < 0.04 and set(np.flatnonzero(actual)) <= set(np.flatnonzero(expected))


@pytest.mark.parametrize("top_p, spread", [(0.3, 5.0), (0.9, 5.0), (0.9, 0.1), (0.999, 0.1)])
def test_the_likeliest_of_many_tokens(top_p: float, spread: float) -> None:
    """Sharp and flat distributions: few tokens, and more than are sorted at first."""
    scores = np.random.default_rng(3).standard_normal(3000).astype(np.float32) * np.float32(spread)
    shares = np.exp(scores.astype(np.float64))
    shares /= shares.sum()
    order = np.argsort(-shares)
    kept = set(order[np.cumsum(shares[order]) - shares[order] < top_p].tolist())
    settings = Settings(temperature=1.0, top_p=top_p, seed=1)
    drawn = {Sampler(settings, (), scores.size, row).choose(scores) for row in range(400)}
    assert drawn <= kept and len(drawn) > min(len(kept), 400) / 5


def test_zero_temperature_takes_the_first_of_the_likeliest() -> None:
    assert Sampler(Settings(), (), 6).choose(SCORES) == 4
    assert Sampler(Settings(repetition_penalty=9.0), (4,), 6).choose(SCORES) == 0


# the command line


def test_the_command_line_streams(speaking: rlx.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path)
    text = speaking.generate("w5 w6", 6).text
    assert main(["run", path, "--prompt", "w5 w6", "-n", "6", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{text}\n" and "2 tokens read at" in captured.err and "generated at" in captured.err
    assert main(["run", path, "--prompt", "w5 w6", "-n", "6", "--json", "--device", "cpu"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["text"] == text and document["prompt_tokens"] == 2
    assert main(["run", path, "--prompt", "", "--device", "cpu"]) == 1
    assert "at least one token" in capsys.readouterr().err
    assert main(["inspect", path]) == 0
    assert "cache" not in capsys.readouterr().out


# a real model


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a folder, in f32."""
    tools = Path(__file__).parents[2] / "tools"
    sys.path.insert(0, str(tools))
    try:
        from export_smollm import PACKAGES, export
    finally:
        sys.path.remove(str(tools))
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: they write the model")
    return Path(export(tmp_path_factory.mktemp("smollm")))


def test_smollm_says_what_it_says_in_transformers(smollm: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(smollm).eval()
    model = rlx.load(smollm, device="cpu")
    chat = [{"role": "user", "content": "What is 2+2?"}]
    assert model.decoder.ids_of("The capital of France is") == [504, 3575, 282, 4649, 314]
    for prompt in ("The capital of France is", "def fibonacci(n):", chat):
        ids = model.decoder.ids_of(prompt)
        result = model.generate(prompt, 24)
        with torch.no_grad():
            expected = theirs.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :]
        assert result.ids == expected.tolist()
    assert model.generate("The capital of France is", 1).text == " Paris"
