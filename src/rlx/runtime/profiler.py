"""Measures where the time of a run goes, kernel by kernel: a table, and a trace for Chrome's and Perfetto's viewers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlx.backends.executable import KernelTime
from rlx.backends.memory import DeviceArray
from rlx.cost.estimate import KernelEstimate
from rlx.errors import ProfileError
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Value
from rlx.ir.op import LEAVES
from rlx.ir.substitute import type_with_dims
from rlx.ir.type import TensorType
from rlx.passes.cut import ending_at
from rlx.records import dataclass
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.program import Inputs
from rlx.runtime.session import Session

WARM_UP = 2
Key = tuple[str, tuple[str, ...]]
"""What tells kernels of a program apart: the name, and the nodes that it computes."""


@dataclass(frozen=True)
class Copy:
    """An array that went between host and device."""

    name: str
    direction: str
    nbytes: int
    took_ns: float


@dataclass(frozen=True)
class Profile:
    """The fastest of several runs. Kernels are in the order in which the program calls them. What a kernel is, and what
    a call is, depends on the device (docs/design/runtime.md).

    run_ns       the fastest run as a whole: kernels, and what the host does around them
    compile_ns   how long the compile took, also where it was found in the cache
    copies       of inputs and results one by one, for devices with memory of their own
    threads      of the processor, that kernels may use; 0 on other devices
    shapes       types of what nodes give, at the sizes of the run
    """

    graph: str
    device: str
    kernels: tuple[KernelTime, ...]
    run_ns: float = 0.0
    compile_ns: float = 0.0
    copies: tuple[Copy, ...] = ()
    threads: int = 0
    shapes: Mapping[str, str] = field(default_factory=dict)

    @property
    def total_ns(self) -> float:
        return sum(k.total_ns for k in self.kernels)

    def by_time(self) -> list[KernelTime]:
        """The kernels that ran, the longest first."""
        return sorted((k for k in self.kernels if k.calls), key=lambda k: -k.total_ns)

    def trace(self, predicted: Mapping[Key, KernelEstimate] | None = None, load_ns: float = 0.0) -> dict[str, Any]:
        """Events in the trace event format: loading, compiling, copies and the run on the host's line, kernels on lines
        of their own. A kernel that runs often is one event, from its first start.

        predicted   what kernels are expected to take: tells how near they come to what the machine could do
        load_ns     how long reading the model took
        """
        return {"traceEvents": list(_events(self, predicted or {}, load_ns)), "displayTimeUnit": "ns"}

    def save_trace(
        self, path: Path | str, predicted: Mapping[Key, KernelEstimate] | None = None, load_ns: float = 0.0
    ) -> None:
        """Writes `trace` as JSON; chrome://tracing and ui.perfetto.dev open it."""
        Path(path).write_text(json.dumps(self.trace(predicted, load_ns)), encoding="utf-8")


HOST = 0
"""The line of what the host does; kernels have those from 1 on."""


def _events(profiled: Profile, predicted: Mapping[Key, KernelEstimate], load_ns: float) -> Iterator[dict[str, Any]]:
    ran = [k for k in profiled.kernels if k.calls]
    lines = _lines(ran)
    yield _named("process_name", HOST, f"{profiled.graph} on {profiled.device}")
    yield _named("thread_name", HOST, "host")
    for line in sorted(set(lines)):
        yield _named("thread_name", line + 1, "kernels" if line == 0 else f"kernels beside them, {line}")
    at = 0.0
    for name, ns in (("load", load_ns), ("compile", profiled.compile_ns)):
        if ns:
            yield _span(name, "host", HOST, at, ns, {})
            at += ns
    for copy in (c for c in profiled.copies if c.direction == "to the device"):
        yield _copy(copy, at)
        at += copy.took_ns
    busy_ns = max((k.first_ns + k.total_ns for k in ran), default=0.0)
    run_ns = max(profiled.run_ns, busy_ns)  # they are of different runs
    about = {"threads": profiled.threads} if profiled.threads else {}
    yield _span("run", "host", HOST, at, run_ns, about | {"kernels_ms": profiled.total_ns / 1e6})
    for kernel, line in zip(ran, lines):
        args = _about(kernel, profiled, predicted.get(key_of(kernel)))
        yield _span(kernel.name, "kernel", line + 1, at + run_ns - busy_ns + kernel.first_ns, kernel.total_ns, args)
    at += run_ns
    for copy in (c for c in profiled.copies if c.direction == "to the host"):
        yield _copy(copy, at)
        at += copy.took_ns


def _named(what: str, line: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 0, "tid": line, "args": {"name": name}}


def _span(name: str, category: str, line: int, at_ns: float, took_ns: float, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": at_ns / 1e3, "dur": took_ns / 1e3}
    return {"name": name, "cat": category, "ph": "X", "pid": 0, "tid": line, **times, "args": args}


def _copy(copy: Copy, at_ns: float) -> dict[str, Any]:
    args = {"bytes": copy.nbytes, "gigabytes_per_second": copy.nbytes / max(copy.took_ns, 1.0)}
    return _span(f"copy {copy.name} {copy.direction}", "copy", HOST, at_ns, copy.took_ns, args)


def _about(kernel: KernelTime, profiled: Profile, estimate: KernelEstimate | None) -> dict[str, Any]:
    """What a viewer shows of a kernel: where it is from, sizes, and how near it comes to what the machine could do."""
    about: dict[str, Any] = {"nodes": list(kernel.sources), "calls": kernel.calls}
    shapes = {name: profiled.shapes[name] for name in kernel.sources if name in profiled.shapes}
    if shapes:
        about["results"] = shapes
    if estimate is None or not kernel.total_ns:
        return about
    about |= {
        "flops": estimate.flops,
        "bytes": estimate.nbytes,
        "gigaflops_per_second": estimate.flops / kernel.total_ns,
        "gigabytes_per_second": estimate.nbytes / kernel.total_ns,
        "bound_by": "compute" if estimate.compute_ns >= estimate.memory_ns else "memory",
        "share_of_roofline": max(estimate.compute_ns, estimate.memory_ns) / kernel.total_ns,
    }
    return about


def key_of(kernel: KernelTime | KernelEstimate) -> Key:
    """Names may be equal where nodes are not."""
    return kernel.name, tuple(dict.fromkeys(kernel.sources))


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
    run_ns = min(compiled.rehearse(inputs) for _ in range(runs))
    if apart and len({len(kernels) for kernels in measured}) == 1:
        quickest = [min(times, key=lambda kernel: kernel.total_ns) for times in zip(*measured)]
    else:
        quickest = min(measured, key=_total)
    named = tuple(replace(k, sources=tuple(dict.fromkeys(k.sources))) for k in quickest)
    return Profile(
        graph.name, compiled.device, named, run_ns, compiled.executable.compile_ns, tuple(_copies(compiled, inputs)),
        compiled.executable.describe().get("threads", 0), _shapes(compiled, inputs),
    )  # fmt: skip


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter_ns()
    result = work()
    return float(time.perf_counter_ns() - start), result


def _brought(compiled: CompiledGraph, inputs: Inputs) -> Iterator[tuple[str, TensorType, Any]]:
    """Name, type and array of what a run gets from its caller."""
    signature = compiled.program.signature
    types = {name: of for name, of in signature.types.items() if name not in signature.states}
    for (name, of), array in zip(types.items(), signature.arrays(inputs)):
        yield name, of, array


def _copies(compiled: CompiledGraph, inputs: Inputs) -> Iterator[Copy]:
    """Each input to the device and each result from it, where the device has memory of its own."""
    if compiled.executable.place is None:
        return
    for name, _, array in _brought(compiled, inputs):
        if not isinstance(array, DeviceArray):
            took_ns, _ = _timed(partial(compiled.executable.put, name, array))
            yield Copy(name, "to the device", array.nbytes, took_ns)
    for name, result in zip(compiled.output_names, compiled.run(inputs, outputs="device")):
        if isinstance(result, DeviceArray):
            took_ns, array = _timed(result.numpy)
            yield Copy(name, "to the host", array.nbytes, took_ns)


def _shapes(compiled: CompiledGraph, inputs: Inputs) -> dict[str, str]:
    """Types of what nodes give, with numbers for dims that inputs tell."""
    sizes: dict[str, Dim] = {}
    for _, of, array in _brought(compiled, inputs):
        sizes.update({str(d): n for d, n in zip(of.shape, array.shape) if str(d).isidentifier()})
    return {
        node.source or node.name: ", ".join(
            str(type_with_dims(of, lambda d: dims.substitute(d, sizes))) for of in node.types
        )
        for node in compiled.graph.nodes
        if not isinstance(node.op, LEAVES)
    }


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
