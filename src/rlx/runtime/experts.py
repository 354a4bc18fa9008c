"""Mixtures of experts at run time: which experts the rows chose, and whose weights should be in memory.

Neither affects a result: rows go to the experts that they chose. The choices come from the program itself, as outputs
that its callers do not see. Weights in mapped files that need not be in memory are given back to the system, which
reads them again if a row needs them. A device with memory of its own that can hold some experts only holds as many as
are resident (`expert_slots.py`); others replace them there while rows need them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import locks, mapped
from rlx.arguments import methods_checked
from rlx.errors import InputError
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.op import Param
from rlx.ops.experts import GroupedMatmul
from rlx.records import dataclass
from rlx.runtime.mode import Observer
from rlx.runtime.run import observed
from rlx.runtime.state import State

if TYPE_CHECKING:
    from rlx.passes.held_experts import Budget

MOST_RUNS = 1 << 20


@dataclass(frozen=True)
class ExpertLayer:
    """Products whose rows share one choice of experts: the name of the first, the number of experts, and the params
    with weights."""

    name: str
    experts: int
    params: tuple[str, ...]


@dataclass
class ExpertStatistics:
    """Statistics of a layer since its residency was last set.

    rows        int64 [experts]: how many rows chose each expert
    hits        rows whose expert was marked as resident
    misses      rows whose expert was not
    fetched     experts that were fetched into memory; `released` those that were given back
    """

    rows: Array
    hits: int = 0
    misses: int = 0
    fetched: int = 0
    released: int = 0


@dataclass
class ExpertPool:
    """Which experts of a layer should be in memory: the `budget` that were chosen most since the last change.

    It changes after every `refresh` runs; at first the lowest numbers are resident. Ties go to the lower number.
    """

    experts: int
    budget: int
    refresh: int = 1
    resident: Array = field(init=False)
    _rows: Array = field(init=False)
    _runs: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not 0 < self.budget <= self.experts or self.refresh < 1:
            limits = f"a budget from 1 to {self.experts} experts and a refresh of at least 1"
            raise InputError(f"[experts] expected {limits}, got {self.budget} and {self.refresh}")
        self.resident = np.arange(self.experts) < self.budget
        self._rows = np.zeros(self.experts, np.int64)

    def see(self, rows: Array) -> None:
        """A run, in which so many rows chose each expert."""
        self._rows += rows
        self._runs += 1
        if self._runs % self.refresh == 0:
            order = np.argsort(-self._rows, kind="stable")
            self.resident = np.zeros(self.experts, np.bool_)
            self.resident[order[: self.budget]] = True
            self._rows[:] = 0


def layers_of(graph: Graph) -> list[tuple[ExpertLayer, Value]]:
    """The layers of experts at the top of a graph, with the choice of each."""
    by_choice: dict[Value, tuple[str, int, list[str]]] = {}
    for node in graph.nodes:
        if not isinstance(node.op, GroupedMatmul):
            continue
        weights, chosen = node.inputs[1:]
        count = weights.shape[0]
        if not isinstance(count, int):
            continue
        _, least, params = by_choice.setdefault(chosen, (node.source or node.name, count, []))
        if count == least and isinstance(weights.node.op, Param):
            params.append(weights.name)
    return [
        (ExpertLayer(name, count, tuple(dict.fromkeys(params))), chosen)
        for chosen, (name, count, params) in by_choice.items()
    ]


@methods_checked(but=("see", "capture"))
class Experts(Observer):
    """The experts of one compiled graph. Its methods may be called from many threads."""

    def __init__(self, state: State) -> None:
        layers = layers_of(state.program.graph)
        self.layers: tuple[ExpertLayer, ...] = tuple(layer for layer, _ in layers)
        self._choices = {f"rlx.experts.{i}": chosen for i, (_, chosen) in enumerate(layers)}
        self._state = state
        self._lock = locks.lock()
        self._captured: deque[tuple[Array, ...]] | None = None
        self._pools: list[ExpertPool] | None = None
        self._resident: list[Array] | None = None
        self._statistics: list[ExpertStatistics] = []
        self._budget: Budget | None = None

    def capture(self, runs: int | None) -> None:
        """Keeps the choices of the last `runs` runs for `taken`; None ends that. The first call compiles.

        Raises InputError, CapabilityError, CompileError.
        """
        if runs is not None and (type(runs) is not int or not 0 < runs <= MOST_RUNS):
            raise InputError(f"[experts] expected a number of runs from 1 to {MOST_RUNS}, got {runs!r}")
        self._prepare(runs is not None)
        with self._lock:
            self._captured = None if runs is None else deque(self._captured or (), runs)
        self._watch()

    def taken(self) -> list[tuple[Array, ...]]:
        """The choices of the runs since the last call, the oldest first: for each layer the experts of its rows."""
        with self._lock:
            choices = list(self._captured or ())
            if self._captured:
                self._captured.clear()
        return choices

    def set_resident(self, masks: Any) -> None:
        """Marks the experts whose weights should be in memory: bool [experts] for all layers, or one mask per layer;
        None ends that.

        Weights in mapped files are fetched and given back; others stay. A device with memory of its own that can hold
        some experts only holds so many of each weight, at least one, and brings those that are not there when rows
        choose them. Statistics start again. Raises InputError, CapabilityError, CompileError.
        """
        resident = None if masks is None else self._masks(masks)
        self._start(resident, None)

    def manage(self, budget: int | Sequence[int], refresh: int = 1) -> None:
        """Keeps in memory the `budget` experts of every layer that rows chose most; they change after every `refresh`
        runs.

        budget   of all layers, or of each (`budgets` tells what suits the choices so far)

        Raises InputError, CapabilityError, CompileError.
        """
        each = [budget] * len(self.layers) if isinstance(budget, int) else list(budget)
        if len(each) != len(self.layers):
            raise InputError(f"[experts] expected a budget, or one for each of {len(self.layers)} layers, got {each}")
        pools = [ExpertPool(layer.experts, most, refresh) for layer, most in zip(self.layers, each)]
        self._start([pool.resident for pool in pools], pools)

    def budgets(self, total: int) -> list[int]:
        """How many experts of each layer should be in memory if `total` may be, of all layers together: those that most
        rows chose since residency was set, otherwise in the captured runs; at least one of each layer.

        Raises InputError for less than that, or more experts than there are.
        """
        most = sum(layer.experts for layer in self.layers)
        if not len(self.layers) <= total <= most:
            raise InputError(f"[experts] expected a total from {len(self.layers)} to {most} experts, got {total}")
        with self._lock:
            counts = [statistics.rows for statistics in self._statistics] or self._captured_rows()
        each = [np.sort(rows)[::-1] for rows in counts]
        ranked = np.concatenate([rows[1:] for rows in each])
        layer_of = np.repeat(np.arange(len(each)), [len(rows) - 1 for rows in each])
        chosen = layer_of[np.argsort(-ranked, kind="stable")[: total - len(each)]]
        return [1 + int((chosen == number).sum()) for number in range(len(each))]

    @property
    def resident(self) -> list[Array] | None:
        """The masks in force, one for each layer."""
        with self._lock:
            return None if self._resident is None else [mask.copy() for mask in self._resident]

    def statistics(self) -> list[ExpertStatistics]:
        """The statistics of each layer; empty if no residency is set."""
        with self._lock:
            return [ExpertStatistics(**{**vars(s), "rows": s.rows.copy()}) for s in self._statistics]

    # how runs go

    @property
    def watched(self) -> dict[str, Value]:
        """The choices, by the names that they have as outputs."""
        return self._choices

    @property
    def budget(self) -> Budget | None:
        """How many experts of each weight are on the device, if it can hold some only."""
        return self._budget

    def see(self, arrays: Sequence[Array]) -> None:
        """The choices of a run."""
        with self._lock:
            if self._captured is not None:
                self._captured.append(tuple(arrays))
            if self._resident is not None:
                self._count(arrays, self._resident)

    def _prepare(self, managed: bool) -> None:
        if managed and not self.layers:
            raise InputError("[experts] expected a graph with a grouped_matmul at its top, got one without")
        if managed:
            observed(self._state.program, [self])

    def _watch(self) -> None:
        if self._captured is not None or self._resident is not None:
            self._state.observe(self)
        else:
            self._state.unobserve(self)

    def _start(self, masks: list[Array] | None, pools: list[ExpertPool] | None) -> None:
        before = self._budget
        self._budget = None if masks is None else self._held(masks)
        try:
            self._prepare(masks is not None)
        except BaseException:
            self._budget = before
            raise
        if masks is not None:
            self._state.program.rest()  # the program that tells the choices runs in its place
        elif before is not None:
            observed(self._state.program, [self]).rest()
        with self._lock:
            self._pools, self._resident = pools, None
            self._statistics = []
            if masks is not None:
                self._statistics = [ExpertStatistics(np.zeros(layer.experts, np.int64)) for layer in self.layers]
                self._place([np.ones(layer.experts, np.bool_) for layer in self.layers], masks)
        self._watch()

    def _held(self, masks: Sequence[Array]) -> Budget:
        """How many experts of each weight are on the device with these masks."""
        most: dict[str, int] = {}
        for layer, mask in zip(self.layers, masks):
            for name in layer.params:
                most[name] = max(most.get(name, 1), int(mask.sum()))
        return tuple(most.items())

    def _masks(self, masks: Any) -> list[Array]:
        arrays = [np.asarray(m) for m in masks] if isinstance(masks, (list, tuple)) else [np.asarray(masks)]
        if all(m.ndim == 0 for m in arrays):
            arrays = [np.asarray(masks)]
        arrays = arrays * len(self.layers) if len(arrays) == 1 else arrays
        fits = len(arrays) == len(self.layers) and all(
            m.dtype == np.bool_ and m.shape == (layer.experts,) for m, layer in zip(arrays, self.layers)
        )
        if not fits:
            types = [f"bool[{layer.experts}]" for layer in self.layers]
            raise InputError(
                f"[experts] expected one mask or masks {types}, got {[f'{m.dtype}{list(m.shape)}' for m in arrays]}"
            )
        return [m.copy() for m in arrays]

    def _captured_rows(self) -> list[Array]:
        """How many rows of the captured runs chose each expert."""
        captured = list(self._captured or ())
        return [
            sum((_rows(run[number], layer.experts) for run in captured), np.zeros(layer.experts, np.int64))
            for number, layer in enumerate(self.layers)
        ]

    def _count(self, choices: Sequence[Array], resident: list[Array]) -> None:
        for number, (layer, chosen) in enumerate(zip(self.layers, choices)):
            rows = _rows(chosen, layer.experts)
            statistics, mask = self._statistics[number], resident[number]
            statistics.rows += rows
            statistics.hits += int(rows[mask].sum())
            statistics.misses += int(rows[~mask].sum())
            if self._pools:
                self._pools[number].see(rows)
        if self._pools:
            self._place(resident, [pool.resident for pool in self._pools])

    def _place(self, before: list[Array], after: list[Array]) -> None:
        """Fetches and gives back the weights of experts between two states."""
        params = self._state.program.params
        for layer, old, new, statistics in zip(self.layers, before, after, self._statistics):
            for expert in np.flatnonzero(old != new):
                slices = [params[name][expert] for name in layer.params if name in params]
                (mapped.fetch if new[expert] else mapped.release)(slices)
            statistics.fetched += int((new & ~old).sum())
            statistics.released += int((old & ~new).sum())
        self._resident = [mask.copy() for mask in after]
        if any((old != new).any() for old, new in zip(before, after)):
            masks = {name: mask for layer, mask in zip(self.layers, after) for name in layer.params}
            observed(self._state.program, [self]).executable.prefer_experts(masks)


def _rows(chosen: Array, experts: int) -> Array:
    """How many rows chose each expert."""
    wide = chosen.astype(np.int64)
    inside = np.clip(np.where(wide < 0, wide + experts, wide), 0, max(experts - 1, 0))
    return np.bincount(inside, minlength=experts)


__all__ = ["ExpertLayer", "ExpertPool", "ExpertStatistics", "Experts", "layers_of"]
