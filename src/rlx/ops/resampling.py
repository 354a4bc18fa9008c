"""Resizing, axis by axis: an element of the result is a weighted sum of few elements along the axis.

The position of a result in the operand is an exact fraction N / D of integers, so that ties between neighbours are
decided as intended. The same formulas serve known sizes (NumPy, while the op is decomposed) and sizes that are known
only at run time (values of the graph).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from rlx.errors import GraphError, ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType, accumulator
from rlx.ir.expr import INSTRUCTIONS
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Composite, Tolerance, op
from rlx.ir.type import TensorType
from rlx.ops import build
from rlx.ops.numpy_or_graph import choose, clamp, cubic, floor_divide, greatest, least, real, remainder
from rlx.records import dataclass

Array = np.ndarray[Any, Any]

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip
PERIODIC = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric")
"""Those in which a whole scale does the same to every element."""
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_MAX_DENOMINATOR = 1 << 20


@op
class Resize(Composite):
    """x with other extents along `axes`, by nearest, linear or cubic interpolation. The rules are those of ONNX.

    x                  any but complex [...]; linear and cubic take numbers, and truncate to integers
    axes               from the front, ascending
    sizes              extents of the result along the axes
    up, down           up / down is the scale by axis that coordinates are worked out with
    coordinates        where an element of the result lies in x; one of COORDINATES
    nearest            how a place between two elements is rounded; one of NEAREST
    cubic_a            coefficient of the cubic (Keys 1981, doi:10.1109/TASSP.1981.1163711)
    antialias          where the result is smaller, weights spread over all elements that fall together
    exclude_outside    weights beyond the edge are 0 and the others grow; else the edge repeats
    start, end         the part of x that is taken, by axis, for tf_crop_and_resize; beyond x is `extrapolation`
    """

    axes: tuple[int, ...]
    sizes: tuple[Dim, ...]
    up: tuple[Dim, ...]
    down: tuple[Dim, ...]
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0
    start: tuple[float, ...] = ()
    end: tuple[float, ...] = ()
    tolerance = Tolerance(64, scale=1)

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, *(("bool",) if self.mode == "nearest" else ()), "int", "uint", "float")
        for value, allowed in ((self.mode, MODES), (self.coordinates, COORDINATES), (self.nearest, NEAREST)):
            if value not in allowed:
                raise GraphError(f"expected one of {', '.join(allowed)}, got {value!r}")
        if self.axes != tuple(sorted(expect.axes(self.axes, x.rank))):
            raise ShapeError(f"expected axes from the front, ascending, got {list(self.axes)}")
        parts: list[Sequence[Any]] = [self.sizes, self.up, self.down]
        parts += [self.start, self.end] if self.coordinates == "tf_crop_and_resize" else []
        if any(len(part) != len(self.axes) for part in parts):
            raise ShapeError(f"expected a size, a scale (and a part of x) for each of {len(self.axes)} axes")
        if any(isinstance(n, int) and n < 0 for n in (*self.sizes, *self.up, *self.down)):
            raise ShapeError(f"expected sizes and scales that are not negative, got {list(self.sizes)}")
        for axis, size in zip(self.axes, self.sizes):
            expect.not_empty(x.shape[axis], size, f"expected elements to resize along axis {axis}, got {x}")
        changed = dict(zip(self.axes, self.sizes))
        return x.with_shape(changed.get(i, d) for i, d in enumerate(x.shape))

    def reference(self, x: Array) -> Array:
        y = x if self.mode == "nearest" else x.astype(np.float64)
        with np.errstate(all="ignore"):
            for line in self._lines(x.shape):
                y = line.resampled(y)
            for line in self._lines(x.shape) if self.coordinates == "tf_crop_and_resize" else ():
                outside = line.outside(*line.place(np.arange(dims.evaluate(line.size, {}))))
                fill = np.asarray(self.extrapolation).astype(y.dtype)
                y = np.where(outside.reshape(_along(line.axis, x.ndim)), fill, y)
        return np.asarray(INSTRUCTIONS["cast"].numpy(y, dtypes.of(x.dtype)))

    def decompose(self, x: Value) -> Value:
        y = x if self.mode == "nearest" else x.cast(_compute_dtype(x.dtype))
        for line in self._lines(x.shape):
            y = line.resampled_value(y)
        for line in self._lines(x.shape) if self.coordinates == "tf_crop_and_resize" else ():
            outside = line.outside(*line.place(line.positions(x.graph)))
            y = build.select(outside.reshape(_along(line.axis, x.rank)), self.extrapolation, y)
        return y.cast(x.dtype)

    def _lines(self, shape: Shape) -> list[Line]:
        """The axes in the order in which they are done: those that shrink first, the outer ones before the inner ones;
        then those that grow, from inside out. So the results on the way are small, and where most is done neighbours
        in memory are done together."""
        lines = []
        for i, axis in enumerate(self.axes):
            part = (_fraction(self.start[i]), _fraction(self.end[i])) if self.start else (Fraction(0), Fraction(1))
            lines.append(Line(self, axis, shape[axis], self.sizes[i], self.up[i], self.down[i], part))
        shrinking = [line for line in lines if line.shrinks]
        return [*shrinking, *(line for line in reversed(lines) if not line.shrinks)]


def _fraction(number: float) -> Fraction:
    return Fraction(number).limit_denominator(_MAX_DENOMINATOR)


def _compute_dtype(dtype: DType) -> DType:
    """Integers go through f64, where what should come out whole does."""
    return accumulator(dtype) if dtype.is_float else dtypes.f64


def _along(axis: int, rank: int) -> tuple[int, ...]:
    """The shape that lays a vector along an axis."""
    return tuple(-1 if i == axis else 1 for i in range(rank))


@dataclass(frozen=True)
class Line:
    """One axis that is resized, from `extent` elements to `size`. Methods take NumPy arrays of positions, or values."""

    op: Resize
    axis: int
    extent: Dim
    size: Dim
    up: Dim
    down: Dim
    part: tuple[Fraction, Fraction]

    @property
    def is_known(self) -> bool:
        return all(isinstance(n, int) for n in (self.extent, self.size, self.up, self.down))

    @property
    def shrinks(self) -> bool:
        gap = dims.add(self.size, dims.mul(self.extent, -1))
        high = dims.bounds(gap, {})[1]
        return high is not None and high < 0

    def positions(self, graph: Graph) -> Value:
        return build.iota(graph, shape=(self.size,), dtype="i64")

    def number(self, like: Any, dim: Dim) -> Any:
        """A dim as what goes with `like`: an int, or a value."""
        if isinstance(dim, int) or not isinstance(like, Value):
            return dims.evaluate(dim, {})
        return build.dims_tensor(like.graph, values=(dim,), dtype="i64").reshape()

    # coordinates

    def place(self, x: Any) -> tuple[Any, Any]:
        """N, D: element x of the result lies at N / D of the operand."""
        extent, size, p, q = (self.number(x, n) for n in (self.extent, self.size, self.up, self.down))
        match self.op.coordinates:
            case "asymmetric":
                return x * q, p
            case "align_corners":  # the last element of extent · scale elements, which need not be whole
                return x * ((extent - 1) * q), greatest(extent * p - q, 1)
            case "half_pixel_symmetric":
                return extent * p - size * q + (2 * x + 1) * q - p, 2 * p
            case "tf_crop_and_resize":
                return self._cropped(x, extent, size)
            case "pytorch_half_pixel" if isinstance(size, int):
                return (x * 0, 1) if size == 1 else ((2 * x + 1) * q - p, 2 * p)
            case "pytorch_half_pixel":
                return build.select(build.eq(size, 1), 0, (2 * x + 1) * q - p), 2 * p
        return (2 * x + 1) * q - p, 2 * p

    def _cropped(self, x: Any, extent: Any, size: Any) -> tuple[Any, Any]:
        """The part from `first` to `last` of x, corners on corners; its middle where there is but one element."""
        scale = math.lcm(self.part[0].denominator, self.part[1].denominator)
        first, last = (int(end * scale) for end in self.part)
        steps = greatest(size - 1, 1)
        spread = (2 * first * steps + 2 * x * (last - first)) * (extent - 1)
        middle = steps * (first + last) * (extent - 1)
        if isinstance(size, int):
            return (spread if size > 1 else middle + x * 0), 2 * scale * steps
        return build.select(size > 1, spread, middle), 2 * scale * steps

    def outside(self, n: Any, d: Any) -> Any:
        """Whether a place is beyond the operand's first or last element."""
        return (n < 0) | (n > (self.number(n, self.extent) - 1) * d)

    # nearest

    def nearest_index(self, n: Any, d: Any) -> Any:
        match self.op.nearest:
            case "floor":
                at = floor_divide(n, d)
            case "ceil":
                at = -floor_divide(-n, d)
            case "round_prefer_ceil":
                at = floor_divide(2 * n + d, 2 * d)
            case _:
                at = -floor_divide(d - 2 * n, 2 * d)
        return clamp(at, 0, self.number(n, self.extent) - 1)

    @property
    def times(self) -> int:
        """How often every element comes, one after the other, if the nearest ones of x are just these; else 0."""
        times = dims.exact_div(self.up, self.down)
        if self.op.coordinates not in PERIODIC or not isinstance(times, int) or times < 1:
            return 0
        if self.size != dims.mul(self.extent, times):
            return 0
        few = replace(self, extent=3, size=3 * times, up=times, down=1)
        index = few.nearest_index(*few.place(np.arange(3 * times)))
        return times if bool((index == np.arange(3 * times) // times).all()) else 0

    # weighted sums

    def taps(self, x: Any, dtype: DType) -> list[tuple[Any, Any]]:
        """Indices and weights of the elements that are summed; indices still reach beyond the edges."""
        n, d = self.place(x)
        first = floor_divide(n, d)
        rest = real(remainder(n, d), dtype) / real(d, dtype)
        if self.op.mode == "linear":
            weights = [(0, 1 - rest), (1, rest)]
        else:
            weights = [(i, cubic(i - rest, self.op.cubic_a)) for i in (-1, 0, 1, 2)]
        return [(first + i, weight) for i, weight in weights]

    def weighted(self, x: Any, dtype: DType) -> list[tuple[Any, Any]]:
        """`taps` inside of the operand: beyond its edges the edge repeats, or there is nothing."""
        taps = self.taps(x, dtype)
        extent = self.number(x, self.extent)
        if self.op.exclude_outside:
            taps = [(at, choose((at < 0) | (at >= extent), 0.0, weight)) for at, weight in taps]
            total = sum((weight for _, weight in taps[1:]), start=taps[0][1])
            taps = [(at, weight / total) for at, weight in taps]
        return [(clamp(at, 0, extent - 1), weight) for at, weight in taps]

    def matrix(self, x: Any, dtype: DType) -> tuple[Any, Any]:
        """Antialiasing: indices into the operand, reaching beyond its edges, and their weights [size, indices]."""
        n, d = self.place(x)
        room = dims.mul(3, dims.add(dims.ceildiv(self.extent, dims.maximum(self.size, 1)), 1))
        count = dims.add(self.extent, dims.mul(2, room))
        extent, before = self.number(x, self.extent), self.number(x, room)
        if isinstance(x, Value):
            at: Any = build.iota(x.graph, shape=(count,), dtype="i64") - before
        else:
            at = np.arange(dims.evaluate(count, {})) - before
        distance = real(at, dtype).reshape(1, -1) - (real(n, dtype) / real(d, dtype)).reshape(-1, 1)
        distance = distance * self._shrinkage(x, dtype)
        weights = greatest(1 - abs(distance), 0.0) if self.op.mode == "linear" else cubic(distance, self.op.cubic_a)
        if self.op.exclude_outside:
            weights = choose(((at < 0) | (at >= extent)).reshape(1, -1), 0.0, weights)
        if isinstance(x, Value):
            return clamp(at, 0, extent - 1), weights / build.reduce_sum(weights, axes=(1,), keepdims=True)
        return clamp(at, 0, extent - 1), weights / weights.sum(1, keepdims=True)

    def _shrinkage(self, x: Any, dtype: DType) -> Any:
        """The scale where it is below 1, else 1: growing needs no filter."""
        scale = real(self.number(x, self.up), dtype) / real(self.number(x, self.down), dtype)
        return least(scale, 1.0)

    # both ways

    def resampled(self, x: Array) -> Array:
        at = np.arange(dims.evaluate(self.size, {}))
        if self.op.mode == "nearest":
            return np.asarray(np.take(x, self.nearest_index(*self.place(at)), self.axis))
        if self.op.antialias:
            indices, weights = self.matrix(at, dtypes.f64)
            spread = np.tensordot(np.take(x, indices, self.axis), weights, (self.axis, 1))
            return np.asarray(np.moveaxis(spread, -1, self.axis))
        shape = _along(self.axis, x.ndim)
        parts = [np.take(x, i, self.axis) * w.reshape(shape) for i, w in self.weighted(at, dtypes.f64)]
        return np.asarray(sum(parts[1:], start=parts[0]))

    def resampled_value(self, x: Value) -> Value:
        graph = x.graph
        at: Any = np.arange(dims.evaluate(self.size, {})) if self.is_known else self.positions(graph)
        if self.op.mode == "nearest":
            times = 0 if self.is_known else self.times
            index = build.div(at, times) if times else self.nearest_index(*self.place(at))
            return build.gather(x, _constant(graph, index), axis=self.axis)
        if self.op.antialias:
            return self._spread(x, at)
        total: Value | None = None
        for indices, weights in self.weighted(at, x.dtype):
            if not isinstance(weights, Value) and not np.any(weights):
                continue
            factor = _constant(graph, weights, x.dtype).reshape(_along(self.axis, x.rank))
            part = build.gather(x, _constant(graph, indices), axis=self.axis) * factor
            total = part if total is None else total + part
        assert total is not None  # weights add up to 1
        return total

    def _spread(self, x: Value, at: Any) -> Value:
        """A product with the matrix of weights; of known ones, only with the elements that any weight is for."""
        indices, weights = self.matrix(at, x.dtype)
        if not isinstance(weights, Value):
            dense = np.zeros((weights.shape[0], dims.evaluate(self.extent, {})))
            np.add.at(dense.T, indices, weights.T)
            weights = x.graph.constant(dense, x.dtype)
        else:
            x = build.gather(x, indices, axis=self.axis)
        product = build.dot_general(x, weights, lhs_contract=(self.axis,), rhs_contract=(1,))
        rest = list(range(x.rank - 1))
        return product.transpose(*rest[: self.axis], x.rank - 1, *rest[self.axis :])


def _constant(graph: Graph, numbers: Any, dtype: DType = dtypes.i64) -> Value:
    return numbers if isinstance(numbers, Value) else graph.constant(np.asarray(numbers), dtype)
