"""Models in GGUF files, mapped. The format: a header with typed metadata, descriptions of tensors, the tensors' bytes.

Everything in a file counts as hostile until it is checked: each count, length, offset and extent, before anything is
made of it. Format: ggml's `docs/gguf.md`, versions 2 and 3.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import ModelError
from rlx.frontends.files import map_file
from rlx.frontends.gguf_blocks import TYPES, BlockType
from rlx.ir.literal import Array
from rlx.records import dataclass

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_RANK = 4
MAX_NAME_BYTES = 1 << 16
MAX_EXTENT = 1 << 48
USUAL_ALIGNMENT = 32
_SCALARS: dict[int, struct.Struct] = {
    number: struct.Struct(f"<{code}")
    for number, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
"""By the numbers of their types."""
_BOOL, _STRING, _ARRAY = 7, 8, 9
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies in its file.

    shape   row-major: the file lists extents the other way round
    type    of its elements, in blocks along the last axis
    data    u8, the bytes of all its blocks
    """

    name: str
    shape: tuple[int, ...]
    type: BlockType
    data: Array


@dataclass(frozen=True)
class _Late:
    """An array of the metadata that is read when it is asked for. Its bytes have been checked."""

    kind: int
    count: int
    at: int


class File:
    """A GGUF file: metadata and tensors by name.

    source   its path, or all of its bytes
    where    it is, for messages
    Raises ModelError for whatever is not as the format says.
    """

    def __init__(self, source: Path | bytes) -> None:
        self.source = source
        self.where = source.name if isinstance(source, Path) else "the bytes"
        self.bytes: Array = map_file(source) if isinstance(source, Path) else np.frombuffer(source, np.uint8)
        self._view = self.bytes.data
        self._at = 0
        self._metadata: dict[str, Any] = {}
        tensors, keys = self._header()
        self._read_metadata(keys)
        alignment = self._metadata.get("general.alignment", USUAL_ALIGNMENT)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self.wrong("a power of 2 from 8 on", repr(alignment), "general.alignment")
        self.tensors: Mapping[str, Tensor] = self._read_tensors(tensors, alignment)

    def wrong(self, expected: str, actual: Any, key: str = "") -> ModelError:
        """The error for something in the file; `key` names what it belongs to."""
        shown = actual if isinstance(actual, str) else repr(actual)
        shown = shown if len(shown) <= 100 else f"{shown[:97]}..."
        at = f"at {key!r} " if key else ""
        return ModelError(f"[gguf] expected {expected}, got {shown}, {at}in {self.where!r}")

    def __contains__(self, key: str) -> bool:
        return key in self._metadata

    def __iter__(self) -> Iterator[str]:
        """Names of the metadata."""
        return iter(self._metadata)

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the metadata: a number, a flag, a text; a list of texts, or an array of numbers or flags. Raises
        ModelError for texts that are no UTF-8."""
        value = self._metadata.get(key, default)
        if isinstance(value, _Late):
            value = self._metadata[key] = self._array(value, key)
        return value

    def count(self, key: str) -> int:
        """How many elements an array of the metadata has; 0 if it is not there, or no array."""
        value = self._metadata.get(key)
        return value.count if isinstance(value, _Late) else len(value) if isinstance(value, (list, np.ndarray)) else 0

    # what the file has in turn

    def _header(self) -> tuple[int, int]:
        """How many tensors there are, and how many metadata."""
        magic = self._taken(4, "the header").tobytes()
        if magic != MAGIC:
            raise self.wrong(f"a file that begins with {MAGIC!r}", magic)
        version = self._number(4, "the header")
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                raise self.wrong("a file whose bytes are in little-endian order", "big-endian ones")
            raise self.wrong(f"version {' or '.join(map(str, VERSIONS))}", version)
        tensors, keys = self._number(_LENGTH, "the header"), self._number(_LENGTH, "the header")
        for count, least, what in ((tensors, 24, "tensors"), (keys, 13, "metadata")):
            if count * least > self.bytes.size:
                raise self.wrong(f"{what} that fit into {self.bytes.size} bytes", count)
        return tensors, keys

    def _read_metadata(self, count: int) -> None:
        for _ in range(count):
            key = self._text("a key of the metadata", MAX_NAME_BYTES)
            if key in self._metadata:
                raise self.wrong("each key once", "it twice", key)
            self._metadata[key] = self._value(self._number(4, key), key)

    def _value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind], key)
        if kind == _STRING:
            return self._text(key)
        if kind != _ARRAY:
            raise self.wrong("a type among 0 to 12", kind, key)
        kind, count = self._number(4, key), self._number(_LENGTH, key)
        least = _SCALARS[kind].size if kind in _SCALARS else 8
        if kind not in _SCALARS and kind != _STRING:
            raise self.wrong("an array of numbers, flags or texts", f"the type {kind}", key)
        if count * least > self.bytes.size - self._at:
            raise self.wrong(f"an array that fits into {self.bytes.size - self._at} bytes", f"{count} elements", key)
        late = _Late(kind, count, self._at)
        self._at = self._behind_texts(count, key) if kind == _STRING else self._at + count * least
        return late

    def _behind_texts(self, count: int, key: str) -> int:
        """Where so many texts end."""
        at, view, length = self._at, self._view, _LENGTH.unpack_from
        last = self.bytes.size - 8
        for _ in range(count):
            if at > last:
                break
            at += 8 + length(view, at)[0]
        else:
            if at <= self.bytes.size:
                return at
        raise self.wrong(f"{count} texts", "a file that ends before", key)

    def _array(self, late: _Late, key: str) -> Any:
        if late.kind != _STRING:
            dtype = np.dtype(_SCALARS[late.kind].format)
            array = np.frombuffer(self._view, dtype, late.count, late.at)
            return array.copy() if late.kind != _BOOL else np.frombuffer(self._view, np.uint8, late.count, late.at) != 0
        at, view, length = late.at, self._view, _LENGTH.unpack_from
        texts = []
        try:
            for _ in range(late.count):
                start = at + 8
                at = start + length(view, at)[0]
                texts.append(str(view[start:at], "utf-8"))
        except UnicodeDecodeError as error:
            raise self.wrong("texts in UTF-8", f"{error.reason} in text {len(texts)}", key) from None
        return texts

    def _read_tensors(self, count: int, alignment: int) -> dict[str, Tensor]:
        described = [self._description() for _ in range(count)]
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        spans: list[tuple[int, int, str]] = []
        for name, shape, kind, offset in described:
            if name in tensors:
                raise self.wrong("each tensor once", "it twice", name)
            known = TYPES.get(kind)
            if known is None or not known.is_known:
                has = ", ".join(each.name for each in TYPES.values() if each.is_known)
                raise self.wrong(f"elements of {has}", known.name if known else f"type {kind}", name)
            if shape[-1] % known.elements:
                raise self.wrong(f"rows of whole blocks of {known.elements} ({known.name})", list(shape), name)
            begin, size = start + offset, math.prod(shape) // known.elements * known.bytes
            if offset % alignment:
                raise self.wrong(f"an offset that is a multiple of {alignment}", offset, name)
            if begin + size > self.bytes.size:
                end = f"{size} bytes at {begin} in a file of {self.bytes.size}"
                raise self.wrong(f"{known.name}{list(shape)} inside the file", end, name)
            tensors[name] = Tensor(name, shape, known, self.bytes[begin : begin + size])
            spans.append((begin, begin + size, name))
        spans.sort()
        for one, next_one in pairwise(spans):
            if next_one[0] < one[1]:
                raise self.wrong("tensors that do not overlap", f"{one[2]!r} and another", next_one[2])
        return tensors

    def _description(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, number of the type, and offset of a tensor."""
        name = self._text("a tensor's name", MAX_NAME_BYTES)
        rank = self._number(4, name)
        if not 1 <= rank <= MAX_RANK:
            raise self.wrong(f"1 to {MAX_RANK} axes", rank, name)
        shape = tuple(self._number(_LENGTH, name) for _ in range(rank))[::-1]
        if not all(0 < extent < MAX_EXTENT for extent in shape):
            raise self.wrong(f"extents from 1 to {MAX_EXTENT - 1}", list(shape), name)
        return name, shape, self._number(4, name), self._number(_LENGTH, name)

    # pieces

    def _taken(self, count: int, key: str) -> memoryview:
        """The next bytes."""
        if count > self.bytes.size - self._at:
            raise self.wrong(f"{count} bytes at {self._at}", f"a file of {self.bytes.size}", key)
        self._at += count
        return self._view[self._at - count : self._at]

    def _number(self, kind: struct.Struct | int, key: str) -> Any:
        """The next number, by its form, or an unsigned one of so many bytes."""
        if isinstance(kind, int):
            return int.from_bytes(self._taken(kind, key), "little")
        return kind.unpack(self._taken(kind.size, key))[0]

    def _text(self, key: str, most: int | None = None) -> str:
        length = self._number(_LENGTH, key)
        if most is not None and length > most:
            raise self.wrong(f"at most {most} bytes", length, key)
        data = self._taken(length, key)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise self.wrong("a text in UTF-8", error.reason, key) from None
