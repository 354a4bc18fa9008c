"""Memory of a process that runs for long: many runs over many shapes, in every way in which a program can run.

    python -m benchmarks.soak [--runs 10000] [--shapes 1000]

Prints the resident memory as it goes, and ends with 1 if it grew by more than 5 % after the first tenth.
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

MOST_GROWTH = 0.05
SAMPLES = 20


@dataclass(frozen=True)
class Sample:
    """After so many runs: resident bytes, and plans kept."""

    runs: int
    resident_bytes: int
    plans: int


def resident_bytes() -> int:
    """Memory of this process that lies in RAM; Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


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


def soak(runs: int, shapes: int, samples: int = SAMPLES) -> Iterator[Sample]:
    """Runs by turns as they are, into given arrays, queued, at an active extent, and fed; a sample every so often."""
    compiled = program()
    wide = int(shapes**0.5) + 1
    sizes = [(1 + i % wide, 1 + i // wide) for i in range(shapes)]
    order = np.random.default_rng(1).integers(0, shapes, runs)
    state: Any = np.zeros(64, "f4")
    shorter, fed = compiled.clone(), compiled.clone()
    fed.bind_handle("state", state)
    fed.set_feeds({"next": "state"})
    for number, at in enumerate(order, 1):
        batch, seq = sizes[at]
        x = np.ones((batch, seq, 64), "f4")
        match number % 5:
            case 0:
                compiled.run_slots([x, state], [np.empty_like(x), np.empty_like(state)])
            case 1:
                compiled.run_pipelined([x, state]).result()
            case 2:
                shorter.set_active_extent("seq", 1 + seq // 2)
                shorter.run([x, state])
            case 3:
                fed.run([x])
            case _:
                compiled.run([x, state])
        if number % max(runs // samples, 1) == 0:
            gc.collect()
            yield Sample(number, resident_bytes(), sum(p.describe()["bindings"] for p in (compiled, shorter, fed)))


def growth(taken_samples: list[Sample]) -> float:
    """By how much of what it was after the first tenth the memory is more at most, later on."""
    settled = taken_samples[max(len(taken_samples) // 10 - 1, 0)].resident_bytes
    return max(sample.resident_bytes for sample in taken_samples) / settled - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--shapes", type=int, default=1_000)
    args = parser.parse_args()
    start = time.perf_counter()
    taken_samples = []
    for sample in soak(args.runs, args.shapes):
        taken_samples.append(sample)
        print(f"{sample.runs:>7} runs  {sample.resident_bytes / 2**20:8.1f} MiB  {sample.plans:>4} plans", flush=True)
    grown = growth(taken_samples)
    took = time.perf_counter() - start
    print(f"{args.runs} runs over {args.shapes} shapes in {took:.1f} s; memory grew by {grown:+.1%}")
    return int(grown > MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
