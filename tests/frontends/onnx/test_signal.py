"""Fourier transforms, windows and mel filters against onnxruntime and the ONNX reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from build import I64, F, model, run
from onnx import helper
from onnx.reference import ReferenceEvaluator

import rlx


def noise(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def both(node: Any, inputs: dict[str, Any], fixed: dict[str, Any], opset: int, peer: str) -> tuple[Any, Any]:
    """What rlx gives for a model of one node on the CPU, and what the peer gives."""
    kinds = {name: (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in inputs.items()}
    proto = model([node], kinds, {"y": F}, fixed, opset=opset)
    actual = rlx.load(proto.SerializeToString(), device="cpu", cache=False).run(inputs)[0]
    if peer == "reference":
        return actual, ReferenceEvaluator(proto).run(None, inputs)[0]
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return actual, session.run(None, inputs)[0]


def assert_near(actual: Any, expected: Any) -> None:
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5 * max(np.abs(expected).max(), 1e-3))


@pytest.mark.parametrize("peer", ["reference", "onnxruntime"])
@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize(
    "shape, axis, attributes, length",
    [
        ((2, 24, 1), 1, {}, None),
        ((2, 24, 2), 1, {}, None),
        ((2, 24, 1), 1, {"onesided": 1}, None),
        ((2, 24, 2), 1, {"inverse": 1}, None),
        ((3, 16, 5, 2), 2, {}, 8),
        ((3, 16, 5, 1), 1, {"onesided": 1}, 40),
        ((16, 3, 2), 0, {}, None),
    ],
)
def test_dft(shape: Any, axis: int, attributes: Any, length: int | None, opset: int, peer: str) -> None:
    fixed = {"n": np.array(length)} if length else {}
    names = ["x", "n" if length else ""]
    if opset < 20:
        node = helper.make_node("DFT", names, ["y"], axis=axis, **attributes)
    else:
        fixed["axis"] = np.array(axis)
        node = helper.make_node("DFT", [*names, "axis"], ["y"], **attributes)
    assert_near(*both(node, {"x": noise(*shape)}, fixed, opset, peer))


def test_the_axis_of_a_dft_is_by_default_the_one_before_the_parts() -> None:
    node = helper.make_node("DFT", ["x"], ["y"])
    assert_near(*both(node, {"x": noise(3, 4, 12, 1)}, {}, 20, "reference"))


def test_dft_gives_a_real_signal_back() -> None:
    x = noise(2, 30)
    spectrum = np.fft.rfft(x)
    pairs = np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)
    proto = model([helper.make_node("DFT", ["x"], ["y"], inverse=1, onesided=1)], {"x": (F, (2, 16, 2))}, {"y": F},
                  opset=20)  # fmt: skip
    np.testing.assert_allclose(run(proto, pairs)[0][..., 0], x, atol=1e-5)


def test_dft_of_a_named_length() -> None:
    proto = model([helper.make_node("DFT", ["x"], ["y"], onesided=1)], {"x": (F, ("b", "n", 1))}, {"y": F}, opset=20)
    loaded = rlx.load(proto.SerializeToString(), device="cpu", cache=False)
    for n in (7, 32):
        x = noise(2, n, 1)
        expected = np.fft.rfft(x[..., 0])
        actual = loaded.run([x])[0]
        np.testing.assert_allclose(actual[..., 0] + 1j * actual[..., 1], expected, atol=1e-4)


@pytest.mark.parametrize("peer", ["reference", "onnxruntime"])
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [True, False])
def test_stft(onesided: int, windowed: bool, peer: str) -> None:
    fixed: dict[str, Any] = {"step": np.array(8), "length": np.array(32)}
    if windowed:
        fixed["window"] = np.hanning(32).astype(np.float32)
    node = helper.make_node("STFT", ["x", "step", "window" if windowed else "", "length"], ["y"], onesided=onesided)
    assert_near(*both(node, {"x": noise(2, 128, 1)}, fixed, 17, peer))


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(op: str, periodic: int) -> None:
    node = helper.make_node(op, ["n"], ["y"], periodic=periodic)
    assert_near(*both(node, {}, {"n": np.array(21)}, 17, "reference"))


def test_a_window_of_a_dim() -> None:
    """The size comes from the shape of an input."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Squeeze", ["s"], ["n"]),
        helper.make_node("HannWindow", ["n"], ["y"]),
    ]
    proto = model(nodes, {"x": (F, ("n",))}, {"y": F})
    np.testing.assert_allclose(run(proto, noise(12))[0], np.hanning(13)[:-1], atol=1e-6)


@pytest.mark.parametrize("bands, length, rate, low, high", [(8, 16, 8192, 0.0, 4096.0), (40, 512, 16000, 80.0, 7600.0)])
def test_mel_weights(bands: int, length: int, rate: int, low: float, high: float) -> None:
    names = ["bands", "length", "rate", "low", "high"]
    values = [np.array(bands), np.array(length), np.array(rate), np.float32(low), np.float32(high)]
    node = helper.make_node("MelWeightMatrix", names, ["y"])
    assert_near(*both(node, {}, {n: np.asarray(v) for n, v in zip(names, values)}, 17, "reference"))


@pytest.mark.parametrize(
    "node, kinds, fixed, message",
    [
        (helper.make_node("DFT", ["x"], ["y"]), {"x": (F, (2, 4, 3))}, {}, "expected a last axis of 1 or 2"),
        (helper.make_node("DFT", ["x", "", "a"], ["y"]), {"x": (F, (2, 4, 1))}, {"a": np.array(2)}, "expected an axis"),
        (helper.make_node("DFT", ["x", "n"], ["y"]), {"x": (F, (2, 4, 1)), "n": (I64, ())}, {}, "only when the graph"),
        (helper.make_node("HannWindow", ["n"], ["y"]), {}, {"n": np.array([2, 3])}, "expected a size of one element"),
        (helper.make_node("HannWindow", ["n"], ["y"]), {}, {"n": np.array(-3)}, "expected a size of at least 0"),
        (
            helper.make_node("STFT", ["x", "s", "", "l"], ["y"]), {"x": (F, (1, 8, 1))},
            {"s": np.array(0), "l": np.array(4)}, "expected frames and steps of at least 1",
        ),
    ],
)  # fmt: skip
def test_damaged_nodes_are_named(node: Any, kinds: Any, fixed: Any, message: str) -> None:
    with pytest.raises(rlx.RlxError, match=message):
        rlx.load(model([node], kinds, {"y": F}, fixed, opset=20).SerializeToString())


def test_a_signal_without_an_axis_of_parts() -> None:
    """[batch, time], as exporters write real signals; [batch, time, 1] is the same."""
    node = helper.make_node("STFT", ["x", "step", "", "length"], ["y"])
    fixed = {"step": np.array(8), "length": np.array(32)}
    x = noise(2, 128)
    flat = run(model([node], {"x": (F, (2, 128))}, {"y": F}, fixed), x)[0]
    assert np.array_equal(flat, run(model([node], {"x": (F, (2, 128, 1))}, {"y": F}, fixed), x[..., None])[0])
