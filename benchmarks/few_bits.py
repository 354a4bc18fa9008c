"""Graphs whose weights have few bits, by chance: for measurements of what they take."""

from __future__ import annotations

from functools import cache

import numpy as np

import rlx
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.literal import Array
from rlx.ir.op import Param
from rlx.ops.linalg import Matmul
from rlx.ops.shape import Transpose
from rlx.passes.driver import Rebuild


def in_blocks(graph: Graph, bits: int, block: int) -> Graph:
    """The graph with weights of few bits in place of those that products read."""
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        weight = _weight(node)
        if weight is None:
            rebuild.keep(node)
            continue
        first = len(rebuild.new.nodes)
        columns, depth = graph.data[weight.name].shape
        packed, scale = _packed(columns, depth, bits, block)
        scale = scale.astype(weight.dtype.numpy)
        x, new = rebuild[node.inputs[0]], rebuild.new
        parameters = [
            new.param(f"{weight.name}.{node.name}.{kind}", array.shape, dtype, data=array)
            for kind, array, dtype in (("bits", packed, "u8"), ("scale", scale, weight.dtype))
        ]
        y = rlx.ops.packed_matmul(x, *parameters, depth=x.shape[-1], bits=bits, block=block)
        rebuild.replace(node, y, first=first)
    return rebuild.finish()


def _weight(node: Node) -> Value | None:
    """The weight that a product reads turned."""
    if not isinstance(node.op, Matmul) or not isinstance(node.inputs[1].op, Transpose):
        return None
    source = node.inputs[1].node.inputs[0]
    return source if isinstance(source.op, Param) and source.rank == 2 else None


@cache
def _packed(columns: int, depth: int, bits: int, block: int) -> tuple[Array, Array]:
    """Bytes by chance, and the scale of each block of a row, with which a row's norm is about 1."""
    drawn = np.random.default_rng(columns).integers(0, 256, (columns, depth * bits // 8), np.uint8)
    step = np.sqrt(12 / depth) / (1 << bits)
    return drawn, np.full((columns, depth // block), step, np.float32)
