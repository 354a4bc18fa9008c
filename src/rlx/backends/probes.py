"""Small graphs whose times tell what a device can do: what calibration runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlx.ir.graph import Graph, Value
from rlx.ir.graph import call as call_op
from rlx.ir.literal import Array
from rlx.ops import build

F32 = np.float32


@dataclass(frozen=True)
class ProbeGraph:
    """A graph, its input and weights, and how much it does, in the unit that `name` speaks of."""

    name: str
    graph: Graph
    inputs: tuple[Array, ...]
    params: dict[str, Array]
    amount: float

    @property
    def bytes_in(self) -> int:
        return sum(a.nbytes for a in self.inputs)

    @property
    def bytes_out(self) -> int:
        return sum(v.type.nbytes() for v in self.graph.outputs.values())


Body = Callable[..., Value]


def _probe(name: str, amount: float, body: Body, shape: tuple[int, ...], *weights: tuple[int, ...]) -> ProbeGraph:
    """A graph of one input of `shape` and params of `weights`."""
    graph = Graph(name)
    random = np.random.default_rng(0)
    x = graph.input("x", shape, "f32")
    params = {f"w{i}": (random.standard_normal(w) * 0.1).astype(F32) for i, w in enumerate(weights)}
    graph.output(body(x, *(graph.param(key, value.shape, "f32") for key, value in params.items())))
    return ProbeGraph(name, graph, (random.standard_normal(shape).astype(F32),), params, amount)


GEMMS = (
    (1, 512, 512), (1, 1024, 2048), (4, 768, 768), (16, 384, 384), (512, 64, 64), (64, 512, 256), (128, 384, 384),
    (128, 1536, 384), (256, 32, 288), (512, 512, 512), (2048, 64, 64),
)  # fmt: skip
"""(m, n, k) of the products that are measured."""
BATCHED = ((12, 16, 16, 32), (12, 128, 128, 32))
CONVS = ((20, 64, 64), (64, 16, 16), (40, 32, 64))
"""(height and width, channels in, channels out) of 3x3 convolutions."""
STREAMS = (1 << 14, 1 << 18, 1 << 21)
"""Elements of one read and one write."""


def call() -> ProbeGraph:
    """The least that a call takes."""
    return _probe("call", 1, lambda x: x + 1.0, (64,))


CHAIN = 12


def chain() -> ProbeGraph:
    """Kernels that do next to nothing, one behind the other."""

    def body(x: Value, *weights: Value) -> Value:
        for w in weights:
            x = x @ w
        return x

    return _probe("chain", CHAIN, body, (4, 16), *[(16, 16)] * CHAIN)


def upload() -> ProbeGraph:
    count = 1 << 20
    return _probe("upload", 4.0 * count, lambda x: x[:64] + 1.0, (count,))


def download() -> ProbeGraph:
    shape = (1 << 14, 64)
    return _probe("download", 4.0 * math.prod(shape), lambda x: build.broadcast_to(x, shape=shape) + 1.0, (64,))


def gemm(m: int, n: int, k: int) -> ProbeGraph:
    return _probe(f"gemm_{m}x{n}x{k}", 2.0 * m * n * k, lambda x, w: x @ w, (m, k), (k, n))


def batched(batch: int, m: int, n: int, k: int) -> ProbeGraph:
    def body(x: Value) -> Value:
        return build.dot_general(x, x, lhs_contract=(2,), rhs_contract=(2,), lhs_batch=(0,), rhs_batch=(0,))

    return _probe(f"batched_{batch}x{m}x{n}x{k}", 2.0 * batch * m * n * k, body, (batch, m, k))


def conv(size: int, channels: int, outputs: int) -> ProbeGraph:
    flops = 2.0 * size * size * 9 * channels * outputs
    return _probe(
        f"conv_{size}x{channels}x{outputs}", flops, lambda x, w: convolution(x, w), (1, channels, size, size),
        (outputs, channels, 3, 3),
    )  # fmt: skip


def depthwise() -> ProbeGraph:
    channels, size = 64, 40
    return _probe(
        "depthwise", 2.0 * 9 * channels * size * size, lambda x, w: convolution(x, w, groups=channels),
        (1, channels, size, size), (channels, 1, 3, 3),
    )  # fmt: skip


def convolution(x: Value, w: Value, stride: int = 1, groups: int = 1) -> Value:
    """A 3x3 convolution with a border of zeros."""
    return build.conv(
        x, w, strides=(stride, stride), dilations=(1, 1), low=(1, 1), high=(1, 1), groups=groups
    )  # fmt: skip


def stream(count: int) -> ProbeGraph:
    """Weights are there already, and sums are small: the rest of a run is reading."""

    def body(x: Value, w: Value) -> Value:
        return build.reduce_sum(build.abs(w - x), axes=(1,))

    return _probe(f"stream_{count}", count / 2, body, (1,), (count // 64, 64))


PLAIN, HEAVY, DIVIDES = 32, 4, 8
"""How many instructions the probes `plain`, `heavy` and `divide` have for an element."""


def _plain(x: Value) -> Value:
    for number in range(PLAIN // 2):
        x = build.abs(x - 0.125 * number)
    return x


def _heavy(x: Value) -> Value:
    return build.exp(build.tanh(build.erf(build.exp(-x))))


def _divide(x: Value) -> Value:
    for _ in range(DIVIDES):
        x = 1.0 / (x * x + 1.0)
    return x


def _gather(x: Value) -> Value:
    (count,) = x.shape
    assert isinstance(count, int)
    places = build.iota(x.graph, shape=(count,), axis=0, dtype="i32")
    return build.gather(x, build.bitwise_and(places * 40503, count - 1), axis=0)


def _rank(x: Value) -> Value:
    made = call_op("top_k", x, k=8, axis=1)
    assert isinstance(made, tuple)
    return made[0]


def _sum_rows(x: Value) -> Value:
    return build.reduce_sum(x, axes=(1,))


NESTS: dict[str, tuple[Body, tuple[int, ...]]] = {
    "heavy": (_heavy, (1 << 10, 64)),
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
KINDS = ("heavy", "divide", "reduce_8192x64", "reduce_256x2048", "gather", "rank", "running")
"""Those of them that kernels of other devices are priced by."""
SIMPLE: dict[str, tuple[Body, tuple[int, ...]]] = {"plain": (_plain, (1 << 10, 64))}
"""For devices whose code is made elsewhere. In ours the instructions of `heavy` are plain ones."""


def nest(name: str) -> ProbeGraph:
    """The loop between a small input and small sums, so that little of a run is copies: its operand is made on the
    device of weights, or where they would only be read of numbers that cost nothing."""
    body, shape = (NESTS | SIMPLE)[name]
    counted = name in ("plain", "heavy", "divide")
    return _inside(name, body, (4 * shape[0], *shape[1:]) if counted else shape, counted)


def spread() -> ProbeGraph:
    """`heavy` on few elements: what it takes more than its share is what sharing it among threads takes."""
    return _inside("spread", _heavy, (64, 64), counted=True)


def _inside(name: str, body: Body, shape: tuple[int, ...], counted: bool) -> ProbeGraph:
    def whole(x: Value, *weights: Value) -> Value:
        if counted:
            row, column = (build.iota(x.graph, shape=shape, axis=axis, dtype="f32") for axis in (0, 1))
            made = body(row * 1e-5 + column * 1e-3 + x)
        else:
            made = body(build.abs(weights[0] - x))
        return build.reduce_max(made, axes=(made.rank - 1,)) if math.prod(shape) == made.type.size else made

    return _probe(name, math.prod(shape), whole, (1,), *([] if counted else [shape]))


TRIPS = 24
STATES = (32, 256)


def loop(state: int) -> ProbeGraph:
    """A recurrent net: trips with a small state do next to nothing but start, those with a larger one multiply."""

    def body(x: Value, *weights: Value) -> Value:
        made = call_op("rnn", x, *weights)
        assert isinstance(made, tuple)
        return made[0]

    shapes = (1, state, state), (1, state, state), (1, 2 * state), (1, 1, state)
    return _probe(f"loop_{state}", TRIPS, body, (TRIPS, 1, state), *shapes)


def all_probes() -> list[ProbeGraph]:
    """Everything but `call` and the copies, which the others are freed from."""
    return [
        chain(), *(gemm(*s) for s in GEMMS), *(batched(*s) for s in BATCHED), *(conv(*s) for s in CONVS), depthwise(),
        *(stream(n) for n in STREAMS), *(nest(name) for name in (*SIMPLE, *KINDS)), spread(),
    ]  # fmt: skip
