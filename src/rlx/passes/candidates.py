"""Suppression of boxes as a kernel of its own: it need not be told how many candidates there are, and a run measures no
dim for it."""

from __future__ import annotations

from rlx.ir.graph import Graph
from rlx.ops.nms import SuppressOverlaps
from rlx.passes.decompose import Claims
from rlx.passes.driver import Rebuild


def with_all_candidates(graph: Graph, claims: Claims) -> Graph:
    """The graph with nodes that the target claims told that all boxes may be candidates; what counted them goes. The
    same graph where there are none."""
    chosen = {id(node) for node in graph.nodes if isinstance(node.op, SuppressOverlaps) and claims(node)}
    if not chosen:
        return graph
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        if id(node) not in chosen:
            rebuild.keep(node)
            continue
        assert isinstance(node.op, SuppressOverlaps)
        first = len(rebuild.new.nodes)
        results = rebuild.new.add(
            node.op.with_all_candidates(node.inputs[1].type), *(rebuild[value] for value in node.inputs)
        )
        rebuild.replace(node, *(results if isinstance(results, tuple) else (results,)), first=first)
    made = rebuild.finish()
    made.prune()
    return made
