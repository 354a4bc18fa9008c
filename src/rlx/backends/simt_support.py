"""Which nodes of a graph have no kernel from `codegen/simt`, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.base import Unsupported
from rlx.errors import CompileError, UnsupportedOp
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.kernel.lower.lowering import untaken
from rlx.kernel.lower.table import irregular_ops
from rlx.ops.control import Control
from rlx.passes.driver import Pass
from rlx.passes.pipeline import optimise


def refused(ready: Graph, why_unsupported: Callable[[DType], str | None]) -> list[tuple[Node, str]]:
    """Nodes of an optimised graph that have no kernel, or dtypes that a language cannot hold; those with regions also
    stand for what is refused in these."""
    lacking = [node for node in untaken(ready, irregular_ops()) if not isinstance(node.op, Control)]
    unsupported = [(node, "no kernel computes it") for node in lacking]
    for node in ready.nodes:
        reasons = [why_unsupported(t.dtype) for t in (*node.types, *(v.type for v in node.inputs))]
        reasons += [reason for region in node.regions for _, reason in refused(region, why_unsupported)]
        unsupported.extend((node, reason) for reason in dict.fromkeys(reasons) if reason is not None)
    return unsupported


def unsupported(
    graph: Graph,
    passes: Sequence[Pass],
    why_unsupported: Callable[[DType], str | None],
    render: Callable[[Graph], object],
) -> list[Unsupported]:
    """Nodes of a graph that have no kernel once it has gone through `passes`, or that `render` refuses."""
    ready, _ = optimise(graph, passes)
    reasons: dict[int, Unsupported] = {}
    for node, reason in refused(ready, why_unsupported):
        original = origin(graph, node)
        reasons.setdefault(id(original), Unsupported(original, reason))
    if not reasons:
        try:
            render(ready)
        except (UnsupportedOp, CompileError) as error:
            last = next(iter(graph.outputs.values())).node
            reasons[id(last)] = Unsupported(last, str(error))
    return list(reasons.values())


def origin(graph: Graph, node: Node) -> Node:
    """The node of the graph that a node of its optimised form came from."""
    names = (node.source or node.name, node.name)
    for original in graph.nodes:
        if original.name in names or (original.source is not None and original.source in names):
            return original
    return next(iter(graph.outputs.values())).node
