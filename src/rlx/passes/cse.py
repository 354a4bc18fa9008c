"""Common subexpression elimination: of nodes with equal op and operands, the first stays."""

from __future__ import annotations

import math

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Input, Op, Param
from rlx.passes.driver import Context, Pass, Rebuild
from rlx.passes.pattern import COMMUTATIVE

Key = tuple[object, ...]


class Cse(Pass):
    """Merges nodes that compute the same."""

    name = "cse"

    def run(self, graph: Graph, context: Context) -> Graph:
        if not _has_twins(graph):
            return graph
        rebuild = Rebuild(graph)
        first: dict[Key, Node] = {}
        for node in graph.nodes:
            if node.regions or isinstance(node.op, (Input, Param)):
                rebuild.keep(node)
                continue
            key = _key(node.op, tuple(rebuild[v] for v in node.inputs))
            twin = first.setdefault(key, node)
            if twin is node or not context.spend(self.name, "merge", node):
                rebuild.keep(node)
            else:
                rebuild.replace(node, *(rebuild[v] for v in twin.outputs), first=len(rebuild.new.nodes))
        return rebuild.finish()


def _has_twins(graph: Graph) -> bool:
    """A cheap look for the first pair; pairs that only merging uncovers follow from one that is there."""
    seen: set[Key] = set()
    for node in graph.nodes:
        if not node.regions and not isinstance(node.op, (Input, Param)):
            key = _key(node.op, node.inputs)
            if key in seen:
                return True
            seen.add(key)
    return False


def _key(op: Op, inputs: tuple[Value, ...]) -> Key:
    if isinstance(op, COMMUTATIVE):
        inputs = tuple(sorted(inputs, key=lambda v: (id(v.node), v.index)))
    return (type(op), *(exact(value) for value in op.attributes().values()), *inputs)


def exact(attribute: object) -> object:
    """An attribute for comparison: floats by their bits (0.0 is not -0.0), all else by type and value."""
    if isinstance(attribute, float):
        return ("float", "nan" if math.isnan(attribute) else attribute.hex())
    if isinstance(attribute, tuple):
        return tuple(exact(part) for part in attribute)
    return (type(attribute), attribute)
