"""Experts of which a device holds only some: which weights these are, and the product of rows by the matrices that are
there.

A grouped product whose weight is held in *slots* is no part of any program of the graph: `passes.staging` cuts there,
and the product is a graph of its own, of rows, the slot of each row, and a weight with as many matrices as there are
slots. Rows without a slot keep what an earlier product gave them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Param
from rlx.ops import build
from rlx.ops.experts import GroupedMatmul

Budget = int | tuple[tuple[str, int], ...]
"""How many experts a device holds: of every weight, or of each by its name."""
WORD_BYTES = 4
ROWS, BEFORE, SLOTS, WEIGHT = "rows", "before", "slots", "weight"
"""What a product on slots takes."""


def held_weights(graph: Graph, budget: Budget | None) -> dict[str, int]:
    """The weights of which a device holds only some matrices, and how many. Nothing but grouped products at the top of
    the graph reads them, and a matrix is whole words."""
    if budget is None:
        return {}
    wanted = None if isinstance(budget, int) else dict(budget)
    kept = set(graph.outputs.values())
    held = {}
    for value in graph.params:
        users = graph.uses(value)
        if not users or value in kept or not all(_reads_by_expert(user, value) for user in users):
            continue
        slots = budget if isinstance(budget, int) else (wanted or {}).get(value.name)
        experts, *matrix = (n for n in value.shape if isinstance(n, int))
        if slots is None or not value.type.is_static or not 0 < slots < experts:
            continue
        if math.prod(matrix) * value.dtype.itemsize % WORD_BYTES == 0:
            held[value.name] = slots
    return held


def _reads_by_expert(node: Node, weight: Value) -> bool:
    return isinstance(node.op, GroupedMatmul) and [v == weight for v in node.inputs] == [False, True, False]


def is_held(node: Node, held: Mapping[str, int]) -> bool:
    """Whether a node is a product by such a weight."""
    return isinstance(node.op, GroupedMatmul) and isinstance(node.inputs[1].op, Param) and node.inputs[1].name in held


def product_on_slots(node: Node, slots: int) -> Graph:
    """The program of a product whose weight has so many slots: `rows`, results of `before`, and the slot of each row,
    -1 for rows without one."""
    rows, weight, _ = node.inputs
    graph = Graph(f"{node.graph.name}.experts", node.graph.assumes_equal)
    graph.bounds = dict(node.graph.bounds)
    x = graph.input(ROWS, rows.shape, rows.dtype)
    before = graph.input(BEFORE, node.types[0].shape, rows.dtype)
    at = graph.input(SLOTS, (rows.shape[0],), dtypes.i32)
    matrices = graph.param(WEIGHT, (slots, *weight.shape[1:]), weight.dtype)
    product = build.grouped_matmul(x, matrices, build.maximum(at, 0))
    there = build.ge(at, 0).reshape((rows.shape[0], 1))
    graph.output(build.select(build.broadcast_to(there, shape=product.shape), product, before), name="results")
    return graph
