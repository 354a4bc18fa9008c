"""Sequences that loops carry and append to, and sequences as long as a dim, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from build import BOOL, I64, F, model
from onnx import helper, numpy_helper

import rlx
from rlx.errors import InputError, UnsupportedOp

DEVICES = ("reference", "cpu")
SEQUENCE = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F, None))


def node(op: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def f(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


def body(nodes: Sequence[onnx.NodeProto], carried: dict[str, Any], outputs: Sequence[str], **known: Any) -> Any:
    """A loop's body; values that it carries are sequences where they have no shape."""
    inputs = [helper.make_tensor_value_info("i", I64, ()), helper.make_tensor_value_info("going", BOOL, ())]
    for name, shape in carried.items():
        whole = helper.make_tensor_value_info(name, F, shape)
        inputs.append(helper.make_value_info(name, SEQUENCE) if shape is None else whole)
    results = [
        helper.make_value_info(n, SEQUENCE) if n.startswith("list") else onnx.ValueInfoProto(name=n) for n in outputs
    ]
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in known.items()]
    return helper.make_graph([node("Identity", ["going"], "on"), *nodes], "body", inputs, [
        onnx.ValueInfoProto(name="on"), *results
    ], tensors)  # fmt: skip


def check(proto: onnx.ModelProto, device: str, *several: dict[str, Any]) -> rlx.Model:
    """The same results as onnxruntime for all of these inputs, by one program."""
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    loaded = rlx.load(proto.SerializeToString(), device=device)
    for arrays in several:
        for a, b in zip(loaded.run(arrays), session.run(None, arrays), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return loaded


APPEND = body(
    [
        node("Mul", ["h", "x"], "t"),
        node("Tanh", ["t"], "h_out"),
        node("SequenceInsert", ["list", "h_out"], "list_out"),
    ],
    {"h": ("n", 3), "list": None},
    ["h_out", "list_out"],
)
READ = [
    node("ConcatFromSequence", ["all"], "stack", axis=1, new_axis=1),
    node("ConcatFromSequence", ["all"], "rows", axis=-1),
    node("SequenceLength", ["all"], "count"),
    node("SequenceAt", ["all", "last"], "end"),
    node("SequenceAt", ["all", "at"], "one"),
]
OUTPUTS = {"h1": F, "stack": F, "rows": F, "count": I64, "end": F, "one": F}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("trips", ["data", "dim", "number"])
def test_a_loop_appends(device: str, trips: str) -> None:
    """As scripted modules write `for i in range(k): h = …; all.append(h)`, with `torch.stack` behind it."""
    nodes = {
        "data": [],
        "dim": [node("Shape", ["y"], "k1"), node("Squeeze", ["k1"], "k")],
        "number": [node("Constant", [], "k", value_int=40)],
    }[trips]
    nodes = [
        *nodes,
        node("SequenceEmpty", [], "none"),
        node("Loop", ["k", "", "x", "none"], "h1", "all", body=APPEND),
        *READ,
    ]
    inputs: dict[str, Any] = {"x": (F, ("n", 3)), "at": (I64, ())}
    inputs |= {"data": {"k": (I64, ())}, "dim": {"y": (F, ("m",))}, "number": {}}[trips]
    several = []
    for n, k, at in ((2, 5, 3), (1, 1, 0), (4, 30, -2), (2, 40, 39)):
        arrays = {"x": f(n, 3, seed=k), "at": np.array(at)}
        arrays |= {"data": {"k": np.array(k)}, "dim": {"y": f(k)}, "number": {}}[trips]
        several.append(arrays)
    loaded = check(model(nodes, inputs, OUTPUTS, {"last": np.array(-1)}), device, *several)
    if trips == "data":
        with pytest.raises(InputError, match="expected a sequence with elements"):
            loaded.run({**several[0], "k": np.array(0)})
    with pytest.raises(InputError, match=r"expected .*got 99"):
        loaded.run({**several[0], "at": np.array(99)})


@pytest.mark.parametrize("device", DEVICES)
def test_several_elements_of_a_trip_behind_those_that_are_there(device: str) -> None:
    """Two lists at once, between them a tensor and a collected result; one list is not touched."""
    steps = [
        node("Add", ["h", "x"], "h_out"),
        node("SequenceInsert", ["list1", "h_out"], "list3"),
        node("Neg", ["h_out"], "t"),
        node("SequenceInsert", ["list3", "t"], "list1_out"),
        node("SequenceInsert", ["list2", "t"], "list2_out"),
        node("Identity", ["t"], "each"),
    ]
    inside = body(
        steps,
        {"list1": None, "h": ("n", 2), "list2": None, "list4": None},
        ["list1_out", "h_out", "list2_out", "list4", "each"],
    )
    nodes = [
        node("SequenceConstruct", ["x", "y"], "some"),
        node("SequenceEmpty", [], "none"),
        node("Loop", ["k", "", "some", "x", "none", "some"], "a", "h1", "b", "c", "all", body=inside),
        node("SequenceInsert", ["a", "y"], "a1"),
        node("ConcatFromSequence", ["a1"], "za", axis=0, new_axis=1),
        node("ConcatFromSequence", ["b"], "zb", axis=0),
        node("ConcatFromSequence", ["c"], "zc", axis=0),
        node("SequenceLength", ["a1"], "count"),
    ]
    inputs = {"x": (F, ("n", 2)), "y": (F, ("n", 2)), "k": (I64, ())}
    proto = model(nodes, inputs, {"h1": F, "all": F, "za": F, "zb": F, "zc": F, "count": I64})
    several = [{"x": f(n, 2), "y": f(n, 2, seed=1), "k": np.array(k)} for n, k in ((3, 4), (1, 1), (2, 20))]
    check(proto, device, *several)


@pytest.mark.parametrize("device", DEVICES)
def test_a_loop_in_a_loop_appends_to_the_same_list(device: str) -> None:
    inner = body(
        [
            node("Cast", ["i"], "number", to=F), node("Add", ["row", "number"], "t"),
            node("SequenceInsert", ["list_in", "t"], "list_inner"),
        ],
        {"list_in": None},
        ["list_inner"],
    )  # fmt: skip
    inner.input[0].name, inner.node[1].input[0], inner.input[1].name, inner.node[0].input[0] = "i2", "i2", "on2", "on2"
    inner.node[0].output[0] = inner.output[0].name = "on3"
    outer = body(
        [node("Gather", ["x", "i"], "row"), node("Loop", ["k", "", "list"], "list_out", body=inner)],
        {"list": None},
        ["list_out"],
    )
    nodes = [
        node("SequenceEmpty", [], "none"),
        node("Shape", ["x"], "n1", start=0, end=1),
        node("Squeeze", ["n1"], "n"),
        node("Loop", ["n", "", "none"], "all", body=outer),
        node("ConcatFromSequence", ["all"], "z", axis=0, new_axis=1),
    ]
    proto = model(nodes, {"x": (F, ("n", 3))}, {"z": F}, {"k": np.array(20)})
    check(proto, device, {"x": f(5, 3)}, {"x": f(1, 3)})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("sized", [False, True])
def test_a_list_as_long_as_a_dim(device: str, keep: int, sized: bool) -> None:
    """`for row in x.unbind(1): out.append(…)`: its elements are looked up in the loop."""
    steps = [
        node("SequenceAt", ["rows", "i"], "row"),
        node("Relu", ["row"], "t"),
        node("SequenceInsert", ["list", "t"], "list_out"),
    ]
    nodes = [
        node("SplitToSequence", ["x", "size"] if sized else ["x"], "rows", axis=1, keepdims=keep),
        node("SequenceLength", ["rows"], "k"),
        node("SequenceEmpty", [], "none"),
        node("Loop", ["k", "", "none"], "all", body=body(steps, {"list": None}, ["list_out"])),
        node("ConcatFromSequence", ["all"], "z", axis=1, **({} if keep else {"new_axis": 1})),
    ]
    for extent in ("m", 5):
        proto = model(nodes, {"x": (F, ("n", extent, 2))}, {"z": F, "k": I64}, {"size": np.array(1)} if sized else None)
        check(proto, device, {"x": f(3, 5, 2)})
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "m"
    check(proto, device, {"x": f(3, 5, 2)}, {"x": f(2, 1, 2)}, {"x": f(1, 40, 2)})


@pytest.mark.parametrize("device", DEVICES)
def test_branches_append_as_much(device: str) -> None:
    """`if i % 2 == 0: out.append(row) else: out.append(-row)`; one that appends more is refused."""

    def loop(again: bool) -> onnx.ModelProto:
        def branch(name: str, op: str, more: bool) -> Any:
            steps = [node(op, ["row"], f"{name}_t"), node("SequenceInsert", ["list", f"{name}_t"], f"{name}_l")]
            steps += [node("SequenceInsert", [f"{name}_l", "row"], f"{name}_m")] if more else []
            end = helper.make_value_info(f"{name}_m" if more else f"{name}_l", SEQUENCE)
            return helper.make_graph(steps, name, [], [end])

        steps = [
            node("Gather", ["x", "i"], "row"),
            node("Mod", ["i", "two"], "odd"),
            node("Cast", ["odd"], "p", to=BOOL),
            node("If", ["p"], "list_out", then_branch=branch("a", "Neg", again), else_branch=branch("b", "Abs", False)),
        ]
        nodes = [
            node("Shape", ["x"], "n1", start=0, end=1),
            node("Squeeze", ["n1"], "n"),
            node("SequenceEmpty", [], "none"),
            node("Loop", ["n", "", "none"], "all", body=body(steps, {"list": None}, ["list_out"], two=np.array(2))),
            node("ConcatFromSequence", ["all"], "z", axis=0, new_axis=1),
        ]
        return model(nodes, {"x": (F, ("n", 3))}, {"z": F})

    check(loop(False), device, {"x": f(5, 3)}, {"x": f(1, 3)}, {"x": f(30, 3)})
    with pytest.raises(UnsupportedOp, match="its branches give other sequences"):
        rlx.load(loop(True).SerializeToString(), device=device)


def test_a_list_of_known_length_is_an_output() -> None:
    nodes = [
        node("SequenceEmpty", [], "none"),
        node("Loop", ["k", "", "x", "none"], "h1", "all", body=APPEND),
        node("SequenceErase", ["all"], "rest"),
    ]
    proto = model(nodes, {"x": (F, ("n", 3))}, {"h1": F, "rest": F}, {"k": np.array(20)})
    proto.graph.output[1].type.CopyFrom(SEQUENCE)
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    x = f(2, 3)
    _, actual = rlx.load(proto.SerializeToString(), device="cpu").run([x])
    np.testing.assert_allclose(actual, session.run(None, {"x": x})[1], rtol=1e-5)


def test_lists_that_change_places_are_refused() -> None:
    """Both begin as the same list, and are not what the trips before appended to each."""
    steps = [node("SequenceInsert", ["list2", "x"], "list_out")]
    inside = body(steps, {"list1": None, "list2": None}, ["list_out", "list1"])
    nodes = [
        node("SequenceConstruct", ["x"], "some"),
        node("Loop", ["k", "", "some", "some"], "a", "b", body=inside),
        node("SequenceLength", ["a"], "count"),
    ]
    proto = model(nodes, {"x": (F, ("n", 3)), "k": (I64, ())}, {"count": I64})
    with pytest.raises(UnsupportedOp, match="changes in another way than by what a trip appends"):
        rlx.load(proto.SerializeToString(), device="cpu")


ONE = {"list": None}
REFUSED: dict[str, tuple[list[onnx.NodeProto], str]] = {
    "inserts in front": (
        [node("SequenceInsert", ["list", "x", "zero"], "list_out")],
        "a loop carries the sequence, and its body does more with it than to append to it",
    ),
    "looks at what is there": (
        [node("SequenceAt", ["list", "zero"], "t"), node("SequenceInsert", ["list", "t"], "list_out")],
        "a loop carries the sequence, and its body does more with it than to append to it",
    ),
    "begins anew": (
        [node("SequenceConstruct", ["x"], "list_out")],
        "a sequence that it carries changes in another way than by what a trip appends to it",
    ),
    "several types": (
        [
            node("SequenceInsert", ["list", "x"], "list1"), node("Neg", ["zero_f"], "t"),
            node("SequenceInsert", ["list1", "t"], "list_out"),
        ],
        r"elements of several types, f32\[n, 3\] and f32\[\], in a sequence that a loop carries",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_else_a_body_does_with_a_list_is_refused(name: str) -> None:
    steps, pattern = REFUSED[name]
    inside = body(steps, ONE, ["list_out"], zero=np.array(0), zero_f=np.float32(0))
    nodes = [
        node("SequenceEmpty", [], "none"),
        node("Loop", ["k", "", "none"], "all", body=inside),
        node("SequenceLength", ["all"], "count"),
    ]
    proto = model(nodes, {"x": (F, ("n", 3)), "k": (I64, ())}, {"count": I64})
    with pytest.raises(UnsupportedOp, match=pattern):
        rlx.load(proto.SerializeToString(), device="cpu")


def test_lists_whose_length_only_a_run_knows_are_refused_where_it_matters() -> None:
    ends = body(
        [
            node("SequenceInsert", ["list", "x"], "list_out"), node("ReduceSum", ["x"], "s", keepdims=0),
            node("Greater", ["s", "zero"], "more"),
        ],
        ONE,
        ["list_out"],
        zero=np.float32(0),
    )  # fmt: skip
    ends.output[0].name = "more"
    inputs = {"x": (F, ("n", 3)), "k": (I64, ())}
    cases = [
        ([node("Loop", ["k", "", "none"], "all", body=ends), node("SequenceLength", ["all"], "z")],
         "how many results it collects is known only when the graph runs"),
        ([node("Loop", ["k", "", "x", "none"], "h1", "all", body=APPEND), node("SequenceErase", ["all"], "rest"),
          node("SequenceLength", ["rest"], "z")], "how many elements a sequence has .* only when the graph runs"),
        ([node("Loop", ["k", "", "x", "none"], "h1", "all", body=APPEND), node("Identity", ["all"], "z")],
         "how many elements a sequence has .* only when the graph runs"),
    ]  # fmt: skip
    for nodes, pattern in cases:
        proto = model([node("SequenceEmpty", [], "none"), *nodes], inputs, {"z": I64})
        with pytest.raises(UnsupportedOp, match=pattern):
            rlx.load(proto.SerializeToString(), device="cpu")
