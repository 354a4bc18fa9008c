"""Data-dependent selection of elements, whose number is known only at run time: nonzero, compress, unique,
masked_select.

`Positions` is the op: it lists a number of positions that its user knows. The builders count first, turn the count into
a dim (`shorthand.measure`), and express everything else in ops of known shape, so that every backend has them.
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
from rlx.ir.op import Composite, op
from rlx.ir.type import TensorType
from rlx.ops import build
from rlx.ops.shorthand import measure

Array = np.ndarray[Any, Any]

__all__ = ["compress", "masked_select", "nonzero", "unique"]

BLOCK = 1024
"""Elements that are counted in order; blocks go side by side."""


@op
class Positions(Composite):
    """The places of the first `count` elements that hold, in row-major order.

    x        bool [...]
    result   i64 [rank, count], zeros where fewer elements hold
    """

    count: Dim

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, "bool")
        return TensorType((x.rank, self.count), dtypes.i64)

    def reference(self, x: Array) -> Array:
        out = np.zeros((x.ndim, dims.evaluate(self.count, {})), np.int64)
        positions = np.array(np.nonzero(np.atleast_1d(x)), np.int64)[: x.ndim, : out.shape[1]]
        out[:, : positions.shape[1]] = positions
        return out

    def decompose(self, x: Value) -> Value:
        if x.rank == 0:
            return build.iota(x.graph, shape=(0, self.count), dtype="i64")
        empty = build.broadcast_to(x.graph.constant(0, "i64"), shape=(self.count,))
        if x.type.size == 0:
            return build.broadcast_to(empty, shape=(x.rank, self.count))
        flags = _blocks(x)
        upto = build.cumsum(flags.cast("i32"), axis=1)
        totals = upto[:, -1].cast("i64")
        place = upto.cast("i64") - 1 + build.cumsum(totals, axis=0, exclusive=True).reshape(-1, 1)
        place = build.select(flags, place, _number(x.graph, self.count))  # behind the end: dropped
        number = build.iota(x.graph, shape=(dims.product(place.shape),), dtype="i64").reshape(place.shape)
        flat = build.scatter_nd(empty, place.reshape(-1, 1), number.reshape(-1), distinct=True)
        return _coordinates(flat, x.shape)


def _blocks(flags: Value) -> Value:
    """The flags [...] in rows of BLOCK, filled up with false."""
    size = flags.type.size
    if isinstance(size, int) and size <= BLOCK:
        return flags.reshape(1, size)
    rows = dims.ceildiv(size, BLOCK)
    high = dims.add(dims.mul(rows, BLOCK), dims.mul(size, -1))
    return build.pad(flags.reshape(size), low=(0,), high=(high,), value=False).reshape(rows, BLOCK)


def _coordinates(flat: Value, shape: tuple[Dim, ...]) -> Value:
    """Row-major positions [n] as coordinates [rank, n]."""
    rows = []
    for axis in range(len(shape)):
        part = flat
        inner = dims.product(shape[axis + 1 :])
        if inner != 1:
            part = build.div(part, build.maximum(_number(flat.graph, inner), 1))
        if axis:
            part = build.mod(part, build.maximum(_number(flat.graph, shape[axis]), 1))
        rows.append(part.reshape(1, -1))
    return build.concat(*rows, axis=0) if len(rows) > 1 else rows[0]


def _number(graph: Graph, dim: Dim) -> Value:
    """A dim as an i64 scalar."""
    if isinstance(dim, int):
        return graph.constant(np.int64(dim))
    return build.dims_tensor(graph, values=(dim,)).reshape(())


def _count(flags: Value) -> Value:
    """How many hold, i64 []."""
    return build.reduce_sum(build.reduce_sum(_blocks(flags).cast("i64"), axes=(1,)), axes=(0,))


def nonzero(x: Value, name: str = "n") -> Value:
    """Places of the elements that are not zero, in row-major order: i64 [rank, n], n being a dim that a run tells.

    x   any dtype [...]; NaN is not zero; a scalar gives [0, n]
    """
    flags = x if x.dtype is dtypes.bool_ else build.ne(x, 0)
    count = measure(_count(flags), upper=x.type.size, name=name)
    return build.positions(flags, count=count)


def compress(x: Value, condition: Value, axis: int | None = None) -> Value:
    """The slices of x along an axis, or without one its elements in row-major order, where the condition holds.

    x           any [...]
    condition   bool [m], m at most the extent; what lies behind it is left out
    Raises ShapeError, DTypeError.
    """
    expect.kind(condition.type, "bool", name="condition")
    expect.rank(condition.type, 1, "condition", at_most=1)
    if axis is None:
        x, axis = x.reshape(x.type.size), 0
    at = expect.axis(axis, x.rank)
    length, extent = condition.shape[0], x.shape[at]
    if isinstance(length, int) and isinstance(extent, int) and length > extent:
        raise ShapeError(f"[compress] expected a condition of at most {extent} elements, got {length}")
    places = nonzero(condition)
    return build.gather(x, places.reshape(places.shape[1]), axis=at)


def masked_select(x: Value, mask: Value) -> Value:
    """The elements of x where the mask (bool) holds, in row-major order; the two broadcast. Raises ShapeError."""
    shape = x.graph.broadcast(x.shape, mask.shape)
    x, mask = (v if v.shape == shape else build.broadcast_to(v, shape=shape) for v in (x, mask))
    return compress(x, mask.reshape(mask.type.size))


def unique(x: Value, axis: int | None = None, ordered: bool = True) -> tuple[Value, Value, Value, Value]:
    """The distinct elements of x, or along an axis its distinct slices.

    x        any but complex [...]; NaN equals NaN, and 0 equals -0
    ordered  ascending (slices by their first element that differs); else as they first appear
    results  the n distinct ones; where each appears first, i64 [n]; which of them every element is, i64 [m]; how
             often each appears, i64 [n]. m counts all elements, or along the axis; n is a dim that a run tells
    Raises ShapeError, DTypeError.
    """
    expect.kind(x.type, "bool", "int", "uint", "float")
    if axis is None:
        rows, at = x.reshape(x.type.size, 1), 0
    else:
        at = expect.axis(axis, x.rank)
        front = x.transpose(at, *(i for i in range(x.rank) if i != at)) if at else x
        rows = front.reshape(front.shape[0], dims.product(front.shape[1:]))
    order = _row_order(rows)
    first, inverse, counts = _groups(rows, order)
    if not ordered:
        turn = build.argsort(first, axis=0)
        first, counts = (build.gather(v, turn, axis=0) for v in (first, counts))
        inverse = build.gather(_inverse(turn), inverse, axis=0)
    values = build.gather(x.reshape(x.type.size) if axis is None else x, first, axis=at)
    return values, first, inverse, counts


def _row_order(rows: Value) -> Value:
    """The order of rows [m, k] by their first element, of equals by the second, and so on: i64 [m]."""
    length, width = rows.shape
    if width == 1:
        return build.argsort(rows.reshape(length), axis=0)
    step = Graph("column", rows.graph.assumes_equal)
    order, column = step.input("order", (length,), "i64"), step.input("column", (length,), rows.dtype)
    step.output(build.gather(order, build.argsort(build.gather(column, order, axis=0), axis=0), axis=0), name="order")
    start = build.iota(rows.graph, shape=(length,), dtype="i64")
    results = call("scan", start, rows.T, regions=(step,), carried=1, sequences=1, length=width, reverse=True)
    return results[0] if isinstance(results, tuple) else results


def _groups(rows: Value, order: Value) -> tuple[Value, Value, Value]:
    """Of rows in order: the first place of each distinct one, which each row is, and how many there are of each."""
    length = rows.shape[0]
    graph = rows.graph
    here = build.gather(rows, order, axis=0)
    before = build.gather(here, build.iota(graph, shape=(length,), dtype="i64") - 1, axis=0)
    same = build.eq(here, before)
    if rows.dtype.is_float:
        same = build.bitwise_or(same, build.bitwise_and(build.ne(here, here), build.ne(before, before)))
    differs = build.bitwise_not(build.reduce_all(same, axes=(1,)))
    heads = build.bitwise_or(differs, build.eq(build.iota(graph, shape=(length,), dtype="i64"), 0))
    group = build.cumsum(heads.cast("i64"), axis=0) - 1
    places = nonzero(heads)
    places = places.reshape(places.shape[1])
    behind = build.concat(places, _number(graph, length).reshape(1), axis=0)
    counts = behind[1:] - places
    empty = build.broadcast_to(graph.constant(0, "i64"), shape=(length,))
    inverse = build.scatter_nd(empty, order.reshape(length, 1), group, distinct=True)
    return build.gather(order, places, axis=0), inverse, counts


def _inverse(permutation: Value) -> Value:
    """Where each place went, i64 [n]."""
    numbers = build.iota(permutation.graph, shape=permutation.shape, dtype="i64")
    return build.scatter_nd(numbers, permutation.reshape(-1, 1), numbers, distinct=True)
