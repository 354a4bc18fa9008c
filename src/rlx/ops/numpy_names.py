"""What NumPy, torch and JAX call things that have another name here, with NumPy's arguments.

`SAME` lists ops under a second name. What makes arrays of nothing gets the graph that they belong to first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Scalar, Value
from rlx.ir.methods import Axes, axes_of
from rlx.ops import build, shorthand

__all__ = [
    "all", "amax", "amin", "any", "arange", "astype", "avg_pool", "cat", "clip", "concatenate", "divide",
    "floor_divide", "full", "full_like", "logsumexp", "max", "max_pool", "mean", "min", "moveaxis", "ones", "ones_like",
    "prod", "ravel", "std", "sum", "swapaxes", "take", "true_divide", "unsqueeze", "var", "zeros", "zeros_like",
]  # fmt: skip

SAME = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "equal": "eq",
    "fmod": "rem",
    "greater": "gt",
    "greater_equal": "ge",
    "invert": "bitwise_not",
    "isinf": "is_inf",
    "isnan": "is_nan",
    "less": "lt",
    "less_equal": "le",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "permute": "transpose",
    "permute_dims": "transpose",
    "power": "pow",
    "remainder": "mod",
    "subtract": "sub",
    "take_along_axis": "gather_elements",
}
"""Ops that go by another name in NumPy or torch, and do the same there."""


def sum(x: Value, axis: Axes = None, keepdims: bool = False) -> Value:
    """The sum over axes (all of them for None), in x's dtype; of bools, how many hold (i64)."""
    return x.sum(axis, keepdims)


def prod(x: Value, axis: Axes = None, keepdims: bool = False) -> Value:
    """The product over axes (all of them for None), in x's dtype."""
    return x.prod(axis, keepdims)


def mean(x: Value, axis: Axes = None, keepdims: bool = False) -> Value:
    """The mean over axes (all of them for None), in x's dtype: integers divide towards zero."""
    return x.mean(axis, keepdims)


def var(x: Value, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Value:
    """The mean squared distance from the mean; `ddof` is taken off the number of elements: 1 for a sample."""
    return x.var(axis, keepdims, ddof)


def std(x: Value, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Value:
    """The square root of `var`."""
    return x.std(axis, keepdims, ddof)


def max(x: Value, axis: Axes = None, keepdims: bool = False) -> Value:
    """The greatest over axes (all of them for None); NaN if any is NaN. `maximum` is that of two values."""
    return x.max(axis, keepdims)


def min(x: Value, axis: Axes = None, keepdims: bool = False) -> Value:
    """The least over axes (all of them for None); NaN if any is NaN. `minimum` is that of two values."""
    return x.min(axis, keepdims)


def amax(x: Value, axis: Axes = None, keepdims: bool = False) -> Value:
    """The same as `max`."""
    return x.max(axis, keepdims)


def amin(x: Value, axis: Axes = None, keepdims: bool = False) -> Value:
    """The same as `min`."""
    return x.min(axis, keepdims)


def all(x: Value, axis: Axes = None, keepdims: bool = False) -> Value:
    """Whether all along axes are true, or not zero."""
    return x.all(axis, keepdims)


def any(x: Value, axis: Axes = None, keepdims: bool = False) -> Value:
    """Whether one along axes is true, or not zero."""
    return x.any(axis, keepdims)


def logsumexp(x: Value, axis: Axes = None, keepdims: bool = False) -> Value:
    """log(Σ eˣ) over axes (all of them for None), without overflow."""
    return build.reduce_log_sum_exp(x, axes=axes_of(axis, x.rank, "logsumexp"), keepdims=keepdims)


def concatenate(values: Sequence[Value], axis: int | None = 0) -> Value:
    """Values one behind the other along an axis; all elements of all, in order, for None."""
    if isinstance(values, Value):
        raise GraphError(f"[concatenate] expected a list of values, got {values!r}")
    if axis is None:
        return build.concat(*(value.ravel() for value in values), axis=0)
    return build.concat(*values, axis=axis)


def cat(values: Sequence[Value], axis: int = 0) -> Value:
    """The same as `concatenate`."""
    return concatenate(values, axis)


def full(graph: Graph, shape: Dim | Iterable[Dim | str], value: Value | Scalar, dtype: Any = "f32") -> Value:
    """A value of this shape that is the same number everywhere, known now or a value of one element."""
    sizes = (shape,) if isinstance(shape, (int, Dim, str)) else shape
    filled = value.cast(dtype) if isinstance(value, Value) else graph.constant(value, dtype)
    return build.broadcast_to(filled, shape=tuple(dims.of(size) for size in sizes))


def zeros(graph: Graph, shape: Dim | Iterable[Dim | str], dtype: Any = "f32") -> Value:
    """Zeros."""
    return full(graph, shape, 0, dtype)


def ones(graph: Graph, shape: Dim | Iterable[Dim | str], dtype: Any = "f32") -> Value:
    """Ones."""
    return full(graph, shape, 1, dtype)


def full_like(x: Value, value: Value | Scalar, dtype: Any = None) -> Value:
    """The same number everywhere, in x's shape and dtype, or in `dtype`."""
    return full(x.graph, x.shape, value, x.dtype if dtype is None else dtype)


def zeros_like(x: Value, dtype: Any = None) -> Value:
    """Zeros in x's shape and dtype, or in `dtype`."""
    return full_like(x, 0, dtype)


def ones_like(x: Value, dtype: Any = None) -> Value:
    """Ones in x's shape and dtype, or in `dtype`."""
    return full_like(x, 1, dtype)


def arange(graph: Graph, start: Dim, stop: Dim | None = None, step: int = 1, dtype: Any = "i64") -> Value:
    """start, start + step, … below stop (above it for steps below 0); from 0 to `start` if that is all there is."""
    if not isinstance(step, int) or step == 0:
        raise ShapeError(f"[arange] expected a whole step that is not 0, got {step!r}")
    first, last = (0, dims.of(start)) if stop is None else (dims.of(start), dims.of(stop))
    low, high = (first, last) if step > 0 else (last, first)
    extent = dims.add(high, dims.mul(low, -1))
    count = dims.maximum(0, dims.floordiv(dims.add(extent, abs(step) - 1), abs(step)))
    line = build.iota(graph, shape=(count,), dtype="i64")
    if step != 1:
        line = line * step
    if first != 0:
        line = line + build.dims_tensor(graph, values=(first,))
    return line.cast(dtype)


def astype(x: Value, dtype: Any) -> Value:
    """x in another dtype; itself if it has it."""
    return x.cast(dtype)


def clip(x: Value, min: Value | Scalar | None = None, max: Value | Scalar | None = None) -> Value:
    """x within bounds; None is no bound."""
    return x.clip(min, max)


def ravel(x: Value) -> Value:
    """All elements along one axis."""
    return x.ravel()


def unsqueeze(x: Value, axis: int) -> Value:
    """x with an axis of 1 that lies at `axis` of the result."""
    return shorthand.expand_dims(x, axis)


def swapaxes(x: Value, axis1: int, axis2: int) -> Value:
    """x with two axes exchanged."""
    return x.swapaxes(axis1, axis2)


def moveaxis(x: Value, source: int | Sequence[int], destination: int | Sequence[int]) -> Value:
    """x with axes moved to other places; the rest stay in order."""
    origin, target = (axes_of(axes, x.rank, "moveaxis") for axes in (source, destination))
    if len(origin) != len(target):
        raise ShapeError(f"[moveaxis] expected as many places as axes, got {source!r} and {destination!r}")
    order = [i for i in range(x.rank) if i not in origin]
    for place, axis in sorted(zip(target, origin)):
        order.insert(place, axis)
    return x.transpose(order) if order else x


def take(x: Value, indices: Value | Any, axis: int | None = None) -> Value:
    """The elements, or the parts along an axis, at these places, which may count from the back."""
    return build.gather(x.ravel(), indices, axis=0) if axis is None else build.gather(x, indices, axis=axis)


def divide(x: Value | Scalar, y: Value | Scalar) -> Value:
    """x / y of floats; integers are refused, for NumPy makes floats of them: cast them, or take `floor_divide`."""
    for operand in (x, y):
        if isinstance(operand, Value) and operand.dtype.is_integer:
            raise DTypeError(f"[divide] expected floats (`floor_divide` is for integers), got {operand.type}")
    return build.div(x, y)


def true_divide(x: Value | Scalar, y: Value | Scalar) -> Value:
    """The same as `divide`."""
    return divide(x, y)


def floor_divide(x: Value | Scalar, y: Value | Scalar) -> Value:
    """The greatest integer that is not above x / y; integers by zero give 0."""
    if isinstance(x, Value):
        return x // y
    if isinstance(y, Value):
        return y.__rfloordiv__(x)  # an array in front of `//` would ask for this function again
    raise GraphError(f"[floor_divide] expected a value of a graph, got {x!r} and {y!r}")


def _spatial(x: Value, name: str, what: str, given: int | Sequence[int]) -> tuple[int, ...]:
    rank = x.rank - 2
    entries = (given,) * rank if isinstance(given, int) else tuple(given)
    if rank < 1 or len(entries) != rank:
        raise ShapeError(f"[{name}] expected {what} for the axes behind batch and channels of {x.type}, got {given!r}")
    return entries


def _pool(
    x: Value, name: str, window: int | Sequence[int], strides: int | Sequence[int] | None, padding: int | Sequence[int]
) -> dict[str, tuple[int, ...]]:
    size = _spatial(x, name, "a window", window)
    steps = size if strides is None else _spatial(x, name, "strides", strides)
    pads = _spatial(x, name, "padding", padding)
    return {"window": size, "strides": steps, "dilations": (1,) * len(size), "low": pads, "high": pads}


def max_pool(
    x: Value, window: int | Sequence[int], strides: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0
) -> Value:
    """The greatest of each window; pads never count. `reduce_window` has unlike pads and dilations.

    x        number [N, C, spatial...]
    window, strides, padding   one int for all spatial axes, or one for each; strides of None are the window
    """
    return build.reduce_window(x, combine="max", **_pool(x, "max_pool", window, strides, padding))


def avg_pool(
    x: Value,
    window: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    count_pads: bool = True,
) -> Value:
    """The mean of each window. `average_pool` has unlike pads and dilations.

    x           float [N, C, spatial...]
    count_pads  zeros of the padding count as elements (torch's count_include_pad)
    window, strides, padding   one int for all spatial axes, or one for each; strides of None are the window
    """
    return build.average_pool(x, count_pads=count_pads, **_pool(x, "avg_pool", window, strides, padding))
