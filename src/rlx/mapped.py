"""Arrays in mapped files: their pages can be given back to the system, which reads them again when they are needed."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def release(arrays: Iterable[Array]) -> int:
    """Drops the resident pages of arrays that lie in files mapped for reading; gives how many bytes were dropped.

    Other arrays are left alone: only a read-only mapping is sure to hold nothing that its file does not.
    """
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if advice is None:
        return 0
    dropped = 0
    for array in arrays:
        mapping = _mapping_of(array)
        if mapping is None:
            continue
        view = memoryview(mapping)
        if not view.readonly or not array.nbytes or not array.flags.c_contiguous:
            continue
        start = array.__array_interface__["data"][0] - _address(view)
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            mapping.madvise(advice, first, last - first)
            dropped += last - first
    return dropped


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
