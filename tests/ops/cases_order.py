"""Cases of running reductions, of order, and of places that are chosen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ops.case import FLOATS, SPECIAL, Case, array, case, specimen
from rlx.ir import dtype as dtypes
from rlx.ir.literal import Array

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
        yield case(name, "many-equals", ramp // 7, axis=0, k=130, largest=largest)
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
        whole = np.random.default_rng(5).integers(-(1 << 31), 1 << 31, (2, 700)).astype(np.int32)
        yield case(name, "whole-range", whole, axis=1, descending=descending)
        yield case(name, "many-special", array((2, 159 + descending), special=True), axis=1, descending=descending)
        yield case(name, "many-equals", np.round(array((1000,))), axis=0, descending=descending)
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


@specimen("suppress_overlaps")
def _suppress_overlaps(name: str) -> Iterator[Case]:
    def listed(what: str, boxes: Array, scores: Array, most: int, *numbers: float, **attributes: object) -> Case:
        n, dtype = scores.shape[2], boxes.dtype
        given = (np.array(most, np.int64), *(np.array(number).astype(dtype) for number in numbers))
        return case(name, what, boxes, scores, *given, **{"limit": n, "candidates": n, **attributes})

    def grid(shape: tuple[int, int, int], dtype: dtypes.DType = dtypes.f32, seed: int = 0) -> tuple[Array, Array]:
        """Boxes that meet often, and scores with ties: both exact in any dtype."""
        random = np.random.default_rng(seed)
        batch, _, n = shape
        boxes, scores = random.integers(0, 12, (batch, n, 4)), random.integers(0, 9, shape) / 8
        return boxes.astype(dtype.numpy), scores.astype(dtype.numpy)

    for dtype in FLOATS:
        yield listed("rows", *grid((2, 3, 21), dtype), 4, 0.25, 0.25)
    for n in (1, 17, 64, 65):
        yield listed("length", *grid((1, 2, n), seed=n), n, 0.5, 0.5)
    yield listed("long", *grid((1, 2, 300)), 300, 0.5)
    for centered in (False, True):
        yield listed("few", *grid((1, 4, 40)), 3, 0.0, 0.25, centered=centered, limit=5)
        boxes, scores = grid((1, 3, 90), seed=1)
        boxes[0, :13, 0] = boxes[0, 13:26, 3] = SPECIAL
        scores[0, 0, 5:18], scores[0, 1, 20:33] = SPECIAL, SPECIAL
        numbers = (0.4, 0.0) if centered else (0.4,)
        yield listed("special", boxes, scores, 50, *numbers, centered=centered)
    yield listed("wide", *grid((2, 1, 20)), 99, 0.3, limit=30)
    same = np.tile(np.array([1, 1, 4, 4], np.float32), (1, 40, 1))
    yield listed("same", same, np.full((1, 2, 40), 0.5, np.float32), 10, 0.5)
    yield listed("no-area", same * np.float32([1, 0, 1, 0]), np.full((1, 1, 40), 0.5, np.float32), 30, 0.0)
    yield listed("overlap", *grid((1, 1, 20)), 9, np.nan, 0.25)
    yield listed("threshold", *grid((1, 1, 20)), 9, 0.25, np.nan)
    yield listed("none", *grid((1, 2, 9)), -3, 0.5)
    yield listed("no-classes", *grid((2, 0, 5)), 4, 0.5, 0.25)
    yield listed("no-boxes", *grid((2, 3, 0)), 4, 0.5, 0.25)
    yield listed("no-places", *grid((1, 2, 9)), 4, 0.5, limit=0)
    tight, chosen = grid((1, 3, 50))
    yield listed("counted", tight, chosen, 50, 0.25, 0.75, candidates=int((chosen > 0.75).sum(2).max()))
