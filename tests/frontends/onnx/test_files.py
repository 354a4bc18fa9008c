"""Files as they come: damaged, hostile, big, split up. Each gives a clear error or the right program."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from build import I64, F, model, run
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx.errors import ModelError, RlxError, UnsupportedOp
from rlx.frontends.files import flush_subnormals
from rlx.frontends.onnx.external import Folder
from rlx.frontends.onnx.wire import lift

W = np.random.default_rng(0).standard_normal((64, 64)).astype("f4")


def linear(**options: Any) -> onnx.ModelProto:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    return model([node], {"x": (F, ["n", 64])}, {"y": F}, {"w": W}, **options)


@pytest.mark.parametrize("data", [b"", b"\0", b"garbage that is no protobuf at all", bytes(range(256)) * 9])
def test_no_models(data: bytes) -> None:
    with pytest.raises(ModelError, match=r"\[onnx\]|text, not a model"):
        rlx.load(data)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        rlx.load(tmp_path / "nothing.onnx")
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(ModelError, match="empty file"):
        rlx.load(tmp_path / "empty.onnx")
    with pytest.raises(ModelError):
        rlx.load(tmp_path)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_truncated_files(share: float) -> None:
    data = linear().SerializeToString()
    with pytest.raises(ModelError):
        rlx.load(data[: int(len(data) * share)])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_files_raise_nothing_but_our_errors(data: Any) -> None:
    raw = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RlxError):
        rlx.load(bytes(raw), device="reference")


def _small() -> bytes:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["b"]),
        helper.make_node("Unsqueeze", ["b", "zeros"], ["b1"]),
        helper.make_node("Concat", ["b1", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ]
    fixed = {"zero": np.int64(0), "zeros": np.array([0]), "rest": np.array([2, -1])}
    return model(nodes, {"x": (F, ["batch", 4])}, {"y": F}, fixed).SerializeToString()


SMALL = _small()


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    onnx.save(linear(), tmp_path / "m.onnx")
    model = rlx.load(tmp_path / "m.onnx", device="reference")
    data = model.graph.data["w"]
    assert not data.flags.owndata and not data.flags.writeable
    np.testing.assert_array_equal(data, W)
    x = np.ones((3, 64), "f4")
    np.testing.assert_allclose(model(x)["y"], x @ W, rtol=1e-5, atol=1e-5)


def test_lift_leaves_a_small_rest_that_parses() -> None:
    data = linear().SerializeToString()
    lifted = lift(memoryview(data))
    assert len(lifted.skeleton) < 1024 and len(lifted.extents) == 1
    offset, length = lifted.extents[0]
    assert data[offset : offset + length] == W.tobytes()
    assert onnx.ModelProto.FromString(lifted.skeleton).graph.node[0].name == "product"


def test_memory_of_a_load_is_that_of_the_file(tmp_path: Path) -> None:
    big = np.ones((4096, 4096), "f4")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    onnx.save(model([node], {"x": (F, ["n", 4096])}, {"y": F}, {"w": big}), tmp_path / "m.onnx")
    code = (
        "import resource, sys, onnx, rlx, rlx.frontends.onnx.importer\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "rlx.load(sys.argv[1], device='reference')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.onnx")], capture_output=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(out.stdout) * unit < 1.2 * big.nbytes
    assert resource.getpagesize()


@pytest.mark.parametrize(
    "tensor, words",
    [
        (TensorProto(name="w", data_type=1, dims=[1 << 40], raw_data=b"\0" * 4), "bytes"),
        (TensorProto(name="w", data_type=1, dims=[1 << 62, 1 << 62], float_data=[1]), "numbers"),
        (TensorProto(name="w", data_type=1, dims=[-1], raw_data=b"\0" * 4), "not negative"),
        (TensorProto(name="w", data_type=7, dims=[2], int64_data=[1]), "numbers"),
        (TensorProto(name="w", data_type=22, dims=[1 << 50], int32_data=[1]), "numbers"),
    ],
)
def test_tensors_that_lie_about_their_size(tensor: TensorProto, words: str) -> None:
    proto = model([helper.make_node("Identity", ["w"], ["y"])], {}, {"y": 0})
    proto.graph.initializer.append(tensor)
    with pytest.raises(ModelError, match=words):
        rlx.load(proto.SerializeToString())


@pytest.mark.parametrize("code, raw", [(21, [0x21, 0x03]), (22, [0xF1, 0x08]), (9, [0, 7, 1]), (16, [0x80, 0x3F] * 3)])
def test_packed_and_narrow_tensors(code: int, raw: list[int]) -> None:
    proto = model([helper.make_node("Identity", ["w"], ["y"])], {}, {"y": 0})
    proto.graph.initializer.append(TensorProto(name="w", data_type=code, dims=[3], raw_data=bytes(raw)))
    expected = {21: [1, 2, 3], 22: [1, -1, -8], 9: [False, True, True], 16: [1, 1, 1]}[code]
    assert run(proto)[0].astype("f4").tolist() == expected


def test_every_dtype_in_every_storage() -> None:
    for code, values in {1: [1.5], 10: [1.5], 11: [1.5], 7: [-3], 6: [-3], 3: [-3], 2: [250], 12: [4e9], 13: [1e19],
                         9: [True], 16: [1.5], 14: [1 + 2j]}.items():  # fmt: skip
        for raw in (False, True):
            dtype = helper.tensor_dtype_to_np_dtype(code)
            array = np.array(values * 2).astype(dtype)
            tensor = numpy_helper.from_array(array, "w") if raw else helper.make_tensor("w", code, [2], array.tolist())
            proto = model([helper.make_node("Identity", ["w"], ["y"])], {}, {"y": 0})
            proto.graph.initializer.append(tensor)
            (actual,) = run(proto)
            assert actual.dtype == dtype and actual.tolist() == array.tolist(), code


def test_subnormal_weights_become_zero_unless_told_otherwise() -> None:
    tiny = W.copy()
    tiny[0, :3] = 1e-40, -1e-42, 2e-38
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    data = model([node], {"x": (F, ["n", 64])}, {"y": F}, {"w": tiny}).SerializeToString()
    flushed = rlx.load(data, device="reference").graph.data["w"]
    assert flushed[0, :2].tolist() == [0, 0] and flushed[0, 2] == np.float32(2e-38)
    np.testing.assert_array_equal(flushed[1:], tiny[1:])
    subnormal = rlx.load(data, device="reference", keep_subnormals=True).graph.data["w"]
    np.testing.assert_array_equal(subnormal, tiny)


def test_flush_copies_only_what_it_must() -> None:
    for dtype in ("f4", "f8"):
        clean = np.array([0, -0.0, np.finfo(dtype).tiny, np.inf, np.nan, -1], dtype)
        assert flush_subnormals(clean) is clean
        dirty = np.append(clean, np.finfo(dtype).tiny / 2).astype(dtype)
        np.testing.assert_array_equal(flush_subnormals(dirty), np.append(clean, 0).astype(dtype))


# external data


def save_external(folder: Path, location: str, content: bytes | None = None, offset: int = 0) -> Path:
    proto = linear()
    tensor = proto.graph.initializer[0]
    raw = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(len(raw)))):
        tensor.external_data.add(key=key, value=value)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    if content is None:
        (folder / location).write_bytes(b"\0" * offset + raw)
    return folder / "m.onnx"


def test_external_data_is_mapped(tmp_path: Path) -> None:
    model = rlx.load(save_external(tmp_path, "weights.bin", offset=4096), device="reference")
    np.testing.assert_array_equal(model.graph.data["w"], W)
    assert not model.graph.data["w"].flags.owndata


def test_external_data_that_onnx_writes(tmp_path: Path) -> None:
    onnx.save(linear(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    np.testing.assert_array_equal(rlx.load(tmp_path / "m.onnx", device="reference").graph.data["w"], W)


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/passwd", "a/../../secret", "..\\secret", "C:\\secret", "", "x\0y", "nothing", "."]
)
def test_external_data_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(W.tobytes())
    path = save_external(tmp_path / "model", location, content=b"")
    with pytest.raises(ModelError, match=r"inside the model's folder|location"):
        rlx.load(path)


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(W.tobytes())
    path = save_external(tmp_path / "model", "weights.bin", content=b"")
    (tmp_path / "model" / "weights.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match="link that leads out"):
        rlx.load(path)
    (tmp_path / "model" / "weights.bin").unlink()
    os.link(tmp_path / "secret", tmp_path / "model" / "weights.bin")
    with pytest.raises(ModelError, match="hard link"):
        rlx.load(path)
    nested = save_external(tmp_path / "other", "sub/weights.bin", content=b"")
    (tmp_path / "other" / "sub").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "weights.bin").write_bytes(W.tobytes())
    with pytest.raises(ModelError, match="link that leads out"):
        rlx.load(nested)


def test_external_data_outside_of_its_file_is_refused(tmp_path: Path) -> None:
    path = save_external(tmp_path, "weights.bin")
    (tmp_path / "weights.bin").write_bytes(b"\0" * 100)
    with pytest.raises(ModelError, match="external data inside of"):
        rlx.load(path)
    with pytest.raises(ModelError, match="external data inside of"):
        Folder(tmp_path).bytes_at("weights.bin", 90, 11)


def test_special_files_are_refused(tmp_path: Path) -> None:
    path = save_external(tmp_path, "weights.bin", content=b"")
    os.mkfifo(tmp_path / "weights.bin")
    with pytest.raises(ModelError, match="regular file"):
        rlx.load(path)


def test_external_data_of_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="load a path"):
        rlx.load(save_external(tmp_path, "weights.bin").read_bytes())


# what a graph may say


def test_every_node_that_stands_in_the_way_is_named() -> None:
    nodes = [
        helper.make_node("ImageDecoder", ["x"], ["a"], name="picture"),
        helper.make_node("Add", ["a", "a"], ["b"]),
        helper.make_node("Frobnicate", ["x"], ["c"], name="strange", domain="com.example"),
        helper.make_node("TopK", ["b", "k"], ["d", "e"], name="after"),
        helper.make_node("Softmax", ["x"], ["s"], name="odd", colour=3),
        helper.make_node("Col2Im", ["x", "k", "k"], ["f"], name="late"),
        helper.make_node("Loop", ["x"], ["unused"], name="nobody asks for it", body=helper.make_graph([], "b", [], [])),
    ]
    inputs = {"x": (F, [1, 2, 4]), "k": (I64, [1])}
    proto = model(nodes, inputs, {"b": F, "c": F, "d": F, "s": F, "f": F}, domains=["com.example"])
    with pytest.raises(UnsupportedOp) as caught:
        rlx.load(proto.SerializeToString())
    message = str(caught.value)
    for words in ("got 4 of 7", "'picture' (ai.onnx.ImageDecoder", "'strange' (com.example.Frobnicate",
                  "'odd' (ai.onnx.Softmax", "colour", "'late'", "input 2 (i64[1]) is known only when"):  # fmt: skip
        assert words in message, message
    assert "nobody" not in message


def test_errors_name_node_and_file() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="encoder/product")
    proto = model([node], {"x": (F, ["n", 5])}, {"y": F}, {"w": W})
    with pytest.raises(rlx.ShapeError, match=r"\[matmul\].*5.*64.*at node 'encoder/product' \(MatMul\)"):
        rlx.load(proto.SerializeToString())


def test_unknown_names_and_cycles() -> None:
    for nodes in (
        [helper.make_node("Relu", ["nothing"], ["y"])],
        [helper.make_node("Relu", ["b"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
         helper.make_node("Add", ["a", "b"], ["y"])],
        [],
    ):  # fmt: skip
        with pytest.raises(ModelError, match="expected"):
            rlx.load(model(nodes, {"x": (F, [1])}, {"y": F}).SerializeToString())


def test_opsets_out_of_range() -> None:
    for opset in (0, 999):
        with pytest.raises(UnsupportedOp, match=f"got {opset}"):
            rlx.load(
                model(
                    [helper.make_node("Relu", ["x"], ["y"])], {"x": (F, [1])}, {"y": F}, opset=opset
                ).SerializeToString()
            )


def test_names_of_dims_become_identifiers() -> None:
    node = helper.make_node("Add", ["x", "z"], ["y"])
    proto = model([node], {"x": (F, ["batch-size", "class", 4]), "z": (F, ["batch-size", None, "2x"])}, {"y": F})
    loaded_model = rlx.load(proto.SerializeToString(), device="reference")
    assert [str(v.type) for v in loaded_model.graph.inputs] == [
        "f32[batch_size, class_, 4]",
        "f32[batch_size, z_1, d2x]",
    ]
    assert loaded_model.notes["dim 'batch-size'"] == "batch_size"
    with pytest.raises(rlx.InputError, match="batch_size"):
        loaded_model.run([np.zeros((2, 1, 4), "f4"), np.zeros((3, 1, 4), "f4")])


def test_shapes_can_be_given() -> None:
    graph = linear()
    model = rlx.load(graph.SerializeToString(), device="reference", shapes={"x": (2, 64)})
    assert str(model.graph.inputs[0].type) == "f32[2, 64]"
    with pytest.raises(rlx.GraphError, match="inputs among"):
        rlx.load(graph.SerializeToString(), device="reference", shapes={"nobody": (2,)})


def test_values_can_be_fixed() -> None:
    proto = model([helper.make_node("Reshape", ["x", "to"], ["y"])], {"x": (F, [4]), "to": (I64, [2])}, {"y": F})
    (actual,) = run(proto, np.zeros(4, "f4"), values={"to": np.array([2, 2])})
    assert actual.shape == (2, 2)


# functions and branches


def scaled(name: str = "Scaled", body: list[Any] | None = None) -> Any:
    ref = helper.make_node("Constant", [], ["k"])
    ref.attribute.add(name="value_float", ref_attr_name="by", type=onnx.AttributeProto.FLOAT)
    nodes = body or [ref, helper.make_node("Mul", ["a", "k"], ["b"], name="inner")]
    return helper.make_function(
        "local", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
        attributes=["by"],
    )  # fmt: skip


def test_functions_of_the_model() -> None:
    nodes = [
        helper.make_node("Scaled", ["x"], ["h"], domain="local", by=3.0, name="first"),
        helper.make_node("Scaled", ["h"], ["y"], domain="local", by=2.0, name="second"),
    ]
    proto = model(nodes, {"x": (F, [2])}, {"y": F}, functions=[scaled()], domains=["local"])
    loaded_model = rlx.load(proto.SerializeToString(), device="reference")
    assert loaded_model(np.array([1, 2], "f4"))["y"].tolist() == [6, 12]
    assert "second/inner" in {n.source for n in loaded_model.graph.nodes}


def test_functions_that_call_themselves_are_refused() -> None:
    again = scaled(body=[helper.make_node("Scaled", ["a"], ["b"], domain="local")])
    node = helper.make_node("Scaled", ["x"], ["y"], domain="local")
    proto = model([node], {"x": (F, [2])}, {"y": F}, functions=[again], domains=["local"])
    with pytest.raises(ModelError, match="nested at most"):
        rlx.load(proto.SerializeToString())


def test_an_if_with_a_known_condition_is_its_branch() -> None:
    def branch(op: str) -> Any:
        out = helper.make_tensor_value_info("b", F, [2])
        return helper.make_graph([helper.make_node(op, ["x"], ["b"])], op, [], [out])

    for condition, expected in ((True, [1, 2]), (False, [-1, -2])):
        node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Identity"), else_branch=branch("Neg"))
        proto = model([node], {"x": (F, [2])}, {"y": F}, {"c": np.array(condition)})
        assert run(proto, np.array([1, 2], "f4"))[0].tolist() == expected


def test_outputs_that_are_inputs_weights_or_shapes() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Shape", ["x"], ["size"])]
    proto = model(nodes, {"x": (F, ["n"])}, {"same": F, "size": I64, "w": F}, {"w": W[0]})
    same, size, w = run(proto, np.ones(3, "f4"))
    assert same.tolist() == [1, 1, 1] and size.tolist() == [3] and w.tolist() == W[0].tolist()


def test_doubling_chains_of_constants_stay_cheap() -> None:
    nodes = [helper.make_node("Cast", ["c"], ["f"], to=1), helper.make_node("Cast", ["f"], ["v0"], to=7)]
    nodes += [helper.make_node("BitwiseOr", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(60)]
    nodes += [helper.make_node("Reshape", ["x", "v60"], ["y"])]
    proto = model(nodes, {"x": (F, [6])}, {"y": F}, {"c": np.array([2, 3])})
    assert run(proto, np.zeros(6, "f4"))[0].shape == (2, 3)
