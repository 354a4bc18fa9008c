"""Code shared by readers of formats: mapped files, configurations, weights without subnormal numbers."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from rlx import mapped
from rlx.errors import ModelError
from rlx.ir.literal import Array

MAX_CONFIG_BYTES = 1 << 20
_BLOCK = 1 << 16  # elements looked at in one go: they stay in the cache


def map_file(path: Path) -> Array:
    """The bytes of a regular file, mapped read-only. Raises ModelError."""
    try:
        with open(path, "rb") as file:
            return map_descriptor(file.fileno(), path)
    except OSError as error:
        raise ModelError(f"[load] expected a file that can be read, got {str(path)!r}: {error.strerror}") from None


def map_descriptor(descriptor: int, path: Path) -> Array:
    """As `map_file`, of an open file."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"[load] expected a regular file, got {str(path)!r}")
    if status.st_size == 0:
        raise ModelError(f"[load] expected a model, got the empty file {str(path)!r}")
    return np.frombuffer(mapped.Mapping.of(descriptor, path), np.uint8)


# Bits of the magnitude, and the greatest magnitude of a subnormal number.
_SUBNORMAL: dict[str, tuple[Any, Any]] = {
    "float32": (np.uint32(0x7FFFFFFF), np.uint32(0x007FFFFF)),
    "float64": (np.uint64(0x7FFFFFFFFFFFFFFF), np.uint64(0x000FFFFFFFFFFFFF)),
}


def flush_subnormals(array: Array) -> Array:
    """The array with subnormal numbers as zeros: itself if it holds none, which reads it and writes nothing."""
    if array.dtype.name not in _SUBNORMAL:
        return array
    mask, greatest = _SUBNORMAL[array.dtype.name]
    flat = array.reshape(-1).view(mask.dtype)
    for start in range(0, flat.size, _BLOCK):
        # Zero wraps around to the greatest number, so that only subnormals stay below.
        magnitude = flat[start : start + _BLOCK] & mask
        np.subtract(magnitude, mask.dtype.type(1), out=magnitude)
        if magnitude.min() < greatest:
            out = array.copy()
            bits = out.reshape(-1).view(mask.dtype)
            bits[(bits & mask) <= greatest] = 0
            return out
    mapped.release([array])  # checking every number need not keep a mapped file in memory
    return array


def read_json(path: Path, most_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The object in a small file. Raises ModelError."""
    if not path.is_file():
        raise ModelError(f"[load] expected a regular file, got {str(path)!r}")
    if path.stat().st_size > most_bytes:
        raise ModelError(f"[load] expected at most {most_bytes} bytes, got more, in {path.name!r}")
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"[load] expected JSON, got what does not parse ({error}), in {path.name!r}") from None
    if not isinstance(content, dict):
        raise ModelError(f"[load] expected a JSON object, got {type(content).__name__}, in {path.name!r}")
    return content
