"""Graphs whose kernels are written from a schedule that may be set by hand, with their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from codegen.simt.kernel_cases import turned
from rlx import ops
from rlx.ir.graph import Graph
from rlx.ir.literal import Array


@dataclass(frozen=True)
class Scheduled:
    """A graph with inputs: random floats, and for integers, indices of rows."""

    graph: Graph

    @property
    def inputs(self) -> dict[str, Array]:
        random = np.random.default_rng(1)
        return {
            value.name: random.standard_normal(value.shape).astype(value.dtype.numpy)
            if value.dtype.is_float
            else random.integers(0, 9, value.shape).astype(value.dtype.numpy)
            for value in self.graph.inputs
        }


def _maps(graph: Graph) -> None:
    """Of one axis, and of two; a gather."""
    x = graph.input("x", (37, 150))
    graph.output(ops.exp(x) * x, ops.gather(x, graph.input("at", (70,), "i32"), axis=1))
    graph.output(ops.sqrt(ops.abs(graph.input("flat", (1003,)))))


def _rows(graph: Graph) -> None:
    """Reductions along rows: sums, statistics of several passes, places."""
    x = graph.input("x", (70, 150))
    graph.output(ops.reduce_sum(x, axes=(1,)), ops.softmax(x, axis=1), ops.argmax(x, axis=1))
    graph.output(ops.reduce_sum(graph.input("one", (3, 1000)), axes=(1,)))


def _columns(graph: Graph) -> None:
    x = graph.input("x", (300, 150))
    graph.output(ops.reduce_sum(x, axes=(0,)), ops.argmin(x, axis=0), ops.softmax(x, axis=0))


def _windows(graph: Graph) -> None:
    """Of channels that have nothing to do with one another, and of all that lie in a window."""
    for size, window, stride in ((12, 3, 1), (14, 5, 2), (7, 5, 1), (13, 3, 1), (2, 3, 1)):
        x = graph.input(f"x{size}", (2, size + window - 1, size + window - 1, 21))
        w = graph.input(f"w{size}", (window, window, 1, 21))
        sums = ops.conv(x, w, strides=(stride,) * 2, dilations=(1, 1), low=(0, 0), high=(0, 0), groups=21,
                        channels_last=True)  # fmt: skip
        graph.output(ops.relu(sums) / 6.0)


def _transposes(graph: Graph) -> None:
    """With whole squares and rests, and of few columns, which are interleaved."""
    graph.output(graph.input("x", (70, 150)).T + 1.0, graph.input("few", (3, 101)).T)
    graph.output(graph.input("whole", (64, 192)).T * 2.0)


def _transforms(graph: Graph) -> None:
    for length in (16, 96, 240, 512, 1024):
        x, y = graph.input(f"x{length}", (3, length)), graph.input(f"y{length}", (3, length))
        graph.output(*ops.fft(x, y), *ops.fft(x, y, inverse=True), *ops.rfft(x))
        bins = (x[:, : length // 2 + 1], y[:, : length // 2 + 1])
        graph.output(ops.irfft(*bins, length=length))


def _wide_transforms(graph: Graph) -> None:
    graph.output(*ops.fft(graph.input("a", (2, 48), "f64"), graph.input("b", (2, 48), "f64")))


def _scatters(graph: Graph) -> None:
    """Of rows, whose columns lie side by side, and of single elements."""
    x, at = graph.input("x", (9, 150)), graph.input("at", (300, 1), "i32")
    graph.output(ops.scatter_nd(x, at, graph.input("updates", (300, 150)), combine="max"))
    graph.output(ops.scatter_nd(graph.input("flat", (9,)), at, graph.input("single", (300,))))


def _wide_scatters(graph: Graph) -> None:
    """Of rows alone."""
    x, at = graph.input("x", (9, 150)), graph.input("at", (300, 1), "i32")
    graph.output(ops.scatter_nd(x, at, graph.input("updates", (300, 150)), combine="add"))


def _scans(graph: Graph) -> None:
    x = graph.input("x", (70, 300))
    graph.output(ops.cumsum(x, axis=0), ops.cumsum(x, axis=1, exclusive=True), ops.cummax(x, axis=1, reverse=True))


def _rankings(graph: Graph) -> None:
    x = graph.input("x", (3, 200))
    graph.output(*ops.top_k(x, axis=1, k=5), ops.sort(x, axis=1))


GRAPHS: dict[str, Callable[[Graph], None]] = {
    "maps": _maps,
    "rows": _rows,
    "columns": _columns,
    "windows": _windows,
    "transposes": _transposes,
    "turned": turned,
    "transforms": _transforms,
    "wide transforms": _wide_transforms,
    "scatters": _scatters,
    "wide scatters": _wide_scatters,
    "scans": _scans,
    "rankings": _rankings,
}


def scheduled(name: str) -> Scheduled:
    graph = Graph(name)
    GRAPHS[name](graph)
    return Scheduled(graph)
