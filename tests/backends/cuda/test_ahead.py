"""Decoders whose next step begins before the host knows the token that it is for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rlx
from models.decoder_reference import CONFIGS, weights, write_folder
from rlx.backends.memory import DeviceArray
from rlx.errors import DeviceLost, InputError
from rlx.ir.graph import Graph
from rlx.models.llama import TOKEN, _likeliest

from .emulated_driver import EmulatedDriver

SMALL = {**CONFIGS["llama"], "num_hidden_layers": 1, "max_position_embeddings": 300}
PROMPT = [int(i) for i in np.random.default_rng(2).integers(0, 40, 9)]
ENDLESS = {"eos_token_id": -1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("decoder"), SMALL, weights(SMALL))


@pytest.fixture
def models(folder: Path, driver: EmulatedDriver) -> Iterator[tuple[rlx.Model, rlx.Model]]:
    with rlx.load(folder, device="cuda") as here, rlx.load(folder, device="cpu") as there:
        yield here, there


def test_tokens_are_those_of_the_processor(models: tuple[rlx.Model, rlx.Model]) -> None:
    here, there = models
    for count in (1, 2, 12):
        ours, theirs = (model.generate(PROMPT, count, **ENDLESS) for model in models)
        assert ours.ids == theirs.ids and ours.ended == theirs.ended == "length"
    prompts = [PROMPT, PROMPT[::-1]]
    assert [r.ids for r in here.generate(prompts, 6, **ENDLESS)] == [
        r.ids for r in there.generate(prompts, 6, **ENDLESS)
    ]


def test_the_host_waits_for_tokens_alone(models: tuple[rlx.Model, rlx.Model], driver: EmulatedDriver) -> None:
    here, _ = models
    here.generate(PROMPT, 4, **ENDLESS)
    few, many = [], []
    for count, calls in ((4, few), (24, many)):
        with driver.counted() as made:
            here.generate(PROMPT, count, **ENDLESS)
        calls += [made.count(name) for name in ("synchronise", "wait_for")]
    assert few[0] == many[0] and many[1] - few[1] >= 20


def test_a_token_that_ends_a_text_is_the_last(models: tuple[rlx.Model, rlx.Model]) -> None:
    there = models[1]
    everything = there.generate(PROMPT, 12, **ENDLESS).ids
    for end in everything[:5]:
        ours, theirs = (model.generate(PROMPT, 12, eos_token_id=end) for model in models)
        assert ours.ids == theirs.ids and ours.ended == theirs.ended == "stop"


def test_rows_end_on_their_own(models: tuple[rlx.Model, rlx.Model]) -> None:
    there = models[1]
    prompts = [PROMPT, PROMPT[::-1], [7] * len(PROMPT)]
    end = there.generate(PROMPT, 12, **ENDLESS).ids[3]
    ours, theirs = (model.generate(prompts, 12, eos_token_id=end) for model in models)
    assert [(r.ids, r.ended) for r in ours] == [(r.ids, r.ended) for r in theirs]


def test_drawn_tokens_and_penalties_come_by_logits(models: tuple[rlx.Model, rlx.Model]) -> None:
    for choices in ({"temperature": 0.7, "seed": 3}, {"repetition_penalty": 1.3}):
        ours, theirs = (model.generate(PROMPT, 8, **ENDLESS, **choices) for model in models)
        assert ours.ids == theirs.ids


def test_a_conversation_goes_on_where_it_ended(models: tuple[rlx.Model, rlx.Model], tmp_path: Path) -> None:
    talks = [model.conversation() for model in models]
    end = models[1].generate(PROMPT, 12, **ENDLESS).ids[4]
    for prompt in (PROMPT, PROMPT[:3], PROMPT[2:]):
        ours, theirs = (talk.generate(prompt, 7, eos_token_id=end) for talk in talks)
        assert ours.ids == theirs.ids
    for talk in talks:  # closed while a step is under way
        pieces = talk.stream(PROMPT[:2], 7, **ENDLESS)
        next(pieces), next(pieces)
        pieces.close()
    assert talks[0].ids == talks[1].ids
    talks[0].save(tmp_path / "talk.safetensors")
    again = models[0].conversation(tmp_path / "talk.safetensors")
    ours, theirs = (talk.generate(PROMPT[:4], 5, **ENDLESS) for talk in (again, talks[1]))
    assert ours.ids == theirs.ids


def test_a_context_is_filled_to_its_end(models: tuple[rlx.Model, rlx.Model]) -> None:
    room = SMALL["max_position_embeddings"] - len(PROMPT)
    ours, theirs = (model.generate(PROMPT, room, **ENDLESS) for model in models)
    assert ours.ids == theirs.ids and len(ours.ids) == room


def test_a_device_that_is_lost_on_the_way_is_opened_again(
    models: tuple[rlx.Model, rlx.Model], driver: EmulatedDriver
) -> None:
    here, there = models
    expected = there.generate(PROMPT, 6, **ENDLESS).ids
    assert here.generate(PROMPT, 6, **ENDLESS).ids == expected
    pieces = here.stream(PROMPT, 6, **ENDLESS)
    next(pieces)
    driver.fail("wait_for", 719)
    with pytest.raises(DeviceLost):
        list(pieces)
    assert here.generate(PROMPT, 6, **ENDLESS).ids == expected


def test_ids_that_are_none_are_refused_before_anything_runs(models: tuple[rlx.Model, rlx.Model]) -> None:
    here, _ = models
    with here.decoder.context() as context:
        for wrong in (-1, SMALL["vocab_size"]):
            with pytest.raises(InputError, match=rf"expected ids from 0 to {SMALL['vocab_size'] - 1}, got {wrong}"):
                context.feed(np.array([[wrong]]))


@pytest.mark.parametrize("vocab", [40, 41, 1, 96])
def test_the_first_of_the_greatest_is_the_token(vocab: int) -> None:
    """Whatever parts the logits are looked at in; NaN comes before all numbers, as in NumPy."""
    graph = Graph("likeliest")
    graph.output(_likeliest(graph.input("logits", ("batch", vocab)), vocab), name=TOKEN)
    model = rlx.Session("cpu").compile(graph)
    random = np.random.default_rng(vocab)
    logits = random.integers(0, 3, (50, vocab)).astype(np.float32)
    logits[7, vocab // 2] = np.nan
    logits[8] = -np.inf
    np.testing.assert_array_equal(model.run([logits])[0], logits.argmax(axis=1)[:, None])


def test_where_outputs_are_wanted_is_said_by_name(driver: EmulatedDriver) -> None:
    graph = Graph("two")
    x = graph.input("x", ("n",))
    graph.output(x * 2, name="twice")
    graph.output(x + 1, name="more")
    given = [np.arange(5, dtype=np.float32)]
    for device in ("cuda", "cpu"):
        program = rlx.Session(device).compile(graph)
        found = program.run_to(given, {"more": "device", "twice": "host"})
        assert isinstance(found["more"], DeviceArray) and isinstance(found["twice"], np.ndarray)
        found["more"].start_reading()
        for _ in range(2):
            np.testing.assert_array_equal(found["more"].numpy(), given[0] + 1)
        assert list(program.run_to(given, {"more": "host"})) == ["more"]
        with pytest.raises(InputError, match="expected outputs among"):
            program.run_to(given, {"most": "host"})
