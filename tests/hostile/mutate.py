"""Damage to files, all of it decided by a generator of random numbers with a seed."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

HOSTILE_NUMBERS = [
    0,
    1,
    -1,
    2,
    255,
    1 << 31,
    (1 << 31) - 1,
    1 << 32,
    1 << 40,
    1 << 62,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 64,
]
HOSTILE_LEAVES: list[Any] = [
    *HOSTILE_NUMBERS,
    None,
    True,
    1.5,
    float("inf"),
    "",
    "x" * 5000,
    [],
    {},
    [[]],
    "__import__",
    [0] * 100,
]


def mutated(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """The file with one to four damages."""
    raw = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not raw:
            break
        rng.choice(DAMAGES)(rng, raw, others)
    return bytes(raw)


def _flip(rng: random.Random, raw: bytearray, others: list[bytes]) -> None:
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, raw: bytearray, others: list[bytes]) -> None:
    raw[rng.randrange(len(raw))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])


def _cut(rng: random.Random, raw: bytearray, others: list[bytes]) -> None:
    del raw[rng.randrange(len(raw)) :]


def _drop(rng: random.Random, raw: bytearray, others: list[bytes]) -> None:
    start = rng.randrange(len(raw))
    del raw[start : start + rng.randint(1, 40)]


def _repeat(rng: random.Random, raw: bytearray, others: list[bytes]) -> None:
    start, length = rng.randrange(len(raw)), rng.randint(1, 200)
    raw[start:start] = raw[start : start + length] * rng.randint(1, 3)


def _swap(rng: random.Random, raw: bytearray, others: list[bytes]) -> None:
    a, b, length = rng.randrange(len(raw)), rng.randrange(len(raw)), rng.randint(1, 60)
    raw[a : a + length], raw[b : b + length] = raw[b : b + length], raw[a : a + length]


def _splice(rng: random.Random, raw: bytearray, others: list[bytes]) -> None:
    other = rng.choice(others)
    start, length = rng.randrange(len(other)), rng.randint(1, 400)
    place = rng.randrange(len(raw))
    raw[place : place + rng.choice([0, length])] = other[start : start + length]


def _varint(rng: random.Random, raw: bytearray, others: list[bytes]) -> None:
    """A number of the wire format in the place of a byte."""
    number = rng.choice(HOSTILE_NUMBERS) & ((1 << 64) - 1)
    encoded = bytearray()
    while number >= 128:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    place = rng.randrange(len(raw))
    raw[place : place + 1] = encoded


DAMAGES = [_flip, _flip, _byte, _byte, _cut, _drop, _repeat, _swap, _splice, _varint, _varint]


def mutated_model(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """A model that still parses, with fields that say something else."""
    import onnx

    proto = onnx.ModelProto.FromString(data)
    for _ in range(rng.randint(1, 3)):
        _change_message(rng, proto, onnx.ModelProto.FromString(rng.choice(others)))
    return proto.SerializeToString()


def _change_message(rng: random.Random, message: Any, other: Any) -> None:
    """Goes down at random, and changes a field there."""
    fields = [field for field, _ in message.ListFields()]
    if not fields:
        return
    field = rng.choice(fields)
    value = getattr(message, field.name)
    repeated = not isinstance(value, (int, float, str, bytes, bool)) and hasattr(value, "__len__")
    if field.message_type is not None:
        if repeated and len(value):
            place = rng.randrange(len(value))
            what = rng.randrange(6)
            if what == 0:
                del value[place]
            elif what == 1:
                value.append(value[place])
            elif what == 2 and len(value) > 1:
                value[place].CopyFrom(value[rng.randrange(len(value))])
            elif what == 3 and len(getattr(other, field.name, ())):
                theirs = getattr(other, field.name)
                value[place].CopyFrom(theirs[rng.randrange(len(theirs))])
            else:
                _change_message(rng, value[place], other)
        elif not repeated:
            theirs = getattr(other, field.name, other)
            _change_message(rng, value, theirs)
        return
    new = _leaf(rng, value[rng.randrange(len(value))] if repeated and len(value) else value)
    try:
        if repeated and len(value):
            value[rng.randrange(len(value))] = new
        elif not repeated:
            setattr(message, field.name, new)
    except (ValueError, TypeError):  # a number that the field cannot hold
        message.ClearField(field.name)


def _leaf(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([*HOSTILE_NUMBERS[:-1], value + 1, value - 1, -value, value * 2, rng.randrange(30)])
    if isinstance(value, float):
        return rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e30, -value])
    if isinstance(value, bytes):
        raw = bytearray(value or b"\0")
        rng.choice([_flip, _cut, _repeat, _drop])(rng, raw, [bytes(raw)])
        return bytes(raw)
    return rng.choice(["", "x", str(value)[:-1], str(value) + "y", "Relu", "Loop", "Gather", "Reshape"])


def mutated_header(rng: random.Random, data: bytes) -> bytes:
    """A file that begins with the length of a JSON header and the header, which says something else in places."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    inside = [part for part in header.values() if isinstance(part, (dict, list)) and part]
    for _ in range(rng.randint(1, 3)):
        _change_json(rng, rng.choice(inside) if rng.random() < 0.95 else header)
    text = json.dumps(header, separators=(",", ":")).encode()
    if rng.random() < 0.95:
        text += b" " * (-(len(text) + 8) % 64)
    size = len(text) if rng.random() < 0.98 else rng.choice(HOSTILE_NUMBERS) & ((1 << 64) - 1)
    return size.to_bytes(8, "little") + text + data[8 + length :]


def _change_json(rng: random.Random, holder: Any) -> None:
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    if not keys:
        return
    key = rng.choice(keys)
    value = holder[key]
    if isinstance(value, (dict, list)) and value and rng.random() < 0.85:
        _change_json(rng, value)
        return
    what = rng.randrange(4)
    if what == 0 and isinstance(holder, dict):
        del holder[key]
    elif what == 1:
        holder[key] = copy.deepcopy(holder[rng.choice(keys)])  # a part that came to hold itself is no JSON
    elif isinstance(value, int) and not isinstance(value, bool) and what == 2:
        holder[key] = rng.choice([value + 1, value - 1, *HOSTILE_NUMBERS])
    elif isinstance(value, str) and what == 2:
        holder[key] = rng.choice([value + "x", value[:-1], value * 2, "n", "1", "-1", "n*n", "f32[n]", "add", "gather"])
    else:
        holder[key] = rng.choice(HOSTILE_LEAVES)
