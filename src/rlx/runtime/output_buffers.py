"""Checks of the arrays that a caller passes for results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.errors import InputError
from rlx.ir.literal import Array
from rlx.ir.type import TensorType

_WRITEABLE_LAYOUT = 0x501  # NPY_ARRAY_C_CONTIGUOUS | ALIGNED | WRITEABLE


def check_slots(
    outputs: Any, types: dict[str, TensorType], shapes: Sequence[tuple[int, ...]] | None, inputs: Sequence[Array]
) -> list[Array]:
    """The given arrays, one for each output in order. Raises InputError if a result cannot be written into one."""
    if not isinstance(outputs, (list, tuple)) or len(outputs) != len(types):
        actual = len(outputs) if isinstance(outputs, (list, tuple)) else type(outputs).__name__
        raise InputError(f"[run_slots] expected a list of {len(types)} arrays for {list(types)}, got {actual}")
    if shapes is None:
        raise InputError("[run_slots] expected outputs of shapes that are known before a run, got one that it measures")
    for (name, of), array, shape in zip(types.items(), outputs, shapes):
        expected = f"[run_slots] expected an array of {of.dtype}{list(shape)} for output {name!r}"
        if type(array) is not np.ndarray:
            raise InputError(f"{expected}, got {type(array).__name__}")
        if array.dtype != of.dtype.numpy or array.shape != shape:
            raise InputError(f"{expected}, got {array.dtype.name}{list(array.shape)}")
        if array.flags.num & _WRITEABLE_LAYOUT != _WRITEABLE_LAYOUT:
            raise InputError(f"{expected} that is writeable, contiguous and aligned, got one that is not")
    _check_apart(list(types), list(outputs), inputs)
    return list(outputs)


def _check_apart(names: Sequence[str], outputs: Sequence[Array], inputs: Sequence[Array]) -> None:
    """Raises InputError if the memory of an output is that of another output or of an input, in part or whole."""
    spans = [(*_span(output), name) for output, name in zip(outputs, names) if output.nbytes]
    spans += [(*_span(array), "") for array in inputs if array.nbytes]
    spans.sort()
    end, output_end, owner = -1, -1, ""  # the ends of all spans and of outputs so far, and the owner of the latter
    for first, last, name in spans:
        if first < (end if name else output_end):
            overlapping = name or owner
            raise InputError(
                f"[run_slots] expected memory of its own for output {overlapping!r}, got that of another array"
            )
        end = max(end, last)
        if name and last > output_end:
            output_end, owner = last, name


def _span(array: Array) -> tuple[int, int]:
    first: int = array.__array_interface__["data"][0]
    return first, first + array.nbytes
