"""Ends runs early: when their time is over, when they are cancelled, and on the CPU when Ctrl-C interrupts a loop.

A run that may be ended sets a `Limit` on its thread. Code that drives a run from Python calls `check` between nodes or
trips. Native code of the CPU checks the limit itself (`backends/cpu/watch.ll`). Its loops call back now and then
(`Watch`), because no signal handler runs while a thread is in native code. Other libraries can do neither: a run with a
limit is executed by another thread (`within`), which continues in the background.
"""

from __future__ import annotations

import atexit
import ctypes
import numbers
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

from rlx import locks
from rlx.errors import InputError, RlxError, RunCancelled, RunTimeout
from rlx.records import dataclass

T = TypeVar("T")

POLL_S = 0.01
"""How often whoever waits for another thread's run looks whether it is cancelled."""
PATIENCE_S = 30.0
"""How long the end of the process waits for runs that went on behind their limit."""
MOST_IDLE = 4
"""Threads for runs with a limit that are kept for the next."""


class CancelToken:
    """Ends runs from any thread, or from a handler of signals: every run that has it, now or later, fails with
    RunCancelled. A token that was cancelled stays so."""

    def __init__(self) -> None:
        self._flag = ctypes.c_int64(0)
        self.address = ctypes.addressof(self._flag)

    def cancel(self) -> None:
        self._flag.value = 1

    @property
    def cancelled(self) -> bool:
        return bool(self._flag.value)

    def __repr__(self) -> str:
        return f"<CancelToken {'cancelled' if self.cancelled else 'not cancelled'}>"


@dataclass(frozen=True)
class Limit:
    """What may end a run: a token, and a time of the monotonic clock that is `seconds` after its start."""

    token: CancelToken | None = None
    end: float = float("inf")
    seconds: float = float("inf")

    def error(self) -> RlxError | None:
        """What ends the run now, if anything does."""
        if self.token is not None and self.token.cancelled:
            return _cancelled()
        if time.monotonic() > self.end:
            return RunTimeout(f"[run] expected a run that is done in {self.seconds} s (timeout), got one that is not")
        return None


def _cancelled() -> RunCancelled:
    return RunCancelled("[run] expected a run that nobody cancels, got one that was")


class _Here(threading.local):
    limit: Limit | None = None


_here = _Here()


def limit() -> Limit | None:
    """That of this thread's run; None if nothing may end it."""
    return _here.limit


@contextmanager
def limited(timeout: float | None, cancel: CancelToken | None = None) -> Iterator[None]:
    """What runs in here, in this thread, has so much time, and may be cancelled. Raises InputError for a time that is
    not positive, RunCancelled for a token that was cancelled before."""
    if timeout is not None and not (isinstance(timeout, numbers.Real) and timeout > 0):
        raise InputError(f"[run] expected a timeout of more than 0 s, got {timeout!r}")
    if cancel is not None and not isinstance(cancel, CancelToken):
        raise InputError(f"[run] expected a CancelToken as cancel, got {type(cancel).__name__}")
    if cancel is not None and cancel.cancelled:
        raise _cancelled()
    before = _here.limit
    _here.limit = Limit(cancel) if timeout is None else Limit(cancel, time.monotonic() + timeout, timeout)
    try:
        yield
    finally:
        _here.limit = before


@contextmanager
def _having(own: Limit) -> Iterator[None]:
    before = _here.limit
    _here.limit = own
    try:
        yield
    finally:
        _here.limit = before


@contextmanager
def unlimited() -> Iterator[None]:
    """Nothing ends what runs in here."""
    before = _here.limit
    _here.limit = None
    try:
        yield
    finally:
        _here.limit = before


def check() -> None:
    """Raises RunTimeout, RunCancelled if this thread's run is to end."""
    own = _here.limit
    error = own.error() if own is not None else None
    if error is not None:
        raise error


LIMITS = ("timeout", "cancel")


def taken_from(named: dict[str, Any], inputs: Collection[str]) -> dict[str, Any]:
    """The limits among the arguments of a call, taken out, but for those that are inputs of the program."""
    return {name: named.pop(name) for name in LIMITS if name in named and name not in inputs}


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


Done = SimpleQueue[tuple[Any, BaseException | None]]


class _Helper:
    """A thread that makes calls for others, one after another.

    free   set while it makes none
    """

    def __init__(self) -> None:
        self.tasks: SimpleQueue[tuple[Callable[[], Any], Limit, Done]] = SimpleQueue()
        self.free = threading.Event()
        _all.add(self)
        threading.Thread(target=self._work, name="rlx-limited-run", daemon=True).start()

    def _work(self) -> None:
        while True:
            call, own, outbox = self.tasks.get()
            result, error = None, None
            try:
                with _having(own):
                    result = call()
            except BaseException as raised:  # it is raised in the thread that waits
                error = raised
            self.free.set()
            outbox.put((result, error))
            del call, outbox, result, error
            with _idle_lock:
                if len(_idle) >= MOST_IDLE:
                    return
                _idle.append(self)


_all: WeakSet[_Helper] = WeakSet()
_idle: list[_Helper] = []
_idle_lock = locks.lock()
locks.forget_after_fork(_idle.clear)
locks.forget_after_fork(_all.clear)


@atexit.register
def _settle() -> None:
    """Waits for what still goes on: Python ends threads that come back to it at its end, which libraries in C++ do not
    survive."""
    end = time.monotonic() + PATIENCE_S
    for helper in list(_all):
        helper.free.wait(max(end - time.monotonic(), 0.0))


def within(own: Limit, call: Callable[[], T]) -> T:
    """The result of the call, made by another thread, within the limit. After a RunTimeout or RunCancelled the call
    continues in the background, unless it calls `check`, and what it returns is dropped."""
    with _idle_lock:
        helper = _idle.pop() if _idle else None
    outbox: Done = SimpleQueue()
    helper = helper or _Helper()
    helper.free.clear()
    helper.tasks.put((call, own, outbox))
    while True:
        wait_s = own.end - time.monotonic()
        try:
            result, error = outbox.get(
                timeout=max(min(wait_s, POLL_S if own.token is not None else wait_s, 3600.0), 0.0)
            )
        except Empty:
            over = own.error()
            if over is not None:
                raise over from None
            continue
        if error is not None:
            raise error
        value: T = result
        return value
