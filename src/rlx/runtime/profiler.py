"""Measures where the time of a run goes, kernel by kernel: a table, and a trace for Chrome's and Perfetto's viewers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlx.backends.executable import KernelTime
from rlx.errors import ProfileError
from rlx.ir.graph import Graph, Value
from rlx.ir.op import LEAVES
from rlx.passes.cut import ending_at
from rlx.runtime.program import Inputs
from rlx.runtime.session import Session

WARM_UP = 2


@dataclass(frozen=True)
class Profile:
    """The fastest of several runs. Kernels are in the order in which the program calls them. What a kernel is, and what
    a call is, depends on the device (docs/design/runtime.md)."""

    graph: str
    device: str
    kernels: tuple[KernelTime, ...]

    @property
    def total_ns(self) -> float:
        return sum(k.total_ns for k in self.kernels)

    def by_time(self) -> list[KernelTime]:
        """The kernels that ran, the longest first."""
        return sorted((k for k in self.kernels if k.calls), key=lambda k: -k.total_ns)

    def trace(self) -> dict[str, Any]:
        """Events in the trace event format. A kernel that runs often is one event, from its first start; overlapping
        events are on separate lines."""
        ran = [k for k in self.kernels if k.calls]
        events = [
            {
                "name": k.name, "cat": "kernel", "ph": "X", "pid": 0, "tid": line, "ts": k.first_ns / 1e3,
                "dur": k.total_ns / 1e3, "args": {"nodes": list(k.sources), "calls": k.calls},
            }
            for k, line in zip(ran, _lines(ran))
        ]  # fmt: skip
        names = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"name": f"{self.graph} on {self.device}"}}]
        return {"traceEvents": [*names, *events], "displayTimeUnit": "ns"}

    def save_trace(self, path: Path | str) -> None:
        """Writes `trace` as JSON; chrome://tracing and ui.perfetto.dev open it."""
        Path(path).write_text(json.dumps(self.trace()), encoding="utf-8")


def _lines(kernels: Sequence[KernelTime]) -> list[int]:
    """A line for each kernel, the first that is free when it starts."""
    chosen = [0] * len(kernels)
    free_ns: list[float] = []
    for i in sorted(range(len(kernels)), key=lambda i: kernels[i].first_ns):
        kernel = kernels[i]
        line = next((n for n, end in enumerate(free_ns) if end <= kernel.first_ns), len(free_ns))
        free_ns[line : line + 1] = [kernel.first_ns + kernel.total_ns]
        chosen[i] = line
    return chosen


def profile(graph: Graph, inputs: Inputs, session: Session, runs: int = 5, apart: bool = False) -> Profile:
    """Compiles the graph so that its kernels are timed, runs it `runs` times, and keeps the fastest run. With `apart`
    it keeps the fastest time of each kernel: on a busy machine some kernel of every run waits for other programs.

    Raises ProfileError if the device does not time kernels, and what `Session.compile` and `run` raise.
    """
    if runs < 1:
        raise ProfileError(f"[profile] expected at least one run, got {runs}")
    timing = session.with_options(replace(session.options, profile=True))
    compiled = timing.compile(graph)
    for _ in range(WARM_UP):
        compiled.run(inputs)
    measured = [compiled.kernel_times(inputs) for _ in range(runs)]
    if apart and len({len(kernels) for kernels in measured}) == 1:
        quickest = [min(times, key=lambda kernel: kernel.total_ns) for times in zip(*measured)]
    else:
        quickest = min(measured, key=_total)
    named = tuple(replace(k, sources=tuple(dict.fromkeys(k.sources))) for k in quickest)
    return Profile(graph.name, compiled.device, named)


def _total(kernels: list[KernelTime]) -> float:
    return sum(k.total_ns for k in kernels)


@dataclass(frozen=True)
class BadNode:
    """The first node that gave numbers that are not finite: how many are NaN, and how many infinite."""

    node: str
    op: str
    nans: int
    infinities: int


def check_nan(graph: Graph, inputs: Inputs, session: Session, infinities: bool = False) -> BadNode | None:
    """The first node that gives NaN (or, if asked for, an infinity) where no operand has any; None if there is none.

    Runs the graph on the session's device with every float result as an output.
    """
    watched = [v for node in graph.nodes for v in node.outputs if v.dtype.is_float]
    bad: dict[Value, tuple[int, int]] = {}
    for value, array in zip(watched, session.compile(ending_at(graph, watched)).run(inputs)):
        wide = array.astype(np.float64, copy=False)
        bad[value] = int(np.isnan(wide).sum()), int(np.isinf(wide).sum()) if infinities else 0
    for value in watched:
        node = value.node
        if any(bad[value]) and not isinstance(node.op, LEAVES) and not any(any(bad.get(v, ())) for v in node.inputs):
            return BadNode(node.source or node.name, node.op.name, *bad[value])
    return None
