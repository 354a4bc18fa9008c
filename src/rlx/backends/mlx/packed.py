"""Products with weights of few bits, as mlx has them: scale · q + shift in f32, by groups of 32, 64 or 128.

`weights` finds such products where a graph has them as products with a dequantised weight, before all passes; `normal`
brings what was claimed into mlx's form, behind them. What both make of weights alone is worked out once, when they are
set. In f16 a shift would be rounded to a good part of a step, so f16 and bf16 are computed in f32.
"""

from __future__ import annotations

from typing import Any

from rlx.backends.mlx.library import Value as Array
from rlx.backends.mlx.library import mx
from rlx.backends.mlx.shapes import lowers
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Node, Value
from rlx.ops import build
from rlx.ops.packed import PackedMatmul
from rlx.passes.driver import Rules
from rlx.passes.packed_weights import rules_of
from rlx.passes.pattern import Is, Var

GROUPS = (128, 64, 32)
"""Elements that share a scale in mlx."""


def group_of(block: int) -> int | None:
    """The largest group that blocks are made of."""
    return next((group for group in GROUPS if block % group == 0), None)


def claim(node: Node) -> str:
    """Why mlx has no such product; empty if it has."""
    op: Any = node.op
    if dtypes.f64 in (node.inputs[0].dtype, node.inputs[2].dtype):
        return "f64: mlx's quantised products are in f32"
    if not node.inputs[1].type.is_static:
        return "a weight whose size is not known"
    return "" if group_of(op.block) else f"blocks of {op.block}: mlx has groups of 32, 64 and 128"


@lowers("packed_matmul")
def _product(op: Any, x: Array, w: Array, scale: Array, shift: Array) -> Array:
    if x.size == 0 or w.size == 0:
        return mx.zeros((*x.shape[:-1], w.shape[0]), x.dtype)
    return mx.quantized_matmul(x, w.view(mx.uint32), scale, shift, group_size=op.block, bits=op.bits)


# mlx's form

normal = Rules("mlx-packed")


def _is_other(root: Value) -> bool:
    op = root.op
    assert isinstance(op, PackedMatmul)
    whole = op.depth % op.block == 0 and op.block in GROUPS
    return not (op.added and whole and {v.dtype for v in root.node.inputs} <= {dtypes.f32, dtypes.u8})


def _made(root: Value, x: Value, w: Value, scale: Value, zero: Value | None) -> Value:
    op = root.op
    assert isinstance(op, PackedMatmul)
    group = group_of(op.block) or op.block
    step = scale.cast(dtypes.f32)
    if zero is None:
        shift = step * -float(1 << (op.bits - 1))
    else:
        shift = zero.cast(dtypes.f32) if op.added else -(step * zero.cast(dtypes.f32))
    depth = op.blocks * op.block
    wide = x.cast(dtypes.f32)
    if depth != op.depth:
        wide = build.pad(wide, low=(0,) * x.rank, high=(*(0,) * (x.rank - 1), depth - op.depth))
    step, shift = (_repeated(part, op.block // group) for part in (step, shift))
    made = build.packed_matmul(wide, w, step, shift, depth=depth, bits=op.bits, block=group, added=True)
    return made.cast(x.dtype)


@normal.rule("half", Is(PackedMatmul, Var("x"), Var("w"), Var("scale")), when=_is_other)
def half(root: Value, x: Value, w: Value, scale: Value) -> Value:
    return _made(root, x, w, scale, None)


@normal.rule("zero", Is(PackedMatmul, Var("x"), Var("w"), Var("scale"), Var("zero")), when=_is_other)
def zero(root: Value, x: Value, w: Value, scale: Value, zero: Value) -> Value:
    return _made(root, x, w, scale, zero)


def _repeated(parameter: Value, times: int) -> Value:
    """Every column several times in a row."""
    if times == 1:
        return parameter
    rows, columns = parameter.shape
    spread = build.broadcast_to(parameter.reshape(rows, columns, 1), shape=(rows, columns, times))
    return spread.reshape(rows, dims.mul(columns, times))


# dequantised weights

weights = rules_of("mlx-weights", lambda bits, block, depth, columns: group_of(block))
