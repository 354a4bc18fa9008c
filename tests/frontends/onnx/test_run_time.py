"""Numbers that shapes hang on, brought by a run: one program for all of them, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from build import BOOL, I64, F, model
from onnx import helper

import rlx
from rlx.errors import InputError, OutOfMemory, UnsupportedOp

DEVICES = ("cpu", "reference")
X = np.arange(24, dtype="f4").reshape(2, 3, 4)
Numbers = Sequence[Any]


def i64(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


# op, attributes, the data, and several sets of numbers for the inputs behind it (None: left out)
CASES: list[tuple[str, dict[str, Any], list[Numbers]]] = [
    ("Reshape", {}, [[i64(4, 6)], [i64(-1, 2)], [i64(0, -1)], [i64(24, 1)]]),
    ("Expand", {}, [[i64(2, 3, 4)], [i64(1, 1, 1)]]),
    ("Tile", {}, [[i64(1, 2, 3)], [i64(0, 1, 1)], [i64(2, 1, 1)]]),
    ("Slice", {}, [[i64(0), i64(2), i64(1)], [i64(-2), i64(99), i64(-1)], [i64(3), i64(1), i64(0)]]),
    ("Slice", {}, [[i64(0, 3), i64(2, -9), i64(0, 2), i64(1, -2)], [i64(9, 9), i64(-9, -9), i64(1, 0), i64(-1, -1)]]),
    ("Pad", {}, [[i64(1, 0, 2, 0, 3, 1), np.array(7, "f4")], [i64(-1, 0, 0, 0, -1, 5), np.array(-1, "f4")]]),
    ("Pad", {"mode": "edge"}, [[i64(1, 0, 2, 0, 3, 1)], [i64(0, 0, 0, 0, 0, 0)]]),
    ("Pad", {"mode": "reflect"}, [[i64(1, 0, 2, 0, 1, 1)], [i64(0, 2, 3, 1, 2, 0)]]),
    ("Pad", {"mode": "wrap"}, [[i64(1, 0, 2, 0, 3, 1)], [i64(0, 1, 1, 0, 1, 2)]]),
    ("Split", {"axis": 2, "outputs": (F, F)}, [[i64(1, 3)], [i64(4, 0)]]),
    ("TopK", {"outputs": (F, I64)}, [[i64(1)], [i64(4)], [i64(0)]]),
    ("Trilu", {}, [[np.array(1)], [np.array(-1)], [np.array(9)]]),
    ("Unsqueeze", {}, [[i64(0, 3)], [i64(-1, 1)]]),
    ("ReduceSum", {}, [[i64(0)], [i64(-1)], [i64(1)]]),
    ("ReduceMax", {"keepdims": 0}, [[i64(0, 2)], [i64(-1, 1)]]),
    ("ReduceMean", {"keepdims": 0}, [[i64(2, 0, 1)], [i64(0, 1, -1)]]),
    ("CumSum", {"reverse": 1}, [[np.array(0)], [np.array(-1)], [np.array(1)]]),
    ("Resize", {"mode": "linear"}, [[None, None, i64(2, 5, 7)], [None, None, i64(2, 3, 4)]]),
    ("Resize", {"mode": "nearest"}, [[None, np.array([1, 0.6, 2.5], "f4")], [None, np.array([1, 1, 1], "f4")]]),
]


def node_model(op: str, attributes: dict[str, Any], x: Any, numbers: Numbers) -> onnx.ModelProto:
    attributes = dict(attributes)
    outputs = {f"y{i}": code for i, code in enumerate(attributes.pop("outputs", (F,)))}
    names = ["x", *("" if n is None else f"n{i}" for i, n in enumerate(numbers))]
    kinds = {n: (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in zip(names[1:], numbers) if n}
    node = helper.make_node(op, names, list(outputs), **attributes)
    return model([node], {"x": (F, x.shape), **kinds}, outputs, opset=19)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op, attributes, sets", CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_one_program_takes_all_numbers(op: str, attributes: Any, sets: list[Numbers], device: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    proto = node_model(op, attributes, X, sets[0])
    ours = rlx.load(proto.SerializeToString(), device=device)
    theirs = runtime.InferenceSession(proto.SerializeToString())
    for numbers in sets:
        inputs = {"x": X} | {f"n{i}": n for i, n in enumerate(numbers) if n is not None}
        for actual, expected in zip(ours.run(inputs), theirs.run(None, inputs), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
            assert actual.shape == expected.shape


@pytest.mark.parametrize("device", DEVICES)
def test_ranges_and_constants_of_any_length(device: str) -> None:
    nodes = [
        helper.make_node("Range", ["start", "limit", "delta"], ["line"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("OneHot", ["line", "depth", "values"], ["hot"]),
    ]
    kinds: dict[str, Any] = dict.fromkeys(("start", "limit", "delta", "depth"), (I64, ()))
    proto = model(nodes, {**kinds, "shape": (I64, (2,)), "values": (F, (2,))}, {"line": I64, "zeros": F, "hot": F})
    ours = rlx.load(proto.SerializeToString(), device=device)
    rest = {"depth": np.array(3), "values": np.array([0, 1], "f4"), "shape": i64(2, 3)}
    for ends in ((0, 5, 1), (5, 0, -2), (0, -5, 1), (3, 4, 7)):
        line, zeros, hot = ours.run({**dict(zip(("start", "limit", "delta"), map(np.array, ends))), **rest})
        np.testing.assert_array_equal(line, np.arange(*ends))
        assert zeros.shape == (2, 3) and hot.shape == (len(line), 3)
    whole = {"start": np.array(0), "limit": np.array(5), "delta": np.array(1)}
    with pytest.raises(InputError, match=r"\[measured\] expected a number in \[0, .*\], got -1, at node 'Range_0'"):
        ours.run({**whole, **rest, "delta": np.array(0)})
    with pytest.raises(InputError, match=r"\[measured\].*'ConstantOfShape_1'"):
        ours.run({**whole, **rest, "shape": i64(-2, 3)})
    with pytest.raises((InputError, OutOfMemory), match="'ConstantOfShape_1'"):
        ours.run({**whole, **rest, "shape": i64(1 << 30, 1 << 30)})
    assert ours.run({**whole, **rest})[0].tolist() == [0, 1, 2, 3, 4]


def test_known_parts_of_a_shape_stay_known() -> None:
    """A number that is not known follows from those that are, without a stage of its own."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one"], ["batch"]),
        helper.make_node("Concat", ["batch", "n", "two"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    fixed = {"zero": i64(0), "one": i64(1), "two": i64(2)}
    proto = model(nodes, {"x": (F, ("b", 6)), "n": (I64, (1,))}, {"y": F}, fixed)
    ours = rlx.load(proto.SerializeToString(), device="cpu")
    assert str(ours.graph.outputs["y"].type) == "f32[b, 3, 2]"
    assert not ours.graph.measured
    assert ours.run({"x": np.zeros((5, 6), "f4"), "n": i64(3)})[0].shape == (5, 3, 2)


def test_bodies_refuse_what_only_a_run_tells() -> None:
    def body(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_y", I64, None)
        return helper.make_graph([helper.make_node(op, ["x"], [f"{name}_y"])], name, [], [out])

    node = helper.make_node("If", ["c"], ["y"], then_branch=body("a", "NonZero"), else_branch=body("b", "NonZero"))
    proto = model([node], {"x": (F, (3,)), "c": (BOOL, ())}, {"y": I64})
    with pytest.raises(UnsupportedOp, match="how many elements are not zero is known only when the graph runs, inside"):
        rlx.load(proto.SerializeToString())


def test_detectors_end_in_suppression() -> None:
    """Boxes and scores of a net, its kept boxes gathered by what suppression gives."""
    runtime = pytest.importorskip("onnxruntime")
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["kept"]),
        helper.make_node("Slice", ["kept", "two", "three", "one"], ["column"]),
        helper.make_node("Squeeze", ["column", "one"], ["index"]),
        helper.make_node("Squeeze", ["boxes", "zero"], ["flat"]),
        helper.make_node("Gather", ["flat", "index"], ["best"]),
    ]
    fixed = {
        "most": i64(20), "overlap": np.array([0.5], "f4"), "least": np.array([0.3], "f4"),
        "zero": i64(0), "one": i64(1), "two": i64(2), "three": i64(3),
    }  # fmt: skip
    kinds = {"boxes": (F, (1, "n", 4)), "scores": (F, (1, 3, "n"))}
    proto = model(nodes, kinds, {"kept": I64, "best": F}, fixed)
    ours = rlx.load(proto.SerializeToString(), device="cpu")
    theirs = runtime.InferenceSession(proto.SerializeToString())
    random = np.random.default_rng(3)
    for n in (1, 40, 300):
        corner = random.random((1, n, 2))
        boxes = np.concatenate([corner, corner + random.random((1, n, 2)) / 3], -1).astype("f4")
        inputs = {"boxes": boxes, "scores": random.random((1, 3, n)).astype("f4")}
        for actual, expected in zip(ours.run(inputs), theirs.run(None, inputs), strict=True):
            np.testing.assert_array_equal(actual, expected)
