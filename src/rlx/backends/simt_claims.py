"""The composites that devices with kernels from `codegen/simt` run without decomposing them."""

from __future__ import annotations

from rlx.backends.claims import attention_unsupported
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Node
from rlx.kernel.passes.split_kv import FEW_QUERIES
from rlx.ops.transformer import Attention

MANY_QUERIES = 32
"""Lanes have queries of their own: where there are less than so many, products share the work among more lanes; or
chunks of keys do, if there are few queries and
"""
MANY_KEYS = 256
"""so many keys."""


def _over_many_keys(node: Node) -> bool:
    queries, keys = node.inputs[0].type.shape[2], node.inputs[1].type.shape[2]
    few = isinstance(queries, int) and queries <= FEW_QUERIES
    return few and not (isinstance(keys, int) and keys < MANY_KEYS)


def attention(node: Node) -> str:
    """Why the attention shader does not take a node; empty if it does."""
    q, v = node.inputs[0].type, node.inputs[2].type
    if q.dtype is dtypes.f64:
        return "f64"
    if q.shape[3] == 0 or v.shape[3] == 0:
        return "a head size of 0"
    if isinstance(q.shape[2], int) and q.shape[2] < MANY_QUERIES and not _over_many_keys(node):
        return "so few queries that products take less"
    return attention_unsupported(node)


def claim(node: Node) -> str | None:
    """As `Backend.claim`."""
    return attention(node) if isinstance(node.op, Attention) else None
