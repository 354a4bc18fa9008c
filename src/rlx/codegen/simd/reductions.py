"""Partial results of reductions: what they start from, and how two of them or the lanes of a vector are joined."""

from __future__ import annotations

from rlx.codegen.simd.body import Body
from rlx.codegen.simd.function import register_type
from rlx.codegen.simd.registers import Reg, float_literal
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.ops.reduce import identity


def combine(body: Body, name: str, dtype: DType, total: str, value: str, vector: bool) -> str:
    """Two partial results joined by an instruction."""
    left, right = Expr("register", dtype, (), ("total", total)), Expr("register", dtype, (), ("value", value))
    body.push()
    body.remember(left, Reg(total, dtype, vector))
    body.remember(right, Reg(value, dtype, vector))
    result = body.gen(ex.apply(name, left, right)).name
    body.pop()
    return result


def join_lanes(body: Body, name: str, dtype: DType, reg: str) -> str:
    """All lanes of a vector joined by an instruction, halving the vector each time."""
    f, lanes = body.f, body.lanes
    scalar = register_type(dtype)
    kind = f"<{lanes} x {scalar}>"
    width = lanes
    while width > 1:
        width //= 2
        order = ", ".join(f"i32 {(i + width) % lanes}" for i in range(lanes))
        shifted = f.value(f"shufflevector {kind} {reg}, {kind} poison, <{lanes} x i32> <{order}>")
        reg = combine(body, name, dtype, reg, shifted, True)
    return f.value(f"extractelement {kind} {reg}, i64 0")


def identity_literal(body: Body, combine: str, dtype: DType, vector: bool) -> str:
    value = identity(combine, dtype.numpy)
    if dtype is dtypes.bool_:
        text = "true" if value else "false"
    else:
        text = float_literal(float(value)) if dtype.is_float else str(int(value))
    return _splat(register_type(dtype), text, body.lanes) if vector else text


def _splat(kind: str, literal: str, lanes: int) -> str:
    return "<" + ", ".join([f"{kind} {literal}"] * lanes) + ">"
