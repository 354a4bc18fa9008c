"""Times several runtimes alternately, round after round, so that whatever slows the machine slows them all.

With one thread all run in this process, on one core. With more, each has its own process, with a pause before each
turn: a runtime whose idle workers spin would otherwise take cores from the one that is being timed. onnxruntime's do so
for more than 20 ms behind its last call.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from rlx.cli.baselines import Call, Case, build, limit_threads
from rlx.ir.literal import Array

ROUND_NS, ROUND_APART_NS = 60_000_000, 200_000_000
"""Of a runtime's turn in this process, and in one of its own."""
WARM_UP_NS = 500_000_000
PAUSE_S = 0.3


@dataclass(frozen=True)
class Timing:
    """What one runtime did: its times in ms, or why it has none. `ratio` is its time over ours, paired by round;
    `about` is what it told of itself: version, device."""

    name: str
    median_ms: float = float("nan")
    mad_ms: float = float("nan")
    calls: int = 0
    ratio: float = float("nan")
    error: float = float("nan")
    why: str = ""
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        return not self.why


class _Runner(Protocol):
    name: str
    about: Mapping[str, str]

    def outputs(self) -> list[Array]:
        """One run's results, as a first call."""
        ...

    def times_ns(self, calls: int) -> list[int]:
        """So many calls' times."""
        ...

    def close(self) -> None: ...


def _time(call: Call, calls: int) -> list[int]:
    samples: list[int] = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        samples.append(time.perf_counter_ns() - start)
    return samples


class _Here:
    """A runtime in this process."""

    def __init__(self, name: str, case: Case) -> None:
        self.name = name
        ready = build(name, case)
        self._call, self.about = ready.call, ready.about

    def outputs(self) -> list[Array]:
        return [np.array(a) for a in self._call()]

    def times_ns(self, calls: int) -> list[int]:
        return _time(self._call, calls)

    def close(self) -> None:
        pass


def _serve(connection: Any, name: str, case: Case) -> None:
    """The loop of a child process: builds the runtime, then runs it when told to."""
    try:
        limit_threads(case.threads)
        ready = build(name, case)
        call = ready.call
        connection.send(("ready", dict(ready.about)))
        while True:
            calls = connection.recv()
            if calls is None:
                return
            connection.send(("done", [np.array(a) for a in call()] if calls == 0 else _time(call, calls)))
    except EOFError:
        return
    except BaseException as error:
        connection.send(("failed", _why(error)))


def _why(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


class _Child:
    """A runtime in a process of its own."""

    def __init__(self, name: str, case: Case) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, case), daemon=True)
        self._process.start()
        theirs.close()
        self.about: Mapping[str, str] = self._answer()

    def _answer(self) -> Any:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"the process of {self.name} died") from None
        if kind == "failed":
            raise RuntimeError(value)
        return value

    def _ask(self, calls: int | None) -> Any:
        self._pipe.send(calls)
        return self._answer()

    def outputs(self) -> list[Array]:
        outputs: list[Array] = self._ask(0)
        return outputs

    def times_ns(self, calls: int) -> list[int]:
        times: list[int] = self._ask(calls)
        return times

    def close(self) -> None:
        if self._process.is_alive():
            self._pipe.send(None)
            self._process.join(5)
        if self._process.is_alive():
            self._process.terminate()


def race(
    names: Sequence[str],
    case: Case,
    seconds: float,
    together: bool | None = None,
    step: Callable[[], None] = lambda: None,
) -> list[Timing]:
    """Times the runtimes for about `seconds` each. The first is the one that the others are compared with.

    together   True keeps all in this process; None does so for one thread only
    """
    together = case.threads == 1 if together is None else together
    runners: dict[str, _Runner] = {}
    failed: dict[str, str] = {}
    results: dict[str, list[Array]] = {}
    about: dict[str, Mapping[str, str]] = {}
    for name in names:
        try:
            runners[name] = _Here(name, case) if together else _Child(name, case)
            results[name], about[name] = runners[name].outputs(), runners[name].about
        except Exception as error:  # a peer may fail in any way; the comparison continues without it
            runners.pop(name, None)
            failed[name] = _why(error)
    try:
        rounds = _rounds(list(runners.values()), seconds, together, step) if names[0] in runners else {}
    finally:
        for runner in runners.values():
            runner.close()
    if not rounds:
        return [Timing(name, why=failed.get(name, f"{names[0]} did not run")) for name in names]
    return [
        Timing(name, why=failed[name])
        if name in failed
        else replace(_timing(name, rounds, results, names[0]), about=about[name])
        for name in names
    ]


def rounds_of(seconds: float, together: bool) -> int:
    """How many rounds there are of turns that take so long in all."""
    return max(5, int(seconds * 1e9 / (ROUND_NS if together else ROUND_APART_NS)))


def _rounds(
    runners: Sequence[_Runner], seconds: float, together: bool, step: Callable[[], None]
) -> dict[str, list[list[int]]]:
    calls = {runner.name: _warm(runner, ROUND_NS if together else ROUND_APART_NS) for runner in runners}
    rounds: dict[str, list[list[int]]] = {runner.name: [] for runner in runners}
    deadline = time.perf_counter() + 4 * seconds * len(runners)
    for number in range(rounds_of(seconds, together)):
        shift = number % len(runners)
        for runner in (*runners[shift:], *runners[:shift]):
            if not together:
                time.sleep(PAUSE_S)
            rounds[runner.name].append(runner.times_ns(calls[runner.name])[1 if calls[runner.name] > 2 else 0 :])
        step()
        if time.perf_counter() > deadline and number >= 4:
            break
    return rounds


def _warm(runner: _Runner, round_ns: int) -> int:
    """Runs until it is warm; gives how many calls fill a round."""
    start = time.perf_counter_ns()
    times: list[int] = []
    while len(times) < 3 or time.perf_counter_ns() - start < WARM_UP_NS:
        times += runner.times_ns(1)
    return max(1, int(round_ns / max(np.median(times[len(times) // 2 :]), 1)))


def _timing(name: str, rounds: Mapping[str, list[list[int]]], results: Mapping[str, list[Array]], first: str) -> Timing:
    all_ns = np.concatenate([np.array(r) for r in rounds[name]])
    median = float(np.median(all_ns))
    paired = [np.median(a) / np.median(b) for a, b in zip(rounds[name], rounds[first])]
    return Timing(
        name,
        median_ms=median / 1e6,
        mad_ms=float(np.median(np.abs(all_ns - median))) / 1e6,
        calls=len(all_ns),
        ratio=float(np.median(paired)),
        error=error_between(results[name], results[first]),
    )


def error_between(actual: Sequence[Array], expected: Sequence[Array]) -> float:
    """The greatest difference of the first outputs, relative to the greatest magnitude."""
    if not actual or not expected or actual[0].shape != expected[0].shape:
        return float("inf")
    a, b = actual[0].astype(np.float64), expected[0].astype(np.float64)
    scale = float(np.abs(b).max()) if b.size else 0.0
    return float(np.abs(a - b).max() / (scale or 1.0)) if b.size else 0.0


def pin_to_one_core() -> None:
    """Keeps this process on one core of those that it may use, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
