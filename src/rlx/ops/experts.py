"""Mixtures of experts: products by a matrix that each row chooses, and the choice of experts.

Rows are sorted by expert and cut into tiles with one expert each, so that a matrix is read once per tile instead of
once per row. All of it is expressed in ops that every backend has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Value, call
from rlx.ir.op import Composite, Range, Tolerance, op
from rlx.ir.type import TensorType
from rlx.ops import build

Array = np.ndarray[Any, Any]

__all__ = ["mixture", "route"]

TILE = 16
"""Rows of one expert that are multiplied together."""
FEW = 16
"""Up to so many rows each reads its matrix alone: there is little to share."""


@op
class GroupedMatmul(Composite):
    """Every row times the matrix of its expert: result[i] = x[i] @ weights[experts[i]].

    x         float [m, k]
    weights   like x [e, k, n]
    experts   i32 or i64 [m]; counted from the back if negative, clamped without checks
    result    like x [m, n]; narrow floats add up in f32
    """

    tolerance = Tolerance(64, scale=1)

    def infer(self, x: TensorType, weights: TensorType, experts: TensorType) -> TensorType:
        expect.kind(x, "float", name="x")
        expect.same_dtype(x, weights)
        expect.kind(experts, "int", name="experts")
        for of, name, rank in ((x, "x", 2), (weights, "weights", 3), (experts, "experts", 1)):
            expect.rank(of, rank, name, at_most=rank)
        expect.same_dim(x.shape[1], weights.shape[1], f"contracting dims differ: x is {x}, weights are {weights}")
        rows = expect.same_dim(x.shape[0], experts.shape[0], f"rows differ: x is {x}, experts are {experts}")
        return x.with_shape((rows, weights.shape[2]))

    def ranges(self, x: TensorType, weights: TensorType, experts: TensorType) -> tuple[Range, ...]:
        return (Range.of_index(2, weights.shape[0]),)

    def reference(self, x: Array, weights: Array, experts: Array) -> Array:
        count = weights.shape[0]
        out = np.zeros((x.shape[0], weights.shape[2]), np.float64)
        if count:
            chosen = np.clip(np.where(experts < 0, experts + count, experts), 0, count - 1)
            with np.errstate(all="ignore"):
                for row, expert in enumerate(chosen):
                    out[row] = x[row].astype(np.float64) @ weights[expert].astype(np.float64)
        with np.errstate(over="ignore"):
            return out.astype(x.dtype)

    def decompose(self, x: Value, weights: Value, experts: Value) -> Value:
        rows = expect.same_dim(x.shape[0], experts.shape[0], "rows differ")
        x, experts = x.reshape((rows, x.shape[1])), experts.reshape((rows,))
        if weights.shape[0] == 0:
            zero = x.graph.constant(0, x.dtype)
            return build.broadcast_to(zero, shape=(rows, weights.shape[2]))
        if isinstance(rows, int):
            return _few(x, weights, experts) if rows <= FEW else _many(x, weights, experts)
        count = build.dims_tensor(x.graph, values=(rows,))
        operands = (x, weights, experts)
        regions = tuple(_region(name, body, operands) for name, body in (("few", _few), ("many", _many)))
        results = call("if", build.le(count[0], FEW), *operands, regions=regions)
        return results if isinstance(results, Value) else results[0]


def _region(name: str, body: Any, operands: tuple[Value, ...]) -> Graph:
    graph = Graph(name, operands[0].graph.assumes_equal)
    graph.output(body(*(graph.input(f"in{i}", v.shape, v.dtype) for i, v in enumerate(operands))))
    return graph


def _few(x: Value, weights: Value, experts: Value) -> Value:
    """Each row reads its own matrix, along its rows."""
    wide = dtypes.f32 if x.dtype.bits < 32 else x.dtype
    chosen = build.gather(weights, experts, axis=0).cast(wide)
    column = x.cast(wide).reshape((x.shape[0], x.shape[1], 1))
    return build.reduce_sum(column * chosen, axes=(1,)).cast(x.dtype)


def _many(x: Value, weights: Value, experts: Value) -> Value:
    """Rows in the order of their experts, in tiles of one expert each."""
    rows, count, out = x.shape[0], weights.shape[0], weights.shape[2]
    last = build.dims_tensor(x.graph, values=(dims.add(count, -1),))[0]
    size = build.dims_tensor(x.graph, values=(count,))[0]
    wide = experts.cast("i64")
    wide = build.minimum(build.maximum(build.select(build.lt(wide, 0), wide + size, wide), 0), last)
    order = build.argsort(wide, axis=0)
    # how many rows and tiles each expert has, and where the first of them is
    every = build.iota(x.graph, shape=(1, count), axis=1, dtype="i64")
    belongs = build.eq(wide.reshape((rows, 1)), every).cast("i64")
    rows_of_expert = build.reduce_sum(belongs, axes=(0,))
    tiles = build.div(rows_of_expert + (TILE - 1), TILE)
    first_row = build.cumsum(rows_of_expert, axis=0, exclusive=True)
    upto = build.cumsum(tiles, axis=0)
    first_tile = upto - tiles
    # which expert each tile has, and which rows
    most = _most_tiles(rows, count)
    number = build.iota(x.graph, shape=(most,), axis=0, dtype="i64")
    passed = build.le(upto.reshape((1, count)), number.reshape((most, 1)))
    owner = build.minimum(build.reduce_sum(passed.cast("i64"), axes=(1,)), last)
    start = build.gather(first_row, owner, axis=0) + (number - build.gather(first_tile, owner, axis=0)) * TILE
    within = build.iota(x.graph, shape=(1, TILE), axis=1, dtype="i64")
    end = build.dims_tensor(x.graph, values=(dims.add(rows, -1),))[0]
    place = build.minimum(
        start.reshape((most, 1)) + within, end
    )  # rows beyond the expert's own are computed and not used
    tiled = build.gather(x, build.gather(order, place, axis=0), axis=0)
    products = build.dot_general(
        tiled, build.gather(weights, owner, axis=0),
        lhs_contract=(2,), rhs_contract=(1,), lhs_batch=(0,), rhs_batch=(0,),
    )  # fmt: skip
    # where each row's result lies
    at = build.argsort(order, axis=0) - build.gather(first_row, wide, axis=0)
    at = build.gather(first_tile, wide, axis=0) * TILE + at
    return build.gather(products.reshape((dims.mul(most, TILE), out)), at, axis=0)


def _most_tiles(rows: Dim, count: Dim) -> Dim:
    """Every expert but for those without rows may have a tile that is not full."""
    return dims.minimum(rows, dims.floordiv(dims.add(rows, dims.mul(count, TILE - 1)), TILE))


def route(logits: Value, k: int, renormalise: bool = True) -> tuple[Value, Value]:
    """The k experts of each token and their shares.

    logits        float [tokens, experts]
    renormalise   the shares of the k add up to 1; else they are those among all experts
    results       shares like logits [tokens, k], experts i64 [tokens, k], the greatest first
    """
    results = call("top_k", build.softmax(logits, axis=1), axis=1, k=k)
    assert isinstance(results, tuple)
    shares, chosen = results
    if renormalise:
        shares = shares / build.reduce_sum(shares, axes=(1,), keepdims=True)
    return shares, chosen


def mixture(x: Value, shares: Value, experts: Value, gate: Value, up: Value, down: Value) -> Value:
    """Gated feed-forward experts: the sum over each token's experts of share * (silu(x gate) * (x up)) down.

    x         float [tokens, width]
    shares    like x [tokens, k]
    experts   i32 or i64 [tokens, k]
    gate, up  like x [experts, width, inner]; down [experts, inner, width]
    Source: Mixtral, arXiv 2401.04088, equation 2.
    """
    if (x.rank, experts.rank) != (2, 2):
        raise ShapeError(f"[mixture] expected x and experts of rank 2, got {x.type} and {experts.type}")
    tokens, k = experts.shape
    width = x.shape[1]
    flat = experts.reshape((dims.mul(tokens, k),))
    every = build.broadcast_to(x.reshape((tokens, 1, width)), shape=(tokens, k, width))
    every = every.reshape((dims.mul(tokens, k), width))
    inner = build.silu(build.grouped_matmul(every, gate, flat)) * build.grouped_matmul(every, up, flat)
    outputs = build.grouped_matmul(inner, down, flat).reshape((tokens, k, width))
    return build.reduce_sum(outputs * shares.reshape((tokens, k, 1)), axes=(1,))
