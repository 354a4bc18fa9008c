"""Runs one after the other against runs that are queued (`run_pipelined`), and how much of the time the device works.

    python -m benchmarks.pipelined [--device vulkan] [--size 2048] [--products 1,4,16] [--runs 20] [--rounds 5]

A run brings a matrix, multiplies it by itself so many times, and gives a matrix back. On a device with a clock of its
own the kernels' time is that of its timestamps: the rest of a run is uploads, downloads and the host's work, which
queued runs do while the kernels of another run are at work. Both ways run in turns; the least of the rounds counts.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from rlx import CompiledGraph, Session, ops
from rlx.errors import ProfileError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array


def program(size: int, products: int) -> Graph:
    """A matrix times itself, again and again."""
    graph = Graph("products")
    x = graph.input("x", (size, size))
    y = x
    for _ in range(products):
        y = y @ x
    graph.output(ops.tanh(y), name="y")
    return graph


def in_turn(compiled: CompiledGraph, inputs: list[Array], runs: int) -> None:
    for _ in range(runs):
        compiled.run(inputs)


def queued(compiled: CompiledGraph, inputs: list[Array], runs: int) -> None:
    pending = [compiled.run_pipelined(inputs) for _ in range(runs)]
    for each in pending:
        each.result()


def kernels_ms(device: str, graph: Graph, inputs: list[Array]) -> float | None:
    """The time of all kernels of a run, None where the device has no clock."""
    try:
        session = Session(device)
        timed = session.with_options(replace(session.options, profile=True)).compile(graph)
        timed.kernel_times(inputs)
        return sum(kernel.total_ns for kernel in timed.kernel_times(inputs)) / 1e6
    except ProfileError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--products", default="1,4,16")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    x = np.random.default_rng(0).standard_normal((arguments.size,) * 2, np.float32) / np.float32(arguments.size)
    print(f"{'products':>8} {'ms a run: kernels':>18} {'in turn':>8} {'queued':>8} {'of the time in kernels':>24}")
    for products in map(int, arguments.products.split(",")):
        graph = program(arguments.size, products)
        compiled = Session(arguments.device).compile(graph)
        ways = {in_turn: float("inf"), queued: float("inf")}
        for way in ways:
            way(compiled, [x], 3)
        for _ in range(arguments.rounds):
            for way in ways:
                start = time.perf_counter()
                way(compiled, [x], arguments.runs)
                ways[way] = min(ways[way], (time.perf_counter() - start) / arguments.runs * 1e3)
        kernels = kernels_ms(arguments.device, graph, [x])
        shares = "" if kernels is None else " -> ".join(f"{kernels / took:.0%}" for took in ways.values())
        shown = "-" if kernels is None else f"{kernels:.2f}"
        print(f"{products:>8} {shown:>18} {ways[in_turn]:>8.2f} {ways[queued]:>8.2f} {shares:>24}", flush=True)


if __name__ == "__main__":
    main()
