"""Runs of native code that can be interrupted (`watch.ll`): the memory that the code checks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from rlx.backends.cpu.pool import ThreadPool
from rlx.interrupt import CancelToken, Limit

_JUMP_WORDS = 64
"""What the C library keeps to come back: 25 words on x86-64, 39 on 64-bit Arm."""
_FOREVER_NS = (1 << 63) - 1
_Words = ctypes.c_int64 * (8 + _JUMP_WORDS)
_Main = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 4, ctypes.c_int64)

_never = CancelToken()


@cache
def _watched(address: int) -> Callable[..., int]:
    return _Main(address)


def run(pool: ThreadPool, main: int, table: Any, dims: Any, arena: int, threads: int, limit: Limit) -> bool:
    """Runs `main`; whether it got to its end. What it was to write then is not there, and it has not written all.

    On one thread too kernels are handed out in chunks, which are the pieces between which it looks.
    """
    token = limit.token or _never
    end_ns = int(limit.end * 1e9) if limit.end < _FOREVER_NS / 1e9 else _FOREVER_NS
    words = _Words(token.address, end_ns, min(threads, pool.threads))
    own_dims = (ctypes.c_int64 * (len(dims) + 1))(ctypes.addressof(words), *dims)
    return not _watched(pool.watched_main)(main, table, ctypes.addressof(own_dims) + 8, arena, max(threads, 2))
