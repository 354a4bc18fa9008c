"""What norms of a narrow net read and make in 16 bits, where it would lie in memory: products of many rows, and the
norms between them, are bound by such bytes.

What a product leads to and a norm alone reads is rounded before; a residual stream, which others read too, is not, as
its numbers may grow beyond what f16 has. What a norm makes for a product, which reads it rounded, is rounded for all
others that read it.
"""

from __future__ import annotations

from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Elementwise
from rlx.ops.elementwise import Cast
from rlx.ops.norm import LayerNorm, RmsNorm
from rlx.passes.driver import Context, Pass
from rlx.passes.narrow_activations import with_rounded
from rlx.passes.precision import MULTIPLIED

HALVES = (dtypes.f16, dtypes.bf16)


class NarrowNorms(Pass):
    """Rounds operands and results of norms."""

    name = "narrow-norms"

    def run(self, graph: Graph, context: Context) -> Graph:
        kept = set(graph.outputs.values())
        stored: dict[Value, DType] = {}
        for node in graph.nodes:
            if not isinstance(node.op, (LayerNorm, RmsNorm)) or node.types[0].dtype is not dtypes.f32:
                continue
            given, made = node.inputs[0], node.outputs[0]
            if given not in kept and graph.uses(given) == [node] and (to := _led_by(given)):
                stored[given] = to
            if made not in kept and (to := _read_as(graph, made)):
                stored[made] = to
        return with_rounded(graph, {v: to for v, to in stored.items() if context.spend(self.name, "norm", v.node)})


def _led_by(value: Value) -> DType | None:
    """The dtype of a narrow product that a value is made of element by element; None if there is none."""
    waiting, seen = [value], {value}
    while waiting:
        node: Node = waiting.pop().node
        if isinstance(node.op, MULTIPLIED) and node.types[0].dtype in HALVES:
            return node.types[0].dtype
        if not isinstance(node.op, Elementwise):
            continue
        more = [v for v in node.inputs if v.shape == value.shape and v not in seen]
        seen.update(more)
        waiting += more
    return None


def _read_as(graph: Graph, value: Value) -> DType | None:
    """The dtype in which a product reads a value that others read as it is."""
    users = graph.uses(value)
    casts = [user for user in users if isinstance(user.op, Cast) and user.types[0].dtype in HALVES]
    for cast in casts:
        if len(casts) < len(users) and any(isinstance(user.op, MULTIPLIED) for user in graph.uses(cast.outputs[0])):
            return cast.types[0].dtype
    return None
