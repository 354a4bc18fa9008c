"""Finds the big weights in the bytes of an ONNX file without parsing them.

A protobuf parser copies every byte field. Weights are most of a file, so `lift` walks the wire format to the tensors,
takes `raw_data` of any size out, and leaves a mark in its place: the small rest goes to the parser, the weights stay
where they are, in the mapped file.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import field

from rlx.errors import ModelError
from rlx.records import dataclass

LEAST = 1024
MAX_DEPTH = 64

Tree = dict[int, str]
# Which fields of a message lead to tensors, by field number (onnx.proto).
_MESSAGES: dict[str, Tree] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
}
_RAW_DATA, _EXTERNAL_DATA = 9, 13
_ENDS: dict[str, tuple[int, ...]] = {"attribute": (7, 8, 9)}
"""Fields from which on a message has no tensors: an attribute's list of floats, ints or texts, each a field, of which
there may be millions."""


@dataclass
class Lifted:
    """What `lift` leaves: bytes for the parser, and the extents (offset, length) of what it took out.

    A tensor whose weights were taken out has an external-data entry with the key `key`, the value is the index.
    """

    skeleton: bytes = b""
    key: str = ""
    extents: list[tuple[int, int]] = field(default_factory=list)


def lift(data: memoryview) -> Lifted:
    """Takes the big tensors out of a serialised ModelProto. Raises ModelError where the bytes are no protobuf."""
    lifted = Lifted(key=f"rlx-{secrets.token_hex(8)}")
    lifted.skeleton = b"".join(_message(data, 0, len(data), "model", lifted, 0))
    return lifted


def _message(data: memoryview, start: int, end: int, kind: str, lifted: Lifted, depth: int) -> Iterator[bytes]:
    """The message between start and end, in pieces, with its big tensors taken out."""
    if depth > MAX_DEPTH:
        raise ModelError(f"[onnx] expected messages nested at most {MAX_DEPTH} deep, got more")
    tree = _MESSAGES.get(kind, {})
    copied_to = start  # bytes from here on are copied as they are
    for number, field_start, value_start, value_end in _fields(data, start, end, _ENDS.get(kind, ())):
        size = value_end - value_start
        if size < LEAST:
            continue
        if kind == "tensor" and number == _RAW_DATA:
            yield bytes(data[copied_to:field_start])
            yield _mark(lifted, value_start, size)
            copied_to = value_end
        elif number in tree:
            yield bytes(data[copied_to:field_start])
            inner = b"".join(_message(data, value_start, value_end, tree[number], lifted, depth + 1))
            yield _varint(number << 3 | 2) + _varint(len(inner)) + inner
            copied_to = value_end
    yield bytes(data[copied_to:end])


def _mark(lifted: Lifted, offset: int, length: int) -> bytes:
    lifted.extents.append((offset, length))
    key, value = lifted.key.encode(), str(len(lifted.extents) - 1).encode()
    entry = b"\x0a" + _varint(len(key)) + key + b"\x12" + _varint(len(value)) + value
    return _varint(_EXTERNAL_DATA << 3 | 2) + _varint(len(entry)) + entry


def _fields(data: memoryview, start: int, end: int, until: tuple[int, ...] = ()) -> Iterator[tuple[int, int, int, int]]:
    """Length-delimited fields up to one of the numbers in `until`: number, where the field starts, where its value
    starts and ends."""
    at = start
    while at < end:
        field_start = at
        tag, at = _read_varint(data, at, end)
        wire_type = tag & 7
        if tag >> 3 in until:
            return
        if wire_type == 2:
            size, at = _read_varint(data, at, end)
            if size > end - at:
                raise ModelError(f"[onnx] expected {size} bytes at offset {at}, got {end - at}: the file is truncated")
            yield tag >> 3, field_start, at, at + size
            at += size
        elif wire_type == 0:
            _, at = _read_varint(data, at, end)
        elif wire_type in (1, 5):
            at += 8 if wire_type == 1 else 4
            if at > end:
                raise ModelError(f"[onnx] expected a number before offset {end}: the file is truncated")
        else:
            raise ModelError(f"[onnx] expected a protobuf field at offset {field_start}, got wire type {wire_type}")


def _read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise ModelError(f"[onnx] expected a varint before offset {at}: the file is truncated or is no ONNX file")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
