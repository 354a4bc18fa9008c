"""How near kernels of the processor come to what the machine can do: one thread, one kernel of each class.

    python -m benchmarks.kernels [--only SUBSTRING] [--rounds 5]

Peaks are measured in the same rounds, before each class: multiply-adds of f32 in registers, and what one thread reads
from its own cache, from the shared one and from memory. A kernel's operations and bytes are those that the cost model
counts (Winograd's convolutions and bytes count as the plain sum in f32 that they stand for, so that they may exceed 1).
A share is the time that the peaks leave at least over the time that kernels took, in the median of rounds: f64 has half
of the peak that is meant. Classes are those of `benchmarks.prices`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

os.environ.setdefault("RLX_NUM_THREADS", "1")

import llvmlite.binding as llvm
import numpy as np

import rlx
from benchmarks import prices
from rlx.backends.base import Options
from rlx.device import calibration, registry
from rlx.device.choice import Chooser
from rlx.device.policy import DevicePolicy
from rlx.errors import RlxError
from rlx.runtime.profiler import profile

WIDTH = 16 if llvm.get_host_cpu_features().get("avx512f") else 8
"""Floats of a register."""
CHAINS = 12
"""Sums that do not wait for one another."""
PLACES = {"own cache": 128 << 10, "shared cache": 12 << 20, "memory": 256 << 20}
"""Where what is read lies, by the bytes that are read again and again."""


def _text() -> str:
    """Two functions: n times CHAINS multiply-adds, and the sum of n times CHAINS registers that are read."""
    kind = f"<{WIDTH} x float>"
    lines = [f"declare {kind} @llvm.fma.v{WIDTH}f32({kind}, {kind}, {kind})"]
    for name, parameters in (("multiply", "i64 %n, ptr %to, ptr %unused"), ("read", "i64 %n, ptr %to, ptr %from")):
        step, phis, body = [], [], []
        for i in range(CHAINS):
            phis.append(f"%s{i} = phi {kind} [ zeroinitializer, %entry ], [ %t{i}, %loop ]")
            if name == "multiply":
                step.append(f"%t{i} = call {kind} @llvm.fma.v{WIDTH}f32({kind} %s{i}, {kind} %x, {kind} %x)")
            else:
                step.append(f"%p{i} = getelementptr {kind}, ptr %from, i64 %a{i}")
                step.append(f"%v{i} = load {kind}, ptr %p{i}, align 4")
                step.append(f"%t{i} = fadd {kind} %s{i}, %v{i}")
                body.append(f"%a{i} = add i64 %at, {i}")
        stores = [f"%q{i} = getelementptr {kind}, ptr %to, i64 {i}" for i in range(CHAINS)]
        stores += [f"store {kind} %t{i}, ptr %q{i}, align 4" for i in range(CHAINS)]
        lines += [
            f"define void @{name}({parameters}) {{", "entry:", f"%x = load {kind}, ptr %to, align 4",
            "br label %loop", "loop:",
            "%i = phi i64 [ 0, %entry ], [ %next, %loop ]", *phis, f"%at = mul i64 %i, {CHAINS}", *body, *step,
            "%next = add i64 %i, 1", "%more = icmp slt i64 %next, %n", "br i1 %more, label %loop, label %end", "end:",
            *stores, "ret void", "}",
        ]  # fmt: skip
    return "\n".join(lines)


@dataclass
class Peaks:
    """What one thread does in a ns: operations on f32, and bytes that it reads, by where they lie."""

    flops: list[float] = field(default_factory=list)
    nbytes: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PLACES})

    def __post_init__(self) -> None:
        for begin in (llvm.initialize_native_target, llvm.initialize_native_asmprinter):
            begin()
        target = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
        )
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_text()), target)
        self.to = np.full(CHAINS * WIDTH, 1e-8, np.float32)
        self.source = np.ones(max(PLACES.values()) // 4, np.float32)

    def _ns(self, name: str, turns: int, times: int) -> float:
        """The least time of a call, without what it takes to make one."""
        call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(
            self.engine.get_function_address(name)
        )
        to, source = self.to.ctypes.data, self.source.ctypes.data
        around = min(_timed(lambda: call(1, to, source)) for _ in range(30))
        return min(_timed(lambda: call(turns, to, source)) for _ in range(times)) - around

    def measure(self) -> None:
        turns = 100_000
        self.flops.append(turns * CHAINS * WIDTH * 2 / self._ns("multiply", turns, 3))
        for name, size in PLACES.items():
            turns = size // (CHAINS * WIDTH * 4)
            self.nbytes[name].append(size / self._ns("read", turns, 2 if name == "memory" else 30))

    def least_ns(self, flops: float, nbytes: float) -> tuple[float, str]:
        """The time that the latest peaks leave at least for so much work, and what holds it up."""
        place = next((name for name, size in PLACES.items() if nbytes <= 2 * size), "memory")
        limits = {"multiply-adds": flops / self.flops[-1], place: nbytes / self.nbytes[place][-1]}
        limit = max(limits, key=lambda name: limits[name])
        return limits[limit], limit


def _timed(work: Callable[[], object]) -> float:
    before = time.perf_counter_ns()
    work()
    return float(time.perf_counter_ns() - before)


@dataclass
class Row:
    """A class: its work, and in each round the ns of its kernels and the share of the peak."""

    kind: prices.Class
    flops: float
    nbytes: float
    taken: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    limit: str = ""

    def measure(self, peaks: Peaks) -> None:
        graph, inputs = prices.graph_of(self.kind)
        profiled = profile(graph, inputs, rlx.Session("cpu"), runs=20, apart=True)
        least, self.limit = peaks.least_ns(self.flops, self.nbytes)
        self.taken.append(profiled.total_ns)
        self.shares.append(least / profiled.total_ns)


def row_of(kind: prices.Class) -> Row:
    """A class with its operations and bytes. Raises RlxError."""
    graph, inputs = prices.graph_of(kind)
    device = registry.parse("cpu")
    chooser = Chooser(graph, DevicePolicy(strategy="cost_model").only("cpu"), Options())
    chooser.admit(device)
    signature = rlx.Session("cpu").compile(graph).program.signature
    binding = dict(signature.binding(signature.arrays(inputs), graph.data))
    estimate, why = chooser.estimate(device, binding)
    if estimate is None:
        raise RlxError(f"no estimate: {why}")
    return Row(kind, sum(k.flops for k in estimate.kernels), sum(k.nbytes for k in estimate.kernels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="classes whose names hold this")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    calibration.calibration(registry.parse("cpu"))
    rows = []
    for kind in prices.classes():
        if chosen.only in kind.name:
            rows.append(row_of(kind))
    peaks = Peaks()
    for _ in range(chosen.rounds):
        for row in rows:
            peaks.measure()
            row.measure(peaks)
    flops = statistics.median(peaks.flops)
    places = ", ".join(f"{name} {statistics.median(found):.0f}" for name, found in peaks.nbytes.items())
    print(f"peaks: {flops:.0f} GFLOP/s of f32 in registers of {WIDTH}; reads, GB/s: {places}")
    print(f"{'class':<36} {'us':>9} {'GFLOP/s':>9} {'GB/s':>7} {'share':>6}  limit")
    for row in sorted(rows, key=lambda row: -statistics.median(row.shares)):
        taken = statistics.median(row.taken)
        print(f"{row.kind.name:<36} {taken / 1e3:>9.1f} {row.flops / taken:>9.1f} {row.nbytes / taken:>7.1f} "
              f"{statistics.median(row.shares):>6.2f}  {row.limit}")  # fmt: skip


if __name__ == "__main__":
    main()
