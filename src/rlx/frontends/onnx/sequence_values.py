"""Sequences during the import, and what becomes of those that loops carry.

A sequence is a list of items (`Many`) if the import knows how many there are, otherwise one value with its elements
along the first axis (`Alike`). A body that appends to a sequence returns what it appended (`Growing`), and the loop
collects it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.errors import UnsupportedOp
from rlx.frontends.onnx.operand import Alike, Growing, Many, Operand
from rlx.frontends.onnx.table import OnnxNode
from rlx.ir import dim as dims
from rlx.ir.graph import Value
from rlx.ops import build, shorthand

MAX_LENGTH = 4096


def is_sequence(item: Operand) -> bool:
    return isinstance(item, (Many, Alike, Growing))


def unstacked(sequence: Alike) -> Many:
    """The sequence as a list. Raises UnsupportedOp where only a run knows how many elements it has."""
    length = sequence.length
    if not isinstance(length, int):
        raise UnsupportedOp(f"how many elements a sequence has ({length}) is known only when the graph runs")
    if length > MAX_LENGTH:
        raise UnsupportedOp(f"sequences of more than {MAX_LENGTH} elements are not supported")
    return Many(sequence.graph, [Operand.of(sequence.stacked[i]) for i in range(length)], sequence.dtype)


def stacked(node: OnnxNode, sequence: Operand) -> Value | None:
    """The elements of a sequence along a first axis; None of an empty list, whose elements have no shape."""
    if isinstance(sequence, Alike):
        return sequence.stacked
    assert isinstance(sequence, Many)  # whoever asks has no sequence that grows
    types = list(dict.fromkeys(item.type for item in sequence.items))
    if len(types) > 1:
        raise node.unsupported(f"it has elements of several types, {types[0]} and {types[1]}, and a loop makes more")
    return shorthand.stack([item.value for item in sequence.items]) if sequence.items else None


def appended(node: OnnxNode, sequence: Operand, more: Value) -> Operand:
    """A sequence with the elements along the first axis of `more` behind its own."""
    if sequence.dtype is not more.dtype:
        raise node.wrong(f"expected elements of one dtype, got {sorted({str(sequence.dtype), str(more.dtype)})}")
    if isinstance(sequence, Growing):
        return sequence.with_parts(node.graph, (*sequence.parts, more))
    before = stacked(node, sequence)
    return Alike(more if before is None else joined(node, [before, more]))


def joined(node: OnnxNode, parts: Sequence[Value]) -> Value:
    """Elements of one type behind each other."""
    for part in parts[1:]:
        have, expected = part.type.with_shape(part.shape[1:]), parts[0].type.with_shape(parts[0].shape[1:])
        if have != expected:
            raise node.unsupported(
                f"elements of several types, {expected} and {have}, in a sequence that a loop carries"
            )
    return parts[0] if len(parts) == 1 else build.concat(*parts, axis=0)


def collected(node: OnnxNode, formal: Growing, result: Operand) -> list[Value]:
    """What a trip of a loop appends to a sequence that it carries, along a first axis; nothing, or one value."""
    if not isinstance(result, Growing) or result.origin is not formal.origin:
        raise node.unsupported("a sequence that it carries changes in another way than by what a trip appends to it")
    return [joined(node, result.parts)] if result.parts else []


def in_a_row(rows: Value) -> Value:
    """What all trips appended, [trips, elements of a trip, …], as one axis of elements."""
    trips, each, *shape = rows.shape
    return rows.reshape(dims.mul(trips, each), *shape)
