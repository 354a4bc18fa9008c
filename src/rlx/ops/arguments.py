"""What arguments of functions must be, by their annotations: a wrong one is told before it goes anywhere."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from rlx.ir.dim import Poly
from rlx.ir.graph import Graph, Value

MOST_SHOWN = 60
"""Characters of an argument in a message."""

Fits = Callable[[Any], bool]


def is_index(argument: Any) -> bool:
    """Whether it counts as an int: NumPy's too, bools and arrays of several do not."""
    if isinstance(argument, (bool, np.bool_)):
        return False
    try:
        operator.index(argument)
    except TypeError:
        return False
    return True


def _is_number(argument: Any) -> bool:
    return isinstance(argument, (numbers.Number, np.generic)) and not isinstance(argument, (bool, np.bool_, np.str_))


def _is_scalar(argument: Any) -> bool:
    return isinstance(argument, (bool, numbers.Number, np.generic, np.ndarray, Poly))


def _is_truth(argument: Any) -> bool:
    return isinstance(argument, (bool, np.bool_)) or (is_index(argument) and argument in (0, 1))


def _are_operands(arguments: Any) -> bool:
    """Values, and arrays or numbers among them."""
    if not isinstance(arguments, (list, tuple)):
        return isinstance(arguments, Iterable) and not isinstance(arguments, (str, bytes, dict, np.ndarray))
    one = any(isinstance(argument, Value) for argument in arguments)
    return (one or not arguments) and all(isinstance(argument, Value) or _is_scalar(argument) for argument in arguments)


_KINDS: dict[str, Fits] = {
    "None": lambda argument: argument is None,
    "Value": lambda argument: isinstance(argument, Value),
    "Graph": lambda argument: isinstance(argument, Graph),
    "str": lambda argument: isinstance(argument, str),
    "int": is_index,
    "bool": _is_truth,
    "float": _is_number,
    "Number": lambda argument: isinstance(argument, Value) or _is_number(argument),
    "Scalar": _is_scalar,
    "Dim": lambda argument: isinstance(argument, Poly) or is_index(argument),
    "Sequence[Value]": _are_operands,
}


def _all(arguments: Any, fits: Fits) -> bool:
    """Of what can be looked at more than once; iterators are taken as they are."""
    if isinstance(arguments, (str, bytes, dict)):
        return False
    return not isinstance(arguments, (Sequence, np.ndarray)) or all(map(fits, arguments))


@cache
def kind(annotation: str) -> Fits:
    """Whether an argument is what an annotation says; what it does not know fits all."""
    parts = _alternatives(annotation)
    if len(parts) > 1:
        several = [kind(part) for part in parts]
        return lambda argument: any(fits(argument) for fits in several)
    if annotation in _KINDS:
        return _KINDS[annotation]
    for container in ("Sequence[", "Iterable["):
        if annotation.startswith(container) and annotation.endswith("]"):
            each = kind(annotation[len(container) : -1])
            return lambda argument: isinstance(argument, Iterable) and _all(argument, each)
    return lambda argument: True


@cache
def _wants_int(annotation: str) -> bool:
    parts = set(_alternatives(annotation))
    return bool(parts & {"int", "Dim", "Axes"}) and not parts & {"Value", "Scalar"}


def whole(annotation: str, argument: Any) -> Any:
    """NumPy's ints as Python's, where an int is meant and not an operand."""
    return int(argument) if isinstance(argument, np.integer) and _wants_int(annotation) else argument


def _alternatives(annotation: str) -> list[str]:
    """The parts of a union, without looking into brackets."""
    parts, depth = [""], 0
    for token in annotation.split(" | "):
        parts[-1] = f"{parts[-1]} | {token}" if depth else parts[-1] + token
        depth += token.count("[") - token.count("]")
        if not depth:
            parts.append("")
    return parts[:-1]


def shown(argument: Any) -> str:
    """An argument in a message."""
    text = " ".join(repr(argument).split())
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"
