"""Queued runs: the caller continues while one thread works through a bounded queue in order.

Where a device works by itself, a run begins before those ahead of it have ended: the host prepares it, and reads the
results of the run before, while the device computes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from rlx import locks
from rlx.errors import RlxError
from rlx.records import dataclass

T = TypeVar("T")

MOST_QUEUED = 16
"""Runs that may wait; whoever brings more waits until one is done."""
MOST_BEGUN = 3
"""Runs that are on a device at once: one that it works on, the next, and one whose results are read."""
LINGER_S = 0.1
"""How long the thread waits for more before it ends. It starts again when it is needed."""


@dataclass(frozen=True)
class Begun(Generic[T]):
    """A run that is on its way. `end` waits for it and gives its results."""

    end: Callable[[], T]


Work = Callable[[], T | Begun[T]]
"""Does a run, or begins it."""


_HERE = threading.local()
"""`queued` is true in threads of pipelines."""


def is_queued_run() -> bool:
    """Whether this thread does queued runs."""
    return getattr(_HERE, "queued", False)


class Pending(Generic[T]):
    """A run that was queued. It may be waited for from any thread."""

    def __init__(self, work: Work[T]) -> None:
        self._work: Work[T] | None = work
        self._done = threading.Event()
        self._value: T | None = None
        self.error: BaseException | None = None
        self.delivered = False

    def result(self, timeout_s: float | None = None) -> T:
        """What the run gave; waits for it. Raises what the run raised, TimeoutError."""
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"[run_pipelined] expected the run to be done within {timeout_s} s, it is not")
        self.delivered = True
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]  # it is there once the run is done without an error

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def _step(self) -> bool:
        """Begins the run, or ends one that was begun; whether it is done."""
        work, self._work = self._work, None  # the run's inputs are released when it is done
        try:
            assert work is not None  # each step is done once
            result = work()
            if isinstance(result, Begun):
                self._work = result.end
                return False
            self._value = result
        except BaseException as error:  # it is raised when the result is requested, and must not end the thread
            self.error = error
        return True

    def _lose(self) -> None:
        """In the child of a fork, which has nobody to do it. Those of its parent that wait for it are not here."""
        self._done = threading.Event()
        self.error = RlxError("[run] expected a run of this process, got one that was queued before it was forked")
        self._done.set()


class Pipeline(Generic[T]):
    """The queue and its thread. Every method may be called from many threads."""

    def __init__(self, most_queued: int = MOST_QUEUED) -> None:
        self._most = most_queued
        self._queue: deque[Pending[T]] = deque()
        self._begun: deque[Pending[T]] = deque()
        """Runs at work, in their order."""
        self._failed: list[Pending[T]] = []
        self._queued = self._finished = 0  # how many ever were
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        locks.after_fork(self, Pipeline._forget)

    def put(self, work: Work[T]) -> Pending[T]:
        """Queues a run; waits while the queue is full."""
        pending = Pending(work)
        with self._changed:
            self._changed.wait_for(lambda: len(self._queue) < self._most)
            self._queue.append(pending)
            self._queued += 1
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._loop, name="rlx-pipeline")
                self._thread.start()
            self._changed.notify_all()
        return pending

    @property
    def unfinished(self) -> int:
        """How many runs are queued or at work."""
        return self._queued - self._finished

    def drain(self) -> None:
        """Waits until everything queued by now is done; errors stay with their runs."""
        if threading.current_thread() is self._thread:
            return
        with self._changed:
            last = self._queued
            self._changed.wait_for(lambda: self._finished >= last)

    def sync(self) -> None:
        """`drain`; then raises the first error that nobody has been told of, and forgets the others."""
        self.drain()
        with self._changed:
            untold = [pending for pending in self._failed if not pending.delivered]
            self._failed.clear()
        if untold and untold[0].error is not None:
            raise untold[0].error

    def _forget(self) -> None:
        """In the child of a fork: runs that wait there belong to the parent, which has the thread that does them."""
        self._changed, self._thread = threading.Condition(), None
        for pending in (*self._queue, *self._begun):
            pending._lose()
        self._queue.clear()
        self._begun.clear()
        self._finished = self._queued

    def _loop(self) -> None:
        _HERE.queued = True
        while True:
            with self._changed:
                if not self._begun and not self._changed.wait_for(lambda: bool(self._queue), LINGER_S):
                    self._thread = None
                    return
                begins = bool(self._queue) and len(self._begun) < MOST_BEGUN
                if begins:
                    self._begun.append(self._queue.popleft())
                    self._changed.notify_all()
            if not begins:
                self._end(self._begun[0])
            elif self._begun[-1]._step():
                while len(self._begun) > 1:
                    self._end(self._begun[0])
                self._finish(self._begun[0])

    def _end(self, pending: Pending[T]) -> None:
        pending._step()
        self._finish(pending)

    def _finish(self, pending: Pending[T]) -> None:
        """Tells of the first of the runs at work, which is done."""
        pending._done.set()
        with self._changed:
            self._begun.popleft()
            self._finished += 1
            if pending.error is not None and len(self._failed) < self._most:
                self._failed.append(pending)
            self._changed.notify_all()
