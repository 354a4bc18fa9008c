"""Cases of images sampled and rearranged, and of sums by axis names."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ops.case import FLOATS, Case, array, case, specimen
from rlx.ir import dtype as dtypes


@specimen("grid_sample")
def _grid_sample(name: str) -> Iterator[Case]:
    x, grid = array((2, 3, 4, 5)), array((2, 3, 4, 2), seed=1) * np.float32(0.4)
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (False, True):
                yield case(name, f"{mode}-{padding}", x, grid, mode=mode, padding=padding, corners=corners)
    volume, points = array((1, 2, 3, 4, 5)), array((1, 2, 2, 3, 3), seed=2) * np.float32(0.4)
    yield case(name, "volume", volume, points)
    yield case(name, "line", array((2, 1, 6)), array((2, 4, 1), seed=3) * np.float32(0.4), padding="reflection")
    yield case(name, "one", array((1, 1, 1, 1)), array((1, 2, 2, 2), seed=4), padding="reflection", corners=True)
    for dtype in (dtypes.f16, dtypes.f64):
        yield case(name, "dtype", x.astype(dtype.numpy), grid.astype(dtype.numpy), padding="border")


@specimen("roi_align")
def _roi_align(name: str) -> Iterator[Case]:
    x = array((2, 3, 9, 7))
    regions = np.array([[0, 0, 6, 8], [1.5, 2.25, 4, 3], [-3, -2, 2, 20], [4, 4, 4, 4]], np.float32)
    batch = np.array([0, 1, 1, 0])
    for mode in ("avg", "max"):
        for half in (False, True):
            how = {"height": 3, "width": 2, "samples": 2, "mode": mode, "half_pixel": half}
            yield case(name, mode, x, regions, batch, scale=0.8, **how)
    yield case(name, "one-sample", x, regions, batch.astype(np.int32), height=2, width=4, samples=1)
    yield case(name, "nothing", x, regions[:0], batch[:0], height=2, width=2, samples=2)
    endless = np.where(np.arange(7) % 6 == 0, np.float32(np.inf), x)
    outside = np.array([[-20, -20, -10, -10], [50, 2, 60, 4]], np.float32)
    for mode in ("avg", "max"):
        yield case(name, f"outside-{mode}", endless, outside, batch[:2], height=2, width=2, samples=2, mode=mode)


@specimen("reverse_sequence")
def _reverse_sequence(name: str) -> Iterator[Case]:
    lengths = np.array([1, 4, 0])
    yield case(name, "time-first", array((4, 3)), lengths, time_axis=0, batch_axis=1)
    yield case(name, "batch-first", array((3, 4, 5), dtypes.i32), lengths, time_axis=1, batch_axis=0)
    yield case(name, "too-long", array((3, 4)), np.array([9, 2, 3]), time_axis=1, batch_axis=0)


@specimen("col2im")
def _col2im(name: str) -> Iterator[Case]:
    plain = {"strides": (1, 1), "dilations": (1, 1), "low": (0, 0), "high": (0, 0)}
    yield case(name, "overlap", array((2, 3 * 6, 12)), image=(5, 5), block=(2, 3), **plain)
    padded = {"strides": (2, 1), "dilations": (1, 2), "low": (1, 0), "high": (0, 1)}
    yield case(name, "padded", array((1, 2 * 4, 3 * 4)), image=(5, 5), block=(2, 2), **padded)
    whole = {"strides": (2,), "dilations": (1,), "low": (0,), "high": (0,)}
    yield case(name, "int", array((1, 2, 3), dtypes.i32), image=(6,), block=(2,), **whole)


@specimen("local_response_norm")
def _local_response_norm(name: str) -> Iterator[Case]:
    for size in (1, 2, 3, 5):
        yield case(name, "image", array((2, 6, 3, 4)), size=size, alpha=0.5)
    yield case(name, "bare", array((3, 7)), size=3, beta=0.5, bias=2.0)
    for dtype in FLOATS:
        yield case(name, "dtype", array((1, 5, 4), dtype), size=3)


@specimen("einsum")
def _einsum(name: str) -> Iterator[Case]:
    a, b, c = array((3, 4)), array((4, 5), seed=1), array((5, 2), seed=2)
    for equation, operands in {
        "ij,jk->ik": (a, b), "ij,jk": (a, b), "ij,jk,kl->il": (a, b, c), "ij->ji": (a,), "ij->": (a,), "ij->i": (a,),
        "i,j->ij": (a[0], b[0]), "ij,ij->ij": (a, a), "ij,j->ij": (a, b[:, 0]), "ij,ji->": (a, a.T.copy()),
        "ii->i": (a[:, :3].copy(),), "ii": (a[:, :3].copy(),), "bii->bi": (array((2, 3, 3)),),
        "...ij,...jk->...ik": (array((2, 1, 3, 4)), array((5, 4, 2), seed=1)), "...ii->...i": (array((2, 3, 3)),),
        "b...,b->b...": (array((2, 3, 4)), array((2,))), "ij , jk -> ik": (a, b), "ab,ac->abc": (a, a),
        "ij,kj->ik": (a[:1], b.T.copy()), "i,i": (a[0], a[1]), "aij,ajk,akl->al": (array((2, 3, 4)),
        array((2, 4, 5)), array((2, 5, 3))),
    }.items():  # fmt: skip
        yield case(name, equation.replace(" ", "_"), *operands, equation=equation)
    for dtype in (dtypes.f16, dtypes.f64, dtypes.i32):
        yield case(name, "dtype", array((3, 4), dtype), array((4, 2), dtype, 1), equation="ij,jk->ik")
