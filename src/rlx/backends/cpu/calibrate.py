"""Rates of the CPU: one program of many small kernels is timed kernel by kernel, and the rates are fitted to it.

The kernels are made by the same passes and plans as those of any model, so what is fitted is what will be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from rlx.backends import probes
from rlx.backends.base import Bound, KernelTime, Options, Rates
from rlx.backends.cpu import cpus, rates
from rlx.backends.cpu.executable import CpuBound, CpuExecutable
from rlx.backends.cpu.isa import Isa, detect
from rlx.backends.generic import quickest_ns
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ops import build

if TYPE_CHECKING:
    from rlx.backends.cpu import CpuBackend

PRODUCTS = ((128, 384, 384), (256, 32, 288), (64, 64, 64))
RUNS, SHORT_RUNS = 8, 40
TURNS = 4
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

    def ns(self, m: int, threads: int = 1) -> float:
        """The quickest of several runs."""
        self.executable.threads = threads
        return float(_runs(self.executable.bind({"m": m}), [np.full((m, self.k), 0.5, np.float32)]).sum())


def core_rates(few: Product, many: Product, isa: Isa) -> Rates:
    """A step of k by the height of the tile, and what a tile takes beside: from two depths, weights in cache."""
    steps, beside = {}, []
    for rows in range(1, isa.gemm_rows + 1):
        less, more = few.ns(rows) / CORE_PANELS, many.ns(rows) / CORE_PANELS
        steps[rows] = max((more - less) / (many.k - few.k), 0.05)
        beside.append(less - few.k * steps[rows])
    # a tile costs something, and each of its vectors
    cells = np.array([rows * isa.gemm_vectors for rows in steps])
    cell_ns, tile_ns = np.polyfit(cells, beside, 1)
    return rates.cores_ns(steps, max(float(tile_ns), 1.0), max(float(cell_ns), 0.1), isa)


def read_rates(product: Product, threads: int, known: Rates, isa: Isa) -> float:
    """ns a byte of square weights that a product with one row reads."""
    side = product.n
    panels = -(-side // (isa.gemm_vectors * isa.lanes))
    work = (
        panels
        * (
            side * known[f"gemm_1x{isa.gemm_vectors}_ns"]
            + known["gemm_tiles_ns"]
            + isa.gemm_vectors * known["gemm_cells_ns"]
        )
        / threads
    )
    ns = product.ns(1, threads)
    return (ns - rates.OVERLAP * work if ns > work else ns * rates.OVERLAP) / (4.0 * side * side)


def calibrate(backend: CpuBackend, ordinal: int, step: Callable[[str], None]) -> Rates:
    """Measures and fits. The rates are those of one thread, and how much all threads gain."""
    isa = detect()
    made = suite()
    options = Options(cache=False, profile=True, threads=1)
    step("compiling")
    width = CORE_PANELS * isa.gemm_vectors * isa.lanes
    with ThreadPoolExecutor(cpus.usable()) as pool:  # most of it is LLVM's, which leaves the interpreter alone
        whole = pool.submit(backend.compile, made.graph, options, ordinal)
        deep = [pool.submit(Product, backend, ordinal, k, width) for k in CORE_DEPTHS]
        wide = {level: pool.submit(Product, backend, ordinal, n, n) for level, n in READ_SIDES.items()}
        executable = whole.result()
        few, many = (each.result() for each in deep)
        squares = {level: each.result() for level, each in wide.items()}
    assert isinstance(executable, CpuExecutable)
    step("products")
    known = core_rates(few, many, isa)
    step("reading")
    known |= {f"read_{level}_ns": read_rates(product, 1, known, isa) for level, product in squares.items()}
    executable.set_params(made.params)
    inputs = list(made.inputs.values())
    step("one thread")
    bound = executable.bind({})
    runs = _runs(bound, inputs)
    step("fitting")
    found = rates.fit(rates.works(made.graph, options, {}), runs, streams_of(bound.profile(inputs)), known)
    step("all threads")
    threads = executable.loaded.pool.threads
    found["threads_count"] = float(threads)
    if threads > 1:
        square = squares["l2"]
        # in turns: what else the machine does should hit both
        pairs = [(square.ns(MANY_ROWS), square.ns(MANY_ROWS, threads)) for _ in range(TURNS)]
        found["threads_compute_gain"] = max(min(a for a, _ in pairs) / min(b for _, b in pairs), 1.0)
        found["threads_memory_gain"] = max(known["read_l3_ns"] / read_rates(squares["l3"], threads, known, isa), 1.0)
        found["fork_ns"] = FORK_NS
    step("a call")
    small = probes.call()
    call = backend.compile(small.graph, Options(cache=False), ordinal).bind({})
    found["launch_ns"] = quickest_ns(lambda: call(list(small.inputs))) + CHECKS_NS
    return found


def _runs(bound: Bound, inputs: list[Array]) -> Array:
    """The quickest time of each kernel. Results lie where they lay before, as what goes from kernel to kernel does."""
    assert isinstance(bound, CpuBound)
    out = bound(inputs)
    first = [[k.total_ns for k in bound.profile(inputs, out)] for _ in range(RUNS)]
    more = SHORT_RUNS if sum(first[-1]) < SHORT_NS else 0
    runs: Array = np.array(first + [[k.total_ns for k in bound.profile(inputs, out)] for _ in range(more)])
    return np.asarray(runs.min(0))
