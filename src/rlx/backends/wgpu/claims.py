"""What WebGPU devices run as it is: composites with a shader of their own."""

from __future__ import annotations

from rlx.backends.claims import attention_misfit
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Node
from rlx.ops.transformer import Attention

FEW_QUERIES = 32
"""Lanes have queries of their own: where there are less than so many, products share the work among more lanes."""


def attention(node: Node) -> str:
    """Why the attention shader does not take a node; empty if it does."""
    q, v = node.inputs[0].type, node.inputs[2].type
    if q.dtype is dtypes.f64:
        return "f64"
    if q.shape[3] == 0 or v.shape[3] == 0:
        return "a head size of 0"
    if isinstance(q.shape[2], int) and q.shape[2] < FEW_QUERIES:
        return "so few queries that products take less"
    return attention_misfit(node)


def claim(node: Node) -> str | None:
    """As `Backend.claim`."""
    return attention(node) if isinstance(node.op, Attention) else None
