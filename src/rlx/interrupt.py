"""Ends runs before they are done: those whose time is over, and on the CPU those at whose loops Ctrl-C comes.

Whoever drives a run in Python asks `check` from time to time, between nodes or trips. Native code cannot: its loops
call back now and then (`Watch`), because a handler of signals runs in no thread that is in native code.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TypeVar

from rlx.errors import InputError, RunTimeout

T = TypeVar("T")

_here = threading.local()


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """What runs in here, in this thread, has so much time. Raises InputError for a time that is not positive."""
    if not seconds > 0:
        raise InputError(f"[run] expected a timeout of more than 0 s, got {seconds}")
    before = getattr(_here, "end", None)
    end = time.monotonic() + seconds
    _here.end, _here.seconds = (end, seconds) if before is None or end < before else (before, _here.seconds)
    try:
        yield
    finally:
        _here.end = before


def left_seconds() -> float | None:
    """Time that runs of this thread have; None if there is no limit."""
    end = getattr(_here, "end", None)
    return None if end is None else max(end - time.monotonic(), 0.0)


def check() -> None:
    """Raises RunTimeout if the time of this thread's run is over."""
    end = getattr(_here, "end", None)
    if end is not None and time.monotonic() > end:
        raise overdue()


def overdue() -> RunTimeout:
    return RunTimeout(f"[run] expected a run that is done in {_here.seconds} s (timeout), got one that is not")


_Poll = ctypes.CFUNCTYPE(ctypes.c_int64)


class Watch:
    """What native loops of one run call: 0 lets them go on.

    Handlers of signals run in the callback, and may raise. A generator catches even what they raise before its own
    next line runs; a plain function would not.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        polls = self._polls()
        next(polls)
        self._callback = _Poll(polls.__next__)
        self.address = ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def _polls(self) -> Generator[int, None, None]:
        while True:
            try:
                yield int(self.error is not None)
                check()
            except GeneratorExit:
                return
            except BaseException as error:  # it is raised when the native code has come back
                self.error = error


def within_time(call: Callable[[], T]) -> T:
    """What the call gives. If this thread's run has a limit of time, the call is another thread's, which goes on behind
    a RunTimeout: for libraries that nobody can interrupt."""
    left = left_seconds()
    if left is None:
        return call()
    done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def work() -> None:
        try:
            done.put((call(), None))
        except BaseException as error:  # it is raised in the thread that waits
            done.put((None, error))

    threading.Thread(target=work, name="rlx-run-with-timeout", daemon=True).start()
    try:
        result, error = done.get(timeout=left)
    except Empty:
        raise overdue() from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # without an error there is one
