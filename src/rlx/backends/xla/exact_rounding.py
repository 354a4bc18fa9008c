"""Sums in f64 that become integers: there the last bit decides between one number and the next.

XLA's processor backend joins a product and a sum into one rounding wherever it can, so that 3 · 5/7 + 3 · 2/7 is no
longer 3 and truncates to 2. Products on the way to such a cast are kept apart. Other sums are left to XLA.
"""

from __future__ import annotations

from typing import Any

from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Node
from rlx.ir.op import Elementwise


def truncated_sums(graph: Graph) -> set[int]:
    """The nodes, by id, that make f64s of which integers are made, with nothing but f64s in between."""
    found: set[int] = set()
    for node in reversed(graph.nodes):
        if id(node) in found or _counts(node):
            found.update(id(v.node) for v in node.inputs if v.dtype is dtypes.f64)
    return found


def _counts(node: Node) -> bool:
    """Whether a node makes integers of f64s."""
    made = node.types[0].dtype if node.types else None
    return isinstance(node.op, Elementwise) and made is not None and made.is_integer


def separately_rounded(product: Any) -> Any:
    """A product that is rounded before anything is added to it: what chooses between it and NaN has to see it."""
    import jax.numpy as jnp

    return jnp.where(product == product, product, jnp.nan)  # barriers are gone before code is made
