"""Well-known nets with random weights, built here as torch exports them: BERT-base, ResNet-50, MobileNetV3-large,
ViT-B/16, and the U-Net of diffusion models for images of two sizes.

    python -m benchmarks.shaped NAME FILE

Batch norms are folded into convolutions, as exporters do for inference. Layer norms are one op, gelu is written with
erf, hard swish is one op, squeeze-and-excitation has its own hard sigmoid.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from benchmarks import unet
from benchmarks.unet import Array, Exporter

SHAPE = (1, 3, 224, 224)


class _Layers(Exporter):
    """Layers that more than one of the nets has."""

    def folded_conv(self, x: str, channels: int, outputs: int, window: int, stride: int = 1, groups: int = 1) -> str:
        return self.add(
            "Conv", x, self.weight(outputs, channels // groups, window, window, gain=1.4),
            self.weight(outputs, gain=0.1), kernel_shape=[window] * 2, pads=[window // 2] * 4, strides=[stride] * 2,
            group=groups,
        )  # fmt: skip

    def layer_norm(self, x: str, width: int) -> str:
        scale = self.held(np.ones(width, np.float32) + self.random.standard_normal(width, np.float32) / 10)
        return self.add("LayerNormalization", x, scale, self.weight(width, gain=0.1), axis=-1, epsilon=1e-12)

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        weight = self.random.standard_normal((inputs, outputs), np.float32) * np.float32(inputs**-0.5)
        product = self.add("MatMul", x, self.held(weight))
        return self.add("Add", product, self.weight(outputs, gain=0.1))

    def gelu(self, x: str) -> str:
        inner = self.add("Erf", self.add("Div", x, self.constant(2**0.5, "float32")))
        outer = self.add("Mul", x, self.add("Add", inner, self.constant(1, "float32")))
        return self.add("Mul", outer, self.constant(0.5, "float32"))

    def attention(self, x: str, rows: int, width: int, heads: int, mask: str = "") -> str:
        each = width // heads
        q, k, v = (self.reshape(self.dense(x, width, width), 0, rows, heads, each) for _ in range(3))
        q, v = (self.add("Transpose", side, perm=[0, 2, 1, 3]) for side in (q, v))
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 2, 3, 1]))
        scores = self.add("Div", scores, self.constant(each**0.5, "float32"))
        if mask:
            scores = self.add("Add", scores, mask)
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        joined = self.reshape(self.add("Transpose", mixed, perm=[0, 2, 1, 3]), 0, rows, width)
        return self.dense(joined, width, width)

    def feed_forward(self, x: str, width: int) -> str:
        return self.dense(self.gelu(self.dense(x, width, 4 * width)), 4 * width, width)


def bert_base(length: int = 128, width: int = 768, layers: int = 12, words: int = 30522) -> ModelProto:
    out = _Layers()
    wide = out.add("Cast", out.add("Unsqueeze", "attention_mask", out.constant([1, 2], "int64")), to=TensorProto.FLOAT)
    missing = out.add("Sub", out.constant(1, "float32"), wide)
    mask = out.add("Mul", missing, out.constant(np.finfo(np.float32).min, "float32"))
    table = out.held(out.random.standard_normal((words, width), np.float32) * np.float32(0.02))
    places = out.held(out.random.standard_normal((1, length, width), np.float32) * np.float32(0.02))
    x = out.layer_norm(out.add("Add", out.add("Gather", table, "input_ids"), places), width)
    for _ in range(layers):
        x = out.layer_norm(out.add("Add", x, out.attention(x, length, width, 12, mask)), width)
        x = out.layer_norm(out.add("Add", x, out.feed_forward(x, width)), width)
    inputs = [(name, TensorProto.INT64, (1, length)) for name in ("input_ids", "attention_mask")]
    return _model(out, x, inputs, "bert_base")


def vit_b16(width: int = 768, layers: int = 12) -> ModelProto:
    out = _Layers()
    rows = (SHAPE[2] // 16) ** 2 + 1
    patches = out.conv("pixels", 3, width, 16, stride=16, pad=0)
    flat = out.add("Transpose", out.reshape(patches, 0, width, rows - 1), perm=[0, 2, 1])
    first = out.held(out.random.standard_normal((1, 1, width), np.float32))
    x = out.add("Add", out.add("Concat", first, flat, axis=1), out.weight(1, rows, width))
    for _ in range(layers):
        x = out.add("Add", x, out.attention(out.layer_norm(x, width), rows, width, 12))
        x = out.add("Add", x, out.feed_forward(out.layer_norm(x, width), width))
    x = out.add("Gather", out.layer_norm(x, width), out.constant(0, "int64"), axis=1)
    return _model(out, out.linear(x, width, 1000), [("pixels", TensorProto.FLOAT, SHAPE)], "vit_b16")


def resnet_50() -> ModelProto:
    out = _Layers()
    x = out.add("Relu", out.folded_conv("pixels", 3, 64, 7, 2))
    x = out.add("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    channels = 64
    for level, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 << level
        for block in range(blocks):
            stride = 2 if level and not block else 1
            y = out.add("Relu", out.folded_conv(x, channels, inner, 1))
            y = out.add("Relu", out.folded_conv(y, inner, inner, 3, stride))
            y = out.folded_conv(y, inner, 4 * inner, 1)
            skip = x if block else out.folded_conv(x, channels, 4 * inner, 1, stride)
            x, channels = out.add("Relu", out.add("Add", y, skip)), 4 * inner
    x = out.add("Flatten", out.add("GlobalAveragePool", x), axis=1)
    return _model(out, out.linear(x, channels, 1000), [("pixels", TensorProto.FLOAT, SHAPE)], "resnet_50")


# window, expansion, outputs, squeeze, hard swish, stride
MOBILE_BLOCKS = (
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip


def mobilenet_v3() -> ModelProto:
    out = _Layers()
    x, channels = out.add("HardSwish", out.folded_conv("pixels", 3, 16, 3, 2)), 16
    for window, wide, outputs, squeeze, swish, stride in MOBILE_BLOCKS:
        act = "HardSwish" if swish else "Relu"
        y = x if wide == channels else out.add(act, out.folded_conv(x, channels, wide, 1))
        y = out.add(act, out.folded_conv(y, wide, wide, window, stride, groups=wide))
        if squeeze:
            less = -(-wide // 32) * 8
            s = out.add("Relu", out.folded_conv(out.add("GlobalAveragePool", y), wide, less, 1))
            y = out.add("Mul", y, out.add("HardSigmoid", out.folded_conv(s, less, wide, 1), alpha=1 / 6))
        y = out.folded_conv(y, wide, outputs, 1)
        x, channels = out.add("Add", x, y) if stride == 1 and channels == outputs else y, outputs
    x = out.add("HardSwish", out.folded_conv(x, channels, 960, 1))
    x = out.add("Flatten", out.add("GlobalAveragePool", x), axis=1)
    x = out.linear(out.add("HardSwish", out.linear(x, 960, 1280)), 1280, 1000)
    return _model(out, x, [("pixels", TensorProto.FLOAT, SHAPE)], "mobilenet_v3")


def _model(out: Exporter, result: str, inputs: list[tuple[str, int, tuple[int, ...]]], name: str) -> ModelProto:
    graph = helper.make_graph(
        [*out.nodes, helper.make_node("Identity", [result], ["y"])],
        name,
        [helper.make_tensor_value_info(*entry) for entry in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        out.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


NETS: dict[str, Callable[[], ModelProto]] = {
    "bert-base": bert_base, "resnet-50": resnet_50, "mobilenet-v3": mobilenet_v3, "vit-b16": vit_b16,
    "unet-64": lambda: unet.model(64), "unet-128": lambda: unet.model(128),
}  # fmt: skip


def path(name: str) -> Path:
    """The file of a net, written when first asked for."""
    file = Path(tempfile.gettempdir()) / f"rlx-shaped-{name}.onnx"
    if not file.exists():
        unfinished = file.with_suffix(".part")
        onnx.save(NETS[name](), unfinished)
        unfinished.replace(file)
    return file


def inputs(name: str) -> dict[str, Array]:
    """What to feed a net."""
    if name.startswith("unet-"):
        return unet.inputs_of(int(name.removeprefix("unet-")))
    random = np.random.default_rng(1)
    if name == "bert-base":
        ids: Any = random.integers(1000, 20000, (1, 128))
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return {"pixels": random.standard_normal(SHAPE).astype(np.float32)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NETS)
    parser.add_argument("file", type=Path)
    chosen = parser.parse_args()
    onnx.save(NETS[chosen.name](), chosen.file)


if __name__ == "__main__":
    main()
