"""Constant folding: nodes on constants alone become constants, by the ops' own references.

Params are not constants: they stay run-time weights, and the prepare program computes what depends on them alone. A
result may be as large as its operands or `BUDGET_BYTES`. Beyond a page, what only repeats or counts elements stays an
op, since a kernel creates it at no cost.
"""

from __future__ import annotations

from rlx.ir.dim import Poly
from rlx.ir.graph import Graph, Node
from rlx.ir.op import LEAVES, Constant, Measured
from rlx.ir.type import TensorType
from rlx.ops.shape import BroadcastTo, Iota
from rlx.passes.driver import Context, Pass, Rebuild

BUDGET_BYTES = 4 << 20
SPREAD_BYTES = 4 << 10


class Fold(Pass):
    """Evaluates nodes whose operands are constants."""

    name = "fold"

    def run(self, graph: Graph, context: Context) -> Graph:
        if not any(_foldable(node) for node in graph.nodes):
            return graph
        rebuild = Rebuild(graph)
        applied = 0
        for node in graph.nodes:
            operands = [rebuild[v].constant for v in node.inputs]
            known = [a for a in operands if a is not None]
            if len(known) == len(operands) and _affordable(node) and context.spend(self.name, "evaluate", node):
                result = node.op.reference(*known)
                results = result if isinstance(result, tuple) else (result,)
                first = len(rebuild.new.nodes)
                constants = [rebuild.new.constant(a, t.dtype) for a, t in zip(results, node.types)]
                rebuild.replace(node, *constants, first=first)
                applied += 1
            else:
                rebuild.keep(node)
        return rebuild.finish() if applied else graph


def _foldable(node: Node) -> bool:
    return all(isinstance(v.op, Constant) for v in node.inputs) and _affordable(node)


def _affordable(node: Node) -> bool:
    """Whether the node can be evaluated now, and its result may be kept."""
    if isinstance(node.op, (*LEAVES, Measured)) or node.regions or not all(t.is_static for t in node.types):
        return False
    if any(_symbolic(value) for value in node.op.attributes().values()):
        return False
    operand_bytes = sum(v.type.nbytes() for v in node.inputs if v.type.is_static)
    result_bytes = sum(t.nbytes() for t in node.types)
    if isinstance(node.op, (BroadcastTo, Iota)):
        return result_bytes <= SPREAD_BYTES
    return result_bytes <= max(BUDGET_BYTES, operand_bytes)


def _symbolic(attribute: object) -> bool:
    if isinstance(attribute, tuple):
        return any(_symbolic(part) for part in attribute)
    if isinstance(attribute, TensorType):
        return not attribute.is_static
    return isinstance(attribute, Poly)
