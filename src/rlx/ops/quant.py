"""Quantisation: numbers as small integers (or 8- and 4-bit floats) with a scale and a zero point.

x ≈ scale · (q - zero). Scale and zero point have one of three shapes: one number (rank 0, or [1]) for all of x, a
vector along `axis`, or, with `block`, the shape of x with every `block` elements along `axis` sharing one.
Everything is elementwise in the end, so that it joins the kernels around it.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from rlx.errors import DTypeError, ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType, accumulator, promote
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Tolerance, op
from rlx.ir.type import TensorType
from rlx.ops import build

Array = np.ndarray[Any, Any]


def limits(dtype: DType) -> tuple[float, float]:
    """Least and greatest finite number of a dtype."""
    if dtype.kind == "uint":
        return 0, (1 << dtype.bits) - 1
    if dtype.kind == "int":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    info = ml_dtypes.finfo(dtype.numpy)
    return float(info.min), float(info.max)


def check_parameters(x: TensorType, parameter: TensorType, axis: int, block: int, name: str) -> None:
    """Whether a scale or zero point has one of the shapes that go with x. Raises ShapeError."""
    if block < 0:
        raise ShapeError(f"expected a block of at least 0 elements, got {block}")
    if block:
        at = expect.axis(axis, x.rank)
        expect.rank(parameter, x.rank, name, at_most=x.rank)
        for i, (have, expected) in enumerate(zip(parameter.shape, x.shape)):
            expected_blocks = dims.ceildiv(expected, block) if i == at else expected
            expect.same_dim(
                have, expected_blocks, f"expected {name} for blocks of {block} along axis {at} of {x}, got {parameter}"
            )
        return
    expect.rank(parameter, 0, name, at_most=1)
    if parameter.rank and parameter.shape != (1,):
        at = expect.axis(axis, x.rank)
        expect.same_dim(parameter.shape[0], x.shape[at], f"expected {name} along axis {at} of {x}, got {parameter}")


def spread(parameter: Value, shape: Shape, axis: int, block: int) -> Value:
    """A scale or zero point so that it broadcasts to `shape`."""
    if block:
        at = axis % len(shape)
        before, count, behind = parameter.shape[:at], parameter.shape[at], parameter.shape[at + 1 :]
        if parameter.shape == shape:
            return parameter
        rows = parameter.reshape(*before, count, 1, *behind)
        repeated = build.broadcast_to(rows, shape=(*before, count, block, *behind))
        whole = repeated.reshape(*before, dims.mul(count, block), *behind)
        if whole.shape == shape:
            return whole
        return build.slice(whole, starts=(0,) * len(shape), stops=shape, steps=(1,) * len(shape))
    if parameter.rank == 0 or parameter.shape == (1,):
        return parameter.reshape()
    return parameter.reshape(parameter.shape[0], *([1] * (len(shape) - 1 - axis % len(shape))))


def _spread_array(parameter: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    if block:
        at = axis % len(shape)
        repeated = np.repeat(parameter, block, axis=at)
        return repeated[tuple(slice(0, d) for d in shape)]
    if parameter.size == 1 and parameter.ndim < 2:
        return parameter.reshape(())
    return parameter.reshape(-1, *([1] * (len(shape) - 1 - axis % len(shape))))


@op
class Quantize(Composite):
    """round(x / scale) + zero, ties to even, as the nearest number that `dtype` has; NaN gives 0.

    x      float [...]
    scale  float, one number, a vector along `axis`, or by blocks; the division is in the wider dtype of the two
    zero   of `dtype`, shaped like scale; 0 if absent, ignored for 8-bit floats
    dtype  integers of at most 16 bits, floats of at most 8; floats saturate if `saturate`, else overflow as a cast does
    """

    dtype: DType
    axis: int = 1
    block: int = 0
    saturate: bool = True

    def infer(self, x: TensorType, scale: TensorType, zero: TensorType | None = None) -> TensorType:
        expect.floating(x)
        expect.floating(scale, "scale")
        widest = {"int": 16, "uint": 16, "float": 8}.get(self.dtype.kind, 0)
        if self.dtype.bits > widest:
            raise DTypeError(f"expected integers of at most 16 bits or floats of at most 8, got {self.dtype}")
        check_parameters(x, scale, self.axis, self.block, "scale")
        if zero is not None:
            check_parameters(x, zero, self.axis, self.block, "zero")
            if zero.dtype is not self.dtype:
                raise DTypeError(f"expected zero of {self.dtype}, got {zero.dtype}")
        return TensorType(x.shape, self.dtype)

    def reference(self, x: Array, scale: Array, zero: Array | None = None) -> Array:
        wide = promote(dtypes.of(x.dtype), dtypes.of(scale.dtype))
        step = _spread_array(scale, x.shape, self.axis, self.block).astype(wide.numpy)
        least, most = limits(self.dtype)
        with np.errstate(all="ignore"):
            ratio = np.asarray(x.astype(wide.numpy) / step)
            if self.dtype.is_float:
                ratio = ratio.astype(np.float32) if wide.bits < 32 else ratio
                return (np.clip(ratio, least, most) if self.saturate else ratio).astype(self.dtype.numpy)
            rounded = np.nan_to_num(np.rint(ratio.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
            if zero is not None:
                rounded = rounded + _spread_array(zero, x.shape, self.axis, self.block).astype(np.float64)
            rounded = np.where(np.isnan(ratio.astype(np.float64)), 0, np.clip(rounded, least, most))
        return rounded.astype(np.int64).astype(self.dtype.numpy)

    def decompose(self, x: Value, scale: Value, zero: Value | None = None) -> Value:
        wide = promote(x.dtype, scale.dtype)
        ratio = x.cast(wide) / spread(scale.cast(wide), x.shape, self.axis, self.block)
        total = ratio.cast(accumulator(wide))
        if self.dtype.is_float:
            least, most = limits(self.dtype)
            return (build.clamp(total, least, most) if self.saturate else total).cast(self.dtype)
        whole = build.round(total)
        if zero is not None and not is_zero(zero):
            whole = whole + spread(zero.cast(total.dtype), x.shape, self.axis, self.block)
        return whole.cast(self.dtype)  # which saturates


@op
class Dequantize(Composite):
    """(x - zero) · scale.

    x      int, uint, or float of at most 8 bits [...]
    scale  float, one number, a vector along `axis`, or by blocks
    zero   like x in dtype and like scale in shape; 0 if absent, ignored for floats
    dtype  float dtype of the result; narrow floats are rounded once
    """

    dtype: DType
    axis: int = 1
    block: int = 0
    tolerance = Tolerance(1)

    def infer(self, x: TensorType, scale: TensorType, zero: TensorType | None = None) -> TensorType:
        expect.kind(x, "int", "uint", "float")
        expect.floating(scale, "scale")
        if not self.dtype.is_float:
            raise DTypeError(f"expected a float dtype of the result, got {self.dtype}")
        check_parameters(x, scale, self.axis, self.block, "scale")
        if zero is not None:
            check_parameters(x, zero, self.axis, self.block, "zero")
            expect.same_dtype(x, zero)
        return TensorType(x.shape, self.dtype)

    def reference(self, x: Array, scale: Array, zero: Array | None = None) -> Array:
        wide = accumulator(dtypes.of(scale.dtype)).numpy
        step = _spread_array(scale, x.shape, self.axis, self.block).astype(wide)
        if dtypes.of(x.dtype).is_float:
            return np.asarray(x.astype(wide) * step).astype(self.dtype.numpy)
        whole = np.int64 if x.dtype.itemsize == 8 else np.int32
        centred = x.astype(whole)
        if zero is not None:
            centred = centred - _spread_array(zero, x.shape, self.axis, self.block).astype(whole)
        return np.asarray(centred.astype(wide) * step).astype(self.dtype.numpy)

    def decompose(self, x: Value, scale: Value, zero: Value | None = None) -> Value:
        wide = accumulator(scale.dtype)
        centred = x
        if x.dtype.is_integer and zero is not None and not is_zero(zero):
            whole = dtypes.i64 if x.dtype.bits == 64 else dtypes.i32
            centred = x.cast(whole) - spread(zero.cast(whole), x.shape, self.axis, self.block)
        return (centred.cast(wide) * spread(scale.cast(wide), x.shape, self.axis, self.block)).cast(self.dtype)


@op
class DynamicQuantize(Composite):
    """x as u8 with the scale and zero point that its own least and greatest number give.

    x        f32 [...]
    results  u8 [...], scale f32, zero u8

    scale = (max(x, 0) - min(x, 0)) / 255, 1 if x is 0 everywhere or empty; zero = round(-min(x, 0) / scale).
    Source: DynamicQuantizeLinear of ONNX; its text leaves the scale of zeros open.
    """

    tolerance = Tolerance(1)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if x.dtype is not dtypes.f32:
            raise DTypeError(f"expected x of f32, got {x.dtype}")
        return x.with_dtype(dtypes.u8), TensorType((), dtypes.f32), TensorType((), dtypes.u8)

    def reference(self, x: Array) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            least, most = (np.asarray(f(x, initial=0), np.float32) for f in (np.min, np.max))
            one = np.asarray(1.0, np.float32)
            scale = np.asarray(one if least == most else (most - least) / np.float32(255), np.float32)
            zero = np.nan_to_num(np.rint(np.clip(np.float32(0) - least / scale, 0, 255)), nan=0.0)
        zero_point = np.asarray(zero).astype(np.uint8)
        return Quantize(dtypes.u8).reference(x, scale, zero_point), scale, zero_point

    def decompose(self, x: Value) -> tuple[Value, ...]:
        axes = tuple(range(x.rank))
        least = build.minimum(build.reduce_min(x, axes=axes), 0.0)
        most = build.maximum(build.reduce_max(x, axes=axes), 0.0)
        scale = build.select(build.eq(least, most), 1.0, (most - least) / 255.0)
        zero = build.round(build.clamp(0.0 - least / scale, 0.0, 255.0)).cast(dtypes.u8)
        return build.quantize(x, scale, zero, dtype=dtypes.u8), scale, zero


def is_zero(zero: Value) -> bool:
    """Whether a zero point is known to be 0 everywhere."""
    return zero.constant is not None and not np.any(zero.constant.astype(np.float64))


def size_of(x: Value, extents: Shape) -> Value:
    """The product of dims as an i32 in the graph of x."""
    total: Dim = dims.product(extents)
    if isinstance(total, int):
        return x.graph.constant(np.asarray(total & 0xFFFFFFFF, np.uint32).view(np.int32))
    return build.dims_tensor(x.graph, values=(total,), dtype=dtypes.i32).reshape()
