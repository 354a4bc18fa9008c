"""Quantised nodes against ONNX's reference, whose products are of whole numbers, and what only Microsoft has against
onnxruntime.

On processors without an instruction for it onnxruntime adds pairs of products u8 by i8 in 16 bits, which saturate: it
is right on all of them only where weights with a sign keep within 7 bits. `check` sees to that.

Results in bytes may be a step apart where two ways to round a scaled sum meet a tie; sums in 32 bits are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from build import model
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

import rlx

pytestmark = pytest.mark.devices("reference", "cpu", "cpu-*")

MICROSOFT = "com.microsoft"
KINDS = ("u1", "i1")
BY_REFERENCE = ("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv")
"""Products that ONNX itself defines."""
WEIGHTS = {
    "DynamicQuantizeMatMul": (1,), "MatMulIntegerToFloat": (1,), "QGemm": (3,), "QAttention": (1,),
    "DynamicQuantizeLSTM": (1, 2),
}  # fmt: skip
"""Where the weights of Microsoft's products lie among their operands."""


@pytest.fixture(params=["reference", "cpu"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def check(
    op: str, device: str, *arrays: Any, domain: str = "", version: int = 21, fixed: tuple[int, ...] = (), step: int = 0,
    outputs: int = 1, close: float = 1e-5, **attributes: Any,
) -> None:  # fmt: skip
    """One node; inputs at the positions in `fixed` are initialisers, None ones are left out. Bytes may be `step`s off,
    floats `close` of the greatest."""
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    inputs = {n: np.asarray(a) for n, a in zip(names, arrays) if n}
    frozen = {f"x{i}": inputs[f"x{i}"] for i in fixed if f"x{i}" in inputs}
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attributes)
    fed = {n: a for n, a in inputs.items() if n not in frozen}
    kinds = {n: (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in fed.items()}
    results = [f"y{i}" for i in range(outputs)]
    domains = [domain] if domain else []
    untold = model([node], kinds, dict.fromkeys(results, 0), frozen, version, domains=domains)
    actual = rlx.load(untold.SerializeToString(), device=device).run(list(fed.values()))
    codes = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in actual]  # onnxruntime refuses a model that tells others
    proto = model([node], kinds, dict(zip(results, codes)), frozen, version, domains=domains)
    if op in BY_REFERENCE:
        expected = ReferenceEvaluator(proto).run(None, fed)
    else:
        for array in (arrays[at] for at in WEIGHTS.get(op, ())):
            assert array.dtype == np.uint8 or np.abs(array.astype(int)).max() < 64, "onnxruntime may saturate"
        expected = answers(proto, fed)
    for a, b in zip(actual, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=0, atol=close * max(1.0, float(np.abs(b).max(initial=0))))
        else:
            assert np.abs(a.astype(np.int64) - b.astype(np.int64)).max(initial=0) <= step


def answers(proto: ModelProto, fed: Mapping[str, Any]) -> list[Any]:
    """What onnxruntime gives."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, fed)
    return outputs


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed + 1).standard_normal(shape).astype(np.float32)


def whole(kind: str, *shape: int, seed: int = 0) -> Any:
    info = np.iinfo(kind)
    return np.random.default_rng(seed + 1).integers(info.min, info.max, shape, endpoint=True).astype(kind)


def weights(kind: str, *shape: int, seed: int = 0) -> Any:
    """Bytes that onnxruntime multiplies exactly on every processor: all of u8's, those of i8's that fit 7 bits."""
    if kind == "u1":
        return whole(kind, *shape, seed=seed)
    return np.random.default_rng(seed + 1).integers(-63, 63, shape, endpoint=True).astype(kind)


def scale(*shape: int, size: float = 0.02, seed: int = 0) -> Any:
    return np.asarray(np.random.default_rng(seed + 9).uniform(0.5, 1.5, shape) * size, np.float32)


def edges(kind: str) -> list[Any]:
    """Zero points: least, greatest, and one between."""
    info = np.iinfo(kind)
    return [np.asarray(z, kind) for z in (info.min, info.max, (info.min + info.max) // 2 + 3)]


# quantise, dequantise


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2"])
def test_quantize_and_dequantize(kind: str, where: str) -> None:
    x = np.concatenate([floats(50), [0.0, 1e9, -1e9, np.inf, -np.inf, 0.05, 0.15]]).astype(np.float32)
    for zero in edges(kind):
        check("QuantizeLinear", where, x, np.float32(0.02), zero, fixed=(1, 2))
        check("DequantizeLinear", where, whole(kind, 70), np.float32(0.02), zero, fixed=(1, 2))
        check("QuantizeLinear", where, x, np.float32(0.02), zero)
    check("DequantizeLinear", where, whole(kind, 70), np.float32(0.02))


def test_ties_round_to_even(where: str) -> None:
    check("QuantizeLinear", where, np.arange(-20, 20, dtype=np.float32) / 2, np.float32(1), np.int8(0))
    check("QuantizeLinear", where, np.arange(-20, 20, dtype=np.float32) / 2, np.float32(1), np.uint8(7))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_along_an_axis(axis: int, where: str) -> None:
    x = floats(3, 4, 5)
    count = x.shape[axis]
    check("QuantizeLinear", where, x, scale(count), whole("i1", count), fixed=(1, 2), axis=axis)
    check("DequantizeLinear", where, whole("u1", 3, 4, 5), scale(count), whole("u1", count), fixed=(1, 2), axis=axis)


@pytest.mark.parametrize("block, blocks", [(4, 2), (3, 3)])
def test_in_blocks(block: int, blocks: int, where: str) -> None:
    x = floats(3, 8)
    check("QuantizeLinear", where, x, scale(3, blocks), whole("u1", 3, blocks), axis=1, block_size=block)
    check("DequantizeLinear", where, whole("i1", 3, 8), scale(3, blocks), whole("i1", 3, blocks), axis=-1,
          block_size=block)  # fmt: skip


def test_halves(where: str) -> None:
    check("DequantizeLinear", where, whole("u1", 20), np.float16(0.02), np.uint8(9), close=1e-3)
    check("QuantizeLinear", where, floats(20).astype(np.float16), np.float16(0.02), np.uint8(9), step=1)


def test_output_dtype(where: str) -> None:
    check("QuantizeLinear", where, floats(20), np.float32(0.02), output_dtype=TensorProto.INT16)
    check("DequantizeLinear", where, whole("i4", 20) // 2**12, np.float32(0.5))


@pytest.mark.parametrize("opset", [10, 13, 19])
def test_older_opsets(opset: int, where: str) -> None:
    check("QuantizeLinear", where, floats(2, 9), np.float32(0.02), np.uint8(9), version=opset)
    check("DequantizeLinear", where, whole("u1", 2, 9), np.float32(0.02), np.uint8(9), version=opset)


def test_microsoft_variants(where: str) -> None:
    check("QuantizeLinear", where, floats(3, 4), scale(4), whole("u2", 4), domain=MICROSOFT, axis=1)
    check("DequantizeLinear", where, whole("i2", 3, 4), scale(4), whole("i2", 4), domain=MICROSOFT, axis=1)


@pytest.mark.parametrize("x", [floats(3, 70), np.abs(floats(9)), -np.abs(floats(9)), np.zeros(4, np.float32)])
def test_dynamic_quantize(x: Any, where: str) -> None:
    check("DynamicQuantizeLinear", where, x, outputs=3, close=0)


def test_a_scale_that_does_not_fit_is_refused() -> None:
    with pytest.raises(rlx.RlxError, match="scale"):
        check("QuantizeLinear", "cpu", floats(3, 4), scale(3), whole("u1", 3), axis=1)


# products


@pytest.mark.parametrize("left", KINDS)
@pytest.mark.parametrize("right", KINDS)
def test_matmul_integer(left: str, right: str, where: str) -> None:
    a, b = whole(left, 2, 5, 37), whole(right, 37, 19, seed=1)
    for zero in edges(left):
        check("MatMulInteger", where, a, b, zero, whole(right, 19), fixed=(1, 2, 3))
        check("MatMulInteger", where, a, b, zero, edges(right)[0])
    check("MatMulInteger", where, a, b)
    check("MatMulInteger", where, a, b, None, edges(right)[1], fixed=(1, 3))


@pytest.mark.parametrize("right", KINDS)
def test_conv_integer(right: str, where: str) -> None:
    x, w = whole("u1", 2, 3, 9, 8), whole(right, 5, 3, 3, 2, seed=1)
    for zero in edges("u1"):
        for fixed in ((1, 2, 3), ()):
            check(
                "ConvInteger", where, x, w, zero, np.asarray(3, right), fixed=fixed, pads=[1, 0, 1, 2], strides=[2, 1]
            )
    check("ConvInteger", where, whole("u1", 1, 4, 9), whole("u1", 6, 2, 3), group=2, dilations=[2])


@pytest.mark.parametrize("left", KINDS)
@pytest.mark.parametrize("right", KINDS)
def test_qlinear_matmul(left: str, right: str, where: str) -> None:
    a, b = whole(left, 2, 5, 37), whole(right, 37, 19, seed=1)
    for zero in edges(left):
        check("QLinearMatMul", where, a, scale(), zero, b, scale(), edges(right)[2], scale(size=0.9), zero, step=1)
    check("QLinearMatMul", where, a, scale(), edges(left)[2], b, scale(19), np.zeros(19, right),
          scale(size=0.9), edges(left)[2], fixed=(3, 4, 5), step=1)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_qlinear_conv(kind: str, where: str) -> None:
    x, w = whole(kind, 1, 6, 9, 8), whole("i1", 8, 3, 3, 3, seed=1)
    bias = whole("i2", 8).astype(np.int32)
    for zero in edges(kind):
        check("QLinearConv", where, x, scale(), zero, w, scale(8), np.zeros(8, "i1"), scale(size=0.9), zero, bias,
              fixed=tuple(range(1, 9)), step=1, group=2, pads=[1, 1, 1, 1])  # fmt: skip
    check("QLinearConv", where, whole("u1", 1, 6, 9, 8), scale(), np.uint8(9), whole("u1", 8, 6, 1, 1), scale(),
          np.uint8(120), scale(size=0.5), np.uint8(100), step=1)  # fmt: skip


@pytest.mark.parametrize("right", KINDS)
def test_dynamic_products(right: str, where: str) -> None:
    a, b = floats(2, 5, 37), weights(right, 37, 19)
    for columns in ((), (19,)):
        zero = whole(right, *columns) if not columns else np.zeros(19, right) + 1
        check(
            "DynamicQuantizeMatMul", where, a, b, scale(*columns), zero, floats(19), domain=MICROSOFT, fixed=(1, 2, 3)
        )
        check("MatMulIntegerToFloat", where, whole("u1", 2, 5, 37), b, scale(), scale(*columns), np.uint8(130), zero,
              floats(19), domain=MICROSOFT, fixed=(1, 3, 5))  # fmt: skip


@pytest.mark.parametrize("left", KINDS)
def test_qgemm(left: str, where: str) -> None:
    a, b, c = whole(left, 5, 37), weights("i1", 19, 37), whole("i2", 19).astype(np.int32)
    zero = edges(left)[2]
    operands = (b, scale(19), np.zeros(19, "i1"))
    check("QGemm", where, a, scale(), zero, *operands, c, scale(size=0.9), zero, domain=MICROSOFT, transB=1, step=1,
          fixed=(1, 2, 3, 4, 5, 6, 7, 8))  # fmt: skip
    check("QGemm", where, a, scale(), zero, *operands, domain=MICROSOFT, transB=1, fixed=(1, 2, 3, 4, 5))


# elementwise ops and pools


@pytest.mark.parametrize("kind", KINDS)
def test_elementwise(kind: str, where: str) -> None:
    x, y = whole(kind, 3, 4, 5), whole(kind, 4, 5, seed=1)
    for zero in edges(kind):
        own, other = (scale(), zero), (scale(seed=1), edges(kind)[2])
        for op in ("QLinearAdd", "QLinearMul"):
            check(op, where, x, *own, y, *other, scale(size=0.04), zero, domain=MICROSOFT, step=1)
        check("QLinearSigmoid", where, x, *own, np.float32(1 / 256), zero, domain=MICROSOFT, step=1, fixed=(1, 2, 3, 4))
        check("QLinearLeakyRelu", where, x, *own, *other, domain=MICROSOFT, step=1, fixed=(1, 2, 3, 4), alpha=0.2)
        check("QLinearConcat", where, *other, x, *own, y[None], *other, domain=MICROSOFT, step=1, axis=0,
              fixed=(0, 1, 3, 4, 6, 7))  # fmt: skip
        for opset in (12, 13):
            check("QLinearSoftmax", where, x, *own, np.float32(1 / 256), zero, domain=MICROSOFT, step=1, axis=1,
                  opset=opset, fixed=(1, 2, 3, 4))  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_pools(kind: str, where: str) -> None:
    x = whole(kind, 1, 8, 7, 6)
    for zero in edges(kind):
        numbers = (scale(), zero, scale(size=0.01), edges(kind)[2])
        for last in (0, 1):
            check("QLinearGlobalAveragePool", where, x, *numbers, domain=MICROSOFT, step=1, channels_last=last)
        check("QLinearAveragePool", where, x, *numbers, domain=MICROSOFT, step=1, kernel_shape=[3, 2], strides=[2, 1],
              pads=[1, 0, 1, 1], fixed=(1, 2, 3, 4))  # fmt: skip


# weights of few bits, attention, recurrent nets


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_matmul_nbits(bits: int, zeros: bool, where: str) -> None:
    block, n, k = 32, 7, 80
    blocks = -(-k // block)
    b = whole("u1", n, blocks, block * bits // 8)
    packed = whole("u1", n * -(-blocks * bits // 8)) if zeros else None
    check("MatMulNBits", where, floats(2, 3, k), b, scale(n * blocks), packed, domain=MICROSOFT, K=k, N=n, bits=bits,
          block_size=block, fixed=(1, 2, 3), close=1e-5)  # fmt: skip


@pytest.mark.parametrize("mask", [None, "lengths", "keys", "scores"])
@pytest.mark.parametrize("causal", [0, 1])
def test_qattention(mask: str | None, causal: int, where: str) -> None:
    x, w = whole("u1", 2, 5, 12), weights("i1", 12, 48)
    masks = {
        None: None, "lengths": np.array([3, 5], np.int32),
        "keys": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
        "scores": np.random.default_rng(0).integers(0, 2, (2, 5, 5)).astype(np.int32) | np.eye(5, dtype=np.int32),
    }  # fmt: skip
    check("QAttention", where, x, w, floats(48), scale(), scale(size=0.003), masks[mask], np.uint8(120), np.int8(0),
          domain=MICROSOFT, num_heads=2, unidirectional=causal, fixed=(1, 2, 3, 4, 6, 7), close=1e-4)  # fmt: skip


def test_qattention_with_a_past(where: str) -> None:
    x, w, past = whole("u1", 2, 3, 12), weights("i1", 12, 48), floats(2, 2, 2, 4, 8)
    check("QAttention", where, x, w, floats(48), scale(), scale(size=0.003), None, np.uint8(120), np.int8(0), past,
          domain=MICROSOFT, num_heads=2, unidirectional=1, fixed=(1, 2, 3, 4, 6, 7), outputs=2, close=1e-4)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction, count", [("forward", 1), ("reverse", 1), ("bidirectional", 2)])
def test_dynamic_quantize_lstm(kind: str, direction: str, count: int, where: str) -> None:
    steps, batch, size, hidden = 5, 1, 12, 16
    w, r = weights(kind, count, size, 4 * hidden), weights(kind, count, hidden, 4 * hidden, seed=1)
    zero = np.full(count, 0 if kind == "i1" else 128, kind)
    states = [floats(count, batch, hidden, seed=s) / 4 for s in (2, 3)]
    bias = floats(count, 8 * hidden, seed=4) / 4
    check("DynamicQuantizeLSTM", where, floats(steps, batch, size), w, r, bias, None, *states, None, scale(count) / 5,
          zero, scale(count, seed=1) / 5, zero, domain=MICROSOFT, hidden_size=hidden, direction=direction, outputs=3,
          fixed=(1, 2, 3, 8, 9, 10, 11), close=0.01)  # fmt: skip
