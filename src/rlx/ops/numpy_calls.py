"""NumPy's functions of values: `np.exp(x)`, `np.sum(x, axis=0)`, `array @ x`. Those that mean the same here are ops of
that name; an error says of others what there is instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from rlx.errors import TracerError, did_you_mean
from rlx.ir.concrete import callers_line
from rlx.ir.graph import Value
from rlx.ir.indexing import resolve_reshape
from rlx.ops import numpy_names

SAME = {
    "all", "amax", "amin", "any", "argmax", "argmin", "astype", "clip", "concatenate", "cumprod", "cumsum", "einsum",
    "expand_dims", "flip", "full_like", "max", "mean", "min", "moveaxis", "ones_like", "permute_dims", "prod", "ravel",
    "squeeze", "stack", "std", "sum", "swapaxes", "take", "take_along_axis", "transpose", "tril", "triu", "var",
    "where", "zeros_like",
}  # fmt: skip
"""Functions that are no ufuncs, and take the same arguments, but for those that make no sense here."""
UFUNCS = {"conjugate": "conj", "divide": "divide", "left_shift": "shift_left", "right_shift": "shift_right",
          "rint": "round", "arctan2": "atan2", "bitwise_invert": "bitwise_not", "concat": "concatenate"}  # fmt: skip
"""Names of ufuncs that have another one here, beside those of `numpy_names.SAME`."""
_SUMS = ("sum", "prod", "cumsum", "cumprod")
SPELLED = {"a": "x", "m": "x", "arr": "x", "arrays": "values", "axes": "permutation", "a_min": "min", "a_max": "max"}
"""Arguments that NumPy calls otherwise."""
INSTEAD = {
    "array_split": "rlx.split(x, sizes, axis)", "split": "rlx.split(x, sizes, axis)", "pad": "rlx.pad(x, low, high)",
    "sort": "rlx.sort(x, axis)", "argsort": "rlx.argsort(x, axis)", "tile": "rlx.tile(x, repeats)",
    "array_equal": "rlx.all(rlx.equal(x, y))", "allclose": "rlx.all(abs(x - y) <= …)", "copyto": "rlx.where(…)",
    "put": "rlx.scatter_elements(…)", "put_along_axis": "rlx.scatter_elements(…)", "sometrue": "rlx.any(x)",
    "histogram": "rlx.scatter_elements(…) with reduce='add'", "linalg.norm": "rlx.sqrt(rlx.sum(x * x))",
    "vstack": "rlx.concatenate(…, axis=0)", "hstack": "rlx.concatenate(…, axis=1)", "save": "the result of a run",
}  # fmt: skip
"""What to write for functions that have no twin of the same arguments."""


def call(function: Any, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The result of a function of NumPy in a graph. Raises TracerError for one that has no twin."""
    name = function.__name__
    given = {key: value for key, value in keywords.items() if not _says_nothing(value)}
    if method == "reduce" and name in ("add", "multiply", "maximum", "minimum"):
        reduction = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}[name]
        return _called(getattr(ops, reduction), f"{name}.reduce", arguments[:1], {"axis": 0, **given})
    if method != "__call__":
        raise _no_twin(f"{name}.{method}")
    if isinstance(function, np.ufunc):
        own = numpy_names.SAME.get(name) or UFUNCS.get(name, name)
        if own not in ops.names():
            raise _no_twin(name)
        return _called(getattr(ops, own), name, arguments, given)
    shown = f"{function.__module__.removeprefix('numpy').removeprefix('.')}.{name}".removeprefix(".")
    if shown in _OWN:
        return _called(_OWN[shown], name, arguments, given)
    if shown not in SAME:
        raise _no_twin(shown)
    return _called(getattr(ops, name), name, arguments, given)


def _says_nothing(value: Any) -> bool:
    """Whether an argument is what it would be if it were left out."""
    return value is None or value is np._NoValue


def _called(own: Callable[..., Any], name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    for refused in keywords.keys() & {"out", "where", "initial", "casting", "subok", "like"}:
        raise _refused(f"np.{name} without {refused}= (values never change)", f"{refused}=")
    spelled = {SPELLED.get(key, key): value for key, value in keywords.items()}
    if name in ("mean", "std", "var", *_SUMS) and arguments and isinstance(arguments[0], Value):
        arguments = (_widened(arguments[0], name, spelled.pop("dtype", None)), *arguments[1:])
    if "keepdims" in spelled:
        spelled["keepdims"] = bool(spelled["keepdims"])
    if name == "transpose" and spelled.get("permutation", 0) is None:
        del spelled["permutation"]
    return own(*arguments, **spelled)


def _widened(x: Value, name: str, dtype: Any) -> Value:
    """What NumPy adds up: small integers in 64 bits. Means of integers are floats there, and whole here."""
    if dtype is not None:
        return x.astype(dtype)
    if name in _SUMS:
        return x.astype({"int": "i64", "uint": "u64"}.get(x.dtype.kind, x.dtype))
    if not x.dtype.is_inexact:
        raise _refused(f"np.{name}(x.astype('f32'))", f"np.{name} of {x.type}")
    return x


def _no_twin(name: str) -> TracerError:
    bare = name.rpartition(".")[2]
    if name in INSTEAD:
        return _refused(INSTEAD[name], f"np.{name} of a value")
    if bare in ops.names():
        return _refused(f"rlx.{bare}(…)", f"np.{name} of a value, which takes other arguments")
    near = did_you_mean(bare, ops.names(), 3)
    return _refused("a function of rlx (dir(rlx) has them all)", f"np.{name} of a value, which has no twin here{near}")


def _refused(wanted: str, got: str) -> TracerError:
    line = callers_line()
    return TracerError(f"[numpy] expected {wanted}, got {got}" + (f", at {line}" if line else ""))


def _reshape(x: Value, shape: Any, order: str = "C") -> Value:
    if order != "C":
        raise _refused("the order C", f"order={order!r}")
    return x.reshape(*resolve_reshape(x.shape, shape if isinstance(shape, tuple) else tuple(np.atleast_1d(shape))))


def _broadcast_to(x: Value, shape: Any) -> Any:
    return ops.broadcast_to(x, shape)


def _dot(a: Any, b: Any) -> Any:
    """NumPy's `dot`, which is matmul up to two axes."""
    if max(np.ndim(a) if not isinstance(a, Value) else a.rank, np.ndim(b) if not isinstance(b, Value) else b.rank) > 2:
        raise _refused("rlx.matmul(x, y) or rlx.einsum(…)", "np.dot of more than two axes")
    return ops.matmul(a, b)


def _outer(a: Value, b: Value) -> Any:
    """Products of all pairs of elements."""
    return ops.einsum("i,j->ij", a.ravel(), b.ravel())


def _round(x: Value, decimals: int = 0) -> Any:
    if decimals:
        raise _refused("rlx.round(x * 10**decimals) / 10**decimals", f"decimals={decimals}")
    return ops.round(x)


_OWN: dict[str, Callable[..., Any]] = {
    "broadcast_to": _broadcast_to,
    "dot": _dot,
    "ndim": lambda x: x.rank,
    "outer": _outer,
    "reshape": _reshape,
    "round": _round,
    "shape": lambda x: x.shape,
    "size": lambda x: x.size,
}
"""Functions whose arguments are not those of a function here."""
