"""The transcendental instructions in terms of the simple ones, so that every renderer computes the same polynomials.

`legalise` rewrites an expression; a renderer names the instructions that its target has anyway. The functions work in
float32, without branches or tables, on any vector width. What they may rely on, and what not:

- `fma` may round once or twice (x86-64-v2 has none), so every error-free step here is exact for another reason: the
  factors are short enough that their product has 24 bits (`_high` cuts a number to 12 bits).
- A float becomes an integer by adding 1.5·2^23, after which the low bits of its encoding are the integer
  (`_nearest`). A `cast` would do, but its saturation costs selects, and compilers for shaders undo (t + c) - c.
- log1p and pow carry rounding errors along (`(a - (s - b))`): a compiler that reassociates floats costs them digits.
- A clamp is one instruction only if it keeps a NaN as hardware does: `select(high < x, high, x)` is x86's `minps`.

Coefficients are in `coefficients.py`, made by `tools/fit_maths.py`; measured errors are in `docs/design/maths.md`.
Accuracy, domain and special cases are C's. Exceptions: sin, cos and tan lose accuracy beyond |x| = 1e5 where there is
no fused multiply-add (as if x were off by about an ulp), and count |x| ≥ 2^22 as the angle 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import numpy as np

from rlx.codegen.scalar import coefficients as table
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import f32, i32
from rlx.ir.expr import INSTRUCTIONS, Expr, apply, bitcast, cast, const, fma, polynomial, rewrite, select

# pi/2 and ln 2 in parts; all but the last have so few bits that a multiple as large as occurs is exact.
HALF_PI_PARTS = (
    1.5703125,
    0.000457763671875,
    2.5987625122070312e-05,
    7.543712854385376e-08,
    6.002665031701326e-11,
    7.443547731314504e-13,
)
LN2_HIGH, LN2_LOW = 0.693359375, -2.1219444e-4
LOG2E = 1 / math.log(2)
HALF_PI, HALF_PI_LOW = float(np.float32(math.pi / 2)), math.pi / 2 - float(np.float32(math.pi / 2))

ROUNDER = 1.5 * 2**23
ROUNDER_BITS = 0x4B400000
BIAS = 127
SIGN = -(1 << 31)
ROOT_HALF_BITS = 0x3F3504F3
LEAST_NORMAL = 2.0**-126


def legalise(root: Expr, native: Collection[str] = ()) -> Expr:
    """`root` without the transcendental instructions that are not in `native`.

    Floats narrower than 32 bits go through f32. f64 is left alone: it is what libm is for.
    """

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        instruction = INSTRUCTIONS.get(node.kind)
        if instruction is None or not instruction.transcendental or node.dtype is dtypes.f64:
            return None
        if node.dtype is f32:
            return None if node.kind in native else FUNCTIONS[node.kind](*args)
        wide = [cast(a, f32) for a in args]
        return cast(apply(node.kind, *wide) if node.kind in native else FUNCTIONS[node.kind](*wide), node.dtype)

    return rewrite(root, rule)


# --- words -------------------------------------------------------------------------------------------------------


def _f(value: float) -> Expr:
    return const(value, f32)


def _less(a: Expr | float, b: Expr | float) -> Expr:
    return apply("lt", a, b)


def _equal(a: Expr, b: Expr | float) -> Expr:
    return apply("eq", a, b)


def _is_nan(a: Expr) -> Expr:
    return apply("ne", a, a)


def _abs(a: Expr) -> Expr:
    return apply("abs", a)


def _copysign(size: Expr, sign: Expr) -> Expr:
    return apply("copysign", size, sign)


def _at_most(x: Expr, high: float) -> Expr:
    return select(_less(high, x), high, x)


def _at_least(x: Expr, low: float) -> Expr:
    return select(_less(x, low), low, x)


def _bits(a: Expr) -> Expr:
    return bitcast(a, i32)


def _float(a: Expr) -> Expr:
    return bitcast(a, f32)


def _high(a: Expr) -> Expr:
    """`a` cut to 12 significant bits, so that the product of two such numbers is exact."""
    return _float(apply("and", _bits(a), -0x1000))


def _nearest(x: Expr, scale: float, offset: int = 0) -> tuple[Expr, Expr]:
    """n = x · scale rounded to an integer, |n| < 2^22: as a float, and as bits that are n + offset in their low 22."""
    bits = _bits(fma(x, scale, ROUNDER + offset))
    return cast(bits - (ROUNDER_BITS + offset), f32), bits


def _odd(x: Expr, square: Expr, coefficients: tuple[float, ...]) -> Expr:
    """x + x³·Q(x²)."""
    return fma(x * square, polynomial(square, coefficients), x)


# --- exponentials ------------------------------------------------------------------------------------------------


def _scale(value: Expr, biased: Expr) -> Expr:
    """value · 4^m for the bits that hold m + BIAS: two factors 2^m, so the result over- and underflows gradually."""
    factor = _float(apply("shl", biased, 23))
    return value * factor * factor


def _exp_scaled(x: Expr, low: float, high: float, half: bool = False) -> Expr:
    """e^x, x clamped to [low, high]; or half of it, which overflows later.

    x = m · 2 ln 2 + r. The even multiple makes |r| twice as large as need be, one more term, and saves the integer
    arithmetic that splits the exponent in two.
    """
    x = _at_most(_at_least(x, low), high)
    m, biased = _nearest(x, LOG2E / 2, BIAS)
    r = fma(m, -2 * LN2_LOW, fma(m, -2 * LN2_HIGH, x))
    value = polynomial(r, (*table.EXP, 1.0, 1.0))
    return _scale(value * 0.5 if half else value, biased)


def _exp(x: Expr) -> Expr:
    return _exp_scaled(x, -104.0, 89.0)


def _exp2_of_sum(whole: Expr, part: Expr | None) -> Expr:
    """2^(whole + part) for |whole| ≤ 252, |part| ≤ 0.07."""
    m, biased = _nearest(whole, 0.5, BIAS)
    f = fma(m, -2.0, whole)
    if part is not None:
        f = f + part
    return _scale(fma(f, polynomial(f, table.EXP2), 1.0), biased)


def _exp2(x: Expr) -> Expr:
    return _exp2_of_sum(_at_most(_at_least(x, -151.0), 129.0), None)


def _expm1(x: Expr) -> Expr:
    """2^n · expm1(r) + (2^n - 1), halved throughout, because 2^128 is no float."""
    clamped = _at_most(_at_least(x, -18.0), 89.0)
    n, biased = _nearest(clamped, LOG2E, BIAS - 1)
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, clamped))
    half = _float(apply("shl", biased, 23))
    value = fma(r * r, polynomial(r, table.EXPM1), r)
    return _copysign(fma(half, value, half - 0.5) * 2.0, x)


def _sinh(x: Expr) -> Expr:
    size = _abs(x)
    near = _odd(size, x * x, table.SINH)
    half = _exp_scaled(size, 0.0, 90.0, half=True)
    return _copysign(select(_less(size, 1.0), near, half - 0.25 / half), x)


def _cosh(x: Expr) -> Expr:
    half = _exp_scaled(_abs(x), 0.0, 90.0, half=True)
    return half + 0.25 / half


def _tanh(x: Expr) -> Expr:
    """1 - 2 / (e^2x + 1), which no rounding takes beyond 1; a polynomial near zero.

    One product is enough to reduce the argument: where the multiple of ln 2 is large, the quotient is small.
    """
    size = _at_most(_abs(x), 9.02)
    n, biased = _nearest(size, 2 * LOG2E, BIAS)
    r = fma(n, -0.5 / LOG2E, size)
    power = polynomial(r, (*table.EXP_TWICE, 2.0, 1.0))
    far = 1.0 - 2.0 / fma(power, _float(apply("shl", biased, 23)), 1.0)
    return _copysign(select(_less(size, 0.6), _odd(size, size * size, table.TANH), far), x)


def _erf(x: Expr) -> Expr:
    """1 - q(x)^8, which no rounding takes beyond 1 and needs no e^-x²; a polynomial near zero."""
    size = _at_most(_abs(x), 3.93)
    near = fma(size, polynomial(size * size, table.ERF), size)
    root = polynomial(size, table.ERFC_ROOT)
    second = root * root
    fourth = second * second
    return _copysign(select(_less(size, 1.0), near, 1.0 - fourth * fourth), x)


# --- logarithms --------------------------------------------------------------------------------------------------


def _split_normal(x: Expr) -> tuple[Expr, Expr]:
    """k (an i32) and m with x = 2^k · m and √½ ≤ m < √2, for a positive normal x."""
    k = apply("shr", _bits(x) - ROOT_HALF_BITS, 23)
    return k, _float(_bits(x) - apply("shl", k, 23))


def _split(x: Expr) -> tuple[Expr, Expr]:
    """k (a float) and m with x = 2^k · m and √½ ≤ m < √2, for any positive finite x."""
    small = _less(x, LEAST_NORMAL)
    k, m = _split_normal(select(small, x * 2.0**23, x))
    return cast(k, f32) + select(small, _f(-23.0), _f(0.0)), m


def _log_edges(x: Expr, value: Expr, zero_at: float = 0.0) -> Expr:
    """A logarithm's value where its argument is not positive and finite; `zero_at` is the x of log 0."""
    finite = select(_less(x, math.inf), value, x)
    return select(_less(zero_at, x), finite, select(_equal(x, zero_at), _f(-math.inf), _f(math.nan)))


def _log_sum(k: Expr, f: Expr) -> Expr:
    """k · ln 2 + log(1 + f), the small terms first."""
    square = f * f
    low = fma(square * f, polynomial(f, table.LOG), k * LN2_LOW)
    return fma(k, LN2_HIGH, fma(square, -0.5, low) + f)


def _log_positive(x: Expr) -> Expr:
    k, m = _split(x)
    return _log_sum(k, m - 1.0)


def _log(x: Expr) -> Expr:
    return _log_edges(x, _log_positive(x))


def _log2(x: Expr) -> Expr:
    k, m = _split(x)
    f = m - 1.0
    return _log_edges(x, k + fma(f, polynomial(f, table.LOG2), f))


def _log1p_finite(x: Expr) -> Expr:
    """log(1 + x) for finite x > -1. What 1 + x loses by rounding is added to the fraction."""
    total = 1.0 + x
    most = total - 1.0
    lost = (1.0 - (total - most)) + (x - most)
    k, m = _split_normal(total)
    # 2^(1-k), not 2^-k: for k = 128 it is 0 instead of an infinity, and nothing significant is lost
    factor = _float(apply("shl", (BIAS + 1) - k, 23))
    return _log_sum(cast(k, f32), fma(lost * 0.5, factor, m - 1.0))


def _log1p(x: Expr) -> Expr:
    return _copysign(_log_edges(x, _log1p_finite(x), -1.0), x)


def _asinh(x: Expr) -> Expr:
    size = _abs(x)
    square = size * size
    near = size + square / (1.0 + apply("sqrt", square + 1.0))
    large = _less(8192.0, size)
    value = _log1p_finite(select(large, size - 1.0, near)) + select(large, _f(math.log(2)), _f(0.0))
    return _copysign(select(_less(size, math.inf), value, size), x)


def _acosh(x: Expr) -> Expr:
    above = x - 1.0
    large = _less(8192.0, x)
    near = above + apply("sqrt", above * (above + 2.0))
    value = _log1p_finite(select(large, above, near)) + select(large, _f(math.log(2)), _f(0.0))
    return select(_less(x, 1.0), math.nan, select(_less(x, math.inf), value, x))


def _atanh(x: Expr) -> Expr:
    size = _abs(x)
    twice = size + size
    value = _log1p_finite(twice / (1.0 - size)) * 0.5
    beyond = select(_equal(size, 1.0), _f(math.inf), _f(math.nan))
    return _copysign(select(_less(size, 1.0), value, beyond), x)


# --- powers ------------------------------------------------------------------------------------------------------


def _log2_pair(x: Expr) -> tuple[Expr, Expr]:
    """log2 x for positive finite x as 12 bits and the rest, to a relative error of about 2^-30."""
    k, m = _split(x)
    f = m - 1.0
    below = f + 2.0
    below_high = _high(below)
    below_low = f - (below_high - 2.0)
    s_high = _high(f / below)
    s_low = ((f - s_high * below_high) - s_high * below_low) / below
    s = s_high + s_low
    square = s * s
    slope = 2 * LOG2E
    slope_high = float((np.float32(slope).view(np.int32) & np.int32(-0x1000)).view(np.float32))
    top = s_high * slope_high
    tail = fma(s_high, slope - slope_high, fma(s_low, slope, square * s * polynomial(square, table.LOG2_RATIO)))
    total = k + top
    low = (top - (total - k)) + tail
    high = _high(total + low)
    return high, (total - high) + low


def _power_of_positive(size: Expr, y: Expr) -> Expr:
    """size^y = 2^(y · log2 size), the product in two parts."""
    y = _at_most(_at_least(y, -(2.0**32)), 2.0**32)
    log_high, log_low = _log2_pair(size)
    y_high = _high(y)
    y_low = y - y_high
    whole = y_high * log_high
    part = fma(y_high, log_low, y_low * (log_high + log_low))
    clamped = _at_most(_at_least(whole, -252.0), 252.0)
    return _exp2_of_sum(clamped, select(_equal(clamped, whole), part, 0.0))


def _pow(x: Expr, y: Expr) -> Expr:
    """C99's pow: the table of special cases is F.9.4.4's."""
    size = _abs(x)
    value = _power_of_positive(size, y)
    is_zero = _equal(size, 0.0)
    limit = select(_less(select(is_zero, y, -y), 0.0), _f(math.inf), _f(0.0))
    value = select(apply("or", is_zero, _equal(size, math.inf)), limit, value)
    whole = _equal(apply("floor", y), y)
    half = y * 0.5
    is_odd = apply("and", whole, apply("ne", apply("floor", half), half))
    value = select(is_odd, _copysign(value, x), value)
    root_of_negative = apply("and", _less(x, 0.0), apply("not", whole))
    value = select(apply("and", root_of_negative, _less(size, math.inf)), math.nan, value)
    value = select(apply("or", _is_nan(x), _is_nan(y)), math.nan, value)
    return select(apply("or", _equal(x, 1.0), _equal(y, 0.0)), 1.0, value)


# --- circles -----------------------------------------------------------------------------------------------------


def _quadrant(x: Expr) -> tuple[Expr, Expr]:
    """r with x = n · π/2 + r, |r| ≤ π/4, and bits whose low ones are n; for x ≥ 0. NaN for inf and NaN.

    All products but the last are exact for n ≤ 2^16, and the differences are until one rounds relative to r itself.
    """
    x = select(_less(x, 2.0**22), x, x * 0.0)
    n, bits = _nearest(x, 1 / HALF_PI)
    for part in HALF_PI_PARTS:
        x = fma(n, -part, x)
    return x, bits


def _cosine(square: Expr) -> Expr:
    return polynomial(square, (*table.COS, -0.5, 1.0))


def _bit(bits: Expr, which: int) -> Expr:
    return apply("ne", apply("and", bits, which), const(0, i32))


def _flip_sign(value: Expr, second_bit_of: Expr) -> Expr:
    return _float(apply("xor", _bits(value), apply("and", apply("shl", second_bit_of, 30), SIGN)))


def _sin(x: Expr) -> Expr:
    """On |x|, so that the sign of zero survives."""
    r, bits = _quadrant(_abs(x))
    square = r * r
    value = _flip_sign(select(_bit(bits, 1), _cosine(square), _odd(r, square, table.SIN)), bits)
    return _float(apply("xor", _bits(value), apply("and", _bits(x), SIGN)))


def _cos(x: Expr) -> Expr:
    r, bits = _quadrant(_abs(x))
    square = r * r
    return _flip_sign(select(_bit(bits, 1), _odd(r, square, table.SIN), _cosine(square)), bits + 1)


def _tan(x: Expr) -> Expr:
    r, bits = _quadrant(_abs(x))
    value = _odd(r, r * r, table.TAN)
    value = select(_bit(bits, 1), -1.0 / value, value)
    return _float(apply("xor", _bits(value), apply("and", _bits(x), SIGN)))


def _arc_parts(size: Expr) -> tuple[Expr, Expr]:
    """For |x| ≤ 1: whether |x| ≤ ½, and asin of |x| then, of sqrt((1 - |x|) / 2) else. NaN beyond 1."""
    near = apply("le", size, 0.5)
    square = select(near, size * size, fma(size, -0.5, 0.5))
    s = select(near, size, apply("sqrt", square))
    return near, _odd(s, square, table.ASIN)


def _asin(x: Expr) -> Expr:
    near, arc = _arc_parts(_abs(x))
    return _copysign(select(near, arc, HALF_PI - (arc + arc - HALF_PI_LOW)), x)


def _acos(x: Expr) -> Expr:
    near, arc = _arc_parts(_abs(x))
    signed = _copysign(arc, x)
    twice = arc + arc
    far = select(_less(x, 0.0), 2 * HALF_PI - (twice - 2 * HALF_PI_LOW), twice)
    return select(near, HALF_PI - (signed - HALF_PI_LOW), far)


def _arc_of_ratio(over: Expr, under: Expr) -> Expr:
    """atan(over / under) for 0 ≤ over, 0 < under, turned to the octant where the ratio is below 1."""
    steep = _less(under, over)
    small, great = select(steep, under, over), select(steep, over, under)
    ratio = small / great
    ratio = select(_equal(small, great), 1.0, ratio)  # inf / inf
    arc = _odd(ratio, ratio * ratio, table.ATAN)
    return select(steep, HALF_PI - (arc - HALF_PI_LOW), arc)


def _atan(x: Expr) -> Expr:
    return _copysign(_arc_of_ratio(_abs(x), _f(1.0)), x)


def _atan2(y: Expr, x: Expr) -> Expr:
    """C99's quadrants: the signs of zeros count, two infinities make 45 degrees."""
    over, under = _abs(y), _abs(x)
    both_zero = apply("and", _equal(over, 0.0), _equal(under, 0.0))
    arc = _arc_of_ratio(over, select(both_zero, 1.0, under))
    negative = _less(_bits(x), const(0, i32))
    arc = select(negative, 2 * HALF_PI - (arc - 2 * HALF_PI_LOW), arc)
    return _copysign(select(apply("or", _is_nan(x), _is_nan(y)), math.nan, arc), y)


FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "exp": _exp, "exp2": _exp2, "expm1": _expm1, "log": _log, "log2": _log2, "log1p": _log1p,
    "sin": _sin, "cos": _cos, "tan": _tan, "asin": _asin, "acos": _acos, "atan": _atan, "atan2": _atan2,
    "sinh": _sinh, "cosh": _cosh, "tanh": _tanh, "asinh": _asinh, "acosh": _acosh, "atanh": _atanh,
    "erf": _erf, "pow": _pow,
}  # fmt: skip
"""Every transcendental instruction, as a function of f32 expressions."""
