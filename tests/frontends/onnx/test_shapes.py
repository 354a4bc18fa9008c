"""Shape arithmetic done at import against the same arithmetic done on tensors, for random chains of ops and sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from build import I64, F, model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

import rlx
from rlx.errors import RlxError

ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max")


class Chain:
    """A model that computes a vector from the shape of its input, by ops drawn at random."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.nodes = [helper.make_node("Shape", ["x"], ["s"])]
        self.fixed: dict[str, Any] = {}
        self.vectors: list[tuple[str, int]] = [("s", 3)]  # name and length
        for _ in range(draw(st.integers(1, 7))):
            getattr(self, draw(st.sampled_from(["binary", "binary", "gather", "slice", "concat", "fold", "choose"])))()

    def const(self, *values: int) -> str:
        name = f"c{len(self.fixed)}"
        self.fixed[name] = np.array(values, np.int64)
        return name

    def some(self) -> tuple[str, int]:
        vector: tuple[str, int] = self.draw(st.sampled_from(self.vectors))
        return vector

    def node(self, op: str, inputs: list[str], length: int, **attributes: Any) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.vectors.append((name, length))

    def binary(self) -> None:
        op = self.draw(st.sampled_from(ELEMENTWISE))
        name, length = self.some()
        if op in ("Div", "Mod"):
            other = self.const(self.draw(st.sampled_from([-3, -1, 2, 3])))
        else:
            same = [n for n, size in self.vectors if size in (1, length)]
            other = self.draw(st.sampled_from([*same, self.const(self.draw(st.integers(-3, 3)))]))
        self.node(op, [name, other], length)

    def gather(self) -> None:
        name, length = self.some()
        picks = self.draw(st.lists(st.integers(-length, length - 1), min_size=1, max_size=4)) if length else []
        if picks:
            self.node("Gather", [name, self.const(*picks)], len(picks))

    def slice(self) -> None:
        name, length = self.some()
        start, end = self.draw(st.integers(-4, 4)), self.draw(st.integers(-4, 5))
        step = self.draw(st.sampled_from([1, 1, 2, -1]))
        length_left = len(range(length)[slice(start, end, step)])
        ends = [self.const(v) for v in (start, end, 0, step)]
        if length_left:
            self.node("Slice", [name, *ends], length_left)

    def concat(self) -> None:
        (a, n), (b, m) = self.some(), self.some()
        if n + m <= 8:
            self.node("Concat", [a, b], n + m, axis=0)

    def fold(self) -> None:
        op = self.draw(st.sampled_from(["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"]))
        self.node(op, [self.some()[0], self.const(0)], 1, keepdims=1)

    def choose(self) -> None:
        name, length = self.some()
        compare = f"b{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(self.draw(st.sampled_from(["Less", "Equal"])), [name, self.const(0)], [compare])
        )
        self.node("Where", [compare, self.const(7), name], length)

    def proto(self, shape: list[Any]) -> onnx.ModelProto:
        return model(self.nodes, {"x": (F, shape)}, {self.vectors[-1][0]: I64}, self.fixed)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_shape_arithmetic_on_dims_is_that_on_tensors(data: Any) -> None:
    runtime = pytest.importorskip("onnxruntime")
    chain = Chain(data.draw)
    proto = chain.proto(["a", "b", 4])
    try:
        ours = rlx.load(proto.SerializeToString(), device="reference")
    except RlxError as error:  # pragma: no cover
        raise AssertionError(f"{error}\n{onnx.printer.to_text(proto)}") from error
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    theirs = runtime.InferenceSession(proto.SerializeToString(), options)
    for size in ((1, 1), (2, 3), (0, 5), (7, 2)):
        x = np.zeros((*size, 4), "f4")
        assert ours.run([x])[0].tolist() == theirs.run(None, {"x": x})[0].tolist(), onnx.printer.to_text(proto)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_dims_are_divided_by_dims(device: str) -> None:
    """Exactly, rounding down, and by a dim that is zero, which gives zero on both sides of the compiled code."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["a"]),
        helper.make_node("Gather", ["s", "one"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["ab"]),
        helper.make_node("Div", ["ab", "b"], ["whole"]),
        helper.make_node("Div", ["a", "b"], ["part"]),
        helper.make_node("Mod", ["a", "b"], ["rest"]),
        helper.make_node("Concat", ["whole", "part", "rest"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["y"]),
    ]
    fixed = {"zero": np.array([0]), "one": np.array([1])}
    ours = rlx.load(model(nodes, {"x": (F, ("a", "b"))}, {"y": F}, fixed).SerializeToString(), device=device)
    assert not ours.graph.measured
    for a, b in ((7, 2), (6, 3), (1, 5), (0, 4), (3, 0)):
        expected = (a, a // b, a % b) if b else (a, 0, 0)
        assert ours.run([np.zeros((a, b), "f4")])[0].shape == expected
