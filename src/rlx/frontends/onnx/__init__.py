"""ONNX models: `read` gives the program in a file, or one error that names everything that stands in its way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlx.frontends.registry import Format, Imported


def recognises(source: Path | bytes) -> bool:
    """Files and bytes that no other format claims."""
    return isinstance(source, bytes) or source.is_file()


def read(source: Path | bytes, **options: Any) -> Imported:
    """The program of an ONNX model, its weights as views of the file.

    shapes            shapes of inputs by name, for a model that leaves them open or to narrow them down; for a
                      sequence a list with the shape of each element, for an optional that has none None
    values            arrays of inputs by name, to fix them: they are no inputs any more. For inputs that decide shapes
    keep_subnormals   True leaves subnormal weights as they are; by default they become zero, as they slow a CPU down
                      thirtyfold and change no result that matters
    Raises ModelError, and UnsupportedOp that names every node that cannot be imported.
    """
    from rlx.frontends.onnx.importer import import_model
    from rlx.frontends.onnx.model import ModelFile

    return import_model(ModelFile(source), **options)


FORMAT = Format("an ONNX file", recognises, read, ("shapes", "values", "keep_subnormals"))
