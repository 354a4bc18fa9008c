"""Predicted against measured times of one kernel of each class, relative to what a device's classes have in common.

    python -m benchmarks.prices [--devices cpu,xla,vulkan] [--only SUBSTRING] [--rounds 5] [--calibrate]

The last column is how many times too dear (above 1) or too cheap (below 1) a class is, next to the median class. A run
is as a user makes one, with the copies to a device and back, and is predicted with these. The last line names the
classes that are off by more than 2.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx
from rlx.backends.base import Options
from rlx.cost.microbenchmarks import as_allocated
from rlx.device import calibration, registry
from rlx.device.choice import Chooser
from rlx.device.policy import DevicePolicy
from rlx.errors import RlxError
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ops.shorthand import one_hot
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.program import Program

BAR = 2.0
SLICE_S = 0.1
"""Of a class in a round, at most once it has had a run."""
MOST_S = 2.0
"""A class whose run takes longer is left out."""


@dataclass(frozen=True)
class Class:
    """A kind of kernel: inputs and weights by dtype and shape, and the graph of them."""

    name: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    build: Callable[..., Value | tuple[Value, ...]]
    weights: tuple[tuple[str, tuple[int, ...]], ...] = ()
    most: int = 100
    """Integers are below this."""


def f32(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "f32", shape


def i64(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "i64", shape


def _products() -> Iterator[Class]:
    def product(x: Value, w: Value) -> Value:
        return x @ w

    for m, k, n in ((1, 2048, 2048), (4, 1024, 1024), (64, 512, 512), (512, 512, 512)):
        yield Class(f"product {m}x{k}x{n}", (f32(m, k),), product, (f32(k, n),))
    yield Class("product of two values", (f32(256, 256), f32(256, 256)), product)
    yield Class("products in a batch", (f32(16, 256, 64), f32(16, 64, 256)), product)
    yield Class("product, left transposed", (f32(256, 256), f32(256, 256)), lambda x, y: x.T @ y)
    yield Class("product f64", (("f64", (256, 256)),), product, (("f64", (256, 256)),))
    yield Class("product f16", (("f16", (256, 256)),), product, (("f16", (256, 256)),))
    yield Class("product f16 of two values", (("f16", (256, 256)), ("f16", (256, 256))), product)
    yield Class("product i32", (("i32", (128, 128)),), product, (("i32", (128, 128)),))
    yield Class("bytes by bytes", (("u8", (256, 256)), ("i8", (256, 256))), lambda x, y: x.cast("i32") @ y.cast("i32"))
    yield Class(
        "bytes by weights", (("u8", (256, 512)),), lambda x, w: x.cast("i32") @ w.cast("i32"), (("i8", (512, 512)),)
    )


def _convolutions() -> Iterator[Class]:
    def conv(groups: int = 1, stride: int = 1) -> Callable[..., Value]:
        return lambda x, w: rlx.conv(
            x, w, strides=(stride,) * 2, dilations=(1, 1), low=(1, 1), high=(1, 1), groups=groups
        )

    yield Class("convolution 3x3", (f32(1, 64, 56, 56),), conv(), (f32(64, 64, 3, 3),))
    yield Class("convolution 3x3, stride 2", (f32(1, 64, 56, 56),), conv(1, 2), (f32(64, 64, 3, 3),))
    yield Class("convolution of 3 channels", (f32(1, 3, 128, 128),), conv(1, 2), (f32(32, 3, 3, 3),))
    yield Class("convolution, 8 groups", (f32(1, 128, 28, 28),), conv(8), (f32(128, 16, 3, 3),))
    yield Class("convolution, groups of 2", (f32(1, 128, 28, 28),), conv(64), (f32(128, 2, 3, 3),))
    yield Class("depthwise convolution", (f32(1, 64, 56, 56),), conv(64), (f32(64, 1, 3, 3),))
    yield Class(
        "convolution 1x1",
        (f32(1, 128, 28, 28),),
        lambda x, w: rlx.conv(x, w, strides=(1, 1), dilations=(1, 1), low=(0, 0), high=(0, 0)),
        (f32(256, 128, 1, 1),),
    )
    yield Class(
        "transposed convolution",
        (f32(1, 32, 28, 28),),
        lambda x, w: rlx.conv_transpose(x, w, strides=(2, 2), dilations=(1, 1), low=(0, 0), high=(0, 0)),
        (f32(32, 32, 2, 2),),
    )
    yield Class(
        "max pool",
        (f32(1, 64, 56, 56),),
        lambda x: rlx.reduce_window(
            x, combine="max", window=(3, 3), strides=(2, 2), dilations=(1, 1), low=(0, 0), high=(0, 0)
        ),
    )
    yield Class(
        "average pool",
        (f32(1, 64, 56, 56),),
        lambda x: rlx.average_pool(x, window=(2, 2), strides=(2, 2), dilations=(1, 1), low=(0, 0), high=(0, 0)),
    )


def _attention() -> Iterator[Class]:
    def attend(**options: Any) -> Callable[..., Value]:
        return lambda q, k, v: rlx.attention(q, k, v, **options)

    heads = f32(1, 4, 512, 64)
    yield Class("attention", (heads,) * 3, attend())
    yield Class("causal attention", (heads,) * 3, attend(causal=True))
    yield Class("windowed attention", (heads,) * 3, attend(causal=True, window=64))
    yield Class("attention, grouped heads", (f32(1, 8, 512, 64), f32(1, 2, 512, 64), f32(1, 2, 512, 64)), attend())
    yield Class("attention of one query", (f32(1, 8, 1, 64), f32(1, 8, 4096, 64), f32(1, 8, 4096, 64)), attend())


def _rows() -> Iterator[Class]:
    square = f32(1024, 1024)
    yield Class("sum, last axis", (square,), lambda x: rlx.reduce_sum(x, axes=(1,)))
    yield Class("sum, first axis", (square,), lambda x: rlx.reduce_sum(x, axes=(0,)))
    yield Class("sum of all", (square,), lambda x: rlx.reduce_sum(x, axes=(0, 1)))
    yield Class("sum of 3 in the middle", (f32(1024, 3, 256),), lambda x: rlx.reduce_sum(x, axes=(1,)))
    yield Class("greatest, last axis", (square,), lambda x: rlx.reduce_max(x, axes=(1,)))
    yield Class("place of the greatest", (square,), lambda x: rlx.argmax(x, axis=1))
    yield Class("place of the greatest, first axis", (square,), lambda x: rlx.argmax(x, axis=0))
    yield Class("softmax", (square,), lambda x: rlx.softmax(x, axis=1))
    yield Class("softmax, first axis", (square,), lambda x: rlx.softmax(x, axis=0))
    yield Class("layer norm", (square,), lambda x, s, b: rlx.layer_norm(x, s, b, axes=(1,)), (f32(1024), f32(1024)))
    yield Class(
        "group norm", (f32(1, 64, 56, 56),), lambda x, s, b: rlx.group_norm(x, s, b, groups=8), (f32(64), f32(64))
    )
    yield Class("running sum", (square,), lambda x: rlx.cumsum(x, axis=1))
    yield Class("running sum, first axis", (square,), lambda x: rlx.cumsum(x, axis=0))


def _maps() -> Iterator[Class]:
    square = f32(1024, 1024)
    yield Class("add", (square, square), lambda x, y: x + y)
    yield Class("add f16", (("f16", (1024, 1024)),) * 2, lambda x, y: x + y)
    yield Class("gelu", (square,), lambda x: rlx.gelu(x))
    yield Class("sin", (square,), lambda x: rlx.sin(x))
    yield Class("sigmoid of an exponential", (square,), lambda x: rlx.sigmoid(rlx.exp(-x * x)) * x + 1.0)
    yield Class("long mixed body", (square,), lambda x: rlx.exp(rlx.tanh(rlx.erf(rlx.exp(-x)))))
    yield Class("wide mixed body", (square,), lambda x: rlx.tanh(x * 0.5) * rlx.exp(-x * x) + rlx.erf(x) * x + 1.0)
    yield Class("quotient of i64", (i64(512, 512), i64(512, 512)), lambda x, y: rlx.div(x, y + 1))
    yield Class("transpose", (square,), lambda x: x.T)
    yield Class("transpose of heads", (f32(8, 128, 12, 64),), lambda x: x.transpose(0, 2, 1, 3))
    yield Class("concatenation", (f32(512, 512),) * 3, lambda *x: rlx.concat(*x, axis=1))
    yield Class("pad", (f32(16, 254, 254),), lambda x: rlx.pad(x, low=(0, 1, 1), high=(0, 1, 1), value=0.0))
    yield Class("slice", (square,), lambda x: x[:, 1:1001:2])
    yield Class(
        "resize", (f32(1, 16, 64, 64),), lambda x: rlx.resize(x, axes=(2, 3), sizes=(128, 128), up=(2, 2), down=(1, 1))
    )
    yield Class("tiny add", (f32(8),), lambda x: x + 1.0)


def _places() -> Iterator[Class]:
    yield Class("gathered rows", (i64(2048),), lambda i, w: rlx.gather(w, i, axis=0), (f32(10000, 256),), 10000)
    yield Class(
        "gathered elements", (f32(512, 512), i64(512, 512)), lambda x, i: rlx.gather_elements(x, i, axis=1), (), 512
    )
    yield Class(
        "scattered rows",
        (f32(4096, 64), i64(1024, 1), f32(1024, 64)),
        lambda x, i, u: rlx.scatter_nd(x, i, u),
        (),
        4096,
    )
    yield Class(
        "scattered sums",
        (f32(4096, 64), i64(1024, 1), f32(1024, 64)),
        lambda x, i, u: rlx.scatter_nd(x, i, u, combine="add"),
        (),
        4096,
    )
    yield Class("sort", (f32(64, 4096),), lambda x: rlx.sort(x, axis=1))
    yield Class("top 10", (f32(64, 4096),), lambda x: rlx.top_k(x, k=10, axis=1)[0])
    yield Class("one hot", (i64(4096),), lambda i: one_hot(i, 256, 1.0, 0.0), (), 256)


def _others() -> Iterator[Class]:
    sizes = (f32(1, 512, 128), f32(1, 512, 128), f32(1, 1024), f32(1, 1, 128), f32(1, 1, 128))
    yield Class("lstm", (f32(64, 1, 128),), lambda *v: rlx.lstm(*v)[0], sizes)
    yield Class("transform of 512", (f32(64, 512),), lambda x: rlx.rfft(x, axis=1))
    yield Class("transform of 65536", (f32(1, 1 << 16),), lambda x: rlx.rfft(x, axis=1))
    yield Class("cosine of a product", (f32(512, 512),), lambda x: x + rlx.cos(x * 3.0))


def classes() -> list[Class]:
    return [*_products(), *_convolutions(), *_attention(), *_rows(), *_maps(), *_places(), *_others()]


def _array(dtype: str, shape: tuple[int, ...], most: int, random: np.random.Generator) -> Array:
    of = dtypes.of(dtype)
    if of.is_integer:
        return random.integers(0, min(most, 100) if of.bits < 16 else most, shape).astype(of.numpy)
    return (random.standard_normal(shape) * 0.1).astype(of.numpy)


def graph_of(kind: Class) -> tuple[Graph, dict[str, Array]]:
    """The graph of a class and its inputs."""
    random = np.random.default_rng(0)
    graph = Graph(kind.name)
    values = [graph.input(f"x{i}", shape, dtype) for i, (dtype, shape) in enumerate(kind.inputs)]
    inputs = {f"x{i}": as_allocated(_array(*of, kind.most, random)) for i, of in enumerate(kind.inputs)}
    for i, (dtype, shape) in enumerate(kind.weights):
        values.append(graph.param(f"w{i}", shape, dtype, data=_array(dtype, shape, kind.most, random)))
    results = kind.build(*values)
    for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
        graph.output(value, name=f"y{i}")
    return graph, inputs


@dataclass
class Priced:
    """A class on a device: the program, its inputs, ns predicted, medians of rounds."""

    kind: Class
    program: CompiledGraph
    inputs: dict[str, Array]
    predicted: float
    times: list[float]

    @property
    def ratio(self) -> float:
        return self.predicted / statistics.median(self.times)

    def measure(self) -> None:
        times: list[float] = []
        start = time.perf_counter()
        while not times or (time.perf_counter() - start < SLICE_S and len(times) < 200):
            before = time.perf_counter_ns()
            self.program.run(self.inputs)
            times.append(float(time.perf_counter_ns() - before))
        self.times.append(statistics.median(times))


def priced(kind: Class, name: str) -> Priced:
    """A class, compiled and predicted. Raises RlxError."""
    graph, inputs = graph_of(kind)
    device = registry.parse(name)
    backend, ordinal = registry.backend(device)
    executable = backend.compile(graph, Options(), ordinal)
    program = CompiledGraph(Program(graph, name, executable, params=graph.data))
    signature = program.program.signature
    binding = dict(signature.binding(signature.arrays(inputs), program.params))
    chooser = Chooser(graph, DevicePolicy(strategy="cost_model").only(name), Options())
    chooser.admit(device)
    estimate, _ = chooser.estimate(device, binding)
    if estimate is None:
        raise RlxError("no rates")
    for _ in range(2):
        before = time.perf_counter()
        program.run(inputs)
        if time.perf_counter() - before > MOST_S:
            raise RlxError(f"a run takes over {MOST_S} s")
    return Priced(kind, program, inputs, estimate.run_ns, [])


def table(name: str, only: str, rounds: int) -> list[str]:
    """Prints the classes of a device, the dearest first, and gives those that are off."""
    rows: list[Priced] = []
    for kind in classes():
        if only not in kind.name:
            continue
        try:
            rows.append(priced(kind, name))
        except (RlxError, MemoryError) as error:
            print(f"  {kind.name} on {name}: left out: {str(error)[:160]}", file=sys.stderr)
    for _ in range(rounds):
        for row in rows:
            row.measure()
    usual = statistics.median(row.ratio for row in rows)
    print(f"\n{name}: predicted over measured {usual:.2f} in the middle")
    print(f"{'class':<36} {'predicted us':>13} {'measured us':>12} {'relative':>9}")
    off = []
    for row in sorted(rows, key=lambda row: -row.ratio):
        relative = row.ratio / usual
        taken = statistics.median(row.times) / 1e3
        print(f"{row.kind.name:<36} {row.predicted / 1e3:>13.1f} {taken:>12.1f} {relative:>9.2f}")
        if not 1 / BAR <= relative <= BAR:
            off.append(f"{row.kind.name} {relative:.2f}")
    return off


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cpu")
    parser.add_argument("--only", default="", help="classes whose names hold this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calibrate", action="store_true", help="measure the devices first, whatever is known of them")
    chosen = parser.parse_args()
    for name in chosen.devices.split(","):
        device = registry.parse(name)
        if chosen.calibrate:
            calibration.replace(calibration.measure(device))
        calibration.calibration(device)
        off = table(name, chosen.only, chosen.rounds)
        print(f"{name}: {len(off)} off by more than {BAR:g}: {'; '.join(off) or 'none'}", flush=True)


if __name__ == "__main__":
    main()
