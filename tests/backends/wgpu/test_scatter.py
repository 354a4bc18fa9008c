"""Long scatters, whose updates come all at once: the results of an order, or sums that are more exact, and the same in
every run."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.wgpu.build import build
from rlx.codegen.simt.irregular import IN_ORDER
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import EXACT, Tolerance
from rlx.kernel.ir.irregular import Scatter

from .conftest import Check, compiled

MANY = IN_ORDER + 300
RANDOM = np.random.default_rng(5)


def points(dtype: str, combine: str | None, shape: tuple[int, ...], length: int | str) -> Graph:
    graph = Graph("points")
    x, at = graph.input("x", shape, dtype), graph.input("at", (length, 1), "i32")
    graph.output(ops.scatter_nd(x, at, graph.input("updates", (length, *shape[1:]), dtype), combine=combine))
    return graph


def whole_numbers(graph: Graph, binding: dict[str, int], least: int = -9) -> dict[str, Array]:
    """Small whole numbers, and places that meet often, some of which are outside."""
    numbers = {}
    for value in graph.inputs:
        shape = tuple(binding.get(str(d), 0) if not isinstance(d, int) else d for d in value.shape)
        low = -20 if value.name == "at" else 0 if value.dtype.kind == "uint" else least
        numbers[value.name] = RANDOM.integers(low, 25, shape).astype(value.dtype.numpy)
    return numbers


@pytest.mark.parametrize("combine", [None, "add", "min", "max"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i64", "u64", "i32", "u32", "i8", "u8", "bool"])
def test_each_dtype(combine: str | None, dtype: str, check: Check) -> None:
    graph = points(dtype, combine, (20, 3), MANY)
    inputs = whole_numbers(graph, {})
    if dtype == "bf16" and combine == "add":
        inputs["updates"] = np.sign(inputs["updates"].astype(np.float32)).astype(inputs["x"].dtype)
    check(graph, [({}, inputs)], tolerance=EXACT)


@pytest.mark.parametrize("combine", [None, "add", "mul", "max"])
def test_lengths_that_only_a_run_knows(combine: str | None, check: Check) -> None:
    graph = Graph("lengths")
    x, at = graph.input("x", ("n", 4)), graph.input("at", ("m", 4), "i64")
    graph.output(ops.scatter_elements(x, at, graph.input("updates", ("m", 4)), axis=0, combine=combine))
    calls = []
    for n, m in ((1, 1), (5, 2000), (3, 0), (0, 3), (700, 90)):
        inputs = {"x": np.ones((n, 4), np.float32), "at": RANDOM.integers(-n - 1, n + 1, (m, 4))}
        inputs["updates"] = np.exp2(RANDOM.integers(-1, 2, (m, 4))).astype(np.float32)
        calls.append(({"n": n, "m": m}, inputs))
    check(graph, calls, tolerance=Tolerance(4))


def test_a_hundred_thousand(check: Check) -> None:
    """More than software drivers let an invocation loop through; also if all meet in one place."""
    for combine in (None, "add"):
        graph = points("f32", combine, (1000,), 100_000)
        x, updates = RANDOM.integers(-9, 9, 1000), RANDOM.integers(-9, 9, 100_000)
        inputs = {"x": x.astype(np.float32), "updates": updates.astype(np.float32)}
        many, one = RANDOM.integers(0, 1000, (100_000, 1)), np.full((100_000, 1), 7)
        check(graph, [({}, {**inputs, "at": at.astype(np.int32)}) for at in (many, one)], tolerance=EXACT)


def test_sums_of_floats_are_exact_and_the_same_in_every_run(kind: str) -> None:
    """Half an ulp of the sum in f64, and what is cut off far below the greatest update."""
    bound = compiled(kind, points("f32", "add", (40,), 20_000)).bind({})
    x, at = RANDOM.standard_normal(40).astype(np.float32), RANDOM.integers(0, 40, (20_000, 1)).astype(np.int32)
    updates = (RANDOM.standard_normal(20_000) * np.exp2(RANDOM.integers(-60, 40, 20_000))).astype(np.float32)
    expected = x.astype(np.float64)
    np.add.at(expected, at[:, 0], updates.astype(np.float64))
    (first,) = bound([x, at, updates])
    greatest = np.abs(updates).max()
    assert (np.abs(first - expected) <= np.abs(expected) * 2.0**-24 + 20_000 * greatest * 2.0**-31).all()
    for _ in range(3):
        assert bound([x, at, updates])[0].tobytes() == first.tobytes()
    order = RANDOM.permutation(20_000)
    assert bound([x, at[order], updates[order]])[0].tobytes() == first.tobytes()


@pytest.mark.parametrize("combine", ["add", "min", "max"])
def test_edges_of_floats(combine: str, check: Check) -> None:
    """NaN and infinities of both signs, alone and together, great numbers, and places that nothing is added to."""
    graph = points("f32", combine, (12,), MANY)
    x = np.array([0, 1, -1, np.inf, np.nan, -0.0, 3e38, 2.0**-120, np.nan, -np.inf, 5, 7], np.float32)
    edges = [np.nan, np.inf, -np.inf, np.inf, 1, 0, 3e38, 2.0**-121, np.inf, -np.inf]
    at, updates = np.full((MANY, 1), 99, np.int32), np.ones(MANY, np.float32)
    at[:10, 0], updates[:10] = np.arange(10), edges
    at[10:12, 0], updates[10:12] = 10, [np.inf, -np.inf]
    check(graph, [({}, {"x": x, "at": at, "updates": updates})], tolerance=EXACT)


def test_rows_have_their_winners_once() -> None:
    """Of whole rows that replace others, the winner is looked for once a row, not once an element."""
    works = [s.kernel.work for s in build(points("f32", None, (50, 64), MANY), Options(), 1 << 20).main]
    find, write = (work for work in works if isinstance(work, Scatter))
    assert find.atomic and not write.atomic
    assert (*find.outer, *find.inner) == (1, MANY) and write.outer == (64, MANY)


def test_short_ones_and_products_go_in_order() -> None:
    for graph in (points("f32", "add", (50,), IN_ORDER), points("f32", "mul", (50,), MANY)):
        works = [step.kernel.work for step in build(graph, Options(), 1 << 20).main]
        assert [work.atomic for work in works if isinstance(work, Scatter)] == [False]


@pytest.mark.parametrize("combine", [None, "add", "max"])
def test_drivers_in_software_go_through_rows_in_order(combine: str | None) -> None:
    """Where that is what they are quicker with, and no more iterations than they count."""
    for count, beside, in_order in ((MANY, 64, combine != "max"), (MANY, 8, False), (1 << 16, 64, False)):
        graph = Graph("rows")
        x, at = graph.input("x", (50, beside)), graph.input("at", (count, 1), "i32")
        graph.output(ops.scatter_nd(x, at, graph.input("updates", (count, beside)), combine=combine))
        steps = build(graph, Options(), 1 << 28, Target(software=True)).main
        kinds = [step.kernel.work for step in steps if isinstance(step.kernel.work, Scatter)]
        assert in_order == ([work.atomic for work in kinds] == [False])


@pytest.mark.parametrize("combine", [None, "add"])
def test_inside_of_loops(combine: str | None, check: Check) -> None:
    """What a scatter needs beside its result is made anew in each trip."""
    test, body, graph = Graph("test"), Graph("body"), Graph("loop")
    for inner in (test, body):
        count, x = inner.input("count", (), "i32"), inner.input("x", (40,))
        at = inner.input("at", (MANY, 1), "i32")
        scattered = ops.scatter_nd(x, at, ops.gather(x, at[::-1, 0], axis=0) + 1.0, combine=combine)
        inner.output(*((ops.lt(count, 3),) if inner is test else (count + 1, scattered)))
    operands = graph.input("count", (), "i32"), graph.input("x", (40,)), graph.input("at", (MANY, 1), "i32")
    graph.output(*ops.while_(*operands, carried=2, regions=(test, body)))
    at = RANDOM.integers(0, 40, (MANY, 1)).astype(np.int32)
    check(graph, [({}, {"count": np.array(0, np.int32), "x": np.arange(40, dtype=np.float32), "at": at})])
