"""Branches and loops where memory could go wrong: against the reference, with and without the reuse of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.ir.graph import Graph, Value
from support import run_on

Body = Callable[..., Any]


def region(body: Body, *like: Value) -> Graph:
    """A region whose inputs are typed as these values."""
    graph = Graph("region")
    results = body(*(graph.input(f"a{i}", v.shape, v.dtype) for i, v in enumerate(like)))
    graph.output(*(results if isinstance(results, tuple) else (results,)))
    return graph


def weights(graph: Graph, name: str = "w") -> Value:
    data = np.random.default_rng(3).standard_normal((6, 6)).astype(np.float32) / 3
    return graph.param(name, data.shape, "f32", data)


def swapped(graph: Graph, x: Value, p: Value) -> Any:
    """Carried values that change places, one that stays, and one that is also a result of every step."""
    step = region(lambda a, b, c, e: (b, a + e, c, ops.tanh(a * e), b), x[0], x[0], x[0], x[0])
    return ops.scan(x[0], x[1], x[2] * 2, x, carried=3, sequences=1, length=x.shape[0], regions=(step,))


def in_a_branch(graph: Graph, x: Value, p: Value) -> Any:
    """A loop in one side of a branch, products with a weight in both; results are used behind."""
    w = weights(graph)

    def loops(a: Value, m: Value) -> Any:
        step = region(lambda c, e, n: ((c @ n) + e, c), a[0].reshape(1, 6), a[0].reshape(1, 6), m)
        rows = a.reshape(a.shape[0], 1, 6)
        last, before = ops.scan(a[1].reshape(1, 6), rows, m, carried=1, sequences=1, length=a.shape[0], regions=(step,))
        return last * 2, before.reshape(a.shape)

    def plain(a: Value, m: Value) -> Any:
        return ops.exp(a[:1] * 0.1), a @ m

    y = x + 1
    first, second = ops.if_(p, y, w, regions=(region(loops, y, w), region(plain, y, w)))
    return first + second, ops.sin(second), y


def nested(graph: Graph, x: Value, p: Value) -> Any:
    """A loop in a loop, both with results that pile up; the inner one goes backwards."""

    def inner(c: Value, e: Value, k: Value) -> Any:
        return c * 0.5 + e * k, c - e

    def outer(c: Value, row: Value, all_: Value) -> Any:
        last, piled = ops.scan(
            c,
            all_,
            row,
            carried=1,
            sequences=1,
            length=all_.shape[0],
            reverse=True,
            regions=(region(inner, c, row, row),),
        )
        return last * 0.1, ops.reduce_sum(piled, axes=(0,)), last + row

    step = region(outer, x[0], x[0], x)
    return ops.scan(x[0] * 0, x, x, carried=1, sequences=1, length=x.shape[0], regions=(step,))


def branch_in_a_loop(graph: Graph, x: Value, p: Value) -> Any:
    """Each step chooses; what it reads besides was made before the loop and is not used behind it."""
    y, w = ops.exp(x * 0.1), weights(graph)

    def step(c: Value, e: Value, all_: Value, m: Value) -> Any:
        sides = (
            region(lambda a, b, n: ((a.reshape(1, 6) @ n).reshape(6), b), c, e, m),
            region(lambda a, b, n: (b * 2, a), c, e, m),
        )
        chosen, other = ops.if_(ops.reduce_sum(e, axes=(0,)) > 0, c, e, m, regions=sides)
        return chosen, ops.reduce_max(all_, axes=(0,)) + other

    body = region(step, x[0], x[0], y, w)
    last, rows = ops.scan(x[1], x, y, w, carried=1, sequences=1, length=x.shape[0], regions=(body,))
    return last, rows * 2, ops.cos(x)


def until(graph: Graph, x: Value, p: Value) -> Any:
    """A loop that ends by its data, over values of several shapes; a weight is what it starts with."""
    w = weights(graph)
    test = region(lambda a, m, i, _: ops.reduce_max(ops.abs(a), axes=(0, 1)) < 50, x, w, x[0], x[1])

    def body(a: Value, m: Value, i: Value, s: Value) -> Any:
        return (a @ m) * 1.7 + s, m * 1.01, i + 1

    step = region(body, x, w, x[0], x[1])
    return ops.while_(x, w, x[0], x[1], carried=3, limit=9, regions=(test, step))


@pytest.mark.parametrize("build", [swapped, in_a_branch, nested, branch_in_a_loop, until], ids=lambda f: f.__name__)
@pytest.mark.parametrize("off", [frozenset(), frozenset({"memory-reuse"}), frozenset({"pack"})], ids=str)
@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("length", [3, 4, 19])
def test_regions(build: Body, off: frozenset[str], truth: bool, length: int) -> None:
    graph = Graph(build.__name__)
    x, p = graph.input("x", ("n", 6)), graph.input("p", (), "bool")
    graph.bounds["n"] = (3, None)
    for i, value in enumerate(build(graph, x, p)):
        graph.output(value, name=f"y{i}")
    data = np.random.default_rng(length).standard_normal((length, 6)).astype(np.float32)
    inputs = {"x": data, "p": np.array(truth)}
    expected, actual = (run_on(device, graph, inputs, disable=off) for device in ("reference", "cpu"))
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=2e-4, atol=2e-5)
