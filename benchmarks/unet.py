"""A U-Net as diffusion models have it, the way torch exports it: built here, and timed against other runtimes.

    python -m benchmarks.unet [--peers onnxruntime] [--threads 1] [--size 128] [--seconds 60] [--save unet.onnx]

About 2,500 nodes: 200 convolutions of 32 channels and more, group norms written as the instance norm of a reshape with
scale and shift behind it, swish as a product with a sigmoid, explicit pads before convolutions that halve, nearest
resizing before those that double, skips joined by concatenation, the time's sinusoids and their projections, and
attention over all positions written by einsum, `bct,bcs->bts` and `bts,bcs->bct`. Weights are random. Every runtime has
a process of its own; they take turns. `--kernels N` prints our N longest kernels instead.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
GROUPS = 8
WIDTHS = (1, 2, 2, 3)
"""Channels of the levels, in multiples of the first one's."""
BLOCKS = 8
"""Residual blocks of a level on the way down; there is one more on the way up."""
ATTENTION = (32, 16)
"""Widths of images at which positions attend to each other."""
HEADS = 2


@dataclass
class Exporter:
    """An ONNX graph in the making: nodes, and weights by name."""

    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    constants: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def held(self, array: Array, name: str = "") -> str:
        """An initializer."""
        name = name or f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int, gain: float = 1.0) -> str:
        fan = math.prod(shape[1:]) if len(shape) > 1 else 1
        return self.held(self.random.standard_normal(shape, np.float32) * np.float32(gain / math.sqrt(fan)))

    def constant(self, value: Any, dtype: str) -> str:
        """A constant node of its own at each place, as exporters write them."""
        return self.add("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def reshape(self, x: str, *shape: int) -> str:
        return self.add("Reshape", x, self.constant(shape, "int64"))

    # layers

    def conv(self, x: str, channels: int, outputs: int, window: int = 3, *, stride: int = 1, pad: int = -1) -> str:
        pad = window // 2 if pad < 0 else pad
        return self.add(
            "Conv", x, self.weight(outputs, channels, window, window), self.weight(outputs, gain=0.1),
            kernel_shape=[window, window], pads=[pad] * 4, strides=[stride] * 2,
        )  # fmt: skip

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self.add("Gemm", x, self.weight(outputs, inputs), self.weight(outputs, gain=0.1), transB=1)

    def group_norm(self, x: str, batch: int, channels: int, size: int) -> str:
        """As torch exports it: an instance norm over [batch, groups, rest]."""
        flat = self.reshape(x, 0, GROUPS, -1)
        ones, zeros = (self.held(np.full(GROUPS, fill, np.float32)) for fill in (1, 0))
        normed = self.add("InstanceNormalization", flat, ones, zeros, epsilon=1e-5)
        back = self.reshape(normed, batch, channels, size, size)
        scale, shift = (self.weight(channels, 1, 1) for _ in range(2))
        return self.add("Add", self.add("Mul", back, scale), shift)

    def swish(self, x: str) -> str:
        return self.add("Mul", x, self.add("Sigmoid", x))


@dataclass
class UNet:
    """The net's layers over an exporter; values are (name, channels, width of the image)."""

    out: Exporter
    batch: int
    base: int
    time: str = ""
    time_width: int = 0

    def block(self, x: str, channels: int, outputs: int, size: int) -> str:
        """Norm, swish, convolution, the time added to each channel, and the same again, beside a skip."""
        out = self.out
        h = out.conv(out.swish(out.group_norm(x, self.batch, channels, size)), channels, outputs)
        time = out.linear(out.swish(self.time), self.time_width, outputs)
        for axis in (2, 3):
            time = out.add("Unsqueeze", time, out.constant([axis], "int64"))
        h = out.add("Add", h, time)
        h = out.conv(out.swish(out.group_norm(h, self.batch, outputs, size)), outputs, outputs)
        skip = x if channels == outputs else out.conv(x, channels, outputs, 1)
        return out.add("Add", skip, h)

    def attention(self, x: str, channels: int, size: int) -> str:
        """Over all positions, by einsum, the scale's root on either side."""
        out, batch = self.out, self.batch
        width, places = channels // HEADS, size * size
        normed = out.reshape(out.group_norm(x, batch, channels, size), batch, channels, places)
        parts = out.add("Conv", normed, out.weight(3 * channels, channels, 1), out.weight(3 * channels, gain=0.1),
                        kernel_shape=[1])  # fmt: skip
        parts = out.reshape(parts, batch * HEADS, 3 * width, places)
        at = [out.constant([i * width], "int64") for i in range(4)]
        q, k, v = (out.add("Slice", parts, at[i], at[i + 1], out.constant([1], "int64")) for i in range(3))
        root = width**-0.25
        q, k = (out.add("Mul", side, out.constant(root, "float32")) for side in (q, k))
        scores = out.add("Softmax", out.add("Einsum", q, k, equation="bct,bcs->bts"), axis=-1)
        mixed = out.reshape(out.add("Einsum", scores, v, equation="bts,bcs->bct"), batch, channels, places)
        projected = out.add("Conv", mixed, out.weight(channels, channels, 1, gain=0.1), out.weight(channels, gain=0.1),
                       kernel_shape=[1])  # fmt: skip
        return out.add("Add", x, out.reshape(projected, batch, channels, size, size))

    def embed(self, step: str) -> None:
        """Sinusoids of the time, through two layers."""
        out, half = self.out, self.base // 2
        rates = np.exp(-math.log(10000) * np.arange(half, dtype=np.float32) / half)
        angles = out.add("Mul", out.add("Unsqueeze", step, out.constant([1], "int64")), out.held(rates[None]))
        waves = out.add("Concat", out.add("Cos", angles), out.add("Sin", angles), axis=-1)
        self.time_width = 4 * self.base
        hidden = out.swish(out.linear(waves, self.base, self.time_width))
        self.time = out.linear(hidden, self.time_width, self.time_width)

    def build(self, image: str, size: int) -> str:
        out = self.out
        channels = self.base
        x = out.conv(image, 3, channels)
        skips = [(x, channels)]
        for level, multiple in enumerate(WIDTHS):
            for _ in range(BLOCKS):
                x, channels = self.block(x, channels, self.base * multiple, size), self.base * multiple
                x = self.attention(x, channels, size) if size in ATTENTION and len(skips) % 4 == 0 else x
                skips.append((x, channels))
            if level < len(WIDTHS) - 1:
                # one row and one column behind the image, as the asymmetric pad of these nets is exported
                padded = out.add("Pad", x, out.constant([0, 0, 0, 0, 0, 0, 1, 1], "int64"), out.constant(0, "float32"))
                x, size = out.conv(padded, channels, channels, stride=2, pad=0), size // 2
                skips.append((x, channels))
        x = self.block(x, channels, channels, size)
        x = self.block(self.attention(x, channels, size), channels, channels, size)
        for level, multiple in reversed(list(enumerate(WIDTHS))):
            for _ in range(BLOCKS + 1):
                skip, more = skips.pop()
                concatenated = out.add("Concat", x, skip, axis=1)
                x, channels = (
                    self.block(concatenated, channels + more, self.base * multiple, size),
                    self.base * multiple,
                )
                x = self.attention(x, channels, size) if size in ATTENTION and len(skips) % 4 == 0 else x
            if level:
                scales = out.constant([1, 1, 2, 2], "float32")
                x = out.add("Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric",
                            nearest_mode="floor")  # fmt: skip
                size *= 2
                x = out.conv(x, channels, channels)
        return out.conv(out.swish(out.group_norm(x, self.batch, channels, size)), channels, 3)


def model(size: int = 128, batch: int = 1, base: int = 32) -> ModelProto:
    """The net for images of this width and height."""
    out = Exporter()
    net = UNet(out, batch, base)
    net.embed("step")
    last = net.build("image", size)
    inputs = [
        helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, size, size]),
        helper.make_tensor_value_info("step", TensorProto.FLOAT, [batch]),
    ]
    results = [helper.make_tensor_value_info(last, TensorProto.FLOAT, [batch, 3, size, size])]
    graph = helper.make_graph(out.nodes, "unet", inputs, results, out.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def inputs_of(size: int, batch: int = 1) -> dict[str, Array]:
    random = np.random.default_rng(1)
    image = random.standard_normal((batch, 3, size, size), np.float32)
    return {"image": image, "step": np.full(batch, 250, np.float32)}


def longest(path: Path, inputs: dict[str, Array], threads: int, count: int) -> None:
    """Our longest kernels."""
    from rlx.model import read
    from rlx.runtime.profiler import profile
    from rlx.runtime.session import Session

    profiled = profile(read(path).graph, inputs, Session("cpu", threads=threads), 5)
    print(f"{profiled.total_ns / 1e6:.2f} ms")
    for kernel in profiled.by_time()[:count]:
        print(f"{kernel.total_ns / 1e6:8.3f} ms {kernel.calls:4} x {kernel.name}  {', '.join(kernel.sources[:3])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", default="onnxruntime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--kernels", type=int, default=0)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    proto = model(args.size)
    kinds = [node.op_type for node in proto.graph.node]
    print(f"{len(kinds)} nodes, {kinds.count('Conv')} convolutions, {kinds.count('Einsum') // 2} times attention")
    with tempfile.TemporaryDirectory() as folder:
        path = args.save or Path(folder) / "unet.onnx"
        path.write_bytes(proto.SerializeToString())
        inputs = inputs_of(args.size)
        if args.kernels:
            longest(path, inputs, args.threads, args.kernels)
            return
        from rlx.cli.baselines import Case
        from rlx.cli.compare import race

        case = Case(model=str(path), inputs=inputs, threads=args.threads, device="cpu", onnx=str(path))
        timings = race(["rlx", *args.peers.split(",")], case, args.seconds, together=False)
        for timing in timings:
            outcome = f"{timing.median_ms:.1f} ms, {timing.ratio:.2f} of ours" if timing.ran else timing.why
            print(f"{timing.name:12} {outcome}")


if __name__ == "__main__":
    main()
