"""Floats below 32 bits as bits: conversions to and from f32 in integer arithmetic, for targets without instructions.

Sources of the formats: IEEE 754-2019 (f16); the OCP 8-bit floating point specification 1.0 (e4m3, e5m2) and its
microscaling formats 1.0 (e2m1, e8m0); Noune et al. 2022, arXiv:2206.02915 (fnuz). Rounding is to nearest, ties to even
but in e8m0 (IEEE 754-2019, 4.3.1); every f32 is handled, subnormal results included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr, apply, bitcast, cast, const, select

U32 = dtypes.u32


@dataclass(frozen=True)
class Format:
    """A float of a sign, exponent bits and mantissa bits.

    special   what the highest codes are: `ieee`, an exponent of ones for infinity and NaN; `top`, the one code of all
              ones for NaN; `zero`, NaN where -0 would be; `none`, neither, and too large a number becomes the largest
    """

    mantissa: int
    bias: int
    width: int
    special: Literal["ieee", "top", "zero", "none"]

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)

    @property
    def largest(self) -> int:
        """The code of the largest finite number."""
        ones = self.sign - 1
        return {"ieee": ones - (1 << self.mantissa), "top": ones - 1, "zero": ones, "none": ones}[self.special]

    @property
    def beyond(self) -> int:
        """The code of what is larger."""
        return self.sign if self.special == "zero" else self.largest + (self.special != "none")

    @property
    def nan(self) -> int:
        """The code of NaN; a format without one gives 0, with the other sign, as ml_dtypes does."""
        quiet = self.beyond | 1 << (self.mantissa - 1)
        return quiet if self.special == "ieee" else self.beyond


FORMATS = {
    dtypes.f16: Format(10, 15, 16, "ieee"),
    dtypes.f8e5m2: Format(2, 15, 8, "ieee"),
    dtypes.f8e4m3: Format(3, 7, 8, "top"),
    dtypes.f8e5m2fnuz: Format(2, 16, 8, "zero"),
    dtypes.f8e4m3fnuz: Format(3, 8, 8, "zero"),
    dtypes.f4e2m1: Format(1, 1, 4, "none"),
}
DTYPES = (dtypes.bf16, dtypes.f8e8m0, *FORMATS)
"""What is held in memory as bits and computed with in f32."""


def bits_dtype(dtype: DType) -> DType:
    """The integers that a narrow float lies in."""
    return dtypes.u16 if dtype.bits == 16 else dtypes.u8


def _u(value: int) -> Expr:
    return const(value, U32)


def decode(bits: Expr, dtype: DType) -> Expr:
    """Bits of a narrow float, of `bits_dtype` → f32."""
    wide = cast(bits, U32)
    if dtype is dtypes.bf16:
        return bitcast(apply("shl", wide, _u(16)), dtypes.f32)
    if dtype is dtypes.f8e8m0:
        power = select(apply("eq", wide, _u(0)), _u(1 << 22), apply("shl", wide, _u(23)))
        return bitcast(select(apply("eq", wide, _u(255)), _u(0x7FC00000), power), dtypes.f32)
    of = FORMATS[dtype]
    sign = apply("shl", apply("and", wide, _u(of.sign)), _u(32 - of.width))
    shifted = apply("shl", apply("and", wide, _u(of.sign - 1)), _u(23 - of.mantissa))
    # a subnormal becomes the mantissa of a normal number, from which its leading 1 is taken: shader hardware that
    # flushes subnormal operands does this right too
    offset = 127 - of.bias
    lead = (offset + 1) << 23
    small = bitcast(bitcast(shifted + _u(lead), dtypes.f32) - 2.0 ** (1 - of.bias), U32)
    magnitude = select(apply("lt", shifted, _u(1 << 23)), small, shifted + _u(offset << 23))
    if of.special == "ieee":
        special = apply("le", _u((of.largest + 1) << (23 - of.mantissa)), shifted)
        magnitude = select(special, apply("or", shifted, _u(0x7F800000)), magnitude)
    elif of.special == "top":
        magnitude = select(apply("eq", shifted, _u(of.nan << (23 - of.mantissa))), _u(0x7FC00000), magnitude)
    elif of.special == "zero":
        magnitude = select(apply("eq", wide, _u(of.sign)), _u(0x7FC00000), magnitude)
    return bitcast(apply("or", magnitude, sign), dtypes.f32)


def encode(x: Expr, dtype: DType) -> Expr:
    """f32 → bits of a narrow float, of `bits_dtype`, rounded to nearest even."""
    bits = bitcast(x, U32)
    if dtype is dtypes.bf16:
        odd = apply("and", apply("shr", bits, _u(16)), _u(1))
        rounded = apply("shr", bits + _u(0x7FFF) + odd, _u(16))
        quiet = apply("or", apply("shr", bits, _u(16)), _u(0x40))
        return cast(select(apply("ne", x, x), quiet, rounded), dtypes.u16)
    if dtype is dtypes.f8e8m0:
        return _encode_power(bits)
    of = FORMATS[dtype]
    drop = 23 - of.mantissa
    sign = apply("and", apply("shr", bits, _u(32 - of.width)), _u(of.sign))
    magnitude = apply("and", bits, _u(0x7FFFFFFF))
    odd = apply("and", apply("shr", magnitude, _u(drop)), _u(1))
    offset = (of.bias - 127) << 23
    normal = apply("shr", magnitude + _u((offset + (1 << (drop - 1)) - 1) % 2**32) + odd, _u(drop))
    # adding a power of two puts a subnormal result's bits, rounded, at the end of the sum's mantissa
    unit = 127 + 23 + 1 - of.bias - of.mantissa
    lifted = bitcast(magnitude, dtypes.f32) + 2.0 ** (unit - 127)
    small = bitcast(lifted, U32) - _u(unit << 23)
    finite = select(apply("lt", magnitude, _u((128 - of.bias) << 23)), small, normal)
    # compared before the sum, which wraps for numbers far out of range
    limit = ((of.largest << drop) - offset) + (1 << (drop - 1)) - (of.largest & 1)
    special = select(apply("lt", _u(0x7F800000), magnitude), _u(of.nan), _u(of.beyond))
    result = select(apply("le", magnitude, _u(limit)), finite, special)
    if of.special == "zero":
        whole = select(apply("eq", result, _u(0)), result, apply("or", result, sign))
    elif of.special == "none":
        zero = apply("xor", sign, _u(of.sign))
        whole = select(apply("lt", _u(0x7F800000), magnitude), zero, apply("or", result, sign))
    else:
        whole = apply("or", result, sign)
    return cast(whole, bits_dtype(dtype))


def _encode_power(bits: Expr) -> Expr:
    """The nearest power of two, ties upwards; NaN for what is not positive, or beyond 2^127."""
    rounded = apply("shr", bits + _u(0x400000), _u(23))
    # below the least normal f32 lies one power alone, 2^-127; what is above it goes up, as in ml_dtypes
    least = select(apply("le", bits, _u(1 << 22)), _u(0), _u(1))
    rounded = select(apply("lt", bits, _u(1 << 23)), least, rounded)
    outside = apply("or", apply("eq", bits, _u(0)), apply("le", _u(0x7F800000), bits))
    return cast(select(outside, _u(255), rounded), dtypes.u8)
