"""Measures the rates of the CPU: one program of many small kernels is timed kernel by kernel, and rates are fitted to
the times.

The kernels come from the same passes and schedules as those of any model, so the fit covers what predictions need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from rlx.backends.base import Options
from rlx.backends.cpu import rates, topology
from rlx.backends.cpu.executable import CpuBound, CpuExecutable
from rlx.backends.cpu.isa import detect
from rlx.backends.cpu.work import KernelWork
from rlx.codegen.simd.isa import Isa
from rlx.cost import microbenchmarks as probes
from rlx.cost.calibrate import BUDGET_S, TYPICAL, times_ns
from rlx.cost.estimate import Rates
from rlx.cost.fit import OVERLAP
from rlx.ir.graph import Graph, Value, call
from rlx.ir.literal import Array
from rlx.ops import build

if TYPE_CHECKING:
    from rlx.backends.cpu import CpuBackend

PRODUCTS = ((128, 384, 384), (256, 32, 288), (64, 64, 64))
CONVS = ((20, 64, 64), (64, 16, 16), (40, 32, 64))
"""(height and width, channels in, channels out) of 3x3 convolutions."""
TRANSFORMS = ((64, 512), (256, 64))
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
        params = []
        for i, weight in enumerate(weights):
            key = f"{name}.{i}"
            params.append(self.graph.param(key, weight, "f32"))
            self.params[key] = self.random.standard_normal(weight, np.float32) * np.float32(0.1)
        first = len(self.graph.nodes)
        y = body(x, *params)
        for node in self.graph.nodes[first:]:
            node.source = name
        self.graph.output(y, name=f"{name}.out")


def suite() -> Suite:
    """What is measured."""
    measured_suite = Suite()
    measured_suite.add("cold", lambda x: x * 2.0, (STREAM_ELEMENTS[-1] // 64, 64))
    for m, n, k in PRODUCTS:
        measured_suite.add(f"gemm_{m}x{n}x{k}", lambda x, w: x @ w, (m, k), (k, n))
    for width in (16, 32):
        measured_suite.add(f"narrow{width}", lambda x, w: x @ w, (256, 256), (256, width))
    for batch, m, _, k in probes.BATCHED:
        measured_suite.add(f"batched{m}", _squares, (batch, m, k))
    for size, channels, outputs in CONVS:
        weight = (outputs, channels, 3, 3)
        stride = 2 if size == STRIDED else 1  # convolutions take long to compile: one of each kind
        measured_suite.add(
            f"conv{size}x{channels}", lambda x, w, s=stride: probes.convolution(x, w, s), (1, channels, size, size),
            weight,
        )  # fmt: skip
    measured_suite.add("depthwise", lambda x, w: probes.convolution(x, w, groups=64), (1, 64, 40, 40), (64, 1, 3, 3))
    for name, (body, shape) in probes.NESTS.items():
        measured_suite.add(name, body, shape)
    for name, body in TINY.items():  # what they take is starts
        measured_suite.add(f"tiny {name}", body, (2, 24))
    for rows, length in TRANSFORMS:
        measured_suite.add(f"transform{length}", _spectrum, (rows, length))
    measured_suite.add("attention", _attention, (4, 64, 32))
    measured_suite.add("attention_long", _attention, (2, 256, 64))
    return measured_suite


TINY: dict[str, Callable[[Value], Value]] = {
    "sum": lambda x: x + 1.0,
    "product": lambda x: x * x,
    "difference": lambda x: x - 2.0,
    "greatest": lambda x: build.reduce_max(x, axes=(1,)),
}
STRIDED = 20
COPIES, MIDDLE = 3, 2


def copies() -> Graph:
    """Copies of copies, of any size. A concatenation is a kernel for each operand; of those for the large ones the
    middle one, number MIDDLE, reads what was just written, and writes what is read next."""
    graph = Graph("copies")
    x = graph.input("x", ("n", 64), "f32")
    for _ in range(COPIES):
        x = build.concat(x, x[:1], axis=0)
    graph.output(x)
    return graph


def _squares(x: Value) -> Value:
    return build.dot_general(x, x, lhs_contract=(2,), rhs_contract=(2,), lhs_batch=(0,), rhs_batch=(0,))


def _spectrum(x: Value) -> Value:
    re, im = call("rfft", x)
    return re + im


def _attention(x: Value) -> Value:
    heads = x.reshape(1, *x.shape)
    return build.attention(heads, heads, heads, scale=0.2)


BODY_ELEMENTS = 1 << 12
"""Of each loop over bodies: they stay in the nearest cache."""
CHAIN_STEPS = 56


def _chain(x: Value) -> Value:
    """Products and sums, each of the one before: more of them than a core looks ahead."""
    for _ in range(CHAIN_STEPS):
        x = x * 0.5 + 0.25
    return x


BODIES: dict[str, Callable[[Value], Value]] = {
    "exponential": lambda x: build.exp(-x), "gelu": build.gelu, "sine": build.sin,
    "sigmoid": lambda x: build.sigmoid(build.exp(-x * x)) * x + 1.0,
    **{name: probes.NESTS[name][0] for name in ("heavy", "divide")},
}  # fmt: skip
"""Maps that do much to an element."""
BOUNDS: dict[str, Callable[[Value], Value]] = {
    "contiguous": lambda x: build.reduce_sum(x, axes=(0,)), "stored": lambda x: x + 1.0,
    "library": lambda x: build.exp(x.cast("f64")),
    "divided": lambda x: build.div(x.cast("i32") + 1000, x.cast("i32") + 9), "waits": _chain,
}  # fmt: skip
"""Loops that one of these bounds."""


def _pool(x: Value) -> Value:
    square = x.reshape(1, 1, 64, BODY_ELEMENTS // 64)
    return build.average_pool(square, window=(2, 2), strides=(2, 2), dilations=(1, 1), low=(0, 0), high=(0, 0))


SHORT_ROWS: tuple[Callable[[Value], Value], ...] = (
    lambda x: build.reduce_sum(x.reshape(BODY_ELEMENTS // 16, 16), axes=(1,)), _pool
)  # fmt: skip
"""Loops that mostly begin rows, and join the lanes of their sums: in different proportions."""


def bodies() -> Graph:
    graph = Graph("bodies")
    rows = {f"rows {number}": body for number, body in enumerate(SHORT_ROWS)}
    for name, body in (BODIES | BOUNDS | rows).items():
        graph.output(body(graph.input(name, (BODY_ELEMENTS,), "f32")), name=f"{name} out")
    return graph


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
        self.out = bound(inputs)  # results stay in the same memory, like values that pass from kernel to kernel

    def round(self) -> None:
        """Some runs, more of them if they are short; after one that does not count, as others used the caches."""
        whole = sum(k.total_ns for k in self.bound.profile(self.inputs, self.out))
        for _ in range(SHORT_RUNS if whole < SHORT_NS else RUNS):
            self.times.append([k.total_ns for k in self.bound.profile(self.inputs, self.out)])

    def kernels_ns(self) -> Array:
        """What each kernel takes."""
        return np.asarray(np.quantile(np.array(self.times), TYPICAL, axis=0))

    def ns(self, kernel: int) -> float:
        return float(self.kernels_ns()[kernel])


class Products:
    """Products with weights of known sizes, for any number of rows. One runs at a time, the others have no rows: its
    memory lies in the nearest cache that holds it."""

    def __init__(self, backend: CpuBackend, ordinal: int, sizes: Sequence[tuple[int, int]]) -> None:
        graph = Graph("products")
        self.sizes = list(sizes)
        for number, (k, n) in enumerate(sizes):
            x, w = graph.input(f"x{number}", (f"m{number}", k), "f32"), graph.param(f"w{number}", (k, n), "f32")
            graph.output(x @ w, name=f"y{number}")
        executable = _compiled(backend, graph, Options(cache=False, profile=True), ordinal)
        executable.set_params({f"w{i}": np.full(size, 0.5, np.float32) for i, size in enumerate(sizes)})
        self.executable = executable

    def meter(self, number: int, m: int, threads: int = 1) -> Meter:
        rows = [m if i == number else 0 for i in range(len(self.sizes))]
        inputs = [np.full((rows[i], k), 0.5, np.float32) for i, (k, _) in enumerate(self.sizes)]
        return Meter(self.executable, {f"m{i}": count for i, count in enumerate(rows)}, inputs, threads)


def core_rates(few_ns: Mapping[int, float], many_ns: Mapping[int, float], isa: Isa) -> Rates:
    """A step of k by the height of the tile, and what a tile takes beside: from the times of products of two depths by
    their rows, weights in cache."""
    steps: dict[int, float] = {}
    beside = []
    more, most = CORE_DEPTHS
    for rows in sorted(few_ns, reverse=True):
        # a lower tile takes no longer than a higher one: a measurement that says otherwise was disturbed
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
    return (ns - OVERLAP * work if ns > work else ns * OVERLAP) / (4.0 * side * side)


def _compiled(backend: CpuBackend, graph: Graph, options: Options, ordinal: int) -> CpuExecutable:
    executable = backend.compile(graph, options, ordinal)
    assert isinstance(executable, CpuExecutable)
    return executable


def _bodies_meter(backend: CpuBackend, options: Options, ordinal: int) -> Meter:
    random = np.random.default_rng(0)
    inputs: list[Array] = [
        random.standard_normal(BODY_ELEMENTS, np.float32) for _ in range(len(BODIES) + len(BOUNDS) + len(SHORT_ROWS))
    ]
    return Meter(_compiled(backend, bodies(), options, ordinal), {}, inputs, 1)


def body_rates(works: Sequence[KernelWork], times_ns: Array, known: Rates) -> Rates:
    """The rates of bodies, from the kernels of `bodies` and what they take."""
    count, rows = len(BODIES), len(BODIES) + len(BOUNDS)
    bounds = dict(zip(BOUNDS, zip(works[count:rows], map(float, times_ns[count:rows]))))
    found = rates.fit_bodies(works[:count], times_ns[:count], bounds, known)
    return found | rates.fit_rows(works[rows:], times_ns[rows:], known | found)


def calibrate(backend: CpuBackend, ordinal: int, step: Callable[[str], None]) -> Rates:
    """Measures and fits. The rates are those of one thread, and how much all threads gain.

    Everything is measured in turns, in rounds: a moment in which the machine is slow spoils no rate alone.
    """
    isa = detect()
    measured_suite, small = suite(), probes.call()
    options = Options(cache=False, profile=True, threads=1)
    step("compiling")
    width = CORE_PANELS * isa.gemm_vectors * isa.lanes
    few, many = range(len(CORE_DEPTHS))
    at = {level: len(CORE_DEPTHS) + i for i, level in enumerate(READ_SIDES)}
    sizes = [*((k, width) for k in CORE_DEPTHS), *((side, side) for side in READ_SIDES.values())]
    # most of the time is LLVM's, which does not hold the interpreter's lock
    with ThreadPoolExecutor(topology.usable()) as pool:
        whole = pool.submit(_compiled, backend, measured_suite.graph, options, ordinal)
        squares = pool.submit(Products, backend, ordinal, sizes)
        copied = pool.submit(_compiled, backend, copies(), options, ordinal)
        mapped = pool.submit(_bodies_meter, backend, options, ordinal)
        called = pool.submit(backend.compile, small.graph, Options(cache=False), ordinal)
        executable, copier, maps = whole.result(), copied.result(), mapped.result()
        products, call = squares.result(), called.result().bind({})
    executable.set_params(measured_suite.params)
    threads = executable.loaded.pool.threads
    heights = range(1, isa.gemm_rows + 1)
    kernels = Meter(executable, {}, list(measured_suite.inputs.values()), 1)
    streams = {
        n // 64: Meter(copier, {"n": n // 64}, [np.zeros((n // 64, 64), np.float32)], 1) for n in STREAM_ELEMENTS
    }
    lower, higher = ({rows: products.meter(number, rows) for rows in heights} for number in (few, many))
    reads = {level: products.meter(number, 1) for level, number in at.items()}
    shared = products.meter(at["l3"], 1, threads)
    alone, together = products.meter(at["l2"], MANY_ROWS), products.meter(at["l2"], MANY_ROWS, threads)
    calls: list[int] = []
    single = [kernels, maps, *streams.values(), *lower.values(), *higher.values(), *reads.values()]
    for number in range(ROUNDS):
        step(f"round {number + 1} of {ROUNDS}")
        for meter in (*single, shared, alone, together):
            meter.round()
        calls += times_ns(lambda: call(list(small.inputs)), BUDGET_S / ROUNDS)
    step("fitting")
    known = core_rates({r: m.ns(few) for r, m in lower.items()}, {r: m.ns(many) for r, m in higher.items()}, isa)
    for level, meter in reads.items():
        known[f"read_{level}_ns"] = read_rate(READ_SIDES[level], meter.ns(at[level]), 1, known, isa)
    for rows, meter in streams.items():
        nbytes = rates.works(copies(), options, {"n": rows})[MIDDLE].total_bytes
        known[f"warm_{nbytes:.0f}_ns"] = meter.ns(MIDDLE) / nbytes
    known |= body_rates(rates.works(bodies(), options, {}), maps.kernels_ns(), known)
    fitted = rates.fit(rates.works(measured_suite.graph, options, {}), kernels.kernels_ns(), known)
    fitted["threads_count"] = float(threads)
    if threads > 1:
        fitted["threads_compute_gain"] = max(alone.ns(at["l2"]) / together.ns(at["l2"]), 1.0)
        both = read_rate(READ_SIDES["l3"], shared.ns(at["l3"]), threads, known, isa)
        fitted["threads_memory_gain"] = max(known["read_l3_ns"] / both, 1.0)
        fitted["fork_ns"] = FORK_NS
    fitted["launch_ns"] = float(np.quantile(calls, TYPICAL)) + CHECKS_NS
    return fitted
