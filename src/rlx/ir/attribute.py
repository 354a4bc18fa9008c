"""The kinds of attributes that ops have, and how values are brought into them: lists become tuples, names dtypes,
NumPy numbers Python's. Two equal attributes are then equal in every way, which hashing and printing rely on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.errors import GraphError, RlxError, did_you_mean
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.literal import Literal
from rlx.ir.type import TensorType

Convert = Callable[[Any], Any]


def _int(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError
    return int(value.__index__())


def _bool(value: Any) -> bool:
    if type(value).__name__ not in ("bool", "bool_") and value not in (0, 1):
        raise TypeError
    return bool(value)


def _float(value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError
    return float(value)


def _exactly(kind: type) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return convert


_SIMPLE: dict[str, Convert] = {
    "int": _int,
    "bool": _bool,
    "float": _float,
    "str": _exactly(str),
    "Dim": dims.of,
    "DType": dtypes.of,
    "Literal": _exactly(Literal),
    "TensorType": _exactly(TensorType),
}


def converter(annotation: str) -> Convert:
    """What brings a value into the kind that a field's annotation names. Raises GraphError for an unknown kind."""
    if annotation.endswith(" | None"):
        inner = converter(annotation.removesuffix(" | None"))
        return lambda value: None if value is None else inner(value)
    if annotation == "Shape":
        annotation = "tuple[Dim, ...]"
    if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
        each = converter(annotation[len("tuple[") : -len(", ...]")])
        return lambda value: tuple([each(part) for part in _sequence(value)])
    if annotation not in _SIMPLE:
        raise GraphError(f"expected an attribute of one of the kinds {', '.join(_SIMPLE)}, got {annotation}")
    return _SIMPLE[annotation]


def _sequence(value: Any) -> Any:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise TypeError
    return value


def convert(owner: str, name: str, annotation: str, how: Convert, value: Any) -> Any:
    """`how(value)`. Raises GraphError naming op and attribute."""
    try:
        return how(value)
    except (TypeError, ValueError, OverflowError, RlxError):
        named = annotation.startswith("DType") and isinstance(value, str)
        near = did_you_mean(value, dtypes.NAMES, 3) if named else ""
        raise GraphError(f"[{owner}] expected {name!r} to be {annotation}, got {value!r}{near}") from None
