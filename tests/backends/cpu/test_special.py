"""Scatters, running reductions and rankings: every instruction set, sizes known and not, indices of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends.cpu.test_compiled import ISAS
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import BACKEND
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from support import assert_close, binding_of, run_on

CLOSE = Tolerance(256, scale=1)


def check(graph: Graph, inputs: dict[str, Array], level: str, tolerance: Tolerance = CLOSE) -> None:
    executable = BACKEND().compile(graph, Options(isa=level, cache=False))
    actual = executable.bind(binding_of(graph, inputs))([inputs[v.name] for v in graph.inputs])
    for result, expected in zip(actual, run_on("reference", graph, inputs).values(), strict=True):
        assert_close(result, expected, tolerance)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize("combine", [None, "add", "max"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("rows", "width", "count"), [(5, 3, 9), (70, 37, 200), (4, 1, 0)])
def test_scatter_of_rows(rows: int, width: int, count: int, known: bool, combine: str | None, level: str) -> None:
    """Rows by index vectors of one number: vectors lie along the row."""
    graph = Graph("rows")
    x = graph.input("x", (rows, width) if known else ("r", "w"))
    at = graph.input("at", (count, 1) if known else ("n", 1), "i32")
    updates = graph.input("u", (count, width) if known else ("n", "w"))
    graph.output(ops.scatter_nd(x * 2, at, updates + 1, combine=combine) - 1, name="y")
    indices = np.random.default_rng(1).integers(-rows - 2, rows + 2, (count, 1)).astype(np.int32)
    check(graph, {"x": numbers(rows, width), "at": indices, "u": numbers(count, width, seed=2)}, level)


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("combine", [None, "add", "mul", "min"])
def test_scatter_of_elements(combine: str | None, axis: int, level: str) -> None:
    """Along every axis: an index for each element, masks where vectors lie across."""
    graph = Graph("elements")
    x, at = graph.input("x", (6, 7, 40)), graph.input("at", (5, 7, 33), "i64")
    updates = graph.input("u", (5, 7, 33))
    graph.output(ops.scatter_elements(x, at, updates, axis=axis, combine=combine), name="y")
    extent = (6, 7, 40)[axis]
    indices = np.random.default_rng(axis).integers(-extent - 1, extent + 1, (5, 7, 33))
    check(graph, {"x": numbers(6, 7, 40), "at": indices, "u": numbers(5, 7, 33, seed=3)}, level)


def test_wild_indices_touch_nothing() -> None:
    graph = Graph("wild")
    x, at = graph.input("x", (4,)), graph.input("at", (6, 1), "i64")
    graph.output(ops.scatter_nd(x, at, graph.input("u", (6,)), combine="add"), name="y")
    wild = np.array([[4], [-5], [2**62], [-(2**63)], [2**63 - 1], [1]])
    check(graph, {"x": numbers(4), "at": wild, "u": np.ones(6, np.float32)}, ISAS[-1])


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", ["cumsum", "cumprod", "cummax", "cummin"])
def test_running(op: str, axis: int, level: str) -> None:
    graph = Graph("running")
    x = graph.input("x", ("a", 9, "c"))
    run: Any = getattr(ops, op)
    graph.output(run(x + 1, axis=axis), run(x, axis=axis, exclusive=True, reverse=True))
    check(graph, {"x": numbers(3, 9, 37) * np.float32(0.5)}, level)


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize("k", [1, 7, 100])
@pytest.mark.parametrize("length", [100, 129, 5000])
def test_ranking(length: int, k: int, level: str) -> None:
    """Rows of which some are in order already, some equal, some full of NaN; along a row and across."""
    x = numbers(6, length)
    x[1].sort()
    x[2] = x[1, ::-1]
    x[3] = 1
    x[4, ::3] = np.nan
    x[5] = np.round(x[5])
    graph = Graph("ranking")
    rows = graph.input("x", ("r", "n"))
    graph.output(*ops.top_k(rows, axis=1, k=k), *ops.top_k(rows.T, axis=0, k=k, largest=False))
    graph.bounds["n"] = (100, None)
    check(graph, {"x": x}, level, Tolerance(0))


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize("dtype", ["i8", "u32", "i64", "u64", "f16", "f64"])
def test_ranking_of_few_in_long_rows(dtype: str, level: str) -> None:
    """Vectors without a better element are passed by, also where elements are the greatest or least there are."""
    graph = Graph("few")
    x = graph.input("x", (5, 300), dtype)
    graph.output(*ops.top_k(x, axis=1, k=3), *ops.top_k(x, axis=1, k=40, largest=False))
    limits = np.finfo(x.dtype.numpy) if dtype.startswith("f") else np.iinfo(x.dtype.numpy)
    values = np.random.default_rng(0).integers(0, 100, (5, 300)).astype(x.dtype.numpy)
    values[1], values[2] = limits.max, limits.min
    values[3, 250:], values[4, 200::7] = limits.max, limits.min
    check(graph, {"x": values}, level, Tolerance(0))


def test_only_what_is_asked_for_is_written() -> None:
    graph = Graph("positions")
    _, at = ops.top_k(graph.input("x", (50,)), axis=0, k=3)
    graph.output(at, name="at")
    program = BACKEND().compile(graph, Options(cache=False))
    (actual,) = program.bind({})([numbers(50)])
    assert actual.tolist() == np.argsort(-numbers(50), kind="stable")[:3].tolist()


def test_k_greater_than_the_row_is_refused() -> None:
    graph = Graph("short")
    graph.output(*ops.top_k(graph.input("x", ("n",)), axis=0, k=5))
    graph.bind({"n": 5})
    with pytest.raises(ValueError, match="k of at most n"):
        graph.bind({"n": 4})
