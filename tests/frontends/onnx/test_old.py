"""Models of opsets 1 to 6: one-sided broadcasting, shapes as attributes; and Scan of opset 8."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from build import I64, F, model, run
from onnx import helper
from onnx.reference import ReferenceEvaluator

import rlx


def noise(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def old(op: str, *arrays: Any, opset: int = 6, **attributes: Any) -> Any:
    names = [f"x{i}" for i in range(len(arrays))]
    kinds = {n: (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in zip(names, arrays)}
    proto = model([helper.make_node(op, names, ["y"], **attributes)], kinds, {"y": 0}, opset=opset)
    return run(proto, *arrays)[0]


@pytest.mark.parametrize("op, numpy", [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.divide)])
def test_broadcasting_with_an_axis(op: str, numpy: Any) -> None:
    x, y = noise(2, 3, 4, 5), noise(3, 4, seed=1)
    np.testing.assert_allclose(old(op, x, y, broadcast=1, axis=1), numpy(x, y[..., None]), rtol=1e-6)
    np.testing.assert_allclose(old(op, x, y[0, 0:1], broadcast=1), numpy(x, y[0, 0]), rtol=1e-6)
    suffix = noise(4, 5, seed=2)
    np.testing.assert_allclose(old(op, x, suffix, broadcast=1, opset=1, consumed_inputs=[0, 0]), numpy(x, suffix))
    np.testing.assert_allclose(old(op, x, x), numpy(x, x))


def test_attributes_that_became_inputs() -> None:
    x = noise(2, 3, 4)
    assert old("Reshape", x, opset=1, shape=[0, -1]).shape == (2, 12)
    assert old("Pad", x, opset=1, paddings=[0, 0, 1, 0, 0, 2]).shape == (2, 3, 7)
    assert old("Concat", x, x, opset=1).shape == (2, 6, 4)
    assert old("Cast", x, opset=1, to="INT64").dtype == np.int64
    assert old("Upsample", noise(1, 2, 3, 4), opset=1, height_scale=2.0, width_scale=3.0).shape == (1, 2, 6, 12)
    np.testing.assert_allclose(
        old("PRelu", x, np.array([1, 2, 3], np.float32)), np.where(x < 0, x * [[1], [2], [3]], x), rtol=1e-6
    )
    statistics = noise(3), noise(3, seed=1), noise(3, seed=2), np.abs(noise(3, seed=3)) + 1
    y = old("BatchNormalization", x, *statistics, is_test=1)
    scale, bias, mean, variance = (part[:, None] for part in statistics)
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(variance + 1e-5) * scale + bias, rtol=1e-4, atol=1e-5)


def test_an_axis_beyond_the_operand_is_an_error() -> None:
    with pytest.raises(rlx.ModelError, match="expected an operand that fits"):
        old("Add", noise(2, 3), noise(3, 4), broadcast=1, axis=1)


@pytest.mark.parametrize("opset", [13, 8])
def test_scan_with_a_batch(opset: int) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "r"], ["t"]), helper.make_node("Identity", ["t"], ["o"])], "body",
        [helper.make_tensor_value_info(n, F, [2]) for n in "sr"],
        [helper.make_tensor_value_info(n, F, [2]) for n in "to"],
    )  # fmt: skip
    state, rows = noise(3, 2), noise(3, 5, 2, seed=1)
    if opset == 8:
        node = helper.make_node("Scan", ["", "s0", "x"], ["s1", "y"], body=body, num_scan_inputs=1, directions=[1])
        proto = model([node], {"s0": (F, state.shape), "x": (F, rows.shape)}, {"s1": F, "y": F}, opset=opset)
        last, collected = run(proto, state, rows)
        np.testing.assert_allclose(last, state + rows.sum(1), rtol=1e-5)
        np.testing.assert_allclose(collected, state[:, None] + np.cumsum(rows[:, ::-1], 1), rtol=1e-4, atol=1e-5)
    else:
        node = helper.make_node("Scan", ["s0", "x"], ["s1", "y"], body=body, num_scan_inputs=1)
        proto = model([node], {"s0": (F, (2,)), "x": (F, (5, 2))}, {"s1": F, "y": F}, opset=opset)
        for a, b in zip(
            run(proto, state[0], rows[0]), ReferenceEvaluator(proto).run(None, {"s0": state[0], "x": rows[0]})
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("pads, strides", [([0, 0, 0, 0], [1, 1]), ([1, 1, 1, 1], [2, 1])])
def test_places_of_the_greatest(order: int, pads: list[int], strides: list[int]) -> None:
    x = noise(2, 3, 5, 6)
    node = helper.make_node(
        "MaxPool", ["x"], ["y", "i"], kernel_shape=[3, 2], pads=pads, strides=strides, storage_order=order
    )
    greatest, places = run(model([node], {"x": (F, x.shape)}, {"y": F, "i": I64}), x)
    flat = (x.transpose(0, 1, 3, 2) if order else x).reshape(-1)
    assert np.array_equal(flat[places], greatest)


def test_places_are_never_in_the_pads() -> None:
    x = np.full((1, 1, 2, 2), -np.inf, np.float32)
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2], pads=[1, 1, 1, 1])
    places = run(model([node], {"x": (F, x.shape)}, {"y": F, "i": I64}), x)[1]
    assert places.min() >= 0 and places.max() <= 3
