"""Which nodes of a model its outputs depend on: no others are imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.errors import ModelError
from rlx.frontends.onnx.messages import AttributeProto

MAX_INLINE_DEPTH = 32
"""Of functions and sub-graphs in one another."""


def needed(nodes: Sequence[Any], outputs: Sequence[str]) -> list[int]:
    """Indices of the nodes that the outputs depend on, in order. Nodes with sub-graphs need whatever those name."""
    names = set(outputs)
    indices: list[int] = []
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        if names.isdisjoint(node.output):
            continue
        indices.append(index)
        names.update(node.input)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                names.update(_names_in(body, 0))
    return indices[::-1]


def _names_in(body: Any, depth: int) -> set[str]:
    if depth > MAX_INLINE_DEPTH:
        raise ModelError(f"[onnx] expected sub-graphs nested at most {MAX_INLINE_DEPTH} deep, got more")
    names = {o.name for o in body.output}
    for node in body.node:
        names.update(node.input)
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                names |= _names_in(attribute.g, depth + 1)
    return names
