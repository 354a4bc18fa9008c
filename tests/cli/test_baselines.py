"""Other runtimes behind one interface: they get the same inputs and give the same outputs."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rlx.cli import baselines
from rlx.cli.baselines import Case, build
from rlx.errors import UnsupportedOp

X, W = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(W, "w")],
    )
    path = str(tmp_path / "net.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return Case(model=path, inputs={"x": X}, threads=1, device="cpu", onnx=path)


@pytest.mark.parametrize("name", ["rlx", "jax", "onnxruntime", "openvino"])
def test_peers_compute_the_same(name: str, case: Case) -> None:
    if name != "rlx":
        pytest.importorskip(name)
    ready = build(name, case)
    np.testing.assert_allclose(ready.call()[0], np.maximum(X @ W, 0), rtol=1e-6)
    assert ready.about["device"]


def test_torch_gets_onnx_files_by_a_converter(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def converted(model: onnx.ModelProto) -> object:
        if len(model.graph.node) != 2:
            raise NotImplementedError("Converter is not implemented")
        w = torch.from_numpy(numpy_helper.to_array(model.graph.initializer[0]).copy())

        class Net(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is any module here
            def forward(self, x: object) -> object:
                return torch.relu(x @ w)

        return Net()

    module = ModuleType("onnx2torch")
    module.convert = converted  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onnx2torch", module)
    monkeypatch.setattr(baselines, "find_spec", lambda name: True if name == "onnx2torch" else find_spec(name))
    np.testing.assert_allclose(build("torch", case).call()[0], np.maximum(X @ W, 0), rtol=1e-6)
    model = onnx.load(case.onnx)
    model.graph.node.add().CopyFrom(helper.make_node("Identity", ["y"], ["z"]))
    onnx.save(model, case.onnx)
    with pytest.raises(UnsupportedOp, match="Converter is not implemented"):
        build("torch", case)
    monkeypatch.setattr(baselines, "find_spec", lambda name: None if name == "onnx2torch" else find_spec(name))
    with pytest.raises(UnsupportedOp, match="the package onnx2torch converts some"):
        build("torch", case)
