"""Model families by the `model_type` of their configuration. A folder with config.json is one of them; so is a GGUF
file, whose metadata say as much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlx.errors import ModelError
from rlx.frontends.files import read_json
from rlx.frontends.registry import Format, Imported


def _bert(folder: Path, **options: Any) -> Imported:
    from rlx.models import bert

    return bert.read(folder, **options)


def _llama(folder: Path, **options: Any) -> Imported:
    from rlx.models import generation

    return generation.read(folder, **options)


DECODERS = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text")
"""Types of decoders of the Llama kind."""
FAMILIES: dict[str, Callable[..., Imported]] = {"bert": _bert, **dict.fromkeys(DECODERS, _llama)}
"""What reads the folder of a model, by its type."""


def recognises(source: Path | bytes) -> bool:
    """Folders that hold a configuration."""
    return isinstance(source, Path) and source.is_dir() and (source / "config.json").is_file()


def read(source: Path | bytes, **options: Any) -> Imported:
    """The model in a folder, its weights mapped. Options are those of its family. Raises ModelError."""
    assert isinstance(source, Path)
    config = read_json(source / "config.json")
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise ModelError(_refusal(source, config))
    return family(source, **options)


def _refusal(folder: Path, config: dict[str, Any]) -> str:
    """What is said of a family that there is no reader for."""
    made = config.get("architectures")
    architecture = f" ({made[0]})" if isinstance(made, list) and made else ""
    models = sorted(path.relative_to(folder).as_posix() for path in folder.glob("**/*.onnx"))
    if models:
        line = f"rlx.load({str(folder / models[0])!r}) loads the ONNX file in it"
    else:
        line = f"optimum-cli export onnx --model {folder} out, then rlx.load('out/model.onnx')"
    return (
        f"[load] expected a folder of a family that rlx reads, a model_type among {list(FAMILIES)}, got "
        f"{config.get('model_type')!r}{architecture}, in config.json: {line}"
    )


def is_gguf(source: Path | bytes) -> bool:
    """Files and bytes that begin as GGUF does."""
    if isinstance(source, bytes):
        return source.startswith(_GGUF)
    if not source.is_file():
        return False
    with open(source, "rb") as file:
        return file.read(len(_GGUF)) == _GGUF


def _read_gguf(source: Path | bytes, **options: Any) -> Imported:
    from rlx.models import gguf

    return gguf.read(source, **options)


_GGUF = b"GGUF"
GGUF = Format("a GGUF file with a decoder", is_gguf, _read_gguf, ("keep_dtype",))
FORMAT = Format("a folder with config.json and model.safetensors", recognises, read, ("token_types", "keep_dtype"))
