"""Sequences and optionals: what the import settles, lists of arrays in and out, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from build import BOOL, I64, F, model
from onnx import helper

import rlx
from rlx.errors import InputError, ModelError, UnsupportedOp

X = np.arange(6, dtype="f4").reshape(2, 3)


def sequence_type(code: int) -> Any:
    return helper.make_sequence_type_proto(helper.make_tensor_type_proto(code, None))


def with_lists(proto: onnx.ModelProto, names: tuple[str, ...]) -> onnx.ModelProto:
    """The model with these inputs and outputs declared as sequences."""
    for value in (*proto.graph.input, *proto.graph.output):
        if value.name in names:
            value.type.CopyFrom(sequence_type(F))
    return proto


def load(proto: onnx.ModelProto, device: str = "reference", **options: Any) -> rlx.Model:
    return rlx.load(proto.SerializeToString(), device=device, **options)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_list_goes_through(device: str) -> None:
    nodes = [
        helper.make_node("SequenceInsert", ["list", "x", "zero"], ["longer"]),
        helper.make_node("SequenceErase", ["longer", "last"], ["out"]),
        helper.make_node("SequenceLength", ["longer"], ["count"]),
        helper.make_node("SequenceAt", ["longer", "at"], ["one"]),
    ]
    fixed = {"zero": np.array(0), "last": np.array(-1)}
    proto = model(
        nodes, {"list": (F, ()), "x": (F, (2, 3)), "at": (I64, ())}, {"out": F, "count": I64, "one": F}, fixed
    )
    ours = load(with_lists(proto, ("list", "out")), device, shapes={"list": [(2, 3), (2, 3)]})
    assert ours.input_names == ("list", "x", "at") and ours.output_names == ("out", "count", "one")
    inputs = {"list": [X + 1, X + 2], "x": X}
    for at in (0, 1, 2, -1):
        out, count, one = ours.run({**inputs, "at": np.array(at)})
        assert count == 3 and len(out) == 2
        np.testing.assert_array_equal(out, [X, X + 1])
        np.testing.assert_array_equal(one, [X, X + 1, X + 2][at])
    named = ours(**inputs, at=np.array(1))
    np.testing.assert_array_equal(named["out"], [X, X + 1])
    assert ours.run({**inputs, "at": np.array(0)}, outputs=["count"]) == [3]
    with pytest.raises(InputError, match="expected a list of 2 arrays as input 'list', got 1"):
        ours.run({"list": [X], "x": X, "at": np.array(0)})


def test_splits_and_joins() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "size"], ["parts"], axis=1),
        helper.make_node("SplitToSequence", ["x"], ["rows"], axis=0, keepdims=0),
        helper.make_node("ConcatFromSequence", ["parts"], ["joined"], axis=1),
        helper.make_node("ConcatFromSequence", ["rows"], ["stacked"], axis=-1, new_axis=1),
    ]
    proto = model(nodes, {"x": (F, (2, 3))}, {"parts": F, "joined": F, "stacked": F}, {"size": np.array(2)})
    parts, concatenated, stacked = load(with_lists(proto, ("parts",))).run([X])
    assert [part.shape for part in parts] == [(2, 2), (2, 1)]
    np.testing.assert_array_equal(concatenated, X)
    np.testing.assert_array_equal(stacked, X.T)


def test_optionals_are_settled() -> None:
    nodes = [
        helper.make_node("Optional", ["x"], ["some"]),
        helper.make_node("OptionalHasElement", ["some"], ["has"]),
        helper.make_node("OptionalGetElement", ["some"], ["y"]),
        helper.make_node("OptionalHasElement", [""], ["lacks"]),
    ]
    proto = model(nodes, {"x": (F, (2, 3))}, {"has": BOOL, "y": F, "lacks": BOOL})
    has, y, lacks = load(proto).run([X])
    assert has and not lacks
    np.testing.assert_array_equal(y, X)


@pytest.mark.parametrize(
    "node, error, words",
    [
        (helper.make_node("Relu", ["list"], ["y"]), UnsupportedOp, "a sequence of 1 elements stands where a tensor"),
        (
            helper.make_node("SequenceAt", ["list", "far"], ["y"]),
            ModelError,
            r"expected a position in \[-1, 1\), got 5",
        ),
        (helper.make_node("SequenceLength", ["x"], ["y"]), ModelError, r"expected a sequence, got f32\[2, 3\]"),
        (helper.make_node("SplitToSequence", ["x", "n"], ["y"]), UnsupportedOp, "known only when the graph runs"),
        (helper.make_node("SequenceInsert", ["list", "n"], ["y"]), ModelError, "expected elements of one dtype"),
    ],
)
def test_what_cannot_be_settled_is_refused(node: Any, error: Any, words: str) -> None:
    first = helper.make_node("SequenceConstruct", ["x"], ["list"])
    proto = model([first, node], {"x": (F, (2, 3)), "n": (I64, ())}, {"y": 0}, {"far": np.array(5)})
    with pytest.raises(error, match=words):
        load(proto)


def test_the_length_of_a_list_must_be_told() -> None:
    proto = model([helper.make_node("SequenceLength", ["list"], ["n"])], {"list": (F, ())}, {"n": I64})
    with pytest.raises(UnsupportedOp, match="the length of a sequence must be known: pass shapes"):
        load(with_lists(proto, ("list",)))


def test_branches_give_sequences_of_one_length() -> None:
    def body(name: str, *parts: str) -> onnx.GraphProto:
        node = helper.make_node("SequenceConstruct", list(parts), [f"{name}_list"])
        out = helper.make_value_info(f"{name}_list", sequence_type(F))
        return helper.make_graph([node], name, [], [out])

    def branching(*yes: str) -> onnx.ModelProto:
        either = helper.make_node("If", ["c"], ["list"], then_branch=body("a", *yes), else_branch=body("b", "y", "x"))
        node = helper.make_node("ConcatFromSequence", ["list"], ["z"], axis=0)
        return model([either, node], {"x": (F, (2, 3)), "y": (F, (2, 3)), "c": (BOOL, ())}, {"z": F})

    ours = load(branching("x", "y"))
    for flag, expected in ((True, [X, X + 1]), (False, [X + 1, X])):
        np.testing.assert_array_equal(ours.run([X, X + 1, np.array(flag)])[0], np.concatenate(expected))
    with pytest.raises(UnsupportedOp, match="its branches give other sequences"):
        load(branching("x"))
