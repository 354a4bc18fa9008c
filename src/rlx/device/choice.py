"""Which device to run a graph on, at given dims: who may, what each would take, who wins and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NoReturn

from rlx.backends.base import Backend, Options
from rlx.cost.estimate import Estimate, Estimator, Rates
from rlx.cost.generic import GenericEstimator
from rlx.device import calibration, observed, registry
from rlx.device.device import Device
from rlx.device.policy import DevicePolicy
from rlx.device.staged import StagedEstimator, parts
from rlx.device.support import dispatch_report
from rlx.errors import DeviceUnavailable, RlxError, UnsupportedOp
from rlx.ir.fingerprint import fingerprint
from rlx.ir.graph import Graph

Measure = Callable[[Device], float]
"""Runs on a device and gives the median in ns. Raises what compiling and running raises."""


@dataclass(frozen=True)
class Candidate:
    """A device, and how it stands with the graph.

    blocker     why it cannot be chosen; empty if it can
    estimate    what it would take, by its calibration; `ratio` corrects it by what runs of this or other programs took
    measured_ns the median of runs at these dims, if there were any
    age_s       of the calibration
    """

    device: Device
    name: str
    blocker: str = ""
    estimate: Estimate | None = None
    ratio: float = 1.0
    measured_ns: float | None = None
    age_s: float = 0.0
    ops: Mapping[str, int] = field(default_factory=dict)

    def run_ns(self) -> float:
        """What a run takes: as measured, else as predicted."""
        if self.measured_ns is not None:
            return self.measured_ns
        return self.estimate.run_ns * self.ratio if self.estimate else float("inf")

    def total_ns(self, expected_runs: float) -> float:
        """A run with its share of the compile."""
        compile_ns = self.estimate.compile_ns if self.estimate else 0.0
        return self.run_ns() + compile_ns / max(expected_runs, 1.0)

    @property
    def band(self) -> float:
        """How far off `run_ns` may be."""
        if self.measured_ns is not None:
            return MEASURED_BAND
        return self.estimate.band if self.estimate else float("inf")


MEASURED_BAND = 0.02


@dataclass(frozen=True)
class Decision:
    """The device that was chosen, why, and all that were looked at, the best first."""

    chosen: Device
    reason: str
    candidates: tuple[Candidate, ...]
    binding: Mapping[str, int]
    expected_runs: float
    took_ms: float

    def candidate(self, device: Device) -> Candidate:
        return next(c for c in self.candidates if c.device == device)


class Chooser:
    """One graph, one policy. Estimators are made once a device; a decision at new dims costs their evaluation."""

    def __init__(self, graph: Graph, policy: DevicePolicy, options: Options) -> None:
        self.graph, self.policy, self.options = graph, policy, options
        self.program = fingerprint(graph)
        self._estimators: dict[Device, Estimator] = {}
        self._viable: list[tuple[Device, str]] | None = None

    def standing(self) -> list[tuple[Device, str]]:
        """Every device that is here or named, with its blocker, which is empty for those that may be chosen."""
        if self._viable is None:
            self._viable = [(device, self._blocker(device)) for device in self.policy.candidates()]
        return self._viable

    def _blocker(self, device: Device) -> str:
        reason = registry.why_unavailable(device) or self.policy.why_refused(device)
        if reason:
            return reason
        try:
            return dispatch_report(self.graph, device, self.options).why_not
        except RlxError as error:
            return str(error)

    def admit(self, device: Device) -> None:
        """Raises DeviceUnavailable or UnsupportedOp if the device may not run the graph."""
        blocker = next((why for d, why in self.standing() if d == device), None)
        if self._blocker(device) if blocker is None else blocker:
            self.refuse(device)

    def viable(self) -> list[Device]:
        return [device for device, blocker in self.standing() if not blocker]

    def estimate(self, device: Device, binding: Mapping[str, int]) -> tuple[Estimate, float]:
        """What the device would take, uncorrected, and the age of its calibration in seconds.

        Calibrates the device if that was never done. Raises what that raises.
        """
        found = calibration.calibration(device)
        if device not in self._estimators:
            backend, ordinal = registry.backend(device)
            made = [self._estimator(backend, part, found.rates, ordinal) for part in parts(self.graph)]
            self._estimators[device] = StagedEstimator(self.graph, made) if len(made) > 1 else made[0]
        return self._estimators[device](binding), found.age_s

    def _estimator(self, backend: Backend, graph: Graph, rates: Rates, ordinal: int) -> Estimator:
        own = backend.estimator(graph, self.options, rates, ordinal)
        return own if own is not None else GenericEstimator(graph, rates, self.options.disable)

    def key(self, binding: Mapping[str, int]) -> observed.Key:
        return observed.Key(self.program, tuple(sorted(binding.items())))

    def candidate(self, device: Device, blocker: str, binding: Mapping[str, int]) -> Candidate:
        """A device with its prediction, if it may be chosen."""
        name = device.label if blocker else registry.full_name(device)
        if blocker:
            return Candidate(device, name, blocker)
        counts = dispatch_report(self.graph, device, self.options).counts()
        try:
            estimate, age = self.estimate(device, binding)
        except RlxError as error:
            return Candidate(device, name, str(error), ops=counts)
        seen = observed.of(device)
        blocker = "" if estimate.fits else _too_large(estimate)
        measured = seen.measured(self.key(binding))
        ratio = seen.ratio(self.program, estimate.parts())
        return Candidate(device, name, blocker, estimate, ratio, measured, age, counts)

    def decide(
        self, binding: Mapping[str, int], expected_runs: float = float("inf"), measure: Measure | None = None,
        hint: Device | None = None, may_chain: bool = True,
    ) -> Decision:  # fmt: skip
        """The choice at these dims.

        expected_runs   over how many runs the compile is spread
        measure         what `benchmark` and `auto` measure with; without it predictions decide alone
        may_chain       without a hint, the first device of the policy's chain that takes the graph is the choice

        Raises DeviceUnavailable or UnsupportedOp, which tell of every device why not.
        """
        return _Question(self, binding, expected_runs, measure, hint, may_chain).answer()

    def first_of_chain(self) -> tuple[Device | None, str]:
        """The first device of the policy's chain that may run the graph, and why those before it may not."""
        blockers = dict(self.standing())
        passed: list[str] = []
        for device in self.policy.chain:
            if not blockers[device]:
                listed = ", ".join(map(str, self.policy.chain))
                return device, "; ".join([f"the first of the chain {listed} that takes the graph", *passed])
            passed.append(f"{device}: {blockers[device]}")
        return None, ""

    def measured(self, candidate: Candidate, binding: Mapping[str, int], measure: Measure) -> Candidate:
        """With a measurement: the remembered one, else a new one. A device that fails is out, with its reason."""
        if candidate.measured_ns is not None:
            return candidate
        try:
            median = measure(candidate.device)
        except (RlxError, MemoryError) as error:
            return replace(candidate, blocker=f"failed when measured: {error}")
        parts = candidate.estimate.parts() if candidate.estimate else None
        observed.of(candidate.device).record(self.key(binding), median, parts)
        return replace(candidate, measured_ns=median)

    def refuse(self, wanted: Device | None) -> NoReturn:
        """Raises DeviceUnavailable or UnsupportedOp, with the reasons why the device, or none, may run the graph."""
        listed = [Candidate(device, device.label, blocker) for device, blocker in self.standing()]
        if wanted is None:
            here = [c for c in listed if registry.is_available(c.device)]
            kind = UnsupportedOp if here else DeviceUnavailable
            raise kind(_listed(self.graph, listed))
        blocker = next((c.blocker for c in listed if c.device == wanted), "") or self._blocker(wanted)
        able = ", ".join(str(c.device) for c in listed if not c.blocker) or "none"
        kind = UnsupportedOp if registry.is_available(wanted) else DeviceUnavailable
        raise kind(f"[device] expected {wanted} to run the graph {self.graph.name!r}: {blocker}; it runs on: {able}")


class _Question:
    """One decision that is asked for. `strategies` are tried in order: each gives a Decision, or None if it has none.

    What is worked out for several of them is so once, and not before one needs it: predictions may calibrate.
    """

    def __init__(
        self, chooser: Chooser, binding: Mapping[str, int], expected_runs: float, measure: Measure | None,
        hint: Device | None, may_chain: bool,
    ) -> None:  # fmt: skip
        self.start = time.perf_counter()
        self.chooser, self.policy, self.graph = chooser, chooser.policy, chooser.graph
        self.binding, self.expected_runs, self.measure = binding, expected_runs, measure
        self.hint, self.may_chain = hint, may_chain
        self.standing = chooser.standing()

    def answer(self) -> Decision:
        """Raises DeviceUnavailable, UnsupportedOp."""
        for strategy in (self.named, self.only, self.benchmark, self.beyond_doubt, self.measured_rivals):
            decision = strategy()
            if decision is not None:
                return decision
        return self.preferred()

    # strategies

    def named(self) -> Decision | None:
        """The device that is forced, asked for, or first in the chain."""
        if self.policy.force:
            return self._unpredicted(self.policy.force, "forced")
        wanted, how = self.hint or self.policy.hint, "asked for"
        if wanted is None and self.may_chain:
            wanted, how = self.chooser.first_of_chain()
        return None if wanted is None else self._unpredicted(wanted, how)

    def only(self) -> Decision | None:
        """The only device that may run the graph."""
        able = self.chooser.viable()
        if not able:
            self.chooser.refuse(None)
        return self._unpredicted(able[0], "the only device that may run it") if len(able) == 1 else None

    def benchmark(self) -> Decision | None:
        """The quickest of all, measured."""
        if self.policy.strategy != "benchmark" or self.measure is None:
            return None
        return self._quickest_measured(self._open(self.candidates), "the quickest of those measured")

    def beyond_doubt(self) -> Decision | None:
        """The one that is predicted to be the quickest, if no other's band reaches it."""
        if len(self.rivals) > 1:
            return None
        return self._decision(self.rivals[0], "predicted the quickest, beyond doubt", self.candidates)

    def measured_rivals(self) -> Decision | None:
        """The quickest of those that predictions cannot tell apart, measured."""
        if self.policy.strategy != "auto" or self.measure is None:
            return None
        about = "the quickest of those that predictions could not tell apart, measured"
        return self._quickest_measured(self.rivals, about)

    def preferred(self) -> Decision:
        """Of those that predictions cannot tell apart the one that the policy prefers, else the quickest predicted."""
        best = min(self.rivals, key=lambda c: (self.policy.preference(c.device), self._total_ns(c)))
        preferred = self.policy.preference(best.device) < len(self.policy.prefer)
        about = "preferred among those that predictions cannot tell apart" if preferred else "predicted the quickest"
        return self._decision(best, about, self.candidates)

    # what they are made of

    @cached_property
    def candidates(self) -> list[Candidate]:
        return [self.chooser.candidate(device, blocker, self.binding) for device, blocker in self.standing]

    @cached_property
    def rivals(self) -> list[Candidate]:
        """The quickest by what is known, and those that may beat it, in order."""
        ranked = sorted(self._open(self.candidates), key=self._total_ns)
        return [c for c in ranked if _may_beat(c, ranked[0], self.expected_runs)]

    def _total_ns(self, candidate: Candidate) -> float:
        return candidate.total_ns(self.expected_runs)

    def _open(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that may be chosen. Raises UnsupportedOp if there are none."""
        found = [c for c in candidates if not c.blocker]
        if not found:
            raise UnsupportedOp(_listed(self.graph, candidates))
        return found

    def _quickest_measured(self, measured: Sequence[Candidate], about: str) -> Decision:
        """The quickest after these have been measured; those that failed then are out."""
        assert self.measure is not None
        seen = {c.device: self.chooser.measured(c, self.binding, self.measure) for c in measured}
        candidates = [seen.get(c.device, c) for c in self.candidates]
        return self._decision(min(self._open(candidates), key=self._total_ns), about, candidates)

    def _unpredicted(self, device: Device, about: str) -> Decision:
        """A choice that needs no prediction: none is made, as it might have to calibrate first."""
        if device not in self.chooser.viable():
            self.chooser.refuse(device)
        listed = [Candidate(each, each.label, blocker) for each, blocker in self.standing]
        return self._decision(next(c for c in listed if c.device == device), about, listed)

    def _decision(self, chosen: Candidate, reason: str, candidates: Sequence[Candidate]) -> Decision:
        took_ms = (time.perf_counter() - self.start) * 1e3
        ranked = sorted(candidates, key=lambda c: (bool(c.blocker), self._total_ns(c)))
        return Decision(chosen.device, reason, tuple(ranked), dict(self.binding), self.expected_runs, took_ms)


def _may_beat(one: Candidate, best: Candidate, expected_runs: float) -> bool:
    """Whether the bands of two predictions meet."""
    if one is best:
        return True
    low = one.total_ns(expected_runs) * (1 - one.band)
    high = best.total_ns(expected_runs) * (1 + best.band)
    return low <= high


def _too_large(estimate: Estimate) -> str:
    need = estimate.arena_bytes + estimate.weight_bytes
    return f"it needs {need} bytes, and {estimate.free_bytes} are free"


def _listed(graph: Graph, candidates: Sequence[Candidate]) -> str:
    lines = "".join(f"\n  {c.device}: {c.blocker}" for c in candidates)
    return f"[device] expected a device that takes the graph {graph.name!r}, got none:{lines}"
