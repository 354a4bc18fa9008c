"""The dtype table: names, sizes, NumPy counterparts, and the one promotion rule."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Any

import numpy as np

from rlx.errors import DTypeError, did_you_mean
from rlx.records import dataclass


@dataclass(frozen=True, eq=False)
class DType:
    """An element type. `kind` is one of bool, uint, int, float, complex; `bits` is its width in memory per element;
    `counterpart` NumPy's type, or the name of one in `ml_dtypes`, which is imported when it is asked for."""

    name: str
    kind: str
    bits: int
    counterpart: Any

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """What arrays of it have as their dtype."""
        counterpart = self.counterpart
        if isinstance(counterpart, str):
            import ml_dtypes

            counterpart = getattr(ml_dtypes, counterpart)
        found: np.dtype[Any] = np.dtype(counterpart)
        return found

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (parse, (self.name,))

    @property
    def itemsize(self) -> int:
        """Bytes of one element as it lies in an array (sub-byte types take one whole byte there)."""
        return int(self.numpy.itemsize)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_inexact(self) -> bool:
        return self.kind in ("float", "complex")

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float", "complex")


def _make(name: str, kind: str, bits: int, counterpart: Any) -> DType:
    dtype = DType(name, kind, bits, counterpart)
    ALL[name] = dtype
    if not isinstance(counterpart, str):
        _FROM_NUMPY[dtype.numpy] = dtype
    return dtype


ALL: dict[str, DType] = {}
_FROM_NUMPY: dict[np.dtype[Any], DType] = {}

bool_ = _make("bool", "bool", 8, np.bool_)
u2 = _make("u2", "uint", 2, "uint2")
u4 = _make("u4", "uint", 4, "uint4")
u8 = _make("u8", "uint", 8, np.uint8)
u16 = _make("u16", "uint", 16, np.uint16)
u32 = _make("u32", "uint", 32, np.uint32)
u64 = _make("u64", "uint", 64, np.uint64)
i2 = _make("i2", "int", 2, "int2")
i4 = _make("i4", "int", 4, "int4")
i8 = _make("i8", "int", 8, np.int8)
i16 = _make("i16", "int", 16, np.int16)
i32 = _make("i32", "int", 32, np.int32)
i64 = _make("i64", "int", 64, np.int64)
f4e2m1 = _make("f4e2m1", "float", 4, "float4_e2m1fn")
f8e4m3 = _make("f8e4m3", "float", 8, "float8_e4m3fn")
f8e5m2 = _make("f8e5m2", "float", 8, "float8_e5m2")
f8e4m3fnuz = _make("f8e4m3fnuz", "float", 8, "float8_e4m3fnuz")
f8e5m2fnuz = _make("f8e5m2fnuz", "float", 8, "float8_e5m2fnuz")
f8e8m0 = _make("f8e8m0", "float", 8, "float8_e8m0fnu")
f16 = _make("f16", "float", 16, np.float16)
bf16 = _make("bf16", "float", 16, "bfloat16")
f32 = _make("f32", "float", 32, np.float32)
f64 = _make("f64", "float", 64, np.float64)
c64 = _make("c64", "complex", 64, np.complex64)
c128 = _make("c128", "complex", 128, np.complex128)

_ALIASES = {
    "float": f32, "float32": f32, "float64": f64, "double": f64, "float16": f16, "half": f16, "bfloat16": bf16,
    "int8": i8, "int16": i16, "int32": i32, "int64": i64, "uint8": u8, "uint16": u16, "uint32": u32, "uint64": u64,
    "complex64": c64, "complex128": c128, "int": i64, "float8_e4m3fn": f8e4m3, "float8_e5m2": f8e5m2,
    "float8_e4m3fnuz": f8e4m3fnuz, "float8_e5m2fnuz": f8e5m2fnuz, "float8_e8m0fnu": f8e8m0,
}  # fmt: skip
NAMES = (*ALL, *_ALIASES)
_LIBRARIES = ("torch", "mlx.core")
"""Modules of dtypes that print as their module and a usual name, and that NumPy does not know."""


def parse(text: str) -> DType:
    """The dtype with this name or NumPy alias. Raises DTypeError."""
    dtype = ALL.get(text) or _ALIASES.get(text)
    if dtype is None:
        near = did_you_mean(text, NAMES, 3)
        raise DTypeError(f"expected one of {', '.join(ALL)}, got {text!r}{near}")
    return dtype


def of(value: Any) -> DType:
    """The dtype of a DType, a name, a NumPy dtype, or anything that NumPy reads as one. Raises DTypeError."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and (value in ALL or value in _ALIASES):
        return parse(value)
    if type(value).__module__ in _LIBRARIES:  # their dtypes
        return parse(str(value).rpartition(".")[2])
    try:
        numpy_dtype = np.dtype(value)
    except (TypeError, ValueError):
        near = did_you_mean(value, NAMES, 3) if isinstance(value, str) else ""
        among = "a dtype" if near else f"one of {', '.join(ALL)}"
        raise DTypeError(f"expected {among}, got {value!r}{near}") from None
    dtype = _counterpart_of(numpy_dtype) or _counterpart_of(numpy_dtype.newbyteorder("="))
    if dtype is None:
        raise DTypeError(f"expected one of {', '.join(ALL)}, got {numpy_dtype}")
    return dtype


def _counterpart_of(numpy_dtype: np.dtype[Any]) -> DType | None:
    found = _FROM_NUMPY.get(numpy_dtype)
    if found is None and "ml_dtypes" in sys.modules:  # else nobody has a dtype of it
        _FROM_NUMPY.update({dtype.numpy: dtype for dtype in ALL.values()})
        found = _FROM_NUMPY.get(numpy_dtype)
    return found


_INTS = [i2, i4, i8, i16, i32, i64]
_UINTS = [u2, u4, u8, u16, u32, u64]


def promote(a: DType, b: DType) -> DType:
    """The array API's promotion, extended: bool < integers < floats < complex.

    Integers of unlike sign go to the signed type that holds both; i64 with u64 has none and raises DTypeError.
    f16 with bf16 gives f32; a float below 16 bits with another float goes to the wider one, else to f32.
    """
    if a is b:
        return a
    if a.kind == b.kind == "complex":
        return c128
    if a.is_complex or b.is_complex:
        wide, other = (a, b) if a.is_complex else (b, a)
        return c128 if wide is c128 or other is f64 else c64
    if a.is_float and b.is_float:
        if a.bits == b.bits or (min(a.bits, b.bits) <= 8 and max(a.bits, b.bits) <= 8):
            return f32
        return a if a.bits > b.bits else b
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if a is bool_ or b is bool_:
        return b if a is bool_ else a
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    for candidate in _INTS:
        if candidate.bits >= signed.bits and candidate.bits > unsigned.bits:
            return candidate
    raise DTypeError(f"no integer type holds both {a} and {b}; cast one of them")


def accumulator(dtype: DType) -> DType:
    """The type in which sums of `dtype` are kept: f32 for narrow floats, the type itself else."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype
