"""The cases of `onnx.backend.test` that the onnx package carries, and how one of them is run on a device of rlx.

A case is right by the standard's own comparison and tolerances (`Runner.assert_similar_outputs`).
"""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import rlx
from rlx.errors import UnsupportedOp

KINDS = ("node", "simple", "real", "pytorch-converted", "pytorch-operator")
LATE = "only when the graph runs"
"""What an importer says of numbers that it needs and that an input brings."""
MAX_FIXED = 1024  # integers
MAX_FIXED_FLOATS = 16  # such as scales


@dataclass(frozen=True)
class Outcome:
    """How a case went.

    status   right, wrong, unsupported, error, crash or hang
    fixed    inputs whose values were given when the model was loaded, since shapes hang on them
    """

    status: str
    reason: str = ""
    fixed: tuple[str, ...] = ()


FEW_BITS = re.compile(r"test_cast(?:like)?_FLOAT(?:16)?_to_(U?)INT([24])(?:_|$)")
"""Casts of floats to integers of few bits."""


def load_cases(only: str = "") -> list[Any]:
    """All cases whose name holds `only`, ordered by kind and name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases = [case for kind in KINDS for case in sorted(load_model_tests(kind=kind), key=lambda c: str(c.name))]
    return [case for case in cases if only in case.name]


def run_case(case: Any, device: str) -> Outcome:
    """Loads, compiles and runs a case, and compares what it gives. Never raises."""
    fixed: tuple[str, ...] = ()
    try:
        proto, source, data_sets = _contents(case)
        shapes = _list_shapes(proto, data_sets)
        fixed, values = _fixed_inputs(proto, source, data_sets, device, shapes)
        model = rlx.load(source, device=device, cache=False, values=values, shapes=shapes)
        for inputs, outputs in data_sets:
            named = dict(zip(_input_names(proto), inputs, strict=False))
            results = model.run({name: named[name] for name in model.input_names})
            _compare(case, *_defined(case, inputs, outputs, results))
    except AssertionError as error:
        return Outcome("wrong", _line(error), fixed)
    except UnsupportedOp as error:
        return Outcome("unsupported", _reason(error), fixed)
    except Exception as error:  # whatever goes wrong is this case's outcome; the score counts it
        return Outcome("error", f"{type(error).__name__}: {_line(error)}", fixed)
    return Outcome("right", fixed=fixed)


def _list_shapes(proto: Any, data_sets: Any) -> dict[str, Any]:
    """What the import must be told of inputs that are lists of arrays, or optionals without an element."""
    first_inputs = zip(_input_names(proto), data_sets[0][0], strict=False)
    return {
        n: None if a is None else [part.shape for part in a]
        for n, a in first_inputs
        if a is None or isinstance(a, list)
    }


def _defined(
    case: Any, inputs: Sequence[Any], expected: Sequence[Any], actual: Sequence[Any]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """What the standard says of the results. Of floats that are no integers of few bits it says nothing: values
    expected of these are what ml_dtypes makes of them, and differ from version to version."""
    few = FEW_BITS.match(case.name)
    if few is None:
        return expected, actual
    bits, signed = int(few[2]), not few[1]
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    whole = np.trunc(np.asarray(inputs[0]).astype(np.float32))
    there = (whole >= low) & (whole <= high)
    return [np.asarray(expected[0])[there]], [np.asarray(actual[0])[there]]


def _compare(case: Any, expected: Sequence[Any], actual: Sequence[Any]) -> None:
    from onnx.backend.test.runner import Runner

    lengths = [[len(each) if isinstance(each, list) else None for each in side] for side in (expected, actual)]
    assert lengths[0] == lengths[1], f"lists of {lengths[1]} arrays for {lengths[0]}"
    expected, actual = (
        [part for each in side for part in (each if isinstance(each, list) else [each])] for side in (expected, actual)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Runner.assert_similar_outputs(expected, actual, rtol=case.rtol, atol=case.atol, model_dir=case.model_dir)


def _line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " | ".join(lines[:4])[:300]


def _reason(error: UnsupportedOp) -> str:
    """The part of the message that tells the node's trouble."""
    lines = str(error).splitlines()
    return (lines[1] if len(lines) > 1 else lines[0]).strip()[:300]


def _contents(case: Any) -> tuple[Any, Any, list[tuple[list[Any], list[Any]]]]:
    """The model, what to load it from, and pairs of inputs and outputs."""
    if case.model is not None:
        sets = [([_array(v) for v in ins], [_array(v) for v in outs]) for ins, outs in case.data_sets]
        return case.model, case.model.SerializeToString(), sets
    if case.model_dir is not None:
        path = Path(case.model_dir) / "model.onnx"
        proto = onnx.load(path, load_external_data=False)
        folders = sorted(glob.glob(os.path.join(case.model_dir, "test_data_set*")))
        sets = [(_stored(f, "input", proto.graph.input), _stored(f, "output", proto.graph.output)) for f in folders]
        return proto, path, sets
    if str(case.url).startswith("onnx/backend/test/data/light/"):
        path = Path(onnx.__file__).parent.parent / case.url
        proto = onnx.load(path)
        return proto, path, [_light(proto, path)]
    raise FileNotFoundError(f"its files are not part of the onnx package: {case.url}")


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _stored(folder: str, what: str, declared: Any) -> list[Any]:
    """Values of `<what>_0.pb`, `<what>_1.pb` and so on."""
    count = len(glob.glob(os.path.join(folder, f"{what}_*.pb")))
    return [_read(Path(folder) / f"{what}_{i}.pb", declared[i].type) for i in range(count)]


def _read(path: Path, of: Any) -> Any:
    data = path.read_bytes()
    if of.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if of.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _light(proto: Any, path: Path) -> tuple[list[Any], list[Any]]:
    """Inputs as the standard makes them for models without data, and the outputs that it keeps beside the model."""
    from onnx.backend.test.runner import Runner

    weights = {t.name for t in proto.graph.initializer}
    inputs = [Runner.generate_dummy_data(x, name=x.name) for x in proto.graph.input if x.name not in weights]
    stem = str(path.with_suffix(""))
    outputs = [_read(Path(f"{stem}_output_{i}.pb"), o.type) for i, o in enumerate(proto.graph.output)]
    return inputs, outputs


def _input_names(proto: Any) -> list[str]:
    weights = {t.name for t in proto.graph.initializer}
    return [declared.name for declared in proto.graph.input if declared.name not in weights]


def _fixed_inputs(
    proto: Any, source: Any, data_sets: Any, device: str, shapes: dict[str, Any]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """As few inputs as must have their values known at the import, with these values."""
    if _loads(source, device, {}, shapes) or len(data_sets) != 1:
        return (), {}
    first_inputs = dict(zip(_input_names(proto), data_sets[0][0], strict=False))
    values = {n: a for n, a in first_inputs.items() if isinstance(a, np.ndarray) and _may_decide_shapes(a)}
    if not _loads(source, device, values, shapes):
        return (), {}
    for name in list(values):
        rest = {n: a for n, a in values.items() if n != name}
        if _loads(source, device, rest, shapes):
            values = rest
    return tuple(values), values


def _may_decide_shapes(array: Any) -> bool:
    if array.dtype.kind in "iub":
        return bool(array.size <= MAX_FIXED)
    return bool(array.ndim <= 1 and array.size <= MAX_FIXED_FLOATS)


def _loads(source: Any, device: str, values: dict[str, Any], shapes: dict[str, Any]) -> bool:
    """Whether the import needs no further values; other failures count as loading, they show later."""
    try:
        rlx.load(source, device=device, values=values, shapes=shapes)
    except UnsupportedOp as error:
        return LATE not in str(error)
    except Exception:  # `run_case` meets it again and reports it
        return True
    return True
