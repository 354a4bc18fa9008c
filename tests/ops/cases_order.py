"""Cases of running reductions, of order, and of places that are chosen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ops.case import FLOATS, Case, array, case, specimen
from rlx.ir import dtype as dtypes

EVERY = (*FLOATS, dtypes.bool_, dtypes.i8, dtypes.i32, dtypes.i64, dtypes.u8, dtypes.u32, dtypes.u64)


@specimen("cumsum", "cumprod", "cummax", "cummin")
def _running(name: str) -> Iterator[Case]:
    kinds = (*FLOATS, dtypes.i32, dtypes.i64, dtypes.u8)
    for dtype in (*kinds, dtypes.bool_) if name in ("cummax", "cummin") else kinds:
        yield case(name, "rows", array((3, 7), dtype), axis=1)
    for exclusive in (False, True):
        for reverse in (False, True):
            what = f"{'exclusive' if exclusive else 'inclusive'}-{'reverse' if reverse else 'forward'}"
            yield case(name, what, array((2, 5, 19), seed=1), axis=1, exclusive=exclusive, reverse=reverse)
            yield case(name, what, array((6,), dtypes.i32), axis=0, exclusive=exclusive, reverse=reverse)
    yield case(name, "nan", np.array([1, 3, np.nan, 5, np.inf, 4], np.float32), axis=0)
    yield case(name, "nothing", array((3, 0, 2)), axis=1)
    yield case(name, "no-rows", array((0, 4)), axis=-1)
    yield case(name, "one", array((4, 1)), axis=1, exclusive=True)


@specimen("top_k")
def _top_k(name: str) -> Iterator[Case]:
    for dtype in EVERY:
        for largest in (True, False):
            yield case(name, "rows", array((3, 13), dtype, special=True), axis=-1, k=5, largest=largest)
    ties = np.array([2, 3, 3, 1, 3, 1, 2, 1], np.float32)
    signs = np.array([0.0, -0.0, np.nan, -np.inf, np.inf, np.nan, -1e-40, 1e-40, -3, 3], np.float32)
    for largest in (True, False):
        yield case(name, "ties", ties, axis=0, k=6, largest=largest)
        yield case(name, "signs", signs, axis=0, k=10, largest=largest)
        yield case(name, "middle", array((2, 70, 5)), axis=1, k=33, largest=largest)
        yield case(name, "long", array((2, 3000), seed=4), axis=1, k=3, largest=largest)
        ramp = np.arange(1000, dtype=np.float32)
        yield case(name, "worst", ramp if largest else ramp[::-1].copy(), axis=0, k=40, largest=largest)
    yield case(name, "none", array((2, 3)), axis=1, k=0)
    yield case(name, "one", array((4, 1)), axis=1, k=1)
    yield case(name, "no-rows", array((0, 3)), axis=1, k=2)


@specimen("sort", "argsort")
def _sort(name: str) -> Iterator[Case]:
    for dtype in EVERY:
        yield case(name, "rows", array((2, 21), dtype, special=True), axis=1)
    for descending in (False, True):
        for length in (1, 15, 16, 17, 33, 500):
            yield case(name, "length", array((2, length), dtypes.i32, seed=length), axis=1, descending=descending)
        yield case(name, "first", array((9, 4)), axis=0, descending=descending)
    yield case(name, "nothing", array((0,)), axis=0)


@specimen("positions")
def _positions(name: str) -> Iterator[Case]:
    for shape in ((7,), (3, 50), (2, 3, 400), (5000,), (1,)):
        x = array(shape, dtypes.bool_)
        yield case(name, "exact", x, count=int(x.sum()))
        yield case(name, "fewer", x, count=int(x.sum()) // 2)
        yield case(name, "more", x, count=int(x.sum()) + 3)
    yield case(name, "all", np.ones((3, 1100), np.bool_), count=3300)
    yield case(name, "none", np.zeros((4, 5), np.bool_), count=0)
    yield case(name, "empty", array((0, 4), dtypes.bool_), count=0)
    yield case(name, "scalar", np.array(True), count=1)
