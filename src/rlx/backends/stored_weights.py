"""Where the weights of a program lie: in the files of its model, and in the cache on disk as the program reads them.

Weights that a program packs (`Executable.keep_packed`) are kept in the cache, so that a process which starts from there
maps them, and neither reads the model's files into memory nor packs. The key of such an entry contains the program's
and the SHA-256 of every file, which are compared with the files at each start: size and time are never trusted.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from rlx import disk, locks, mapped
from rlx.errors import ModelError, RlxError
from rlx.ir import dtype as dtypes
from rlx.ir.literal import Array
from rlx.records import dataclass

READ_BYTES = 1 << 20
"""Of a file at a time: what fits into a cache of the processor is hashed where it was read to."""
BESIDE_BYTES = 1 << 22
"""Of a file that is hashed by a thread of its own while the next part is read."""
_OTHER = -1
Place = list[Any]


@dataclass(frozen=True)
class Source:
    """The weights of a program as they are.

    files    path, bytes and SHA-256 of each file that the model was read from
    places   by name: the number of the file, or -1 for `other`, and offset, dtype and shape there
    other    the bytes of weights that no file contains as they are
    """

    files: Sequence[tuple[str, int, str]]
    places: Mapping[str, Place]
    other: bytes = b""

    @property
    def nbytes(self) -> int:
        """Of all weights."""
        return sum(math.prod(shape) * dtypes.parse(dtype).itemsize for _, _, dtype, shape in self.places.values())

    def key(self, program: str) -> str:
        """Of the entry with these weights as the program of a key reads them."""
        files = [[size, digest] for _, size, digest in self.files]  # whatever they are called
        hasher = hashlib.blake2b(json.dumps([program, files, dict(self.places)]).encode(), digest_size=20)
        hasher.update(self.other)
        return f"packed-{hasher.hexdigest()}"

    def read(self) -> tuple[dict[str, Array], list[tuple[int, ...]]] | None:
        """The weights, views of memory with the whole of each file, and the states of the files; None if the content of
        one is another."""
        files = [_read(Path(path), size, digest) for path, size, digest in self.files]
        found = [file for file in files if file is not None]
        if len(found) < len(files):
            return None
        other = np.frombuffer(self.other, np.uint8)
        memory = [file[0] for file in found]
        return {n: _param(other if at[0] == _OTHER else memory[at[0]], at) for n, at in self.places.items()}, [
            file[1] for file in found
        ]

    def states(self) -> list[tuple[int, ...]] | None:
        """The states of the files; None if the content of one is another."""
        states = [_state_if(Path(path), size, digest) for path, size, digest in self.files]
        known = [state for state in states if state is not None]
        return known if len(known) == len(states) else None

    def to_bytes(self) -> bytes:
        text = json.dumps({"files": list(self.files), "places": dict(self.places)}).encode()
        return b"".join([len(text).to_bytes(8, "little"), text, self.other])

    @staticmethod
    def from_bytes(data: bytes) -> Source:
        """What `to_bytes` wrote. Raises ModelError for anything else."""
        try:
            end = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:end])
            return Source([(p, n, digest) for p, n, digest in header["files"]], header["places"], data[end:])
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"[cache] expected the places of weights, got {error}") from None

    @staticmethod
    def of(data: Mapping[str, Array], files: Sequence[Array], most_other_bytes: int) -> Source | None:
        """Of weights, and the mapped files that the model was read from. None if files were written to since, or more
        bytes than `most_other_bytes` lie in none."""
        places, other = _places(data, files)
        paths = [mapped.path_of(file) for file in files]
        if None in paths or sum(array.nbytes for array in other) > most_other_bytes:
            return None
        digests = [_digest_of(path) for path in paths]
        if [mapped.state_of(file) for file in files] != [mapped.state_at(path) for path in paths if path]:
            return None  # what was hashed is not what was read
        blobs = b"".join(np.ascontiguousarray(array).tobytes() for array in other)
        return Source([(str(p), f.size, digest) for p, f, digest in zip(paths, files, digests)], places, blobs)


class LateWeights(Mapping[str, Array]):
    """Weights by name, which are read when one is asked for. Raises ModelError then, if a file was written to since.

    opening   looks for the entry with them as a program reads them
    """

    def __init__(
        self, source: Source, opening: Opening | None = None, arrays: Mapping[str, Array] | None = None
    ) -> None:
        self.source = source
        self._opening = opening
        self._arrays = arrays
        self._lock = locks.lock()

    def unread(self) -> LateWeights:
        """The same weights, without the memory that these keep."""
        return LateWeights(self.source)

    @property
    def packed(self) -> disk.MappedEntry | None:
        """Arrays as a program reads them, whole; None where the cache has none."""
        return None if self._opening is None else self._opening.packed()

    def _read(self) -> Mapping[str, Array]:
        with self._lock:
            if self._arrays is None:
                found = self.source.read()
                if found is None:
                    raise ModelError(
                        "[load] expected the model as it was when it was opened, got files that were written to since"
                    )
                self._arrays = found[0]
            return self._arrays

    def __getitem__(self, name: str) -> Array:
        return self._read()[name]

    def __contains__(self, name: object) -> bool:
        return name in self.source.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.source.places)

    def __len__(self) -> int:
        return len(self.source.places)


class Opening:
    """The weights of a source, looked for by another thread: packed ones where the cache has them, else as they are."""

    def __init__(self, source: Source, program: str) -> None:
        self._source = source
        self._packed = disk.map_entry(source.key(program))
        self._arrays: Mapping[str, Array] | None = None
        self._states: list[tuple[int, ...]] | None = None
        self._known = threading.Event()
        self._thread = threading.Thread(target=self._look, name="rlx-weights", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        try:
            if self._packed is None:
                self._arrays, self._states = self._source.read() or (None, None)
            else:
                self._states = self._source.states()
        except (ValueError, KeyError, TypeError, IndexError, RlxError):  # places of no version that we know
            return
        finally:
            self._known.set()
        if self._states is not None and self._packed is not None and not self._packed.is_whole():
            self._packed.remove()
            self._packed = None

    def wait(self) -> tuple[LateWeights, list[tuple[int, ...]]] | None:
        """With the states of the files; None if the content of one is another."""
        self._known.wait()
        return None if self._states is None else (LateWeights(self._source, self, self._arrays), self._states)

    def packed(self) -> disk.MappedEntry | None:
        """The packed weights, when it is known that they are whole; None where there are none."""
        self._thread.join()
        return self._packed


def request_key(program: str) -> str:
    """The key of the entry by which whoever compiles a program is told to pack weights, too."""
    return f"{program}-weights"


def write_packed(key: str, arrays: Mapping[int, Array], place: Path | None = None) -> None:
    """Keeps packed weights, by the numbers of their buffers."""
    disk.write_mapped(key, {str(number): array for number, array in arrays.items()}, place)


# files


def _read(path: Path, size: int, digest: str) -> tuple[Array, tuple[int, ...]] | None:
    """The whole of a file in memory, with its state; None if its content is another than noted."""
    try:
        with open(path, "rb", buffering=0) as file:
            before = mapped.state_of_open(file.fileno())
            if os.fstat(file.fileno()).st_size != size:
                return None
            memory = np.empty(size, np.uint8)
            hasher, remaining = _Hasher(beside=size > BESIDE_BYTES), memory.data
            try:
                while remaining and (count := file.readinto(remaining[:READ_BYTES])):
                    hasher.update(remaining[:count])
                    remaining = remaining[count:]
            finally:
                actual_digest = hasher.hexdigest()  # which ends its thread
    except OSError:
        return None
    return (memory, before) if not remaining and actual_digest == digest else None


def _state_if(path: Path, size: int, digest: str) -> tuple[int, ...] | None:
    """The state of a file; None if its content is another than noted. Nothing of it is kept."""
    try:
        with open(path, "rb", buffering=0) as file:
            before = mapped.state_of_open(file.fileno())
            if os.fstat(file.fileno()).st_size != size:
                return None
            return before if _digest_of_open(file) == digest else None
    except OSError:
        return None


class _Hasher:
    """SHA-256 of parts; with `beside` in a thread of its own, while the next part is read."""

    def __init__(self, beside: bool) -> None:
        self._hash = hashlib.sha256()
        self._parts: SimpleQueue[memoryview | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="rlx-hash", daemon=True) if beside else None
        if self._thread is not None:
            self._thread.start()

    def _work(self) -> None:
        while (part := self._parts.get()) is not None:
            self._hash.update(part)

    def update(self, part: memoryview) -> None:
        if self._thread is None:
            self._hash.update(part)
        else:
            self._parts.put(part)

    def hexdigest(self) -> str:
        if self._thread is not None:
            self._parts.put(None)
            self._thread.join()
        return self._hash.hexdigest()


def _digest_of(path: Path | None) -> str:
    """Of a file's content; empty if it cannot be read."""
    if path is None:
        return ""
    try:
        with open(path, "rb", buffering=0) as file:
            return _digest_of_open(file)
    except OSError:
        return ""


def _digest_of_open(file: Any) -> str:
    hasher, buffer = hashlib.sha256(), memoryview(bytearray(READ_BYTES))
    while count := file.readinto(buffer):
        hasher.update(buffer[:count])
    return hasher.hexdigest()


def has_digests(files: Sequence[Array], source: Source) -> bool:
    """Whether mapped files have the content that was noted, and no others are there."""
    return [_digest_of(mapped.path_of(file)) for file in files] == [digest for *_, digest in source.files]


def _places(data: Mapping[str, Array], files: Sequence[Array]) -> tuple[dict[str, Place], list[Array]]:
    """Where each array lies: the number of its file, or that of what the record holds itself; with these."""
    starts = [(file.__array_interface__["data"][0], file.nbytes) for file in files]
    places, other, end = {}, [], 0
    for name, array in data.items():
        what = [dtypes.of(array.dtype).name, list(array.shape)]
        begin = array.__array_interface__["data"][0]
        inside = [i for i, (at, size) in enumerate(starts) if at <= begin and begin + array.nbytes <= at + size]
        if inside and array.flags.c_contiguous and array.dtype.isnative:
            places[name] = [inside[0], begin - starts[inside[0]][0], *what]
        else:
            places[name] = [_OTHER, end, *what]
            other.append(array.astype(array.dtype.newbyteorder("="), copy=False))
            end += array.nbytes
    return places, other


def _param(memory: Array, place: Place) -> Array:
    _, offset, dtype, shape = place
    of = dtypes.parse(dtype).numpy
    count = 1
    for n in shape:
        count *= n
    array = memory[offset : offset + count * of.itemsize].view(of).reshape(shape)
    array.flags.writeable = False
    return array
