"""Convolutions and windows over spatial axes. Layout is batch, channels, space: [N, C, spatial...].

Spatial attributes have one entry per spatial axis. Pads are elements before (`low`) and behind (`high`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Cost, Primitive, Tolerance, op
from rlx.ir.padding import Padded, Padding
from rlx.ir.type import TensorType
from rlx.ops.build import broadcast_to, conv, dilate, div, dot_general, reduce_window
from rlx.ops.reduce import identity

Array = np.ndarray[Any, Any]


def window_extent(extent: Dim, size: int, stride: int, dilation: int, low: Dim, high: Dim) -> Dim:
    """Number of positions of a window along one axis; not below 0. Raises ShapeError for pads that take more away than
    there is."""
    padded = dims.add(dims.add(extent, low), high)
    if isinstance(padded, int) and padded < 0:
        raise ShapeError(f"expected pads that leave no negative dim, got {low} and {high} around {extent}")
    span = dims.add(padded, -((size - 1) * dilation + 1))
    count = dims.add(dims.floordiv(span, stride), 1)
    return max(count, 0) if isinstance(count, int) else dims.maximum(0, count)


def spread_extent(extent: Dim, step: int) -> Dim:
    """Elements with step - 1 zeros between any two of them."""
    return extent if step == 1 else dims.maximum(0, dims.add(dims.mul(extent, step), 1 - step))


def _check(name: str, values: tuple[Any, ...], rank: int, least: int | None = None) -> None:
    if len(values) != rank:
        raise ShapeError(f"expected {name} for {rank} spatial axes, got {list(values)}")
    if least is not None and any(v < least for v in values):
        raise ShapeError(f"expected {name} of at least {least}, got {list(values)}")


def _padded(x: Any, low: tuple[int, ...], high: tuple[int, ...], value: Any) -> Array:
    """x with its trailing axes padded; negative pads crop."""
    lead = x.ndim - len(low)
    crop = tuple(slice(max(0, -a), d - max(0, -b)) for a, b, d in zip(low, high, x.shape[lead:]))
    grown = [(0, 0)] * lead + [(max(0, a), max(0, b)) for a, b in zip(low, high)]
    return np.pad(x[(..., *crop)], grown, constant_values=value)


def _taps(
    x: Any, window: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """(offset in the window, the elements that it sees at every position) for a padded array."""
    lead = x.ndim - len(window)
    shape = x.shape[lead:]
    counts = [(d - (k - 1) * g - 1) // s + 1 for d, k, s, g in zip(shape, window, strides, dilations)]
    for tap in itertools.product(*map(range, window)):
        part = tuple(slice(t * g, t * g + (n - 1) * s + 1, s) for t, g, n, s in zip(tap, dilations, counts, strides))
        yield tap, x[(..., *part)]


def _windowed(padding: Padding, x: Padded, axes: Sequence[int], low: Sequence[Dim], fill: Any) -> Padded:
    """What windows move over: what does not count is what lies around x."""
    for axis, before in zip(axes, low):
        x = padding.in_front(x, axis)
        if padding.is_open(before):
            padding.refuse(f"windows that begin {before} before x", before)
    return padding.filled(x, axes, fill)


@op
class Conv(Primitive):
    """Cross-correlation in groups of channels.

    x       float or int [N, C, spatial...]
    w       like x, [O, C / groups, kernel...]
    result  [N, O, spatial...]; narrow floats add up in f32

    With `channels_last` they are [N, spatial..., C], [kernel..., C / groups, O] and [N, spatial..., O].
    With `sum_dtype` x and w are integers no wider, each of its own dtype, and it is that of products, sums and result.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Dim, ...]
    high: tuple[Dim, ...]
    groups: int = 1
    channels_last: bool = False
    sum_dtype: DType | None = None
    tolerance = Tolerance(512, scale=1)

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        expect.kind(x, "int", "uint", "float")
        dtype = expect.product_dtype(x, w, self.sum_dtype)
        expect.rank(x, 3)
        expect.rank(w, x.rank, "w", at_most=x.rank)
        rank = x.rank - 2
        if self.channels_last:
            x = x.with_shape((x.shape[0], x.shape[-1], *x.shape[1:-1]))
            w = w.with_shape((w.shape[-1], w.shape[-2], *w.shape[:-2]))
        for name, values, least in (("strides", self.strides, 1), ("dilations", self.dilations, 1)):
            _check(name, values, rank, least)
        _check("low", self.low, rank)
        _check("high", self.high, rank)
        if self.groups < 1 or dims.exact_div(w.shape[0], self.groups) is None:
            raise ShapeError(f"expected groups that divide the {w.shape[0]} output channels, got {self.groups}")
        channels = dims.mul(w.shape[1], self.groups)
        expect.same_dim(x.shape[1], channels, f"channels differ: x is {x}, w is {w}, groups are {self.groups}")
        space: list[Dim] = []
        for i, size in enumerate(w.shape[2:]):
            if not isinstance(size, int) or size < 1:
                raise ShapeError(f"expected a kernel of known size, got {w}")
            parts = (self.strides[i], self.dilations[i], self.low[i], self.high[i])
            space.append(window_extent(x.shape[2 + i], size, *parts))
        if self.channels_last:
            return TensorType((x.shape[0], *space, w.shape[0]), dtype)
        return TensorType((x.shape[0], w.shape[0], *space), dtype)

    def reference(self, x: Array, w: Array) -> Array:
        if self.channels_last:
            plain = dataclasses.replace(self, channels_last=False)
            weight = w.transpose(w.ndim - 1, w.ndim - 2, *range(w.ndim - 2))
            return np.asarray(np.moveaxis(plain.reference(np.moveaxis(x, -1, 1), weight), 1, -1))
        dtype = x.dtype if self.sum_dtype is None else self.sum_dtype.numpy
        wide = np.float64 if dtypes.of(x.dtype).is_float else dtype
        padded = _padded(x.astype(wide), self.low, self.high, 0)  # type: ignore[arg-type]  # dims are bound here
        grouped: Any = w.astype(wide).reshape(self.groups, w.shape[0] // self.groups, *w.shape[1:])
        shape = infer_shape(self, x, w)
        total = np.zeros((x.shape[0], self.groups, w.shape[0] // self.groups, *shape[2:]), wide)
        if total.size:
            with np.errstate(all="ignore"):
                for tap, window in _taps(padded, w.shape[2:], self.strides, self.dilations):
                    parts = window.reshape(x.shape[0], self.groups, w.shape[1], -1)
                    total += _product(grouped[(..., *tap)], parts).reshape(total.shape)
        return total.reshape(shape).astype(dtype)

    def padded(self, padding: Padding, x: Padded, w: Padded) -> Padded:
        for axis in range(len(w.axes)):
            padding.closed(w, axis, "weights with")
        rank = len(x.axes)
        channels = rank - 1 if self.channels_last else 1
        padding.closed(x, channels, "channels along")
        space = range(1, rank - 1) if self.channels_last else range(2, rank)
        result = padding.build(self, _windowed(padding, x, space, self.low, 0).value, w.value)
        return Padded(result, tuple((d,) if axis else x.axes[0] for axis, d in enumerate(result.shape)))

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        w = inputs[1]
        taps = dims.product(w.shape[:-1] if self.channels_last else w.shape[1:])
        nbytes = sum((dims.mul(t.size, t.dtype.itemsize) for t in (*inputs, *outputs)), start=0)
        return Cost(flops=dims.mul(2, dims.mul(outputs[0].size, taps)), bytes=nbytes)


def _product(weights: Array, columns: Array) -> Array:
    """[groups, o, c] by [n, groups, c, positions]: NumPy's BLAS is the faster way where it has floats and sums."""
    if weights.dtype.kind == "f" and weights.shape[2] > 1:
        return np.asarray(weights @ columns)
    return np.asarray(np.einsum("goc,ngcp->ngop", weights, columns))


def infer_shape(conv_op: Any, *arrays: Array) -> tuple[int, ...]:
    """The result's shape for arrays (all dims are known then)."""
    result_type = conv_op.infer(*(TensorType.of(a.shape, dtypes.of(a.dtype)) for a in arrays))
    return tuple(result_type.shape)


@op
class Dilate(Primitive):
    """steps[i] - 1 zeros between the elements along axis i."""

    steps: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        _check("steps", self.steps, x.rank, 1)
        return x.with_shape(spread_extent(d, s) for d, s in zip(x.shape, self.steps))

    def reference(self, x: Array) -> Array:
        out = np.zeros([max(0, (d - 1) * s + 1) for d, s in zip(x.shape, self.steps)], x.dtype)
        if x.size:
            out[tuple(slice(None, None, s) for s in self.steps)] = x
        return out

    def padded(self, padding: Padding, x: Padded) -> Padded:
        spread = [axis for axis, step in enumerate(self.steps) if step > 1]
        for axis in spread:
            x = padding.in_front(x, axis)
        result = padding.build(self, x.value)
        return Padded(result, tuple((result.shape[i],) if i in spread else of for i, of in enumerate(x.axes)))


@op
class ConvTranspose(Composite):
    """The gradient of a convolution with respect to its input: every element spreads over a window.

    x       float [N, C, spatial...]
    w       like x, [C, O / groups, kernel...]
    result  [N, O, spatial...], along an axis (d - 1)·stride + (k - 1)·dilation + 1 - low - high + extra elements
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Dim, ...]
    high: tuple[Dim, ...]
    extra: tuple[Dim, ...] = ()
    groups: int = 1
    tolerance = Tolerance(512, scale=1)

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        expect.floating(x)
        expect.same_dtype(x, w)
        expect.rank(x, 3)
        expect.rank(w, x.rank, "w", at_most=x.rank)
        rank = x.rank - 2
        _check("strides", self.strides, rank, 1)
        _check("dilations", self.dilations, rank, 1)
        for name, values in (("low", self.low), ("high", self.high), ("extra", self._extra(rank))):
            _check(name, values, rank)
        expect.same_dim(x.shape[1], w.shape[0], f"channels differ: x is {x}, w is {w}")
        if self.groups < 1 or dims.exact_div(x.shape[1], self.groups) is None:
            raise ShapeError(f"expected groups that divide the {x.shape[1]} channels, got {self.groups}")
        space = []
        for i, size in enumerate(w.shape[2:]):
            if not isinstance(size, int) or size < 1:
                raise ShapeError(f"expected a kernel of known size, got {w}")
            if x.shape[2 + i] == 0:
                raise ShapeError(f"expected elements along the axes of the kernel, got {x}")
            last = dims.mul(dims.add(x.shape[2 + i], -1), self.strides[i])
            reach = dims.add(last, (size - 1) * self.dilations[i] + 1)
            cut = dims.add(dims.add(self.low[i], self.high[i]), dims.mul(self._extra(rank)[i], -1))
            space.append(dims.add(reach, dims.mul(cut, -1)))
        return x.with_shape((x.shape[0], dims.mul(w.shape[1], self.groups), *space))

    def _window_pads(self, axis: int, size: int, rank: int) -> tuple[Dim, Dim]:
        """Pads of the convolution that this is, on the input with zeros between its elements."""
        reach = (size - 1) * self.dilations[axis]
        high = dims.add(dims.add(reach, dims.mul(self.high[axis], -1)), self._extra(rank)[axis])
        return dims.add(reach, dims.mul(self.low[axis], -1)), high

    def _extra(self, rank: int) -> tuple[Dim, ...]:
        return self.extra or (0,) * rank

    def reference(self, x: Array, w: Array) -> Array:
        shape = infer_shape(self, x, w)
        rank = x.ndim - 2
        parts_of_axes = zip(x.shape[2:], self.strides, w.shape[2:], self.dilations)
        full = [(d - 1) * s + (k - 1) * g + 1 for d, s, k, g in parts_of_axes]
        size = [max(f, o + a) for f, o, a in zip(full, shape[2:], self.low)]
        total: Any = np.zeros((x.shape[0], self.groups, w.shape[1], *size))
        parts: Any = x.astype(np.float64).reshape(x.shape[0], self.groups, x.shape[1] // self.groups, *x.shape[2:])
        weights: Any = w.astype(np.float64).reshape(self.groups, w.shape[0] // self.groups, *w.shape[1:])
        with np.errstate(all="ignore"):
            for tap in itertools.product(*map(range, w.shape[2:])):
                place = tuple(
                    slice(t * g, t * g + (d - 1) * s + 1, s)
                    for t, g, d, s in zip(tap, self.dilations, x.shape[2:], self.strides)
                )
                total[(..., *place)] += np.einsum("ngc...,gco->ngo...", parts, weights[(..., *tap)])
        cut = tuple(slice(a, a + o) for a, o in zip(self.low, shape[2:]))
        assert rank == len(cut)
        return np.asarray(total[(..., *cut)]).reshape(shape).astype(x.dtype)

    def decompose(self, x: Value, w: Value) -> Value:
        result_type = self.infer(x.type, w.type)
        y = self._side_by_side(x, w) if self._is_tiling(x, w) else self._spread(x, w)
        return y.reshape(result_type.shape)

    def _is_tiling(self, x: Value, w: Value) -> bool:
        """Whether the windows of neighbouring elements touch and do not overlap: every result has one source."""
        pads = (*self.low, *self.high, *self._extra(x.rank - 2))
        plain = self.groups == 1 and all(d == 1 for d in self.dilations)
        return plain and w.shape[2:] == self.strides and all(p == 0 for p in pads)

    def _side_by_side(self, x: Value, w: Value) -> Value:
        """One product, whose columns are the window's places; then each place goes to where it belongs."""
        rank = x.rank - 2
        columns = w.transpose(0, *range(2, 2 + rank), 1)
        product = dot_general(x, columns, lhs_contract=(1,), rhs_contract=(0,))  # [N, space..., window..., O]
        order = [0]
        for i in range(rank):
            order += [1 + i, 1 + rank + i]
        space = [dims.mul(d, s) for d, s in zip(x.shape[2:], self.strides)]
        last = product.transpose(*order, product.rank - 1).reshape(x.shape[0], *space, w.shape[1])
        return last.transpose(0, last.rank - 1, *range(1, last.rank - 1))

    def _spread(self, x: Value, w: Value) -> Value:
        rank = x.rank - 2
        spread = dilate(x, steps=(1, 1, *self.strides)) if any(s > 1 for s in self.strides) else x
        inputs, outputs = w.shape[0], w.shape[1]
        weight = w[(slice(None), slice(None), *([slice(None, None, -1)] * rank))]
        share = dims.floordiv(inputs, self.groups)
        weight = weight.reshape(self.groups, share, outputs, *w.shape[2:])
        weight = weight.transpose(0, 2, 1, *range(3, 3 + rank))
        weight = weight.reshape(dims.mul(self.groups, outputs), share, *w.shape[2:])
        sizes = [k for k in w.shape[2:] if isinstance(k, int)]  # the type rule asks for known kernels
        pads = [self._window_pads(i, size, rank) for i, size in enumerate(sizes)]
        low, high = tuple(a for a, _ in pads), tuple(b for _, b in pads)
        ones = (1,) * rank
        return conv(spread, weight, strides=ones, dilations=self.dilations, low=low, high=high, groups=self.groups)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        taps = dims.product(inputs[1].shape[1:])
        nbytes = sum((dims.mul(t.size, t.dtype.itemsize) for t in (*inputs, *outputs)), start=0)
        return Cost(flops=dims.mul(2, dims.mul(inputs[0].size, taps)), bytes=nbytes)


@op
class ReduceWindow(Primitive):
    """`combine` (add, max, min) over a window that moves along the trailing axes; outside of x is its identity.

    x  number [..., spatial...], as many spatial axes as `window` has entries
    """

    combine: str
    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Dim, ...]
    high: tuple[Dim, ...]
    tolerance = Tolerance(64, scale=1)

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, "int", "uint", "float")
        if self.combine not in ("add", "max", "min"):
            raise ShapeError(f"expected combine to be add, max or min, got {self.combine!r}")
        rank = len(self.window)
        expect.rank(x, rank)
        for name, values in (("window", self.window), ("strides", self.strides), ("dilations", self.dilations)):
            _check(name, values, rank, 1)
        _check("low", self.low, rank)
        _check("high", self.high, rank)
        lead = x.rank - rank
        parts = zip(x.shape[lead:], self.window, self.strides, self.dilations, self.low, self.high)
        return x.with_shape((*x.shape[:lead], *(window_extent(*part) for part in parts)))

    def reference(self, x: Array) -> Array:
        is_float = dtypes.of(x.dtype).is_float
        wide = x.astype(np.float64) if is_float else x
        fill = float(identity(self.combine, x.dtype)) if is_float else identity(self.combine, x.dtype)
        padded = _padded(wide, self.low, self.high, fill)  # type: ignore[arg-type]
        total = np.full(infer_shape(self, x), fill, wide.dtype)
        join = {"add": np.add, "max": np.maximum, "min": np.minimum}[self.combine]
        if total.size:
            with np.errstate(all="ignore"):
                for _, window in _taps(padded, self.window, self.strides, self.dilations):
                    total = join(total, window)
        return total.astype(x.dtype)

    def padded(self, padding: Padding, x: Padded) -> Padded:
        lead = len(x.axes) - len(self.window)
        fill = identity(self.combine, x.value.dtype)
        result = padding.build(self, _windowed(padding, x, range(lead, len(x.axes)), self.low, fill).value)
        return Padded(result, (*x.axes[:lead], *((d,) for d in result.shape[lead:])))

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        nbytes = sum((dims.mul(t.size, t.dtype.itemsize) for t in (*inputs, *outputs)), start=0)
        return Cost(flops=dims.mul(outputs[0].size, int(np.prod(self.window))), bytes=nbytes)


@op
class AveragePool(Composite):
    """Mean over a window. `count_pads` divides by the whole window everywhere, else by the elements that are there.

    x  float [..., spatial...]
    """

    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Dim, ...]
    high: tuple[Dim, ...]
    count_pads: bool = False
    beyond: tuple[Dim, ...] = ()
    """Of `high`, elements that do not count even if pads do: what rounding up added."""
    tolerance = Tolerance(64, scale=1)

    def _window(self) -> ReduceWindow:
        return ReduceWindow("add", self.window, self.strides, self.dilations, self.low, self.high)

    def infer(self, x: TensorType) -> TensorType:
        expect.floating(x)
        result_type: TensorType = self._window().infer(x)
        return result_type

    def _counted(self) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
        """Pads around the elements that count, inside of all pads."""
        if not self.count_pads:
            return self.low, self.high
        beyond = self.beyond or (0,) * len(self.window)
        return (0,) * len(self.window), beyond

    def reference(self, x: Array) -> Array:
        total = self._window().reference(x.astype(np.float64))
        lead = x.ndim - len(self.window)
        low, high = self._counted()
        inside = [d + a - c + b - e for d, a, c, b, e in zip(x.shape[lead:], self.low, low, self.high, high)]
        ones = np.ones(inside)
        counted = ReduceWindow("add", self.window, self.strides, self.dilations, low, high).reference(ones)
        with np.errstate(all="ignore"):
            return np.asarray(total / counted).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        wide = x.cast(dtypes.accumulator(x.dtype))
        shared = {"window": self.window, "strides": self.strides, "dilations": self.dilations}
        total = reduce_window(wide, combine="add", low=self.low, high=self.high, **shared)
        low, high = self._counted()
        if all(p == 0 for p in (*low, *high)):
            return div(total, float(np.prod(self.window))).cast(x.dtype)
        lead = x.rank - len(self.window)
        inside = [
            dims.add(dims.add(d, dims.add(a, dims.mul(c, -1))), dims.add(b, dims.mul(e, -1)))
            for d, a, c, b, e in zip(x.shape[lead:], self.low, low, self.high, high)
        ]
        ones = broadcast_to(x.graph.constant(1, wide.dtype), shape=tuple(inside))
        counted = reduce_window(ones, combine="add", low=low, high=high, **shared)
        # a window over pads alone divides 0 by 0, as the reference does
        return div(total, counted).cast(x.dtype)
