"""Elementwise primitives: arithmetic, comparison, bits, choice, conversion.

`scalar` is what compiled code does to one element; `reference` is the result in NumPy.
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


class Instruction(Elementwise):
    """An elementwise op that is one instruction of the expression language."""

    instruction: ClassVar[str]

    def scalar(self, *operands: Expr) -> Expr:
        return apply(self.instruction, *operands)

    def reference(self, *arrays: Array) -> Array:
        with np.errstate(all="ignore"):
            result = INSTRUCTIONS[self.instruction].numpy(*arrays)
        return np.asarray(result).astype(np.bool_ if self.result == "bool" else arrays[0].dtype, copy=False)


class Unary(Instruction):
    def scalar(self, x: Expr) -> Expr:
        return apply(self.instruction, x)


class Binary(Instruction):
    def scalar(self, x: Expr, y: Expr) -> Expr:
        return apply(self.instruction, x, y)


# arithmetic


@op
class Add(Binary):
    """x + y; integers wrap."""

    kinds = (*REAL, "complex")
    instruction = "add"
    tolerance = Tolerance(1)


@op
class Sub(Binary):
    """x - y; integers wrap."""

    kinds = (*REAL, "complex")
    instruction = "sub"
    tolerance = Tolerance(1)


@op
class Mul(Binary):
    """x · y; integers wrap."""

    kinds = (*REAL, "complex")
    instruction = "mul"
    tolerance = Tolerance(1)


@op
class Div(Binary):
    """x / y. Integers divide towards zero; by zero gives 0."""

    kinds = (*REAL, "complex")
    instruction = "div"
    tolerance = Tolerance(1)


@op
class Rem(Binary):
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
            return np.asarray(expr.in_bytes(np.mod)(x, y)).astype(x.dtype, copy=False)


@op
class Neg(Unary):
    """-x; integers wrap."""

    kinds = ("int", "float", "complex")
    instruction = "neg"


@op
class Abs(Unary):
    """|x|."""

    kinds = REAL
    instruction = "abs"


@op
class Sign(Elementwise):
    """-1, 0 or 1; NaN and zeros of either sign stay."""

    kinds = REAL

    def scalar(self, x: Expr) -> Expr:
        zero, one = const(0, x.dtype), const(1, x.dtype)
        positive = select(apply("lt", zero, x), one, x if x.dtype.is_float else zero)
        if x.dtype.kind == "uint":
            return positive
        return select(apply("lt", x, zero), const(-1, x.dtype), positive)

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.where(x == 0, x, np.sign(x)).astype(x.dtype, copy=False)


@op
class Minimum(Binary):
    """The lesser; a NaN operand gives NaN."""

    kinds = ("bool", *REAL)
    instruction = "min"


@op
class Maximum(Binary):
    """The greater; a NaN operand gives NaN."""

    kinds = ("bool", *REAL)
    instruction = "max"


@op
class Sqrt(Unary):
    """√x; NaN below zero."""

    kinds = FLOAT
    instruction = "sqrt"
    tolerance = Tolerance(1)


class _Derived(Elementwise):
    """An elementwise op that is a short expression over its one float operand; `exact` says it in NumPy, in float64."""

    kinds = FLOAT
    tolerance = Tolerance(2)

    def exact(self, x: Array) -> Array:
        raise NotImplementedError

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(self.exact(x.astype(np.float64))).astype(x.dtype)


@op
class Rsqrt(_Derived):
    """1 / √x; inf of 0, NaN below zero."""

    def scalar(self, x: Expr) -> Expr:
        return const(1, x.dtype) / apply("sqrt", x)

    def exact(self, x: Array) -> Array:
        return 1 / np.sqrt(x)


@op
class Reciprocal(_Derived):
    """1 / x; an infinity of 0."""

    def scalar(self, x: Expr) -> Expr:
        return const(1, x.dtype) / x

    def exact(self, x: Array) -> Array:
        return 1 / x


@op
class Square(Elementwise):
    """x · x; integers wrap."""

    kinds = (*REAL, "complex")
    tolerance = Tolerance(1)

    def scalar(self, x: Expr) -> Expr:
        return x * x

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.multiply(x, x)).astype(x.dtype, copy=False)


@op
class Floor(Unary):
    """Greatest integer that is not above x."""

    kinds = FLOAT
    instruction = "floor"


@op
class Ceil(Unary):
    """Least integer that is not below x."""

    kinds = FLOAT
    instruction = "ceil"


@op
class Trunc(Unary):
    """x without its fraction."""

    kinds = FLOAT
    instruction = "trunc"


@op
class Round(Unary):
    """Nearest integer, ties to even."""

    kinds = FLOAT
    instruction = "round"


@op
class Copysign(Binary):
    """|x| with the sign of y (of -0.0 too)."""

    kinds = FLOAT
    instruction = "copysign"


# comparison


class _Compare(Binary):
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
        with np.errstate(all="ignore"):
            return np.asarray(np.greater(x, y))


@op
class Ge(_Compare):
    """x ≥ y."""

    instruction = "ge"

    def scalar(self, x: Expr, y: Expr) -> Expr:
        return apply("le", y, x)

    def reference(self, x: Array, y: Array) -> Array:
        with np.errstate(all="ignore"):
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
        matches = const(False, dtypes.bool_)
        if x.dtype.bits < 16:  # some of these dtypes have no infinity
            x = cast(x, dtypes.f32)
        if self.positive:
            matches = apply("or", matches, apply("eq", x, const(np.inf, x.dtype)))
        if self.negative:
            matches = apply("or", matches, apply("eq", x, const(-np.inf, x.dtype)))
        return matches

    def reference(self, x: Array) -> Array:
        return np.asarray(np.isinf(x) & np.where(np.signbit(x), self.negative, self.positive))


# bits and logic


class _Bits(Binary):
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
class BitwiseNot(Unary):
    """~x; logical not of a bool."""

    kinds = WHOLE
    instruction = "not"

    def reference(self, x: Array) -> Array:
        return np.asarray(expr.in_bytes(np.invert)(x))


@op
class ShiftLeft(Binary):
    """x · 2ʸ, wrapping; 0 for shifts by the width or more."""

    kinds = ("int", "uint")
    instruction = "shl"


@op
class ShiftRight(Binary):
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
