"""Arrays in mapped files. Mapped memory shows the file as it is *now*: writing to the file changes it, and reading
beyond the end of a truncated file kills the process.

Arrays are therefore read into memory before a program gets them (`private`), after a check that the file is as it was
when it was mapped. A caller that trusts the file (`trusting`) has its programs read the mapped memory itself. Its pages
can then be given back to the system, which reads them again when they are needed.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from rlx.errors import ModelError

Array = np.ndarray[Any, Any]
PAGE = mmap.PAGESIZE
_trusts: ContextVar[bool] = ContextVar("trusts", default=False)


@contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """Files that are mapped in here will stay as they are, if `trust` holds."""
    token = _trusts.set(trust)
    try:
        yield
    finally:
        _trusts.reset(token)


class Mapping(mmap.mmap):
    """A file mapped for reading, and what tells whether it was written to since."""

    path: Path
    state: tuple[int, ...]
    trusted: bool
    copies: WeakValueDictionary[tuple[int, int], Array]

    @staticmethod
    def of(descriptor: int, path: Path) -> Mapping:
        """Maps an open file. Raises OSError, ValueError for an empty one."""
        mapping = {"trackfd": False} if sys.version_info >= (3, 13) else {}  # older ones keep a descriptor of their own
        options = Mapping(descriptor, 0, access=mmap.ACCESS_READ, **mapping)
        options.path, options.state, options.trusted = path.absolute(), _state(os.fstat(descriptor)), _trusts.get()
        options.copies = WeakValueDictionary()
        return options

    def check(self, now: os.stat_result) -> None:
        """Raises ModelError if the file was written to."""
        if _state(now) != self.state:
            raise ModelError(
                f"[load] expected weights as they were when {str(self.path)!r} was opened, got a file that was written "
                "to since: load it again"
            )

    def check_by_name(self) -> None:
        """Raises ModelError if the file was written to; nobody writes to one that has lost its name."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return
        if _state(now)[:2] == self.state[:2]:
            self.check(now)

    def bytes_at(self, offset: int, count: int) -> Array:
        """Bytes of the file in memory of their own; whoever asks for the same ones shares them."""
        copy = self.copies.get((offset, count))
        private_bytes = self._fresh_bytes_at(offset, count) if copy is None else copy
        self.copies[offset, count] = private_bytes
        return private_bytes

    def _fresh_bytes_at(self, offset: int, count: int) -> Array:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:  # a deleted file stays as it is
            return np.frombuffer(self, np.uint8, count, offset).copy()
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            now = os.fstat(file.fileno())
            if _state(now)[:2] != self.state[:2]:  # another file has its name now, and the old one cannot be opened
                return np.frombuffer(self, np.uint8, count, offset).copy()
            self.check(now)
            buffer = np.empty(count, np.uint8)
            remaining = buffer.data
            file.seek(offset)
            while remaining and (count_read := file.readinto(remaining)):
                remaining = remaining[count_read:]
            self.check(os.fstat(file.fileno()))
            return buffer


def _state(of: os.stat_result) -> tuple[int, ...]:
    return (of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns)


def private(array: Array) -> Array:
    """The array in memory that no file is behind; itself if it is, or if it lies in a file that is trusted.

    Raises ModelError if the file was written to since it was mapped.
    """
    mapping = _mapping_of(array)
    if not isinstance(mapping, Mapping) or not array.nbytes:
        return array
    if mapping.trusted:
        mapping.check_by_name()
        return array
    flat = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    if flat is not array:
        return flat
    copy = mapping.bytes_at(_place(array, mapping), array.nbytes)
    return copy.view(array.dtype).reshape(array.shape)


def check(arrays: Iterable[Array]) -> None:
    """Raises ModelError if a file that one of the arrays lies in was written to since it was mapped."""
    for array in arrays:
        mapping = _mapping_of(array)
        if isinstance(mapping, Mapping):
            mapping.check_by_name()


def state_of(array: Array) -> tuple[int, ...] | None:
    """What tells the file that an array lies in from others, and from what it is after it was written to."""
    mapping = _mapping_of(array)
    return mapping.state if isinstance(mapping, Mapping) else None


def path_of(array: Array) -> Path | None:
    """Of the file that an array lies in."""
    mapping = _mapping_of(array)
    return mapping.path if isinstance(mapping, Mapping) else None


def state_of_open(descriptor: int) -> tuple[int, ...]:
    """As `state_of`, of an open file."""
    return _state(os.fstat(descriptor))


def state_at(path: Path) -> tuple[int, ...] | None:
    """As `state_of`, of the file at a path; None if there is none."""
    try:
        return _state(os.stat(path))
    except OSError:
        return None


def release(arrays: Iterable[Array]) -> int:
    """Drops the resident pages of arrays that lie in files mapped for reading; gives how many bytes were dropped.

    Other arrays are left alone: only a read-only mapping is sure to hold nothing that its file does not.
    """
    return sum(_advise(array, "MADV_DONTNEED", inside=True) for array in arrays)


def fetch(arrays: Iterable[Array]) -> int:
    """Asks the system to read ahead the pages of arrays that lie in such files; gives how many bytes were asked for."""
    return sum(_advise(array, "MADV_WILLNEED", inside=False) for array in arrays)


def _advise(array: Array, name: str, inside: bool) -> int:
    """Tells the system of the pages that lie inside of an array, or of all that it touches; gives their bytes."""
    advice, mapping = getattr(mmap, name, None), _mapping_of(array)
    if advice is None or mapping is None or not array.nbytes or not array.flags.c_contiguous:
        return 0
    view = memoryview(mapping)
    if not view.readonly:
        return 0
    start = _place(array, mapping)
    end = start + array.nbytes
    first, last = (-(-start // PAGE), end // PAGE) if inside else (start // PAGE, -(-end // PAGE))
    first, last = first * PAGE, min(last * PAGE, len(mapping))
    if last <= first:
        return 0
    mapping.madvise(advice, first, last - first)
    return last - first


def _place(array: Array, mapping: mmap.mmap) -> int:
    """Where in its file an array begins."""
    start: int = array.__array_interface__["data"][0] - _address(memoryview(mapping))
    return start


def _mapping_of(array: Array) -> mmap.mmap | None:
    """The mapping at the end of an array's chain of owners."""
    owner: object = array
    for _ in range(64):
        if owner is None:
            return None
        if isinstance(owner, mmap.mmap):
            return owner
        if isinstance(owner, memoryview):
            owner = owner.obj
        else:
            owner = getattr(owner, "base", None)
    return None


def _address(view: memoryview) -> int:
    where: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return where
