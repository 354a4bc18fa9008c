"""How the time to compile grows with a program: chains of elementwise ops, and nets of equal layers.

    python -m benchmarks.compile_scaling [--chain 2500] [--layers 125] [--doublings 3] [--json FILE]

Each step doubles the program; the last column is how much longer than half of it. Passes, lowering and code generation
are rlx's own; LLVM makes one function for each distinct kernel.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import build
from rlx.backends.cpu.isa import detect
from rlx.ir.graph import Graph

PHASES = ("passes", "lower", "codegen", "llvm")


def chain(length: int) -> Graph:
    """Elementwise ops one behind the other, of three kinds."""
    graph = Graph("chain")
    x = graph.input("x", ("n", 64))
    kinds: tuple[Callable[..., object], ...] = (ops.tanh, ops.abs, ops.sigmoid)
    for number in range(length):
        x = kinds[number % 3](x)
    graph.output(x, name="y")
    return graph


def layers(count: int) -> Graph:
    """Residual blocks of a norm, two products and an activation, each with weights of its own."""
    graph = Graph("layers")
    x = graph.input("x", ("n", 64))
    weights = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    for number in range(count):
        first, second = (graph.param(f"w{number}.{i}", (64, 64), data=weights) for i in range(2))
        mean = ops.reduce_mean(x, axes=(-1,), keepdims=True)
        centred = x - mean
        spread = ops.reduce_mean(centred * centred, axes=(-1,), keepdims=True)
        normal = centred / ops.sqrt(spread + 1e-5)
        x = x + ops.relu(normal @ first) @ second
    graph.output(x, name="y")
    return graph


def measure(graph: Graph) -> dict[str, float]:
    """Seconds by phase, from an empty cache."""
    start = time.perf_counter()
    artifact = build.compile_artifact(graph, detect(), Options(cache=False))
    total = time.perf_counter() - start
    laps = artifact.report["ms"]
    return {**{phase: laps[phase] / 1e3 for phase in PHASES}, "total": total}


def table(name: str, make: Callable[[int], Graph], first: int, doublings: int) -> list[dict[str, float]]:
    """Measures and prints the steps."""
    print(f"{name:>10} " + "".join(f"{phase:>9}" for phase in (*PHASES, "total", "growth")))
    rows: list[dict[str, float]] = []
    for step in range(doublings + 1):
        size = first << step
        row = {"size": size, **measure(make(size))}
        row["growth"] = row["total"] / rows[-1]["total"] if rows else 0.0
        rows.append(row)
        print(f"{size:>10} " + "".join(f"{row[phase]:>9.2f}" for phase in (*PHASES, "total", "growth")), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chain", type=int, default=2500, help="ops of the shortest chain")
    parser.add_argument("--layers", type=int, default=125, help="layers of the smallest net")
    parser.add_argument("--doublings", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    args = parser.parse_args()
    measure(chain(16))  # imports and tables are not the program's
    measure(layers(2))
    tables = {
        "chain": table("ops", chain, args.chain, args.doublings),
        "layers": table("layers", layers, args.layers, args.doublings),
    }
    if args.json:
        args.json.write_text(json.dumps(tables, indent=1))


if __name__ == "__main__":
    main()
