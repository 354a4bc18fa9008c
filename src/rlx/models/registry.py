"""Model families by the `model_type` of their configuration. A folder with config.json is one of them."""

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


FAMILIES: dict[str, Callable[..., Imported]] = {"bert": _bert}
"""What reads the folder of a model, by its type."""


def recognises(source: Path | bytes) -> bool:
    """Folders that hold a configuration."""
    return isinstance(source, Path) and source.is_dir() and (source / "config.json").is_file()


def read(source: Path | bytes, **options: Any) -> Imported:
    """The model in a folder, its weights mapped. Options are those of its family. Raises ModelError."""
    assert isinstance(source, Path)
    model_type = read_json(source / "config.json").get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise ModelError(f"[load] expected a model_type among {list(FAMILIES)}, got {model_type!r}, in config.json")
    return family(source, **options)


FORMAT = Format("a folder with config.json and model.safetensors", recognises, read, ("token_types", "keep_dtype"))
