"""The op set, one class an op, one file a family. `rlx.ops.<name>(…)` builds a node of the op."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rlx.ir.graph import call
from rlx.ir.op import REGISTRY
from rlx.ops import elementwise, index, linalg, reduce, shape, transcendental

__all__ = ["elementwise", "index", "linalg", "reduce", "shape", "transcendental"]


def __getattr__(name: str) -> Callable[..., Any]:
    """The builder of an op: one Value, or a tuple of them if the op has several results."""
    if name in REGISTRY:
        return partial(call, name)
    raise AttributeError(f"rlx.ops has no op {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *REGISTRY})
