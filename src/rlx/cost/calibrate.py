"""Measures the rates of a device with the small graphs of `microbenchmarks.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from rlx.cost import microbenchmarks as probes
from rlx.cost.estimate import Rates
from rlx.cost.fit import rest_of_overlap
from rlx.cost.generic import GenericEstimator
from rlx.ir.graph import Graph

BUDGET_S = 0.012
"""For the runs of one probe, all rounds together."""
ROUNDS = 3
LEAST_RUNS, MOST_RUNS = 2, 50
"""Of a probe in a round."""
TYPICAL = 0.2
"""The quantile of times that stands for them: what is slower was disturbed, on a machine that others use too."""
LONG_NS = 120e6
"""What a run of a probe may take: products that take longer are left out, their costs are taken from smaller ones."""
LONG_BUDGETS = 4
"""Times its budget that a first run takes which stands for itself: what comes first is little of it."""
LEAST_PART = 0.1
"""Of what a probe takes, what its own work is taken for at least, however much calls and copies seem to take."""


def times_ns(run: Callable[[], object], budget_s: float) -> list[int]:
    """Of several runs, after one that does not count; of that one alone if it is long."""
    before = time.perf_counter_ns()
    run()
    first = time.perf_counter_ns() - before
    if first > LONG_BUDGETS * budget_s * 1e9:
        return [first]
    times: list[int] = []
    start = time.perf_counter()
    while len(times) < LEAST_RUNS or (len(times) < MOST_RUNS and time.perf_counter() - start < budget_s):
        before = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - before)
    return times


SIZED = frozenset({"gemm", "conv"})
"""Families of probes whose costs at any size are fitted to those of some."""
SINGLE, MANY = ("gemm_" + "x".join(map(str, size)) for size in (probes.SINGLE, probes.MANY))
"""Those of them that `single` and `many` are compared with."""


ONCE = frozenset(
    {
        "upload", "download", "chain", "weights", "single", "many", *(f"shared_{count}" for count in probes.SHARED),
        *(f"of_{dtype.name}" for dtype in probes.OTHER_DTYPES),
    }
)  # fmt: skip
"""Probes that have no rate of their own."""
IN_A_ROW = ("gemm", "conv", "depthwise", "grouped", "stream")
"""Probes of several kernels."""
MOST_ALONE = 2.0
"""How many times as long as all threads one takes at most, so that starts are not taken for it."""


class Measurable(Protocol):
    """A device, as far as calibration knows it."""

    def takes(self, graph: Graph) -> bool:
        """Whether it runs the graph."""
        ...

    def claims(self, graph: Graph) -> bool:
        """Whether it has kernels of its own for a composite of the graph."""
        ...

    @property
    def reads_in_place(self) -> bool:
        """Whether kernels read arrays that are on the device where these lie."""
        ...

    def compile(self, probe: probes.ProbeGraph) -> Callable[[], object]:
        """What runs the probe."""
        ...


class Runner:
    """Runs probes on a device, and keeps how long their compiles took."""

    def __init__(self, device: Measurable, step: Callable[[str], None]) -> None:
        self.device, self.step = device, step
        self.compile_ns: list[float] = []

    def ready(self, probe: probes.ProbeGraph) -> Callable[[], object]:
        """The probe compiled, and run once: some compile only then."""
        self.step(probe.name)
        before = time.perf_counter_ns()
        run = self.device.compile(probe)
        run()
        self.compile_ns.append(time.perf_counter_ns() - before)
        return run

    def short(self, listed: Sequence[probes.ProbeGraph]) -> dict[str, Callable[[], object]]:
        """The probes, ready, without those of a family that by the one before, which does less, would run too long."""
        runs: dict[str, Callable[[], object]] = {}
        per_amount: dict[str, float] = {}
        for probe in sorted(listed, key=lambda probe: probe.amount):
            family = probe.name.partition("_")[0]
            if family in SIZED and probe.name != SINGLE and probe.amount * per_amount.get(family, 0.0) > LONG_NS:
                continue
            runs[probe.name] = run = self.ready(probe)
            if family in SIZED:
                per_amount[family] = min(times_ns(run, 0.0)) / probe.amount
        return {probe.name: runs[probe.name] for probe in listed if probe.name in runs}

    def run_ns(self, listed: Sequence[probes.ProbeGraph], short: bool = False) -> dict[str, float]:
        """What each probe takes; with `short` those that take long are left out. They take turns: a moment in which the
        machine is slow hits no probe alone."""
        runs = self.short(listed) if short else {probe.name: self.ready(probe) for probe in listed}
        times: dict[str, list[int]] = {name: [] for name in runs}
        for number in range(ROUNDS):
            self.step(f"round {number + 1} of {ROUNDS}")
            for name, run in runs.items():
                times[name] += times_ns(run, BUDGET_S / ROUNDS)
        return {name: float(np.quantile(samples, TYPICAL)) for name, samples in times.items()}


def calibrate(device: Measurable, step: Callable[[str], None]) -> Rates:
    """Rates of a device, by small graphs."""
    runner = Runner(device, step)
    loops = [probes.loop(op, state) for op, state in probes.LOOPS]
    copies = (probes.upload(), probes.download())
    listed = probes.all_probes(device.reads_in_place)
    able = [probe for probe in (*listed, *loops) if device.takes(probe.graph)]
    transform = probes.transform()
    if device.claims(transform.graph):
        able.append(transform)
    ns_of = runner.run_ns([probes.call(), *copies, *able], short=True)
    run = {probe.name: probe for probe in (*copies, *able) if probe.name in ns_of}
    return _rates(run, ns_of, float(np.median(runner.compile_ns)))


def _rates(run: Mapping[str, probes.ProbeGraph], ns_of: Mapping[str, float], compile_ns: float) -> Rates:
    """From what each probe took."""
    call_ns = ns_of["call"]
    rates: Rates = {"call_ns": call_ns, "compile_ns": compile_ns}
    for name in ("upload", "download"):
        whole = ns_of[name]
        rates[f"{name}_bytes_per_ns"] = run[name].amount / max(whole - call_ns, LEAST_PART * whole)

    def inside(name: str) -> float:
        """Without the call and the copies."""
        probe = run[name]
        copies_ns = probe.bytes_in / rates["upload_bytes_per_ns"] + probe.bytes_out / rates["download_bytes_per_ns"]
        return max(ns_of[name] - call_ns - copies_ns, LEAST_PART * ns_of[name])

    rates["launch_ns"] = inside("chain") / probes.CHAIN
    rates["weight_ns"] = max(inside("weights") - inside("chain"), 0.0) / (probes.CHAIN - 1)
    several = inside(SINGLE)
    rates["wake_ns"] = max((probes.ROW * inside("single") - several) / (probes.ROW - 1) - rates["launch_ns"], 0.0)
    for dtype in probes.OTHER_DTYPES:
        if f"of_{dtype.name}" in run:
            alone, of = (
                max(inside(n) - rates["wake_ns"], LEAST_PART * inside(n)) for n in ("single", f"of_{dtype.name}")
            )
            rates[f"times_of_{dtype.name}"] = of / alone
    if MANY in run and "many" in run:
        near, far = inside(MANY) / probes.ROW, inside("many") / probes.MANY_ROW
        rates["dram_bytes_ns"] = rest_of_overlap(near, far) * probes.MANY_ROW / run["many"].amount
    for name in probes.COUNTED:
        if name in run:
            more = max(inside(f"{name}_again") - inside(name), LEAST_PART * inside(name))
            rates[f"{name}_per_ns"] = (probes.AGAIN - 1) * run[name].amount / more
    rates |= _sharing(rates, {count: inside(f"shared_{count}") for count in probes.SHARED if f"shared_{count}" in run})
    for name, probe in run.items():
        if name.startswith("loop_") or name in ONCE or name.removesuffix("_again") in probes.COUNTED:
            continue
        ns = inside(name)
        # a short run may wake no threads, and a product of one row wakes none
        if not name.startswith("gemm_1x"):
            ns -= rates["wake_ns"] * min(max((ns / max(rates["wake_ns"], 1.0) - 1.0) / 3.0, 0.0), 1.0)
        # separates the start of a kernel from its work
        starts = probes.ROW if name.startswith(IN_A_ROW) else 1
        rates[f"{name}_per_ns"] = probe.amount / max(ns - starts * rates["launch_ns"], LEAST_PART * ns)
    farthest = f"stream_{probes.STREAMS[-1]}_per_ns"
    if "dram_bytes_ns" in rates and farthest in rates:
        # both come from memory; the former is a difference, of which disturbances are a multiple
        rates["dram_bytes_ns"] = min(rates["dram_bytes_ns"], 1.0 / (8 * rates[farthest]))
    for name, probe in run.items():
        if name.startswith("loop_"):
            _loop(rates, probe, inside(name))
    return rates


def _sharing(rates: Rates, ns_of: Mapping[int, float]) -> Rates:
    """From how much work on, in ns, a loop is shared among threads, and how many times as long one takes that is not:
    from loops of growing numbers of elements, each a few times as long as the one before."""
    alone, from_ns, last = 1.0, 0.0, 0.0
    for count, ns in sorted(ns_of.items()):
        work = count / rates["heavy_per_ns"]
        if last and abs(ns - rates["wake_ns"] - work) < abs(ns - last * work):
            break
        last = max((ns - rates["launch_ns"]) / work, 1.0)
        alone, from_ns = min(last, MOST_ALONE), 2.0 * work
    return {"alone": alone, "shared_from_ns": from_ns}


def _loop(rates: Rates, probe: probes.ProbeGraph, ns: float) -> None:
    """A start inside a loop may cost much less than one from outside; what a larger state takes more is products."""
    kernels = GenericEstimator(probe.graph, rates)({}).kernels
    inside = [k for k in kernels if k.kind == "loop"]
    starts, flops = sum(k.calls for k in inside), sum(k.flops for k in inside)
    ns = max(ns - sum(k.ns for k in kernels if k.kind != "loop"), LEAST_PART * ns)
    if "looped_ns" not in rates:
        rates["looped_ns"] = ns / max(starts, 1.0)
    elif flops:
        each = flops / max(sum(k.calls for k in inside if k.flops), 1.0)
        rates[f"looped_{each:.0f}_per_ns"] = flops / max(ns - starts * rates["looped_ns"], LEAST_PART * ns)
