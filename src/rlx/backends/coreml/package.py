"""Converts a MIL program to a model that Core ML opens, and reads back what the model contains."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections import Counter
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from rlx import flags
from rlx.backends.coreml.build import Built, Port
from rlx.backends.coreml.library import TARGET, at_work, tools
from rlx.errors import CompileError
from rlx.records import dataclass

SUFFIX = ".mlpackage"
PORT_TYPES = {"FLOAT32": "fp32", "FLOAT16": "fp16", "INT32": "int32"}
"""Dtypes of inputs and outputs in a specification, as MIL calls them."""


@dataclass(frozen=True)
class Contents:
    """What the specification of a model says.

    version           of the format
    inputs, outputs   name → (dtype, shape)
    ops               how many there are of each op, constants left out, those of blocks too
    """

    version: int
    inputs: dict[str, tuple[str, tuple[int, ...]]]
    outputs: dict[str, tuple[str, tuple[int, ...]]]
    ops: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Converted:
    """A model that coremltools made, and its ports in the order of the graph. Its package lies in a temporary folder
    that goes with it."""

    model: Any
    inputs: list[Port]
    outputs: list[Port]


def convert(built: Built) -> Converted:
    """The model of a program. Raises CompileError if coremltools does not take it, or gives another than was asked."""
    folder = tempfile.mkdtemp(prefix="rlx-coreml-")  # a folder of coremltools' own would stay until this process ends
    try:
        converted = Converted(_model(built, str(Path(folder) / f"model{SUFFIX}")), built.inputs, built.outputs)
        check(converted, contents(converted.model.get_spec()))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(converted, shutil.rmtree, folder, ignore_errors=True)
    return converted


def _model(built: Built, path: str) -> Any:
    """What coremltools makes of a program, in a package there."""
    tools_ = tools()
    half = flags.coreml_precision() == "f16"
    try:
        with at_work(), np.errstate(all="ignore"):
            return tools_.convert(
                built.program,
                source="milinternal",
                convert_to="mlprogram",
                minimum_deployment_target=getattr(tools_.target, TARGET),
                compute_precision=tools_.precision.FLOAT16 if half else tools_.precision.FLOAT32,
                compute_units=units(),
                skip_model_load=True,
                package_dir=path,
            )
    except (RuntimeError, ValueError, TypeError, NotImplementedError, KeyError, AssertionError, IndexError) as error:
        raise CompileError(f"[coreml] coremltools did not take the program: {error}") from error


def units() -> Any:
    """What Core ML may run a model on: all that a Mac has, or, in f32, what computes in it."""
    units_ = tools().ComputeUnit
    return units_.ALL if flags.coreml_precision() == "f16" else units_.CPU_AND_GPU


def contents(spec: Any) -> Contents:
    """Reads a specification."""
    main = next(iter(spec.mlProgram.functions["main"].block_specializations.values()))
    ops: Counter[str] = Counter()
    blocks = [main]
    while blocks:
        for op in blocks.pop().operations:
            blocks.extend(op.blocks)
            ops[op.type] += op.type != "const"
    return Contents(
        spec.specificationVersion, _features(spec.description.input), _features(spec.description.output), +ops
    )


def _features(described: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    features = {}
    for feature in described:
        of = feature.type.multiArrayType
        name = of.DESCRIPTOR.enum_types_by_name["ArrayDataType"].values_by_number[of.dataType].name
        features[feature.name] = (
            {"FLOAT32": "fp32", "FLOAT16": "fp16", "INT32": "int32"}.get(name, name),
            tuple(of.shape),
        )
    return features


def check(converted: Converted, written: Contents) -> None:
    """That a specification has the inputs and outputs that were asked for. Raises CompileError."""
    sides = (("inputs", converted.inputs, written.inputs), ("outputs", converted.outputs, written.outputs))
    for what, listed, actual in sides:
        expected = {port.name: (port.mil, port.shape) for port in listed}
        if expected != actual:
            raise CompileError(f"[coreml] expected a model with the {what} {expected}, got {actual}")


def save(converted: Converted, path: str | os.PathLike[str]) -> Contents:
    """Writes the package, a folder; it appears whole or not at all, in place of one that is there. What is in it is
    read back and checked. Raises CompileError, OSError."""
    target = Path(path)
    if target.suffix != SUFFIX:
        raise CompileError(f"[save] expected a path that ends in {SUFFIX}, got {str(path)!r}")
    if target.exists() and not (target / "Manifest.json").is_file():
        raise FileExistsError(f"[save] expected a place for a package, got {str(path)!r}, which is something else")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        fresh = Path(folder) / f"model{SUFFIX}"
        with at_work():
            converted.model.save(str(fresh))
            specification = contents(tools().models.utils.load_spec(str(fresh)))
        check(converted, specification)
        if target.exists():
            shutil.move(str(target), str(Path(folder) / "old"))
        os.replace(fresh, target)
    return specification
