"""Sampling of images at data-dependent places: grids of points, and regions divided into bins."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from rlx.errors import GraphError, ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType, accumulator
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Range, Tolerance, op
from rlx.ir.type import TensorType
from rlx.ops import build
from rlx.ops.numpy_or_graph import (
    choose,
    clamp,
    cubic,
    floor,
    floor_divide,
    greatest,
    least,
    real,
    remainder,
    round_to_even,
    whole,
)

Array = np.ndarray[Any, Any]
CUBIC_A = -0.75
OUTSIDE = 8.0
"""A place so far from the first or the last element is as far as any."""


def _number(like: Any, dim: Dim) -> Any:
    """A dim as an int, or as an i64 scalar of the graph where only a run knows it."""
    if isinstance(dim, int) or not isinstance(like, Value):
        return dims.evaluate(dim, {})
    return build.dims_tensor(like.graph, values=(dim,), dtype="i64").reshape()


@op
class GridSample(Composite):
    """x at the points of a grid, by linear, nearest or cubic interpolation.

    x        float [N, C, d1, …, dk]
    grid     float [N, o1, …, ok', k], from -1 to 1 along each axis, the coordinate along the last axis first
    result   [N, C, o1, …, ok']

    padding   what lies outside x: zeros, border (the nearest element) or reflection
    corners   whether -1 and 1 are the centres of the outermost elements, else their outer edges
    """

    mode: str = "linear"
    padding: str = "zeros"
    corners: bool = False
    tolerance = Tolerance(512, scale=8)

    def infer(self, x: TensorType, grid: TensorType) -> TensorType:
        expect.floating(x)
        expect.floating(grid, "grid")
        expect.rank(x, 3)
        expect.rank(grid, 3, "grid")
        if self.mode not in ("linear", "nearest", "cubic") or self.padding not in ("zeros", "border", "reflection"):
            raise GraphError(f"expected a known mode and padding, got {self.mode!r} and {self.padding!r}")
        if grid.shape[-1] != x.rank - 2:
            raise ShapeError(f"expected points of {x.rank - 2} numbers, got {grid}")
        expect.same_dim(x.shape[0], grid.shape[0], f"batch dims differ: x is {x}, the grid is {grid}")
        for extent in x.shape[2:]:
            expect.not_empty(extent, dims.product(grid.shape[1:-1]), f"expected elements to sample, got {x}")
        return x.with_shape((*x.shape[:2], *grid.shape[1:-1]))

    def reference(self, x: Array, grid: Array) -> Array:
        with np.errstate(all="ignore"):
            flat = x.astype(np.float64).reshape(*x.shape[:2], int(np.prod(x.shape[2:])))
            points = [grid[..., i].astype(np.float64) for i in reversed(range(x.ndim - 2))]
            sampled = self._sum(flat, points, x.shape, accumulator(dtypes.of(x.dtype)))
            return np.asarray(sampled).reshape(*x.shape[:2], *grid.shape[1:-1]).astype(x.dtype)

    def decompose(self, x: Value, grid: Value) -> Value:
        wide = accumulator(x.dtype)
        flat = x.cast(wide).reshape(*x.shape[:2], dims.product(x.shape[2:]))
        points = [grid[..., i].cast(wide) for i in reversed(range(x.rank - 2))]
        sampled: Value = self._sum(flat, points, x.shape, wide)
        return sampled.reshape(*x.shape[:2], *grid.shape[1:-1]).cast(x.dtype)

    def _sum(self, flat: Any, points: list[Any], shape: Any, dtype: DType) -> Any:
        """All combinations of the axes' taps, weighted: [N, C, points]."""
        axes = [self._taps(p, _number(p, extent), dtype) for p, extent in zip(points, shape[2:])]
        total: Any = None
        for taps in itertools.product(*axes):
            index: Any = 0
            weight: Any = None
            inside: Any = None
            for (at, within, factor), extent in zip(taps, shape[2:]):
                index = at + index * _number(at, extent)
                weight = factor if weight is None or factor is None else weight * factor
                inside = within if inside is None or within is None else inside & within
            part = _elements(flat, _by_point(index))
            part = part if weight is None else part * _by_point(weight)
            part = part if inside is None else choose(_by_point(inside), part, 0.0)
            total = part if total is None else total + part
        return total

    def _taps(self, point: Any, extent: Any, dtype: DType) -> list[tuple[Any, Any, Any]]:
        """Index along an axis, whether it lies inside (None: it does), and weight (None is 1)."""
        size = real(extent, dtype)
        place = (point + 1) * ((size - 1) * 0.5) if self.corners else ((point + 1) * size - 1) * 0.5
        place = self._brought_back(round_to_even(place) if self.mode == "nearest" else place, size)
        first = floor(place)
        rest = place - first
        if self.mode == "nearest":
            weights: list[tuple[int, Any]] = [(0, None)]
        elif self.mode == "linear":
            weights = [(0, 1 - rest), (1, rest)]
        else:
            weights = [(i, cubic(rest - i, CUBIC_A)) for i in (-1, 0, 1, 2)]
        # beyond all bounds, or NaN where an axis of one element meets infinity: devices disagree about their integers
        at = whole(choose(first > -OUTSIDE, least(first, size + OUTSIDE), -OUTSIDE))
        return [(*self._inside(at + i, extent), weight) for i, weight in weights]

    def _brought_back(self, place: Any, size: Any) -> Any:
        """A place outside of x at the border, or reflected there, if the padding says so."""
        low, high = (0.0, size - 1) if self.corners else (-0.5, size - 0.5)
        if self.padding == "zeros":
            return place
        if self.padding == "border":
            return choose((place < low) | (place > high), clamp(place, 0.0, size - 1), place)
        span = greatest(high - low, 1e-30)
        along = place - low
        along = along - floor(along / (span * 2)) * (span * 2)
        return low + choose(along > span, span * 2 - along, along)

    def _inside(self, at: Any, extent: Any) -> tuple[Any, Any]:
        """An index as one that x has, and whether there is anything (None: there is)."""
        within = None
        if self.padding == "zeros":
            within = (at >= 0) & (at < extent)
        elif self.padding == "reflection" and self.corners:
            reflected = remainder(at, greatest((extent - 1) * 2, 1))
            at = least(reflected, (extent - 1) * 2 - reflected)
        elif self.padding == "reflection":  # in half elements, since the edges lie between elements
            reflected = remainder(at * 2 + 1, extent * 4)
            at = floor_divide(least(reflected, extent * 4 - reflected) - 1, 2)
        return clamp(at, 0, extent - 1), within


def _by_point(by_place: Any) -> Any:
    """[N, o…] as [N, 1, points]."""
    return by_place.reshape(by_place.shape[0], 1, -1)


def _elements(flat: Any, at: Any) -> Any:
    """Elements [N, C, points] of [N, C, elements] at [N, 1, points]."""
    shape = (*flat.shape[:2], at.shape[2])
    if isinstance(flat, Value):
        return build.gather_elements(flat, build.broadcast_to(at, shape=shape), axis=2)
    return np.take_along_axis(flat, np.broadcast_to(at, shape), 2)


MAX_SAMPLES = 1 << 20  # of a region, along an axis


@op
class RoiAlign(Composite):
    """Means (or greatest) of x over the bins of regions, from `samples`² places in a bin, each interpolated linearly.

    x         float [N, C, H, W]
    regions   like x, [R, 4]: x1, y1, x2, y2, times `scale` in elements of x
    batch     int [R], which image a region is of
    result    [R, C, height, width]

    half_pixel   regions are moved by half an element; else those less than 1 wide count as 1 wide
    mode         avg; or max, the greatest of the weighted neighbours of all samples
    Source: He et al. 2017, arXiv:1703.06870.
    """

    height: int
    width: int
    samples: int
    scale: float = 1.0
    mode: str = "avg"
    half_pixel: bool = True
    tolerance = Tolerance(256, scale=4)

    def infer(self, x: TensorType, regions: TensorType, batch: TensorType) -> TensorType:
        expect.floating(x)
        expect.same_dtype(x, regions)
        expect.integer(batch, "batch")
        for of, rank, name in ((x, 4, "x"), (regions, 2, "regions"), (batch, 1, "batch")):
            expect.rank(of, rank, name, at_most=rank)
        if self.mode not in ("avg", "max") or min(self.samples, self.height, self.width) < 1:
            raise GraphError(f"expected avg or max of at least one sample, got {self.mode!r} of {self.samples}")
        if max(self.height, self.width) * self.samples > MAX_SAMPLES:
            actual = f"{self.height} by {self.width} of {self.samples} each"
            raise GraphError(f"expected at most {MAX_SAMPLES} samples along an axis, got {actual}")
        expect.same_dim(regions.shape[1], 4, f"expected regions of 4 numbers, got {regions}")
        rows = expect.same_dim(regions.shape[0], batch.shape[0], "expected an image for each region")
        for i in (0, 2, 3):
            expect.not_empty(x.shape[i], rows, f"expected images with elements, got {x}")
        return x.with_shape((rows, x.shape[1], self.height, self.width))

    def ranges(self, x: TensorType, regions: TensorType, batch: TensorType) -> tuple[Range, ...]:
        return (Range(2, 0, x.shape[0], "batch indices"),)

    def reference(self, x: Array, regions: Array, batch: Array) -> Array:
        with np.errstate(all="ignore"):
            n, c, h, w = x.shape
            flat = np.moveaxis(x.astype(np.float64), 1, 0).reshape(c, n * h * w)
            pooled = self._pooled(
                flat, regions.astype(np.float64), batch.astype(np.int64), x.shape, accumulator(dtypes.of(x.dtype))
            )
            return np.asarray(np.moveaxis(pooled, 0, 1)).astype(x.dtype)

    def decompose(self, x: Value, regions: Value, batch: Value) -> Value:
        wide = accumulator(x.dtype)
        flat = x.cast(wide).transpose(1, 0, 2, 3).reshape(x.shape[1], -1)
        pooled: Value = self._pooled(flat, regions.cast(wide), batch.cast("i64"), x.shape, wide)
        return pooled.transpose(1, 0, 2, 3).cast(x.dtype)

    def _pooled(self, flat: Any, regions: Any, batch: Any, shape: Any, dtype: DType) -> Any:
        """[C, R, height, width] of [C, N·H·W]."""
        rows, columns = _number(flat, shape[2]), _number(flat, shape[3])
        down = self._line(regions, 1, self.height, rows, dtype)
        along = self._line(regions, 0, self.width, columns, dtype)
        image = batch.reshape(*batch.shape, 1, 1) * rows
        parts = []
        for low_or_high in down:
            at_y, weight_y, in_y = (part.reshape(*part.shape, 1) for part in low_or_high)
            for at_x, weight_x, in_x in along:
                lay = (at_x.shape[0], 1, at_x.shape[1])
                index = (image + at_y) * columns + at_x.reshape(lay)
                weight = weight_y * weight_x.reshape(lay)
                parts.append(choose(in_y & in_x.reshape(lay), weight * _rows(flat, index), 0.0))
        s = self.samples
        bins = (*parts[0].shape[:2], self.height, s, self.width, s)
        if self.mode == "max":
            greatest_part = parts[0]
            for part in parts[1:]:
                greatest_part = greatest(greatest_part, part)
            return _reduced("max", greatest_part.reshape(bins))
        total = parts[0] + parts[1] + parts[2] + parts[3]
        return _reduced("sum", total.reshape(bins)) / float(s * s)

    def _line(self, regions: Any, first: int, bins: int, extent: Any, dtype: DType) -> list[tuple[Any, Any, Any]]:
        """For the lower and the upper neighbour of every sample along an axis: index, weight, and whether the sample
        counts, [R, bins · samples]."""
        offset = 0.5 if self.half_pixel else 0.0
        start, end = (regions[:, i : i + 1] * self.scale - offset for i in (first, first + 2))
        span = end - start if self.half_pixel else greatest(end - start, 1.0)
        places: Any = (np.arange(bins * self.samples) + 0.5) / (self.samples * bins)
        if isinstance(regions, Value):
            places = regions.graph.constant(places, dtype)
        place = start + places.reshape(1, -1) * span
        size = real(extent, dtype)
        counts = (place >= -1.0) & (place <= size)
        place = clamp(place, 0.0, size - 1)
        low = floor(place)
        rest = place - low
        at = whole(low)
        return [(at, 1 - rest, counts), (least(at + 1, extent - 1), rest, counts)]


def _rows(flat: Any, index: Any) -> Any:
    """[C, index…] of [C, elements]."""
    return build.gather(flat, index, axis=1) if isinstance(flat, Value) else np.take(flat, index, 1, mode="clip")


def _reduced(how: str, bins: Any) -> Any:
    """Over the samples of every bin, [C, R, height, samples, width, samples]."""
    if isinstance(bins, Value):
        return build.op(f"reduce_{how}")(bins, axes=(3, 5))
    return getattr(np, how)(bins, axis=(3, 5))
