"""Formats of others, known by their first bytes, their file names in folders, or their classes: what they are, and the
line that makes something of them that rlx loads. Nothing here opens them, and no framework is imported.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlx.errors import ModelError
from rlx.records import dataclass

HEAD_BYTES = 4096
"""Of a file that are looked at."""


@dataclass(frozen=True)
class Foreign:
    """A format. `PATH` in `line` stands for the place of the file.

    what    it is, with an article
    line    what to do with it
    """

    what: str
    line: str


_EXPORT = 'torch.onnx.export(model, args, "model.onnx", dynamo=True)'
_ORIGINAL = "no converter leads back from it: export the model that it was made of to ONNX"

GGML = Foreign(
    "a GGML file of an old llama.cpp",
    "rlx reads GGUF, which took its place: load such a file, or the folder of Hugging Face that it was made of",
)
TORCHSCRIPT = Foreign(
    "a TorchScript program", "torch.onnx.export(torch.jit.load('PATH'), args, 'model.onnx', dynamo=False) converts it"
)
EXPORTED = Foreign(
    "a program of torch.export",
    "torch.onnx.export(torch.export.load('PATH'), (), 'model.onnx', dynamo=True) converts it",
)
CHECKPOINT = Foreign(
    "a checkpoint of torch, weights without a program",
    f"model.load_state_dict(torch.load('PATH', weights_only=True)), then {_EXPORT}",
)
PICKLE = Foreign("a pickle of Python, which rlx never opens because that runs code", CHECKPOINT.line)
KERAS = Foreign("a model of Keras", "keras.models.load_model('PATH').export('model.onnx', format='onnx') converts it")
TFLITE = Foreign("a model of TFLite", "python -m tf2onnx.convert --tflite PATH --output model.onnx converts it")
SAVED_MODEL = Foreign(
    "a SavedModel of TensorFlow", "python -m tf2onnx.convert --saved-model PATH --output model.onnx converts it"
)
GRAPH_DEF = Foreign(
    "a graph of TensorFlow",
    "python -m tf2onnx.convert --graphdef PATH --inputs … --outputs … --output model.onnx converts it",
)
OPENVINO = Foreign("a model of OpenVINO", _ORIGINAL)
OPENVINO_WEIGHTS = Foreign("weights of a model of OpenVINO", _ORIGINAL)
ORT = Foreign("a model in onnxruntime's own format", "load the ONNX file that it was made of")
EXECUTORCH = Foreign("a program of ExecuTorch", f"export the module that it was made of: {_EXPORT}")
MLIR = Foreign(
    "a program in MLIR (StableHLO, or another dialect)",
    "rlx reads no MLIR yet: jax2onnx.to_onnx(function, inputs, return_mode='file', output_path='model.onnx') exports "
    "functions of jax, and rlx.jit compiles functions of arrays",
)
COREML = Foreign("a model of Core ML", _ORIGINAL)
NPY = Foreign("an array of NumPy", "np.load('PATH') opens it: an input of a model, not a model")
NPZ = Foreign("arrays of NumPy", "np.load('PATH') opens them: inputs or weights of a model, not a model")
SAFETENSORS = Foreign(
    "weights without a program (safetensors)", "rlx.load('FOLDER') takes the folder that it is in, with config.json"
)
COMPILED = Foreign("a program that rlx compiled", "rlx.load_compiled('PATH') opens it")
HDF5 = Foreign("an HDF5 file, as Keras wrote", KERAS.line)
NCNN = Foreign("a network of ncnn", _ORIGINAL)
GIT_LFS = Foreign("a pointer of Git LFS, not the file itself", "git lfs pull fetches the file")
WEB_PAGE = Foreign("a web page, not a model", "the download gave a page: look at it, and fetch the file itself")
ONNX_TEXT = Foreign(
    "an ONNX model as text", "rlx.load(onnx.parser.parse_model(open('PATH').read())) takes what it is of"
)
CONFIGURATION = Foreign("a configuration", "rlx.load('FOLDER') takes the folder that it is in, with its weights")
TEXT = Foreign("text, not a model", "look at it, and name the file of the model")
PICTURE = Foreign("a picture", "it is an input of a model, as an array, not a model")
SOUND = Foreign("a sound", "it is an input of a model, as an array, not a model")
GZIP = Foreign("a gzip file", "unpack it first")
ZIP = Foreign("a zip archive that holds no model that rlx knows", "unpack it first")

_STARTS: tuple[tuple[bytes, Foreign], ...] = (
    (b"lmgg", GGML), (b"fmgg", GGML), (b"tjgg", GGML), (b"\x89HDF\r\n\x1a\n", HDF5),
    (b"ML\xefR", MLIR), (b"\x93NUMPY", NPY), (b"rlx-compiled-", COMPILED), (b"7767517\n", NCNN),
    (b"version https://git-lfs", GIT_LFS), (b"\x1f\x8b", GZIP),
    (b"\x89PNG\r\n", PICTURE), (b"\xff\xd8\xff", PICTURE), (b"GIF8", PICTURE), (b"RIFF", SOUND), (b"OggS", SOUND),
    (b"fLaC", SOUND), (b"ID3", SOUND),
)  # fmt: skip
_AT_4: Mapping[bytes, Foreign] = {b"TFL3": TFLITE, b"ORTM": ORT, b"ET12": EXECUTORCH}
"""Identifiers of flatbuffers."""
_OWN_HEADER = b'{"format":"rlx"'
_MLIR = re.compile(rb"\A(\s|//[^\n]*\n|#[^\n]*\n)*(module\b|func\.func\b|\"builtin\.module\")")
_PAGE = re.compile(rb"\A\s*<(!doctype html|html)", re.IGNORECASE)
_ONNX_TEXT = re.compile(rb"\A\s*<\s*ir_version\s*:")
_CONTROL = re.compile(rb"[^\t\n\f\r\x1b\x20-\x7e\x80-\xff]")
"""What no text has. An ONNX file begins with the byte 8."""
_PICKLED = re.compile(rb"\A\x80[\x02-\x05]")


def recognised(place: Path | bytes) -> Foreign | None:
    """The format of others that a file, a folder or bytes have; None for all else."""
    if isinstance(place, Path) and place.is_dir():
        return _folder(place)
    head = place[:HEAD_BYTES] if isinstance(place, bytes) else _head(place)
    for start, foreign in _STARTS:
        if head.startswith(start):
            return foreign
    if head.startswith(b"PK\x03\x04"):
        return _archive(place)
    if head[4:8] in _AT_4:
        return _AT_4[head[4:8]]
    return _by_structure(head, place.suffix if isinstance(place, Path) else "")


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""  # its reader tells why it cannot be read


def _by_structure(head: bytes, suffix: str) -> Foreign | None:
    if _PICKLED.match(head):
        return CHECKPOINT if suffix in (".pt", ".pth", ".ckpt", ".bin") else PICKLE
    if _is_safetensors(head):
        return SAFETENSORS
    if _PAGE.match(head):
        return WEB_PAGE
    if head.lstrip().startswith(b"<?xml") and b"<net" in head:
        return OPENVINO
    if _MLIR.match(head):
        return MLIR
    if head and not _CONTROL.search(head):
        return _text(head, suffix)
    return _protobuf(head, suffix)


def _text(head: bytes, suffix: str) -> Foreign | None:
    if _ONNX_TEXT.match(head):
        return ONNX_TEXT
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # not where it was cut
            return None
    return CONFIGURATION if suffix == ".json" else TEXT


def _is_safetensors(head: bytes) -> bool:
    """A header's length in 8 bytes, and JSON; rlx's own files begin so too."""
    size = int.from_bytes(head[:8], "little")
    return 2 <= size < 1 << 30 and head[8:10] in (b'{"', b"{ ", b"{}") and not head[8:].startswith(_OWN_HEADER)


def _protobuf(head: bytes, suffix: str) -> Foreign | None:
    """Messages whose second field is a message, where ONNX has the name of a producer; and TensorFlow's graphs, whose
    first field is one, where ONNX has a number."""
    if suffix in (".pb", ".pbtxt") and head[:1] == b"\x0a":
        return GRAPH_DEF
    if len(head) > 5 and head[0] == 0x08 and head[2] == 0x12:
        at = 4 if head[3] < 0x80 else 5 if head[4] < 0x80 else 6
        if head[at : at + 1] == b"\x0a":
            return COREML if suffix != ".pb" else SAVED_MODEL
    return None


_MEMBERS: tuple[tuple[Callable[[Sequence[str]], bool], Foreign], ...] = (
    (lambda names: any(n.endswith(("archive_format", "serialized_exported_program.json")) for n in names), EXPORTED),
    (lambda names: any(n.endswith(("/constants.pkl", "/bytecode.pkl")) or "/code/" in n for n in names), TORCHSCRIPT),
    (lambda names: any(n.endswith("data.pkl") for n in names), CHECKPOINT),
    (lambda names: "config.json" in names and any(n.endswith(".weights.h5") for n in names), KERAS),
    (lambda names: bool(names) and all(n.endswith(".npy") for n in names), NPZ),
    (lambda names: any(n.rpartition("/")[2] == "saved_model.pb" for n in names), SAVED_MODEL),
    (lambda names: any(".mlpackage/" in n for n in names), COREML),
)
"""Names of what lies in a zip archive."""


def _archive(place: Path | bytes) -> Foreign:
    try:
        with zipfile.ZipFile(io.BytesIO(place) if isinstance(place, bytes) else place) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return ZIP
    return next((foreign for holds, foreign in _MEMBERS if holds(names)), ZIP)


def _folder(folder: Path) -> Foreign | None:
    if any((folder / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
        return SAVED_MODEL
    if (folder / "Manifest.json").is_file() and (folder / "Data").is_dir():
        return COREML
    if folder.suffix == ".mlmodelc":
        return COREML
    if (folder / "config.json").is_file():
        return None
    models = sorted(path.name for path in folder.iterdir() if path.suffix == ".onnx")
    if models:
        return Foreign(f"a folder with {', '.join(models[:5])}", f"rlx.load('PATH/{models[0]}') loads one of them")
    return None


def refuse(foreign: Foreign, place: Path | bytes) -> ModelError:
    """The error that says what it is, and what to do."""
    path = str(place) if isinstance(place, Path) else "model"
    folder = str(place.parent) if isinstance(place, Path) else "folder"
    line = foreign.line.replace("PATH", path).replace("FOLDER", folder)
    shown = f"{path!r}, {foreign.what}" if isinstance(place, Path) else foreign.what
    return ModelError(f"[load] expected a model that rlx reads, got {shown}: {line}")


# objects of others

_OBJECTS: Mapping[str, Foreign] = {
    "torch.nn.modules.module.Module": Foreign("a module of torch", f'{_EXPORT}, then rlx.load("model.onnx")'),
    "torch.export.exported_program.ExportedProgram": Foreign(
        "a program of torch.export",
        'torch.onnx.export(program, (), "model.onnx", dynamo=True), then rlx.load("model.onnx")',
    ),
    "keras.src.models.model.Model": Foreign(
        "a model of Keras", 'model.export("model.onnx", format="onnx"), then rlx.load("model.onnx")'
    ),
    "tensorflow.python.trackable.autotrackable.AutoTrackable": Foreign("an object of TensorFlow", SAVED_MODEL.line),
    "jax._src.export._export.Exported": Foreign("a function that jax exported", MLIR.line),
    "jax._src.stages.Wrapped": Foreign("a function of jax", "rlx.jit compiles functions of arrays"),
    "onnxruntime.capi.onnxruntime_inference_collection.InferenceSession": Foreign(
        "a session of onnxruntime", "rlx.load(path) takes the file that it was made of"
    ),
    "rlx.ir.graph.Graph": Foreign("a graph of rlx", "rlx.Session(device).compile(graph) compiles it"),
    "rlx.model.Model": Foreign("a model that is loaded", "it runs as it is"),
    "rlx.runtime.compiled.CompiledGraph": Foreign("a program that is compiled", "it runs as it is"),
    "numpy.ndarray": Foreign("an array", "it is an input of a model: model(array)"),
}
"""By the full name of a class, which may be any of its bases."""
_FUNCTION = Foreign("a function", "rlx.jit(function) compiles functions of arrays")
TAKEN = "a path, bytes, a file that is open in binary mode, or an onnx.ModelProto"


def refuse_object(source: Any) -> ModelError:
    """The error for what is no file and no bytes."""
    names = [f"{cls.__module__}.{cls.__qualname__}" for cls in type(source).__mro__]
    foreign = next((_OBJECTS[name] for name in names if name in _OBJECTS), None)
    if foreign is None and callable(source) and not isinstance(source, type):
        foreign = _FUNCTION
    if foreign is None:
        return ModelError(f"[load] expected {TAKEN}, got {type(source).__name__}")
    return ModelError(f"[load] expected {TAKEN}, got {foreign.what} ({type(source).__name__}): {foreign.line}")


_WRITERS: Mapping[str, str] = {
    ".onnx": "rlx writes no ONNX; the file that the model was loaded from is one",
    ".mlpackage": "`rlx convert MODEL -o PATH` writes one",
    ".mlmodel": "`rlx convert MODEL -o model.mlpackage` writes the format of today",
    ".safetensors": "safetensors.numpy.save_file(model.graph.data, 'PATH') writes the weights",
    ".npz": "np.savez('PATH', **model.graph.data) writes the weights",
    **dict.fromkeys((".pt", ".pth", ".pt2", ".gguf", ".keras", ".h5", ".tflite", ".pb", ".xml", ".mlir", ".ort",
                     ".pte"), "rlx does not write that format"),
}  # fmt: skip


def check_suffix(path: Path) -> None:
    """Raises ModelError for the name of a format that is not the one which rlx writes."""
    reason = _WRITERS.get(path.suffix.lower())
    if reason is not None:
        own = path.with_suffix(".rlx").name
        raise ModelError(
            f"[save] expected a name such as {own!r}, as model.save writes rlx's own format, got {path.name!r}: "
            f"{reason.replace('PATH', str(path))}"
        )
