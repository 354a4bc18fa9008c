"""Importer functions: quantisation, and the standard's products of quantised operands."""

from __future__ import annotations

from rlx.frontends.onnx.model import dtype_of
from rlx.frontends.onnx.table import OnnxNode, Operand, onnx_op
from rlx.frontends.onnx.windows import Window, kernel_of_weight, window_of, with_bias
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Value, call
from rlx.ops import build

MICROSOFT = "com.microsoft"


@onnx_op("QuantizeLinear")
@onnx_op("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(node: OnnxNode, x: Value, scale: Value, zero: Operand | None) -> Value:
    """The result's dtype is the zero point's, else the attribute says it, else it is u8."""
    code = node.integer("output_dtype", 0)
    dtype = zero.dtype if zero is not None else dtype_of(code) if code else dtypes.u8
    if zero is not None and code and dtype_of(code) is not dtype:
        raise node.wrong(f"expected a zero point of {dtype_of(code)}, got {dtype}")
    precision = node.integer("precision", 0)
    if precision:
        wide = dtype_of(precision)
        x, scale = x.cast(wide), scale.cast(wide)
    x = x if x.dtype.is_float else x.cast("f32")
    zero_point = None if zero is None or dtype.is_float else one_number(zero.value)
    return build.quantize(
        x, one_number(scale), zero_point, dtype=dtype, axis=_axis(node, x, scale), block=node.integer("block_size", 0),
        saturate=node.flag("saturate", True),
    )  # fmt: skip


@onnx_op("DequantizeLinear")
@onnx_op("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(node: OnnxNode, x: Value, scale: Value, zero: Value | None) -> Value:
    code = node.integer("output_dtype", 0)
    dtype = dtype_of(code) if code else scale.dtype
    zero_point = None if zero is None else one_number(zero)
    axis, block = _axis(node, x, scale), node.integer("block_size", 0)
    return build.dequantize(x, one_number(scale), zero_point, dtype=dtype, axis=axis, block=block)


def one_number(parameter: Value) -> Value:
    """A scale or zero point; a vector of one becomes a number."""
    return parameter.reshape() if parameter.shape == (1,) else parameter


def _axis(node: OnnxNode, x: Value, scale: Value) -> int:
    """The axis of the scales; it says nothing where there is one scale for all."""
    axis: int = node.integer("axis", 1)
    return node.normal_axis(axis, x.rank) if scale.rank and scale.shape != (1,) else 0


@onnx_op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: OnnxNode, x: Value) -> list[Value]:
    results = call("dynamic_quantize", x)
    assert isinstance(results, tuple)
    return list(results)


def dequantised(x: Value, scale: Value, zero: Value | None = None) -> Value:
    """f32 of bytes that have one scale and zero point."""
    return build.dequantize(x, one_number(scale), None if zero is None else one_number(zero), dtype=dtypes.f32)


# products


def zero_of(x: Value, zero: Value | None) -> Value:
    """The zero point of an operand as one number or a vector; 0 where none is given."""
    return x.graph.constant(0, x.dtype) if zero is None else one_number(zero)


def rows_of(zero: Value) -> Value:
    """A zero point or scale that goes by rows: a vector becomes a column, more axes stay."""
    return zero.reshape(zero.shape[0], 1) if zero.rank == 1 else zero


def integer_product(a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """(a - zero) · (b - zero) in 32 bits, as matmul has it; zero points by rows of a and by columns of b."""
    left, right = rows_of(zero_of(a, a_zero)), zero_of(b, b_zero)
    if a.rank > 1 and b.rank > 1:
        return build.integer_matmul(a, b, left, right)
    shape = (*(a.shape[:-1] if a.rank > 1 else b.shape[:-2]), *(b.shape[-1:] if b.rank > 1 else ()))
    a = a[None, :] if a.rank == 1 else a
    b = b[:, None] if b.rank == 1 else b
    return build.integer_matmul(a, b, left, right).reshape(shape)


@onnx_op("MatMulInteger")
def matmul_integer(node: OnnxNode, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    return integer_product(a, b, a_zero, b_zero)


@onnx_op("ConvInteger")
def conv_integer(node: OnnxNode, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None) -> Value:
    return _convolution(node, x, w, x_zero, w_zero)


def _convolution(node: OnnxNode, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None) -> Value:
    window: Window = window_of(node, x, kernel_of_weight(node, x, w))
    return build.integer_conv(
        x, w, zero_of(x, x_zero), zero_of(w, w_zero), strides=window.strides, dilations=window.dilations,
        low=window.low, high=window.high, groups=node.integer("group", 1),
    )  # fmt: skip


def requantised(total: Value, scale: Value, zero: Value, dtype: DType) -> Value:
    """An i32 sum times a scale, rounded to even, moved by the zero point, and saturated."""
    one = total.graph.constant(1.0, dtypes.f32)
    return build.quantize(total.cast(dtypes.f32) * scale, one, zero.reshape(), dtype=dtype)


def _one(node: OnnxNode, parameter: Value, name: str) -> Value:
    if parameter.rank > 1 or (parameter.rank == 1 and parameter.shape != (1,)):
        raise node.unsupported(f"{name} of {parameter.type} is not supported: one number is")
    return parameter.reshape()


@onnx_op("QLinearMatMul")
def qlinear_matmul(
    node: OnnxNode, a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value, y_scale: Value,
    y_zero: Value,
) -> Value:  # fmt: skip
    """a's scale and zero point may go by rows, b's by columns."""
    total = integer_product(a, b, a_zero, b_zero)
    scales = [one_number(s).cast(dtypes.f32) for s in (a_scale, b_scale)]
    scale = rows_of(scales[0]) * scales[1] / _one(node, y_scale, "the result's scale").cast(dtypes.f32)
    return requantised(total, scale, _one(node, y_zero, "the result's zero point"), y_zero.dtype)


@onnx_op("QLinearConv")
def qlinear_conv(
    node: OnnxNode, x: Value, x_scale: Value, x_zero: Value, w: Value, w_scale: Value, w_zero: Value, y_scale: Value,
    y_zero: Value, bias: Value | None,
) -> Value:  # fmt: skip
    """The bias is an i32 in units of x_scale · w_scale; those of w may go by output channels."""
    total = with_bias(_convolution(node, x, w, x_zero, w_zero), bias)
    by_channel = one_number(w_scale)
    scale = _one(node, x_scale, "x's scale") * by_channel / _one(node, y_scale, "the result's scale")
    scale = scale.reshape(-1, *([1] * (x.rank - 2))) if scale.rank else scale
    return requantised(total, scale, _one(node, y_zero, "the result's zero point"), y_zero.dtype)
