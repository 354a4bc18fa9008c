"""Moves what every trip of a loop computes alike before the loop.

This is for backends that hand graphs to a library op by op. Where kernels are generated from the graph, slices and
transposes in a body cost nothing, and hoisting them would turn them into buffers.
"""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Graph, Node
from rlx.ir.op import Constant
from rlx.ir.symbols import symbols_of
from rlx.ops.control import Scan
from rlx.passes.driver import Context, Pass, Rebuild


class Hoist(Pass):
    """Values of a scan's body that hang on nothing but operands that stay become such operands."""

    name = "hoist"
    outermost = True

    def run(self, graph: Graph, context: Context) -> Graph:
        rebuild = Rebuild(graph)
        changed = False
        for node in graph.nodes:
            if isinstance(node.op, Scan):
                invariant = _invariant(node)
                ends = _ends(node.regions[0], invariant)
                if ends and context.spend(self.name, "invariant", node):
                    _take_out(rebuild, node, invariant, ends)
                    changed = True
        return rebuild.finish() if changed else graph


def _invariant(node: Node) -> list[Node]:
    """Nodes of the body that what stays decides, and constants."""
    op: Any = node.op
    body = node.regions[0]
    fixed = set(body.inputs[op.carried + op.sequences :])
    invariant: list[Node] = []
    for each in body.nodes:
        decided = bool(each.inputs) and all(v in fixed for v in each.inputs)
        if isinstance(each.op, Constant) or (decided and not each.regions and not symbols_of(each)):
            fixed.update(each.outputs)
            invariant.append(each)
    return invariant


def _ends(body: Graph, invariant: list[Node]) -> list[Node]:
    """Those of them, but for constants, of whose results others take some."""
    ids = {id(each) for each in invariant}
    outputs = {id(v.node) for v in body.outputs.values()}
    return [
        each
        for each in invariant
        if each.inputs
        and (id(each) in outputs or any(id(user) not in ids for v in each.outputs for user in body.uses(v)))
    ]


def _take_out(rebuild: Rebuild, node: Node, invariant: list[Node], ends: list[Node]) -> None:
    """The scan with results of these nodes of its body as operands, and before it what makes them."""
    body = node.regions[0]
    outside = dict(zip(body.inputs, (rebuild[v] for v in node.inputs)))
    first = len(rebuild.new.nodes)
    for each in invariant:
        copies = rebuild.new.add(each.op, *(outside[v] for v in each.inputs))
        outside.update(zip(each.outputs, copies if isinstance(copies, tuple) else (copies,)))
    inner = Rebuild(body)
    for each in ends:
        operands = [inner.new.input(f"{each.name}.{v.index}", v.shape, v.dtype) for v in each.outputs]
        inner.replace(each, *operands, first=len(inner.new.nodes))
    more = [outside[v] for each in ends for v in each.outputs]
    scan = rebuild.new.add(node.op, *(rebuild[v] for v in node.inputs), *more, regions=(inner.finish(),))
    rebuild.replace(node, *(scan if isinstance(scan, tuple) else (scan,)), first=first)
