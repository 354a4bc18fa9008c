"""Indices that data decide: out of range they are refused, wherever they come from; from the back they count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from hostile.case import BOOL, FAR, I64, LEAST, MOST, F, Refused, case, gives, graph, one, sub

X = np.arange(12, dtype="f4").reshape(4, 3)
OUT = Refused(r"(?s)expected .*\[-?\d+, -?\d+\).*got.*hostile")

# name → the node, its operands for an index, the axis' extent, and NumPy's word for an index that is right
Made = tuple[str, tuple[Any, ...], int, dict[str, Any]]


def _elements(i: int, axis: int) -> np.ndarray[Any, Any]:
    indices = np.zeros((4, 3) if axis == 0 else (4, 2), np.int64)
    indices[-1, -1] = i
    return indices


def _updated(axis: int, i: int, add: bool) -> np.ndarray[Any, Any]:
    out = X.copy()
    index = _elements(i, axis)
    for at in np.ndindex(index.shape):
        place: list[int] = list(at)
        place[axis] = int(index[at])
        out[tuple(place)] = (out[tuple(place)] if add else 0) + 1
    return out


FORMS: dict[str, tuple[int, Callable[[int], Made], Callable[[int], Any]]] = {
    "gather": (4, lambda i: ("Gather", (X, np.array([0, i])), 1, {}), lambda i: X[[0, i]]),
    "gather-axis-1": (3, lambda i: ("Gather", (X, np.array([[i], [1]])), 1, {"axis": 1}), lambda i: X[:, [[i], [1]]]),
    "gather-scalar": (4, lambda i: ("Gather", (X, np.array([i])), 1, {}), lambda i: X[[i]]),
    "gather-elements": (
        4, lambda i: ("GatherElements", (X, _elements(i, 0)), 1, {}),
        lambda i: np.take_along_axis(X, np.where(_elements(i, 0) < 0, _elements(i, 0) + 4, _elements(i, 0)), 0),
    ),
    "gather-elements-axis-1": (
        3, lambda i: ("GatherElements", (X, _elements(i, 1)), 1, {"axis": 1}),
        lambda i: np.take_along_axis(X, np.where(_elements(i, 1) < 0, _elements(i, 1) + 3, _elements(i, 1)), 1),
    ),
    "gather-nd": (4, lambda i: ("GatherND", (X, np.array([[i, 2], [0, 0]])), 1, {}), lambda i: X[[i, 0], [2, 0]]),
    "gather-nd-second": (3, lambda i: ("GatherND", (X, np.array([[3, i]])), 1, {}), lambda i: X[[3], [i]]),
    "gather-nd-batch": (
        3, lambda i: ("GatherND", (X, np.array([[0], [i], [1], [2]])), 1, {"batch_dims": 1}),
        lambda i: X[np.arange(4), [0, i, 1, 2]],
    ),
    "scatter-elements": (
        4, lambda i: ("ScatterElements", (X, _elements(i, 0), np.ones((4, 3), "f4")), 1, {}),
        lambda i: _updated(0, i, False),
    ),
    "scatter-elements-add": (
        3, lambda i: ("ScatterElements", (X, _elements(i, 1), np.ones((4, 2), "f4")), 1,
                      {"axis": 1, "reduction": "add"}),
        lambda i: _updated(1, i, True),
    ),
    "scatter-nd": (
        4, lambda i: ("ScatterND", (X, np.array([[i]]), np.ones((1, 3), "f4")), 1, {}),
        lambda i: np.where(np.arange(4)[:, None] == i % 4, np.float32(1), X),
    ),
    "scatter-nd-add": (
        3, lambda i: ("ScatterND", (X, np.array([[1, i]]), np.ones((1,), "f4")), 1, {"reduction": "add"}),
        lambda i: X + ((np.arange(4)[:, None] == 1) & (np.arange(3) == i % 3)).astype("f4"),
    ),
}  # fmt: skip

for form, (extent, make, right) in FORMS.items():
    for place, keywords in (("fixed", {}), ("run", {"run": (1,)}), ("computed", {"computed": (1,)})):
        wrong = {"over": extent, "under": -extent - 1, "far": FAR, "least": LEAST}
        for word, index in wrong.items():
            op, operands, _, attributes = make(index)
            one(f"{form}/{place}/{word}", op, *operands, want=OUT, **keywords, **attributes)
        op, operands, _, attributes = make(-extent)
        one(f"{form}/{place}/from-the-back", op, *operands, want=gives(right(-extent)), **keywords, **attributes)

for dtype, index in (("i4", 4), ("i4", -5), ("i4", (1 << 31) - 1), ("i4", -(1 << 31))):
    one(f"gather/{dtype}/{index}", "Gather", X, np.array([0, index], dtype), want=OUT, run=(1,))
one("gather/most", "Gather", X, np.array([MOST]), want=OUT, run=(1,))
one("gather/x-and-indices-run", "Gather", X, np.array([1, 9]), want=OUT, run=(0, 1))
one("gather/of-nothing", "Gather", np.zeros((0, 3), "f4"), np.array([0]), want=Refused(r"hostile"), run=(1,))
one("gather/no-indices", "Gather", X, np.zeros((0,), "i8"), want=gives(np.zeros((0, 3), "f4")), run=(1,))
one("gather/unchecked", "Gather", X, np.array([3, 2]), want=gives(X[[3, 2]]), run=(1,))


def _in_a_loop(index: int) -> bytes:
    """Row number trip · index of x, in each of three trips."""
    body = sub(
        [
            helper.make_node("Mul", ["i", "stride"], ["at"], "product"),
            helper.make_node("Gather", ["x", "at"], ["row"], "hostile"),
            helper.make_node("Add", ["sum", "row"], ["next"]),
            helper.make_node("Less", ["i", "end"], ["go"]),
        ],
        {"i": I64, "c": BOOL, "sum": F}, {"go": BOOL, "next": F},
    )  # fmt: skip
    node = helper.make_node("Loop", ["", "yes", "zero"], ["y"], body=body)
    fixed = {"zero": np.zeros(3, "f4"), "yes": np.array(True), "x": X}
    return graph([node], {"stride": (I64, []), "end": (I64, [])}, {"y": F}, fixed)


case("loop/over", lambda: _in_a_loop(0), [np.int64(3), np.int64(3)], OUT)
case("loop/under", lambda: _in_a_loop(0), [np.int64(-2), np.int64(5)], OUT)
case("loop/right", lambda: _in_a_loop(0), [np.int64(-1), np.int64(2)], gives(X[0] + X[-1] + X[-2]))


def _in_a_scan() -> bytes:
    body = sub(
        [helper.make_node("Gather", ["x", "at"], ["row"], "hostile"), helper.make_node("Identity", ["c"], ["same"])],
        {"c": F, "at": I64}, {"same": F, "row": F},
    )  # fmt: skip
    node = helper.make_node("Scan", ["zero", "ids"], ["left", "y"], body=body, num_scan_inputs=1)
    return graph([node], {"ids": (I64, ["n"])}, {"y": F}, {"zero": np.float32(0), "x": X})


case("scan/over", _in_a_scan, [np.array([0, 1, 4, 0])], OUT)
case("scan/under", _in_a_scan, [np.array([0, -5])], OUT)
case("scan/right", _in_a_scan, [np.array([0, -4, 3])], gives(X[[0, 0, 3]]))


def _in_a_branch() -> bytes:
    then = sub([helper.make_node("Gather", ["x", "at"], ["a"], "hostile")], {}, {"a": F}, "then")
    other = sub([helper.make_node("Gather", ["x", "safe"], ["b"], "other")], {}, {"b": F}, "else")
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    return graph([node], {"c": (BOOL, []), "at": (I64, [2]), "safe": (I64, [2])}, {"y": F}, {"x": X})


GOOD, BAD = np.array([0, -1]), np.array([0, 77])
case("branch/over", _in_a_branch, [np.array(True), BAD, GOOD], OUT)
case("branch/over-in-the-other", _in_a_branch, [np.array(False), GOOD, BAD], Refused(r"got 77.*other"))
case("branch/not-taken", _in_a_branch, [np.array(False), BAD, GOOD], gives(X[[0, -1]]))
case("branch/right", _in_a_branch, [np.array(True), GOOD, BAD], gives(X[[0, -1]]))


def _branch_in_a_loop() -> bytes:
    then = sub([helper.make_node("Gather", ["x", "at"], ["a"], "hostile")], {}, {"a": F}, "then")
    other = sub([helper.make_node("Identity", ["sum"], ["b"])], {}, {"b": F}, "else")
    body = sub(
        [
            helper.make_node("Mul", ["i", "stride"], ["at"]),
            helper.make_node("Less", ["i", "end"], ["go"]),
            helper.make_node("If", ["go"], ["next"], then_branch=then, else_branch=other),
        ],
        {"i": I64, "c": BOOL, "sum": F}, {"go": BOOL, "next": F},
    )  # fmt: skip
    node = helper.make_node("Loop", ["", "yes", "zero"], ["y"], body=body)
    fixed = {"zero": np.zeros(3, "f4"), "yes": np.array(True), "x": X}
    return graph([node], {"stride": (I64, []), "end": (I64, [])}, {"y": F}, fixed)


case("branch-in-loop/over", _branch_in_a_loop, [np.int64(3), np.int64(3)], OUT)
case("branch-in-loop/right", _branch_in_a_loop, [np.int64(3), np.int64(2)], gives(X[3]))

# what other ops take of data

V = np.array([0, 1], "f4")
one("one-hot/over", "OneHot", np.array([0, 5]), np.int64(3), V, want=gives([[1, 0, 0], [0, 0, 0]]), run=(0,))
one("one-hot/under", "OneHot", np.array([-1, -9]), np.int64(3), V, want=gives([[0, 0, 1], [0, 0, 0]]), run=(0,))
one("one-hot/far", "OneHot", np.array([FAR, LEAST]), np.int64(3), V, want=gives(np.zeros((2, 3))), run=(0,))
for word, lengths in (("over", [9, 1]), ("under", [-1, 1]), ("far", [FAR, 1]), ("least", [LEAST, 1])):
    for place, keywords in (("fixed", {}), ("run", {"run": (1,)}), ("computed", {"computed": (1,)})):
        one(f"reverse-sequence/{place}/{word}", "ReverseSequence", X[:, :2], np.array(lengths),
            want=Refused(r"expected .*lengths.*got.*hostile"), **keywords)  # fmt: skip
one("reverse-sequence/right", "ReverseSequence", X[:, :2], np.array([4, 1]), run=(1,),
    want=gives(np.stack([X[::-1, 0], X[:, 1]], 1)))  # fmt: skip
IMAGE = np.arange(4, dtype="f4").reshape(1, 1, 2, 2)
for word, index in (("over", 16), ("under", -1), ("far", FAR), ("least", LEAST)):
    one(f"max-unpool/{word}", "MaxUnpool", IMAGE, np.array([0, 2, 5, index]).reshape(1, 1, 2, 2), run=(1,),
        want=Refused(r"expected .*ind.*got.*hostile"), kernel_shape=[2, 2], strides=[2, 2])  # fmt: skip
ROI = np.array([[0, 0, 1, 1]], "f4")
for word, index in (("over", 1), ("under", -1), ("far", FAR)):
    for place, keywords in (("fixed", {}), ("run", {"run": (2,)})):
        one(f"roi-align/{place}/{word}", "RoiAlign", IMAGE, ROI, np.array([index]), sampling_ratio=1,
            want=Refused(r"expected .*got.*hostile"), **keywords)  # fmt: skip


def _sequence_at() -> bytes:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "z"], ["s"]),
        helper.make_node("SequenceAt", ["s", "at"], ["y"], "hostile"),
    ]
    return graph(nodes, {"at": (I64, [])}, {"y": F}, {"x": X, "z": -X})


case("sequence-at/over", _sequence_at, [np.int64(2)], OUT)
case("sequence-at/under", _sequence_at, [np.int64(-3)], OUT)
case("sequence-at/right", _sequence_at, [np.int64(-2)], gives(X))

LOGITS = np.zeros((2, 3), "f4")
for word, label in (("over", 3), ("under", -1), ("far", FAR)):
    one(f"loss/labels-{word}", "NegativeLogLikelihoodLoss", LOGITS, np.array([0, label]), run=(1,),
        want=Refused(r"expected .*got.*hostile"))  # fmt: skip
    one(f"cross-entropy/labels-{word}", "SoftmaxCrossEntropyLoss", LOGITS, np.array([0, label]), run=(1,),
        want=Refused(r"expected .*got.*hostile"))  # fmt: skip
one("loss/ignored", "NegativeLogLikelihoodLoss", LOGITS, np.array([0, -100]), run=(1,), ignore_index=-100,
    want=gives(np.float32(0)))  # fmt: skip

T = np.zeros((3, 2, 4), "f4")
RNN = (T, np.ones((1, 5, 4), "f4"), np.ones((1, 5, 5), "f4"), None)
for word, lengths in (("over", [4, 1]), ("under", [-1, 1]), ("far", [(1 << 31) - 1, 1])):
    one(f"rnn/lengths-{word}", "RNN", *RNN, np.array(lengths, "i4"), hidden_size=5, run=(4,),
        want=Refused(r"expected .*lengths.*got.*hostile"))  # fmt: skip
