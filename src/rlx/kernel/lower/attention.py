"""Fused attention: operands and result are strided views, masks too."""

from __future__ import annotations

from rlx.ir import dim as dims
from rlx.ir.graph import Node, Value
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.index import Linear
from rlx.kernel.lower.context import LoweringContext
from rlx.kernel.lower.group import Group
from rlx.kernel.lower.index import key_of
from rlx.kernel.lower.materialise import Materialised
from rlx.kernel.lower.table import demands, lowers
from rlx.kernel.lower.views import view_of
from rlx.ops.transformer import Attention


@demands(Attention)
def operands_of_attention(node: Node, memory: Materialised) -> None:
    for value in node.inputs:
        memory.add_strided(value)
    memory.add_along(node.inputs[0], node.inputs[0].rank - 1)


@lowers(Attention)
def lower_attention(context: LoweringContext, group: Group) -> None:
    op, value = group.anchor.op, group.results[0]
    assert isinstance(op, Attention)
    q, k, v, *rest = group.anchor.inputs
    kernel = context.kernel(context.result(value))

    def strided(x: Value, lead: int = 0) -> tuple[int, Linear]:
        context.add_scalar_constant(x)
        view = view_of(x, context.strides_of)
        assert view is not None  # what is none was given memory
        axes = tuple((lead + i, s) for i, s in enumerate(view.strides) if s != 0 and x.shape[i] != 1)
        return kernel.slot(context.buffers[key_of(view.root)]), Linear(view.offset, axes)

    features, value_features = q.shape[3], v.shape[3]
    repeat = dims.exact_div(q.shape[1], k.shape[1])
    assert isinstance(features, int) and isinstance(value_features, int) and isinstance(repeat, int)
    scale = op.scale if op.scale is not None else float(features) ** -0.5
    mask = None
    if rest:
        mask = (*strided(rest[0], 4 - rest[0].rank), rest[0].dtype)
    out = Linear(0, tuple((i, s) for i, s in enumerate(context.memory.strides(value))))
    work = FusedAttention(
        q.shape[0], q.shape[1], q.shape[2], k.shape[2], features, value_features, repeat, scale, op.causal,
        op.offset, op.fill, op.empty == "zero", q.dtype,
        strided(q), strided(k), strided(v), (0, out), mask, op.window, op.softcap,
    )  # fmt: skip
    context.add(kernel, "attention", work, [group.anchor])
