"""Nets of convolutions on a GPU, in rlx and in torch, with the same random weights: ms a call, and how far results are
from f64.

    python -m benchmarks.gpu_convnets [--only NAME] [--precision f32] [--device cuda] [--compile] [--strict]
                                      [--kernels] [--list]

Nets have the shapes of ResNet-50 and MobileNetV3-large, batch norms folded into convolutions, and need no files. Each
call gives pictures that lie on the device and waits for results there (`call`), or begins and ends with NumPy
(`numpy`). `in a row` is the time a call of many that are waited for once. torch has channels last, eagerly and as a
CUDA graph of the same calls, and with --compile by `torch.compile(mode="reduce-overhead")`. Its convolutions of f32
round operands to TF32, unless --strict. All take turns. --kernels shows kernels with their times, --list what they are
without a GPU.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

import rlx
from rlx import ops
from rlx.ir.graph import Graph, Value

Array = np.ndarray[Any, Any]
SIDE = 224
CLASSES = 1000


class Layers(ABC):
    """What nets are made of; each of the two libraries has a class of them, for values of its own."""

    @abstractmethod
    def conv(self, x: Any, outputs: int, window: int, stride: int = 1, groups: int = 1) -> Any: ...

    @abstractmethod
    def linear(self, x: Any, outputs: int) -> Any: ...

    @abstractmethod
    def relu(self, x: Any) -> Any: ...

    @abstractmethod
    def hard_swish(self, x: Any) -> Any: ...

    @abstractmethod
    def hard_sigmoid(self, x: Any) -> Any: ...

    @abstractmethod
    def max_pool(self, x: Any) -> Any: ...

    @abstractmethod
    def mean(self, x: Any) -> Any: ...


@dataclass
class Drawn:
    """Random weights in the order in which a net asks for them."""

    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def weight(self, *shape: int) -> Array:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        return (self.random.standard_normal(shape, np.float32) * scale).astype(np.float32)

    def bias(self, outputs: int) -> Array:
        return self.random.standard_normal(outputs, np.float32) * np.float32(0.1)


@dataclass
class OfRlx(Layers):
    graph: Graph
    drawn: Drawn = field(default_factory=Drawn)

    def _param(self, data: Array) -> Value:
        return self.graph.param(f"w{len(self.graph.params)}", data.shape, "f32", data=data)

    def conv(self, x: Value, outputs: int, window: int, stride: int = 1, groups: int = 1) -> Value:
        weight = self._param(self.drawn.weight(outputs, int(x.shape[1]) // groups, window, window))
        bias = self._param(self.drawn.bias(outputs).reshape(outputs, 1, 1))
        pads = (window // 2,) * 2
        y: Value = ops.conv(x, weight, strides=(stride,) * 2, dilations=(1, 1), low=pads, high=pads, groups=groups)
        return y + bias

    def linear(self, x: Value, outputs: int) -> Value:
        weight = self._param(self.drawn.weight(outputs, int(x.shape[1])))
        y: Value = x @ weight.transpose(1, 0) + self._param(self.drawn.bias(outputs))
        return y

    def relu(self, x: Value) -> Value:
        y: Value = ops.relu(x)
        return y

    def hard_swish(self, x: Value) -> Value:
        return x * self.hard_sigmoid(x)

    def hard_sigmoid(self, x: Value) -> Value:
        y: Value = ops.minimum(ops.relu(x + 3.0), 6.0) * (1 / 6)
        return y

    def max_pool(self, x: Value) -> Value:
        y: Value = ops.reduce_window(
            x, combine="max", window=(3, 3), strides=(2, 2), dilations=(1, 1), low=(1, 1), high=(1, 1)
        )
        return y

    def mean(self, x: Value) -> Value:
        y: Value = ops.reduce_mean(x, axes=(2, 3), keepdims=True)
        return y

    def flat(self, x: Value) -> Value:
        return x.reshape(x.shape[0], x.shape[1])


def resnet_50(of: Any, x: Any) -> Any:
    x, channels = of.max_pool(of.relu(of.conv(x, 64, 7, 2))), 64
    for level, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 << level
        for block in range(blocks):
            stride = 2 if level and not block else 1
            y = of.relu(of.conv(x, inner, 1))
            y = of.conv(of.relu(of.conv(y, inner, 3, stride)), 4 * inner, 1)
            skip = x if block else of.conv(x, 4 * inner, 1, stride)
            x, channels = of.relu(y + skip), 4 * inner
    assert channels == 2048
    return of.linear(of.flat(of.mean(x)), CLASSES)


# window, expansion, outputs, squeeze, hard swish, stride
MOBILE_BLOCKS = (
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip


def mobilenet_v3(of: Any, x: Any) -> Any:
    x, channels = of.hard_swish(of.conv(x, 16, 3, 2)), 16
    for window, wide, outputs, squeeze, swish, stride in MOBILE_BLOCKS:
        act = of.hard_swish if swish else of.relu
        y = x if wide == channels else act(of.conv(x, wide, 1))
        y = act(of.conv(y, wide, window, stride, wide))
        if squeeze:
            s = of.relu(of.conv(of.mean(y), -(-wide // 32) * 8, 1))
            y = y * of.hard_sigmoid(of.conv(s, wide, 1))
        y = of.conv(y, outputs, 1)
        x, channels = (x + y if stride == 1 and channels == outputs else y), outputs
    x = of.flat(of.mean(of.hard_swish(of.conv(x, 960, 1))))
    return of.linear(of.hard_swish(of.linear(x, 1280)), CLASSES)


Net = Callable[[Any, Any], Any]
NETS: dict[str, Net] = {"ResNet-50": resnet_50, "MobileNetV3": mobilenet_v3}
Precision = Literal["f16", "f32_fast", "f32"]
PRECISIONS: tuple[Precision, ...] = ("f16", "f32_fast", "f32")
CASES: dict[str, tuple[Net, int, Precision]] = {
    f"{name} x{batch} {precision}": (net, batch, precision)
    for name, net in NETS.items()
    for precision in PRECISIONS
    for batch in (1, 64)
}


def graph_of(net: Net, batch: int, side: int = SIDE) -> Graph:
    """The program of a net: f32[batch, 3, side, side] in, f32[batch, CLASSES] out."""
    graph = Graph(net.__name__)
    graph.output(net(OfRlx(graph), graph.input("pictures", (batch, 3, side, side))), name="logits")
    return graph


def pictures(batch: int, side: int = SIDE) -> Array:
    return np.random.default_rng(1).standard_normal((batch, 3, side, side), np.float32)


def of_torch(net: Net, dtype: Any) -> Callable[[Any], Any]:
    """The net as one writes it in torch; its weights are drawn at the first call."""
    import torch

    function = torch.nn.functional
    held: list[Any] = []

    class OfTorch(Layers):
        def __init__(self) -> None:
            self.drawn, self.number = Drawn(), 0

        def _next(self, make: Callable[[], Array]) -> Any:
            if self.number == len(held):
                made = torch.from_numpy(make()).to("cuda", dtype)
                held.append(made.to(memory_format=torch.channels_last) if made.dim() == 4 else made)
            self.number += 1
            return held[self.number - 1]

        def conv(self, x: Any, outputs: int, window: int, stride: int = 1, groups: int = 1) -> Any:
            weight = self._next(lambda: self.drawn.weight(outputs, x.shape[1] // groups, window, window))
            bias = self._next(lambda: self.drawn.bias(outputs))
            return function.conv2d(x, weight, bias, stride, window // 2, 1, groups)

        def linear(self, x: Any, outputs: int) -> Any:
            weight = self._next(lambda: self.drawn.weight(outputs, x.shape[1]))
            return function.linear(x, weight, self._next(lambda: self.drawn.bias(outputs)))

        def relu(self, x: Any) -> Any:
            return function.relu(x)

        def hard_swish(self, x: Any) -> Any:
            return function.hardswish(x)

        def hard_sigmoid(self, x: Any) -> Any:
            return function.hardsigmoid(x)

        def max_pool(self, x: Any) -> Any:
            return function.max_pool2d(x, 3, 2, 1)

        def mean(self, x: Any) -> Any:
            return x.mean((2, 3), keepdim=True)

        def flat(self, x: Any) -> Any:
            return x.flatten(1)

    return lambda x: net(OfTorch(), x)


def case(name: str, device: str, compiled: bool, kernels: bool, rounds: int) -> None:
    import torch

    from benchmarks.gpu_models import DTYPES, compared, graphed, print_kernels

    net, batch, precision = CASES[name]
    graph, host = graph_of(net, batch), pictures(batch)
    session = rlx.Session(device, precision=precision)
    model = session.compile(graph)
    given = torch.from_numpy(host).cuda()
    x = given.to(DTYPES[precision]).to(memory_format=torch.channels_last)
    run = of_torch(net, DTYPES[precision])
    with torch.no_grad():
        exact = of_torch(net, torch.float64)(given.double()).cpu().numpy()
        run(x)
        replay = graphed(run, x)
        made = torch.compile(run, mode="reduce-overhead") if compiled else None
        times = compared(
            lambda: model.run([given], outputs="device"), lambda: model.run([host]), lambda: run(x), replay,
            made and (lambda: made(x)), rounds,
        )  # fmt: skip
        theirs = run(x).float().cpu().numpy()
    ours = np.asarray(model.run([host])[0])
    errors = [float(np.abs(result - exact).max() / np.abs(exact).max()) for result in (ours, theirs)]
    shown = ", ".join(f"{label} {ms:.3f}" for label, ms in times.items())
    print(f"{name:24} {shown} ms; error {errors[0]:.1e} (torch {errors[1]:.1e})", flush=True)
    if kernels:
        profiled = session.with_options(replace(session.options, profile=True))
        print_kernels(profiled.compile(graph), [host])


def listed(name: str) -> Iterator[str]:
    """What each kernel of a case is, on an H200."""
    from rlx.backends.base import Options
    from rlx.backends.cuda.build import NVIDIAS, build

    net, batch, precision = CASES[name]
    plan = build(graph_of(net, batch), Options(precision=precision), NVIDIAS.on("sm_90a"))
    for part, kernels in (("once", plan.program.prepare), ("run", plan.program.main)):
        for kernel in kernels:
            (variant, *_) = plan.module.variants[id(kernel)]
            tiles = "x".join(f"{tile.size}{tile.axis}" for tile in variant.shader.schedule.tiles)
            extents = "x".join(map(str, kernel.work.extents()))
            kind = type(kernel.work).__name__
            yield f"{part:4} {kind:12} {extents:32} {variant.shader.positions:>7} {tiles:32} {kernel.name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument("--precision", choices=PRECISIONS, help="cases of this one alone")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--strict", action="store_true", help="f32 in torch's convolutions, and no TF32")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--rounds", type=int, default=100)
    chosen = parser.parse_args()
    if not chosen.list:
        import torch

        torch.backends.cudnn.allow_tf32 = not chosen.strict
        driver = torch.cuda.get_device_name(0)
        print(f"{driver}, torch {torch.__version__}, CUDA {torch.version.cuda}, rlx {rlx.__version__}")
    taken = {name: precision for name, (_, _, precision) in CASES.items() if chosen.only in name}
    for name, precision in taken.items():
        if chosen.precision not in (None, precision):
            continue
        if chosen.list:
            print(name, *listed(name), sep="\n")
        else:
            case(name, chosen.device, chosen.compile, chosen.kernels, chosen.rounds)


if __name__ == "__main__":
    main()
