"""The queue of runs: its order, runs that begin before others have ended, and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from rlx.runtime.pipeline import MOST_BEGUN, Begun, Pending, Pipeline


class Log:
    """What happened, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def begins(self, number: int, wait: threading.Event | None = None) -> Callable[[], Begun[int]]:
        def end() -> int:
            self.events.append(f"end {number}")
            return number

        def begin() -> Begun[int]:
            if wait is not None:
                wait.wait()
            self.events.append(f"begin {number}")
            return Begun(end)

        return begin

    def runs(self, number: int) -> Callable[[], int]:
        def run() -> int:
            self.events.append(f"run {number}")
            return number

        return run


def queued(pipeline: Pipeline[int], log: Log, count: int) -> list[Pending[int]]:
    """So many runs, all of which wait before the first begins."""
    go = threading.Event()
    pending = [pipeline.put(log.begins(0, go)), *(pipeline.put(log.begins(n)) for n in range(1, count))]
    go.set()
    return pending


def test_runs_begin_before_the_first_has_ended() -> None:
    pipeline, log = Pipeline[int](), Log()
    assert [p.result() for p in queued(pipeline, log, 5)] == list(range(5))
    assert log.events[:MOST_BEGUN] == [f"begin {n}" for n in range(MOST_BEGUN)]
    assert [e for e in log.events if e.startswith("end")] == [f"end {n}" for n in range(5)]
    for n in range(5 - MOST_BEGUN):
        assert log.events.index(f"end {n}") < log.events.index(f"begin {n + MOST_BEGUN}"), "no more at once"
    pipeline.sync()
    assert pipeline.unfinished == 0


def test_a_run_that_does_not_overlap_is_done_after_those_before_it() -> None:
    pipeline, log = Pipeline[int](), Log()
    go = threading.Event()
    first, second = pipeline.put(log.begins(0, go)), pipeline.put(log.runs(1))
    go.set()
    assert second.result() == 1
    assert first.done
    assert first.result() == 0


def test_errors_belong_to_their_run() -> None:
    pipeline, log = Pipeline[int](), Log()

    def fails() -> int:
        raise ValueError("late")

    go = threading.Event()
    first = pipeline.put(log.begins(0, go))
    late = pipeline.put(lambda: Begun(fails))
    at_once = pipeline.put(fails)
    last = pipeline.put(log.begins(3))
    go.set()
    assert (first.result(), last.result()) == (0, 3)
    for pending in (late, at_once):
        with pytest.raises(ValueError, match="late"):
            pending.result()


def test_sync_waits_for_runs_that_have_begun() -> None:
    pipeline, log = Pipeline[int](), Log()
    queued(pipeline, log, 3)
    pipeline.sync()
    assert log.events[-1] == "end 2"
