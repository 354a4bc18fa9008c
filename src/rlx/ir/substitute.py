"""Ops with other dims in their attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rlx.ir.dim import Dim, Poly
from rlx.ir.op import Op
from rlx.ir.type import TensorType


def with_dims(op: Op, change: Callable[[Dim], Dim]) -> Op:
    """The op with `change` applied to each dim in its attributes that is no number; the op itself if it has none."""
    changed = {name: _changed(value, change) for name, value in op.attributes().items()}
    unchanged = all(changed[name] is value for name, value in op.attributes().items())
    return op if unchanged else dataclasses.replace(op, **changed)  # type: ignore[type-var]  # every op is a dataclass


def type_with_dims(of: TensorType, change: Callable[[Dim], Dim]) -> TensorType:
    """The type with `change` applied to each dim that is no number."""
    return of if of.is_static else of.with_shape(d if isinstance(d, int) else change(d) for d in of.shape)


def _changed(value: Any, change: Callable[[Dim], Dim]) -> Any:
    if isinstance(value, Poly):
        return change(value)
    if isinstance(value, tuple) and value:
        parts = tuple(_changed(part, change) for part in value)
        return value if all(a is b for a, b in zip(parts, value)) else parts
    if isinstance(value, TensorType):
        return type_with_dims(value, change)
    return value
