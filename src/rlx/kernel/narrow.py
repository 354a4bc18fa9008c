"""f16 and bf16 as bits: conversions to and from f32 in integer arithmetic, for renderers without such instructions.

Source of the rounding: IEEE 754-2019, 4.3.1 (ties to even); every f32 is handled, subnormal results included.
"""

from __future__ import annotations

from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr, apply, bitcast, cast, const, select

U32 = dtypes.u32


def _u(value: int) -> Expr:
    return const(value, U32)


def decode(bits: Expr, dtype: DType) -> Expr:
    """u16 bits of a narrow float → f32."""
    wide = cast(bits, U32)
    if dtype is dtypes.bf16:
        return bitcast(apply("shl", wide, _u(16)), dtypes.f32)
    sign = apply("shl", apply("and", wide, _u(0x8000)), _u(16))
    shifted = apply("shl", apply("and", wide, _u(0x7FFF)), _u(13))
    # a subnormal becomes the mantissa of a normal number, from which its leading 1 is taken: shader hardware that
    # flushes subnormal operands does this right too
    lead = 113 << 23
    small = bitcast(bitcast(shifted + _u(lead), dtypes.f32) - 2.0**-14, U32)
    finite = select(apply("lt", shifted, _u(1 << 23)), small, shifted + _u(112 << 23))
    special = apply("le", _u(0x0F800000), shifted)
    magnitude = select(special, apply("or", shifted, _u(0x7F800000)), finite)
    return bitcast(apply("or", magnitude, sign), dtypes.f32)


def encode(x: Expr, dtype: DType) -> Expr:
    """f32 → u16 bits of a narrow float, rounded to nearest even."""
    bits = bitcast(x, U32)
    if dtype is dtypes.bf16:
        odd = apply("and", apply("shr", bits, _u(16)), _u(1))
        rounded = apply("shr", bits + _u(0x7FFF) + odd, _u(16))
        quiet = apply("or", apply("shr", bits, _u(16)), _u(0x40))
        return cast(select(apply("ne", x, x), quiet, rounded), dtypes.u16)
    sign = apply("and", apply("shr", bits, _u(16)), _u(0x8000))
    magnitude = apply("and", bits, _u(0x7FFFFFFF))
    odd = apply("and", apply("shr", magnitude, _u(13)), _u(1))
    normal = apply("shr", magnitude + _u(0xC8000FFF) + odd, _u(13))
    # adding 0.5 puts a subnormal result's bits, rounded, at the end of the sum's mantissa
    small = bitcast(bitcast(magnitude, dtypes.f32) + 0.5, U32) - _u(0x3F000000)
    finite = select(apply("lt", magnitude, _u(0x38800000)), small, normal)
    infinite = select(apply("lt", _u(0x7F800000), magnitude), _u(0x7E00), _u(0x7C00))
    result = select(apply("lt", magnitude, _u(0x477FF000)), finite, infinite)
    return cast(apply("or", result, sign), dtypes.u16)
