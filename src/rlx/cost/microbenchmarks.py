"""Small graphs whose times show what a device can do: calibration runs them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Value
from rlx.ir.graph import call as call_op
from rlx.ir.literal import Array
from rlx.ops import build

F32 = np.float32


@dataclass(frozen=True)
class ProbeGraph:
    """A graph, its input and weights, and how much it does, in the unit that `name` speaks of; `on_device` if the
    inputs are there before a run."""

    name: str
    graph: Graph
    inputs: tuple[Array, ...]
    params: dict[str, Array]
    amount: float
    on_device: bool = False

    @property
    def bytes_in(self) -> int:
        """What a run takes to the device."""
        return 0 if self.on_device else sum(a.nbytes for a in self.inputs)

    @property
    def bytes_out(self) -> int:
        return sum(v.type.nbytes() for v in self.graph.outputs.values())


Body = Callable[..., Value]


LINE_BYTES, BEHIND_BYTES = 64, 16


def as_allocated(array: Array) -> Array:
    """A copy of the array that begins 16 bytes behind a line of the cache, where NumPy's allocator puts large arrays.

    XLA's processor takes arrays over without a copy if they begin with a line. Smaller ones do so one time in four,
    which times should not depend on.
    """
    raw = np.empty(array.nbytes + LINE_BYTES + BEHIND_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES + BEHIND_BYTES
    placed = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[...] = array
    return placed


def _probe(
    name: str, amount: float, body: Body, shape: tuple[int, ...], *weights: tuple[int, ...], dtype: DType = dtypes.f32
) -> ProbeGraph:
    """A graph of one input of `shape` and params of `weights`."""
    graph = Graph(name)
    random = np.random.default_rng(0)
    x = graph.input("x", shape, dtype)
    # numbers may repeat, which makes creating them much faster
    numbers = random.standard_normal(1 << 12).astype(F32) * F32(0.1 if dtype.is_float else 10)
    params = {f"w{i}": np.resize(numbers.astype(dtype.numpy), w) for i, w in enumerate(weights)}
    graph.output(body(x, *(graph.param(key, value.shape, dtype) for key, value in params.items())))
    inputs = (as_allocated(random.standard_normal(shape).astype(dtype.numpy)),)
    return ProbeGraph(name, graph, inputs, params, amount)


def _row(name: str, amount: float, shape: tuple[int, ...], *weights: tuple[int, ...]) -> ProbeGraph:
    """Products with all the weights, one behind the other."""

    def body(x: Value, *weights: Value) -> Value:
        for w in weights:
            x = x @ w
        return x

    return _probe(name, amount, body, shape, *weights)


GEMMS = (
    (1, 512, 512), (1, 768, 768), (4, 32, 16), (4, 768, 768), (16, 64, 64), (16, 384, 384), (16, 1536, 384),
    (32, 256, 128), (64, 512, 256), (128, 1536, 384), (256, 32, 288), (256, 64, 64), (512, 512, 512), (1000, 100, 300),
    (2048, 64, 64),
)  # fmt: skip
"""(m, n, k) of the products that are measured."""
BATCHED = ((12, 16, 16, 32), (12, 128, 128, 32))
CONVS: tuple[tuple[tuple[int, ...], int, int, tuple[int, ...]], ...] = (
    ((64, 64), 16, 16, (3, 3)), ((40, 40), 64, 32, (3, 3)), ((20, 20), 64, 64, (3, 3)), ((96, 96), 32, 4, (3, 3)),
    ((16,), 64, 64, (3,)), ((600,), 128, 128, (5,)), ((8,), 128, 64, (3,)), ((4000,), 128, 128, (3,)),
)  # fmt: skip
"""(positions, channels on either side, places of the window) of convolutions."""
STREAMS = (1 << 14, 1 << 18, 1 << 21)
"""Elements of one read and one write."""


def call() -> ProbeGraph:
    """The least that a call takes."""
    return _probe("call", 1, lambda x: x + 1.0, (64,))


CHAIN = 12


def chain() -> ProbeGraph:
    """Kernels that do next to nothing, one behind the other."""

    def body(x: Value, w: Value) -> Value:
        for _ in range(CHAIN):
            x = x @ w
        return x

    return _probe("chain", CHAIN, body, (4, 16), (16, 16))


def weights() -> ProbeGraph:
    """As `chain`, with a weight for each kernel."""
    return _row("weights", CHAIN, (4, 16), *[(16, 16)] * CHAIN)


def upload() -> ProbeGraph:
    count = 1 << 20
    return _probe("upload", 4.0 * count, lambda x: x[:64] + 1.0, (count,))


def download() -> ProbeGraph:
    shape = (1 << 14, 64)
    return _probe("download", 4.0 * math.prod(shape), lambda x: build.broadcast_to(x, shape=shape) + 1.0, (64,))


ROW = 4
"""Kernels of one probe of products: what a run takes once is told apart from what each takes."""


def gemm(m: int, n: int, k: int) -> ProbeGraph:
    """Products one behind the other, back and forth between k and n."""
    return _row(f"gemm_{m}x{n}x{k}", ROW * 2.0 * m * n * k, (m, k), *[(k, n), (n, k)] * (ROW // 2))


def single() -> ProbeGraph:
    """One product, of those that `gemm` has four of: what it takes more than a fourth of them, a run takes once."""
    m, n, k = SINGLE
    return _row("single", 2.0 * m * n * k, (m, k), (k, n))


SINGLE = (64, 512, 256)
"""One of GEMMS."""
OTHER_DTYPES = (dtypes.f64, dtypes.f16, dtypes.bf16, dtypes.i64, dtypes.i32, dtypes.i8, dtypes.c64)


def other(dtype: DType) -> ProbeGraph:
    """`single` of another dtype; bytes add up in 32 bits."""
    m, n, k = SINGLE
    sums = dtypes.i32 if dtype is dtypes.i8 else None

    def body(x: Value, w: Value) -> Value:
        return build.dot_general(x, w, lhs_contract=(1,), rhs_contract=(0,), sum_dtype=sums)

    return _probe(f"of_{dtype.name}", 2.0 * m * n * k, body, (m, k), (k, n), dtype=dtype)


MANY = (16, 1536, 384)
"""One of GEMMS, whose weights take longer to read than to multiply by where they come from far."""
MANY_ROW = 4 * ROW


def many() -> ProbeGraph:
    """More of them than `gemm` has, whose weights no cache of a processor of today holds together."""
    m, n, k = MANY
    return _row("many", MANY_ROW * 4.0 * n * k, (m, k), *[(k, n), (n, k)] * (MANY_ROW // 2))


NEAR_BYTES = ROW * 4.0 * MANY[1] * MANY[2]
"""Of the weights of the other probes of products, at most."""


def batched(batch: int, m: int, n: int, k: int) -> ProbeGraph:
    def body(x: Value) -> Value:
        return build.dot_general(x, x, lhs_contract=(2,), rhs_contract=(2,), lhs_batch=(0,), rhs_batch=(0,))

    return _probe(f"batched_{batch}x{m}x{n}x{k}", 2.0 * batch * m * n * k, body, (batch, m, k))


def conv(positions: tuple[int, ...], channels: int, others: int, window: tuple[int, ...]) -> ProbeGraph:
    """Convolutions one behind the other, back and forth between the numbers of channels."""

    def body(x: Value, *weights: Value) -> Value:
        for w in weights:
            x = convolution(x, w)
        return x

    place, taps = math.prod(positions), math.prod(window)
    return _probe(
        f"conv_{place}x{others}x{channels}x{taps}", ROW * 2.0 * place * taps * channels * others, body,
        (1, channels, *positions), *[(others, channels, *window), (channels, others, *window)] * (ROW // 2),
    )  # fmt: skip


WINDOWS = (3, 5)


def depthwise(window: int, together: int = 1) -> ProbeGraph:
    """Convolutions with square windows in groups of so many channels, one behind the other: depthwise ones if each
    channel is a group."""
    channels, size = 64, 40

    def body(x: Value, *weights: Value) -> Value:
        for w in weights:
            x = convolution(x, w, groups=channels // together)
        return x

    taps, name = window * window * together, "depthwise" if together == 1 else "grouped"
    return _probe(
        f"{name}_{taps}", ROW * 2.0 * taps * channels * size * size, body, (1, channels, size, size),
        *[(channels, together, window, window)] * ROW,
    )  # fmt: skip


def convolution(x: Value, w: Value, stride: int = 1, groups: int = 1) -> Value:
    """A convolution of channels-first images with odd windows and a border of zeros."""
    border = tuple(dims.floordiv(k, 2) for k in w.shape[2:])
    return build.conv(
        x, w, strides=(stride,) * len(border), dilations=(1,) * len(border), low=border, high=border, groups=groups
    )  # fmt: skip


def stream(count: int) -> ProbeGraph:
    """Weights are there already, and sums are small: the rest of a run is reading. There are several in a row."""

    def body(x: Value, *weights: Value) -> Value:
        for w in weights:
            x = build.reduce_sum(build.abs(w - x[:1]), axes=(1,))
        return x

    return _probe(f"stream_{count}", ROW * count / 2, body, (1,), *[(count // 64, 64)] * ROW)


PLAIN, HEAVY, DIVIDES, ANGLES = 8, 1, 1, 1
"""How many instructions `plain`, `heavy`, `divide` and `angle` have for an element: few, as loops of real programs
have, so that one element's do not wait for another's."""
MIXED_DIVIDES = 8


def _plain(x: Value) -> Value:
    for number in range(PLAIN // 2):
        x = build.abs(x - 0.125 * number)
    return x


def _exponential(x: Value) -> Value:
    return build.exp(-x)


def _reciprocal(x: Value) -> Value:
    return 1.0 / (x * x + 1.0)


def _mixed(x: Value) -> Value:
    return build.exp(build.tanh(build.erf(build.exp(-x))))


def _divide(x: Value) -> Value:
    for _ in range(MIXED_DIVIDES):
        x = _reciprocal(x)
    return x


def _gather(x: Value) -> Value:
    (count,) = x.shape
    assert isinstance(count, int)
    places = build.iota(x.graph, shape=(count,), axis=0, dtype="i32")
    return build.gather(x, build.bitwise_and(places * 40503, count - 1), axis=0)


def _rank(x: Value) -> Value:
    results = call_op("top_k", x, k=8, axis=1)
    assert isinstance(results, tuple)
    return results[0]


def _sum_rows(x: Value) -> Value:
    return build.reduce_sum(x, axes=(1,))


def _greatest_of_rows(x: Value) -> Value:
    """Little of it for the host to read."""
    return build.reduce_max(x, axes=(1,))


NESTS: dict[str, tuple[Body, tuple[int, ...]]] = {
    "heavy": (_mixed, (1 << 10, 64)),
    "divide": (_divide, (1 << 10, 64)),
    "reduce_8192x64": (_sum_rows, (8192, 64)),
    "reduce_256x2048": (_sum_rows, (256, 2048)),
    "reduce_columns": (lambda x: build.reduce_sum(x, axes=(0,)), (128, 512)),
    "softmax": (lambda x: build.softmax(x, axis=1), (512, 256)),
    "softmax_short": (lambda x: build.softmax(x, axis=1), (512, 32)),
    "transpose": (lambda x: x.transpose(1, 0), (512, 512)),
    "gather": (_gather, (1 << 18,)),
    "rank": (_rank, (64, 1024)),
    "running": (lambda x: build.cumsum(x, axis=1), (64, 1024)),
}
"""Loops that are no products: what they do, and the shape of what they do it to."""
KINDS = ("reduce_8192x64", "reduce_256x2048", "gather", "rank", "running")
"""Those of them that kernels of other devices are priced by."""
READS: dict[str, tuple[Body, tuple[int, ...]]] = {
    "sums_8192x64": (_sum_rows, (8192, 64)),
    "sums_1024x1024": (_sum_rows, (1024, 1024)),
    "columns_1024x1024": (lambda x: build.reduce_sum(x, axes=(0,)), (1024, 1024)),
    "place_256x1024": (lambda x: build.argmax(x, axis=1), (256, 1024)),
    "places_512x512": (lambda x: build.argmax(x, axis=0), (512, 512)),
    "running_64x1024": (lambda x: _greatest_of_rows(build.cumsum(x, axis=1)), (64, 1024)),
    "running_512x1024": (lambda x: _greatest_of_rows(build.cumsum(x, axis=1)), (512, 1024)),
    "downward_1024x1024": (lambda x: _greatest_of_rows(build.cumsum(x, axis=0)), (1024, 1024)),
}
"""Loops over what is on the device as it is, with nothing to work out before; "running" of KINDS is among them."""
SIMPLE: dict[str, tuple[Body, tuple[int, ...]]] = {
    "plain": (_plain, (1 << 10, 64)),
    "heavy": (_exponential, (1 << 10, 64)),
    "divide": (_reciprocal, (1 << 10, 64)),
    "angle": (build.sin, (1 << 10, 64)),
}
"""For devices whose code is made elsewhere: in ours such instructions are plain ones."""


COUNTED = ("plain", "heavy", "divide", "angle")
"""Of these a run with the loop a few times over is taken against one with it once."""
AGAIN = 4


def nest(name: str, times: int = 1) -> ProbeGraph:
    """The loop between a small input and small sums, so that little of a run is copies: its operand is made on the
    device of weights."""
    body, shape = (NESTS | SIMPLE)[name]
    if name in COUNTED:
        return _computed(name if times == 1 else f"{name}_again", body, (4 * shape[0], *shape[1:]), times)

    def whole(x: Value, weights: Value) -> Value:
        product = body(build.abs(weights - x))
        return build.reduce_max(product, axes=(product.rank - 1,)) if math.prod(shape) == product.type.size else product

    return _probe(name, math.prod(shape), whole, (1,), shape)


def read(name: str) -> ProbeGraph:
    """One of READS, of an input that is on the device."""
    body, shape = READS[name]
    return replace(_probe(name, math.prod(shape), body, shape), on_device=True)


SHARED = (1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16)
"""Elements of `heavy` among which that number is looked for from which on threads share a loop."""


def shared(count: int) -> ProbeGraph:
    return _computed(f"shared_{count}", _exponential, (count // 64, 64), 1)


def _computed(name: str, body: Body, shape: tuple[int, ...], times: int) -> ProbeGraph:
    """The loop, and a product behind it, into which no compiler draws it."""

    def whole(x: Value, weights: Value, last: Value) -> Value:
        product = weights - x
        for _ in range(times):
            product = body(product)
        return product @ last

    return _probe(name, math.prod(shape), whole, (1,), shape, (shape[1], 1))


def transform() -> ProbeGraph:
    """Of real signals, for devices that have transforms of their own."""
    rows, length = 64, 1024

    def body(x: Value) -> Value:
        spectrum = call_op("rfft", x)
        assert isinstance(spectrum, tuple)
        return build.reduce_max(spectrum[0] + spectrum[1], axes=(1,))

    return _probe("transform", transform_flops(rows, length // 2), body, (rows, length))


def transform_flops(rows: float, points: float) -> float:
    """Of fast Fourier transforms of so many complex points, as they are commonly counted."""
    return 5.0 * rows * points * math.log2(max(points, 2.0))


TRIPS = 24
LOOPS = (("gru", 32), ("gru", 96), ("lstm", 192))
"""Recurrent nets, and their states: the first tells what starts take."""


def loop(op: str, state: int) -> ProbeGraph:
    """A recurrent net: trips with a small state do next to nothing but start, those with a larger one multiply."""

    def body(x: Value, *weights: Value) -> Value:
        results = call_op(op, x, *weights)
        assert isinstance(results, tuple)
        return results[0]

    gates = {"gru": 3, "lstm": 4}[op] * state
    states = [(1, 1, state)] * (2 if op == "lstm" else 1)
    shapes = (1, gates, state), (1, gates, state), (1, 2 * gates), *states
    return _probe(f"loop_{op}_{state}", TRIPS, body, (TRIPS, 1, state), *shapes)


def all_probes(reads_in_place: bool) -> list[ProbeGraph]:
    """Everything but `call` and the copies, which the others are freed from; READS where kernels read in place."""
    kinds = [name for name in KINDS if name != "running"] if reads_in_place else KINDS
    reads = [read(name) for name in READS] if reads_in_place else []
    return [
        chain(), weights(), *(gemm(*s) for s in GEMMS), *(batched(*s) for s in BATCHED), *(conv(*s) for s in CONVS),
        *(depthwise(w) for w in WINDOWS), depthwise(WINDOWS[0], 2), *(stream(n) for n in STREAMS),
        *(nest(name) for name in (*SIMPLE, *kinds)), *reads, *(nest(name, AGAIN) for name in COUNTED),
        *(shared(n) for n in SHARED), single(), many(), *(other(dtype) for dtype in OTHER_DTYPES),
    ]  # fmt: skip
