"""Products of quantised operands, (x - x_zero) · (y - y_zero), exact in 32 bits with wraparound.

Their definitions bring every operand pair to u8 by i8 (a byte's sign bit turned, its zero point moved by 128), so that
a backend needs one product of bytes; what zero points add is corrected by sums over rows and columns:

    Σ (x - a)(y - b) = Σ x·y - a · Σ (y - b) - b · Σ x
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rlx.errors import DTypeError, ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Cost, op
from rlx.ir.type import TensorType
from rlx.ops import build
from rlx.ops.convolution import Conv
from rlx.ops.linalg import DotGeneral, matrices
from rlx.ops.quant import is_zero, size_of

Array = np.ndarray[Any, Any]
SIGN = 128
FOUR = 4
"""Neighbouring bytes whose products an instruction adds up."""
FEW_CHANNELS = 16


def _check_bytes(**operands: TensorType) -> None:
    for name, of in operands.items():
        if of.dtype not in (dtypes.u8, dtypes.i8):
            raise DTypeError(f"expected {name} of u8 or i8, got {of.dtype}")


def _check_zero(x: TensorType, zero: TensorType, shared: int, name: str) -> None:
    """A zero point broadcasts to its operand and is the same along the axis `shared`, which is summed."""
    expect.same_dtype(x, zero)
    expect.broadcastable(zero, x.shape, name)
    if zero.rank > -shared - 1 and zero.shape[shared] != 1:
        raise ShapeError(f"expected {name} with an axis of 1 where the sum runs, got {zero} for {x}")


def as_byte(x: Value, zero: Value, to: DType) -> tuple[Value, Value | None]:
    """x as the byte dtype `to`, and its zero point as i32, None where that is known to be 0."""
    if x.dtype is to:
        return x, None if is_zero(zero) else zero.cast(dtypes.i32)
    shift = SIGN if to is dtypes.u8 else -SIGN
    flipped = build.bitwise_xor(build.bitcast(x, to=to), _sign_bit(x, to))
    if zero.constant is not None:
        shifted_zero = zero.constant.astype(np.int32) + np.int32(shift)
        return flipped, x.graph.constant(shifted_zero) if np.any(shifted_zero) else None
    return flipped, zero.cast(dtypes.i32) + shift


def _sign_bit(x: Value, to: DType) -> Value:
    return x.graph.constant(np.asarray(SIGN, np.uint8).view(to.numpy))


@op
class IntegerMatmul(Composite):
    """(x - x_zero) · (y - y_zero) over the last two axes, leading axes broadcast; the result is i32 and wraps.

    x       u8 or i8 [..., m, k]
    y       u8 or i8 [..., k, n], not necessarily of x's dtype
    x_zero  like x in dtype, broadcasts to [..., m, 1]
    y_zero  like y in dtype, broadcasts to [..., 1, n]
    """

    def infer(self, x: TensorType, y: TensorType, x_zero: TensorType, y_zero: TensorType) -> TensorType:
        _check_bytes(x=x, y=y)
        expect.rank(x, 2)
        expect.rank(y, 2, "y")
        expect.same_dim(x.shape[-1], y.shape[-2], f"contracting dims differ: x is {x}, y is {y}")
        _check_zero(x, x_zero, -1, "x_zero")
        _check_zero(y, y_zero, -2, "y_zero")
        lead = expect.broadcast(x.shape[:-2], y.shape[:-2])
        return TensorType((*lead, x.shape[-2], y.shape[-1]), dtypes.i32)

    def reference(self, x: Array, y: Array, x_zero: Array, y_zero: Array) -> Array:
        left, right = x.astype(np.int32) - x_zero.astype(np.int32), y.astype(np.int32) - y_zero.astype(np.int32)
        return np.asarray(np.matmul(left, right))

    def decompose(self, x: Value, y: Value, x_zero: Value, y_zero: Value) -> Value:
        depth = x.shape[-1:]
        x, a = as_byte(x, x_zero, dtypes.u8)
        y, b = as_byte(y, y_zero, dtypes.i8)
        total = matrices(x, y, dtypes.i32)
        if a is not None:
            columns = build.reduce_sum(y.cast(dtypes.i32), axes=(y.rank - 2,), keepdims=True)
            total = total - a * (columns if b is None else columns - b * size_of(x, depth))
        if b is not None:
            total = total - b * build.reduce_sum(x.cast(dtypes.i32), axes=(x.rank - 1,), keepdims=True)
        return total

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        rank = inputs[0].rank
        plain = DotGeneral((rank - 1,), (0,), sum_dtype=dtypes.i32)
        return plain.cost(inputs, outputs)


@op
class IntegerConv(Composite):
    """Cross-correlation of x - x_zero with w - w_zero in groups of channels; outside of x is x_zero. i32, wraps.

    x       u8 or i8 [N, C, spatial...]
    w       u8 or i8 [O, C / groups, kernel...], not necessarily of x's dtype
    x_zero  like x in dtype, one number
    w_zero  like w in dtype, one number or [O]
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Dim, ...]
    high: tuple[Dim, ...]
    groups: int = 1

    @property
    def _plain(self) -> Conv:
        return Conv(self.strides, self.dilations, self.low, self.high, self.groups, sum_dtype=dtypes.i32)

    def infer(self, x: TensorType, w: TensorType, x_zero: TensorType, w_zero: TensorType) -> TensorType:
        _check_bytes(x=x, w=w)
        expect.same_dtype(x, x_zero)
        expect.same_dtype(w, w_zero)
        expect.rank(x_zero, 0, "x_zero", at_most=0)
        expect.rank(w_zero, 0, "w_zero", at_most=1)
        result_type = self._plain.infer(x, w)
        if w_zero.rank:
            expect.same_dim(w_zero.shape[0], w.shape[0], f"expected a zero point for each channel of {w}, got {w_zero}")
        return result_type

    def reference(self, x: Array, w: Array, x_zero: Array, w_zero: Array) -> Array:
        zero_column = w_zero.astype(np.int32).reshape(-1, *([1] * (w.ndim - 1)))
        return self._plain.reference(x.astype(np.int32) - x_zero.astype(np.int32), w.astype(np.int32) - zero_column)

    def decompose(self, x: Value, w: Value, x_zero: Value, w_zero: Value) -> Value:
        rank = x.rank - 2
        columns = (-1, *([1] * rank))
        x, a = as_byte(x, x_zero, dtypes.u8)
        w, b = as_byte(w, w_zero, dtypes.i8)
        more = _rest_of_fours(w) if b is None and self.groups == 1 else 0
        x = self._padded(x, a, more)
        w = build.pad(w, low=(0,) * w.rank, high=(0, more, *([0] * rank))) if more else w
        pads = (0,) * rank
        plain = dataclasses.replace(self._plain, low=pads, high=pads)
        total = _added(plain, x, w)
        if b is not None:
            b = b.reshape(columns) if b.rank else b
        if a is not None:
            weights = build.reduce_sum(w.cast(dtypes.i32), axes=tuple(range(1, w.rank))).reshape(columns)
            total = total - a * (weights if b is None else weights - b * size_of(x, w.shape[1:]))
        if b is not None:
            total = total - b * self._window_sums(x, w)
        return total

    def _padded(self, x: Value, zero: Value | None, channels: int) -> Value:
        """x with its zero point around it, and so many more channels."""
        if channels == 0 and all(p == 0 for p in (*self.low, *self.high)):
            return x
        low, high = (0, 0, *self.low), (0, channels, *self.high)
        if zero is None or zero.constant is not None:
            fill = 0.0 if zero is None or zero.constant is None else float(zero.constant)
            return build.pad(x, low=low, high=high, value=fill)
        ones = build.broadcast_to(x.graph.constant(True), shape=(1, 1, *x.shape[2:]))
        inside = build.pad(ones, low=low, high=(0, 0, *self.high))
        return build.select(inside, build.pad(x, low=low, high=high), zero.cast(x.dtype))

    def _window_sums(self, x: Value, w: Value) -> Value:
        """Σ x over each window, i32 [N, O or 1, spatial...]."""
        kernel = tuple(k for k in w.shape[2:] if isinstance(k, int))  # the type rule asks for known kernels
        wide = x.cast(dtypes.i32)
        if self.groups == 1:
            wide = build.reduce_sum(wide, axes=(1,), keepdims=True)
        elif w.shape[1] != 1:
            grouped = (x.shape[0], self.groups, w.shape[1], *x.shape[2:])
            wide = build.reduce_sum(wide.reshape(grouped), axes=(2,))
        sums = wide
        if any(k != 1 or s != 1 for k, s in zip(kernel, self.strides)):
            pads = (0,) * len(kernel)
            sums = build.reduce_window(
                wide, combine="add", window=kernel, strides=self.strides, dilations=self.dilations, low=pads, high=pads
            )
        if self.groups == 1 or w.shape[0] == self.groups:
            return sums
        share = dims.floordiv(w.shape[0], self.groups)
        rows = sums.reshape(*sums.shape[:2], 1, *sums.shape[2:])
        repeated = build.broadcast_to(rows, shape=(*sums.shape[:2], share, *sums.shape[2:]))
        return repeated.reshape(sums.shape[0], w.shape[0], *sums.shape[2:])

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return self._plain.cost(inputs, outputs)


def _rest_of_fours(w: Value) -> int:
    """Channels that few channels lack to fill the fours in which processors multiply bytes: with a rest at the end of
    each row of a window, windows of images take three times as long."""
    channels, width = w.shape[1], w.shape[-1]
    if not isinstance(channels, int) or not isinstance(width, int) or not 1 < channels < FEW_CHANNELS:
        return 0
    return -channels % FOUR if channels * width % FOUR else 0


def _added(op: Conv, x: Value, w: Value) -> Value:
    value = x.graph.add(op, x, w)
    assert isinstance(value, Value)
    return value
