"""What stays between runs, as part of a saved program: handles, feeds, extents, states, and the seed.

A header lists names, dtypes and shapes. The arrays follow, each at a multiple of 64 bytes. Everything is checked
against the program when it is read.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlx.backends.memory import on_host
from rlx.errors import InputError
from rlx.ir import dtype as dtypes
from rlx.ir.literal import Array
from rlx.runtime.extent import check_extent
from rlx.runtime.mode import Kept, Mode, check_feeds
from rlx.runtime.program import Program
from rlx.runtime.signature import check_handle
from rlx.runtime.state import held

ALIGN = 64
Json = dict[str, Any]


def described(mode: Mode, program: Program) -> Json:
    """The header for what `chunks` gives."""
    arrays = dict(zip((*mode.handles, *mode.states), _arrays(mode)))
    hasher = hashlib.blake2b(digest_size=32)
    for chunk in chunks(mode):
        hasher.update(chunk)
    random = program.signature.random
    return {
        "arrays": [[name, dtypes.of(array.dtype).name, list(array.shape)] for name, array in arrays.items()],
        "feeds": dict(mode.feeds),
        "extents": dict(mode.extents),
        "random": None if random is None else random.place,
        "bytes": sum(map(_padded, arrays.values())),
        "digest": hasher.hexdigest(),
    }


def chunks(mode: Mode) -> Iterator[bytes]:
    """The bytes of all arrays, in the order of the header."""
    for array in _arrays(mode):
        yield np.ascontiguousarray(array).tobytes()
        yield bytes(_padded(array) - array.nbytes)


def _arrays(mode: Mode) -> list[Array]:
    return on_host([*mode.handles.values(), *mode.states.values()])


def _padded(array: Array) -> int:
    return -(-array.nbytes // ALIGN) * ALIGN


def restored(header: Mapping[str, Any], data: memoryview, program: Program) -> Mode:
    """The mode that was described, with arrays in memory; the program draws the random numbers that come next.

    Raises InputError, ValueError, KeyError, TypeError for what does not go with the program.
    """
    if hashlib.blake2b(data, digest_size=32).hexdigest() != header["digest"]:
        raise InputError("expected states and handles as they were written, got damaged ones")
    signature = program.signature
    handles: dict[str, Kept] = {}
    states: dict[str, Kept] = {}
    begin = 0
    for name, dtype, extents in header["arrays"]:
        shape = tuple(_count(extent) for extent in extents)
        read = dtypes.parse(dtype)
        size = math.prod(shape) * read.itemsize
        if name not in signature.types or size > len(data) - begin:
            raise InputError(f"expected the bytes of an input or a state, got {name!r}")
        array = np.frombuffer(data[begin : begin + size], np.uint8).view(read.numpy).reshape(shape)
        persistent = held(program, name, check_handle(name, array, signature.types[name]))
        (states if name in signature.states else handles)[name] = persistent
        begin += _padded(array)
    feeds = {str(output): str(name) for output, name in header["feeds"].items()}
    check_feeds(program.interface, feeds, handles)
    extents = {str(dim): extent for dim, extent in header["extents"].items()}
    for dim, extent in extents.items():
        check_extent(program.graph, dim, extent)
    if signature.random is not None and header["random"] is not None:
        key, run = map(_count, header["random"])
        signature.random.place = key, run
    return Mode(handles, feeds, extents, states=states)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise InputError(f"expected a number from 0 to 2⁶⁴ - 1, got {value!r}")
    return value
