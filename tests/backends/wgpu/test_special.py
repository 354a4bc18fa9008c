"""Scatters, running reductions and rankings against the reference, at sizes at which they are done in other ways."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.codegen.simt.irregular import COUNTED
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import EXACT, Tolerance
from rlx.kernel.ir.irregular import BitonicSort, TopKSelection

from .conftest import Check, compiled

DTYPES = ("f32", "f16", "bf16", "i64", "u64", "i32", "u32", "u8", "i8", "bool")


def numbers(dtype: str, *shape: int) -> Array:
    """Elements with many equals, the edges of the dtype, NaN, infinities and zeros of both signs among them."""
    random = np.random.default_rng(sum(shape))
    graph = Graph("dtype")
    numpy_type = graph.input("x", (), dtype).dtype.numpy
    array = random.integers(0 if dtype[0] == "u" else -9, 9, shape).astype(numpy_type)
    flat = array.reshape(-1)
    if dtype in ("f32", "f16", "bf16"):
        edges = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-7, -1e-7])
    elif dtype == "bool":
        edges = np.array([True, False])
    else:
        info = np.iinfo(numpy_type)
        edges = np.array([info.max, info.min, info.max - 1, info.min + 1, 1 + (info.max >> 1)], object)
    places = random.permutation(flat.size)[: len(edges)]
    flat[places] = edges[: len(places)].astype(numpy_type)
    return array


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 7, 100])
def test_short_rankings(dtype: str, length: int, check: Check) -> None:
    graph = Graph("short")
    x = graph.input("x", (3, length, 2), dtype)
    graph.output(*ops.top_k(x, axis=1, k=min(length, 5)), ops.sort(x, axis=1), ops.argsort(x, axis=1, descending=True))
    check(graph, [({}, {"x": numbers(dtype, 3, length, 2)})], tolerance=EXACT)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rankings_of_any_length(dtype: str, check: Check) -> None:
    """A sorting network, also where the length is no power of two, and of nothing."""
    graph = Graph("long")
    x = graph.input("x", (2, "n", 2), dtype)
    graph.output(ops.sort(x, axis=1), ops.argsort(x, axis=1, descending=True), ops.sort(x[:, :, 0], axis=1))
    calls = [({"n": n}, {"x": numbers(dtype, 2, n, 2)}) for n in (0, 1, 2, 3, 64, 301, 1024, 2049)]
    check(graph, calls, tolerance=EXACT)


def test_long_rows(check: Check) -> None:
    graph = Graph("longer")
    x = graph.input("x", ("n",), "i32")
    graph.output(ops.argsort(x, axis=0))
    calls = [({"n": n}, {"x": np.random.default_rng(n).integers(-99, 99, n).astype(np.int32)}) for n in (4097, 9000)]
    check(graph, calls, tolerance=EXACT)


def test_the_first_of_many(check: Check) -> None:
    graph = Graph("first")
    x = graph.input("x", (2, 1500))
    graph.output(*ops.top_k(x * 2.0 + 1.0, axis=1, k=3), *ops.top_k(ops.abs(x), axis=1, k=700, largest=False))
    check(graph, [({}, {"x": numbers("f32", 2, 1500)})], tolerance=EXACT)


def test_how_rankings_are_done(kind: str) -> None:
    graph = Graph("ways")
    x = graph.input("x", (4, COUNTED + 1))
    graph.output(ops.sort(x, axis=1), ops.sort(x[:, 1:], axis=1))
    works = [type(step.kernel.work) for step in compiled(kind, graph).plan.main]
    assert works.count(TopKSelection) == 1 and works.count(BitonicSort) == 1


@pytest.mark.parametrize("dtype", ["f32", "f16", "i64", "u8"])
@pytest.mark.parametrize("turned", [False, True])
def test_running_reductions_of_long_rows(dtype: str, turned: bool, check: Check) -> None:
    """The lanes of a workgroup share a row: blocks that are whole, and ones that are not."""
    graph = Graph("long")
    x = graph.input("x", (2, "n"), dtype)
    attributes = {"axis": 1, "exclusive": turned, "reverse": turned}
    graph.output(ops.cumsum(x, **attributes), ops.cummax(x, **attributes), ops.cummin(x, **attributes))
    calls = []
    for n in (0, 1, 63, 512, 513, 2000):
        array = numbers(dtype, 2, n)
        if dtype == "f16":
            array = np.where(np.isfinite(array), array, 0).astype(array.dtype)
        calls.append(({"n": n}, {"x": array}))
    check(graph, calls, tolerance=Tolerance(64, scale=1))


def test_running_reductions_of_rows_that_lie_side_by_side(check: Check) -> None:
    graph = Graph("beside")
    x = graph.input("x", ("n", 70))
    graph.output(ops.cumsum(x, axis=0), ops.cumprod(x, axis=0, reverse=True), ops.cummax(ops.gt(x, 0.5), axis=0))
    random = np.random.default_rng(0)
    calls = [({"n": n}, {"x": random.uniform(-1.1, 1.1, (n, 70)).astype(np.float32)}) for n in (1, 90, 0)]
    check(graph, calls, tolerance=Tolerance(64, scale=1))


@pytest.mark.parametrize("combine", [None, "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "u8"])
def test_scatters_with_indices_that_meet(combine: str | None, dtype: str, check: Check) -> None:
    """Of updates to one place the last stays, or all are joined in their order; indices outside are left out."""
    graph = Graph("scatter")
    x, at = graph.input("x", ("n", 3), dtype), graph.input("at", ("m", 3), "i64")
    points, values = graph.input("points", ("m", 2), "i32"), graph.input("values", ("m",), dtype)
    updates = graph.input("updates", ("m", 3), dtype)
    graph.output(ops.scatter_elements(x, at, updates, axis=0, combine=combine))
    graph.output(ops.scatter_nd(x, points, values, combine=combine))
    calls = []
    random = np.random.default_rng(3)
    for n, m in ((5, 40), (4, 0), (0, 3)):
        wild = random.integers(-7, 9, (m, 3))
        wild[:1] = (1 << 32) + 1
        calls.append(({"n": n, "m": m}, {
            "x": numbers("i8", n, 3).astype(x.dtype.numpy), "at": wild,
            "points": random.integers(-6, 7, (m, 2)).astype(np.int32),
            "values": numbers("i8", m).astype(x.dtype.numpy), "updates": numbers("i8", m, 3).astype(x.dtype.numpy),
        }))  # fmt: skip
    check(graph, calls, tolerance=Tolerance(64))


def test_bfloat16_in_order(check: Check) -> None:
    graph = Graph("bf16")
    x = graph.input("x", (9,), "bf16")
    graph.output(ops.sort(x, axis=0))
    check(graph, [({}, {"x": np.arange(9)[::-1].astype(ml_dtypes.bfloat16)})], tolerance=EXACT)
