"""Predictions for a device of which nothing is known but how long small graphs take on it.

The graph is lowered as for any device with kernels of its own; every kernel is priced by its kind, with rates between
those of measured sizes. A backend that knows its kernels better brings an estimator of its own.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rlx import flags
from rlx.backends import probes
from rlx.backends.base import Backend, Estimate, Estimator, KernelEstimate, Options, Rates
from rlx.ir import dim as dims
from rlx.ir.expr import Expr
from rlx.ir.graph import Graph
from rlx.kernel.nest import AttentionWork, Contraction, Kernel, Nest, Program, Reduce
from rlx.kernel.special import Ranking, Running, Update
from rlx.kernel.work import Binding, Counts, count, extents, footprint, placed, store_counts

BUDGET_S = 0.012
"""For the runs of one probe, all rounds together."""
ROUNDS = 3
LEAST_RUNS, MOST_RUNS = 2, 50
"""Of a probe in a round."""
TYPICAL = 0.2
"""The quantile of times that stands for them: what is slower was disturbed, on a machine that others use too."""
LEAST_PART = 0.1
"""Of what a probe takes, what its own work is taken for at least, however much calls and copies seem to take."""
BAND = 0.3


def times_ns(run: Callable[[], object], budget_s: float) -> list[int]:
    """Of several runs, after one that does not count."""
    run()
    times: list[int] = []
    start = time.perf_counter()
    while len(times) < LEAST_RUNS or (len(times) < MOST_RUNS and time.perf_counter() - start < budget_s):
        before = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - before)
    return times


class Runner:
    """Runs probes on a device, and keeps how long their compiles took."""

    def __init__(self, backend: Backend, ordinal: int, step: Callable[[str], None]) -> None:
        self.backend, self.ordinal, self.step = backend, ordinal, step
        self.compile_ns: list[float] = []

    def ready(self, probe: probes.ProbeGraph) -> Callable[[], object]:
        """The probe compiled, and run once: some compile only then."""
        self.step(probe.name)
        before = time.perf_counter_ns()
        executable = self.backend.compile(probe.graph, Options(cache=False), self.ordinal)
        executable.set_params(probe.params)
        bound, inputs = executable.bind({}), list(probe.inputs)
        bound(inputs)
        self.compile_ns.append(time.perf_counter_ns() - before)
        return lambda: bound(inputs)

    def run_ns(self, listed: Sequence[probes.ProbeGraph]) -> dict[str, float]:
        """What each probe takes. They take turns: a moment in which the machine is slow hits no probe alone."""
        runs = {probe.name: self.ready(probe) for probe in listed}
        times: dict[str, list[int]] = {name: [] for name in runs}
        for number in range(ROUNDS):
            self.step(f"round {number + 1} of {ROUNDS}")
            for name, run in runs.items():
                times[name] += times_ns(run, BUDGET_S / ROUNDS)
        return {name: float(np.quantile(taken, TYPICAL)) for name, taken in times.items()}


def calibrate(backend: Backend, ordinal: int, step: Callable[[str], None]) -> Rates:
    """Rates of a device, by small graphs."""
    runner = Runner(backend, ordinal, step)
    loops = [probes.loop(state) for state in probes.STATES]
    copies = (probes.upload(), probes.download())
    able = [probe for probe in (*probes.all_probes(), *loops) if not backend.unsupported(probe.graph)]
    taken = runner.run_ns([probes.call(), *copies, *able])
    call_ns = taken["call"]
    rates: Rates = {"call_ns": call_ns, "compile_ns": float(np.median(runner.compile_ns))}
    for probe in copies:
        whole = taken[probe.name]
        rates[f"{probe.name}_bytes_per_ns"] = probe.amount / max(whole - call_ns, LEAST_PART * whole)
    for probe in able:
        # without the call and the copies
        moved = probe.bytes_in / rates["upload_bytes_per_ns"] + probe.bytes_out / rates["download_bytes_per_ns"]
        ns = max(taken[probe.name] - call_ns - moved, LEAST_PART * taken[probe.name])
        if probe.name == "chain":
            rates["launch_ns"] = ns / probe.amount
        elif probe.name == "spread":
            # devices start threads where there is work for them, from about this much on
            rates["spread_from_ns"] = probe.amount / rates["heavy_per_ns"]
            rates["spread_ns"] = max(ns - rates["launch_ns"] - rates["spread_from_ns"], 0.0)
        elif probe in loops:
            # a start inside a loop may cost much less than one from outside; what a larger state takes more is products
            inside = [k for k in GenericEstimator(probe.graph, Options(), rates)({}).kernels if k.kind == "loop"]
            starts, flops = sum(k.calls for k in inside), sum(k.flops for k in inside)
            if "looped_ns" not in rates:
                rates["looped_ns"] = ns / max(starts, 1.0)
            elif flops:
                left = max(ns - starts * rates["looped_ns"], LEAST_PART * ns)
                rates["looped_flops_per_ns"] = flops / left
        else:
            # a kernel's start is told apart from its work
            rates[f"{probe.name}_per_ns"] = probe.amount / max(ns - rates.get("launch_ns", 0.0), LEAST_PART * ns)
    return rates


class GenericEstimator(Estimator):
    """Prices kernels by kind. `claims` as in `passes.pipeline`."""

    def __init__(self, graph: Graph, options: Options, rates: Rates) -> None:
        from rlx.kernel.lower import lower
        from rlx.passes.pipeline import optimise

        disable = options.disable | frozenset(flags.disable())
        ready, _ = optimise(graph, disable=disable, channels_last=True)
        self.graph = graph
        self.program = lower(ready, disable)
        self.rates = rates
        self.surfaces = surfaces_of(rates)

    def __call__(self, binding: Mapping[str, int]) -> Estimate:
        program, rates = self.program, self.rates
        made: list[KernelEstimate] = []
        launches = 0.0
        again = min(rates.get("looped_ns", rates["launch_ns"]), rates["launch_ns"])
        for item in placed(program.main, binding):
            one = self._kernel(program, item.kernel, binding, item.times > 1)
            times = item.times * item.chance
            # a start from outside counts as the run's, not the kernel's
            start = again if item.times > 1 else self._spread(item.kernel, one.ns)
            launches += 0.0 if item.times > 1 else times
            made.append(
                KernelEstimate(
                    item.kernel.name, item.kernel.sources, (one.ns + start) * times, one.compute_ns * times,
                    one.memory_ns * times, one.flops * times, one.nbytes * times, times,
                    "loop" if item.times > 1 else one.kind,
                )
            )  # fmt: skip
        moved_in = sum(dims.evaluate(v.type.size, binding) * v.dtype.itemsize for v in self.graph.inputs)
        moved_out = sum(dims.evaluate(v.type.size, binding) * v.dtype.itemsize for v in self.graph.outputs.values())
        copies = moved_in / rates["upload_bytes_per_ns"] + moved_out / rates["download_bytes_per_ns"]
        weights = sum(dims.evaluate(program.buffers[n].nbytes, binding) for n in program.params)
        arena = sum(dims.evaluate(b.nbytes, binding) for b in program.buffers if b.kind == "temp")
        return Estimate(
            kernels=tuple(made),
            launch_ns=rates["call_ns"] + launches * rates["launch_ns"],
            copy_ns=copies,
            band=BAND,
            arena_bytes=arena,
            weight_bytes=weights,
            free_bytes=None,
            compile_ns=rates["compile_ns"] * max(1.0, len(made) / 2),
        )

    def _spread(self, kernel: Kernel, ns: float) -> float:
        """What it takes to share a kernel among threads. Rates of products have it in them."""
        if isinstance(kernel.work, Contraction) or ns < self.rates.get("spread_from_ns", math.inf):
            return 0.0
        return self.rates["spread_ns"]

    def _kernel(self, program: Program, kernel: Kernel, binding: Binding, looped: bool) -> KernelEstimate:
        work = kernel.work
        match work:
            case Contraction():
                compute, flops, points = self._contraction(work, binding)
            case AttentionWork():
                compute, flops, points = 0.0, 0.0, 0
            case Nest():
                compute, flops, points = self._nest(work, binding)
            case _:
                compute, flops, points = self._special(work, binding)
        touched = footprint(program, kernel, binding, points, set())
        memory = touched.total / (8 * self.near("stream", (touched.total / 8,)))
        again = self.rates.get("looped_flops_per_ns")
        if looped and again and isinstance(work, Contraction):
            compute = memory = flops / again  # what it reads stays near from trip to trip
        ns = max(compute, memory)
        return KernelEstimate(
            kernel.name, kernel.sources, ns, compute, memory, flops, touched.total, kind=_kind(work, compute, memory)
        )

    def _contraction(self, work: Contraction, binding: Binding) -> tuple[float, float, int]:
        outer = extents(work.batch, binding)
        m, n, k = extents((work.m, work.n, work.k), binding)
        taps = math.prod(extents(work.taps, binding))
        batch = math.prod(outer)
        flops = 2.0 * batch * m * n * k * taps
        points = batch * max(m * n, m * k * taps, n * k * taps)
        if flops == 0:
            return 0.0, 0.0, 0
        shares = work.b.axes and any(number < len(outer) for number, _ in work.b.axes)
        if taps > 1:
            rate = self.near("conv", ((batch * m) ** 0.5, k, n))
        elif shares and batch > 1:
            rate = self.near("batched", (batch, m, n, k))
        else:
            rate = self.near("gemm", (batch * m, n, k))
        each = Counts()
        for store in work.epilogue:
            each = each + count(store.body, work.n_axis)[0]
        return flops / rate + self._instructions(each, batch * m * n), flops, points

    def _nest(self, nest: Nest, binding: Binding) -> tuple[float, float, int]:
        outer, inner = extents(nest.outer, binding), extents(nest.inner, binding)
        positions, inside = math.prod(outer), math.prod(inner)
        axis = len(outer) + len(inner) - 1
        total = 0.0
        flops = 0.0
        reduces = 0
        if windowed(nest):
            flops = 2.0 * positions * inside
            return flops / self.rates["depthwise_per_ns"], flops, positions * max(inside, 1)
        for stage in nest.stages:
            each, _ = count(stage.body, max(axis, 0), range(len(outer) + len(inner)))
            points = positions * (inside if not hasattr(stage, "whole_row") or stage.whole_row else 1)
            if hasattr(stage, "offset"):
                each = each + store_counts(stage.offset, stage.body, max(axis, 0))
            reduces += isinstance(stage, Reduce)
            total += self._instructions(each, points)
            flops += (each.plain + each.slow) * points
        if reduces:
            rate = self.near("reduce", (positions, max(inside, 1)))
            total = max(total, reduces * positions * inside / rate)
        return total, flops, positions * max(inside, 1)

    def _instructions(self, counts: Counts, points: float) -> float:
        """From what the probes of each take an element."""
        rates = self.rates
        return points * (
            counts.plain / (rates["plain_per_ns"] * probes.PLAIN)
            + counts.slow / (rates["divide_per_ns"] * probes.DIVIDES)
            + counts.library / (rates["heavy_per_ns"] * probes.HEAVY)
            + counts.apart / rates["gather_per_ns"]
        )

    def _special(self, work: object, binding: Binding) -> tuple[float, float, int]:
        match work:
            case Ranking():
                points = math.prod(extents((*work.outer, work.length), binding))
                return points / self.rates.get("rank_per_ns", 0.01), points, points
            case Running():
                points = math.prod(extents((*work.outer, work.length), binding))
                return points / self.rates.get("running_per_ns", 0.01), points, points
            case Update():
                points = math.prod(extents((*work.outer, *work.inner), binding))
                return points / self.rates["gather_per_ns"], points, points
        return 0.0, 0.0, 0

    def near(self, kind: str, at: tuple[float, ...]) -> float:
        """The rate at a size, between those measured: the nearer in ratio, the more they count."""
        total = weights = 0.0
        for size, rate in self.surfaces.get(kind, []):
            distance = sum((math.log2(max(a, 1)) - math.log2(s)) ** 2 for a, s in zip(at, size))
            weight = 1.0 / (distance + 0.05) ** 2
            total += weight * math.log(rate)
            weights += weight
        return math.exp(total / weights) if weights else 1.0


def _kind(work: object, compute: float, memory: float) -> str:
    """As in `KernelEstimate`."""
    match work:
        case Contraction():
            return "convolution" if work.taps else "product"
        case AttentionWork():
            return "attention"
        case Nest():
            if windowed(work):
                return "window"
            bound = "reduction" if work.reduces else "elementwise"
            return bound if compute >= memory else "move"
    return "order"


def windowed(nest: Nest) -> bool:
    """Whether it sums over windows, as depthwise convolutions and pooling do: the window has axes of its own, or what
    is summed are products of elements."""
    sums = [stage for stage in nest.stages if isinstance(stage, Reduce)]
    return bool(sums) and (len(nest.inner) > 1 or any(_product(stage.body) for stage in sums))


def _product(body: Expr) -> bool:
    return body.kind == "mul" and all(arg.kind == "load" for arg in body.args)


def surfaces_of(rates: Rates) -> dict[str, list[tuple[tuple[float, ...], float]]]:
    """Rates that were measured at several sizes: by kind, (size, rate)."""
    found: dict[str, list[tuple[tuple[float, ...], float]]] = {}
    for name, rate in rates.items():
        parts = re.fullmatch(r"([a-z]+)_(\d+(?:x\d+)*)_per_ns", name)
        if parts:
            size = tuple(float(part) for part in parts[2].split("x"))
            found.setdefault(parts[1], []).append((size, max(rate, 1e-9)))
    return found
