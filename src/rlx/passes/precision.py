"""The precision policy: which nodes compute in another dtype than they are written in. The default changes nothing."""

from __future__ import annotations

from collections.abc import Callable

from rlx.errors import DTypeError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.passes.driver import Context, Pass, Rebuild

Policy = Callable[[Node], DType | None]


class Precision(Pass):
    """Where the policy names a float dtype for a node, its float operands are cast to it and its results back."""

    name = "precision"

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy

    def run(self, graph: Graph, context: Context) -> Graph:
        if self.policy is None:
            return graph
        rebuild = Rebuild(graph)
        applied = 0
        for node in graph.nodes:
            target = self.policy(node)
            if target is None or not _changes(node, target) or not context.spend(self.name, "compute-in", node):
                rebuild.keep(node)
                continue
            if not target.is_float:
                raise DTypeError(f"[precision] expected a float dtype for node {node.name!r}, got {target}")
            operands = [rebuild[v] for v in node.inputs]
            first = len(rebuild.new.nodes)
            outputs = rebuild.new.add(node.op, *(v.cast(target) if v.dtype.is_float else v for v in operands))
            results = outputs if isinstance(outputs, tuple) else (outputs,)
            rebuild.replace(node, *(_back(v, t.dtype) for v, t in zip(results, node.types)), first=first)
            applied += 1
        return rebuild.finish() if applied else graph


def _changes(node: Node, target: DType) -> bool:
    return not node.regions and any(v.dtype.is_float and v.dtype is not target for v in node.inputs)


def _back(value: Value, dtype: DType) -> Value:
    return value.cast(dtype) if value.dtype.is_float else value
