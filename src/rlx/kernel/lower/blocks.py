"""Products with weights of few bits, as they lie: contractions whose right side is blocks."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir.graph import Node, Value
from rlx.kernel.ir.blocks import Blocks
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, axis, load
from rlx.kernel.lower.context import LoweringContext
from rlx.kernel.lower.contraction import contraction_of, epilogue, name_of
from rlx.kernel.lower.group import Group
from rlx.kernel.lower.materialise import Materialised
from rlx.kernel.lower.table import demands, lowers
from rlx.ops.elementwise import Cast
from rlx.ops.packed import PackedMatmul
from rlx.ops.shape import Reshape, Slice, Transpose


@demands(PackedMatmul)
def operands_of_packed(node: Node, memory: Materialised) -> None:
    """The left side is a strided view whose rows are contiguous; the others are whole."""
    x, *weight = node.inputs
    memory.add_strided(x)
    memory.add_along(x, x.rank - 1)
    for operand in weight:
        memory.add(operand)


@lowers(PackedMatmul, grows="epilogue")
def lower_packed(context: LoweringContext, group: Group) -> None:
    op, (x, w, scale, *zero) = group.anchor.op, group.anchor.inputs
    assert isinstance(op, PackedMatmul)
    for operand in (w, scale, *zero):
        context.add_scalar_constant(operand)
    kernel = context.kernel(context.result(group.results[0]))
    rows, rank = x.rank - 1, x.rank
    a = kernel.emitter().emit(x, tuple(axis(i) for i in (*range(rows), rank)))
    b = load(kernel.slot_of(w), Linear(), dtypes.u8)
    store = epilogue(context, kernel, group, rank)
    extents = [*x.shape[:-1], w.shape[0]]
    work = contraction_of(extents, [op.depth], 0, rows, 1, a, b, x.dtype, store)
    assert isinstance(work, Contraction)  # both sides are loads, by `operands_of_packed`
    blocks = Blocks(
        op.bits, op.block, op.blocks, kernel.slot_of(scale), kernel.slot_of(zero[0]) if zero else Blocks.NO_ZERO,
        scale.dtype, op.added, not op.added and all(_is_of_bytes(each) for each in zero),
    )  # fmt: skip
    context.add(kernel, name_of(group), dataclasses.replace(work, blocks=blocks), group.members)


def _is_of_bytes(zero: Value) -> bool:
    """Whether these are known to be integers from 0 to 255."""
    if zero.constant is not None:
        numbers = zero.constant.astype(np.float64)
        return bool(np.all((numbers == np.rint(numbers)) & (numbers >= 0) & (numbers <= 255)))
    while isinstance(zero.op, (Reshape, Slice, Transpose)):
        zero = zero.node.inputs[0]
    return isinstance(zero.op, Cast) and zero.node.inputs[0].dtype in (dtypes.u8, dtypes.u4, dtypes.u2)
