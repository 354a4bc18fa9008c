"""Builders that are not ops: each expands to a few primitives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Scalar, Value
from rlx.ir.methods import axes_of
from rlx.ops import build

__all__ = [
    "blackman_window", "cosine_window", "expand_dims", "flatten", "flip", "hamming_window", "hann_window",
    "logical_and", "logical_not", "logical_or", "logical_xor", "measure", "one_hot", "split", "squeeze", "stack",
    "swap_axes", "tile", "tril", "triu", "where",
]  # fmt: skip


def where(condition: Value, x: Value | Scalar, y: Value | Scalar) -> Value:
    """x where the condition (bool) holds, else y; the three broadcast."""
    return build.select(condition, x, y)


def logical_and(x: Value, y: Value) -> Value:
    """Both, of bools."""
    return build.bitwise_and(x, y)


def logical_or(x: Value, y: Value) -> Value:
    """Either, of bools."""
    return build.bitwise_or(x, y)


def logical_xor(x: Value, y: Value) -> Value:
    """One of the two, of bools."""
    return build.bitwise_xor(x, y)


def logical_not(x: Value) -> Value:
    """The contrary, of bools."""
    return build.bitwise_not(x)


def expand_dims(x: Value, axis: int | Sequence[int]) -> Value:
    """x with axes of 1 so that they lie at `axis`, one or several, of the result. Raises ShapeError."""
    axes = (axis,) if isinstance(axis, int) else axis
    rank = x.rank + len(axes)
    at = axes_of(axes, rank, "expand_dims")
    dims_left = iter(x.shape)
    return x.reshape(tuple(1 if i in at else next(dims_left) for i in range(rank)))


def squeeze(x: Value, axis: int | Sequence[int] | None = None) -> Value:
    """x without these axes of 1; without all that are known to be 1 if none are given. Raises ShapeError."""
    return x.squeeze(axis)


def flatten(x: Value, axis: int = 1) -> Value:
    """x as a matrix: the axes before `axis` by the rest. `axis` may be the rank. Raises ShapeError."""
    if not -x.rank <= axis <= x.rank:
        raise ShapeError(f"[flatten] expected axis in [{-x.rank}, {x.rank}], got {axis}")
    at = axis + x.rank if axis < 0 else axis
    return x.reshape(dims.product(x.shape[:at]), dims.product(x.shape[at:]))


def swap_axes(x: Value, a: int, b: int) -> Value:
    """x with two axes exchanged. Raises ShapeError."""
    return x.swapaxes(a, b)


def flip(x: Value, axis: int | Sequence[int] | None = None) -> Value:
    """x with these axes, or all, running backwards. Raises ShapeError."""
    at = axes_of(axis, x.rank, "flip")
    return x[tuple(slice(None, None, -1) if i in at else slice(None) for i in range(x.rank))]


def split(x: Value, sizes: Sequence[Dim], axis: int = 0) -> tuple[Value, ...]:
    """Parts of these sizes, one behind the other along `axis`. Raises ShapeError if they do not make up the axis."""
    at = expect.axis(axis, x.rank)
    total: Dim = 0
    parts = []
    for size in sizes:
        end = dims.add(total, size)
        whole = [slice(None)] * x.rank
        parts.append((*whole[:at], slice(total, end), *whole[at + 1 :]))
        total = end
    x.graph.equal(total, x.shape[at], f"[split] expected sizes that make up axis {axis} of {x.type}")
    return tuple(_part(x, part, at) for part in parts)


MAX_WINDOW = 1 << 20  # elements of a window that is a constant


def _part(x: Value, key: tuple[slice, ...], axis: int) -> Value:
    """A slice whose ends are known to lie inside, so that no clamping clutters symbolic dims."""
    cut = key[axis]
    starts = tuple(cut.start if i == axis else 0 for i in range(x.rank))
    stops = tuple(cut.stop if i == axis else d for i, d in enumerate(x.shape))
    if starts == (0,) * x.rank and stops == x.shape:
        return x
    return build.slice(x, starts=starts, stops=stops, steps=(1,) * x.rank)


def stack(values: Sequence[Value], axis: int = 0) -> Value:
    """Values of one shape along a new axis. Raises ShapeError."""
    if not values:
        raise ShapeError("[stack] expected at least one value, got none")
    return build.concat(*(expand_dims(v, (axis,)) for v in values), axis=expect.axis(axis, values[0].rank + 1))


def tile(x: Value, repeats: Sequence[Dim]) -> Value:
    """x repeated whole along every axis, `repeats` having one number for each. Raises ShapeError."""
    if len(repeats) != x.rank:
        raise ShapeError(f"[tile] expected {x.rank} repeats, got {len(repeats)}")
    paired = [part for r, d in zip(repeats, x.shape) for part in (r, d)]
    spread = build.broadcast_to(x.reshape(tuple(p for d in x.shape for p in (1, d))), shape=tuple(paired))
    return spread.reshape(tuple(dims.mul(r, d) for r, d in zip(repeats, x.shape)))


def _triangle(x: Value, offset: int) -> Value:
    """Whether column - row ≥ offset, bool [rows, columns]."""
    expect.rank(x.type, 2)
    row, column = (build.iota(x.graph, shape=x.shape[-2:], dtype="i32", axis=axis) for axis in (0, 1))
    return column - row >= offset


def triu(x: Value, offset: int = 0) -> Value:
    """The elements of the last two axes on and above a diagonal, zeros below it. Raises ShapeError."""
    return build.select(_triangle(x, offset), x, 0)


def tril(x: Value, offset: int = 0) -> Value:
    """The elements of the last two axes on and below a diagonal, zeros above it. Raises ShapeError."""
    return build.select(_triangle(x, offset + 1), 0, x)


def one_hot(indices: Value, depth: Dim, on: Value | Scalar = 1.0, off: Value | Scalar = 0.0, axis: int = -1) -> Value:
    """`on` where the position along a new axis of `depth` is the index (negative ones count from the back), else `off`.

    Python numbers take the dtype of the other one of `on` and `off`, f32 if both are. Raises ShapeError, DTypeError.
    """
    if not isinstance(on, Value) and not isinstance(off, Value):
        on = indices.graph.constant(on, "f32")
    expect.integer(indices.type, "indices")
    at = expect.axis(axis, indices.rank + 1)
    shape = tuple(depth if i == at else 1 for i in range(indices.rank + 1))
    place = build.iota(indices.graph, shape=shape, dtype=indices.dtype, axis=at)
    index = expand_dims(indices, (at,))
    if indices.dtype.kind == "int":
        size = build.dims_tensor(indices.graph, values=(depth,), dtype=indices.dtype).reshape()
        index = build.select(index < 0, index + size, index)
    return build.select(build.eq(place, index), on, off)


def measure(value: Value, upper: Dim | None = None, lower: Dim = 0, name: str = "n") -> Dim:
    """A new dim that is the number `value` (an integer of one element) holds when the graph runs, within bounds.

    Raises ShapeError, DTypeError.
    """
    expect.integer(value.type, "value")
    graph = value.graph
    names = {*graph.symbols, *graph.measured}
    count = next(i for i in range(len(names) + 1) if f"{name}_{i}" not in names)
    symbol = f"{name}_{count}"
    build.measured(value.cast("i64").reshape(()), symbol=symbol, lower=lower, upper=upper)
    return dims.symbol(symbol)


def cosine_window(
    graph: Graph, size: Dim, coefficients: Sequence[float], periodic: bool = True, dtype: Any = "f32"
) -> Value:
    """Σⱼ (-1)ʲ · coefficients[j] · cos(2π·j·i / n) for i below `size`: float [size].

    n is `size` for a periodic window, which suits transforms, and size - 1 for a symmetric one. Raises ShapeError.
    """
    if isinstance(size, int) and size < 0:
        raise ShapeError(f"[cosine_window] expected a size of at least 0, got {size}")
    period = size if periodic else dims.add(size, -1)
    if isinstance(size, int) and isinstance(period, int) and size <= MAX_WINDOW:
        turn = np.arange(size) / max(period, 1)
        window = sum((-1) ** j * a * np.cos(2 * np.pi * j * turn) for j, a in enumerate(coefficients))
        return graph.constant(np.broadcast_to(window, (size,)), dtype)
    wide = dtypes.accumulator(dtypes.of(dtype))
    place = build.iota(graph, shape=(size,), dtype=dtypes.i64)
    whole = build.dims_tensor(graph, values=(dims.maximum(1, period),)).reshape()
    total = build.broadcast_to(graph.constant(coefficients[0], wide), shape=(size,))
    for j, a in enumerate(coefficients[1:], 1):
        part = build.mod(place * j, whole).cast(wide) / whole.cast(wide)  # reduced in integers, then an angle
        total = total + build.cos(part * (2 * np.pi)) * ((-1) ** j * a)
    return total.cast(dtype)


def hann_window(graph: Graph, size: Dim, periodic: bool = True, dtype: Any = "f32") -> Value:
    """Hann's window, float [size]. Raises ShapeError."""
    return cosine_window(graph, size, (0.5, 0.5), periodic, dtype)


def hamming_window(graph: Graph, size: Dim, periodic: bool = True, dtype: Any = "f32") -> Value:
    """Hamming's window with the coefficients 0.54 and 0.46, float [size]. Raises ShapeError."""
    return cosine_window(graph, size, (0.54, 0.46), periodic, dtype)


def blackman_window(graph: Graph, size: Dim, periodic: bool = True, dtype: Any = "f32") -> Value:
    """Blackman's window with the coefficients 0.42, 0.5 and 0.08, float [size]. Raises ShapeError."""
    return cosine_window(graph, size, (0.42, 0.5, 0.08), periodic, dtype)
