"""Elementwise primitives: arithmetic, comparison, bits, choice, conversion, transcendental functions.

`scalar` is what compiled code does to one element; `reference` is NumPy's word on it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir import expect, expr
from rlx.ir.dtype import DType
from rlx.ir.expr import INSTRUCTIONS, Expr, apply, cast, const, select
from rlx.ir.op import Elementwise, Tolerance, op
from rlx.ir.type import TensorType

Array = np.ndarray[Any, Any]
ALL = ("bool", "int", "uint", "float", "complex")
REAL = ("int", "uint", "float")
FLOAT = ("float",)
WHOLE = ("bool", "int", "uint")


class _Instruction(Elementwise):
    """An elementwise op that is one instruction of the expression language."""

    instruction: ClassVar[str]

    def scalar(self, *operands: Expr) -> Expr:
        return apply(self.instruction, *operands)

    def reference(self, *arrays: Array) -> Array:
        with np.errstate(all="ignore"):
            result = INSTRUCTIONS[self.instruction].numpy(*arrays)
        return np.asarray(result).astype(np.bool_ if self.result == "bool" else arrays[0].dtype, copy=False)


class _Unary(_Instruction):
    def scalar(self, x: Expr) -> Expr:
        return apply(self.instruction, x)


class _Binary(_Instruction):
    def scalar(self, x: Expr, y: Expr) -> Expr:
        return apply(self.instruction, x, y)


# arithmetic


@op
class Add(_Binary):
    """x + y; integers wrap."""

    kinds = (*REAL, "complex")
    instruction = "add"
    tolerance = Tolerance(1)


@op
class Sub(_Binary):
    """x - y; integers wrap."""

    kinds = (*REAL, "complex")
    instruction = "sub"
    tolerance = Tolerance(1)


@op
class Mul(_Binary):
    """x · y; integers wrap."""

    kinds = (*REAL, "complex")
    instruction = "mul"
    tolerance = Tolerance(1)


@op
class Div(_Binary):
    """x / y. Integers divide towards zero; by zero gives 0."""

    kinds = (*REAL, "complex")
    instruction = "div"
    tolerance = Tolerance(1)


@op
class Rem(_Binary):
    """Remainder of division towards zero: the sign is that of x. Integers modulo 0 give 0."""

    kinds = REAL
    instruction = "rem"


@op
class Mod(Elementwise):
    """Remainder of floor division: the sign is that of y. Integers modulo 0 give 0."""

    kinds = REAL

    def scalar(self, x: Expr, y: Expr) -> Expr:
        rest = apply("rem", x, y)
        if x.dtype.kind == "uint":
            return rest
        zero = const(0, x.dtype)
        unlike = apply("xor", apply("lt", rest, zero), apply("lt", y, zero))
        shifted = select(apply("and", unlike, apply("ne", rest, zero)), rest + y, rest)
        return shifted if not x.dtype.is_float else select(apply("eq", rest, zero), apply("copysign", zero, y), shifted)

    def reference(self, x: Array, y: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.mod(x, y)).astype(x.dtype, copy=False)


@op
class Neg(_Unary):
    """-x; integers wrap."""

    kinds = ("int", "float", "complex")
    instruction = "neg"


@op
class Abs(_Unary):
    """|x|."""

    kinds = REAL
    instruction = "abs"


@op
class Sign(Elementwise):
    """-1, 0 or 1; NaN stays."""

    kinds = REAL

    def scalar(self, x: Expr) -> Expr:
        zero, one = const(0, x.dtype), const(1, x.dtype)
        positive = select(apply("lt", zero, x), one, x if x.dtype.is_float else zero)
        if x.dtype.kind == "uint":
            return positive
        return select(apply("lt", x, zero), const(-1, x.dtype), positive)

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.sign(x)).astype(x.dtype, copy=False)


@op
class Minimum(_Binary):
    """The lesser; a NaN operand gives NaN."""

    kinds = ("bool", *REAL)
    instruction = "min"


@op
class Maximum(_Binary):
    """The greater; a NaN operand gives NaN."""

    kinds = ("bool", *REAL)
    instruction = "max"


@op
class Sqrt(_Unary):
    """√x; NaN below zero."""

    kinds = FLOAT
    instruction = "sqrt"
    tolerance = Tolerance(1)


@op
class Floor(_Unary):
    """Greatest integer that is not above x."""

    kinds = FLOAT
    instruction = "floor"


@op
class Ceil(_Unary):
    """Least integer that is not below x."""

    kinds = FLOAT
    instruction = "ceil"


@op
class Trunc(_Unary):
    """x without its fraction."""

    kinds = FLOAT
    instruction = "trunc"


@op
class Round(_Unary):
    """Nearest integer, ties to even."""

    kinds = FLOAT
    instruction = "round"


@op
class Copysign(_Binary):
    """|x| with the sign of y (of -0.0 too)."""

    kinds = FLOAT
    instruction = "copysign"


# transcendental functions


class _Transcendental(_Unary):
    kinds = FLOAT
    tolerance = Tolerance(8)


@op
class Exp(_Transcendental):
    """eˣ."""

    instruction = "exp"


@op
class Exp2(_Transcendental):
    """2ˣ."""

    instruction = "exp2"


@op
class Expm1(_Transcendental):
    """eˣ - 1 without cancellation near 0."""

    instruction = "expm1"


@op
class Log(_Transcendental):
    """Natural logarithm."""

    instruction = "log"


@op
class Log2(_Transcendental):
    """Logarithm to base 2."""

    instruction = "log2"


@op
class Log1p(_Transcendental):
    """log(1 + x) without cancellation near 0."""

    instruction = "log1p"


@op
class Sin(_Transcendental):
    """Sine of radians."""

    instruction = "sin"


@op
class Cos(_Transcendental):
    """Cosine of radians."""

    instruction = "cos"


@op
class Tan(_Transcendental):
    """Tangent of radians."""

    instruction = "tan"


@op
class Asin(_Transcendental):
    """Inverse sine, radians."""

    instruction = "asin"


@op
class Acos(_Transcendental):
    """Inverse cosine, radians."""

    instruction = "acos"


@op
class Atan(_Transcendental):
    """Inverse tangent, radians."""

    instruction = "atan"


@op
class Sinh(_Transcendental):
    """Hyperbolic sine."""

    instruction = "sinh"


@op
class Cosh(_Transcendental):
    """Hyperbolic cosine."""

    instruction = "cosh"


@op
class Tanh(_Transcendental):
    """Hyperbolic tangent."""

    instruction = "tanh"


@op
class Asinh(_Transcendental):
    """Inverse hyperbolic sine."""

    instruction = "asinh"


@op
class Acosh(_Transcendental):
    """Inverse hyperbolic cosine."""

    instruction = "acosh"


@op
class Atanh(_Transcendental):
    """Inverse hyperbolic tangent."""

    instruction = "atanh"


@op
class Erf(_Transcendental):
    """2/√π · ∫₀ˣ exp(-t²) dt."""

    instruction = "erf"


@op
class Pow(Elementwise):
    """xʸ. Integer powers wrap; a negative integer exponent gives 0, but for bases 1 and -1."""

    kinds = REAL
    tolerance = Tolerance(16)

    def scalar(self, x: Expr, y: Expr) -> Expr:
        return apply("pow", x, y) if x.dtype.is_float else _integer_power(x, y)

    def reference(self, x: Array, y: Array) -> Array:
        with np.errstate(all="ignore"):
            if x.dtype.kind not in "iu":
                return np.asarray(np.power(x, y)).astype(x.dtype, copy=False)
            negative = y < 0 if x.dtype.kind == "i" else np.zeros_like(y, np.bool_)
            whole = np.power(x, np.where(negative, 0, y).astype(y.dtype))
            odd = np.where(y % 2 != 0, x, np.ones_like(x))
            unit = np.where(x == 1, 1, np.where(np.abs(x) == 1, odd, 0))
            return np.where(negative, unit, whole).astype(x.dtype)


def _integer_power(x: Expr, y: Expr) -> Expr:
    """Square and multiply over the exponent's bits; x^64 of anything but 0, ±1 and powers of two needs no more than 6
    bits, but wrapping needs them all."""
    one, zero = const(1, x.dtype), const(0, x.dtype)
    negative = apply("lt", y, zero) if x.dtype.kind == "int" else const(False, dtypes.bool_)
    left = select(negative, zero, y)
    result, square = one, x
    for _ in range(x.dtype.bits):
        odd = apply("ne", apply("and", left, one), zero)
        result = select(odd, result * square, result)
        square = square * square
        left = apply("shr", left, one)
    if x.dtype.kind == "uint":
        return result
    is_odd = apply("ne", apply("and", y, one), zero)
    minus = select(apply("eq", x, const(-1, x.dtype)), select(is_odd, x, one), zero)
    return select(negative, select(apply("eq", x, one), one, minus), result)


@op
class Atan2(_Binary):
    """Angle of the point (y, x) — the first operand is y — in (-π, π]."""

    kinds = FLOAT
    instruction = "atan2"
    tolerance = Tolerance(8)


# comparison


class _Compare(_Binary):
    kinds: ClassVar[tuple[str, ...]] = ("bool", *REAL)
    result = "bool"


@op
class Eq(_Compare):
    """x = y; NaN equals nothing."""

    kinds = ALL
    instruction = "eq"


@op
class Ne(_Compare):
    """x ≠ y; NaN differs from all."""

    kinds = ALL
    instruction = "ne"


@op
class Lt(_Compare):
    """x < y."""

    instruction = "lt"


@op
class Le(_Compare):
    """x ≤ y."""

    instruction = "le"


@op
class Gt(_Compare):
    """x > y."""

    instruction = "gt"

    def scalar(self, x: Expr, y: Expr) -> Expr:
        return apply("lt", y, x)

    def reference(self, x: Array, y: Array) -> Array:
        return np.asarray(np.greater(x, y))


@op
class Ge(_Compare):
    """x ≥ y."""

    instruction = "ge"

    def scalar(self, x: Expr, y: Expr) -> Expr:
        return apply("le", y, x)

    def reference(self, x: Array, y: Array) -> Array:
        return np.asarray(np.greater_equal(x, y))


@op
class IsNan(Elementwise):
    """Whether x is NaN."""

    kinds = FLOAT
    result = "bool"

    def scalar(self, x: Expr) -> Expr:
        return apply("ne", x, x)

    def reference(self, x: Array) -> Array:
        return np.asarray(np.isnan(x))


@op
class IsInf(Elementwise):
    """Whether x is an infinity of a sign asked for."""

    positive: bool = True
    negative: bool = True
    kinds = FLOAT
    result = "bool"

    def scalar(self, x: Expr) -> Expr:
        found = const(False, dtypes.bool_)
        if self.positive:
            found = apply("or", found, apply("eq", x, const(np.inf, x.dtype)))
        if self.negative:
            found = apply("or", found, apply("eq", x, const(-np.inf, x.dtype)))
        return found

    def reference(self, x: Array) -> Array:
        return np.asarray(np.isinf(x) & ((x > 0) & self.positive | (x < 0) & self.negative))


# bits and logic


class _Bits(_Binary):
    kinds = WHOLE

    def reference(self, x: Array, y: Array) -> Array:
        return np.asarray(INSTRUCTIONS[self.instruction].numpy(x, y)).astype(x.dtype, copy=False)


@op
class BitwiseAnd(_Bits):
    """x & y; logical and of bools."""

    instruction = "and"


@op
class BitwiseOr(_Bits):
    """x | y; logical or of bools."""

    instruction = "or"


@op
class BitwiseXor(_Bits):
    """x ^ y; exclusive or of bools."""

    instruction = "xor"


@op
class BitwiseNot(_Unary):
    """~x; logical not of a bool."""

    kinds = WHOLE
    instruction = "not"

    def reference(self, x: Array) -> Array:
        return np.asarray(np.invert(x))


@op
class ShiftLeft(_Binary):
    """x · 2ʸ, wrapping; 0 for shifts by the width or more."""

    kinds = ("int", "uint")
    instruction = "shl"


@op
class ShiftRight(_Binary):
    """⌊x / 2ʸ⌋."""

    kinds = ("int", "uint")
    instruction = "shr"


# choice and conversion


@op
class Select(Elementwise):
    """x where the condition holds, else y."""

    kinds = ALL

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        expect.kind(condition, "bool", name="condition")
        expect.same_dtype(x, y)
        return TensorType(expect.broadcast(condition.shape, x.shape, y.shape), x.dtype)

    def scalar(self, condition: Expr, x: Expr, y: Expr) -> Expr:
        return select(condition, x, y)

    def reference(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)


@op
class Clamp(Elementwise):
    """min(max(x, low), high): where low > high, high wins; NaN stays."""

    kinds = REAL

    def scalar(self, x: Expr, low: Expr, high: Expr) -> Expr:
        return apply("min", apply("max", x, low), high)

    def reference(self, x: Array, low: Array, high: Array) -> Array:
        return np.asarray(np.minimum(np.maximum(x, low), high)).astype(x.dtype, copy=False)


@op
class Cast(Elementwise):
    """x in another dtype. Floats to integers truncate, saturate, and take NaN to 0; integers wrap; narrow floats round
    to even and overflow to infinity where they have one."""

    to: DType
    kinds = ALL

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(x.shape, self.to)

    def scalar(self, x: Expr) -> Expr:
        return cast(x, self.to)

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(INSTRUCTIONS["cast"].numpy(x, self.to))


@op
class Bitcast(Elementwise):
    """The bits of x read as another dtype of the same width."""

    to: DType
    kinds = REAL

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype.bits != self.to.bits:
            from rlx.errors import DTypeError

            raise DTypeError(f"expected a dtype of {x.dtype.bits} bits, got {self.to}")
        return TensorType(x.shape, self.to)

    def scalar(self, x: Expr) -> Expr:
        return expr.bitcast(x, self.to)

    def reference(self, x: Array) -> Array:
        return np.ascontiguousarray(x).view(self.to.numpy).reshape(x.shape)
