"""Products with weights for tests of those in 8 bits, of bytes and of floats."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from rlx import ops
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.verify import verify
from rlx.passes.driver import Context
from rlx.passes.quantise import BYTES, LEAST_COLUMNS, LEAST_DEPTH, Format, Quantise, Range, products

RANGES = (None, Range(-4.0, 5.0))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def quantised(graph: Graph, of: Range | None = None, to: Format = BYTES) -> Graph:
    ranges = {} if of is None else {node.name: of for node in products(graph, to)}
    made = Quantise(ranges, to).run(graph, Context())
    verify(made)
    return made


def product_of(*shape: int | str, weight: Array, axis: int = 0) -> Graph:
    graph = Graph("product")
    x, w = graph.input("x", shape), graph.param("w", weight.shape, data=weight)
    y = ops.dot_general(x, w, lhs_contract=(len(shape) - 1,), rhs_contract=(axis,))
    graph.output(y, name="y")
    return graph


@st.composite
def operands(draw: st.DrawFn) -> tuple[Array, Array]:
    """Rows of any size and shift, none of them too, and a weight."""
    rows = draw(st.integers(0, 4))
    depth = draw(st.integers(LEAST_DEPTH, 70))
    columns = draw(st.integers(LEAST_COLUMNS, 40))
    seed, exponent = draw(st.integers(0, 1000)), draw(st.integers(-20, 20))
    shift = draw(st.sampled_from([-3.0, -1.0, 0.0, 2.0]))
    x = ((normal(rows, depth, seed=seed) + np.float32(shift)) * np.float32(2.0**exponent)).astype(np.float32)
    return x, normal(depth, columns, seed=seed + 1)
