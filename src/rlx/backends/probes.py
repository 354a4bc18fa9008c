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
    (1, 512, 512), (1, 1024, 2048), (4, 768, 768), (16, 384, 384), (64, 64, 64), (64, 512, 256), (128, 384, 384),
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
    return _probe(f"stream_{count}", count, lambda x: x * 2.0, (count // 64, 64))


def _heavy(x: Value) -> Value:
    return build.erf(build.tanh(build.erf(x)))


def _divide(x: Value) -> Value:
    for _ in range(8):
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
    "reduce_2048x64": (_sum_rows, (2048, 64)),
    "reduce_128x2048": (_sum_rows, (128, 2048)),
    "reduce_columns": (lambda x: build.reduce_sum(x, axes=(0,)), (128, 512)),
    "softmax": (lambda x: build.softmax(x, axis=1), (512, 256)),
    "softmax_short": (lambda x: build.softmax(x, axis=1), (512, 32)),
    "transpose": (lambda x: x.transpose(1, 0), (512, 512)),
    "gather": (_gather, (1 << 16,)),
    "rank": (_rank, (64, 1024)),
    "running": (lambda x: build.cumsum(x, axis=1), (64, 1024)),
}
"""Loops that are no products: what they do, and the shape of what they do it to."""


def nest(name: str) -> ProbeGraph:
    body, shape = NESTS[name]
    return _probe(name, math.prod(shape), body, shape)


TRIPS, STATE = 24, 32


def loop() -> ProbeGraph:
    """A loop whose trips do next to nothing: a recurrent net of few elements."""

    def body(x: Value, *weights: Value) -> Value:
        made = call_op("rnn", x, *weights)
        assert isinstance(made, tuple)
        return made[0]

    return _probe(
        "loop", TRIPS, body, (TRIPS, 1, STATE), (1, STATE, STATE), (1, STATE, STATE), (1, 2 * STATE), (1, 1, STATE)
    )


def all_probes() -> list[ProbeGraph]:
    """Everything but `call` and the copies, which the others are freed from."""
    return [
        chain(), *(gemm(*s) for s in GEMMS), *(batched(*s) for s in BATCHED), *(conv(*s) for s in CONVS), depthwise(),
        *(stream(n) for n in STREAMS), *(nest(name) for name in NESTS),
    ]  # fmt: skip
