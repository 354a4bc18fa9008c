"""NumPy's functions of values, and what is said of those that only numbers can answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from ops.test_numpy_names import B, F, I, result, same
from rlx.ir.graph import Graph

OF_FLOATS: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "array plus value": lambda x: F + x,
    "array times value": lambda x: F[0].T @ x[0],
    "greater": lambda x: np.greater(x, 0.25),
    "a scalar of NumPy": lambda x: np.float32(2) * x,
    "sum": lambda x: np.sum(x, axis=1),
    "mean": lambda x: np.mean(x, -1, keepdims=True),
    "var": lambda x: np.var(x, axis=(0, 2), ddof=1),
    "max": lambda x: np.max(x, axis=0),
    "reduce": lambda x: np.add.reduce(x),
    "reduce along an axis": lambda x: np.maximum.reduce(x, axis=2),
    "concatenate": lambda x: np.concatenate([x, F, x], axis=1),
    "stack": lambda x: np.stack([x, x], axis=-1),
    "where": lambda x: np.where(x > 0, x, np.float32(0)),
    "clip": lambda x: np.clip(x, -0.5, 0.5),
    "transpose": np.transpose,
    "transpose of axes": lambda x: np.transpose(x, (1, 0, 2)),
    "reshape": lambda x: np.reshape(x, (4, -1)),
    "reshape to one axis": lambda x: np.reshape(x, -1),
    "expand_dims": lambda x: np.expand_dims(x, 1),
    "squeeze": lambda x: np.squeeze(x[:, :1], 1),
    "einsum": lambda x: np.einsum("aij,aij->ai", x, F),
    "argmax": lambda x: np.argmax(x, axis=1),
    "cumsum": lambda x: np.cumsum(x, axis=2),
    "take": lambda x: np.take(x, np.array([2, 0]), axis=1),
    "dot": lambda x: np.dot(x[0], F[0].T),
    "outer": lambda x: np.outer(x[0, 0], x[0]),
    "moveaxis": lambda x: np.moveaxis(x, 0, -1),
    "broadcast_to": lambda x: np.broadcast_to(x, (5, 2, 3, 4)),
    "tril": np.tril,
    "round": np.round,
    "atan2": lambda x: np.arctan2(x, F[0]),
    "shape": lambda x: x * np.shape(x)[0] + np.ndim(x),
    "rows by a list": lambda x: x[:, [2, 0]],
    "rows by an array": lambda x: x[..., np.array([[3, -1], [0, 0]])],
    "places between slices": lambda x: x[1:, np.array([1, 1]), None, ::2],
}


@pytest.mark.parametrize("name", OF_FLOATS)
def test_functions_of_numpy_mean_the_same(name: str) -> None:
    same(result(OF_FLOATS[name], F), OF_FLOATS[name](F))


def test_sums_of_small_integers_are_as_wide_as_numpys() -> None:
    small = I.astype(np.int8)
    same(result(lambda x: np.sum(x, axis=0), small), np.sum(small, axis=0))  # type: ignore[arg-type]
    same(result(lambda x: np.sum(x), B), np.sum(B))  # type: ignore[arg-type]
    with pytest.raises(rlx.TracerError, match=r"np\.mean\(x\.astype\('f32'\)\), got np\.mean of i8"):
        result(lambda x: np.mean(x), small)  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "asarray": (np.asarray, r"got a NumPy array of %x"),
    "list of values": (lambda x: np.asarray([x, x]), r"rlx\.stack\(…\) for a list"),
    "bool": (bool, r"rlx\.cond\(…\) for an if.*got the truth of %x"),
    "int": (int, r"x\.astype\('i64'\), got int\(\)"),
    "float": (float, r"got float\(\)"),
    "complex": (complex, r"got complex\(\)"),
    "range": (range, r"rlx\.scan\(…\)"),
    "len": (len, r"x\.shape\[0\]"),
    "iteration": (list, r"rlx\.split\(…\)"),
    "contains": (lambda x: 3 in x, r"rlx\.equal\(x, item\)"),
    "item": (lambda x: x.item(), r"got the item"),
    "tolist": (lambda x: x.tolist(), r"got a list"),
    "assignment": (lambda x: x.__setitem__(0, 1), r"rlx\.update_slice\(x, rows, start\).*got x\[0\] = "),
    "in place": (lambda x: np.add(x, x, out=F.copy()), r"without out="),
    "another reduction": (lambda x: np.subtract.reduce(x), r"np\.subtract\.reduce of a value"),
    "split": (lambda x: np.split(x, 2), r"expected rlx\.split\(x, sizes, axis\), got np\.split"),
    "transform": (np.fft.fft, r"expected rlx\.fft\(…\), got np\.fft\.fft"),
    "no twin": (lambda x: np.logaddexp(x, x), r"np\.logaddexp.*did you mean 'logsumexp'"),
    "array_equal": (lambda x: np.array_equal(x, x), r"rlx\.all\(rlx\.equal"),
    "columns first": (lambda x: np.reshape(x, (3, 4), order="F"), r"the order C"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_numbers_names_the_line_and_what_to_write(name: str) -> None:
    ask, message = REFUSED[name]
    with pytest.raises(rlx.TracerError, match=rf"(?s){message}.*test_numpy_calls\.py:\d+: "):
        ask(Graph().input("x", (4, 3)))


def test_masks_and_mixed_indices_are_refused() -> None:
    x = Graph().input("x", (4, 3))
    with pytest.raises(rlx.GraphError, match=r"rlx\.masked_select"):
        _ = x[x > 0]
    with pytest.raises(rlx.GraphError, match=r"one array of indices beside slices"):
        _ = x[0, [1, 2]]
