"""Rates of the CPU: one program of many small kernels is timed kernel by kernel, and the rates are fitted to it.

The kernels are made by the same passes and plans as those of any model, so what is fitted is what will be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlx.backends import probes
from rlx.backends.base import Bound, KernelTime, Options, Rates
from rlx.backends.cpu import rates
from rlx.backends.cpu.executable import CpuBound, CpuExecutable
from rlx.backends.generic import quickest_ns
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ops import build

if TYPE_CHECKING:
    from rlx.backends.cpu import CpuBackend

RUNS = 12
FORK_NS = 700.0
"""Of handing a kernel to the pool and waiting for the last of its threads."""
CHECKS_NS = 1000.0
"""Of checking the inputs of a call."""
STREAM_ELEMENTS = (1 << 11, 1 << 14, 1 << 17, 1 << 20, 1 << 22)
GEMM_HEIGHTS = range(1, 9)


class Suite:
    """A graph of many probes side by side, each with an input and weights of its own."""

    def __init__(self) -> None:
        self.graph = Graph("calibration")
        self.inputs: dict[str, Array] = {}
        self.params: dict[str, Array] = {}
        self.random = np.random.default_rng(0)

    def add(self, name: str, body: Callable[..., Value], shape: tuple[int, ...], *weights: tuple[int, ...]) -> None:
        x = self.graph.input(name, shape, "f32")
        self.inputs[name] = self.random.standard_normal(shape, np.float32)
        held = []
        for i, weight in enumerate(weights):
            key = f"{name}.{i}"
            held.append(self.graph.param(key, weight, "f32"))
            self.params[key] = self.random.standard_normal(weight, np.float32) * np.float32(0.1)
        first = len(self.graph.nodes)
        made = body(x, *held)
        for node in self.graph.nodes[first:]:
            node.source = name
        self.graph.output(made, name=f"{name}.out")


def suite() -> Suite:
    """What is measured."""
    made = Suite()
    for count in STREAM_ELEMENTS:
        made.add(f"cold{count}", lambda x: x * 2.0, (count // 64, 64))
        made.add(f"warm{count}", _copies, (count // 64, 64))
    for height in GEMM_HEIGHTS:
        made.add(f"gemm{height}", lambda x, w: x @ w, (height, 384), (384, 192))
    for m, n, k in probes.GEMMS:
        made.add(f"gemm_{m}x{n}x{k}", lambda x, w: x @ w, (m, k), (k, n))
    for width in (16, 32):
        made.add(f"narrow{width}", lambda x, w: x @ w, (256, 256), (256, width))
    for batch, m, _, k in probes.BATCHED:
        made.add(f"batched{m}", _squares, (batch, m, k))
    for size, channels, outputs in probes.CONVS:
        weight = (outputs, channels, 3, 3)
        made.add(f"conv{size}x{channels}", lambda x, w: probes.convolution(x, w), (1, channels, size, size), weight)
        made.add(
            f"stride{size}x{channels}", lambda x, w: probes.convolution(x, w, 2), (1, channels, size, size), weight
        )
    made.add("depthwise", lambda x, w: probes.convolution(x, w, groups=64), (1, 64, 40, 40), (64, 1, 3, 3))
    for name, (body, shape) in probes.NESTS.items():
        made.add(name, body, shape)
    made.add("attention", _attention, (4, 64, 32))
    made.add("attention_long", _attention, (2, 256, 64))
    return made


def _copies(x: Value) -> Value:
    """Copies of copies: the middle one reads what was just written, and writes what is read next."""
    for _ in range(3):
        x = build.concat(x, x[:1], axis=0)
    return x


def _squares(x: Value) -> Value:
    return build.dot_general(x, x, lhs_contract=(2,), rhs_contract=(2,), lhs_batch=(0,), rhs_batch=(0,))


def _attention(x: Value) -> Value:
    heads = x.reshape(1, *x.shape)
    return build.attention(heads, heads, heads, scale=0.2)


def streams_of(kernels: Sequence[KernelTime]) -> dict[int, str]:
    """Numbers of the kernels that only read and write: those of `cold…`, and the middle one of each `warm…`."""
    found: dict[int, str] = {}
    for number, kernel in enumerate(kernels):
        source = kernel.sources[0]
        kind = source.rstrip("0123456789")
        if kind == "cold":
            found[number] = kind
        elif kind == "warm":
            # a concatenation is a kernel for each operand; of those for the large ones the second is in the middle
            same = [i for i, other in enumerate(kernels) if other.sources[0] == source]
            found[same[2]] = kind
    return found


def calibrate(backend: CpuBackend, ordinal: int, step: Callable[[str], None]) -> Rates:
    """Measures and fits. The rates are those of one thread, and how much all threads gain."""
    made = suite()
    step("compiling")
    options = Options(cache=False, profile=True, threads=1)
    executable = backend.compile(made.graph, options, ordinal)
    assert isinstance(executable, CpuExecutable)
    executable.set_params(made.params)
    inputs = list(made.inputs.values())
    step("one thread")
    alone = executable.bind({})
    runs = _runs(alone, inputs)
    kernels = alone.profile(inputs)
    step("fitting")
    found = rates.fit(rates.works(made.graph, options, {}), runs, streams_of(kernels))
    step("all threads")
    executable.threads = executable.pool.threads
    found["threads_count"] = float(executable.threads)
    if executable.threads > 1:
        together = _runs(executable.bind({}), inputs)
        sources = [kernel.sources[0] for kernel in kernels]
        for name, probe in (("compute", "gemm_512x512x512"), ("memory", f"cold{STREAM_ELEMENTS[-1]}")):
            at = sources.index(probe)
            found[f"threads_{name}_gain"] = float(runs[at] / together[at])
        found["fork_ns"] = FORK_NS
    step("a call")
    small = probes.call()
    bound = backend.compile(small.graph, Options(cache=False), ordinal).bind({})
    found["launch_ns"] = quickest_ns(lambda: bound(list(small.inputs))) + CHECKS_NS
    return found


def _runs(bound: Bound, inputs: list[Array]) -> Array:
    """The quickest time of each kernel. Results lie where they lay before, as what goes from kernel to kernel does."""
    assert isinstance(bound, CpuBound)
    out = bound(inputs)
    runs: Array = np.array([[k.total_ns for k in bound.profile(inputs, out)] for _ in range(RUNS)])
    return np.asarray(runs.min(0))
