"""Transposes weights so that the summed axis of a product comes first, for libraries that prefer it.

XLA's products on a processor copy their right side into panels. If they also have to transpose it, products of few rows
take up to twice as long. Weights are transposed once (`prepare`), and values that do not change in a loop before it
(`hoist`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rlx.ir.graph import Graph, Node, Value
from rlx.ops.control import Scan
from rlx.ops.linalg import DotGeneral
from rlx.passes.driver import Context, Pass, Rebuild
from rlx.passes.merge_dots import prepared


class TransposeWeights(Pass):
    """Right sides [n, k] that stay from run to run, or from trip to trip, become [k, n]."""

    name = "transpose-weights"
    outermost = True

    def run(self, graph: Graph, context: Context) -> Graph:
        return self._turned(graph, (), context)

    def _turned(self, graph: Graph, staying: Iterable[Value], context: Context) -> Graph:
        """The graph, and bodies of loops in it; `staying` are inputs that are what they were in the trip before."""
        weights = prepared(graph, staying)
        rebuild = Rebuild(graph)
        changed = False
        for node in graph.nodes:
            if _lies(node, weights) and context.spend(self.name, "right", node):
                _turn(rebuild, node)
                changed = True
            elif isinstance(node.op, Scan):
                (body,) = node.regions
                new_body = self._turned(body, body.inputs[node.op.carried + node.op.sequences :], context)
                rebuild.keep(node, (new_body,))
                changed = changed or new_body is not body
        return rebuild.finish() if changed else graph


def _lies(node: Node, weights: set[Value]) -> bool:
    """Whether it is a product with a weight [n, k]."""
    op = node.op
    if not isinstance(op, DotGeneral) or op.rhs_contract != (1,) or op.rhs_batch:
        return False
    left, right = node.inputs
    return right.rank == 2 and right in weights and left not in weights


def _turn(rebuild: Rebuild, node: Node) -> None:
    op = node.op
    assert isinstance(op, DotGeneral)
    left, right = (rebuild[v] for v in node.inputs)
    first = len(rebuild.new.nodes)
    dot = rebuild.new.add(dataclasses.replace(op, rhs_contract=(0,)), left, right.transpose(1, 0))
    assert isinstance(dot, Value)
    rebuild.replace(node, dot, first=first)
