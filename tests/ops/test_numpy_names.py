"""NumPy's names and methods of values against NumPy itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlx
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ops.numpy_names import SAME
from support import run_on

F = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
I = np.arange(24, dtype=np.int64).reshape(2, 3, 4) - 7  # noqa: E741
B = F > 0


def result(build: Callable[..., Value], *arrays: Array, device: str = "reference") -> Array:
    graph = Graph()
    graph.output(y=build(*(graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays))))
    return run_on(device, graph, {f"x{i}": a for i, a in enumerate(arrays)})["y"]


def same(actual: Array, expected: Any) -> None:
    wanted = np.asarray(expected)
    assert actual.shape == wanted.shape and actual.dtype == wanted.dtype
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


REDUCTIONS = ("sum", "prod", "mean", "var", "std", "max", "min", "amax", "amin", "all", "any")
axes = st.one_of(st.none(), st.integers(-3, 2), st.sets(st.integers(0, 2)).map(tuple))


@given(st.sampled_from(REDUCTIONS), axes, st.booleans())
def test_reductions(name: str, axis: Any, keepdims: bool) -> None:
    expected = getattr(np, name)(F, axis=axis, keepdims=keepdims)
    same(result(lambda x: getattr(rlx, name)(x, axis, keepdims), F), expected)
    if name not in ("amax", "amin"):
        same(result(lambda x: getattr(x, name)(axis=axis, keepdims=keepdims), F), expected)


def test_reductions_of_integers_and_bools() -> None:
    same(result(lambda x: x.sum(1), I), I.sum(1))
    same(result(lambda x: x.sum(), B), B.sum())
    same(result(lambda x: rlx.all(x, dim=0), I), I.all(0))
    same(result(lambda x: rlx.var(x, ddof=1), F), F.var(ddof=1))


@pytest.mark.parametrize("name", sorted(set(SAME) - {"permute", "take_along_axis"}))
def test_second_names_do_what_numpys_do(name: str) -> None:
    of = getattr(np, name)
    if name == "permute_dims":
        same(result(lambda x: rlx.permute_dims(x, (1, 2, 0)), F), of(F, (1, 2, 0)))
        return
    x, y = (np.abs(F) % 1 + (name == "arccosh"), np.abs(F[::-1]) + 0.5) if name != "invert" else (I, I)
    operands = (x, y)[: of.nin]
    same(result(getattr(rlx, name), *operands), of(*operands))


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda x: rlx.concatenate([x, x], 1), np.concatenate([F, F], 1)),
        (lambda x: rlx.concatenate([x, x + 1], axis=None), np.concatenate([F, F + 1], None)),
        (lambda x: rlx.cat([x, x], dim=-1), np.concatenate([F, F], -1)),
        (lambda x: rlx.stack([x, x], dim=1), np.stack([F, F], 1)),
        (lambda x: rlx.zeros(x.graph, (2, 3)), np.zeros((2, 3), np.float32)),
        (lambda x: rlx.ones(x.graph, 4, "i32"), np.ones(4, np.int32)),
        (lambda x: rlx.full(x.graph, (2,), 7, "i64"), np.full(2, 7)),
        (lambda x: rlx.zeros_like(x), np.zeros_like(F)),
        (lambda x: rlx.ones_like(x, "bool"), np.ones_like(B)),
        (lambda x: rlx.full_like(x, 2.5), np.full_like(F, 2.5)),
        (lambda x: rlx.arange(x.graph, 5), np.arange(5)),
        (lambda x: rlx.arange(x.graph, 2, 11, 3), np.arange(2, 11, 3)),
        (lambda x: rlx.arange(x.graph, 11, 2, -4), np.arange(11, 2, -4)),
        (lambda x: rlx.arange(x.graph, 4, 2, dtype="f32"), np.arange(4, 2, dtype=np.float32)),
        (lambda x: rlx.astype(x, "f64"), F.astype(np.float64)),
        (lambda x: x.astype(np.int32), F.astype(np.int32)),
        (lambda x: rlx.clip(x, -0.5, 0.5), np.clip(F, -0.5, 0.5)),
        (lambda x: x.clip(max=0), np.clip(F, None, 0)),
        (lambda x: rlx.where(x > 0, x, 0), np.where(F > 0, F, 0)),
        (lambda x: rlx.expand_dims(x, 1), F[:, None]),
        (lambda x: rlx.expand_dims(x, axes=(0, -1)), F[None, ..., None]),
        (lambda x: rlx.unsqueeze(x, -1), F[..., None]),
        (lambda x: rlx.squeeze(x[:1], 0), F[0]),
        (lambda x: x[:1].squeeze(), F[0]),
        (lambda x: rlx.squeeze(x[:1], dim=0), F[0]),
        (lambda x: rlx.flatten(x, 1), F.reshape(2, 12)),
        (lambda x: rlx.ravel(x), F.ravel()),
        (lambda x: rlx.swapaxes(x, 0, -1), F.swapaxes(0, -1)),
        (lambda x: rlx.moveaxis(x, 0, -1), np.moveaxis(F, 0, -1)),
        (lambda x: rlx.moveaxis(x, (0, 2), (1, 0)), np.moveaxis(F, (0, 2), (1, 0))),
        (lambda x: rlx.permute(x, (1, 2, 0)), F.transpose(1, 2, 0)),
        (lambda x: x.transpose((1, 2, 0)), F.transpose(1, 2, 0)),
        (lambda x: x.T, F.T),
        (lambda x: x[..., None, 1:3], F[..., None, 1:3]),
        (lambda x: x[0, ::-1], F[0, ::-1]),
        (lambda x: x @ x.swapaxes(1, 2), F @ F.swapaxes(1, 2)),
        (lambda x: F.swapaxes(1, 2) @ x, F.swapaxes(1, 2) @ F),
        (lambda x: x.reshape(3, -1), F.reshape(3, -1)),
        (lambda x: rlx.reshape(x, (3, -1)), F.reshape(3, -1)),
        (lambda x: rlx.matmul(x, x.swapaxes(1, 2)), F @ F.swapaxes(1, 2)),
        (lambda x: rlx.einsum("bij,bkj->bik", x, x), np.einsum("bij,bkj->bik", F, F)),
        (lambda x: rlx.flip(x), np.flip(F)),
        (lambda x: rlx.flip(x, axis=1), np.flip(F, 1)),
        (lambda x: rlx.argmax(x), np.argmax(F)),
        (lambda x: rlx.argmin(x, keepdims=True), np.argmin(F, keepdims=True)),
        (lambda x: rlx.argmax(x, 1), np.argmax(F, 1)),
        (lambda x: rlx.cumsum(x), np.cumsum(F)),
        (lambda x: rlx.cumsum(x, dim=1), np.cumsum(F, 1)),
        (lambda x: rlx.take(x, x.graph.constant([1, -1, 0])), np.take(F, [1, -1, 0])),
        (lambda x: rlx.take(x, x.graph.constant([1, -1, 0]), 2), np.take(F, [1, -1, 0], 2)),
        (lambda x: rlx.logsumexp(x, 1), np.log(np.exp(F).sum(1))),
        (lambda x: rlx.divide(x, 3.0), F / np.float32(3)),
        (lambda x: 2.0**x, np.float32(2) ** F),
        (lambda x: 2.0 % x, np.float32(2) % F),
        (lambda x: rlx.nonzero(x > 0), np.stack(np.nonzero(F > 0))),
    ],
)  # fmt: skip
def test_functions_and_methods(build: Callable[[Value], Value], expected: Array) -> None:
    same(result(build, F), expected)


def test_one_hot_has_zeros_and_ones() -> None:
    index = np.array([0, 2, -1], np.int32)
    same(result(lambda i: rlx.one_hot(i, 3), index), np.eye(3, dtype=np.float32)[index])
    same(result(lambda i: rlx.one_hot(i, 3, 5, 0, axis=0), index), 5 * np.eye(3, dtype=np.float32)[index].T)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.float32, np.float64])
def test_floor_division(dtype: Any, device: str) -> None:
    numbers = [0, 1, 2, 3, 7, 100, 127]
    if dtype is not np.uint8:
        numbers += [-1, -2, -3, -7, -100, -127]
    if np.dtype(dtype).kind == "f":
        numbers += [0.1, -0.3, 2.5, np.inf, -np.inf, np.nan]
    x, y = (a.ravel().astype(dtype) for a in np.meshgrid(numbers, numbers))
    with np.errstate(all="ignore"):
        expected = np.floor_divide(x, y)
    np.testing.assert_array_equal(result(lambda a, b: a // b, x, y, device=device), expected)
    np.testing.assert_array_equal(result(rlx.floor_divide, x, y, device=device), expected)
    np.testing.assert_array_equal(
        result(lambda a: 7 // a, y[:9], device=device), result(lambda a: rlx.floor_divide(7, a), y[:9])
    )


def test_pools_against_loops() -> None:
    x = np.random.default_rng(1).normal(size=(1, 2, 5, 6)).astype(np.float32)
    grown = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(grown, (3, 3), (2, 3))[:, :, ::2, ::2]
    low = np.lib.stride_tricks.sliding_window_view(np.where(grown == 0, -np.inf, grown), (3, 3), (2, 3))[:, :, ::2, ::2]
    same(result(lambda v: rlx.max_pool(v, 3, 2, 1), x), low.max((-1, -2)).astype(np.float32))
    same(result(lambda v: rlx.avg_pool(v, 3, 2, 1), x), windows.mean((-1, -2)))
    same(result(lambda v: rlx.max_pool(v, (1, 2)), x), x.reshape(1, 2, 5, 3, 2).max(-1))
    assert result(lambda v: rlx.avg_pool(v, 3, 2, 1, count_pads=False), np.ones_like(x)).min() == 1


def test_shapes_with_symbols() -> None:
    graph = Graph()
    x = graph.input("x", ("n", 4))
    n = x.shape[0]
    assert rlx.zeros(graph, ("n", 2)).shape == (n, 2)
    assert rlx.arange(graph, n).shape == (n,)
    assert x.mean(0).shape == (4,) and x.ndim == 2 and x.size == x.type.size
