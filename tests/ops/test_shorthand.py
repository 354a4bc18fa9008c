"""Shorthands against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from support import run_on

X = np.arange(12, dtype=np.int32).reshape(3, 4)


def results(device: str, build: Callable[..., Value | tuple[Value, ...]], *arrays: Array) -> list[Array]:
    graph = Graph()
    outputs = build(*(graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)))
    graph.output(*(outputs if isinstance(outputs, tuple) else (outputs,)))
    return list(run_on(device, graph, {f"x{i}": a for i, a in enumerate(arrays)}).values())


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda x: ops.tile(x, (2, 3)), np.tile(X, (2, 3))),
        (lambda x: ops.stack([x, x + 1], axis=-1), np.stack([X, X + 1], -1)),
        (lambda x: ops.triu(x, 1), np.triu(X, 1)),
        (lambda x: ops.tril(x, -1), np.tril(X, -1)),
        (lambda x: ops.flip(x, (1,)), X[:, ::-1]),
        (lambda x: ops.flatten(x, 0), X.reshape(1, 12)),
        (lambda x: ops.flatten(x, 2), X.reshape(12, 1)),
        (lambda x: ops.expand_dims(x, (0, -1)), X[None, :, :, None]),
        (lambda x: ops.squeeze(ops.expand_dims(x, (1,))), X),
        (lambda x: ops.swap_axes(x, 0, -1), X.T),
        (lambda x: ops.where(x > 5, x, -1), np.where(X > 5, X, -1)),
        (lambda x: ops.logical_not(ops.logical_and(x > 3, x < 6)), ~((X > 3) & (X < 6))),
    ],
)
def test_shorthand_does_what_numpy_does(build: Callable[..., Value], expected: Array, device: str) -> None:
    (actual,) = results(device, build, X)
    np.testing.assert_array_equal(actual, expected)


def test_split_parts_make_up_the_whole(device: str) -> None:
    parts = results(device, lambda x: ops.split(x, [1, 0, 3], axis=1), X)
    for actual, expected in zip(parts, np.split(X, [1, 1], axis=1), strict=True):
        np.testing.assert_array_equal(actual, expected)
    with pytest.raises(rlx.ShapeError, match="sizes that make up axis 1"):
        ops.split(Graph().input("x", (3, 4)), [1, 2], axis=1)


def test_split_of_a_symbolic_axis(device: str) -> None:
    graph = Graph()
    half = graph.input("y", ("n",)).shape[0]
    left, right = ops.split(graph.input("x", ("2*n", 3)), [half, half])
    assert left.shape == right.shape == (half, 3)
    graph.output(left=left, right=right)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    actual = run_on(device, graph, {"x": x, "y": np.zeros(2, np.float32)})
    np.testing.assert_array_equal(actual["left"], x[:2])
    np.testing.assert_array_equal(actual["right"], x[2:])


def test_squeeze_of_an_axis_that_is_not_one() -> None:
    with pytest.raises(rlx.ShapeError, match="expected axis 0"):
        ops.squeeze(Graph().input("x", (3, 1)), (0,))
