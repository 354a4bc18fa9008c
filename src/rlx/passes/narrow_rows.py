"""Values whose rows become bytes by their own ranges, in 16 bits where they lie in memory: those that products make,
whose kernels know nothing of whole rows. A kernel more reads them, and nothing else does.

The ends of a range have 1024 steps or more of 16 bits, and 255 of bytes: a byte is off by an eighth of a step at most.
"""

from __future__ import annotations

from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.ops.elementwise import Abs
from rlx.ops.reduce import ReduceMax, ReduceMin, Reduction
from rlx.passes.driver import Context, Pass
from rlx.passes.narrow_activations import with_rounded
from rlx.passes.narrow_norms import leads_to_bytes, led_by


class NarrowRows(Pass):
    """Rounds to a dtype what becomes bytes by rows."""

    name = "narrow-rows"

    def __init__(self, to: DType = dtypes.f16) -> None:
        self.to = to

    def run(self, graph: Graph, context: Context) -> Graph:
        kept = set(graph.outputs.values())
        found = dict.fromkeys(
            _signed(node.inputs[0])
            for node in graph.nodes
            if isinstance(node.op, (ReduceMax, ReduceMin)) and node.inputs[0].dtype is dtypes.f32
        )
        rounded = (value for value in found if value not in kept and self._is_for_bytes(graph, value))
        return with_rounded(graph, {v: self.to for v in rounded if context.spend(self.name, "rows", v.node)})

    def _is_for_bytes(self, graph: Graph, value: Value) -> bool:
        """Whether a product makes the value element by element, and only bytes are made of it, by ranges of rows."""

        def is_along(node: Node) -> bool:
            axes = node.op.axes if isinstance(node.op, (ReduceMax, ReduceMin)) else ()
            return not isinstance(node.op, Reduction) or [axis % value.rank for axis in axes] == [value.rank - 1]

        if not all(is_along(user) and leads_to_bytes(graph, user) for user in graph.uses(value)):
            return False
        chain: set[Value] = set()
        to = led_by(value, self.to, chain)
        inner = (user for each in chain if each != value for user in graph.uses(each))
        return to is not None and not any(isinstance(user.op, Reduction) for user in inner)


def _signed(value: Value) -> Value:
    """The value whose magnitudes a range is of, or which it is of."""
    return value.node.inputs[0] if isinstance(value.op, Abs) else value
