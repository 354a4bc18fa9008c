"""Random numbers: known answers of the generator, moments, and that streams and runs differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ops.random import Philox
from support import run_on

STATE = np.array([1, 2, 3, 4], np.uint32)
# counter, key and result of philox 4x32-10 in the tests of Random123 (kat_vectors)
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]  # fmt: skip


@pytest.mark.parametrize("counter, key, expected", KNOWN)
def test_known_answers(counter: Any, key: Any, expected: Any, device: str) -> None:
    graph = rlx.Graph()
    words = np.array([*counter, *key], np.uint32)
    x = graph.input("x", (6,), "u32")
    parts = [x[i : i + 1] for i in range(6)]
    graph.output(ops.philox(*parts, ops.iota(graph, shape=(4,), dtype="u32")), name="y")
    assert run_on(device, graph, {"x": words})["y"].tolist() == list(expected)


def test_bits_are_words_of_blocks_in_order() -> None:
    counter = [np.array([i], np.uint32) for i in (1, 3, 4, 7)]
    keys = [np.array([i], np.uint32) for i in (1, 2)]
    block = [int(Philox().reference(*counter, *keys, np.array([word], np.uint32))[0]) for word in range(4)]
    graph = rlx.Graph()
    graph.output(ops.random_bits(graph.input("s", (4,), "u32"), shape=(9,), stream=7), name="y")
    assert run_on("reference", graph, {"s": STATE})["y"][4:8].tolist() == block


def drawn(device: str, make: Any, state: Array = STATE) -> Array:
    graph: Graph = rlx.Graph()
    value: Value = make(graph.input("s", (4,), "u32"))
    graph.output(value, name="y")
    return run_on(device, graph, {"s": state})["y"]


def test_uniform_moments() -> None:
    x = drawn("cpu", lambda s: ops.random_uniform(s, shape=(1000, 1000), low=-1.0, high=3.0)).astype(np.float64)
    assert -1 <= x.min() < -0.9999 and 2.9999 < x.max() < 3
    assert abs(x.mean() - 1) < 0.005 and abs(x.var() - 16 / 12) < 0.01
    assert abs(np.corrcoef(x[:, :-1].ravel(), x[:, 1:].ravel())[0, 1]) < 0.005


def test_normal_moments_and_tails() -> None:
    x = drawn("cpu", lambda s: ops.random_normal(s, shape=(4_000_001,), mean=2.0, deviation=0.5)).astype(np.float64)
    z = (x - 2) / 0.5
    assert abs(z.mean()) < 0.002 and abs(z.var() - 1) < 0.003
    assert abs((z**3).mean()) < 0.01 and abs((z**4).mean() - 3) < 0.03
    expected = 2 * 4_000_001 * 3.167e-5  # beyond 4 standard deviations on both sides
    assert abs((np.abs(z) > 4).sum() - expected) < 6 * np.sqrt(expected)
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 0.002


def test_integers_and_coins_and_classes() -> None:
    x = drawn("cpu", lambda s: ops.random_integers(s, shape=(600_000,), low=-2, high=4))
    counts = np.bincount(x + 2)
    assert len(counts) == 6 and np.abs(counts - 100_000).max() < 1500
    coins = drawn("cpu", lambda s: ops.bernoulli(ops.random_uniform(s, shape=(500_000,), high=0.0) + 0.3, s))
    assert abs(coins.mean() - 0.3) < 0.004
    chances = np.array([0.1, 0.2, 0.7])
    classes = drawn("cpu", lambda s: ops.categorical(s.graph.constant(np.log(chances), "f32"), s, samples=300_000))
    assert np.abs(np.bincount(classes) / 300_000 - chances).max() < 0.005


def test_streams_runs_and_keys_differ() -> None:
    bits = [
        drawn("reference", lambda s, stream=stream: ops.random_bits(s, shape=(1000,), stream=stream), state)
        for stream, state in ((0, STATE), (1, STATE), (0, STATE + np.uint32([0, 0, 1, 0])), (0, STATE[::-1].copy()))
    ]
    for i, a in enumerate(bits):
        for b in bits[:i]:
            assert (a == b).mean() < 0.01


def test_a_named_number_of_numbers() -> None:
    graph = rlx.Graph()
    state, x = graph.input("s", (4,), "u32"), graph.input("x", ("n",))
    graph.output(ops.random_bits(state, shape=x.shape), name="y")
    expected = drawn("reference", lambda s: ops.random_bits(s, shape=(77,)))
    assert np.array_equal(run_on("cpu", graph, {"s": STATE, "x": np.zeros(77, np.float32)})["y"], expected)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda s: ops.random_bits(s[:2], shape=(3,)), r"\[random_bits\] expected a state of u32\[4\]"),
        (lambda s: ops.random_bits(s, shape=(3,), stream=-1), r"expected a stream of 32 bits"),
        (lambda s: ops.random_bits(s, shape=(1 << 20, 1 << 20)), r"expected at most 4294967296 numbers"),
        (lambda s: ops.random_uniform(s, shape=(3,), low=1.0, high=0.0), r"expected finite numbers low ≤ high"),
        (lambda s: ops.random_uniform(s, shape=(3,), dtype="i32"), r"expected f64, f32, f16 or bf16"),
        (lambda s: ops.random_integers(s, shape=(3,), low=0, high=0), r"expected low < high"),
        (lambda s: ops.random_integers(s, shape=(3,), low=0, high=1 << 40), r"expected low < high, at most"),
        (lambda s: ops.philox(*[s.cast("i32")] * 7), r"\[philox\] expected operands of u32"),
    ],
)
def test_errors_say_what_was_expected(make: Any, message: str) -> None:
    with pytest.raises(rlx.RlxError, match=message):
        make(rlx.Graph().input("s", (4,), "u32"))
