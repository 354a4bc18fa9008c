"""The op set, one class per op, one file per family. `rlx.ops.<name>(…)` builds a node of the op.

`shorthand`, `selection`, `suppression` and `experts` add functions that are not ops of their own (`squeeze`, `nonzero`,
…). No module here has the name of an op or of such a function, so `rlx.ops.<name>` is never ambiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

from rlx.ir.graph import call
from rlx.ir.op import REGISTRY
from rlx.ops import (
    activation,
    cell_activation,
    contraction,
    control,
    convolution,
    cumulative,
    elementwise,
    experts,
    fourier,
    index,
    integers,
    linalg,
    nms,
    norm,
    ordering,
    packed,
    precondition,
    quant,
    quant_recurrent,
    random,
    rearrange,
    recurrent,
    reduce,
    resampling,
    sampling,
    selection,
    shape,
    shorthand,
    signal,
    transcendental,
    transformer,
    writing,
)

__all__ = [
    "activation",
    "cell_activation",
    "contraction",
    "control",
    "convolution",
    "cumulative",
    "elementwise",
    "experts",
    "fourier",
    "index",
    "integers",
    "linalg",
    "nms",
    "norm",
    "ordering",
    "packed",
    "precondition",
    "quant",
    "quant_recurrent",
    "random",
    "rearrange",
    "recurrent",
    "reduce",
    "resampling",
    "sampling",
    "selection",
    "shape",
    "shorthand",
    "signal",
    "transcendental",
    "transformer",
    "writing",
]

BUILDERS = (shorthand, selection, nms, experts)
"""Modules of functions that are no ops of their own."""


def names() -> set[str]:
    """Names of ops, and of functions that are made of them."""
    return {*REGISTRY, *(name for module in BUILDERS for name in module.__all__)}


def __getattr__(name: str) -> Callable[..., Any]:
    """The builder of an op: one Value, or a tuple of them if the op has several results.

    A trailing underscore is dropped (`ops.if_`, `ops.while_`).
    """
    if name.removesuffix("_") in REGISTRY:
        return partial(call, name.removesuffix("_"))
    for module in BUILDERS:
        if name in module.__all__:
            return getattr(module, name)  # type: ignore[no-any-return]  # every name in __all__ is a function
    close = get_close_matches(name, names(), n=3)
    meant = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise AttributeError(f"rlx.ops has no op {name!r}{meant}")


def __dir__() -> list[str]:
    return sorted({*globals(), *names()})
