"""What products of encoders take on a GPU by our kernel and by cuBLASLt's best algorithm, in us, and their errors.

    python -m benchmarks.gpu_blas [--precision f16] [--rows 4096] [768x2304 768x768+ ...]

A shape is k x n of a product with a bias; behind one with a + something is added, as residuals are. Both are timed as
programs choose: on memory of their own, in a graph of launches in a row, the least of some times. `chosen` is what a
program takes. Errors are those of some rows against f64, as parts of the greatest number there.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

import rlx
from rlx.backends.cuda.blas import Blas, Choice
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph

SHAPES = ("768x2304", "768x768+", "768x3072", "3072x768+", "384x1152", "384x384+", "384x1536", "1536x384+")
"""Of BERT-base, then of MiniLM."""
CHECKED_ROWS = 64


@contextmanager
def products_by(who: str) -> Iterator[None]:
    """`off` has our kernels make products, `always` the library."""
    before = os.environ.get("RLX_CUDA_BLAS")
    os.environ["RLX_CUDA_BLAS"] = who
    try:
        yield
    finally:
        if before is None:
            del os.environ["RLX_CUDA_BLAS"]
        else:
            os.environ["RLX_CUDA_BLAS"] = before


def graph_of(rows: int, k: int, n: int, adds: bool, dtype: str) -> Graph:
    graph = Graph(f"{rows}x{k}x{n}")
    y = graph.input("x", (rows, k), dtype) @ graph.param("w", (k, n), dtype) + graph.param("bias", (n,), dtype)
    graph.output(graph.input("residual", (rows, n), dtype) + y if adds else y, name="y")
    return graph


def last_choice(program: Any) -> Choice:
    """What was found last on the device of a program."""
    blas = program.executable.device.blas
    if not isinstance(blas, Blas) or blas.library is None:
        raise SystemExit(f"benchmarks.gpu_blas: no product was the library's to make: {blas}")
    return list(blas.choices.values())[-1]


def case(shape: str, rows: int, device: str, dtype: str) -> None:
    k, n = (int(extent) for extent in shape.rstrip("+").split("x"))
    adds = shape.endswith("+")
    graph = graph_of(rows, k, n, adds, dtype)
    random = np.random.default_rng(0)
    extents = {"x": (rows, k), "residual": (rows, n), "w": (k, n), "bias": (n,)}
    scale = {"w": k**-0.5}
    given = {
        name: (random.standard_normal(of) * scale.get(name, 1)).astype(dtypes.parse(dtype).numpy)
        for name, of in extents.items()
    }
    inputs = {name: given[name] for name in ("x", *(["residual"] if adds else []))}
    some = np.unique(np.linspace(0, rows - 1, CHECKED_ROWS).astype(int))
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    exact = wide["x"][some] @ wide["w"] + wide["bias"] + (wide["residual"][some] if adds else 0)
    errors: dict[str, float] = {}
    session = rlx.Session(device)
    session = session.with_options(replace(session.options, cache=False))
    for who in ("off", "always"):
        with products_by(who):
            program = session.compile(graph)
            program.set_params({name: given[name] for name in ("w", "bias")})
            for _ in range(3):  # the last one is a graph's
                (y,) = program.run(inputs)
        errors[who] = float(np.abs(np.asarray(y)[some].astype(np.float64) - exact).max() / np.abs(exact).max())
    choice = last_choice(program)
    took = f"{choice.library_ns / 1e3:.1f}" if choice.algorithm else "no algorithm"
    chosen = "cuBLASLt" if choice.is_faster else "ours"
    print(
        f"{rows}x{shape:10} ours {choice.own_ns / 1e3:7.1f}, cuBLASLt {took:>7} us, chosen {chosen:9}"
        f" error {errors['off']:.1e} (cuBLASLt {errors['always']:.1e})",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--precision", default="f16", choices=("f16", "bf16", "f32"))
    parser.add_argument("--device", default="cuda")
    chosen = parser.parse_args(arguments)
    for shape in chosen.shapes:
        case(shape, chosen.rows, chosen.device, chosen.precision)


if __name__ == "__main__":
    main()
