"""Numbers that an op needs during the import and that are known only at run time: they are measured then
(`ops.measured`).

The known parts of a vector stay known, element by element. Formats express some numbers in ways that dims cannot
(negative ends, -1 for the rest): importer functions first compute these with ops and measure the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.errors import ShapeError
from rlx.frontends.onnx.table import OnnxNode, Operand
from rlx.ir import dim as dims
from rlx.ir.dim import Dim, Poly
from rlx.ir.graph import Value
from rlx.ir.op import Measured
from rlx.ops import build, shorthand
from rlx.ops.elementwise import Cast
from rlx.ops.index import Gather
from rlx.ops.shape import Concat, DimsTensor, Reshape, Slice


def measure(node: OnnxNode, value: Value, upper: Dim | None = None, lower: Dim = 0) -> Dim:
    """A dim that is the number of an integer value of one element. Raises UnsupportedOp inside of bodies."""
    (known,) = elements(value)
    if known is not None and (isinstance(known, Poly) or known >= 0):
        return known
    node.measures("a number that it needs")
    return shorthand.measure(value, upper, lower)


def measure_all(node: OnnxNode, vector: Value, uppers: Sequence[Dim | None] | None = None) -> list[Dim]:
    """`measure` of every element of an integer vector of known length."""
    count = length(node, vector)
    limits = uppers or [None] * count
    return [measure(node, vector[i], upper) for i, upper in zip(range(count), limits, strict=True)]


def length(node: OnnxNode, vector: Value) -> int:
    """How many elements a vector has. Raises UnsupportedOp, ModelError."""
    if vector.rank != 1:
        raise node.wrong(f"expected a vector of numbers, got {vector.type}")
    if not isinstance(vector.shape[0], int):
        raise node.unsupported(f"how many numbers {vector.type} holds is known only when the graph runs")
    if vector.shape[0] > MOST_ELEMENTS:
        raise node.wrong(f"expected at most {MOST_ELEMENTS} numbers for dims or axes, got {vector.shape[0]}")
    return vector.shape[0]


MOST_ELEMENTS = 1 << 16
"""Elements of integer values that are looked at one by one: more are neither dims nor axes."""


def elements(value: Value) -> list[Dim | None]:
    """What the import can tell of the elements of a small integer value, in row-major order; None where it cannot.

    Raises ShapeError for a value that is not small."""
    size = value.type.size
    count = size if isinstance(size, int) else 1
    if count > MOST_ELEMENTS:
        raise ShapeError(f"expected at most {MOST_ELEMENTS} numbers for dims or axes, got {count}")
    if all(_is_small(operand) for operand in value.node.inputs):
        dims_of_operands = _from_operands(value)
        if dims_of_operands is not None:
            return dims_of_operands
    array = value.constant
    if array is None or array.dtype.kind not in "iu":
        return [None] * count
    return [int(n) for n in array.reshape(-1)]


def _is_small(value: Value) -> bool:
    return not isinstance(value.type.size, int) or value.type.size <= MOST_ELEMENTS


def _from_operands(value: Value) -> list[Dim | None] | None:
    """The elements of a value that only names or moves numbers; None for any other."""
    operands = value.node.inputs
    match value.op:
        case DimsTensor(values=values):
            return list(values)
        case Measured(symbol=symbol):
            return [dims.symbol(symbol)]
        case Reshape():
            return elements(operands[0])
        case Cast() if operands[0].dtype.is_integer and value.dtype.bits >= operands[0].dtype.bits:
            return elements(operands[0])
        case Concat() if value.rank == 1:
            return [each for operand in operands for each in elements(operand)]
        case Slice(starts=(int(first),), stops=(int(last),), steps=(int(step),)):
            return elements(operands[0])[first : None if last < 0 else last : step]
        case Gather() if operands[0].rank == 1 and operands[1].constant is not None:
            there = elements(operands[0])
            places = operands[1].constant.reshape(-1).tolist()
            return [there[i] if -len(there) <= i < len(there) else None for i in places]
    return None


def number(node: OnnxNode, dim: Dim) -> Value:
    """A dim as an i64 scalar."""
    if isinstance(dim, int):
        return node.graph.constant(np.int64(dim))
    return build.dims_tensor(node.graph, values=(dim,), dtype="i64").reshape(())


def extents(node: OnnxNode, shape: Sequence[Dim]) -> Value:
    """Dims as an i64 vector."""
    if all(isinstance(d, int) for d in shape):
        return node.graph.constant(np.array(shape, np.int64).reshape(-1))
    return build.dims_tensor(node.graph, values=tuple(shape), dtype="i64")


def vector(item: Operand) -> Value:
    """The numbers of an item as an i64 vector."""
    value = item.value.cast("i64")
    return value if value.rank == 1 else value.reshape(value.type.size)


def marked(node: OnnxNode, axes: Value, rank: int) -> Value:
    """Whether each of `rank` axes is among those of a vector, which may count from the back: bool [rank]."""
    hits = _hits(node, axes, rank)
    return node.require(hits, hits, 0, 2, "how often an axis comes") > 0


def _hits(node: OnnxNode, axes: Value, rank: int) -> Value:
    """How often each of `rank` axes is among those of a vector, i64 [rank]. Other axes fail the run."""
    count = length(node, axes)
    wrapped = build.select(axes < 0, axes + rank, axes)
    line = build.iota(node.graph, shape=(1, rank), dtype="i64", axis=1)
    hits = build.reduce_sum(build.eq(line, wrapped.reshape(count, 1)).cast("i64"), axes=(0,))
    return node.require(hits, axes, -rank, rank, "axes")


def unmarked_first(node: OnnxNode, mask: Value, count: int) -> Value:
    """The first `count` axes that are not marked, i64 [count]."""
    return build.positions(build.bitwise_not(mask), count=count).reshape(count)


def spread(node: OnnxNode, axes: Value, values: Value, rest: Value) -> Value:
    """`rest` [rank] with the elements of `values` at `axes`, which may count from the back."""
    count = length(node, axes)
    assert isinstance(rest.shape[0], int)  # a rank
    checked = node.require(rest, _hits(node, axes, rest.shape[0]), 0, 2, "how often an axis comes")
    return build.scatter_nd(checked, axes.reshape(count, 1), values)


def split_axes(node: OnnxNode, x: Value, axes: Value) -> tuple[Value, Value]:
    """x as a matrix, the axes of a vector along its columns and the others along its rows, and which these are."""
    mask = marked(node, axes, x.rank)
    shape = extents(node, x.shape)
    rows, columns = build.select(mask, 1, shape), build.select(mask, shape, 1)
    size = x.type.size
    total = [measure(node, build.reduce_prod(part, axes=(0,))) for part in (rows, columns)]
    # The element at row r and column c lies where the coordinates that both spell lead.
    place = _offset(node, rows, shape, total[0]).reshape(total[0], 1)
    place = place + _offset(node, columns, shape, total[1]).reshape(1, total[1])
    return build.gather(x.reshape(size), place, axis=0), mask


def _offset(node: OnnxNode, part: Value, shape: Value, total: Dim) -> Value:
    """For every number below `total`, its coordinates in the shape `part` as an offset into the array of `shape`."""
    rank = length(node, shape)
    strides, inner = (build.cumprod(v, axis=0, exclusive=True, reverse=True) for v in (shape, part))
    at = build.iota(node.graph, shape=(total, 1), dtype="i64")
    one = (1, rank)
    inner, part = (build.maximum(v, 1).reshape(one) for v in (inner, part))
    return build.reduce_sum(build.mod(build.div(at, inner), part) * strides.reshape(one), axes=(1,))
