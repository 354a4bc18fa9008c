"""Attributes beyond reason: sizes that overflow, axes that are not there, groups that do not divide."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from hostile.case import FAR, LEAST, MOST, F, Refused, case, graph, one

X = np.ones((1, 4, 8, 8), "f4")
W = np.ones((4, 4, 3, 3), "f4")
BAD = Refused("hostile")

WINDOWS: dict[str, dict[str, Any]] = {
    "pads-huge": {"pads": [FAR, 0, FAR, 0]}, "pads-overflow": {"pads": [MOST, 0, MOST, 0]},
    "pads-crop-all": {"pads": [-5, -5, -5, -5]}, "pads-least": {"pads": [LEAST, 0, 0, 0]}, "pads-few": {"pads": [1, 1]},
    "strides-zero": {"strides": [0, 1]}, "strides-negative": {"strides": [-1, 1]}, "strides-few": {"strides": [1]},
    "dilations-zero": {"dilations": [0, 1]}, "dilations-huge": {"dilations": [FAR, 1]},
    "dilations-most": {"dilations": [MOST, MOST]}, "auto-pad": {"auto_pad": "SOMEHOW"},
}  # fmt: skip
for op, operands, more in (
    ("Conv", (X, W), {}),
    ("ConvTranspose", (X, W), {}),
    ("MaxPool", (X,), {"kernel_shape": [3, 3]}),
    ("AveragePool", (X,), {"kernel_shape": [3, 3]}),
    ("LpPool", (X,), {"kernel_shape": [3, 3]}),
):
    for word, given in WINDOWS.items():
        if op == "ConvTranspose" and word == "pads-crop-all":
            continue  # negative pads of a transposed convolution make it larger
        one(f"{op}/{word}", op, *operands, run=(0,), want=BAD, opset=19, **more, **given)
one("Conv/strides-huge", "Conv", X, W, run=(0,), want=None, strides=[FAR, FAR])
one("ConvTranspose/strides-huge", "ConvTranspose", X, W, run=(0,), want=BAD, strides=[FAR, FAR])
one("ConvTranspose/strides-most", "ConvTranspose", X, W, run=(0,), want=BAD, strides=[MOST, MOST])
one("ConvTranspose/output-shape-huge", "ConvTranspose", X, W, run=(0,), want=BAD, output_shape=[FAR, FAR])
one("ConvTranspose/output-shape-negative", "ConvTranspose", X, W, run=(0,), want=BAD, output_shape=[-4, 8])
one("ConvTranspose/output-padding", "ConvTranspose", X, W, run=(0,), want=BAD, output_padding=[FAR, 0])
one("ConvTranspose/output-padding-negative", "ConvTranspose", X, W, run=(0,), want=BAD, output_padding=[-100, 0])
for group in (3, 0, -1, MOST, 2):
    one(f"Conv/group-{group}", "Conv", X, W, run=(0,), want=BAD, group=group)
one("ConvTranspose/group", "ConvTranspose", X, W, run=(0,), want=BAD, group=3)
one("Conv/kernel-larger", "Conv", X, np.ones((4, 4, 9, 9), "f4"), run=(0,), want=BAD)
one("MaxPool/kernel-larger", "MaxPool", X, run=(0,), want=BAD, kernel_shape=[9, 9])
one("AveragePool/kernel-larger", "AveragePool", X, run=(0,), want=BAD, kernel_shape=[9, 9])
one("MaxPool/kernel-huge", "MaxPool", X, run=(0,), want=BAD, kernel_shape=[FAR, FAR])
one("MaxPool/kernel-huge-padded", "MaxPool", X, run=(0,), want=BAD, kernel_shape=[FAR, 1], pads=[FAR, 0, 0, 0])
one("MaxPool/kernel-zero", "MaxPool", X, run=(0,), want=BAD, kernel_shape=[0, 3])
one("MaxPool/kernel-negative", "MaxPool", X, run=(0,), want=BAD, kernel_shape=[-3, 3])
one("MaxPool/pads-as-large-as-kernel", "MaxPool", X, run=(0,), want=BAD, kernel_shape=[3, 3], pads=[3, 3, 3, 3])
one("AveragePool/pads-negative", "AveragePool", X, run=(0,), want=BAD, kernel_shape=[3, 3], pads=[-1, 0, 0, 0])
one("LpPool/p", "LpPool", X, run=(0,), want=BAD, kernel_shape=[3, 3], p=0)
one("Conv/kernel-shape", "Conv", X, W, run=(0,), want=BAD, kernel_shape=[5, 5])
one("Conv/channels", "Conv", np.ones((1, 5, 8, 8), "f4"), W, run=(0,), want=BAD)
one("Conv/rank", "Conv", np.ones((4, 8, 8), "f4"), W, run=(0,), want=BAD)
one("Conv/bias", "Conv", X, W, np.ones(7, "f4"), run=(0,), want=BAD)

A = np.ones((4, 3), "f4")
for word, axis in {"over": 2, "under": -3, "most": MOST, "least": LEAST}.items():
    for op in (
        "Softmax",
        "LogSoftmax",
        "Concat",
        "ArgMax",
        "Gather",
        "GatherElements",
        "LayerNormalization",
        "Hardmax",
    ):
        operands = {
            "Concat": (A, A), "Gather": (A, np.array([0])), "GatherElements": (A, np.zeros((4, 3), "i8")),
            "LayerNormalization": (A, np.ones(3, "f4")),
        }.get(op, (A,))  # fmt: skip
        one(f"{op}/axis-{word}", op, *operands, run=(0,), want=BAD, axis=axis)
one("Flatten/axis", "Flatten", A, run=(0,), want=BAD, axis=5)
for word, perm in {
    "twice": [0, 0], "short": [0], "long": [0, 1, 2], "out": [0, 7], "negative": [-1, 0], "most": [MOST, 0],
}.items():  # fmt: skip
    one(f"Transpose/perm-{word}", "Transpose", A, run=(0,), want=BAD, perm=perm)
for blocks in (0, -1, 3, MOST, LEAST):
    one(f"DepthToSpace/block-{blocks}", "DepthToSpace", X, run=(0,), want=BAD, blocksize=blocks)
    one(f"SpaceToDepth/block-{blocks}", "SpaceToDepth", X, run=(0,), want=BAD, blocksize=blocks)
one("DepthToSpace/mode", "DepthToSpace", X, run=(0,), want=BAD, blocksize=2, mode="XYZ")
one("GroupNormalization/groups", "GroupNormalization", X, np.ones(4, "f4"), np.ones(4, "f4"), run=(0,), want=BAD,
    num_groups=3, opset=21)  # fmt: skip
one("GroupNormalization/none", "GroupNormalization", X, np.ones(4, "f4"), np.ones(4, "f4"), run=(0,), want=BAD,
    num_groups=0, opset=21)  # fmt: skip
one("LRN/size-0", "LRN", X, run=(0,), want=BAD, size=0)
one("LRN/size-negative", "LRN", X, run=(0,), want=BAD, size=-3)
one("LRN/size-huge", "LRN", X, run=(0,), want=BAD, size=FAR)
one("BatchNormalization/channels", "BatchNormalization", X, *[np.ones(5, "f4")] * 4, run=(0,), want=BAD)
one("MatMul/inner", "MatMul", A, A, run=(0,), want=BAD)
one("Gemm/inner", "Gemm", A, A, run=(0,), want=BAD)
one("Gemm/bias", "Gemm", A, A.T.copy(), np.ones((9, 9), "f4"), run=(0,), want=BAD)
for equation in ("ij,jk->il", "ij,jk->iik", "...", "ij,jk,kl->il", "i" * 3 + ",jk->", "", "ij->", "i>j", "ij,jk-<ik"):
    one(f"Einsum/{equation}", "Einsum", A, A.T.copy(), run=(0,), want=BAD, equation=equation)
one("Einsum/long", "Einsum", A, A.T.copy(), run=(0,), want=BAD, equation="ij,jk->" + "i" * 100000)
one("Cast/to-nothing", "Cast", A, run=(0,), want=Refused(""), to=99)
one("Cast/to-text", "Cast", A, run=(0,), want=Refused(""), to=8)
one("RoiAlign/huge", "RoiAlign", X, np.zeros((1, 4), "f4"), np.array([0]), run=(0,), want=BAD, output_height=FAR,
    output_width=FAR, sampling_ratio=1)  # fmt: skip
one("RoiAlign/samples", "RoiAlign", X, np.zeros((1, 4), "f4"), np.array([0]), run=(0,), want=BAD,
    sampling_ratio=1 << 30)  # fmt: skip
one("MaxUnpool/huge", "MaxUnpool", X, np.zeros((1, 4, 8, 8), "i8"), run=(0, 1), want=BAD, kernel_shape=[FAR, FAR],
    strides=[FAR, FAR])  # fmt: skip
one("MaxUnpool/few", "MaxUnpool", X, np.zeros((1, 4, 8, 8), "i8"), run=(0, 1), want=BAD, kernel_shape=[2], strides=[2])

S = np.ones((3, 2, 4), "f4")  # a sequence of 3, a batch of 2, inputs of 4
for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
    w, r = np.ones((1, gates * 5, 4), "f4"), np.ones((1, gates * 5, 5), "f4")
    one(f"{op}/r-of-another-size", op, S, w, np.ones((1, gates * 6, 6), "f4"), run=(0,), want=BAD, hidden_size=5)
    one(f"{op}/w-of-another-size", op, S, np.ones((1, gates * 6, 4), "f4"), r, run=(0,), want=BAD, hidden_size=5)
    one(f"{op}/w-of-other-inputs", op, S, np.ones((1, gates * 5, 7), "f4"), r, run=(0,), want=BAD, hidden_size=5)
    one(f"{op}/hidden-huge", op, S, w, r, run=(0,), want=BAD, hidden_size=1 << 31)
    one(f"{op}/hidden-other", op, S, w, r, run=(0,), want=BAD, hidden_size=6)
    one(f"{op}/hidden-zero", op, S, w, r, run=(0,), want=BAD, hidden_size=0)
    one(f"{op}/hidden-negative", op, S, w, r, run=(0,), want=BAD, hidden_size=-5)
    one(f"{op}/directions", op, S, w, r, run=(0,), want=BAD, hidden_size=5, direction="bidirectional")
    one(f"{op}/bias", op, S, w, r, np.ones((1, 3), "f4"), run=(0,), want=BAD, hidden_size=5)
    one(f"{op}/state", op, S, w, r, None, None, np.ones((1, 9, 5), "f4"), run=(0,), want=BAD, hidden_size=5)
    one(f"{op}/direction", op, S, w, r, run=(0,), want=BAD, hidden_size=5, direction="sideways")


def _wrong_kind() -> bytes:
    return graph([helper.make_node("Softmax", ["x"], ["y"], "hostile", axis=1.5)], {"x": (F, [2, 2])}, {"y": F})


case("Softmax/axis-of-a-float", _wrong_kind, [np.ones((2, 2), "f4")], BAD)
one("QuantizeLinear/axis", "QuantizeLinear", A, np.ones(4, "f4"), np.zeros(4, "u1"), run=(0,), want=BAD, axis=9)
one("QuantizeLinear/scales", "QuantizeLinear", A, np.ones(7, "f4"), np.zeros(7, "u1"), run=(0,), want=BAD, axis=0)
one("DequantizeLinear/block-0", "DequantizeLinear", np.ones((4, 4), "u1"), np.ones((2, 4), "f4"), run=(0,), want=BAD,
    axis=0, block_size=5, opset=21)  # fmt: skip
one("Attention/heads", "Attention", np.ones((1, 4, 6), "f4"), np.ones((1, 4, 6), "f4"), np.ones((1, 4, 6), "f4"),
    run=(0,), want=BAD, q_num_heads=4, kv_num_heads=4, opset=23)  # fmt: skip
one("Attention/heads-0", "Attention", np.ones((1, 4, 6), "f4"), np.ones((1, 4, 6), "f4"), np.ones((1, 4, 6), "f4"),
    run=(0,), want=BAD, q_num_heads=0, kv_num_heads=0, opset=23)  # fmt: skip
one("RotaryEmbedding/positions", "RotaryEmbedding", np.ones((1, 2, 3, 4), "f4"), np.ones((8, 2), "f4"),
    np.ones((8, 2), "f4"), np.array([[0, 1, 99]]), run=(0, 3), want=BAD, opset=23)  # fmt: skip
one("TensorScatter/over", "TensorScatter", np.zeros((1, 2, 4, 3), "f4"), np.ones((1, 2, 2, 3), "f4"), np.array([3]),
    run=(2,), want=BAD, opset=24)  # fmt: skip
one("Multinomial/huge", "Multinomial", A, run=(0,), want=BAD, sample_size=FAR, seed=1.0)
one("RandomNormal/huge", "RandomNormal", want=BAD, shape=[FAR, FAR], seed=1.0)
one("Bernoulli/dtype", "Bernoulli", A, run=(0,), want=Refused(""), dtype=8, seed=1.0)
