"""How much of a net's code the store of kernels has already, when nets come one after the other.

    python -m benchmarks.kernel_store [--seed 0] [--only NAME]

The nets of `zoo` and `shaped`, and of nets with open dims copies in which these are numbers, come in a random order
to a store that is empty at first. A line a net: its functions, how many of them the store had, CPU seconds of LLVM for
the whole program and for what was missing, and those of the rest of the compile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import rlx
from benchmarks import shaped
from benchmarks.zoo import nets
from rlx.backends.base import Options
from rlx.backends.cpu import build, isa, jit, kernel_store
from rlx.codegen.simd.module import written
from rlx.errors import ShapeError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.passes.specialise import specialise


@dataclass(frozen=True)
class Row:
    """What one net met. Times are CPU seconds of this process."""

    name: str
    functions: int
    found: int
    whole_s: float
    missing_s: float
    rest_s: float


def graphs(only: str) -> Iterator[tuple[str, Graph]]:
    """Each net that is here, as it is and with its open dims as numbers."""
    for net in nets().values():
        if only in net.name and not net.why_absent():
            sizes = [net.inputs(size) for size in net.sizes[:2]]
            yield from _variants(net.name, rlx.load(net.path(), device="reference").graph, sizes)
    for name in shaped.NETS:
        if only in f"shaped-{name}":
            yield from _variants(f"shaped-{name}", rlx.load(shaped.path(name), device="reference").graph, [])


def _variants(name: str, graph: Graph, sizes: Sequence[Mapping[str, Array]]) -> Iterator[tuple[str, Graph]]:
    yield name, graph
    for inputs in sizes:
        dims = {
            str(dim): size for value in graph.inputs for dim, size in zip(value.type.shape, inputs[value.name].shape)
            if str(dim) in graph.symbols
        }  # fmt: skip
        with contextlib.suppress(ShapeError):  # branches of the net are for other sizes
            if dims:
                yield f"{name} {' '.join(map(str, dims.values()))}", specialise(graph, dims)


def measure(name: str, graph: Graph) -> Row:
    """Compiles a net without the store and with it."""
    target, options = isa.detect(), Options()
    begin = time.process_time()
    program, bounds = build.program_of(graph, target, options)
    module = written(program, target, bounds, build._kept(program), reuse=True)
    rest = time.process_time() - begin
    begin = time.process_time()
    jit.emit_objects(module.texts(1), target)
    whole = time.process_time() - begin
    begin = time.process_time()
    pieces = kernel_store.look_up(module, target, 1)
    kernel_store.complete(pieces, jit.emit_objects(pieces.texts, target))
    missing = time.process_time() - begin
    return Row(name, len(module.kernels()), len(pieces.ready), whole, missing, rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="nets whose names hold this")
    chosen = parser.parse_args()
    named = list(graphs(chosen.only))
    random.Random(chosen.seed).shuffle(named)
    rows = []
    print(f"{'net':34} {'functions':>9} {'found':>6} {'share':>6} {'LLVM s: whole':>14} {'missing':>8} {'rest s':>7}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"RLX_CACHE_DIR": folder, "RLX_CACHE": "1"}
        for name, graph in named:
            row = measure(name, graph)
            rows.append(row)
            print(f"{row.name:34} {row.functions:9} {row.found:6} {row.found / max(row.functions, 1):6.0%} "
                  f"{row.whole_s:14.2f} {row.missing_s:8.2f} {row.rest_s:7.2f}", flush=True)  # fmt: skip
        kept = list(Path(folder).iterdir())
        print(f"the store holds {len(kept)} functions in {sum(path.stat().st_size for path in kept) / 1e6:.1f} MB")
    total, found = sum(r.functions for r in rows), sum(r.found for r in rows)
    whole, missing = sum(r.whole_s for r in rows), sum(r.missing_s for r in rows)
    print(f"found {found} of {total} functions ({found / max(total, 1):.0%}); "
          f"CPU seconds of LLVM {whole:.1f} -> {missing:.1f}, saved {whole - missing:.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
