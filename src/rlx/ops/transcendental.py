"""Elementwise primitives that cost a polynomial: exponentials, logarithms, angles, powers."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir.expr import Expr, apply, const, in_bytes, select
from rlx.ir.op import Elementwise, Tolerance, op
from rlx.ops.elementwise import FLOAT, REAL, Binary, Unary

Array = np.ndarray[Any, Any]


class _Transcendental(Unary):
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
            if not dtypes.of(x.dtype).is_integer:
                powers = np.asarray(np.power(x, y))
                # NumPy takes the root for one exponent of 0.5, which differs at -inf and -0
                return np.where((y == 0.5) & (np.isinf(x) | (x == 0)), np.abs(x), powers).astype(x.dtype, copy=False)
            return np.asarray(in_bytes(_whole_power)(x, y))


def _whole_power(x: Array, y: Array) -> Array:
    """Integers: a negative power is 0, but of 1 and -1."""
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
    exponent = select(negative, zero, y)
    result, square = one, x
    for _ in range(x.dtype.bits):
        odd = apply("ne", apply("and", exponent, one), zero)
        result = select(odd, result * square, result)
        square = square * square
        exponent = apply("shr", exponent, one)
    if x.dtype.kind == "uint":
        return result
    is_odd = apply("ne", apply("and", y, one), zero)
    minus = select(apply("eq", x, const(-1, x.dtype)), select(is_odd, x, one), zero)
    return select(negative, select(apply("eq", x, one), one, minus), result)


@op
class Atan2(Binary):
    """Angle of the point (y, x) — the first operand is y — in (-π, π]."""

    kinds = FLOAT
    instruction = "atan2"
    tolerance = Tolerance(8)
