"""How many threads NumPy's BLAS takes. It has as many as there are processors, and they spin while they wait for each
other: beside a process that compiles they make a run several times as slow as one thread does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module

from rlx import locks

_PREFIXES, _SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "")
_lock = locks.lock()
_holders: list[int] = []
"""How many threads there were before each run that holds them down now; the first entry is what the caller had."""


@cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """What tells and sets the number; None if NumPy's BLAS is none that we know."""
    try:
        products = import_module("numpy._core._multiarray_umath")
        library = ctypes.CDLL(products.__file__)  # which is there, with the libraries that it is linked to
    except (ImportError, OSError):
        return None
    for name in (f"{prefix}_{{}}_num_threads{suffix}" for prefix in _PREFIXES for suffix in _SUFFIXES):
        if hasattr(library, name.format("get")) and hasattr(library, name.format("set")):
            set_number = getattr(library, name.format("set"))
            set_number.argtypes, set_number.restype = (ctypes.c_int,), None
            return getattr(library, name.format("get")), set_number
    return None


@contextmanager
def at_most(threads: int) -> Iterator[None]:
    """BLAS takes no more threads in here, in the whole process: it has one number for all. When the last that is in
    here leaves, the number is what it was before the first came."""
    functions = _functions()
    if functions is None:
        yield
        return
    get, set_number = functions
    with _lock:
        now = get()
        _holders.append(now)
        if now > threads:
            set_number(threads)
    try:
        yield
    finally:
        with _lock:
            first = _holders[0]
            _holders.pop()
            if not _holders:
                set_number(first)
