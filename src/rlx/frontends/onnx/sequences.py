"""Importer functions: sequences and optionals. Only the import knows what is in them; no op of the graph does.

A sequence is a Python list of items, or, if its length is known only at run time, a value with its elements along an
axis. An optional is its element or nothing, which must be known during the import. An index may be a run-time number if
all elements have the same type.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.frontends.onnx.model import dtype_of
from rlx.frontends.onnx.operand import Alike, Growing, Many, Nothing
from rlx.frontends.onnx.sequence_values import MAX_LENGTH, appended, unstacked
from rlx.frontends.onnx.table import Known, OnnxNode, Operand, as_int, onnx_op
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Value
from rlx.ops import build, shorthand


def _many(node: OnnxNode, item: Operand) -> list[Operand]:
    if isinstance(item, Growing):
        raise node.unsupported("a loop carries the sequence, and its body does more with it than to append to it")
    if isinstance(item, Alike):
        return unstacked(item).items
    if not isinstance(item, Many):
        raise node.wrong(f"expected a sequence, got {item.type}")
    return item.items


def _made(node: OnnxNode, items: Sequence[Operand], empty: Operand | None = None) -> Many:
    if len(items) > MAX_LENGTH:
        raise node.unsupported(f"sequences of more than {MAX_LENGTH} elements are not supported")
    dtype = items[0].dtype if items else empty.dtype if empty is not None else dtypes.f32
    if any(item.dtype is not dtype for item in items):
        raise node.wrong(f"expected elements of one dtype, got {sorted({str(item.dtype) for item in items})}")
    return Many(node.graph, list(items), dtype)


@onnx_op("SequenceConstruct")
def construct(node: OnnxNode, *items: Operand) -> Operand:
    return _made(node, items)


@onnx_op("SequenceEmpty")
def empty(node: OnnxNode) -> Operand:
    return Many(node.graph, [], dtype_of(node.integer("dtype", 1)))


@onnx_op("SequenceInsert")
def insert(node: OnnxNode, sequence: Operand, item: Operand, position: Known | None) -> Operand:
    if position is None and isinstance(sequence, (Alike, Growing)):
        return appended(node, sequence, item.value.reshape(1, *item.shape))
    items = list(_many(node, sequence))
    at = len(items) if position is None else _place(node, position, len(items) + 1, len(items))
    return _made(node, [*items[:at], item, *items[at:]])


@onnx_op("SequenceErase")
def erase(node: OnnxNode, sequence: Operand, position: Known | None) -> Operand:
    items = list(_many(node, sequence))
    at = _place(node, position, len(items), len(items)) if position is not None else len(items) - 1
    if not items:
        raise node.wrong("expected a sequence with elements, got an empty one")
    return _made(node, [*items[:at], *items[at + 1 :]], sequence)


def _place(node: OnnxNode, position: Known, end: int, count: int) -> int:
    """A position below `end`; negative ones count from the back of `count` elements."""
    at = as_int(node, position.reshape(-1)[0], "a position")
    if not -count <= at < end:
        raise node.wrong(f"expected a position in [{-count}, {end}), got {at}")
    return at + count if at < 0 else at


@onnx_op("SequenceAt")
def at(node: OnnxNode, sequence: Operand, position: Operand) -> Operand:
    """A position that only a run knows chooses among elements of one type."""
    if isinstance(sequence, Alike):
        index = position.value.reshape(()).cast("i64")
        return Operand.of(build.gather(sequence.stacked, index, axis=0))
    items = _many(node, sequence)
    if position.known is not None:
        return items[_place(node, position.known, len(items), len(items))]
    if len({item.type for item in items}) != 1:
        raise node.unsupported("which of elements of several shapes it takes is known only when the graph runs")
    stacked = shorthand.stack([item.value for item in items])
    return Operand.of(build.gather(stacked, position.value.reshape(()), axis=0))


@onnx_op("SequenceLength")
def sequence_length(node: OnnxNode, sequence: Operand) -> Operand:
    return node.knows(sequence.length if isinstance(sequence, Alike) else len(_many(node, sequence)))


@onnx_op("SplitToSequence")
def split_to_sequence(node: OnnxNode, x: Value, split: Operand | None) -> Operand:
    """Parts of one size, the last one smaller if they do not come out even; of the sizes of a vector; or of one
    element each, without its axis if the node says so. A size of 1 is as none: torch writes it, and wants no axis."""
    axis = node.axis(x.rank, 0)
    keeps = node.flag("keepdims", True)
    if split is not None and split.known is None:
        raise node.unsupported("the sizes of its parts are known only when the graph runs")
    single = split is None or (not split.shape and split.known_or_fail.item() == 1)
    if single and not isinstance(x.shape[axis], int):
        rows = x.transpose(axis, *(i for i in range(x.rank) if i != axis))
        return Alike(shorthand.expand_dims(rows, (axis + 1,)) if keeps else rows)
    extent = as_int(node, x.shape[axis], "the extent that it splits")
    if split is not None and split.shape:
        sizes = [as_int(node, size, "a size") for size in split.known_or_fail]
    else:
        size = 1 if split is None else as_int(node, split.known_or_fail.reshape(-1)[0], "a size")
        if size < 1:
            raise node.wrong(f"expected parts of at least one element, got {size}")
        if extent > size * MAX_LENGTH:
            raise node.unsupported(f"sequences of more than {MAX_LENGTH} elements are not supported")
        sizes = [size] * (extent // size) + ([extent % size] if extent % size else [])
    if any(size < 0 for size in sizes) or sum(sizes) != extent:
        raise node.wrong(f"expected sizes that make up {extent}, got {sizes}")
    parts = shorthand.split(x, sizes, axis)
    if single and not keeps:
        parts = tuple(shorthand.squeeze(part, (axis,)) for part in parts)
    return _made(node, [Operand.of(part) for part in parts], Operand.of(x))


@onnx_op("ConcatFromSequence")
def concat_from_sequence(node: OnnxNode, sequence: Operand) -> Value:
    axis = node.integer("axis")
    if isinstance(sequence, Alike):
        return _concatenated(node, sequence, axis)
    values = [item.value for item in _many(node, sequence)]
    if not values:
        raise node.wrong("expected a sequence with elements, got an empty one")
    if node.flag("new_axis"):
        return shorthand.stack(values, node.normal_axis(axis, values[0].rank + 1))
    return build.concat(*values, axis=node.normal_axis(axis, values[0].rank))


def _concatenated(node: OnnxNode, sequence: Alike, axis: int) -> Value:
    """Elements along a first axis, as what they make up along another one."""
    x, length = sequence.stacked, sequence.length
    node.graph.equal(length, dims.maximum(length, 1), "[ConcatFromSequence] expected a sequence with elements")
    new = node.flag("new_axis")
    at = node.normal_axis(axis, x.rank if new else x.rank - 1)
    order = [*range(1, at + 1), 0, *range(at + 1, x.rank)]
    transposed = x.transpose(*order)
    if new:
        return transposed
    shape = transposed.shape
    return transposed.reshape(*shape[:at], dims.mul(shape[at], shape[at + 1]), *shape[at + 2 :])


@onnx_op("SequenceMap")
def sequence_map(node: OnnxNode, sequence: Operand, *others: Operand) -> Sequence[Operand]:
    """The body for every element; other sequences go along with it, tensors stay."""
    body = node.graph_attribute("body")
    count = len(_many(node, sequence))
    for other in others:
        if isinstance(other, Many) and len(other.items) != count:
            raise node.wrong(f"expected sequences of {count} elements, got {len(other.items)}")
    rows = [
        node.subgraphs.inline(body, [item.items[i] if isinstance(item, Many) else item for item in (sequence, *others)])
        for i in range(count)
    ]
    columns = zip(*rows) if rows else [()] * len(body.output)
    return [_made(node, column) for column in columns]


@onnx_op("Optional")
def optional(node: OnnxNode, item: Operand | None) -> Operand:
    node.type_attribute("type")  # what an element would be; there is none
    return Nothing(node.graph) if item is None else item


@onnx_op("OptionalHasElement")
def has_element(node: OnnxNode, item: Operand | None) -> Operand:
    return node.knows(item is not None and not isinstance(item, Nothing), dtypes.bool_)


@onnx_op("OptionalGetElement")
def get_element(node: OnnxNode, item: Operand) -> Operand:
    if isinstance(item, Nothing):
        raise node.wrong("expected an optional with an element, got one without")
    return item
