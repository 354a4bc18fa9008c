"""`rlx.load` and what it gives: formats told apart, compiled when first used, saved and opened again."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import rlx
from rlx.errors import DeviceUnavailable, ModelError, OptionError
from rlx.frontends.registry import Imported
from rlx.model import Model


def scaled() -> Model:
    graph = rlx.Graph("scaled")
    weight = np.arange(4, dtype="f4")
    graph.output(graph.input("x", ("n", 4)) * graph.param("w", (4,), data=weight), name="y")
    return Model(Imported(graph, "test"), rlx.Session("reference"))


def test_a_saved_model_is_the_same_model(tmp_path: Path) -> None:
    model = scaled()
    model.save(tmp_path / "m.rlx")
    again = rlx.load(tmp_path / "m.rlx", device="reference")
    assert again.format == "rlx" and again.input_names == ("x",) and again.output_names == ("y",)
    x = np.ones((3, 4), "f4")
    np.testing.assert_array_equal(again(x)["y"], model(x=x)["y"])


def test_nothing_is_compiled_before_the_first_use() -> None:
    model = scaled()
    assert "not compiled yet" in repr(model)
    model.run([np.ones((1, 4), "f4")])
    assert "not compiled" not in repr(model) and model.device == "reference"
    assert model.describe()["format"] == "test"


def test_many_threads_compile_once() -> None:
    model = scaled()
    programs: list[object] = []
    threads = [threading.Thread(target=lambda: programs.append(model.compiled)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(compiled) for compiled in programs}) == 1


def test_sources_that_are_none(tmp_path: Path) -> None:
    for source in (tmp_path / "nothing", tmp_path, b""):
        with pytest.raises(ModelError):
            rlx.load(source)
    with pytest.raises(DeviceUnavailable):
        rlx.load(b"", device="warp")


def test_a_damaged_saved_file(tmp_path: Path) -> None:
    path = tmp_path / "m.rlx"
    scaled().save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError):
        rlx.load(path)


def test_options_that_there_are_not(tmp_path: Path) -> None:
    f = onnx.TensorProto.FLOAT
    ends = [[helper.make_tensor_value_info(name, f, [2])] for name in ("x", "y")]
    proto = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", *ends))
    data = proto.SerializeToString()
    with pytest.raises(OptionError, match=r"options of an ONNX file: shapes, .* got 'devce'; did you mean 'device'"):
        rlx.load(data, devce="cpu")
    with pytest.raises(OptionError, match="got 'shape'; did you mean 'shapes'"):
        rlx.load(data, shape={})
    rlx.load(data, device="cpu", shapes={"x": (2,)}).save(tmp_path / "m.rlx")
    with pytest.raises(OptionError, match="there are none, got 'shapes'"):
        rlx.load(tmp_path / "m.rlx", shapes={})
