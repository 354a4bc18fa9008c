"""If, Loop and Scan against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from build import BOOL, I64, F, model
from onnx import helper, numpy_helper

import rlx
from rlx.frontends.onnx import control

DEVICES = ("reference", "cpu")


def node(op: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def body(
    nodes: Sequence[onnx.NodeProto], inputs: dict[str, tuple[int, Any]], outputs: Sequence[str], **constants: Any
) -> onnx.GraphProto:
    return helper.make_graph(
        list(nodes),
        "body",
        [helper.make_tensor_value_info(name, code, shape) for name, (code, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )


def check(proto: onnx.ModelProto, device: str, *arrays: Any, rtol: float = 1e-5) -> None:
    ort = pytest.importorskip("onnxruntime")
    names = [i.name for i in proto.graph.input]
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, dict(zip(names, arrays)))
    actual = rlx.load(proto.SerializeToString(), device=device).run(list(arrays))
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


def f(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("truth", [True, False])
def test_if_takes_what_is_around_it(device: str, truth: bool) -> None:
    """Branches read an input, a weight and a value of the graph around; one has a weight of its own."""
    yes = body([node("Add", ["y", "w"], "a")], {}, ["a"])
    no = body([node("MatMul", ["y", "m"], "t"), node("Tanh", ["t"], "b")], {}, ["b"], m=f(4, 4, seed=2))
    proto = model(
        [
            node("Mul", ["x", "x"], "y"),
            node("If", ["p"], "z", then_branch=yes, else_branch=no),
            node("Neg", ["z"], "r"),
        ],
        {"p": (BOOL, []), "x": (F, ["n", 4])},
        {"r": F},
        {"w": f(4, seed=1)},
    )
    check(proto, device, np.array(truth), f(3, 4))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_if_in_if_takes_through_both(device: str, outer: bool, inner: bool) -> None:
    deep = body([node("Add", ["y", "x"], "d")], {}, ["d"])
    flat = body([node("Identity", ["w"], "e")], {}, ["e"])
    yes = body([node("If", ["q"], "a", then_branch=deep, else_branch=flat)], {}, ["a"])
    no = body([node("Sub", ["x", "y"], "b")], {}, ["b"])
    proto = model(
        [node("Exp", ["x"], "y"), node("If", ["p"], "z", then_branch=yes, else_branch=no)],
        {"p": (BOOL, []), "q": (BOOL, []), "x": (F, [4])},
        {"z": F},
        {"w": f(4, seed=1)},
    )
    check(proto, device, np.array(outer), np.array(inner), f(4))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("trips", [1, 3, 40])
def test_loop_of_known_length_collects(device: str, trips: int) -> None:
    inside = body(
        [
            node("Identity", ["go"], "on"),
            node("Cast", ["i"], "t", to=F),
            node("Mul", ["c", "w"], "u"),
            node("Add", ["u", "t"], "next"),
            node("Mul", ["next", "next"], "row"),
        ],
        {"i": (I64, []), "go": (BOOL, []), "c": (F, [3])},
        ["on", "next", "row"],
    )
    proto = model(
        [node("Loop", ["count", "yes", "x"], "last", "rows", body=inside)],
        {"x": (F, [3])},
        {"last": F, "rows": F},
        {"count": np.array(trips), "yes": np.array(True), "w": np.full(3, 0.9, "f4")},
    )
    check(proto, device, f(3))


@pytest.mark.parametrize("device", DEVICES)
def test_loop_over_a_dim_of_an_input(device: str) -> None:
    inside = body(
        [
            node("Identity", ["go"], "on"),
            node("Gather", ["x", "i"], "row", axis=0),
            node("Add", ["c", "row"], "next"),
            node("Identity", ["next"], "out"),
        ],
        {"i": (I64, []), "go": (BOOL, []), "c": (F, [4])},
        ["on", "next", "out"],
    )
    proto = model(
        [
            node("Shape", ["x"], "s", end=1),
            node("Squeeze", ["s"], "count"),
            node("Loop", ["count", "", "start"], "last", "sums", body=inside),
        ],
        {"x": (F, ["n", 4])},
        {"last": F, "sums": F},
        {"start": np.zeros(4, "f4")},
    )
    check(proto, device, f(6, 4))
    check(proto, device, f(1, 4))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("most", [0, 2, 100])
def test_loop_ends_when_the_data_say_so(device: str, most: int) -> None:
    inside = body(
        [
            node("Mul", ["c", "two"], "next"),
            node("ReduceSum", ["next"], "total", keepdims=0),
            node("Less", ["total", "limit"], "on"),
        ],
        {"i": (I64, []), "go": (BOOL, []), "c": (F, [3])},
        ["on", "next"],
    )
    proto = model(
        [node("Loop", ["most", "", "x"], "last", body=inside)],
        {"most": (I64, []), "x": (F, [3]), "limit": (F, [])},
        {"last": F},
        {"two": np.array(2, "f4")},
    )
    check(proto, device, np.array(most), np.abs(f(3)), np.array(50, "f4"))


@pytest.mark.parametrize("device", DEVICES)
def test_loop_of_the_greatest_length_ends_by_its_condition(device: str) -> None:
    inside = body(
        [node("Add", ["c", "one"], "next"), node("Less", ["next", "limit"], "on")],
        {"i": (I64, []), "go": (BOOL, []), "c": (F, [])},
        ["on", "next"],
    )
    proto = model(
        [node("Loop", ["most", "yes", "x"], "last", body=inside)],
        {"x": (F, []), "limit": (F, [])},
        {"last": F},
        {"one": np.array(1, "f4"), "most": np.array(2**63 - 1), "yes": np.array(True)},
    )
    check(proto, device, np.array(0.5, "f4"), np.array(20, "f4"))


def test_loop_ends_by_its_condition_alone_after_however_many_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than the importer would count, were a number given; that is lowered here."""
    monkeypatch.setattr(control, "MAX_COUNTED_TRIPS", 1 << 16)
    inside = body(
        [node("Add", ["c", "one"], "next"), node("Less", ["next", "limit"], "on")],
        {"i": (I64, []), "go": (BOOL, []), "c": (I64, [])},
        ["on", "next"],
    )
    proto = model(
        [node("Loop", ["", "yes", "x"], "last", body=inside)],
        {"x": (I64, []), "limit": (I64, [])},
        {"last": I64},
        {"one": np.array(1), "yes": np.array(True)},
    )
    trips = (1 << 16) + 5
    loaded_model = rlx.load(proto.SerializeToString(), device="cpu").run([np.array(0), np.array(trips)])
    assert loaded_model[0] == trips


def collecting(*condition: onnx.NodeProto) -> onnx.ModelProto:
    """A loop that collects its rows; `condition` makes `on`."""
    inside = body(
        [*condition, node("Add", ["c", "c"], "next"), node("Identity", ["c"], "row")],
        {"i": (I64, []), "go": (BOOL, []), "c": (F, [3])},
        ["on", "next", "row"],
    )
    return model(
        [node("Loop", ["most", "start", "x"], "last", "rows", body=inside)],
        {"most": (I64, []), "start": (BOOL, []), "x": (F, [3])},
        {"last": F, "rows": F},
        {"top": np.array(99, "f4"), "zero": np.array([0])},
    )


@pytest.mark.parametrize("device", DEVICES)
def test_loop_collects_as_much_as_the_data_say(device: str) -> None:
    proto = collecting(node("Identity", ["go"], "on"))
    ours = rlx.load(proto.SerializeToString(), device=device)
    for most, start in ((0, True), (5, True), (40, True), (5, False), (-3, True)):
        last, rows = ours.run([np.array(most), np.array(start), np.ones(3, "f4")])
        trips = max(most, 0) if start else 0
        np.testing.assert_array_equal(rows, np.full((trips, 3), 1) * 2.0 ** np.arange(trips)[:, None])
        np.testing.assert_array_equal(last, np.full(3, 2.0**trips))


def test_loop_that_ends_as_the_data_say_and_collects_is_refused() -> None:
    proto = collecting(node("ReduceMax", ["c", "zero"], "m", keepdims=0), node("Less", ["m", "top"], "on"))
    with pytest.raises(rlx.UnsupportedOp, match="how many results it collects"):
        rlx.load(proto.SerializeToString(), device="reference")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ways", [(0, 0), (1, 0), (1, 1)])
def test_scan_goes_along_any_axis_either_way(device: str, ways: tuple[int, int]) -> None:
    inside = body(
        [node("Add", ["c", "row"], "next"), node("Mul", ["next", "k"], "out")],
        {"c": (F, [4]), "row": (F, [4])},
        ["next", "out"],
    )
    proto = model(
        [
            node(
                "Scan", ["start", "x"], "last", "rows", body=inside, num_scan_inputs=1, scan_input_axes=[1],
                scan_input_directions=ways[:1], scan_output_axes=[1], scan_output_directions=ways[1:],
            )
        ],
        {"start": (F, [4]), "x": (F, [4, "n"])},
        {"last": F, "rows": F},
        {"k": f(4, seed=3)},
    )  # fmt: skip
    check(proto, device, f(4), f(4, 5, seed=1))


@pytest.mark.parametrize("device", DEVICES)
def test_squeeze_of_a_dim_that_may_be_one(device: str) -> None:
    """As exporters write it: the branches differ in rank, and the dim is taken to be one."""
    yes = body([node("Squeeze", ["x", "axes"], "a")], {}, ["a"], axes=np.array([1]))
    no = body([node("Identity", ["x"], "b")], {}, ["b"])
    proto = model(
        [
            node("Shape", ["x"], "s", start=1, end=2),
            node("Equal", ["s", "one"], "p"),
            node("If", ["p"], "z", then_branch=yes, else_branch=no),
        ],
        {"x": (F, [3, "n"])},
        {"z": F},
        {"one": np.array([1])},
    )
    loaded_model = rlx.load(proto.SerializeToString(), device=device)
    x = f(3, 1)
    np.testing.assert_array_equal(loaded_model.run([x])[0], x[:, 0])
    with pytest.raises(rlx.InputError, match="was taken to be on import"):
        loaded_model.run([f(3, 2)])
