"""What has no kernel of its own but needs memory: one map over its elements. Concatenations are a map an operand."""

from __future__ import annotations

from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.kernel.ir.index import Linear, axis
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.lower.context import LoweringContext
from rlx.kernel.lower.group import Group
from rlx.kernel.lower.table import lowers
from rlx.ops.shape import Concat

MANY_PARTS = 16
"""Operands of a concatenation that are worth buffers of their own, so that those alike share one function."""


def lower_map(context: LoweringContext, group: Group) -> None:
    """One kernel that writes every element of a value."""
    value = group.results[0]
    kernel = context.kernel(context.result(value))
    index = tuple(axis(i) for i in range(value.rank))
    body = kernel.emitter(computes=value).emit(value, index)
    store = Store(0, context.offset(value, index), body, False)
    context.add(kernel, group.anchor.op.name, LoopNest(value.shape, (), (store,)), [group.anchor])


@lowers(Concat)
def lower_concat(context: LoweringContext, group: Group) -> None:
    """One kernel an operand: each writes its part of the result."""
    value = group.results[0]
    op, operands = group.anchor.op, group.anchor.inputs
    assert isinstance(op, Concat)
    at = op.axis % value.rank
    buffer = context.result(value)
    start: Dim = 0
    step = context.memory.strides(value)[at]
    alike = len(operands) >= MANY_PARTS and len({v.shape for v in operands}) == 1
    apart = alike and not all(id(v.node) in context.facts.static for v in operands)
    kernels = []
    for operand in operands:
        place = dims.mul(start, step)
        kernel = context.kernel(context.part(buffer, place) if apart else buffer)
        index = tuple(axis(i) for i in range(value.rank))
        offset = context.offset(value, index).plus(Linear(0 if apart else place))
        store = Store(0, offset, kernel.emitter().emit(operand, index), False)
        kernels.append(kernel.finish("concat", LoopNest(operand.shape, (), (store,)), [group.anchor]))
        start = dims.add(start, operand.shape[at])
    context.place(kernels, [buffer])
