"""Memory of a process that runs for long: many runs over many shapes, in every way in which a program can run.

    python -m benchmarks.soak [--runs 10000] [--shapes 1000]
    python -m benchmarks.soak --device cuda --seconds 60 [--burst 3] [--shapes 1000]    # 75 s

Runs come in bursts, behind each of which the device has nothing to do and memory is looked at: what of the process lies
in RAM, and of a GPU what is in use, by all processes (`cuMemGetInfo`), what of its pool is, and how much that holds.
With --seconds bursts take a time, without it a number of runs. Ends with 1 if memory grew by more than 5 % after the
first tenth; that of a GPU since there were as many plans as at the end, by the means of thirds, as plans of all sizes
come and go.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.device import registry

MOST_GROWTH = 0.05
SAMPLES = 20


@dataclass(frozen=True)
class Sample:
    """After so many runs and seconds: resident bytes, and plans kept. Of a GPU, bytes in use, bytes of its pool in use,
    and bytes that this holds; 0 elsewhere."""

    runs: int
    resident_bytes: int
    plans: int
    device_bytes: int = 0
    pool_used_bytes: int = 0
    pool_held_bytes: int = 0
    after_s: float = 0.0


NAMES = {
    "resident_bytes": "resident", "device_bytes": "device", "pool_used_bytes": "pool in use", "pool_held_bytes": "pool",
}  # fmt: skip
KINDS = tuple(NAMES)


def resident_bytes() -> int:
    """Memory of this process that lies in RAM; Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def device_memory(device: str) -> dict[str, int]:
    """Bytes in use on a GPU, when all is done that it was given; nothing of other devices."""
    if registry.parse(device).kind != "cuda":
        return {}
    from rlx.backends.cuda.device import open_device

    opened = open_device(registry.parse(device).ordinal)
    with opened.work("run") as driver:
        driver.synchronise_all()
        free, total = driver.memory()
        found = {"device_bytes": total - free}
        bindings = getattr(driver, "cuda", None)  # the tests' driver has none
        if bindings is not None:
            for kind, name in (("used", "USED_MEM_CURRENT"), ("held", "RESERVED_MEM_CURRENT")):
                attribute = getattr(bindings.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{name}")
                code, value = bindings.cuMemPoolGetAttribute(opened._pool, attribute)
                if code:
                    raise RuntimeError(f"cuMemPoolGetAttribute gave {code}")
                found[f"pool_{kind}_bytes"] = int(value)
    return found


def program(device: str = "cpu") -> rlx.CompiledGraph:
    """A small encoder: products, a norm, a softmax along a dim that changes, and state that is fed."""
    graph = rlx.Graph("soak")
    x, state = graph.input("x", ("batch", "seq", 64)), graph.input("state", (64,))
    random = np.random.default_rng(0)
    w, v = (graph.param(n, (64, 64), data=random.standard_normal((64, 64)).astype("f4") / 8) for n in "wv")
    inner = rlx.gelu(x @ w) + state
    graph.output(rlx.softmax(inner @ v, axis=1), name="y")
    graph.output(state * 0.5 + rlx.reduce_mean(inner, axes=(0, 1)) * 0.5, name="next")
    return rlx.Session(device, compile="before").compile(graph)


class Runner:
    """Programs and runs of them by turns: as they are, into given arrays, queued, at an active extent, fed, and with
    results that stay on the device."""

    def __init__(self, device: str, shapes: int) -> None:
        self.compiled = program(device)
        self.shorter, self.fed = self.compiled.clone(), self.compiled.clone()
        self.state: Any = np.zeros(64, "f4")
        self.fed.bind_handle("state", self.state)
        self.fed.set_feeds({"next": "state"})
        wide = int(shapes**0.5) + 1
        self.sizes = [(1 + i % wide, 1 + i // wide) for i in range(shapes)]
        self.random = np.random.default_rng(1)
        self.runs = 0

    def run(self) -> None:
        batch, seq = self.sizes[self.random.integers(len(self.sizes))]
        self.runs += 1
        x, state = np.ones((batch, seq, 64), "f4"), self.state
        match self.runs % 6:
            case 0:
                self.compiled.run_slots([x, state], [np.empty_like(x), np.empty_like(state)])
            case 1:
                self.compiled.run_pipelined([x, state]).result()
            case 2:
                self.shorter.set_active_extent("seq", 1 + seq // 2)
                self.shorter.run([x, state])
            case 3:
                self.fed.run([x])
            case 4:
                self.compiled.run([x, state], outputs="device")
            case _:
                self.compiled.run([x, state])

    def plans(self) -> int:
        return sum(each.describe()["bindings"] for each in (self.compiled, self.shorter, self.fed))


def soak(
    runs: int, shapes: int, samples: int = SAMPLES, device: str = "cpu", seconds: float = 0.0, burst_s: float = 3.0
) -> Iterator[Sample]:
    """A sample behind each burst: of a part of the runs, or for so many seconds where `seconds` are given."""
    runner, start = Runner(device, shapes), time.perf_counter()

    def burst() -> None:
        if not seconds:
            for _ in range(max(runs // samples, 1)):
                runner.run()
            return
        end = time.perf_counter() + burst_s
        while time.perf_counter() < end:
            runner.run()

    while time.perf_counter() - start < seconds if seconds else runner.runs < runs:
        burst()
        gc.collect()
        memory = device_memory(device)
        yield Sample(runner.runs, resident_bytes(), runner.plans(), **memory, after_s=time.perf_counter() - start)


def growth(taken_samples: list[Sample]) -> float:
    """By how much of what it was after the first tenth the memory is more at most, later on."""
    settled = taken_samples[max(len(taken_samples) // 10 - 1, 0)].resident_bytes
    return max(sample.resident_bytes for sample in taken_samples) / settled - 1


def trend(taken_samples: list[Sample], kind: str) -> float:
    """By how much of its mean in the first third memory is more in the last, since plans are as many as at the end."""
    last = taken_samples[-1].plans
    sizes = [getattr(sample, kind) for sample in taken_samples if sample.plans >= 0.97 * last]
    third = -(-len(sizes) // 3)
    return float(np.mean(sizes[-third:]) / np.mean(sizes[:third])) - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--shapes", type=int, default=1_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long, in place of how many runs")
    parser.add_argument("--burst", type=float, default=3.0, help="seconds of a burst, with --seconds")
    args = parser.parse_args()
    start = time.perf_counter()
    taken_samples = []
    for sample in soak(args.runs, args.shapes, SAMPLES, args.device, args.seconds, args.burst):
        taken_samples.append(sample)
        sizes = {NAMES[kind]: getattr(sample, kind) / 2**20 for kind in KINDS if getattr(sample, kind)}
        told = ", ".join(f"{name} {size:.1f} MiB" for name, size in sizes.items())
        print(f"{sample.after_s:6.1f} s {sample.runs:>8} runs  {sample.plans:>4} plans  {told}", flush=True)
    grown = {"resident_bytes": growth(taken_samples)}
    grown |= {kind: trend(taken_samples, kind) for kind in KINDS[1:] if getattr(taken_samples[-1], kind)}
    took = time.perf_counter() - start
    told = ", ".join(f"{NAMES[kind]} {more:+.1%}" for kind, more in grown.items())
    print(
        f"{taken_samples[-1].runs} runs over {args.shapes} shapes on {args.device} in {took:.1f} s; memory grew: {told}"
    )
    return int(max(grown.values()) > MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
