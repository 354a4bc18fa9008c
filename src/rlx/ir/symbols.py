"""Which dims a node mentions: in its types, in its attributes, and in its regions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rlx.ir import dim as dims
from rlx.ir.dim import Poly
from rlx.ir.type import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Graph, Node


def symbols_of(node: Node) -> set[str]:
    """Names of all dims that must have a value before the node can run."""
    symbols: set[str] = set()
    for value in (*node.types, *node.op.attributes().values()):
        symbols |= _symbols(value)
    for region in node.regions:
        symbols |= symbols_within(region.nodes)
        for equality in region.equalities:
            symbols |= equality.symbols
    return symbols


def symbols_within(nodes: Iterable[Node]) -> set[str]:
    """`symbols_of` several nodes."""
    return set().union(*(symbols_of(node) for node in nodes))


def has_measured(graph: Graph) -> bool:
    """Whether the graph, or a region of it, measures a dim while it runs."""
    return any(node.op.name == "measured" or any(map(has_measured, node.regions)) for node in graph.nodes)


def _symbols(value: Any) -> set[str]:
    if isinstance(value, Poly):
        return dims.symbols(value)
    if isinstance(value, TensorType):
        return _symbols(value.shape)
    if isinstance(value, tuple):
        return set().union(*map(_symbols, value))
    return set()
