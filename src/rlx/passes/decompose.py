"""Replaces composites by the simpler ops that define them, except those that the target claims."""

from __future__ import annotations

from collections.abc import Callable

from rlx.errors import GraphError, RlxError
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Composite
from rlx.ir.type import TensorType
from rlx.ops import build
from rlx.passes.driver import Context, Pass, Rebuild

Claims = Callable[[Node], bool]

MAX_DEPTH = 16  # composites of composites


def no_claims(node: Node) -> bool:
    """Claims nothing: everything becomes primitives."""
    return False


def decompose(graph: Graph, claims: Claims = no_claims) -> Graph:
    """The graph with every composite that `claims` does not take replaced by its definition, down to primitives.

    The last node of a definition takes the composite's name, the others are called `<name>/<op>`; all keep its source.
    """
    for _ in range(MAX_DEPTH):
        if not any(_open(node, claims) for node in graph.nodes):
            return graph
        graph = _expand(graph, claims)
    composite = next(node for node in graph.nodes if _open(node, claims))
    raise GraphError(
        f"[{composite.op.name}] expected a definition of at most {MAX_DEPTH} levels, at node {composite.name!r}"
    )


def _open(node: Node, claims: Claims) -> bool:
    return node.op.is_composite and not claims(node)


def _expand(graph: Graph, claims: Claims) -> Graph:
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        if not isinstance(node.op, Composite) or not _open(node, claims):
            rebuild.keep(node)
            continue
        operands = [rebuild[v] for v in node.inputs]
        first = len(rebuild.new.nodes)
        try:
            definition = node.op.decompose(*operands)
        except RlxError as error:  # the sizes of its parts may be too large
            raise type(error)(f"{error}, at node {node.source or node.name!r}") from None
        results: tuple[Value, ...] = definition if isinstance(definition, tuple) else (definition,)
        results = tuple(_as_typed(node, value, declared) for value, declared in zip(results, node.types, strict=True))
        for new_node in rebuild.new.nodes[first:]:
            rebuild.new.rename(new_node, f"{node.name}/{new_node.op.name}")
        rebuild.replace(node, *results, first=first)
    return rebuild.finish()


def _as_typed(node: Node, value: Value, declared: TensorType) -> Value:
    """What a definition made, with dims as the node's type writes them: a definition may find an open dim to be equal
    to a known one. Raises GraphError where it made something else."""
    if value.type == declared:
        return value
    alike = value.dtype is declared.dtype and value.rank == declared.rank
    unlike = [(d, w) for d, w in zip(value.shape, declared.shape) if d != w]
    if not alike or any(d == 1 or isinstance(d, int) == isinstance(w, int) for d, w in unlike):
        raise GraphError(f"[{node.op.name}] expected a definition of {declared}, got {value.type}, at {node.name!r}")
    return build.broadcast_to(value, shape=declared.shape)


class Decompose(Pass):
    """`decompose` as a pass. It is no optimisation: it cannot be switched off by the rewrite limit."""

    name = "decompose"

    def __init__(self, claims: Claims = no_claims) -> None:
        self.claims = claims

    def run(self, graph: Graph, context: Context) -> Graph:
        return decompose(graph, self.claims)
