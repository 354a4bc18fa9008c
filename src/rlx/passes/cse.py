"""Common subexpression elimination: of nodes with equal op and operands, the first stays."""

from __future__ import annotations

import math

from rlx.ir.graph import Graph, Node
from rlx.ir.op import Input, Op, Param
from rlx.passes.driver import Context, Pass, Rebuild
from rlx.passes.pattern import COMMUTATIVE

Key = tuple[object, ...]


class Cse(Pass):
    """Merges nodes that compute the same."""

    name = "cse"

    def run(self, graph: Graph, context: Context) -> Graph:
        twins = self._twins(graph, context)
        if not twins:
            return graph
        rebuild = Rebuild(graph)
        for node in graph.nodes:
            twin = twins.get(id(node))
            if twin is None:
                rebuild.keep(node)
            else:
                rebuild.replace(node, *(rebuild[v] for v in twin.outputs), first=len(rebuild.new.nodes))
        return rebuild.finish()

    def _twins(self, graph: Graph, context: Context) -> dict[int, Node]:
        """Of each node that computes what an earlier one does, by its id, the first such node."""
        twins: dict[int, Node] = {}
        first: dict[Key, Node] = {}
        for node in graph.nodes:
            if node.regions or isinstance(node.op, (Input, Param)):
                continue
            inputs = [(id(twins.get(id(v.node), v.node)), v.index) for v in node.inputs]
            twin = first.setdefault(_key(node.op, inputs), node)
            if twin is not node and context.spend(self.name, "merge", node):
                twins[id(node)] = twin
        return twins


def _key(op: Op, inputs: list[tuple[int, int]]) -> Key:
    """What is equal of ops that compute the same on results of nodes, given by the node's id and their numbers."""
    if isinstance(op, COMMUTATIVE):
        inputs.sort()
    return (type(op), *map(exact, vars(op).values()), *inputs)


def exact(attribute: object) -> object:
    """An attribute for comparison: floats by their bits (0.0 is not -0.0), all else by type and value."""
    if isinstance(attribute, float):
        return ("float", "nan" if math.isnan(attribute) else attribute.hex())
    if isinstance(attribute, tuple):
        return tuple([exact(part) for part in attribute])
    return (type(attribute), attribute)
