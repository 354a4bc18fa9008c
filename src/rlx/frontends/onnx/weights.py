"""Tensors of the model as params and constants of the program."""

from __future__ import annotations

import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array

MAX_CONSTANT_BYTES = 1 << 16
_BLOCK = 1 << 16  # elements looked at in one go: they stay in the cache


def leaf(graph: Graph, name: str, array: Array, keep_subnormals: bool) -> Value:
    """A weight for floats of more than one element and for big integer tables, else a constant."""
    floating = dtypes.of(array.dtype).is_inexact
    if array.size <= 1 or (not floating and array.nbytes <= MAX_CONSTANT_BYTES):
        return graph.constant(array)
    data = array if keep_subnormals else flush_subnormals(array)
    taken = name in (v.name for v in graph.params) or name in (v.name for v in graph.inputs)
    return graph.param(_fresh(graph, name) if taken else name, data.shape, data.dtype, data)


def _fresh(graph: Graph, name: str) -> str:
    used = {node.name for node in graph.nodes}
    return next(f"{name}_{i}" for i in range(len(used) + 1) if f"{name}_{i}" not in used)


def flush_subnormals(array: Array) -> Array:
    """The array with subnormal numbers as zeros: itself if it holds none, which reads it and writes nothing."""
    if array.dtype == np.float32:
        bits, mask, least = np.uint32, 0x7FFFFFFF, 0x007FFFFF
    elif array.dtype == np.float64:
        bits, mask, least = np.uint64, 0x7FFFFFFFFFFFFFFF, 0x000FFFFFFFFFFFFF
    else:
        return array
    flat = array.reshape(-1).view(bits)
    one = bits(1)
    for start in range(0, flat.size, _BLOCK):
        # Zero wraps around to the greatest number, so that only subnormals stay below `least`.
        magnitude = flat[start : start + _BLOCK] & bits(mask)
        np.subtract(magnitude, one, out=magnitude)
        if magnitude.min() < least:
            return _flushed(array, bits, mask, least)
    return array


def _flushed(array: Array, bits: type[np.unsignedinteger], mask: int, least: int) -> Array:  # type: ignore[type-arg]
    out = array.copy()
    magnitude = out.reshape(-1).view(bits) & bits(mask)
    out.reshape(-1)[(magnitude <= least) & (magnitude > 0)] = 0
    return out
