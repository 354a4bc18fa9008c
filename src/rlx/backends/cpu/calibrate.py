"""Rates of the CPU: one program of many small kernels is timed kernel by kernel, and the rates are fitted to it.

The kernels are made by the same passes and plans as those of any model, so what is fitted is what will be asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from rlx.backends import probes
from rlx.backends.base import KernelTime, Options, Rates
from rlx.backends.cpu import cpus, rates
from rlx.backends.cpu.executable import CpuBound, CpuExecutable
from rlx.backends.cpu.isa import Isa, detect
from rlx.backends.generic import BUDGET_S, TYPICAL, times_ns
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ops import build

if TYPE_CHECKING:
    from rlx.backends.cpu import CpuBackend

PRODUCTS = ((128, 384, 384), (256, 32, 288), (64, 64, 64))
RUNS, SHORT_RUNS = 3, 12
"""Of a program in a round: short ones more often."""
ROUNDS = 5
SHORT_NS = 300_000
FORK_NS = 700.0
"""Of handing a kernel to the pool and waiting for the last of its threads."""
CHECKS_NS = 1000.0
"""Of checking the inputs of a call."""
STREAM_ELEMENTS = (1 << 11, 1 << 14, 1 << 17, 1 << 20, 1 << 22)


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
        made.add(f"warm{count}", _copies, (count // 64, 64))
    made.add("cold", lambda x: x * 2.0, (STREAM_ELEMENTS[-1] // 64, 64))
    for m, n, k in PRODUCTS:
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


def streams_of(kernels: Sequence[KernelTime]) -> list[int]:
    """Numbers of the middle copy of each `warm…`: it reads what was just written, and writes what is read next."""
    found = []
    for source in dict.fromkeys(kernel.sources[0] for kernel in kernels):
        if source.startswith("warm"):
            # a concatenation is a kernel for each operand; of those for the large ones the second is in the middle
            found.append([i for i, other in enumerate(kernels) if other.sources[0] == source][2])
    return found


CORE_DEPTHS = (96, 384)
CORE_PANELS = 4
MANY_ROWS = 1024
READ_SIDES = {"l1": 64, "l2": 240, "l3": 1024, "dram": 4096}
"""Of square weights that stay in a cache; those of `dram` in none."""


class Meter:
    """A program whose kernels are timed, a round now and a round then."""

    def __init__(self, executable: CpuExecutable, dims: Mapping[str, int], inputs: list[Array], threads: int) -> None:
        executable.threads = threads
        bound = executable.bind(dims)
        assert isinstance(bound, CpuBound)
        self.bound, self.inputs = bound, inputs
        self.times: list[list[float]] = []
        self.out = bound(inputs)  # results lie where they lay before, as what goes from kernel to kernel does

    def round(self) -> None:
        """Some runs, more of them if they are short; after one that does not count, as others used the caches."""
        whole = sum(k.total_ns for k in self.bound.profile(self.inputs, self.out))
        for _ in range(SHORT_RUNS if whole < SHORT_NS else RUNS):
            self.times.append([k.total_ns for k in self.bound.profile(self.inputs, self.out)])

    def kernels_ns(self) -> Array:
        """What each kernel takes."""
        return np.asarray(np.quantile(np.array(self.times), TYPICAL, axis=0))

    def ns(self) -> float:
        return float(self.kernels_ns().sum())


class Product:
    """A product with weights of a known size, compiled once, for any number of rows. It runs alone: its memory lies in
    the nearest cache that holds it."""

    def __init__(self, backend: CpuBackend, ordinal: int, k: int, n: int) -> None:
        graph = Graph("product")
        graph.output(graph.input("x", ("m", k), "f32") @ graph.param("w", (k, n), "f32"))
        made = backend.compile(graph, Options(cache=False, profile=True), ordinal)
        assert isinstance(made, CpuExecutable)
        made.set_params({"w": np.full((k, n), 0.5, np.float32)})
        self.executable, self.k, self.n = made, k, n

    def meter(self, m: int, threads: int = 1) -> Meter:
        inputs = [np.full((m, self.k), 0.5, np.float32)]
        return Meter(self.executable, {"m": m}, inputs, threads)


def core_rates(few_ns: Mapping[int, float], many_ns: Mapping[int, float], isa: Isa) -> Rates:
    """A step of k by the height of the tile, and what a tile takes beside: from the times of products of two depths by
    their rows, weights in cache."""
    steps: dict[int, float] = {}
    beside = []
    more, most = CORE_DEPTHS
    for rows in sorted(few_ns, reverse=True):
        # a lower tile takes no longer than a higher one: whatever says so was disturbed
        step = (many_ns[rows] - few_ns[rows]) / CORE_PANELS / (most - more)
        steps[rows] = min(max(step, 0.05), steps.get(rows + 1, math.inf))
        beside.append(max(few_ns[rows] / CORE_PANELS - more * steps[rows], 0.0))
    # a tile costs something, and each of its vectors
    cells = np.array([rows * isa.gemm_vectors for rows in steps])
    cell_ns, tile_ns = np.polyfit(cells, beside, 1)
    return rates.cores_ns(steps, max(float(tile_ns), 1.0), max(float(cell_ns), 0.1), isa)


def read_rate(side: int, ns: float, threads: int, known: Rates, isa: Isa) -> float:
    """ns a byte of square weights that a product with one row reads in so many ns."""
    panels = -(-side // (isa.gemm_vectors * isa.lanes))
    tile = known["gemm_tiles_ns"] + isa.gemm_vectors * known["gemm_cells_ns"]
    work = panels * (side * known[f"gemm_1x{isa.gemm_vectors}_ns"] + tile) / threads
    return (ns - rates.OVERLAP * work if ns > work else ns * rates.OVERLAP) / (4.0 * side * side)


def calibrate(backend: CpuBackend, ordinal: int, step: Callable[[str], None]) -> Rates:
    """Measures and fits. The rates are those of one thread, and how much all threads gain.

    Everything is measured in turns, in rounds: a moment in which the machine is slow spoils no rate alone.
    """
    isa = detect()
    made = suite()
    options = Options(cache=False, profile=True, threads=1)
    step("compiling")
    width = CORE_PANELS * isa.gemm_vectors * isa.lanes
    small = probes.call()
    with ThreadPoolExecutor(cpus.usable()) as pool:  # most of it is LLVM's, which leaves the interpreter alone
        whole = pool.submit(backend.compile, made.graph, options, ordinal)
        deep = [pool.submit(Product, backend, ordinal, k, width) for k in CORE_DEPTHS]
        wide = {level: pool.submit(Product, backend, ordinal, n, n) for level, n in READ_SIDES.items()}
        called = pool.submit(backend.compile, small.graph, Options(cache=False), ordinal)
        executable = whole.result()
        few, many = (each.result() for each in deep)
        squares = {level: each.result() for level, each in wide.items()}
        call = called.result().bind({})
    assert isinstance(executable, CpuExecutable)
    executable.set_params(made.params)
    inputs = list(made.inputs.values())
    threads = executable.loaded.pool.threads
    heights = range(1, isa.gemm_rows + 1)
    kernels = Meter(executable, {}, inputs, 1)
    lower, higher = ({rows: product.meter(rows) for rows in heights} for product in (few, many))
    reads = {level: product.meter(1) for level, product in squares.items()}
    shared = squares["l3"].meter(1, threads)
    alone, together = squares["l2"].meter(MANY_ROWS), squares["l2"].meter(MANY_ROWS, threads)
    calls: list[int] = []
    for number in range(ROUNDS):
        step(f"round {number + 1} of {ROUNDS}")
        for meter in (kernels, *lower.values(), *higher.values(), *reads.values(), shared, alone, together):
            meter.round()
        calls += times_ns(lambda: call(list(small.inputs)), BUDGET_S / ROUNDS)
    step("fitting")
    known = core_rates({r: m.ns() for r, m in lower.items()}, {r: m.ns() for r, m in higher.items()}, isa)
    known |= {f"read_{at}_ns": read_rate(READ_SIDES[at], meter.ns(), 1, known, isa) for at, meter in reads.items()}
    works = rates.works(made.graph, options, {})
    found = rates.fit(works, kernels.kernels_ns(), streams_of(kernels.bound.profile(inputs)), known)
    found["threads_count"] = float(threads)
    if threads > 1:
        found["threads_compute_gain"] = max(alone.ns() / together.ns(), 1.0)
        both = read_rate(READ_SIDES["l3"], shared.ns(), threads, known, isa)
        found["threads_memory_gain"] = max(known["read_l3_ns"] / both, 1.0)
        found["fork_ns"] = FORK_NS
    found["launch_ns"] = float(np.quantile(calls, TYPICAL)) + CHECKS_NS
    return found
