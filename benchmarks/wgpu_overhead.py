"""What a run on a WebGPU device takes above its kernels, and how often it submits work to the queue.

    python -m benchmarks.wgpu_overhead [--devices vulkan,opengl] [--runs 200]

Programs are chains of 1, 10 and 100 small products, one dispatch each. Their kernels' own time is told apart by making
them larger: rows are added, which changes neither the number of dispatches nor what the host does but for the copies,
and what a row takes more is what a row takes. All else is above the kernels: recording commands, submitting them, what
the driver does for each dispatch, waiting, and moving inputs and outputs. Times are in microseconds: medians, and the
least of the runs, which other programs disturbed least. Submissions are calls of the queue's `submit`, counted as
programs run.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version

import numpy as np

from rlx.backends.base import Options
from rlx.backends.wgpu import BACKENDS
from rlx.backends.wgpu.executable import WgpuExecutable
from rlx.ir.graph import Graph

DISPATCHES = (1, 10, 100)
ROWS, MORE_ROWS = 4, 1024
SIZE = 16


@contextmanager
def counted(queue: object) -> Iterator[list[int]]:
    """Counts how often a queue is submitted to, into the list."""
    kind = type(queue)
    submit, counts = kind.submit, [0]  # type: ignore[attr-defined]

    def counting(self: object, buffers: object) -> None:
        counts[0] += 1
        submit(self, buffers)

    kind.submit = counting  # type: ignore[attr-defined]
    try:
        yield counts
    finally:
        kind.submit = submit  # type: ignore[attr-defined]


def chain(length: int) -> Graph:
    graph = Graph("chain")
    x = graph.input("x", ("rows", SIZE))
    for number in range(length):
        x = x @ graph.param(f"w{number}", (SIZE, SIZE))
    graph.output(x)
    return graph


class Program:
    """A chain that is ready to run at both sizes."""

    def __init__(self, device: str, length: int) -> None:
        executable = BACKENDS[device]().compile(chain(length), Options(cache=False))
        assert isinstance(executable, WgpuExecutable)
        executable.set_params({f"w{number}": np.eye(SIZE, dtype=np.float32) for number in range(length)})
        self.device = executable.device
        self.dispatches = len(executable.plan.main)
        self.calls: dict[int, Callable[[], object]] = {}
        self.times: dict[int, list[float]] = {rows: [] for rows in (ROWS, MORE_ROWS)}
        for rows in self.times:
            bound, arrays = executable.bind({"rows": rows}), [np.ones((rows, SIZE), np.float32)]
            self.calls[rows] = lambda bound=bound, arrays=arrays: bound(arrays)
            self.calls[rows]()

    def time(self) -> None:
        for rows, call in self.calls.items():
            start = time.perf_counter_ns()
            call()
            self.times[rows].append((time.perf_counter_ns() - start) / 1e3)

    def submissions(self, runs: int = 5) -> float:
        """Of a run."""
        with counted(self.device.raw.queue) as counts:
            for _ in range(runs):
                self.calls[ROWS]()
        return counts[0] / runs

    def kernels_us(self) -> float:
        small, large = (statistics.median(self.times[rows]) for rows in (ROWS, MORE_ROWS))
        return max(large - small, 0.0) / (MORE_ROWS - ROWS) * ROWS


def main() -> None:
    parser = argparse.ArgumentParser(description="What a run takes above its kernels")
    parser.add_argument("--devices", default="vulkan,opengl")
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    versions = ", ".join(f"{name} {version(name)}" for name in ("rlx", "wgpu", "numpy"))
    print(f"Python {platform.python_version()} on {platform.platform()}; {versions}")
    for device in options.devices.split(","):
        programs = [Program(device, length) for length in DISPATCHES]
        print(f"\n{device}: {BACKENDS[device]().identity()['device']}; adapter {programs[0].device.name}")
        for _ in range(options.runs):
            for program in programs:
                program.time()
        heads = ("dispatches", "run", "kernels", "above", "a dispatch", "least run", "submissions")
        print(" ".join(f"{head:>11}" for head in heads))
        for program in programs:
            run, own = statistics.median(program.times[ROWS]), program.kernels_us()
            above = run - own
            least = min(program.times[ROWS])
            numbers = (program.dispatches, run, own, above, above / program.dispatches, least, program.submissions())
            print(" ".join(f"{number:>11.1f}" for number in numbers))


if __name__ == "__main__":
    main()
