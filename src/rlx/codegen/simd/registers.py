"""Registers of LLVM IR: values and vectors of them, and literals of constants."""

from __future__ import annotations

import struct
from typing import NamedTuple

from rlx.errors import CompileError
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr

UNSUPPORTED = "complex numbers"


class Reg(NamedTuple):
    """A value in a register: its SSA name or literal, dtype, and whether it is a vector."""

    name: str
    dtype: DType
    vector: bool


class Vector(NamedTuple):
    """The axis along which vectors lie, and a mask (`<lanes x i1>`) of positions that are inside."""

    axis: int
    mask: str | None = None


def suffix(kind: str) -> str:
    """What an intrinsic's name calls a scalar type."""
    return {"float": "f32", "double": "f64"}.get(kind, kind)


def literal(node: Expr) -> str:
    """An LLVM literal of a constant in its register type."""
    value = ex.value_of(node)
    if node.dtype is dtypes.bool_:
        return "true" if value else "false"
    if node.dtype.is_integer:
        return str(value)
    if node.dtype.is_float:
        return float_literal(value)
    raise CompileError(f"[constant] {UNSUPPORTED} do not compile to native code, got {node.dtype}")


def float_literal(value: float) -> str:
    """The hexadecimal form that LLVM takes for float and double alike."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
