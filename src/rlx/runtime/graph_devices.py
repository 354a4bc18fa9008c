"""GraphDevices: one graph on all available devices. Weights are held once, programs are compiled when they are needed,
and the choice is made at the dims of each run and can be explained."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlx import collector, locks, logs
from rlx.arguments import methods_checked
from rlx.backends.base import Options
from rlx.cost.estimate import Estimate, Estimator
from rlx.device import explain, html, observed, registry, remembered, support, switches
from rlx.device.choice import EXPECTED_RUNS, Chooser, Decision, Measure
from rlx.device.device import Device
from rlx.device.io_profile import GraphIoProfile, io_profile
from rlx.device.policy import DevicePolicy, at_once
from rlx.device.staged import estimator_of
from rlx.errors import (
    OF_CALLERS,
    FallbackError,
    InputError,
    RlxError,
    StateLost,
    UnsupportedOp,
    did_you_mean,
)
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.picture import in_a_frame
from rlx.records import dataclass
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.compiler import Compiler
from rlx.runtime.graph_state import GraphState
from rlx.runtime.program import Inputs, Program
from rlx.runtime.signature import check_param

DEFAULT_DIM = 16
"""What a dim is taken for where a choice must be made before there are inputs."""
WARM_UP = 2
CALL_BUDGET_S = 1.0
"""Runs of a benchmark stop after so long, once there are three."""


@dataclass(frozen=True)
class Timing:
    """A device in a benchmark: medians and median absolute deviations in ns, or why it did not run."""

    device: Device
    compile_ns: float = 0.0
    median_ns: float = float("inf")
    mad_ns: float = 0.0
    runs: int = 0
    error: str = ""
    sample: observed.Sample | None = None

    @property
    def ran(self) -> bool:
        return not self.error


@dataclass(frozen=True)
class Explanation:
    """A decision in the forms in which it can be presented."""

    graph: str
    decision: Decision

    def __str__(self) -> str:
        return explain.as_text(self.decision, self.graph)

    def as_dict(self) -> dict[str, Any]:
        """As data; times in ns, sizes in bytes."""
        return explain.as_dict(self.decision, self.graph)

    def html(self) -> str:
        """As one self-contained page, with pictures."""
        return html.page(self.decision, self.graph)

    def _repr_html_(self) -> str:
        """The page, for notebooks."""
        return in_a_frame(self.html())


@methods_checked()
class GraphDevices(GraphState):
    """A graph and the devices that may run it. Every method may be called from many threads.

    States, handles, feeds and the place in the random numbers are the graph's: they move to the device of the next run.

    policy          which devices may run it, and how the fastest is found; None uses that of the environment
    expected_runs   the number of runs over which compile time is spread when devices are compared
    """

    def __init__(
        self,
        graph: Graph,
        policy: DevicePolicy | None = None,
        options: Options | None = None,
        expected_runs: float = EXPECTED_RUNS,
    ) -> None:
        super().__init__(graph)
        self.graph = graph
        self.options = options or Options()
        switches.check(self.options.disable)
        self.expected_runs = expected_runs
        self._policy = policy if policy is not None else DevicePolicy.from_env()
        self._types = {v.name: v.type for v in graph.params}
        self._params: dict[str, Array] = dict(graph.data)
        self._compiled: dict[Device, CompiledGraph] = {}
        self._decisions: dict[tuple[Any, ...], Decision] = {}
        self._chooser = Chooser(graph, self._policy, self.options)
        self._lock = locks.rlock()

    @staticmethod
    def from_env(graph: Graph, prefix: str = "RLX", options: Options | None = None) -> GraphDevices:
        """With the policy of `<prefix>_DEVICES` and similar variables. Raises FlagError."""
        return GraphDevices(graph, DevicePolicy.from_env(prefix), options)

    # who

    @property
    def policy(self) -> DevicePolicy:
        return self._policy

    def set_policy(self, policy: DevicePolicy) -> None:
        """Replaces the policy; compiled programs stay."""
        with self._lock:
            self._policy = policy
            self._chooser = Chooser(self.graph, policy, self.options)
            self._decisions.clear()

    def devices(self) -> list[Device]:
        """The devices that may run the graph, the preferred and the strongest kinds first."""
        return self._chooser.viable()

    def report(self, inputs: Inputs | None = None) -> Decision:
        """Every device with its blocker or its prediction; nothing is compiled or measured."""
        with self._lock:
            binding = self._binding(inputs)
            candidates = tuple(self._chooser.candidate(d, blocker, binding) for d, blocker in self._chooser.standing())
            chosen = self._chooser.decide(binding, self.expected_runs)
        candidates = tuple(sorted(candidates, key=lambda c: (bool(c.blocker), c.total_ns(self.expected_runs))))
        return Decision(chosen.chosen, chosen.reason, candidates, binding, self.expected_runs, chosen.took_ms)

    def explain(self, inputs: Inputs | None = None) -> Explanation:
        """Explains the choice of a device for these inputs; `str` of the result is text."""
        return Explanation(self.graph.name, self.report(inputs))

    def io_profile(
        self, device: str | Device, inputs: Inputs | None = None, outputs: str | Iterable[str] | None = None
    ) -> GraphIoProfile:
        """What a run on a device launches and moves, at the sizes of these inputs."""
        target = registry.parse(device)
        with self._lock:
            self._chooser.admit(target)
            binding = self._binding(inputs)

        def estimate(program: Graph) -> Estimate:
            predicted, _ = Chooser(program, self._policy, self.options).estimate(target, binding)
            return predicted or _sizes(program, target, self.options)(binding)

        return io_profile(self.graph, target, self.options, binding, estimate, outputs)

    def fastest(self, inputs: Inputs | None = None) -> Device:
        """The device with the fastest prediction; nothing is compiled. Raises like `resolve`."""
        with self._lock:
            return self._chooser.decide(self._binding(inputs), self.expected_runs, may_chain=False).chosen

    def resolve(self, hint: str | Device | None = None, inputs: Inputs | None = None) -> Device:
        """The device to use: the forced one; otherwise the hint (here or in the policy), which must be viable;
        otherwise the first viable one of the policy's chain; otherwise the fastest.

        Raises DeviceUnavailable or UnsupportedOp, with the reason for every device.
        """
        return self.decide(hint, inputs).chosen

    def decide(
        self, hint: str | Device | None = None, inputs: Inputs | None = None, may_measure: bool = False
    ) -> Decision:
        """Like `resolve`, with its reasons. With `may_measure` and inputs, devices are measured if the policy says
        so."""
        hinted = registry.parse(hint) if hint is not None else None
        with self._lock:
            arrays = self._arrays(inputs) if inputs is not None else None
            binding = self._binding_of(arrays)
            key = (hinted, may_measure, tuple(sorted(binding.items())))
            if key not in self._decisions:
                measure = self._measure(arrays) if may_measure and arrays is not None else None
                self._decisions[key] = self._chooser.decide(binding, self.expected_runs, measure, hinted)
            return self._decisions[key]

    def _binding(self, inputs: Inputs | None) -> dict[str, int]:
        return self._binding_of(self._arrays(inputs) if inputs is not None else None)

    def _binding_of(self, arrays: list[Any] | None) -> dict[str, int]:
        if arrays is not None:
            return dict(self._signature.binding(arrays, self._params))
        sizes = {}
        for name in self.graph.symbols:
            low, high = self.graph.bounds.get(name, (0, None))
            sizes[name] = max(low, DEFAULT_DIM if high is None else min(DEFAULT_DIM, high))
        return sizes

    def clone(self) -> GraphDevices:
        """The graph with the same weights and devices, and a copy of its state: neither of the two affects the other.
        Programs are compiled again, or are those of equal graphs in this process."""
        clone = GraphDevices(self.graph, self._policy, self.options, self.expected_runs)
        with self._lock:
            clone._params = self._params
        clone._shared.take_copy(self._shared)
        return clone

    # weights

    def set_param(self, name: str, array: Any) -> None:
        """Sets a weight on all devices. Raises InputError."""
        self.set_params({name: array})

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Sets weights: held once here, and passed to every compiled program. All of them, or none if one is
        invalid."""
        unknown = [name for name in params if name not in self._types]
        if unknown:
            near = did_you_mean(str(unknown[0]), self._types)
            raise InputError(f"[set_param] expected names among {list(self._types)}, got {unknown}{near}")
        arrays = {name: check_param(name, array, self._types[name]) for name, array in params.items()}
        with self._lock:
            for compiled in self._open():
                compiled.set_params(arrays)
            self._params = {**self._params, **arrays}

    def sync_params_to_all(self) -> None:
        """Passes all weights to all compiled programs again."""
        with self._lock:
            for compiled in self._open():
                compiled.set_params(self._params)

    # compile

    def compile(self, device: str | Device) -> CompiledGraph:
        """The program for a device, compiled at the first call. Raises like `resolve` and a compile."""
        target = registry.parse(device)
        with self._lock:
            if self._kept(target) is None:
                self._chooser.admit(target)
            return self._compile(target)

    def _compile(self, device: Device) -> CompiledGraph:
        """For a device that is admitted."""
        with self._lock:
            compiled = self._kept(device)
            if compiled is None:
                backend, ordinal = registry.backend(device)
                compiler = Compiler(str(device), backend, self.options, ordinal)
                program = Program(self.graph, str(device), compiler.compile(self.graph), compiler)
                compiled = CompiledGraph(program, shared=self._shared)
                compiled.set_params(self._params)
                self._compiled[device] = compiled
            return compiled

    def _open(self) -> list[CompiledGraph]:
        return [compiled for compiled in self._compiled.values() if not compiled.closed]

    def _kept(self, device: Device) -> CompiledGraph | None:
        """The program for a device, if there is one that was not closed."""
        compiled = self._compiled.get(device)
        return None if compiled is None or compiled.closed else compiled

    def leave(self, device: Device) -> None:
        """Forgets the program of a device that was lost, or is out of memory: it starts again the next time."""
        with self._lock:
            self._compiled.pop(device, None)

    def continue_from(self, compiled: CompiledGraph) -> None:
        """Begins with the weights and a copy of the state of a program of the graph."""
        self.set_params(compiled.params)
        self._shared.take_copy_of(compiled.kept)

    def compile_fastest(self, inputs: Inputs | None = None) -> CompiledGraph:
        return self.compile(self.fastest(inputs))

    def compile_resolved(self, hint: str | Device | None = None, inputs: Inputs | None = None) -> CompiledGraph:
        """The program for the device that `decide` chooses. If the choice is clear without the graph, the first answer
        waits only for the compile."""
        if hint is None and self._policy.strategy == "auto":
            known = at_once(self._policy) or self._remembered(inputs)
            if known is not None:
                try:
                    return self._compile(known)
                except UnsupportedOp:
                    pass  # another device may support the graph: `decide` checks, and otherwise says why none does
        return self.compile(self.decide(hint, inputs, may_measure=True).chosen)

    def _remembered(self, inputs: Inputs | None) -> Device | None:
        """The device that was chosen for such inputs before, even by an earlier process; otherwise it is chosen now."""
        if not self.options.cache:
            return None
        with self._lock:
            binding = self._binding(inputs)
            devices = [d for d in self._policy.candidates() if not self._policy.why_refused(d)]
            here = [d for d in devices if registry.is_available(d)]
            key = remembered.key(self._chooser.program, binding, self.expected_runs, self._policy, self.options, here)
            choice = remembered.read(key)
            if choice is None:
                choice = self.decide(None, inputs).chosen
                remembered.write(key, choice)
            return choice

    def compile_chain(self, chain: Iterable[str | Device] | None = None) -> CompiledGraph:
        """The program for the first device of a chain on which the graph compiles; its `attempts` list those before.

        Raises FallbackError.
        """
        _, first, attempts = self._first(chain, self.compile)
        first.attempts = {tried: str(error) for tried, error in attempts}
        compiled: CompiledGraph = first
        return compiled

    # run

    def run(self, device: str | Device, inputs: Inputs = ()) -> list[Array]:
        return self.compile(device).run(inputs)

    def run_fastest(self, inputs: Inputs = ()) -> list[Array]:
        return self.compile_fastest(inputs).run(inputs)

    def run_resolved(self, inputs: Inputs = (), hint: str | Device | None = None) -> list[Array]:
        """Runs on the device that `decide` chooses for these inputs, and measures if the policy says so."""
        return self.compile_resolved(hint, inputs).run(inputs)

    def run_chain(self, inputs: Inputs = (), chain: Iterable[str | Device] | None = None) -> tuple[Device, list[Array]]:
        """Runs on the first device of a chain that succeeds; None uses the policy's chain, otherwise all viable
        devices.

        A run that fails leaves the state as it was, and the next device runs with it. Errors of the caller (inputs that
        do not fit, a timeout) are raised at once, and so is StateLost. Raises FallbackError, which reports every
        attempt.
        """
        self._arrays(inputs)

        def attempt(device: Device) -> tuple[CompiledGraph, list[Array]]:
            compiled = self.compile(device)
            return compiled, compiled.run(inputs)

        device, (compiled, results), attempts = self._first(chain, attempt)
        compiled.attempts = {tried: str(error) for tried, error in attempts}
        return device, results

    def _first(
        self, chain: Iterable[str | Device] | None, attempt: Callable[[Device], Any]
    ) -> tuple[Device, Any, list[tuple[str, Exception]]]:
        """The first device of a chain on which the attempt succeeds, its result, and the attempts before.

        Errors of the caller end the chain and leave programs unchanged.
        """
        attempts: list[tuple[str, Exception]] = []
        devices = [registry.parse(d) for d in chain] if chain is not None else list(self._policy.chain or self._order())
        for device in devices:
            try:
                return device, attempt(device), attempts
            except (*OF_CALLERS, StateLost):  # what another device would not have either
                raise
            except (RlxError, MemoryError) as error:
                attempts.append((str(device), error))
                logs.warn("devices", f"{device} failed, the next of the chain is tried: {error}")
                self.leave(device)
        raise FallbackError(self.graph.name, attempts)

    def _order(self) -> list[Device]:
        """Viable devices, the one to choose first."""
        chosen = self.resolve()
        return [chosen, *(d for d in self.devices() if d != chosen)]

    # measure

    def warm_all(self) -> dict[Device, str]:
        """Compiles for every viable device; returns the error of each that failed, and an empty text for the others."""
        errors: dict[Device, str] = {}
        for device in self.devices():
            try:
                self.compile(device)
                errors[device] = ""
            except (RlxError, MemoryError) as error:
                errors[device] = str(error)
        return errors

    def benchmark(self, inputs: Inputs = (), runs: int | None = None) -> list[Timing]:
        """Measures every viable device and lists the fastest first. Devices that fail come last and do not end the
        benchmark.

        They run alternately. The times are kept for this program and these dims, and correct predictions.
        """
        arrays = self._arrays(inputs)
        binding = self._binding_of(arrays)
        timings = self._in_turns(self.devices(), arrays, runs or self._policy.runs)
        with self._lock:
            for timing in timings:
                if timing.sample is not None:
                    parts = self._parts(timing.device, binding)
                    sample = replace(timing.sample, program=self._chooser.program, parts=parts)
                    observed.of(timing.device).record(self._chooser.key(binding), sample)
            self._decisions.clear()
        return sorted(timings, key=lambda t: (not t.ran, t.median_ns))

    def _parts(self, device: Device, binding: Mapping[str, int]) -> dict[str, float]:
        try:
            estimate, _ = self._chooser.estimate(device, binding)
        except RlxError:
            return {}  # a device that cannot be predicted is only measured
        return estimate.parts() if estimate else {}

    def _in_turns(self, devices: Sequence[Device], arrays: Sequence[Array], runs: int) -> list[Timing]:
        """Compiles for each device, warms it up, and runs all of them alternately."""
        named = self._brought(list(arrays))
        failed: dict[Device, Timing] = {}
        compile_ns: dict[Device, float] = {}
        programs: dict[Device, CompiledGraph] = {}
        for device in devices:
            try:
                before = time.perf_counter_ns()
                programs[device] = self.compile(device)
                programs[device].finish()
                compile_ns[device] = float(time.perf_counter_ns() - before)
                for _ in range(WARM_UP):
                    programs[device].rehearse(named)
            except (RlxError, MemoryError) as error:
                programs.pop(device, None)
                failed[device] = Timing(device, error=f"{type(error).__name__}: {error}")
        times, errors, load = _rounds(programs, named, runs)
        turn = str(time.time_ns())
        timings = []
        for device in devices:
            if device in errors:
                timings.append(Timing(device, error=errors[device]))
            elif device in failed:
                timings.append(failed[device])
            else:
                sample = observed.sample_of("", times[device], None, turn, load)
                mad = statistics.median(abs(t - sample.measured_ns) for t in times[device])
                timings.append(Timing(device, compile_ns[device], sample.measured_ns, mad, sample.runs, sample=sample))
        return timings

    def _measure(self, arrays: list[Array]) -> Measure:
        def measure(devices: Sequence[Device]) -> dict[Device, observed.Sample | str]:
            timings = self._in_turns(devices, arrays, self._policy.runs)
            return {t.device: t.error if t.sample is None else t.sample for t in timings}

        return measure

    def invalidate_cache(self, measurements: bool = False) -> None:
        """Drops programs and what was found out about devices; weights stay.

        measurements   also drop the measured times of all programs, on disk too
        """
        with self._lock:
            self._compiled.clear()
            self._decisions.clear()
            if measurements:
                for device in registry.available_devices():
                    observed.of(device).forget()
            registry.refresh()
            support.forget()
            observed.reload()
            self._chooser = Chooser(self.graph, self._policy, self.options)


class _Unknown(dict[str, float]):
    """Rates of a device about which nothing is known."""

    def __missing__(self, name: str) -> float:
        return 1.0


def _sizes(graph: Graph, device: Device, options: Options) -> Estimator:
    """An estimator that knows which kernels there are and what they read and write, for a device without known times:
    the times in it are those of another device."""
    from rlx.backends.null import profiles

    backend, ordinal = registry.backend(device)
    rates = _Unknown(profiles()[0]["rates"])
    return estimator_of(graph, backend, options, rates, ordinal)


def _rounds(
    programs: Mapping[Device, CompiledGraph], inputs: Mapping[str, Array], runs: int
) -> tuple[dict[Device, list[float]], dict[Device, str], float]:
    """ns of runs, one run of each program per round; the errors of those that failed; and the load that others put on
    the machine.

    A slow program runs in the first rounds only.
    """
    times: dict[Device, list[float]] = {device: [] for device in programs}
    errors: dict[Device, str] = {}
    loads = []
    with collector.paused():
        for _ in range(max(runs, 1)):
            loads.append(observed.load_of_others())
            for device, program in programs.items():
                samples = times[device]
                if device in errors or (len(samples) >= 3 and sum(samples) > CALL_BUDGET_S * 1e9):
                    continue
                try:
                    samples.append(program.rehearse(inputs))
                except (RlxError, MemoryError) as error:
                    errors[device] = f"{type(error).__name__}: {error}"
    return times, errors, statistics.median(loads)
