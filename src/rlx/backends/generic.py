"""Predictions for a device of which nothing is known but how long small graphs take on it.

The graph is lowered as for any device with kernels of its own; every kernel is priced by its kind, with rates between
those of measured sizes. A backend that knows its kernels better brings an estimator of its own.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping

from rlx import flags
from rlx.backends import probes
from rlx.backends.base import Backend, Bound, Estimate, Estimator, KernelEstimate, Options, Rates
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.kernel.nest import AttentionWork, Contraction, Kernel, Nest, Program, Reduce
from rlx.kernel.special import Ranking, Running, Update
from rlx.kernel.work import Binding, Counts, count, extents, footprint, placed, store_counts

BUDGET_S = 0.02
"""For the runs of one probe."""
LEAST_RUNS, MOST_RUNS = 3, 200
LEAST_PART = 0.1
"""Of what a probe takes, what its own work is taken for at least, however much calls and copies seem to take."""
BAND = 0.3


def quickest_ns(run: Callable[[], object], budget_s: float = BUDGET_S) -> float:
    """The quickest of several runs, after one that does not count."""
    run()
    best = math.inf
    start = time.perf_counter()
    for number in range(MOST_RUNS):
        if number >= LEAST_RUNS and time.perf_counter() - start > budget_s:
            break
        before = time.perf_counter_ns()
        run()
        best = min(best, time.perf_counter_ns() - before)
    return best


class Runner:
    """Runs probes on a device, and keeps how long their compiles took."""

    def __init__(self, backend: Backend, ordinal: int, step: Callable[[str], None]) -> None:
        self.backend, self.ordinal, self.step = backend, ordinal, step
        self.compile_ns: list[float] = []

    def bound(self, probe: probes.ProbeGraph) -> tuple[Bound, list[Array]]:
        self.step(probe.name)
        before = time.perf_counter_ns()
        executable = self.backend.compile(probe.graph, Options(cache=False), self.ordinal)
        executable.set_params(probe.params)
        bound = executable.bind({})
        bound(list(probe.inputs))  # some compile only now
        self.compile_ns.append(time.perf_counter_ns() - before)
        return bound, list(probe.inputs)

    def run_ns(self, probe: probes.ProbeGraph) -> float:
        bound, inputs = self.bound(probe)
        return quickest_ns(lambda: bound(inputs))

    def work_ns(self, probe: probes.ProbeGraph, rates: Rates) -> float:
        """What is left of a run without the call and the copies; a part of it at least."""
        copies = probe.bytes_in / rates["upload_bytes_per_ns"] + probe.bytes_out / rates["download_bytes_per_ns"]
        whole = self.run_ns(probe)
        return max(whole - rates["call_ns"] - copies, LEAST_PART * whole)


def calibrate(backend: Backend, ordinal: int, step: Callable[[str], None]) -> Rates:
    """Rates of a device, by small graphs."""
    runner = Runner(backend, ordinal, step)
    call_ns = runner.run_ns(probes.call())
    rates: Rates = {"call_ns": call_ns}
    for probe in (probes.upload(), probes.download()):
        whole = runner.run_ns(probe)
        rates[f"{probe.name}_bytes_per_ns"] = probe.amount / max(whole - call_ns, LEAST_PART * whole)
    for probe in probes.all_probes():
        if backend.unsupported(probe.graph):
            continue
        ns = runner.work_ns(probe, rates)
        if probe.name == "chain":
            rates["launch_ns"] = ns / probe.amount
        else:
            # a kernel's start is told apart from its work
            rates[f"{probe.name}_per_ns"] = probe.amount / max(ns - rates.get("launch_ns", 0.0), LEAST_PART * ns)
    loop = probes.loop()
    if not backend.unsupported(loop.graph):
        # a start inside a loop may cost much less than one from outside
        starts = GenericEstimator(loop.graph, Options(), rates).starts_in_loops({})
        rates["looped_ns"] = runner.work_ns(loop, rates) / max(starts, 1.0)
    rates["compile_ns"] = sorted(runner.compile_ns)[len(runner.compile_ns) // 2]
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
        launches = looped = 0.0
        for item in placed(program.main, binding):
            one = self._kernel(program, item.kernel, binding)
            times = item.times * item.chance
            if item.times > 1:
                looped += times
            else:
                launches += times
            made.append(
                KernelEstimate(
                    item.kernel.name, item.kernel.sources, one.ns * times, one.compute_ns * times,
                    one.memory_ns * times, one.flops * times, one.nbytes * times, times,
                )
            )  # fmt: skip
        moved_in = sum(dims.evaluate(v.type.size, binding) * v.dtype.itemsize for v in self.graph.inputs)
        moved_out = sum(dims.evaluate(v.type.size, binding) * v.dtype.itemsize for v in self.graph.outputs.values())
        copies = moved_in / rates["upload_bytes_per_ns"] + moved_out / rates["download_bytes_per_ns"]
        weights = sum(dims.evaluate(program.buffers[n].nbytes, binding) for n in program.params)
        arena = sum(dims.evaluate(b.nbytes, binding) for b in program.buffers if b.kind == "temp")
        return Estimate(
            kernels=tuple(made),
            launch_ns=rates["call_ns"]
            + launches * rates["launch_ns"]
            + looped * min(rates.get("looped_ns", rates["launch_ns"]), rates["launch_ns"]),
            copy_ns=copies,
            band=BAND,
            arena_bytes=arena,
            weight_bytes=weights,
            free_bytes=None,
            compile_ns=rates["compile_ns"] * max(1.0, len(made) / 2),
        )

    def starts_in_loops(self, binding: Mapping[str, int]) -> float:
        """How many kernels start in loops."""
        return sum(p.times * p.chance for p in placed(self.program.main, binding) if p.times > 1)

    def _kernel(self, program: Program, kernel: Kernel, binding: Binding) -> KernelEstimate:
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
        ns = max(compute, memory)
        return KernelEstimate(kernel.name, kernel.sources, ns, compute, memory, flops, touched.total)

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
        """From what `heavy` (about 70 instructions), `divide` and `gather` take an element."""
        rates = self.rates
        plain = 1.0 / (rates["heavy_per_ns"] * HEAVY_INSTRUCTIONS)
        slow = 1.0 / (rates["divide_per_ns"] * 8)
        apart = 1.0 / rates["gather_per_ns"]
        return points * (counts.plain * plain + (counts.slow + 10 * counts.library) * slow + counts.apart * apart)

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


def surfaces_of(rates: Rates) -> dict[str, list[tuple[tuple[float, ...], float]]]:
    """Rates that were measured at several sizes: by kind, (size, rate)."""
    found: dict[str, list[tuple[tuple[float, ...], float]]] = {}
    for name, rate in rates.items():
        parts = re.fullmatch(r"([a-z]+)_(\d+(?:x\d+)*)_per_ns", name)
        if parts:
            size = tuple(float(part) for part in parts[2].split("x"))
            found.setdefault(parts[1], []).append((size, max(rate, 1e-9)))
    return found


HEAVY_INSTRUCTIONS = 70.0
"""Of the probe `heavy`, an element."""
