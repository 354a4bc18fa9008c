"""Small graphs for tests of the backend: few kernels, as each takes a compiler a second."""

from __future__ import annotations

import gc
from collections.abc import Mapping

import numpy as np

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda import CudaBackend
from rlx.backends.cuda.executable import CudaExecutable
from rlx.ir.graph import Graph
from rlx.ir.literal import Array

W = np.arange(24, dtype=np.float32).reshape(6, 4) / 8
BIAS = np.arange(4, dtype=np.float32)


def dense() -> Graph:
    """x @ w + bias, and the same doubled."""
    graph = Graph("dense")
    y = graph.input("x", ("n", 6)) @ graph.param("w", (6, 4)) + graph.param("bias", (4,))
    graph.output(y, name="y")
    graph.output(y * 2.0, name="twice")
    return graph


def x_of(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, (rows, 6)).astype(np.float32)


def expected(x: Array, w: Array = W, bias: Array = BIAS) -> list[Array]:
    """What `dense` gives: of small whole numbers, so that sums are exact in any order."""
    return [x @ w + bias, (x @ w + bias) * 2]


def compiled(graph: Graph, params: Mapping[str, Array] | None = None, options: Options | None = None) -> CudaExecutable:
    executable = CudaBackend().compile(graph, options or Options(cache=False))
    assert isinstance(executable, CudaExecutable)
    executable.set_params({**graph.data, **(params or {})})
    return executable


def ready(graph: Graph | None = None) -> CudaExecutable:
    return compiled(graph or dense(), {"w": W, "bias": BIAS})


def cache() -> Graph:
    """A state that rows are written to, at a position that a run brings; the sum of all rows goes out."""
    graph = Graph("cache")
    rows, at = graph.input("rows", ("n", 3)), graph.input("at", (), "i64")
    state = graph.state("cache", (8, 3))
    written = ops.update_slice(state, rows, at)
    graph.set_next(state, written)
    graph.output(ops.reduce_sum(written, axes=(0,)), name="sum")
    return graph


def doubling() -> Graph:
    """Doubles until a limit is reached: only the data tell how often."""
    graph = Graph("doubling")
    condition, body = Graph("condition"), Graph("body")
    condition.output(ops.lt(ops.reduce_max(condition.input("x", (3,)), axes=(0,)), 100.0))
    body.output(body.input("x", (3,)) * 2.0)
    results = ops.while_(graph.input("x", (3,)), carried=1, regions=(condition, body))
    graph.output(*(results if isinstance(results, tuple) else (results,)))
    return graph


def recurrent() -> Graph:
    """A loop of known length over rows."""
    graph = Graph("recurrent")
    step = Graph("step")
    after = step.input("total", (3,)) + step.input("row", (3,))
    step.output(after, after * 2.0)
    x = graph.input("x", ("n", 3))
    zero = graph.constant(np.zeros(3, np.float32))
    graph.output(*ops.scan(zero, x, carried=1, sequences=1, length="n", regions=(step,)))
    return graph


def settle(executable: CudaExecutable) -> None:
    """Has everything done that was given to the device, and given back what nobody has."""
    gc.collect()
    with executable.device.work("run") as driver:
        driver.synchronise(executable.device.stream)
