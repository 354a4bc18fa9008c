"""Ops that move elements and compute nothing: reshape, transpose, broadcast, slice, pad, concat; numbers from dims."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.indexing import slice_extent
from rlx.ir.op import Cost, Primitive, op
from rlx.ir.padding import ALIKE, Padded, Padding
from rlx.ir.type import TensorType
from rlx.ir.value import Value
from rlx.ops.build import concat, gather, iota, update_slice

Array = np.ndarray[Any, Any]


class Movement(Primitive):
    """An op that computes nothing: its cost is bytes."""

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return Cost(bytes=dims.mul(2, sum((dims.mul(t.size, t.dtype.itemsize) for t in outputs), start=0)))


@op
class Reshape(Movement):
    """The same elements in row-major order under another shape (no -1: `Value.reshape` works that out)."""

    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        expect.same_dim(x.size, dims.product(self.shape), f"expected {list(self.shape)} to hold the elements of {x}")
        return x.with_shape(self.shape)

    def reference(self, x: Array) -> Array:
        return np.reshape(x, self.shape)

    def padded(self, padding: Padding, x: Padded) -> Padded:
        """As it is, if what counts is still the first entries of parts; else these are gathered."""
        axes = padding.regrouped(x, self.shape)
        return padding.relaid(x, self.shape) if axes is None else Padded(padding.build(self, x.value), axes)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return Cost()


@op
class Transpose(Movement):
    """Result axis i is operand axis permutation[i]."""

    permutation: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        order = expect.axes(self.permutation, x.rank, "permutation")
        if len(order) != x.rank:
            raise ShapeError(f"expected a permutation of {x.rank} axes, got {list(self.permutation)}")
        return x.with_shape(x.shape[i] for i in order)

    def reference(self, x: Array) -> Array:
        return np.transpose(x, self.permutation)

    def padded(self, padding: Padding, x: Padded) -> Padded:
        return Padded(padding.build(self, x.value), tuple(x.axes[i] for i in self.permutation))


@op
class BroadcastTo(Movement):
    """NumPy's broadcast to `shape`: leading axes are added, axes of 1 repeat."""

    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        if x.rank > len(self.shape):
            raise ShapeError(f"expected a shape of rank at least {x.rank}, got {list(self.shape)}")
        for have, expected in zip(reversed(x.shape), reversed(self.shape)):
            expect.spreads_to(have, expected, f"expected {x} to broadcast to {list(self.shape)}")
        return x.with_shape(self.shape)

    def reference(self, x: Array) -> Array:
        return np.broadcast_to(x, self.shape)  # type: ignore[arg-type]  # dims are bound before a reference runs

    def padded(self, padding: Padding, x: Padded) -> Padded:
        return padding.elementwise(self, x)


@op
class Slice(Movement):
    """Elements starts, starts+steps, … short of stops along every axis; steps may be negative (stop -1 = to the front).

    Starts and stops are dims and lie inside the array: `Value.__getitem__` clamps Python's slices to that.
    """

    starts: tuple[Dim, ...]
    stops: tuple[Dim, ...]
    steps: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if not len(self.starts) == len(self.stops) == len(self.steps) == x.rank:
            raise ShapeError(f"expected starts, stops and steps for {x.rank} axes, got {len(self.starts)}")
        for start, stop, step, extent in zip(self.starts, self.stops, self.steps, x.shape):
            if step == 0:
                raise ShapeError("expected steps that are not zero")
            self._inside(start, stop, step, extent)
        return x.with_shape(slice_extent(*part) for part in zip(self.starts, self.stops, self.steps))

    def _inside(self, start: Dim, stop: Dim, step: int, extent: Dim) -> None:
        count = slice_extent(start, stop, step)
        if count == 0 or not (isinstance(start, int) and isinstance(extent, int) and isinstance(count, int)):
            return
        last = start + (count - 1) * step
        if not (0 <= start < extent and 0 <= last < extent):
            raise ShapeError(f"expected a slice inside {extent} elements, got {start}:{stop}:{step}")

    def reference(self, x: Array) -> Array:
        parts = []
        for start, stop, step in zip(self.starts, self.stops, self.steps):
            # Backwards, -1 is the place before the first element; to NumPy it is the last.
            backwards = slice(start, None if stop == -1 else stop, step) if start != -1 else slice(0, 0)
            parts.append(slice(start, stop, step) if step > 0 else backwards)
        return x[tuple(parts)]

    def padded(self, padding: Padding, x: Padded) -> Padded:
        """A slice that does not begin at a number takes its elements one by one."""
        starts, stops, steps, axes = list(self.starts), list(self.stops), list(self.steps), list(x.axes)
        for axis, extent in enumerate(x.shape):
            start, stop, step = self.starts[axis], self.stops[axis], self.steps[axis]
            if (start, stop, step) == (0, extent, 1):
                continue
            count = slice_extent(start, stop, step)
            x = padding.in_front(x, axis)
            axes[axis] = (count,)
            if padding.is_open(start):
                places = iota(padding.graph, shape=(count,), dtype="i64") * step + padding.size(start)
                x = Padded(gather(x.value, places, axis=axis), tuple(axes))
                starts[axis], stops[axis], steps[axis] = 0, count, 1
            elif padding.is_open(stop) and step < 0:
                padding.refuse("backwards to a stop that a run tells", stop)
        whole = all(part == (0, d, 1) for part, d in zip(zip(starts, stops, steps), x.shape))
        cut = Slice(tuple(starts), tuple(stops), tuple(steps))
        return Padded(x.value if whole else padding.build(cut, x.value), tuple(axes))


@op
class Frames(Movement):
    """Stretches of `length` elements of an axis, `step` apart, which may overlap: the axis becomes two.

    x       any [..., n, ...]
    result  [..., (n - length) // step + 1, length, ...]; elements that fill no frame are left out
    """

    length: Dim
    step: int
    axis: int = -1

    def infer(self, x: TensorType) -> TensorType:
        axis = expect.axis(self.axis, x.rank)
        if self.step < 1 or (isinstance(self.length, int) and self.length < 1):
            raise ShapeError(f"expected frames and steps of at least 1, got {self.length} and {self.step}")
        count = dims.add(dims.floordiv(dims.add(x.shape[axis], dims.mul(self.length, -1)), self.step), 1)
        count = max(count, 0) if isinstance(count, int) else dims.maximum(0, count)
        return x.with_shape((*x.shape[:axis], count, self.length, *x.shape[axis + 1 :]))

    def reference(self, x: Array) -> Array:
        axis, length = self.axis % x.ndim, dims.evaluate(self.length, {})
        shape = (*x.shape[:axis], 0, length, *x.shape[axis + 1 :])
        if x.shape[axis] < length:
            return np.zeros(shape, x.dtype)
        whole = np.lib.stride_tricks.sliding_window_view(x, length, axis)
        return np.moveaxis(whole.take(range(0, whole.shape[axis], self.step), axis), -1, axis + 1)

    def padded(self, padding: Padding, x: Padded) -> Padded:
        axis = self.axis % len(x.axes)
        if padding.is_open(self.length):
            padding.refuse(f"frames of {self.length}", self.length)
        x = padding.in_front(x, axis)
        result = padding.build(self, x.value)
        return Padded(result, (*x.axes[:axis], (result.shape[axis],), (self.length,), *x.axes[axis + 1 :]))


@op
class Pad(Movement):
    """`value` around x: low[i] elements before and high[i] behind along axis i (negative: cropped)."""

    low: tuple[Dim, ...]
    high: tuple[Dim, ...]
    value: float = 0.0

    def infer(self, x: TensorType) -> TensorType:
        if not len(self.low) == len(self.high) == x.rank:
            raise ShapeError(f"expected pads for {x.rank} axes, got {len(self.low)} and {len(self.high)}")
        shape = tuple(dims.add(dims.add(d, a), b) for d, a, b in zip(x.shape, self.low, self.high))
        for dim in shape:
            if isinstance(dim, int) and dim < 0:
                raise ShapeError(f"expected pads that leave no negative dim, got {list(shape)}")
        return x.with_shape(shape)

    def reference(self, x: Array) -> Array:
        out = np.full([d + a + b for d, a, b in zip(x.shape, self.low, self.high)], self.value).astype(x.dtype)
        source, target = [], []
        for extent, low, high in zip(x.shape, self.low, self.high):
            first, last = max(0, -low), extent - max(0, -high)
            source.append(slice(first, max(first, last)))
            target.append(slice(first + low, max(first, last) + low))
        if all(part.stop > part.start for part in source):
            out[tuple(target)] = x[tuple(source)]
        return out

    def padded(self, padding: Padding, x: Padded) -> Padded:
        """What does not count is what comes behind it."""
        axes = list(x.axes)
        for axis, (low, high) in enumerate(zip(self.low, self.high)):
            if padding.is_open(low):
                padding.refuse(f"{low} elements in front", low)
            if (low, high) != (0, 0):
                x = padding.in_front(x, axis)
                axes[axis] = (dims.add(dims.add(x.shape[axis], low), high),)
        behind = [axis for axis, high in enumerate(self.high) if high != 0]
        return Padded(padding.build(self, padding.filled(x, behind, self.value).value), tuple(axes))


@op
class Concat(Movement):
    """Operands one behind the other along `axis`."""

    axis: int = 0

    def infer(self, *parts: TensorType) -> TensorType:
        if not parts:
            raise ShapeError("expected at least one operand")
        expect.same_dtype(*parts)
        axis = expect.axis(self.axis, parts[0].rank)
        shape = list(parts[0].shape)
        for number, part in enumerate(parts[1:], 1):
            if part.rank != parts[0].rank:
                raise ShapeError(f"expected operands of rank {parts[0].rank}, got {part}")
            for i, dim in enumerate(part.shape):
                if i == axis:
                    shape[i] = dims.add(shape[i], dim)
                else:
                    what = f"expected equal dims outside of axis {axis}, got others along axis {i} of operand {number}"
                    shape[i] = expect.same_dim(shape[i], dim, what)
        return parts[0].with_shape(shape)

    def reference(self, *parts: Array) -> Array:
        return np.concatenate(parts, self.axis)

    def padded(self, padding: Padding, *parts: Padded) -> Padded:
        """Every part is written where those before it end, over what does not count of these."""
        axis = self.axis % len(parts[0].axes)
        parts = tuple(padding.in_front(part, axis) for part in parts)
        others = [padding.same_of([part.axes[i] for part in parts]) for i in range(len(parts[0].axes))]
        extents = [part.shape[axis] for part in parts]
        others[axis] = (dims.add(sum(extents[:-1], start=0), extents[-1]),)
        if not padding.is_open(*extents[:-1]):
            return Padded(padding.build(self, *(part.value for part in parts)), tuple(others))
        first, *rest = parts
        ends = tuple(sum(extents[1:], start=0) if i == axis else 0 for i in range(len(others)))
        result = padding.build(Pad((0,) * len(others), ends), first.value)
        start = first.shape[axis]
        for part in rest:
            result = update_slice(result, part.value, padding.size(start), axis=axis)
            start = dims.add(start, part.shape[axis])
        return Padded(result, tuple(others))


@op
class Iota(Movement):
    """0, 1, 2, … along `axis` of `shape`."""

    shape: Shape
    dtype: DType
    axis: int = 0

    def infer(self) -> TensorType:
        expect.axis(self.axis, len(self.shape))
        return TensorType(self.shape, self.dtype)

    def reference(self) -> Array:
        line = np.arange(dims.evaluate(self.shape[self.axis], {})).astype(self.dtype.numpy)
        spread = [-1 if i == self.axis % len(self.shape) else 1 for i in range(len(self.shape))]
        return np.broadcast_to(line.reshape(spread), self.shape)  # type: ignore[arg-type]

    def padded(self, padding: Padding) -> Padded:
        result = padding.graph.add(self)
        assert isinstance(result, Value)  # of one result
        alike = [i != self.axis % len(self.shape) and padding.is_open(d) for i, d in enumerate(self.shape)]
        return Padded(result, tuple(ALIKE if a else (d,) for a, d in zip(alike, self.shape)))


@op
class DimsTensor(Movement):
    """Dims as a vector of numbers: what a model gets that asks for a shape at run time."""

    values: tuple[Dim, ...]
    dtype: DType = dtypes.i64

    def infer(self) -> TensorType:
        return TensorType((len(self.values),), self.dtype)

    def reference(self) -> Array:
        return np.array(self.values, self.dtype.numpy)

    def padded(self, padding: Padding) -> Padded:
        """The sizes of the run."""
        numbers = [padding.size(d).reshape((1,)) for d in self.values]
        return padding.of((numbers[0] if len(numbers) == 1 else concat(*numbers, axis=0)).cast(self.dtype))
