"""The op set, one class an op, one file a family. `rlx.ops.<name>(…)` builds a node of the op."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rlx.ir.graph import call
from rlx.ir.op import REGISTRY
from rlx.ops import elementwise, index, linalg, reduce, shape

__all__ = ["elementwise", "index", "linalg", "reduce", "shape"]


def __getattr__(name: str) -> Callable[..., Any]:
    if name in REGISTRY:
        return partial(call, name)
    raise AttributeError(f"rlx.ops has no op {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *REGISTRY})
