"""Chooses the device for a graph at given dims: candidates, predicted times, the winner and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from rlx.backends.base import Options
from rlx.cost.estimate import Estimate, Estimator
from rlx.device import calibration, observed, registry
from rlx.device.device import Device
from rlx.device.policy import USUAL, DevicePolicy, outdone
from rlx.device.staged import estimator_of
from rlx.device.support import dispatch_report
from rlx.errors import DeviceUnavailable, FallbackError, RlxError, UnsupportedOp
from rlx.ir.fingerprint import fingerprint
from rlx.ir.graph import Graph
from rlx.ir.symbols import has_measured
from rlx.records import dataclass

if TYPE_CHECKING:
    from rlx.backends.size_buckets import SizeBuckets

Measure = Callable[[Sequence[Device]], Mapping[Device, "observed.Sample | str"]]
"""Runs on devices in turns: what each took, or why it did not run."""
UNUSUAL = 1 << 30
EXPECTED_RUNS = 1000.0
"""Over how many runs a compile is spread where nobody says how many there will be."""
SIZES = 16.0
"""How many sizes a program with named dims is expected to see, at least."""
BUCKETS = 8.0
"""In how many buckets these are expected to lie."""
GAIN = 1.5
"""How many times as fast as the usual device another must be predicted to take its place, where runs of the program did
not correct the predictions of both."""


@dataclass(frozen=True)
class Candidate:
    """A device, and how it stands with the graph.

    blocker      why it cannot be chosen; empty if it can
    estimate     what it would take; `ratio` corrects it by what runs of this or other programs took
    sample       what was measured at these dims, if anything was
    calibration  whose rates the estimate goes by
    seen         whether runs of this program, at any size, corrected the estimate
    compiles     how many compiles are expected: one for each size, or bucket of sizes, on devices that compile sizes
    drift        how many times as long as predicted programs take that were seen on the device
    """

    device: Device
    name: str
    blocker: str = ""
    estimate: Estimate | None = None
    ratio: float = 1.0
    sample: observed.Sample | None = None
    calibration: calibration.Calibration | None = None
    seen: bool = False
    compiles: float = 1.0
    drift: float = 1.0
    ops: Mapping[str, int] = field(default_factory=dict)

    @property
    def measured_ns(self) -> float | None:
        return None if self.sample is None else self.sample.measured_ns

    @property
    def is_prior(self) -> bool:
        """Whether the prediction comes from similar machines."""
        return self.calibration is not None and self.calibration.is_prior

    @property
    def age_s(self) -> float:
        """Of the calibration."""
        return 0.0 if self.calibration is None else self.calibration.age_s

    def run_ns(self) -> float:
        """What a run takes: as measured, else as predicted."""
        if self.sample is not None:
            return self.sample.measured_ns
        return self.estimate.run_ns * self.ratio if self.estimate else float("inf")

    def compile_ns(self, expected_runs: float) -> float:
        """A run's share of the compiles."""
        return self.estimate.compile_ns * self.compiles / max(expected_runs, 1.0) if self.estimate else 0.0

    def total_ns(self, expected_runs: float) -> float:
        """A run with its share of the compiles."""
        return self.run_ns() + self.compile_ns(expected_runs)

    @property
    def band(self) -> float:
        """How far off `run_ns` may be."""
        if self.sample is not None:
            return max(self.sample.high_ns / self.sample.measured_ns, self.sample.measured_ns / self.sample.low_ns) - 1
        if self.estimate is None:
            return float("inf")
        return max(self.estimate.band, self.calibration.band if self.calibration else 0.0)

    def span_ns(self, expected_runs: float) -> tuple[float, float]:
        """The interval in which `total_ns` is expected to lie."""
        run, share = self.run_ns(), self.compile_ns(expected_runs)
        if self.sample is not None:
            return self.sample.low_ns + share, self.sample.high_ns + share
        return run / (1 + self.band) + share, run * (1 + self.band) + share


@dataclass(frozen=True)
class Decision:
    """The chosen device, the reason, and all candidates, the best first."""

    chosen: Device
    reason: str
    candidates: tuple[Candidate, ...]
    binding: Mapping[str, int]
    expected_runs: float
    took_ms: float

    def candidate(self, device: Device) -> Candidate:
        return next(c for c in self.candidates if c.device == device)


class Chooser:
    """One graph and one policy. Estimators are created once per device; a decision at new dims only evaluates them."""

    def __init__(self, graph: Graph, policy: DevicePolicy, options: Options) -> None:
        self.graph, self.policy, self.options = graph, policy, options
        narrow = "" if options.precision == "f32" else f"@{options.precision}"  # what it takes tells nothing of f32
        self.program = fingerprint(graph) + narrow
        self._estimators: dict[tuple[Device, float], Estimator] = {}
        self._viable: list[tuple[Device, str]] | None = None
        self._sizes: dict[tuple[tuple[str, int], ...], None] = {}  # in the order in which they came
        self._buckets: dict[str, SizeBuckets | None] = {}

    def standing(self) -> list[tuple[Device, str]]:
        """Every device that is here or named, with its blocker, which is empty for those that may be chosen."""
        if self._viable is None:
            self._viable = [(device, self._blocker(device)) for device in self.policy.candidates()]
        return self._viable

    def _blocker(self, device: Device, named: bool = False) -> str:
        reason = registry.why_unavailable(device) or self.policy.why_refused(device, named)
        if reason:
            return reason
        try:
            return dispatch_report(self.graph, device, self.options).why_not
        except RlxError as error:
            return str(error)

    def admit(self, device: Device) -> None:
        """Raises DeviceUnavailable or UnsupportedOp if the device may not run the graph, though it is named."""
        if self._blocker(device, named=True):
            self.refuse(device)

    def viable(self) -> list[Device]:
        return [device for device, blocker in self.standing() if not blocker]

    def estimate(
        self, device: Device, binding: Mapping[str, int]
    ) -> tuple[Estimate | None, calibration.Calibration | None]:
        """The uncorrected prediction for the device, and the rates that it uses: measured ones, otherwise a prior's.
        None if there are neither. Nothing is measured. Raises what preparing the graph raises."""
        calibrated = calibration.best(device)
        if calibrated is None:
            return None, None
        key = (device, calibrated.measured_s)
        backend, ordinal = registry.backend(device)
        if key not in self._estimators:
            self._estimators[key] = estimator_of(self.graph, backend, self.options, calibrated.rates, ordinal)
        estimate = self._estimators[key](binding)
        if estimate.free_bytes is None:
            estimate = replace(estimate, free_bytes=backend.free_bytes(ordinal))
        return estimate, calibrated

    def key(self, binding: Mapping[str, int]) -> observed.Key:
        return observed.Key(self.program, tuple(sorted(binding.items())))

    def compiles(self, device: Device, binding: Mapping[str, int]) -> float:
        """How many compiles the device is expected to need: for each of the sizes seen so far, and of those to come, or
        for each of the buckets that they lie in."""
        self._sizes.setdefault(tuple(sorted(binding.items())))
        backend = registry.load(device.kind)
        if not binding or not backend.compiles_sizes:
            return 1.0
        if device.kind not in self._buckets:
            staged = has_measured(self.graph)
            self._buckets[device.kind] = None if staged else backend.size_buckets(self.graph, self.options)
        buckets = self._buckets[device.kind]
        if buckets is None:
            return max(SIZES, float(len(self._sizes)))
        programs = {buckets.program_of(dict(sizes)) for sizes in self._sizes}
        return max(BUCKETS if buckets.is_whole else SIZES, float(len(programs)))

    def candidate(self, device: Device, blocker: str, binding: Mapping[str, int]) -> Candidate:
        """A device with its prediction, if it may be chosen."""
        name = device.label if blocker else registry.full_name(device)
        if blocker:
            return Candidate(device, name, blocker)
        counts = dispatch_report(self.graph, device, self.options).counts()
        try:
            estimate, by = self.estimate(device, binding)
        except RlxError as error:
            return Candidate(device, name, str(error), ops=counts)
        history = observed.of(device)
        sample = history.measured(self.key(binding))
        if estimate is None:
            return Candidate(device, name, "", sample=sample, ops=counts)
        blocker = "" if estimate.fits else _too_large(estimate)
        ratio = history.ratio(self.program, estimate.parts())
        compiles = self.compiles(device, binding)
        return Candidate(
            device,
            name,
            blocker,
            estimate,
            ratio,
            sample,
            by,
            history.has(self.program),
            compiles,
            history.drift,
            counts,
        )

    def decide(
        self, binding: Mapping[str, int], expected_runs: float = EXPECTED_RUNS, measure: Measure | None = None,
        hint: Device | None = None, may_chain: bool = True,
    ) -> Decision:  # fmt: skip
        """The choice at these dims.

        expected_runs   the number of runs over which compiles are spread
        measure         what `benchmark` measures with; without it predictions and earlier measurements decide
        may_chain       without a hint, the first device of the policy's chain that supports the graph is the choice

        Raises DeviceUnavailable or UnsupportedOp, with the reason for every device, and FallbackError for a chain
        without a device that supports the graph.
        """
        return _Question(self, binding, expected_runs, measure, hint, may_chain).answer()

    def first_of_chain(self) -> tuple[Device | None, str]:
        """The first device of the policy's chain that may run the graph, and why those before it may not. Raises
        FallbackError if none may; None without a chain."""
        if not self.policy.chain:
            return None, ""
        blockers = dict(self.standing())
        passed: list[tuple[str, Exception]] = []
        for device in self.policy.chain:
            if not blockers[device]:
                chain = ", ".join(map(str, self.policy.chain))
                about = f"the first of the chain {chain} that takes the graph"
                return device, "; ".join([about, *(f"{tried}: {why}" for tried, why in passed)])
            passed.append((str(device), self._refusal(device)(blockers[device])))
        raise FallbackError(self.graph.name, passed)

    def measured(
        self, candidates: Sequence[Candidate], binding: Mapping[str, int], measure: Measure
    ) -> dict[Device, Candidate]:
        """With measurements, in turns. A device that fails is out, with its reason."""
        measured: dict[Device, Candidate] = {}
        measurements = measure([c.device for c in candidates])
        for c in candidates:
            outcome = measurements[c.device]
            if isinstance(outcome, str):
                measured[c.device] = replace(c, blocker=f"failed when measured: {outcome}")
                continue
            sample = replace(outcome, program=self.program, parts=c.estimate.parts() if c.estimate else {})
            observed.of(c.device).record(self.key(binding), sample)
            measured[c.device] = replace(c, sample=sample)
        return measured

    def refuse(self, named: Device | None) -> NoReturn:
        """Raises DeviceUnavailable or UnsupportedOp, with the reasons why the device, or none, may run the graph."""
        listed = [Candidate(device, device.label, blocker) for device, blocker in self.standing()]
        if named is None:
            kinds = [self._refusal(c.device) for c in listed]
            raise (UnsupportedOp if UnsupportedOp in kinds else DeviceUnavailable)(_listed(self.graph, listed))
        blocker = self._blocker(named, named=True)
        may_run, where = self.viable(), "it runs on"
        if self.policy.force == named:
            may_run = Chooser(self.graph, replace(self.policy, force=None), self.options).viable()
            where = "if it were not forced, it would run on"
        able = ", ".join(map(str, may_run)) or "none"
        expected = f"expected {named} to run the graph {self.graph.name!r}"
        raise self._refusal(named, named=True)(f"[device] {expected}: {blocker}; {where}: {able}")

    def _refusal(self, device: Device, named: bool = False) -> type[RlxError]:
        """What is raised of a device that may not run the graph: it is not here or not admitted, or does not support
        nodes."""
        refused = registry.why_unavailable(device) or self.policy.why_refused(device, named)
        return DeviceUnavailable if refused else UnsupportedOp


class _Question:
    """One decision. `strategies` are tried in order: each returns a Decision, or None if it has none.

    Values that several of them need are computed once, when the first one needs them.
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
        """Raises DeviceUnavailable, UnsupportedOp, FallbackError."""
        for strategy in (self.named, self.only, self.benchmark, self.usual):
            decision = strategy()
            if decision is not None:
                return decision
        return self.predicted()

    # strategies

    def named(self) -> Decision | None:
        """The device that is forced, asked for, or first in the chain."""
        if self.policy.force:
            return self._unpredicted(self.policy.force, "forced")
        device, how = self.hint or self.policy.hint, "asked for"
        if device is None and self.may_chain:
            device, how = self.chooser.first_of_chain()
        return None if device is None else self._unpredicted(device, how)

    def only(self) -> Decision | None:
        """The only device that may run the graph."""
        able = self.chooser.viable()
        if not able:
            self.chooser.refuse(None)
        return self._unpredicted(able[0], "the only device that may run it") if len(able) == 1 else None

    def benchmark(self) -> Decision | None:
        """The quickest of all, measured in turns."""
        if self.policy.strategy != "benchmark" or self.measure is None:
            return None
        able = self._open(self.candidates)
        turns = {c.sample.turn for c in able if c.sample} if all(c.sample for c in able) else set()
        measured = {} if len(turns) == 1 else self.chooser.measured(able, self.binding, self.measure)
        candidates = [measured.get(c.device, c) for c in self.candidates]
        best = min(self._open(candidates), key=self._total_ns)
        return self._decision(best, "the quickest of those measured", candidates)

    def usual(self) -> Decision | None:
        """The usual device, or another that is clearly quicker."""
        if self.policy.strategy != "auto":
            return None
        able = self._open(self.candidates)
        usual = next((c for c in sorted(able, key=self._usage) if self._usage(c) < UNUSUAL), None)
        if usual is None:
            return None
        others = [c for c in able if c is not usual and not outdone(c.device)]
        quicker = [(c, why) for c in others if (why := _clearly_quicker(c, usual, self.expected_runs))]
        if not quicker:
            return self._decision(usual, "the usual device, and none is clearly quicker", self.candidates)
        best, why = min(quicker, key=lambda pair: self._total_ns(pair[0]))
        return self._decision(best, why, self.candidates)

    def predicted(self) -> Decision:
        """The fastest by all that is known; among those that predictions cannot separate, the one that the policy
        prefers."""
        ranked = sorted(self._open(self.candidates), key=self._total_ns)
        rivals = [c for c in ranked if _may_beat(c, ranked[0], self.expected_runs)]
        best = min(rivals, key=lambda c: (self.policy.preference(c.device), self._total_ns(c)))
        if self.policy.preference(best.device) < len(self.policy.prefer) and len(rivals) > 1:
            return self._decision(best, "preferred among those that predictions cannot tell apart", self.candidates)
        doubt = "" if len(rivals) > 1 else ", beyond doubt"
        return self._decision(best, f"predicted the quickest{doubt}", self.candidates)

    # what they are made of

    @cached_property
    def candidates(self) -> list[Candidate]:
        return [self.chooser.candidate(device, blocker, self.binding) for device, blocker in self.standing]

    def _usage(self, candidate: Candidate) -> int:
        """The place among usual devices: those preferred, then the processor."""
        place = self.policy.preference(candidate.device)
        if place < len(self.policy.prefer):
            return place
        return len(self.policy.prefer) if candidate.device == USUAL else UNUSUAL

    def _total_ns(self, candidate: Candidate) -> float:
        return candidate.total_ns(self.expected_runs)

    def _open(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that may be chosen. Raises UnsupportedOp if there are none."""
        open_to_choice = [c for c in candidates if not c.blocker]
        if not open_to_choice:
            raise UnsupportedOp(_listed(self.graph, candidates))
        return open_to_choice

    def _unpredicted(self, device: Device, about: str) -> Decision:
        """A choice that needs no prediction: none is made."""
        if device not in self.chooser.viable():
            self.chooser.admit(device)
        others = [Candidate(each, each.label, blocker) for each, blocker in self.standing if each != device]
        chosen = Candidate(device, device.label)
        return self._decision(chosen, about, [chosen, *others])

    def _decision(self, chosen: Candidate, reason: str, candidates: Sequence[Candidate]) -> Decision:
        took_ms = (time.perf_counter() - self.start) * 1e3
        ranked = sorted(candidates, key=lambda c: (bool(c.blocker), self._total_ns(c)))
        return Decision(chosen.device, reason, tuple(ranked), dict(self.binding), self.expected_runs, took_ms)


def _may_beat(one: Candidate, best: Candidate, expected_runs: float) -> bool:
    """Whether the spans of two times meet."""
    return one is best or one.span_ns(expected_runs)[0] <= best.span_ns(expected_runs)[1]


def _clearly_quicker(one: Candidate, usual: Candidate, expected_runs: float) -> str:
    """Why a device is known to be faster than the usual one; empty if that is not clear."""
    low, high = usual.span_ns(expected_runs)[0], one.span_ns(expected_runs)[1]
    if not high < low:
        return ""
    gain = usual.total_ns(expected_runs) / one.total_ns(expected_runs)
    measured = one.sample is not None and usual.sample is not None
    if one.sample and usual.sample and one.sample.turn == usual.sample.turn:
        return f"measured {gain:.2f} times as fast as {usual.device}, in turns"
    if one.seen and usual.seen and not measured:
        return f"predicted {gain:.2f} times as fast as {usual.device}, by runs of this program"
    return f"predicted {gain:.2f} times as fast as {usual.device}" if gain >= GAIN else ""


def _too_large(estimate: Estimate) -> str:
    need = estimate.arena_bytes + estimate.weight_bytes
    return f"it needs {need} bytes, and {estimate.free_bytes} are free"


def _listed(graph: Graph, candidates: Sequence[Candidate]) -> str:
    lines = "".join(f"\n  {c.device}: {c.blocker}" for c in candidates)
    return f"[device] expected a device that takes the graph {graph.name!r}, got none:{lines}"
