"""Random numbers of ONNX nodes: with a seed always the same, without one new in every run; dropout that trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from build import BOOL, I32, F, model
from onnx import helper

import rlx
from rlx.ir.op import RANDOM_STATE


def loaded(node: Any, kinds: Any = None, fixed: Any = None, opset: int = 18, outputs: Any = None) -> Any:
    proto = model([node], kinds or {}, outputs or {"y": F}, fixed, opset=opset)
    return rlx.load(proto.SerializeToString(), device="cpu", cache=False)


@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniform"])
def test_a_seed_gives_one_stream(op: str) -> None:
    node = helper.make_node(op, [], ["y"], shape=[3, 5], seed=7.0)
    first, again, other = (loaded(node).run()[0] for _ in range(2)), loaded(node), None
    a, b = first
    assert a.shape == (3, 5) and np.array_equal(a, b) and np.array_equal(again.run()[0], again.run()[0])
    other = loaded(helper.make_node(op, [], ["y"], shape=[3, 5], seed=8.0)).run()[0]
    assert not np.array_equal(a, other)


def test_without_a_seed_runs_and_nodes_differ() -> None:
    nodes = [helper.make_node("RandomNormal", [], [name], shape=[100]) for name in "ab"]
    proto = model([*nodes, helper.make_node("Concat", ["a", "b"], ["y"], axis=0)], {}, {"y": F})
    loaded_model = rlx.load(proto.SerializeToString(), device="cpu", cache=False)
    assert loaded_model.input_names == () and loaded_model.compiled.input_names == ()
    runs = [loaded_model.run()[0] for _ in range(3)]
    assert not np.array_equal(runs[0][:100], runs[0][100:])
    assert not np.array_equal(runs[0], runs[1]) and not np.array_equal(runs[1], runs[2])
    loaded_model.seed(5)
    seeded = [loaded_model.run()[0] for _ in range(2)]
    loaded_model.seed(5)
    assert np.array_equal(loaded_model.run()[0], seeded[0]) and np.array_equal(loaded_model()["y"], seeded[1])
    state = np.array([5, 0, 0, 0], np.uint32)
    assert np.array_equal(loaded_model.run({RANDOM_STATE: state})[0], seeded[0])
    reference = rlx.load(proto.SerializeToString(), device="reference").run({RANDOM_STATE: state})[0]
    np.testing.assert_allclose(reference, seeded[0], atol=1e-5)
    with pytest.raises(rlx.InputError, match=r"\[seed\] expected an integer"):
        loaded_model.seed(-1)


def test_like_takes_shape_and_dtype() -> None:
    node = helper.make_node("RandomUniformLike", ["x"], ["y"], low=2.0, high=3.0)
    loaded_model = loaded(node, {"x": (F, ("n", 2))})
    for n in (1, 40):
        y = loaded_model.run([np.zeros((n, 2), np.float32)])[0]
        assert y.shape == (n, 2) and y.dtype == np.float32 and (y >= 2).all() and (y < 3).all()
    node = helper.make_node("RandomNormalLike", ["x"], ["y"], dtype=onnx.TensorProto.DOUBLE)
    proto = model([node], {"x": (F, (4,))}, {"y": onnx.TensorProto.DOUBLE})
    y = rlx.load(proto.SerializeToString(), device="cpu", cache=False).run([np.zeros(4, np.float32)])[0]
    assert y.dtype == np.float64


def test_bernoulli_and_multinomial() -> None:
    p = np.array([0.0, 1.0, 0.25], np.float32).repeat(4000)
    y = loaded(helper.make_node("Bernoulli", ["p"], ["y"], seed=1.0), {"p": (F, p.shape)}).run([p])[0].reshape(3, -1)
    assert y[0].max() == 0 and y[1].min() == 1 and abs(y[2].mean() - 0.25) < 0.03
    logits = np.log(np.array([[0.5, 0.5, 1e-30], [0.1, 0.1, 0.8]], np.float32))
    node = helper.make_node("Multinomial", ["x"], ["y"], sample_size=4000)
    drawn = loaded(node, {"x": (F, (2, 3))}, outputs={"y": I32}).run([logits])[0]
    assert drawn.dtype == np.int32 and drawn.shape == (2, 4000) and drawn[0].max() == 1
    assert abs((drawn[1] == 2).mean() - 0.8) < 0.03


def test_dropout_that_trains() -> None:
    node = helper.make_node("Dropout", ["x", "r", "t"], ["y", "m"], seed=3)
    kinds = {"x": (F, (100, 100)), "r": (F, ()), "t": (BOOL, ())}
    model = loaded(node, kinds, opset=13, outputs={"y": F, "m": BOOL})
    x = np.ones((100, 100), np.float32)
    y, mask = model.run({"x": x, "r": np.array(0.25, np.float32), "t": np.array(True)})
    assert abs(mask.mean() - 0.75) < 0.03
    np.testing.assert_allclose(y, mask / np.float32(0.75), rtol=1e-6)
    again = model.run({"x": x, "r": np.array(0.25, np.float32), "t": np.array(True)})[1]
    assert np.array_equal(mask, again)
    y, mask = model.run({"x": x, "r": np.array(0.25, np.float32), "t": np.array(False)})
    assert np.array_equal(y, x) and mask.all()


def test_random_numbers_in_a_loop_are_refused() -> None:
    """Every trip would draw the same."""
    inner = helper.make_graph(
        [helper.make_node("RandomNormal", [], ["z"], shape=[2]), helper.make_node("Identity", ["c"], ["d"])], "body",
        [helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []), helper.make_tensor_value_info("c", BOOL, [])],
        [helper.make_tensor_value_info("d", BOOL, []), helper.make_tensor_value_info("z", F, [2])],
    )  # fmt: skip
    node = helper.make_node("Loop", ["n", ""], ["y"], body=inner)
    with pytest.raises(rlx.UnsupportedOp, match="random numbers in a loop"):
        loaded(node, {}, {"n": np.array(100)})
