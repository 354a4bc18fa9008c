"""Formats of others: each is told by its bytes, with the line that makes something of it that rlx loads."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import rlx
from rlx.frontends import foreign


def relu() -> onnx.ModelProto:
    ends = [[helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 2])] for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", *ends)
    return helper.make_model(graph, producer_name="test", opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def saved_by(write: Callable[[Any], None]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def torch_module() -> Any:
    torch = pytest.importorskip("torch")
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())


def torchscript() -> bytes:
    torch = pytest.importorskip("torch")
    return saved_by(partial(torch.jit.save, torch.jit.trace(torch_module(), torch.ones(1, 2))))


def exported() -> bytes:
    torch = pytest.importorskip("torch")
    return saved_by(partial(torch.export.save, torch.export.export(torch_module(), (torch.ones(1, 2),))))


def checkpoint(zipped: bool = True) -> bytes:
    torch = pytest.importorskip("torch")
    state = torch_module().state_dict()
    return saved_by(lambda file: torch.save(state, file, _use_new_zipfile_serialization=zipped))


def stablehlo() -> str:
    jax = pytest.importorskip("jax")
    return str(jax.jit(lambda x: x + 1).lower(jax.numpy.ones(3)).as_text())


def mlir_bytecode() -> bytes:
    jax = pytest.importorskip("jax")
    exported = pytest.importorskip("jax.export")
    return bytes(exported.export(jax.jit(lambda x: x + 1))(jax.numpy.ones(3)).mlir_module_serialized)


def core_ml() -> bytes:
    proto = pytest.importorskip("coremltools.proto.Model_pb2")
    model = proto.Model(specificationVersion=7)
    model.description.input.add().name = "x"
    model.neuralNetwork.layers.add().name = "relu"
    return bytes(model.SerializeToString())


def ort_format(folder: Path) -> bytes:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    runtime.InferenceSession(relu().SerializeToString(), options, providers=["CPUExecutionProvider"])
    return (folder / "optimised.ort").read_bytes()


def safetensors_file() -> bytes:
    save = pytest.importorskip("safetensors.numpy").save
    return bytes(save({"w": np.ones(3, np.float32)}))


def compiled(folder: Path) -> bytes:
    rlx.load(relu(), device="cpu").compiled.save(folder / "program")
    return (folder / "program").read_bytes()


SAVED_MODEL = b"\x08\x01\x12\x0c\x0a\x0a\x0a\x001.15.0\x22\x00"
HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(88)
FILES: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "m.ggml": (lambda _: b"tjgg" + bytes(28), r"a GGML file of an old llama\.cpp: rlx reads GGUF"),
    "script.pt": (
        lambda _: torchscript(),
        r"a TorchScript program: torch\.onnx\.export\(torch\.jit\.load\('.*script\.pt'\)",
    ),
    "m.pt2": (
        lambda _: exported(),
        r"a program of torch\.export: torch\.onnx\.export\(torch\.export\.load\('.*m\.pt2'\)",
    ),
    "m.pth": (lambda _: checkpoint(), r"a checkpoint of torch, weights without a program: model\.load_state_dict"),
    "old.pth": (lambda _: checkpoint(False), r"a checkpoint of torch"),
    "m.pkl": (lambda _: pickle.dumps({"w": [1, 2]}), r"a pickle of Python, which rlx never opens"),
    "m.keras": (
        lambda _: zipped({"metadata.json": b"{}", "config.json": b"{}", "model.weights.h5": HDF5}),
        r"a model of Keras: keras\.models\.load_model\('.*m\.keras'\)\.export\('model\.onnx', format='onnx'\)",
    ),
    "m.h5": (lambda _: HDF5, r"an HDF5 file, as Keras wrote: keras\.models\.load_model"),
    "m.tflite": (
        lambda _: b"\x1c\x00\x00\x00TFL3" + bytes(24),
        r"a model of TFLite: python -m tf2onnx\.convert --tflite \S*m\.tflite",
    ),
    "saved_model.pb": (lambda _: SAVED_MODEL, r"a SavedModel of TensorFlow: python -m tf2onnx"),
    "frozen.pb": (lambda _: b"\x0a\x0f\x0a\x01x\x12\x0bPlaceholder", r"a graph of TensorFlow: .* --graphdef"),
    "m.xml": (lambda _: b'<?xml version="1.0"?>\n<net name="m" version="11"><layers/></net>', r"a model of OpenVINO"),
    "m.mlir": (lambda _: stablehlo().encode(), r"a program in MLIR .*rlx\.jit compiles functions"),
    "m.mlirbc": (lambda _: mlir_bytecode(), r"a program in MLIR"),
    "m.mlmodel": (lambda _: core_ml(), r"a model of Core ML: no converter leads back"),
    "m.npy": (lambda _: saved_by(lambda f: np.save(f, np.ones(3))), r"an array of NumPy: np\.load\('.*m\.npy'\)"),
    "m.npz": (lambda _: saved_by(lambda f: np.savez(f, a=np.ones(3))), r"arrays of NumPy: np\.load"),
    "m.safetensors": (lambda _: safetensors_file(), r"weights without a program .*: rlx\.load\('.*'\) takes"),
    "m.ort": (ort_format, r"a model in onnxruntime's own format: load the ONNX file"),
    "m.pte": (lambda _: b"\x18\x00\x00\x00ET12" + bytes(24), r"a program of ExecuTorch: .*torch\.onnx\.export"),
    "m.param": (lambda _: b"7767517\n1 1\nInput x 0 1 x\n", r"a network of ncnn"),
    "program": (compiled, r"a program that rlx compiled: rlx\.load_compiled\('.*program'\) opens it"),
    "lfs.onnx": (
        lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        r"a pointer of Git LFS, not the file itself: git lfs pull",
    ),
    "page.onnx": (lambda _: b"\n<!DOCTYPE html><html></html>", r"a web page, not a model"),
    "model.onnxtxt": (
        lambda _: b"<\n   ir_version: 8,\n   opset_import: [\"\" : 17]\n>\ng (float[n] x) => (float[n] y) {}",
        r"an ONNX model as text: rlx\.load\(onnx\.parser\.parse_model\(open\('.*model\.onnxtxt'\)",
    ),
    "config.json": (lambda _: b'{"model_type": "bert"}', r"a configuration: rlx\.load\('.*'\) takes the folder"),
    "script.py": (lambda _: "import rlx  # größer\n".encode() * 300, r"text, not a model: look at it"),
    "face.png": (lambda _: b"\x89PNG\r\n\x1a\n" + bytes(20), r"a picture: it is an input of a model"),
    "word.wav": (lambda _: b"RIFF\x24\0\0\0WAVEfmt ", r"a sound: it is an input of a model"),
    "m.onnx.gz": (lambda _: gzip.compress(relu().SerializeToString()), r"a gzip file: unpack it first"),
    "m.zip": (lambda _: zipped({"model.onnx": relu().SerializeToString()}), r"a zip archive that holds no model"),
    "broken.zip": (lambda _: b"PK\x03\x04" + bytes(30), r"a zip archive that holds no model"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_told_by_its_bytes(name: str, tmp_path: Path) -> None:
    make, message = FILES[name]
    data = make(tmp_path)
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(rlx.ModelError, match=rf"\[load\] expected a model that rlx reads, got '.*', {message}"):
        rlx.load(path)
    if path.suffix not in (".pth", ".pb", ".json"):  # whose name tells it
        what = message.split(":")[0]
        with pytest.raises(rlx.ModelError, match=rf"\[load\] expected a model that rlx reads, got {what}"):
            rlx.load(data)


def test_folders_are_told_by_what_lies_in_them(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "saved_model.pb").write_bytes(SAVED_MODEL)
    with pytest.raises(rlx.ModelError, match=r"a SavedModel of TensorFlow: .* --saved-model \S*saved "):
        rlx.load(saved)
    package = tmp_path / "m.mlpackage"
    (package / "Data").mkdir(parents=True)
    (package / "Manifest.json").write_text("{}")
    with pytest.raises(rlx.ModelError, match=r"m\.mlpackage', a model of Core ML"):
        rlx.load(package)
    models = tmp_path / "models"
    models.mkdir()
    (models / "b.onnx").write_bytes(relu().SerializeToString())
    with pytest.raises(rlx.ModelError, match=r"a folder with b\.onnx: rlx\.load\('.*models/b\.onnx'\) loads one"):
        rlx.load(models)


def test_families_that_there_is_no_reader_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gptj", "architectures": ["GPTJForCausalLM"]}))
    message = r"among \['bert', 'llama', .*\], got 'gptj' \(GPTJForCausalLM\), in config\.json: optimum-cli export onnx"
    with pytest.raises(rlx.ModelError, match=message):
        rlx.load(tmp_path)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_bytes(relu().SerializeToString())
    with pytest.raises(rlx.ModelError, match=r"rlx\.load\('.*onnx/model\.onnx'\) loads the ONNX file in it"):
        rlx.load(tmp_path)


def test_objects_are_told_by_their_class() -> None:
    told: list[tuple[Any, str]] = [
        (lambda x: x, r"got a function \(function\): rlx\.jit\(function\)"),
        (np.exp, r"rlx\.jit\(function\)"),
        (rlx.Graph(), r"a graph of rlx \(Graph\): rlx\.Session\(device\)\.compile\(graph\)"),
        (rlx.load(relu()), r"a model that is loaded"),
        (np.ones(3), r"an array \(ndarray\): it is an input"),
        (None, r"a path, bytes, a file that is open in binary mode, or an onnx\.ModelProto, got NoneType\b"),
        (3, r"got int\b"),
    ]
    for source, message in told:
        with pytest.raises(rlx.ModelError, match=message):
            rlx.load(source)
    torch = pytest.importorskip("torch")
    with pytest.raises(rlx.ModelError, match=r"a module of torch \(Sequential\): torch\.onnx\.export\(model, args"):
        rlx.load(torch_module())
    with pytest.raises(rlx.ModelError, match=r"a program of torch\.export \(ExportedProgram\)"):
        rlx.load(torch.export.export(torch_module(), (torch.ones(1, 2),)))
    scripted: Any = torch.jit.trace(torch_module(), torch.ones(1, 2))
    with pytest.raises(rlx.ModelError, match=r"a module of torch"):
        rlx.load(scripted)


def test_paths_bytes_files_and_protos_are_taken(tmp_path: Path) -> None:
    proto = relu()
    data = proto.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    x = np.array([[-1, 2]], np.float32)
    with open(tmp_path / "m.onnx", "rb") as file:
        sources: list[Any] = [tmp_path / "m.onnx", str(tmp_path / "m.onnx"), data, bytearray(data), memoryview(data),
                              io.BytesIO(data), file, proto]  # fmt: skip
        for source in sources:
            model = rlx.load(source, device="reference")
            np.testing.assert_array_equal(model(x)["y"], [[0, 2]])
    with pytest.raises(rlx.ModelError, match=r"a file in binary mode, open\(path, 'rb'\), got str"):
        rlx.load(io.StringIO("x"))  # type: ignore[arg-type]
    assert foreign.recognised(data) is None and foreign.recognised(tmp_path / "m.onnx") is None


def test_a_model_is_not_saved_under_the_name_of_another_format(tmp_path: Path) -> None:
    model = rlx.load(relu())
    for name, message in {
        "m.onnx": r"a name such as 'm\.rlx', as model\.save writes rlx's own format, got 'm\.onnx': rlx writes no ONNX",
        "m.mlpackage": r"rlx convert MODEL -o \S*m\.mlpackage",
        "m.GGUF": r"got 'm\.GGUF'",
        "m.safetensors": r"safetensors\.numpy\.save_file\(model\.graph\.data",
    }.items():
        with pytest.raises(rlx.ModelError, match=message):
            model.save(tmp_path / name)
        assert not (tmp_path / name).exists()
    model.save(tmp_path / "m.rlx")
    assert rlx.load(tmp_path / "m.rlx").format == "rlx"


def test_options_of_others_are_told_what_they_are_called_here() -> None:
    proto = relu()
    with pytest.raises(rlx.OptionError, match=r"expected options of rlx\.load, got 'providers'; device= names"):
        rlx.load(proto, providers=["CPUExecutionProvider"])
    with pytest.raises(rlx.OptionError, match=r"got 'thread'; did you mean 'threads'"):
        rlx.load(proto, thread=1)
    with pytest.raises(rlx.OptionError, match=r"got 'compil'; did you mean 'compile'"):
        rlx.load(proto, compil="before")


def test_inputs_and_outputs_have_names_dtypes_and_dims(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(relu().SerializeToString())
    model = rlx.load(tmp_path / "m.onnx", device="cpu")
    (x,), (y,) = model.inputs, model.outputs
    assert (x.name, x.dtype, [str(dim) for dim in x.shape]) == ("x", rlx.f32, ["n", "2"])
    assert (str(x), str(y)) == ("x: f32[n, 2]", "y: f32[n, 2]")
    model(np.ones((3, 2), np.float32))
    assert model.inputs == (x,) and model.outputs == (y,)
    with pytest.raises(rlx.InputError, match=r"got a mapping: run\(inputs, outputs\) has the inputs first"):
        model.run(None, {"x": np.ones((3, 2), np.float32)})  # type: ignore[arg-type]
