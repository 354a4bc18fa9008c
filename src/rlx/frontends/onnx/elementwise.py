"""Importer functions: arithmetic, comparison, logic, choice, conversion, and activations of one operand."""

from __future__ import annotations

import math
from functools import reduce

import ml_dtypes

from rlx.errors import ModelError
from rlx.frontends.onnx.model import dtype_of
from rlx.frontends.onnx.table import OnnxNode, Operand, onnx_op
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Value
from rlx.ops import build

# ONNX name → ours, where both mean the same
_SAME = {
    "Abs": "abs", "Neg": "neg", "Sign": "sign", "Ceil": "ceil", "Floor": "floor", "Round": "round", "Sqrt": "sqrt",
    "Reciprocal": "reciprocal", "Exp": "exp", "Log": "log", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin",
    "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh", "Asinh": "asinh",
    "Acosh": "acosh", "Atanh": "atanh", "Erf": "erf", "Sigmoid": "sigmoid", "Relu": "relu", "Softplus": "softplus",
    "Softsign": "softsign", "HardSwish": "hard_swish", "Mish": "mish", "Not": "bitwise_not",
    "BitwiseNot": "bitwise_not", "IsNaN": "is_nan",
}  # fmt: skip
SAME_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "eq", "Less": "lt", "LessOrEqual": "le",
    "Greater": "gt", "GreaterOrEqual": "ge", "And": "bitwise_and", "Or": "bitwise_or", "Xor": "bitwise_xor",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "PRelu": "prelu",
}  # fmt: skip
# ONNX name → ours, and the alpha of a node that names none
_WITH_ALPHA = {
    "LeakyRelu": ("leaky_relu", 0.01), "ThresholdedRelu": ("thresholded_relu", 1.0), "Elu": ("elu", 1.0),
    "Celu": ("celu", 1.0),
}  # fmt: skip


def _unary(ours: str) -> None:
    def run(node: OnnxNode, x: Value) -> Value:
        return build.op(ours)(x)

    onnx_op(*(name for name, target in _SAME.items() if target == ours))(run)


def _binary(ours: str) -> None:
    def run(node: OnnxNode, x: Value, y: Value) -> Value:
        return build.op(ours)(x, y)

    onnx_op(*(name for name, target in SAME_BINARY.items() if target == ours))(run)


def _with_alpha(name: str, ours: str, default: float) -> None:
    def run(node: OnnxNode, x: Value) -> Value:
        return build.op(ours)(x, alpha=node.real("alpha", default))

    onnx_op(name)(run)


for _target in dict.fromkeys(_SAME.values()):
    _unary(_target)
for _target in dict.fromkeys(SAME_BINARY.values()):
    _binary(_target)
for _name, (_target, _alpha) in _WITH_ALPHA.items():
    _with_alpha(_name, _target, _alpha)


@onnx_op("Identity")
def identity(node: OnnxNode, x: Operand) -> Operand:
    return x


@onnx_op("Mod")
def mod(node: OnnxNode, x: Value, y: Value) -> Value:
    """The sign follows the divisor, or with fmod the dividend."""
    return build.rem(x, y) if node.flag("fmod") else build.mod(x, y)


@onnx_op("Pow")
def power(node: OnnxNode, x: Value, y: Value) -> Value:
    """The result has the base's dtype, whatever the exponent's is."""
    if x.dtype is y.dtype:
        return build.pow(x, y)
    if x.dtype.is_float:
        return build.pow(x, y.cast(x.dtype))
    wide = y.dtype if y.dtype.is_float else dtypes.promote(x.dtype, y.dtype)
    return build.pow(x.cast(wide), y.cast(wide)).cast(x.dtype)


@onnx_op("BitShift")
def bit_shift(node: OnnxNode, x: Value, y: Value) -> Value:
    return build.shift_left(x, y) if node.text("direction") == "LEFT" else build.shift_right(x, y)


@onnx_op("Min")
def minimum(node: OnnxNode, *values: Value) -> Value:
    return reduce(build.minimum, values)


@onnx_op("Max")
def maximum(node: OnnxNode, *values: Value) -> Value:
    return reduce(build.maximum, values)


@onnx_op("Sum")
def total(node: OnnxNode, *values: Value) -> Value:
    return reduce(build.add, values)


@onnx_op("Mean")
def mean(node: OnnxNode, *values: Value) -> Value:
    return reduce(build.add, values) / float(len(values))


@onnx_op("Where")
def where(node: OnnxNode, condition: Value, x: Value, y: Value) -> Value:
    return build.select(condition, x, y)


@onnx_op("Clip", until=10)
def clip_by_attribute(node: OnnxNode, x: Value) -> Value:
    return build.clamp(x, node.real("min", -math.inf), node.real("max", math.inf))


@onnx_op("Clip", since=11)
def clip(node: OnnxNode, x: Value, low: Value | None, high: Value | None) -> Value:
    """Where low > high, high wins."""
    if low is not None:
        x = build.maximum(x, low.reshape())
    return x if high is None else build.minimum(x, high.reshape())


@onnx_op("Cast")
def cast(node: OnnxNode, x: Value) -> Value:
    return _cast(node, x, dtype_of(node.integer("to")))


def _power_of_two(node: OnnxNode, x: Value) -> Value:
    """The exponent alone, rounded as asked; saturation takes 0 to the least power and infinity to the greatest."""
    mode = node.text("round_mode", "up")
    if mode not in ("up", "down", "nearest"):
        raise ModelError(f"expected a round_mode among up, down and nearest, got {mode!r}")
    bits = build.bitcast(x, to=dtypes.i32)
    exponent = build.bitwise_and(build.shift_right(bits, 23), 255)
    rest = build.bitwise_and(bits, 0x7FFFFF)
    # below the least normal number, half of it is a power itself
    half = build.eq(exponent, 0).cast("i32") + 0x3FFFFF
    above = {"up": build.gt(rest, 0), "down": build.lt(rest, 0), "nearest": build.gt(rest, half)}[mode]
    exponent = exponent + above.cast("i32")
    if node.flag("saturate", True):
        exponent = build.select(build.is_nan(x), 255, build.minimum(exponent, 254))
    else:
        exponent = build.select(build.eq(x, 0.0), 255, exponent)
    return build.bitcast(exponent.cast("u8"), to=dtypes.f8e8m0)


@onnx_op("CastLike")
def cast_like(node: OnnxNode, x: Value, like: Operand) -> Value:
    return _cast(node, x, like.dtype)


def _cast(node: OnnxNode, x: Value, to: dtypes.DType) -> Value:
    """8-bit floats saturate unless told otherwise; integers below 8 bits take the low bits of the whole number."""
    if to is dtypes.f8e8m0 and x.dtype.is_float and to is not x.dtype:
        return _power_of_two(node, x.cast("f32"))
    if to.is_integer and to.bits < 8 and x.dtype.is_float:
        return x.cast("i32").cast(to)
    if node.flag("saturate", True) and to.is_float and to.bits == 8 and x.dtype.is_float and x.dtype.bits > 8:
        limit = float(ml_dtypes.finfo(to.numpy).max)
        wide = x if x.dtype.bits >= 32 else x.cast("f32")
        x = build.clamp(wide, -limit, limit)
    return x.cast(to)


@onnx_op("BitCast")
def bit_cast(node: OnnxNode, x: Value) -> Value:
    to = dtype_of(node.integer("to"))
    if x.dtype.kind == "bool" and to.bits == 8:
        x = x.cast("u8")
    elif x.dtype.bits != to.bits or "bool" in (x.dtype.kind, to.kind):
        raise node.unsupported(f"from {x.dtype} to {to} is not supported")
    return build.bitcast(x, to=to)


@onnx_op("IsInf")
def is_inf(node: OnnxNode, x: Value) -> Value:
    return build.is_inf(x, positive=node.flag("detect_positive", True), negative=node.flag("detect_negative", True))


@onnx_op("Selu")
def selu(node: OnnxNode, x: Value) -> Value:
    alpha, gamma = node.real("alpha", 1.67326319217681884765625), node.real("gamma", 1.05070102214813232421875)
    return build.selu(x, alpha=alpha, gamma=gamma)


@onnx_op("HardSigmoid")
def hard_sigmoid(node: OnnxNode, x: Value) -> Value:
    return build.hard_sigmoid(x, alpha=node.real("alpha", 0.2), beta=node.real("beta", 0.5))


@onnx_op("Shrink")
def shrink(node: OnnxNode, x: Value) -> Value:
    return build.shrink(x, bias=node.real("bias", 0.0), lambd=node.real("lambd", 0.5))


@onnx_op("Swish")
def swish(node: OnnxNode, x: Value) -> Value:
    """x · sigmoid(alpha · x)."""
    alpha = node.real("alpha", 1.0)
    return build.silu(x) if alpha == 1.0 else x * build.sigmoid(x * alpha)


@onnx_op("Gelu")
def gelu(node: OnnxNode, x: Value) -> Value:
    return build.gelu(x, approximate=node.text("approximate", "none") == "tanh")
