"""The op set, one class per op, one file per family. `rlx.ops.<name>(…)` builds a node of the op.

`shorthand`, `selection`, `nms` and `experts` add functions that are not ops of their own (`squeeze`, `nonzero`, …), and
`numpy_names` what NumPy and torch call things. No module here has the name of an op or of such a function, so
`rlx.ops.<name>` is never ambiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from rlx.errors import did_you_mean
from rlx.ir.concrete import NUMPY_CALLS
from rlx.ir.methods import NAMES_OF_FUNCTIONS
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
    float8,
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
    "float8",
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
    """Names of functions: of ops, of what is made of them, and of NumPy."""
    known = import_module("rlx.ops.numpy_names")  # late, as few need it
    own = map(import_module("rlx.ops.functions").function_name, REGISTRY)
    return {*own, *(name for module in BUILDERS for name in module.__all__), *known.__all__, *known.SAME}


def __getattr__(name: str) -> Callable[..., Any]:
    """The function of an op: it gives one Value, or a tuple of them if the op has several results.

    A trailing underscore is dropped (`ops.if_`, `ops.while_`).
    """
    if name.startswith("__"):
        raise AttributeError(name)
    functions = import_module("rlx.ops.functions")
    if name.removesuffix("_") in REGISTRY:
        return functions.function(name.removesuffix("_"))  # type: ignore[no-any-return]
    numpy_names = import_module("rlx.ops.numpy_names")
    for module in (*BUILDERS, numpy_names):
        if name in module.__all__:
            return functions.lenient(getattr(module, name))  # type: ignore[no-any-return]
    if name in numpy_names.SAME:
        return functions.function(numpy_names.SAME[name], name)  # type: ignore[no-any-return]
    raise AttributeError(f"rlx.ops has no op {name!r}{did_you_mean(name, names(), 3)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *names()})


def _numpy_call(function: Any, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return import_module("rlx.ops.numpy_calls").call(function, method, arguments, keywords)


NUMPY_CALLS[:] = [_numpy_call]
NAMES_OF_FUNCTIONS[:] = [names]
