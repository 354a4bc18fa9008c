"""What choices of shaders take on a WebGPU device: a decoder's attention, f16 as the driver has it, subgroups.

    python -m benchmarks.wgpu_shaders [--device vulkan] [--runs 20]

Each program is run both ways, in turns; times are the least of the runs, in milliseconds, and the greatest difference
between the two results. Operands are weights, so little is moved; `call` is a program of one addition.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.claims import Dispatch
from rlx.backends.wgpu import BACKENDS
from rlx.backends.wgpu.executable import WgpuExecutable
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array

Shape = tuple[int, ...]
Body = Callable[..., Value]
SWITCHES = ("RLX_WGPU_HALVES", "RLX_WGPU_SUBGROUPS")


@dataclass(frozen=True)
class Way:
    """How a program is compiled: flags, and the policy for composites."""

    name: str
    flags: Mapping[str, str] = field(default_factory=dict)
    options: Options = field(default_factory=lambda: Options(cache=False))


COMMON = Options(cache=False, dispatch=Dispatch("force-common"), disable=frozenset({"pack"}))
ATTENTION = (Way("decomposed", options=COMMON), Way("split"))
HALVES = (Way("integers", {"RLX_WGPU_HALVES": "0"}), Way("f16", {"RLX_WGPU_HALVES": "1"}))
SUBGROUPS = (Way("memory", {"RLX_WGPU_SUBGROUPS": "0"}), Way("subgroups", {"RLX_WGPU_SUBGROUPS": "1"}))


def attention(x: Value, q: Value, k: Value, v: Value) -> Value:
    return ops.attention(q + x, k, v)


def normalised(x: Value, w: Value, scale: Value) -> Value:
    return ops.layer_norm(w + x, scale, scale)


def programs() -> Iterator[tuple[str, tuple[Way, ...], str, Body, tuple[Shape, ...]]]:
    """(name, ways, dtype, body, shapes of weights)."""
    for heads, shared, queries, keys, features in (
        (12, 12, 1, 2048, 64), (32, 8, 1, 4096, 128), (12, 12, 8, 2048, 64), (32, 8, 1, 256, 128),
    ):  # fmt: skip
        shapes = ((1, heads, queries, features), *((1, shared, keys, features),) * 2)
        name = f"attention {heads} ({shared}) x {queries} x {keys} x {features}"
        yield name, ATTENTION, "f32", attention, shapes
        yield f"{name}, f16", HALVES, "f16", attention, shapes
    yield "gelu of 2^22", HALVES, "f16", lambda x, w: ops.gelu(w + x), ((2048, 2048),)
    yield "product of 1024", HALVES, "f16", lambda x, a, b: (a + x) @ b, ((1024, 1024),) * 2
    yield "softmax of 4096 x 4097", SUBGROUPS, "f32", lambda x, w: ops.softmax(w + x, axis=-1), ((4096, 4097),)
    yield "norm of 4096 x 768", SUBGROUPS, "f32", normalised, ((4096, 768), (768,))


class Program:
    """A program compiled one way. Its results are sums over rows: little for the host to read."""

    def __init__(self, device: str, way: Way, dtype: str, body: Body, shapes: tuple[Shape, ...]) -> None:
        graph, random = Graph("program"), np.random.default_rng(0)
        x = graph.input("x", (1,), dtype)
        weights = [graph.param(f"w{i}", shape, dtype) for i, shape in enumerate(shapes)]
        y = body(x, *weights)
        graph.output(ops.reduce_max(y, axes=(y.rank - 1,)))
        before = {name: os.environ.pop(name, None) for name in SWITCHES}
        os.environ.update(way.flags)
        try:
            self.made = BACKENDS[device]().compile(graph, way.options)
        finally:
            for name in SWITCHES:
                os.environ.pop(name, None)
            os.environ.update({name: value for name, value in before.items() if value is not None})
        self.made.set_params(
            {v.name: random.standard_normal(shape).astype(x.dtype.numpy) for v, shape in zip(weights, shapes)}
        )
        self.bound = self.made.bind({})
        self.input = np.zeros(1, x.dtype.numpy)
        self.best = float("inf")

    def run(self) -> Array:
        start = time.perf_counter()
        (result,) = self.bound([self.input])
        self.best = min(self.best, 1e3 * (time.perf_counter() - start))
        return result.astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="vulkan", choices=sorted(BACKENDS))
    parser.add_argument("--runs", type=int, default=20)
    chosen = parser.parse_args()
    call = Program(chosen.device, Way("call"), "f32", lambda x, w: w + x, ((8, 8),))
    assert isinstance(call.made, WgpuExecutable)
    device = call.made.device
    for _ in range(chosen.runs):
        call.run()
    print(f"{device.name}: {device.target()}, features {', '.join(device.features) or 'none'}; call {call.best:.3f}")
    for name, ways, dtype, body, shapes in programs():
        both = [Program(chosen.device, way, dtype, body, shapes) for way in ways]
        for _ in range(chosen.runs):
            first, second = (program.run() for program in both)
        times = ", ".join(f"{way.name} {program.best:.3f}" for way, program in zip(ways, both))
        print(f"{name}: {times}, apart {np.abs(first - second).max():.1e}", flush=True)


if __name__ == "__main__":
    main()
