"""Activations of nets of convolutions in the dtype of these, where they would lie in memory: half the bytes, which such
nets are bound by.

What is made of a narrow convolution element by element, in f32, is rounded once where something reads it that is no
part of the same kernel: another convolution, a pool, a mean, the sum with another branch. Rounding and the maximum of a
window may change places, so pools of rounded values are exact.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Elementwise
from rlx.ops.convolution import Conv, ReduceWindow
from rlx.ops.elementwise import Cast
from rlx.ops.shape import Concat
from rlx.passes.driver import Context, Pass, Rebuild


class NarrowActivations(Pass):
    """Rounds what convolutions of 16-bit floats lead to."""

    name = "narrow-activations"

    def run(self, graph: Graph, context: Context) -> Graph:
        stored = {v: to for v, to in _stored(graph).items() if context.spend(self.name, "activation", v.node)}
        return with_rounded(graph, stored)


def with_rounded(graph: Graph, stored: Mapping[Value, DType], exact: Container[int] = ()) -> Graph:
    """The graph with some values rounded to a dtype, and widened again for all that read them, but for nodes with one
    result whose ids are in `exact`."""
    if not stored:
        return graph
    rebuild = Rebuild(graph)
    whole: dict[Value, Value] = {}
    for node in graph.nodes:
        value = node.outputs[0]
        if value not in stored and id(node) not in exact:
            rebuild.keep(node)
            continue
        first = len(rebuild.new.nodes)
        operands = [whole[v] if id(node) in exact and v in whole else rebuild[v] for v in node.inputs]
        if value in stored and _picks(node) and node.inputs[0] in stored:
            operands = [v.cast(stored[value]) for v in operands]
        made = rebuild.new.add(node.op, *operands)
        assert isinstance(made, Value)
        whole[value] = made
        rounded = made.cast(stored[value]).cast(value.dtype) if value in stored else made
        rebuild.replace(node, rounded, first=first)
    return rebuild.finish()


def _picks(node: Node) -> bool:
    """Whether every result is one of the operands' elements, or none of them."""
    return isinstance(node.op, Concat) or (isinstance(node.op, ReduceWindow) and node.op.combine != "add")


def _stored(graph: Graph) -> dict[Value, DType]:
    """Values of f32 that convolutions lead to and that lie in memory, and what they are to be rounded to."""
    results = set(graph.outputs.values())
    narrow: dict[Value, DType] = {}  # what convolutions lead to, and their dtype
    kernel: dict[Value, int] = {}  # of these: which kernel makes them, by the place of its first node
    found: dict[Value, DType] = {}

    def is_read(value: Value) -> bool:
        """Whether something reads it that is not done element by element."""
        return any(
            not isinstance(user.op, Elementwise) or (isinstance(user.op, Cast) and user.types[0].dtype is narrow[value])
            for user in graph.uses(value)
        )

    for place, node in enumerate(graph.nodes):
        if len(node.types) != 1 or node.regions:
            continue
        value, shape = node.outputs[0], node.types[0].shape
        led = [v for v in node.inputs if v in narrow]
        if isinstance(node.op, Conv) and value.dtype in (dtypes.f16, dtypes.bf16):
            narrow[value], kernel[value] = value.dtype, place
            continue
        if isinstance(node.op, Elementwise):
            led = [v for v in led if v.shape == shape]
            if not led:
                continue
            open_ends = {kernel[v] for v in led if v not in found}
            kernel[value] = min(open_ends, default=place)
            found.update((v, narrow[v]) for v in led if v not in found and kernel[v] != kernel[value])
        elif isinstance(node.op, (ReduceWindow, Concat)) and len(led) == len(node.inputs):
            kernel[value] = place
        else:
            continue
        narrow[value] = narrow[led[0]]
        if value.dtype is dtypes.f32 and is_read(value):
            found[value] = narrow[value]
    return {v: to for v, to in found.items() if v.dtype is dtypes.f32 and v not in results}
