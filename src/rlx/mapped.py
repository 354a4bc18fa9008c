"""Arrays in mapped files: their pages can be given back to the system, which reads them again when they are needed."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
PAGE = mmap.PAGESIZE


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
    start: int = array.__array_interface__["data"][0] - _address(view)
    end = start + array.nbytes
    first, last = (-(-start // PAGE), end // PAGE) if inside else (start // PAGE, -(-end // PAGE))
    first, last = first * PAGE, min(last * PAGE, len(mapping))
    if last <= first:
        return 0
    mapping.madvise(advice, first, last - first)
    return last - first


def _mapping_of(array: Array) -> mmap.mmap | None:
    """The mapping at the end of an array's chain of owners."""
    owner: object = array
    for _ in range(64):
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
