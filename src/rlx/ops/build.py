"""Typed builders for ops of one result: `from rlx.ops.build import exp` gives `exp(x) -> Value`.

For decompositions and passes, where `rlx.ops.<name>` would have to be loaded whole first and says nothing of its type.
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
