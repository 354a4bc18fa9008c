"""Models that cannot be imported are refused for all nodes in the way at once, and before their weights are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from build import BOOL, F, model
from onnx import helper, numpy_helper

import rlx
from rlx.errors import UnsupportedOp
from rlx.frontends.onnx import weights, wire
from rlx.frontends.onnx.model import ModelFile

node = helper.make_node


def body(nodes: Sequence[Any], outputs: Sequence[str]) -> Any:
    """A branch of a conditional."""
    return helper.make_graph(nodes, "body", [], [helper.make_tensor_value_info(name, F, None) for name in outputs])


def refused(proto: Any) -> str:
    with pytest.raises(UnsupportedOp) as caught:
        rlx.load(proto.SerializeToString() if not isinstance(proto, Path) else proto)
    return str(caught.value)


def test_nodes_behind_unknown_ones_are_named_too() -> None:
    nodes = [
        node("Softmx", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("ZipMap", ["b"], ["c"], domain="ai.onnx.ml"),
        node("Nonsense", ["x"], ["d"]), node("Add", ["c", "d"], ["y"]),
    ]  # fmt: skip
    text = refused(model(nodes, {"x": (F, ("n", 2))}, {"y": F}))
    assert "got 3 of 5 that it cannot" in text
    assert re.findall(r"node '(\w+)'", text) == ["Softmx_0", "ZipMap_2", "Nonsense_3"]
    assert "did you mean 'Softmax'?" in text and "ai.onnx.ml.ZipMap" in text


def test_nodes_that_no_output_needs_stand_in_no_way() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Nonsense", ["x"], ["d"])]
    loaded = rlx.load(model(nodes, {"x": (F, (2,))}, {"y": F}).SerializeToString(), device="reference")
    assert loaded.run([np.array([-1, 1], "f4")])[0].tolist() == [0, 1]


def test_bodies_and_what_is_behind_them() -> None:
    yes = body([node("Nonsense", ["x"], ["a"]), node("Rubbish", ["a"], ["b"])], ["b"])
    no = body([node("Relu", ["x"], ["c"])], ["c"])
    nodes = [node("If", ["p"], ["r"], then_branch=yes, else_branch=no)]
    text = refused(model(nodes, {"p": (BOOL, ()), "x": (F, (2,))}, {"r": F}))
    assert re.findall(r"\((?:ai\.onnx)\.(\w+), opset", text) == ["Nonsense", "Rubbish"]


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of weights that were made into arrays or looked at, while a test runs."""
    looked: list[str] = []
    array, flush = ModelFile.array, weights.flush_subnormals
    monkeypatch.setattr(ModelFile, "array", lambda self, t: looked.append(t.name) or array(self, t))
    monkeypatch.setattr(weights, "flush_subnormals", lambda a: looked.append("numbers") or flush(a))
    yield looked


def weighty(op: str, **attributes: Any) -> Any:
    """A product with a weight of 4 MB, then a node of this op."""
    weight = np.ones((1024, 1024), np.float32)
    nodes = [node("MatMul", ["x", "w"], ["a"]), node(op, ["a"], ["y"], **attributes)]
    return model(nodes, {"x": (F, (1, 1024))}, {"y": F}, {"w": weight})


def test_unknown_ops_are_refused_before_weights_are_decoded(tmp_path: Path, unread: list[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(weighty("Nonsense").SerializeToString())
    assert "Nonsense" in refused(path) and unread == []
    proto = weighty("Nonsense")
    onnx.save(proto, tmp_path / "beside.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    assert "Nonsense" in refused(tmp_path / "beside.onnx") and unread == [], "data that is not there is not missed"


def test_what_is_refused_later_is_refused_before_numbers_are_read(unread: list[str]) -> None:
    """Some attributes turn out not to be supported only where types are known."""
    assert "attributes" in refused(weighty("Relu", nonsense=3)) and unread == ["w"]
    unread.clear()
    rlx.load(weighty("Relu").SerializeToString())
    assert unread == ["w", "numbers"]


def test_lists_of_numbers_are_skipped_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of a million nodes is three attributes of a million fields each."""
    trees = helper.make_node("TreeEnsembleClassifier", ["x"], ["y"], name="trees", domain="ai.onnx.ml")
    count = 1_000
    for name, values in (
        ("nodes_values", [0.5] * count), ("nodes_treeids", list(range(count))), ("nodes_modes", ["BRANCH_LEQ"] * count),
    ):  # fmt: skip
        trees.attribute.append(helper.make_attribute(name, values))
    read = 0
    before = wire._read_varint

    def counted(*args: Any) -> Any:
        nonlocal read
        read += 1
        return before(*args)

    monkeypatch.setattr(wire, "_read_varint", counted)
    assert "TreeEnsembleClassifier" in refused(model([trees], {"x": (F, (1, 4))}, {"y": F}))
    assert read < 300


def test_tensors_beside_lists_are_still_lifted() -> None:
    tensor = numpy_helper.from_array(np.arange(4096, dtype=np.float32), "t")
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    transposed = helper.make_node("Transpose", ["x"], ["t"], perm=list(range(2)))
    nodes = [constant, transposed, node("Add", ["t", "c"], ["y"])]
    data = model(nodes, {"x": (F, (4096, 1))}, {"y": F}).SerializeToString()
    assert len(wire.lift(memoryview(data)).extents) == 1
    x = np.ones((4096, 1), np.float32)
    assert rlx.load(data, device="reference").run([x])[0][0, 5] == 6
