"""Emulates dtypes below 16 bits for libraries that lack them: their values are carried in a dtype that every library
has.

Floats are carried in f32, integers in i8 or u8. Arrays go in and out as bytes. Every instruction whose result may not
be a value of the dtype is followed by a rounding, or by a cut to the dtype's bits (`fitted`). Ops that only move,
compare or choose elements need no change.
"""

from __future__ import annotations

import numpy as np

from rlx.codegen.scalar.small_floats import decode, encode
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr, apply, bitcast, cast, const, rewrite, value_of
from rlx.ir.literal import Array

EXACT = frozenset({"select", "min", "max"})
"""Instructions that give one of their operands."""


def is_emulated(dtype: DType) -> bool:
    """Whether numbers of this dtype are held in another."""
    return dtype.bits < 16 and dtype not in (dtypes.bool_, dtypes.u8, dtypes.i8)


def carrier(dtype: DType) -> DType:
    """The dtype that numbers of this one are computed in."""
    if not is_emulated(dtype):
        return dtype
    return {"float": dtypes.f32, "int": dtypes.i8, "uint": dtypes.u8}[dtype.kind]


def stored(dtype: DType) -> DType:
    """The dtype of arrays that hold this one outside of a program: bits of floats, integers as they are carried."""
    return dtypes.u8 if dtype.is_float and is_emulated(dtype) else carrier(dtype)


# arrays of NumPy


def to_stored(array: Array) -> Array:
    """An array of NumPy's in the dtype that it is stored in."""
    dtype = dtypes.of(array.dtype)
    if not is_emulated(dtype):
        return array
    return array.view(np.uint8) if dtype.is_float else array.astype(carrier(dtype).numpy)


def from_stored(array: Array, dtype: DType) -> Array:
    """An array of NumPy's that was stored for a dtype, in that dtype."""
    if not is_emulated(dtype):
        return array.astype(dtype.numpy, copy=False)
    return array.view(dtype.numpy) if dtype.is_float else array.astype(dtype.numpy)


# expressions


def loaded(x: Expr, dtype: DType) -> Expr:
    """What is stored for a dtype → its carrier."""
    return decode(x, dtype) if dtype.is_float and is_emulated(dtype) else x


def to_store(x: Expr, dtype: DType) -> Expr:
    """A number of a dtype, in its carrier → what is stored for it."""
    return encode(x, dtype) if dtype.is_float and is_emulated(dtype) else x


def fitted(x: Expr, dtype: DType) -> Expr:
    """Any number of the carrier → the one that the dtype holds for it: floats are rounded, integers wrap."""
    if not is_emulated(dtype):
        return x
    if dtype.is_float:
        return decode(encode(x, dtype), dtype)
    spare = 8 - dtype.bits
    return apply("shr", apply("shl", x, spare), spare)


def carried(root: Expr) -> Expr:
    """The expression with carriers instead of the dtypes that are carried; its operands and its result too."""
    return rewrite(root, _carried)


def _carried(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
    if not any(is_emulated(of) for of in (node.dtype, *(a.dtype for a in node.args))):
        return None
    wide_dtype = carrier(node.dtype)
    if node.kind == "const":
        return const(value_of(node), wide_dtype)
    if node.kind == "cast":
        return _cast(args[0], node.args[0].dtype, node.dtype)
    if node.kind == "bitcast":
        return _bitcast(args[0], node.args[0].dtype, node.dtype)
    wide = Expr(node.kind, wide_dtype, args, node.attr)
    return wide if node.kind in EXACT else fitted(wide, node.dtype)


def _cast(x: Expr, source: DType, to: DType) -> Expr:
    if not is_emulated(to):
        return cast(x, to)
    if to.is_float:
        return fitted(cast(x, dtypes.f32), to)
    if source.is_float:  # a wider integer would saturate later
        least = -(1 << (to.bits - 1)) if to.kind == "int" else 0
        x = apply("min", apply("max", x, float(least)), float(least + (1 << to.bits) - 1))
        return cast(x, carrier(to))
    return fitted(cast(x, carrier(to)), to)


def _bitcast(x: Expr, source: DType, to: DType) -> Expr:
    bits = to_store(x, source)
    if bits.dtype is not dtypes.u8:
        bits = bitcast(bits, dtypes.u8)
    if source.is_integer and source.bits < 8:
        bits = apply("and", bits, const((1 << source.bits) - 1, dtypes.u8))
    if to.is_float:
        return decode(bits, to)
    return fitted(bits if to.kind == "uint" else bitcast(bits, dtypes.i8), to)
