"""A bounded search for schedules: the heaviest kernels of a graph get others than their generators chose, and those are
kept that are clearly faster.

A *round* is a program in which every kernel of interest has its next candidate. It runs in turns with the program as it
is, kernels are timed one by one, and the median of their ratios counts, so a machine that is busy for a while slows
both sides. What wins by more than its noise runs once more in turns, all winners together, and must win again: the best
of many noisy ratios is too good, and the memory that a program happens to get may slow it. Results are compared with
those of the usual schedules in every round.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from statistics import median
from typing import Any

import numpy as np

from rlx.backends.base import Options
from rlx.errors import RlxError
from rlx.ir.literal import Array
from rlx.kernel.schedule import search, tuned
from rlx.kernel.schedule.tuned import Found, Table
from rlx.records import dataclass
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.program import Inputs

SECONDS = 20.0
LEAST_SHARE = 0.01
"""Of the time of a run that a kernel must take to be worth a search."""
MOST_KERNELS = 32
LEAST_WIN = 0.05
"""Of a kernel's time that another schedule must save in its round, and half of it in the confirmation."""
NOISES = 2.0
"""Standard errors of the median that it must save at least."""
ROUND_S = 0.3
FEWEST, MOST = 5, 40
"""Runs of each side in a round."""
RESERVED = 0.2
"""Of the seconds, for the confirmation."""

Key = tuple[str, ...]
"""The nodes that a kernel computes, which tell it in every program of a graph."""


@dataclass(frozen=True)
class Tuned:
    """A kernel that has a faster schedule now. Times are of one run of the graph, over all kernels that are alike.

    name        of the kernel, or of the first of several that are alike
    tiles       what differs from the schedule that it had, by `level.axis`
    """

    name: str
    kind: str
    signature: str
    before_us: float
    after_us: float
    tiles: Mapping[str, int]


@dataclass(frozen=True)
class Tuning:
    """What a search found; `kernels` are those that are faster now.

    before_us, after_us   of a run of all kernels, in the confirmation
    tried     schedules of kernels that were timed
    looked_at kernels that were worth it, those that are alike counted once
    refused   why rounds did not count: results that differed, schedules that no kernel could have
    """

    kernels: tuple[Tuned, ...]
    before_us: float
    after_us: float
    tried: int
    looked_at: int
    refused: tuple[str, ...] = ()


@dataclass
class _Group:
    """Kernels that are alike: one signature. `candidates` are changes of tiles; `best` the ratio and the change."""

    kind: str
    signature: str
    name: str
    keys: set[Key]
    candidates: list[dict[str, int]]
    ns: float = 0.0
    best: tuple[float, dict[str, int]] | None = None


@dataclass
class _Trial:
    """A program compiled by a table."""

    compiled: CompiledGraph
    keys: list[Key]
    names: list[str]
    schedules: list[Any]
    lanes: int
    registers: int

    def tiles(self, keys: set[Key]) -> list[Any]:
        """Schedules of the kernels of these nodes."""
        return [each for key, each in zip(self.keys, self.schedules) if key in keys]


def _kernel_ns(compiled: CompiledGraph, inputs: Inputs) -> list[tuple[Key, float]]:
    """The nodes of each kernel, and its time in one run."""
    return [(tuple(k.sources), k.total_ns) for k in compiled.kernel_times(inputs)]


@dataclass
class Search:
    """The search for one graph.

    compile   the graph for the processor, with options
    clock   seconds
    times   nodes and ns of each kernel in a run of a program; None measures them
    step    is called after each round
    """

    compile: Callable[[Options], CompiledGraph]
    inputs: Inputs
    options: Options
    seconds: float = SECONDS
    clock: Callable[[], float] = time.perf_counter
    times: Callable[[CompiledGraph, Inputs], list[tuple[Key, float]]] | None = None
    step: Callable[[], object] = lambda: None
    refused: list[str] = field(default_factory=list)
    tried: int = 0

    def run(self) -> Tuning:
        """Searches, keeps what is found, and tells it. An interrupt (Ctrl-C) ends the search, not the confirmation.
        Raises what compiling and running the graph raise."""
        from rlx.backends.cpu import isa, schedules

        target = isa.detect() if self.options.isa is None else isa.forced(self.options.isa)
        end = self.clock() + self.seconds * (1 - RESERVED)
        known: Table = schedules.table(target)
        base = self._compiled(known)
        self._expected = base.compiled.run(self.inputs)
        groups = self._groups(base)
        with contextlib.suppress(KeyboardInterrupt):  # what was found is confirmed and kept
            self._rounds(base, known, groups, end)
        winners = [group for group in groups if group.best is not None]
        tuning = self._confirmed(base, known, winners)
        found = {}
        for each in tuning.kernels:
            for entry, tiles in tuned.with_changes({}, {each.signature: each.tiles}).items():
                merged = {**known.get(entry, {}), **tiles}
                found[entry] = Found(merged, each.name, each.before_us, each.after_us)
        if found:
            tuned.keep(schedules.target(target), found)
        return replace(tuning, tried=self.tried, looked_at=len(groups), refused=tuple(dict.fromkeys(self.refused)))

    def _compiled(self, table: Table) -> _Trial:
        with tuned.trying(table):
            compiled = self.compile(replace(self.options, profile=True, tiered=False))
            report = compiled.describe()
        sources = [tuple(nodes) for nodes in report["sources"]]
        return _Trial(compiled, sources, report["kernels"], report["schedules"], report["lanes"], report["registers"])

    def _groups(self, base: _Trial) -> list[_Group]:
        """Kernels worth a search, the heaviest first."""
        measured = [self._times(base) for _ in range(FEWEST)]
        least = [min(ns) for ns in zip(*([ns for _, ns in each] for each in measured))]
        groups: dict[str, _Group] = {}
        for name, key, chosen, ns in zip(base.names, base.keys, base.schedules, least):
            if chosen is None:
                continue
            kind, signature, tiles = chosen
            if signature not in groups:
                tries = search.candidates(kind, tiles, base.lanes, base.registers)
                groups[signature] = _Group(kind, signature, name, set(), tries)
            groups[signature].keys.add(key)
            groups[signature].ns += ns
        heavy = [g for g in groups.values() if g.candidates and g.ns >= LEAST_SHARE * sum(least)]
        return sorted(heavy, key=lambda group: -group.ns)[:MOST_KERNELS]

    def _rounds(self, base: _Trial, known: Table, groups: Sequence[_Group], end: float) -> None:
        for number in range(max((len(group.candidates) for group in groups), default=0)):
            open_groups = [group for group in groups if number < len(group.candidates)]
            if self.clock() >= end:
                return
            changes = {group.signature: group.candidates[number] for group in open_groups}
            trial = self._trial(tuned.with_changes(known, changes))
            self.step()
            if trial is None:
                continue
            ratios, _ = self._in_turns(base, trial, open_groups)
            for group in open_groups:
                if base.tiles(group.keys) == trial.tiles(group.keys):
                    continue  # it cannot have this schedule
                self.tried += 1
                ratio = _win(ratios[group.signature], LEAST_WIN)
                if ratio is not None and (group.best is None or ratio < group.best[0]):
                    group.best = (ratio, changes[group.signature])

    def _trial(self, table: Table) -> _Trial | None:
        """A program whose results are right; None if it has none."""
        try:
            trial = self._compiled(table)
            actual = trial.compiled.run(self.inputs)
        except RlxError as error:
            self.refused.append(str(error).splitlines()[0])
            return None
        names = trial.compiled.output_names
        wrong = [name for name, a, b in zip(names, actual, self._expected) if not are_close(a, b)]
        if wrong:
            self.refused.append(f"[tune] expected the same results, got others for {', '.join(wrong)}")
            return None
        return trial

    def _confirmed(self, base: _Trial, known: Table, winners: Sequence[_Group]) -> Tuning:
        """Runs the winners together once more in turns with the program as it is."""
        changes = {group.signature: group.best[1] for group in winners if group.best is not None}
        trial = self._trial(tuned.with_changes(known, changes)) if winners else None
        if trial is None:
            total = self._total(base)
            return Tuning((), total, total, 0, 0)
        base = self._compiled(known)  # in other memory: places of weights and arenas make kernels faster or slower
        base.compiled.run(self.inputs)
        ratios, before = self._in_turns(base, trial, winners)
        kernels = []
        for group in winners:
            ratio = _win(ratios[group.signature], LEAST_WIN / 2)
            if ratio is not None:
                ns = before[group.signature]
                kernels.append(
                    Tuned(group.name, group.kind, group.signature, ns / 1e3, ns * ratio / 1e3, changes[group.signature])
                )
        self.step()
        saved = sum(each.before_us - each.after_us for each in kernels)
        total = self._total(base)
        return Tuning(tuple(kernels), total, total - saved, 0, 0)

    def _times(self, trial: _Trial) -> list[tuple[Key, float]]:
        return (self.times or _kernel_ns)(trial.compiled, self.inputs)

    def _total(self, base: _Trial) -> float:
        """Microseconds of all kernels in the fastest of a few runs."""
        runs = (self._times(base) for _ in range(FEWEST))
        return min(sum(ns for _, ns in each) for each in runs) / 1e3

    def _in_turns(
        self, base: _Trial, trial: _Trial, groups: Sequence[_Group]
    ) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Ratios of each pair of runs by signature, and medians of ns of the program as it is."""
        pairs: dict[str, list[tuple[float, float]]] = {group.signature: [] for group in groups}
        begin, count = self.clock(), 0
        while count < FEWEST or (count < MOST and self.clock() - begin < ROUND_S):
            sides = (base, trial) if count % 2 else (trial, base)  # who goes first finds other caches
            measured = {id(side): self._times(side) for side in sides}
            for group in groups:
                both = [_time_of(measured[id(side)], group.keys) for side in (base, trial)]
                pairs[group.signature].append((both[0], both[1]))
            count += 1
        ratios = {s: [b / a if a and b else math.inf for a, b in each] for s, each in pairs.items()}
        return ratios, {s: median(a for a, _ in each) for s, each in pairs.items()}


def _time_of(measured: Sequence[tuple[Key, float]], keys: set[Key]) -> float:
    """ns of the kernels of these nodes; 0 if one of them is not there."""
    found = [(key, ns) for key, ns in measured if key in keys]
    return sum(ns for _, ns in found) if {key for key, _ in found} == keys else 0.0


def _win(ratios: Sequence[float], least: float) -> float | None:
    """The median of ratios if it saves at least a part and more than its noise, else None."""
    middle = median(ratios)
    if not math.isfinite(middle):
        return None
    spread = median(abs(ratio - middle) for ratio in ratios)
    error = 1.4826 * 1.2533 * spread / math.sqrt(len(ratios))  # of a median, from the median deviation
    return middle if middle < 1 - max(least, NOISES * error) else None


def are_close(actual: Array, expected: Array) -> bool:
    """Whether results may differ by the order of sums alone."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if actual.dtype.kind in "biu" or not actual.size:
        return bool(np.array_equal(actual, expected))
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    a, b = actual.astype(wide), expected.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    largest = float(np.abs(b[finite]).max(initial=0.0))
    return bool((np.abs(a[finite] - b[finite]) <= _tolerance(actual.dtype) * largest).all())


def _tolerance(dtype: np.dtype[Any]) -> float:
    """Of the largest result: the square root of what the dtype rounds by, or 1e-4 where that is less."""
    import ml_dtypes

    narrow = {"float16": 2e-2, "bfloat16": 1e-1, "float64": 1e-9, "complex128": 1e-9}
    return narrow.get(dtype.name, 1e-4 if dtype.itemsize >= 4 else float(ml_dtypes.finfo(dtype).eps))
