"""Products with weights of few bits, as mlx has them: scale · q + shift in f32, by groups of 32, 64 or 128.

`weights` finds such products where a graph has them as products with a dequantised weight, before all passes; `normal`
brings what was claimed into mlx's form, behind them. What both make of weights alone is worked out once, when they are
set. In f16 a shift would be rounded to a good part of a step, so f16 and bf16 are computed in f32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.backends.mlx.library import Value as Array
from rlx.backends.mlx.library import mx
from rlx.backends.mlx.shapes import lowers
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Node, Value
from rlx.ir.op import Constant, Param
from rlx.ops import build
from rlx.ops.linalg import DotGeneral, Matmul
from rlx.ops.packed import WIDTHS, PackedMatmul, packed
from rlx.ops.quant import Dequantize
from rlx.ops.shape import Transpose
from rlx.passes.driver import Rules
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

weights = Rules("mlx-weights")


def _contracted(root: Value) -> int | None:
    """The axis of a product's right side that is summed, if it is x times a matrix."""
    op, (x, y) = root.op, root.node.inputs
    if y.rank != 2:
        return None
    if isinstance(op, Matmul):
        return 0
    assert isinstance(op, DotGeneral)
    plain = not op.lhs_batch and op.lhs_contract == (x.rank - 1,) and op.sum_dtype is None
    return op.rhs_contract[0] if plain and len(op.rhs_contract) == 1 else None


def _source(y: Value, axis: int) -> tuple[Value, int]:
    """A matrix and an axis of it, before it was turned."""
    turned = isinstance(y.op, Transpose) and y.op.permutation == (1, 0)
    return (y.node.inputs[0], 1 - axis) if turned else (y, axis)


def _is_number(parameter: Value) -> bool:
    return parameter.rank == 0 or parameter.shape == (1,)


def _block_of(weight: Value, axis: int) -> int | None:
    """Elements along an axis of a dequantised weight that share a scale, in blocks that mlx takes; None if none do."""
    op = weight.op
    if not isinstance(op, Dequantize) or not all(isinstance(v.node.op, (Param, Constant)) for v in weight.node.inputs):
        return None
    source, scale = weight.node.inputs[:2]
    depth, rows = weight.shape[axis], weight.shape[1 - axis]
    if not (isinstance(depth, int) and isinstance(rows, int) and depth and rows):
        return None
    if not source.dtype.is_integer or source.dtype.bits not in WIDTHS or dtypes.f64 in (weight.dtype, scale.dtype):
        return None
    if op.block:
        fits = op.axis % 2 == axis and depth % op.block == 0 and group_of(op.block)
        return op.block if fits else None
    return group_of(depth) if _is_number(scale) or op.axis % 2 == 1 - axis else None


def _is_packable(root: Value) -> bool:
    axis = _contracted(root)
    return axis is not None and _block_of(*_source(root.node.inputs[1], axis)) is not None


@weights.rule("weight", Is((Matmul, DotGeneral), Var("x"), Var("y")), when=_is_packable)
def weight(root: Value, x: Value, y: Value) -> Value:
    contracted = _contracted(root)
    assert contracted is not None  # the rule asks for both
    source, axis = _source(y, contracted)
    block = _block_of(source, axis)
    assert block is not None
    return _packed(x, source, axis, block)


def _packed(x: Value, weight: Value, axis: int, block: int) -> Value:
    """x times the dequantised weight, whose rows run along `axis`."""
    whole, scale, *rest = weight.node.inputs
    bits = whole.dtype.bits
    moved = 1 << (bits - 1) if whole.dtype.kind == "int" else 0
    extents = weight.shape
    rows, blocks = extents[1 - axis], dims.floordiv(extents[axis], block)

    def laid(parameter: Value) -> Value:
        """[rows, blocks], in f32."""
        if parameter.rank == 2:
            laid = parameter.transpose(1, 0) if axis == 0 else parameter
        else:
            laid = build.broadcast_to(parameter.reshape(-1, 1), shape=(rows, blocks))
        return laid.cast(dtypes.f32)

    step = laid(scale)
    none = x.graph.constant(np.zeros(1, np.float32))
    zeros = laid(rest[0] if rest else none) + float(moved)
    small = (whole.cast(dtypes.i32) + moved).cast(dtypes.u8)
    small = packed(small.transpose(1, 0) if axis == 0 else small, bits)
    return build.packed_matmul(x, small, step, zeros, depth=extents[axis], bits=bits, block=block)
