"""Predictions for WebGPU devices, with rates that are given: which rate prices what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.wgpu.cost import WgpuEstimator
from rlx.cost.estimate import Estimate, Rates
from rlx.ir.graph import Graph, Value

from .conftest import compiled

FREE = 1e30
RATES: Rates = {
    "call_ns": 0.0, "launch_ns": 0.0, "compile_ns": 0.0, "upload_bytes_per_ns": FREE, "download_bytes_per_ns": FREE,
    "plain_per_ns": FREE, "heavy_per_ns": FREE, "divide_per_ns": FREE, "gather_per_ns": FREE,
    "stream_1024_per_ns": FREE, "reduce_8x8_per_ns": FREE, "counted_per_ns": FREE, "exchanged_4x64_per_ns": FREE,
    "update_1x64_per_ns": FREE, "joined_per_ns": FREE, "attention_1x64x64x8_per_ns": FREE, "asked_ns": 0.0,
}  # fmt: skip


def estimate(graph: Graph, **rates: float) -> Estimate:
    """With everything free but what is named."""
    return WgpuEstimator(graph, Options(), RATES | rates)({})


def scatter(count: int) -> Graph:
    graph = Graph("scatter")
    x, at = graph.input("x", (50,), "i32"), graph.input("at", (count, 1), "i64")
    graph.output(ops.scatter_nd(x, at, graph.input("updates", (count,), "i32"), combine="add"))
    return graph


def sort(length: int) -> Graph:
    graph = Graph("sort")
    graph.output(ops.sort(graph.input("x", (4, length)), axis=1))
    return graph


def test_rankings_have_two_ways() -> None:
    assert estimate(sort(100), counted_per_ns=1.0).run_ns == pytest.approx(4 * 100 * 100)
    assert estimate(sort(100), exchanged_4x64_per_ns=1.0).run_ns == pytest.approx(0, abs=1)
    # 512 elements take 9 + 8 + ... + 1 passes of 256 comparisons
    assert estimate(sort(512), exchanged_4x64_per_ns=1.0).run_ns == pytest.approx(4 * 256 * 45)
    assert estimate(sort(512), counted_per_ns=1.0).run_ns == pytest.approx(0, abs=1)


def test_scatters_have_two_ways_and_are_no_gathers() -> None:
    assert estimate(scatter(100), update_1x64_per_ns=0.5).run_ns == pytest.approx(200)
    assert estimate(scatter(5000), joined_per_ns=0.5).run_ns == pytest.approx(10_000)
    for count, other in ((100, "joined_per_ns"), (5000, "update_1x64_per_ns")):
        assert estimate(scatter(count), **{other: 0.5, "gather_per_ns": 0.5}).run_ns == pytest.approx(0, abs=1)


def test_attention_is_priced_by_its_pairs() -> None:
    def graph(causal: bool) -> Graph:
        new = Graph("attention")
        q = new.input("q", (1, 2, 100, 8))
        new.output(ops.attention(q, q, q, causal=causal))
        return new

    whole, half = (estimate(graph(causal), attention_1x64x64x8_per_ns=1.0) for causal in (False, True))
    assert whole.run_ns == pytest.approx(2 * 2 * 100 * 100 * 16)
    assert half.run_ns == pytest.approx(whole.run_ns / 2)
    assert [kernel.kind for kernel in whole.kernels] == ["attention"]


def test_attention_of_few_queries_is_priced_by_its_pairs() -> None:
    graph = Graph("decoder")
    q, k = graph.input("q", (1, 4, 1, 8)), graph.input("k", (1, 2, 300, 8))
    graph.output(ops.attention(q, k, k))
    attention_estimate = estimate(graph, attention_1x64x64x8_per_ns=1.0)
    assert attention_estimate.run_ns == pytest.approx(2 * 4 * 300 * 16)
    assert [kernel.kind for kernel in attention_estimate.kernels] == ["attention", "attention"]


def test_a_way_that_a_run_does_not_take_costs_nothing() -> None:
    graph = Graph("lengths")
    q = graph.input("q", (1, 2, "s", 8))
    graph.output(ops.attention(q, q, q))
    estimator = WgpuEstimator(graph, Options(), RATES | {"attention_1x64x64x8_per_ns": 1.0})
    for s in (4, 100):
        assert estimator({"s": s}).run_ns == pytest.approx(2 * 2 * s * s * 16)


def region(body: Callable[..., Any], *types: tuple[tuple[int, ...], str]) -> Graph:
    graph = Graph("region")
    results = body(*(graph.input(f"x{i}", shape, dtype) for i, (shape, dtype) in enumerate(types)))
    graph.output(*(results if isinstance(results, tuple) else (results,)))
    return graph


def test_questions_to_the_device_cost() -> None:
    vector, number = ((3,), "f32"), ((), "i32")
    plain = Graph("plain")
    plain.output(plain.input("x", (3,)) + 1.0)
    assert (estimate(plain, asked_ns=7.0).run_ns, estimate(plain).syncs) == (pytest.approx(0, abs=1e-9), 1)

    branch = Graph("branch")
    sides = tuple(region(lambda x, a=a: x + a, vector) for a in (1.0, 2.0))
    x = branch.input("x", (3,))
    branch.output(*ops.if_(branch.input("p", (), "bool"), x, regions=sides))
    assert estimate(branch, asked_ns=7.0).run_ns == pytest.approx(7)
    assert estimate(branch).syncs == 2

    def step(i: Value, x: Value) -> tuple[Value, Value]:
        return i + 1, x * 2.0

    loop = Graph("loop")
    regions = (region(lambda i, x: ops.lt(i, 9), number, vector), region(step, number, vector))
    loop.output(*ops.while_(loop.input("i", (), "i32"), loop.input("x", (3,)), carried=2, regions=regions))
    assert estimate(loop, asked_ns=7.0).run_ns == pytest.approx(9 * 7)  # eight trips are taken for unknown ones


def test_what_was_measured_tells_what_shaders_use() -> None:
    graph = Graph("rows")
    x, at = graph.input("x", (50, 64)), graph.input("at", (1000, 1), "i32")
    graph.output(ops.scatter_nd(x, at, graph.input("updates", (1000, 64)), combine="add"))
    assert len(estimate(graph, software=1.0).kernels) < len(estimate(graph).kernels)
    halves = Graph("halves")
    halves.output(ops.cumsum(halves.input("x", (8, 1000), "f16"), axis=1))
    assert estimate(halves, halves=1.0).arena_bytes < estimate(halves).arena_bytes


def test_memory_is_that_of_the_arena(kind: str) -> None:
    """With temporaries that share places, and scores of attention that are never there."""
    graph = Graph("memory")
    x = graph.input("x", (2, 3, 64, 8))
    value = ops.attention(x, x, x)
    for _ in range(3):
        value = ops.cumsum(ops.sort(value, axis=3), axis=2)
    graph.output(value)
    assert estimate(graph, running_per_ns=FREE).arena_bytes == compiled(kind, graph).bind({}).nbytes
