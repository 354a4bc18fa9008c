"""If, While and Scan: results, type rules, regions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.verify import verify
from support import run_on

Body = Callable[..., Value | tuple[Value, ...]]


def region(body: Body, *types: tuple[tuple[int, ...], str]) -> Graph:
    graph = Graph("region")
    results = body(*(graph.input(f"a{i}", shape, dtype) for i, (shape, dtype) in enumerate(types)))
    graph.output(*(results if isinstance(results, tuple) else (results,)))
    return graph


VECTOR, NUMBER = ((3,), "f32"), ((), "f32")


@pytest.mark.parametrize("predicate", [True, False])
def test_if_takes_one_side(predicate: bool, device: str) -> None:
    graph = Graph()
    p, x = graph.input("p", (), "bool"), graph.input("x", (3,))
    sides = (region(lambda a: a + 1, VECTOR), region(lambda a: a * 3, VECTOR))
    graph.output(*ops.if_(p, x, regions=sides), name="y")
    verify(graph)
    x_ = np.arange(3, dtype=np.float32)
    actual = run_on(device, graph, {"p": np.array(predicate), "x": x_})["y"]
    np.testing.assert_array_equal(actual, x_ + 1 if predicate else x_ * 3)


@pytest.mark.parametrize(("limit", "expected"), [(None, 8), (2, 4), (0, 1)])
def test_while_runs_until_the_condition_fails(limit: int | None, expected: int, device: str) -> None:
    graph = Graph()
    x, most = graph.input("x", (3,)), graph.input("most", ())
    condition = region(lambda a, n: ops.reduce_sum(a, axes=(0,)) < n, VECTOR, NUMBER)
    body = region(lambda a, n: a * 2, VECTOR, NUMBER)
    graph.output(*ops.while_(x, most, carried=1, limit=limit, regions=(condition, body)), name="y")
    verify(graph)
    actual = run_on(device, graph, {"x": np.ones(3, np.float32), "most": np.array(20, np.float32)})["y"]
    np.testing.assert_array_equal(actual, np.full(3, expected, np.float32))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_scan_carries_and_stacks(reverse: bool, length: int, device: str) -> None:
    graph = Graph()
    start, x, factor = graph.input("start", ()), graph.input("x", ("n",)), graph.input("factor", ())
    step = region(lambda c, e, f: (c + e * f, c), NUMBER, NUMBER, NUMBER)
    total, before = ops.scan(start, x, factor, carried=1, sequences=1, length="n", reverse=reverse, regions=(step,))
    graph.output(total=total, before=before)
    verify(graph)
    x_ = np.arange(length, dtype=np.float32) + 1
    inputs = {"start": np.array(0, np.float32), "x": x_, "factor": np.array(2, np.float32)}
    actual = run_on(device, graph, inputs)
    assert actual["total"] == 2 * x_.sum()
    ordered = x_[::-1] if reverse else x_
    expected = np.concatenate([[0], np.cumsum(2 * ordered)[:-1]]) if length else np.zeros(0)
    np.testing.assert_array_equal(actual["before"], (expected[::-1] if reverse else expected).astype(np.float32))


def test_regions_that_do_not_fit_are_refused() -> None:
    graph = Graph()
    p, x = graph.input("p", (), "bool"), graph.input("x", (3,))
    good = region(lambda a: a + 1, VECTOR)
    with pytest.raises(rlx.GraphError, match=r"\[if\] expected 2 regions, got 1"):
        ops.if_(p, x, regions=(good,))
    with pytest.raises(rlx.ShapeError, match="outputs of the second region 0"):
        ops.if_(p, x, regions=(good, region(lambda a: a[:2], VECTOR)))
    with pytest.raises(rlx.DTypeError, match="expected operands of one dtype"):
        ops.if_(p, x, regions=(good, region(lambda a: a, ((3,), "i32"))))
    with pytest.raises(rlx.GraphError, match="expected 1 inputs of a region, got 0"):
        ops.if_(p, x, regions=(region(lambda: ()), good))


def test_equalities_of_a_region_are_checked_when_it_runs(device: str) -> None:
    graph = Graph()
    p, x, y = graph.input("p", (), "bool"), graph.input("x", ("n",)), graph.input("y", ("m",))
    both = Graph("both")
    a, b = both.input("a", ("n",)), both.input("b", ("m",))
    both.output(ops.reduce_sum(a + b, axes=(0,)))
    first = Graph("first")
    first.output(ops.reduce_sum(first.input("a", ("n",)) * 2, axes=(0,)))
    first.input("b", ("m",))
    graph.output(*ops.if_(p, x, y, regions=(both, first)), name="z")
    x_, y_ = np.ones(2, np.float32), np.ones(3, np.float32)
    for last, expected in ((y_[:2], 4), (y_, None)):
        np.testing.assert_array_equal(run_on(device, graph, {"p": np.array(False), "x": x_, "y": last})["z"], 4)
        if expected:
            actual = run_on(device, graph, {"p": np.array(True), "x": x_, "y": last})["z"]
            np.testing.assert_array_equal(actual, expected)
        else:
            with pytest.raises((rlx.ShapeError, rlx.InputError), match="against"):
                run_on(device, graph, {"p": np.array(True), "x": x_, "y": last})
