"""Sizes that move from run to run: one graph for all of a bucket, with the results of any size."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rlx
from models.decoder_reference import CONFIGS, weights
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda import moving
from rlx.backends.cuda.bound import CudaBound
from rlx.backends.cuda.build import build
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.cuda.moving import MovingBound, Sizes
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.models.context import Context
from rlx.models.llama import decoder
from rlx.models.llama_config import Config

from .emulated_driver import EmulatedDriver
from .graphs import compiled


def appending(reads: bool = False) -> Graph:
    """Rows are appended to a state behind those so far, and all so far are added up."""
    graph = Graph("appending")
    rows = graph.input("rows", ("n", 3))
    counted = graph.input("cached", ("past",), "u8")
    past = counted.shape[0]
    state = graph.state("cache", ("capacity", 3))
    written = ops.update_slice(state, rows, ops.dims_tensor(graph, values=(past,)).reshape(()))
    graph.set_next(state, written)
    seen = ops.slice(written, starts=(0, 0), stops=(dims.add(past, rows.shape[0]), 3), steps=(1, 1))
    total = ops.reduce_sum(seen, axes=(0,))
    graph.output(total + counted.cast("f32").sum() if reads else total, name="sum")
    return graph


def rows_of(seed: int, count: int = 1) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, (count, 3)).astype(np.float32)


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "LEAST_BUCKET", 4)


def test_one_graph_serves_a_bucket(driver: EmulatedDriver, small_buckets: None) -> None:
    """Buckets end at 4, 8 and 16: each has memory and a graph of its own, and every step in between is a replay."""
    program = rlx.Session("cuda").compile(appending())
    program.bind_handle("cache", np.zeros((20, 3), np.float32))
    total = np.zeros(3, np.float32)
    replays = []
    for past in range(16):
        rows = rows_of(past)
        total = total + rows[0]
        with driver.counted() as calls:
            (result,) = program.run({"rows": rows, "cached": np.zeros(past, np.uint8)})
        np.testing.assert_array_equal(result, total)
        replays.append("replay" in calls and "begin_capture" not in calls)
    assert driver.calls.count("instantiate") == 3
    assert replays == [False] * 2 + [True] * 3 + [False] * 2 + [True] * 2 + [False] * 2 + [True] * 5


def test_sizes_go_back_and_forth(driver: EmulatedDriver, small_buckets: None) -> None:
    program = rlx.Session("cuda").compile(appending())
    program.bind_handle("cache", np.zeros((20, 3), np.float32))
    kept = np.zeros((20, 3), np.float32)
    for seed, (past, count) in enumerate([(0, 7), (7, 1), (2, 1), (3, 1), (0, 1), (12, 1), (4, 3)]):
        rows = rows_of(seed, count)
        kept[past : past + count] = rows
        (result,) = program.run({"rows": rows, "cached": np.zeros(past, np.uint8)})
        np.testing.assert_array_equal(result, kept[: past + count].sum(0))


def test_only_sizes_that_nothing_else_has_move() -> None:
    """Not those of what kernels read, nor without states, which keep what runs did apart."""
    plan = build(appending(), Options())
    assert plan.moving == {"past"} and plan.table
    assert not build(appending(reads=True), Options()).moving
    graph = Graph("plain")
    past = graph.input("cached", ("past",), "u8").shape[0]
    graph.output(graph.input("x", ("n",)) * ops.dims_tensor(graph, values=(past,)).reshape(()).cast("f32"))
    assert not build(graph, Options()).moving


def test_buckets() -> None:
    ends = {size: Sizes.of({"n": size, "m": 3}, frozenset("n")) for size in (0, 1, 256, 257, 512, 513)}
    assert {size: sizes.moving["n"] for size, sizes in ends.items()} == {
        0: (0, 256), 1: (0, 256), 256: (0, 256), 257: (257, 512), 512: (257, 512), 513: (513, 1024),
    }  # fmt: skip
    sizes, n, m = ends[257], dims.symbol("n"), dims.symbol("m")
    assert sizes.most(dims.add(n, m)) == 515 and sizes.most(dims.mul(m, 2)) == 6
    assert sizes.most(dims.maximum(dims.add(400, dims.mul(n, -1)), 0)) == 143


def test_memory_of_buckets_is_given_back(driver: EmulatedDriver, small_buckets: None) -> None:
    def bucket(of: CudaExecutable, past: int) -> CudaBound:
        bound = of.bind({"n": 1, "past": past, "capacity": 20})
        assert isinstance(bound, MovingBound)
        return bound.bucket

    executable = compiled(appending())
    state = executable.put("cache", np.zeros((20, 3), np.float32))
    first = bucket(executable, 3)
    executable.bind({"n": 1, "past": 3, "capacity": 20})([rows_of(0), np.zeros(3, np.uint8), state])
    assert bucket(executable, 2) is first and bucket(executable, 5) is not first
    assert bucket(executable.clone(), 3) is not first
    executable.give_back()
    assert bucket(executable, 3) is not first


def test_a_decoder_says_what_it_says_on_the_processor(driver: EmulatedDriver) -> None:
    """In bf16: attention and products on matrix units. Steps of one token are replayed from the second on."""
    config = {**CONFIGS["qwen3"], "num_hidden_layers": 1}
    arrays = {name: array.astype(ml_dtypes.bfloat16) for name, array in weights(config).items()}
    parsed = Config.of(config)
    contexts = [
        Context(rlx.Session(device).compile(decoder(parsed, arrays, caches=True)), parsed.max_positions)
        for device in ("cpu", "cuda")
    ]
    ids = np.random.default_rng(0).integers(0, parsed.vocab_size, (1, 14))
    for first, last in ((0, 10), (10, 11), (11, 12), (12, 13), (13, 14)):
        with driver.counted() as calls:
            ours, theirs = (context.feed(ids[:, first:last]) for context in contexts)
        np.testing.assert_allclose(theirs, ours, atol=0.03 * np.abs(ours).max())
    assert "replay" in calls and "launch" not in calls
