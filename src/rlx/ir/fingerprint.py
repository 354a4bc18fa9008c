"""A digest of a graph's program: equal digests mean equal programs, whatever the weights."""

from __future__ import annotations

import hashlib

from rlx.ir.graph import Graph
from rlx.ir.literal import Literal


def fingerprint(graph: Graph) -> str:
    """blake2b over nodes, types, bounds, equalities and output names, in hex. Names of inner nodes do not count."""
    hasher = hashlib.blake2b(digest_size=20)
    _feed(hasher, graph)
    return hasher.hexdigest()


def _feed(hasher: hashlib.blake2b, graph: Graph) -> None:
    numbers = {id(node): i for i, node in enumerate(graph.nodes)}
    lines = []
    for node in graph.nodes:
        attributes = ",".join(_text(value) for value in node.op.attributes().values())
        operands = ",".join(f"{numbers[id(v.node)]}.{v.index}" for v in node.inputs)
        leaf = repr(node.name) if not node.inputs else ""  # quoted: a name may hold anything
        lines.append(f"{node.op.name}({attributes})({operands}){leaf}{len(node.regions)}")
        for region in node.regions:
            hasher.update(b"region")
            _feed(hasher, region)
    for name, value in graph.outputs.items():
        lines.append(f"out {name!r} {numbers[id(value.node)]}.{value.index}")
    lines.append(repr(graph.states))
    lines.append(repr((graph.given, sorted(graph.bounds.items()))))
    lines.append(repr([(str(e.left), str(e.right), e.spreads) for e in graph.equalities]))
    hasher.update("\n".join(lines).encode())


def _text(value: object) -> str:
    if isinstance(value, Literal):
        return value.digest
    if isinstance(value, tuple):
        return "(" + ",".join(_text(part) for part in value) + ")"
    return f"{type(value).__name__}:{value!r}" if isinstance(value, str) else f"{type(value).__name__}:{value}"
