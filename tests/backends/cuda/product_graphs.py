"""Products for tests of the library that may make them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from rlx.backends.cuda.blas import ProductLaunch
from rlx.backends.cuda.bound import CudaBound
from rlx.backends.cuda.executable import CudaExecutable
from rlx.ir.graph import Graph
from rlx.ir.literal import Array

from .graphs import compiled

NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
ROWS = 40


def whole(shape: tuple[int, ...], seed: int, dtype: str = "f16") -> Array:
    """Small whole numbers: sums are exact in any order, and in 16 bits."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(NUMPY[dtype])


def wide(array: Array) -> Array:
    return np.asarray(array).astype(np.float64)


def bound_of(executable: CudaExecutable, **sizes: int) -> CudaBound:
    bound = executable.bind(sizes)
    assert isinstance(bound, CudaBound)
    return bound


def products(bound: CudaBound) -> list[ProductLaunch]:
    """What the library makes of a program that has run."""
    return [launch for launch in bound._whole() if isinstance(launch, ProductLaunch)]


def dense(n: int = 72, k: int = 64, dtype: str = "f16") -> tuple[CudaExecutable, Array, Array]:
    """x[m, k] @ w[k, n], with its x and what comes out."""
    graph = Graph("dense")
    graph.output(graph.input("x", ("m", k), dtype) @ graph.param("w", (k, n), dtype))
    x, w = whole((ROWS, k), 1, dtype), whole((k, n), 2, dtype)
    return compiled(graph, {"w": w}), x, wide(x) @ wide(w)
