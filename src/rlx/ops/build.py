"""Typed builders for ops with one result: `from rlx.ops.build import exp` gives `exp(x) -> Value`.

They are for decompositions and passes, where `rlx.ops.<name>` would first have to load everything and has no types.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rlx.ir.graph import Value, build


def __getattr__(name: str) -> Callable[..., Value]:
    if name.startswith("_"):
        raise AttributeError(name)
    return partial(build, name)


def op(name: str) -> Callable[..., Value]:
    """The builder of an op whose name is data."""
    return partial(build, name)
