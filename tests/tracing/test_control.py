"""Conditionals and loops whose branches and bodies are functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx.ir.graph import Graph
from support import run_on
from tracing.test_jit import close, jitted, normal

BIG = normal(4, 300)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_cond_runs_one_of_two_functions(device: str) -> None:
    @rlx.jit(device=device)
    def function(x: Any, low: Any) -> Any:
        shifted = x - low
        return rlx.cond(shifted.sum() > 0, lambda v: {"y": v * 2 + shifted, "n": 1}, lambda v: {"y": v, "n": 0}, x)

    for sign in (1, -1):
        x = np.abs(normal(3)) * np.float32(sign)
        result = function(x, np.float32(0))
        close(result["y"], x * 3 if sign > 0 else x)
        assert result["n"] == (sign > 0)


def test_a_known_predicate_chooses_at_once() -> None:
    assert rlx.cond(True, lambda: 1, lambda: 2) == 1
    assert rlx.cond(np.bool_(False), lambda n: n, lambda n: -n, 3) == -3


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_while_loop_carries_values(device: str) -> None:
    @rlx.jit(device=device)
    def newton(a: Any) -> Any:
        def body(carried: Any) -> Any:
            x, step = carried
            return (x + a / x) / 2, step + 1

        return rlx.while_loop(lambda c: (abs(c[0] * c[0] - a) > 1e-4).any() & (c[1] < 50), body, (a, 0))

    a = np.abs(normal(4)) + 1
    root, steps = newton(a)
    close(root, np.sqrt(a))
    assert 0 < steps < 50 and steps.dtype == np.int64


def test_numbers_that_a_loop_carries_take_the_dtype_of_its_body() -> None:
    traced = jitted(lambda x: rlx.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + x.sum()), (0, 0.0)))
    count, total = traced(np.ones(2, np.float32))
    assert count == 3 and total == 6 and total.dtype == np.float32
    limited = jitted(lambda x: rlx.while_loop(lambda n: n < 100, lambda n: n + x, 0, limit=5))
    assert limited(np.int64(1)) == 5


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.booleans())
def test_scan_is_a_loop_over_rows(lengths: list[int], reverse: bool) -> None:
    @rlx.jit(device="reference")
    def cumulative(xs: Any, w: Any) -> Any:
        def step(total: Any, row: Any) -> Any:
            total = total + row["x"] * w
            return total, (total * 2, row["x"].sum())

        return rlx.scan(step, w * 0, {"x": xs}, reverse=reverse)

    for n in lengths:
        xs, w = normal(n, 3), normal(3)
        order = xs[::-1] if reverse else xs
        running = np.cumsum(order * w, axis=0)
        total, (stacked, sums) = cumulative(xs, w)
        close(total, running[-1])
        close(stacked, running[::-1] * 2 if reverse else running * 2)
        close(sums, xs.sum(1))


def test_scan_of_a_length_and_of_the_op() -> None:
    traced = jitted(lambda x: rlx.scan(lambda n, _: (n + 1, n * x), 0, None, length=4))
    count, products = traced(np.float32(3))
    assert count == 4
    close(products, np.arange(4) * 3.0)
    body = Graph()
    total, element = body.input("total", ()), body.input("element", ())
    body.output(total + element, element)
    graph = Graph()
    xs = graph.input("xs", (3,))
    sums = rlx.scan(graph.constant(0, "f32"), xs, carried=1, sequences=1, length=3, regions=[body])
    graph.output(y=sums[0])
    assert run_on("reference", graph, {"xs": np.ones(3, np.float32)})["y"] == 3


def test_bodies_nest_and_use_what_is_outside() -> None:
    @rlx.jit(device="reference")
    def function(xs: Any, threshold: Any) -> Any:
        offset = np.exp(threshold)

        def step(total: Any, row: Any) -> Any:
            value = rlx.cond(row.sum() > threshold, lambda: row @ BIG[:3] + offset, lambda: BIG[3] * total.sum())
            return total + value.sum(), value

        return rlx.scan(step, 0.0, xs)

    xs = normal(5, 3)
    total, expected = np.float32(0), []
    for row in xs:
        value = row @ BIG[:3] + np.exp(np.float32(0)) if row.sum() > 0 else BIG[3] * total
        total += value.sum()
        expected.append(value)
    result, values = function(xs, np.float32(0))
    np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(result, total, rtol=1e-3)


def test_they_build_graphs_too() -> None:
    graph = Graph()
    x = graph.input("x", ("n",))
    scaled = x * 2
    graph.output(
        branch=rlx.cond(x.sum() > 0, lambda: scaled + 1, lambda: x),
        doubled=rlx.while_loop(lambda v: v.max() < 100, lambda v: scaled + v, x),
    )
    outputs = run_on("reference", graph, {"x": np.array([1, 2], np.float32)})
    close(outputs["branch"], np.array([3, 5]))
    close(outputs["doubled"], np.array([51, 102]))


def test_bodies_that_do_not_fit_are_told() -> None:
    with pytest.raises(rlx.TracerError, match=r"\[cond\] expected results as \(\*, \*\), got \* *, at .*test_control"):
        jitted(lambda x: rlx.cond(x.sum() > 0, lambda: (x, x), lambda: x))(normal(3))
    with pytest.raises(rlx.ShapeError, match=r"a predicate of bool\[\], got %gt"):
        jitted(lambda x: rlx.cond(x > 0, lambda: x, lambda: x))(normal(3))
    with pytest.raises(rlx.ShapeError, match=r"a condition that gives bool\[\], got"):
        jitted(lambda x: rlx.while_loop(lambda v: v, lambda v: v, x))(normal(3))
    with pytest.raises(rlx.ShapeError, match=r"\[while\]"):
        jitted(lambda x: rlx.while_loop(lambda v: v.sum() > 0, lambda v: v[1:], x))(normal(3))
    with pytest.raises(rlx.TracerError, match=r"a step that gives \(carried, stacked\), got \*"):
        jitted(lambda x: rlx.scan(lambda c, row: c, x[0], x))(normal(3))
    with pytest.raises(rlx.GraphError, match=r"expected a value of a graph, got none: call it within"):
        rlx.while_loop(lambda n: n < 3, lambda n: n + 1, 0)
    with pytest.raises(rlx.ShapeError, match=r"sequences of some rank, or a length"):
        jitted(lambda x: rlx.scan(lambda c, _: (c, c), x, None))(normal(3))


def test_values_of_a_body_do_not_leave_it() -> None:
    def function(x: Any) -> Any:
        kept = []

        def body(v: Any) -> Any:
            kept.append(v)
            return v * 2

        y = rlx.while_loop(lambda v: v.sum() < 10, body, x)
        return y + kept[0]

    with pytest.raises(rlx.TracerError, match=r"got .* of a trace that has ended, at .*kept\[0\]"):
        jitted(function)(normal(3) ** 2 + 1)


def test_random_numbers_of_a_loop_come_from_outside() -> None:
    def function(x: Any) -> Any:
        return rlx.while_loop(
            lambda v: v.sum() < 10,
            lambda v: v + rlx.random_uniform(v.graph.random_state(), shape=(3,), dtype="f32"),
            x,
        )

    with pytest.raises(rlx.TracerError, match=r"random numbers from outside of the loop"):
        jitted(function)(normal(3))
