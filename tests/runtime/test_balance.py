"""Channels of calibrated operands have steps of their own where few of them are much wider than the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.passes.driver import Context
from rlx.passes.quantise import Quantise, Range, by_channels, products
from rlx.runtime import balance, quantised
from rlx.runtime.balance import LEAST_ROWS, Seen, noise, shares
from support import run_on

ONE = {"strides": (1, 1), "dilations": (1, 1), "low": (1, 1), "high": (1, 1)}
WINDOW = {"window": (2, 2), "strides": (1, 1), "dilations": (1, 1), "low": (0, 0), "high": (1, 1)}


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def spread(*wide: int) -> Array:
    """8 for channels that are wide, of each eight; 1 for the others."""
    return np.where(np.isin(np.arange(32) % 8, wide), 8, 1).astype(np.float32)


def convolution(graph: Graph, x: Value, *wide: int) -> Value:
    """Of which each channel brings as much as the others, as in a net."""
    data = normal(24, 32, 3, 3) / spread(*wide or (3,))[:, None, None]
    return ops.conv(x, graph.param("w", data.shape, data=data), **ONE)


def pooled(graph: Graph, x: Value) -> Value:
    return convolution(graph, ops.reduce_window(ops.relu(x), combine="max", **WINDOW))


def pooled_over_channels(graph: Graph, x: Value) -> Value:
    whole = {"window": (2, 1, 1), "strides": (1, 1, 1), "dilations": (1, 1, 1), "low": (0, 0, 0), "high": (1, 0, 0)}
    return convolution(graph, ops.reduce_window(x, combine="max", **whole), 2, 3)


def residual(graph: Graph, x: Value) -> Value:
    x = ops.relu(x)
    first = normal(32, 32, 3, 3) / spread(3)[:, None, None] / 16
    y = ops.relu(ops.conv(x, graph.param("first", first.shape, data=first), **ONE))
    second = normal(32, 32, 3, 3, seed=1) / 16
    return ops.relu(ops.conv(y, graph.param("second", second.shape, data=second), **ONE) + x)


def matmul(graph: Graph, x: Value) -> Value:
    data = normal(32, 24) / spread(3)[:, None]
    return x.transpose(0, 2, 3, 1) @ graph.param("w", data.shape, data=data)


def several_axes(graph: Graph, x: Value) -> Value:
    rows = x.transpose(0, 2, 3, 1).reshape(-1, 4, 8)
    data = (normal(20, 32) / spread(3)).reshape(20, 4, 8)
    w = graph.param("w", data.shape, data=data)
    return ops.dot_general(rows, w, lhs_contract=(1, 2), rhs_contract=(1, 2))


NETS = (convolution, pooled, pooled_over_channels, residual, matmul, several_axes)


def net(make: Callable[[Graph, Value], Value]) -> Graph:
    graph = Graph(make.__name__)
    graph.output(make(graph, graph.input("x", (2, 32, 16, 16))), name="y")
    return graph


def uneven() -> Array:
    return normal(2, 32, 16, 16) * spread(3)[:, None, None]


def error(graph: Graph, device: str = "reference") -> float:
    x = uneven()
    (exact,) = evaluate(graph, {"x": x}, graph.data, {}, doubles=True)
    made = quantised.quantised(graph, [[x]])
    return float(np.sqrt(np.mean((run_on(device, made, {"x": x})["y"] - exact) ** 2) / np.mean(exact**2)))


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("make", NETS)
def test_steps_of_narrow_channels_are_finer(
    make: Callable[[Graph, Value], Value], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    balanced = error(net(make), device)
    monkeypatch.setattr(balance, "NOISY", np.inf)
    plain = error(net(make), device)
    assert balanced < 0.025 and balanced < 0.7 * plain, (balanced, plain)


def test_the_noise_is_what_rounding_adds() -> None:
    graph = net(convolution)
    (node,) = products(graph)
    x = uneven()
    seen = Seen.of(x, (1,))
    matrix = by_channels(node, graph.data["w"])
    (exact,) = evaluate(graph, {"x": x}, graph.data, {}, doubles=True)
    for parts in (np.ones(32, np.float32), np.linspace(0.1, 1, 32, dtype=np.float32)):
        of = Range(float((seen.low / parts).min()), float((seen.high / parts).max()), tuple(parts.tolist()))
        made = Quantise({node.name: of}).run(graph, Context())
        measured = np.mean((run_on("reference", made, {"x": x})["y"] - exact) ** 2) / np.mean(exact**2)
        assert measured == pytest.approx(noise(parts, seen, [matrix]), rel=0.3)


def test_even_channels_and_few_rows_have_no_shares() -> None:
    matrix = normal(24, 1, 32)
    assert shares(Seen.of(normal(1000, 32), (1,)), [matrix]) is None
    rows = normal(LEAST_ROWS, 32) * np.where(np.arange(32) == 3, 50, 1).astype(np.float32)
    assert shares(Seen.of(rows, (1,)), [matrix]) is not None
    assert shares(Seen.of(rows[1:], (1,)), [matrix]) is None
    assert shares(Seen.of(rows * 0, (1,)), [matrix]) is None and shares(Seen.of(rows, (1,)), [matrix * 0]) is None
    assert (
        noise(np.ones(32), Seen.of(rows, (1,)), [matrix * 0])
        == noise(np.ones(32), Seen.of(rows[:0], (1,)), [matrix])
        == 0
    )


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_without_numbers_do_not_count(number: float) -> None:
    graph = net(convolution)
    graph.data["w"] = graph.data["w"].copy()
    graph.data["w"][2, 5, 1, 1] = number
    assert [of.parts for of in quantised.ranges_of(graph, [[uneven()]]).values()] == [()]


def test_both_runs_are_seen() -> None:
    a, b = normal(5, 7), normal(3, 7, seed=1)
    both, whole = Seen.of(a, (1,)).and_(Seen.of(b, (1,))), Seen.of(np.concatenate([a, b]), (1,))
    assert both.count == whole.count and both.ends == whole.ends
    np.testing.assert_allclose(both.squares, whole.squares)


def test_rows_have_ranges_of_their_own_where_few_rows_are_wide() -> None:
    graph = Graph("rows")
    graph.output(graph.input("x", (400, 32)) @ graph.param("w", (32, 24), data=normal(32, 24)), name="y")
    x = normal(400, 32)
    x[7] *= 100
    assert quantised.ranges_of(graph, [[x]]) == {}
    x[7] /= 100
    assert [len(of.parts) for of in quantised.ranges_of(graph, [[x]]).values()] == [0]
