"""Ops that move elements, in MIL."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.backends.coreml.library import Value, constant, known, mb, shape_of
from rlx.backends.coreml.scalar import broadcast
from rlx.backends.op_by_op import Table
from rlx.ir import dtype as dtypes

TABLE = Table()
lowers = TABLE.lowers


def as_numbers(x: Value, function: Callable[[Value], Value]) -> Value:
    """What a function of numbers makes of x; bools go through it as integers."""
    if known(x) is not dtypes.bool_:
        return function(x)
    return mb.not_equal(x=function(mb.cast(x=x, dtype="int32")), y=np.int32(0))


def reshaped(x: Value, shape: Sequence[int]) -> Value:
    have = shape_of(x)
    if have == tuple(shape):
        return x
    if not shape:
        return mb.squeeze(x=x, axes=list(range(len(have))))
    if not have:
        x = mb.expand_dims(x=x, axes=[0])
    return mb.reshape(x=x, shape=np.array(shape, np.int32))


@lowers("reshape")
def _reshape(op: Any, x: Value) -> Value:
    return reshaped(x, op.shape)


def turned(x: Value, order: Sequence[int]) -> Value:
    return x if list(order) == list(range(len(order))) else mb.transpose(x=x, perm=list(order))


@lowers("transpose")
def _transpose(op: Any, x: Value) -> Value:
    return turned(x, [a % len(op.permutation) for a in op.permutation])


@lowers("broadcast_to")
def _broadcast(op: Any, x: Value) -> Value:
    return broadcast(x, op.shape)


def sliced(x: Value, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int] | None = None) -> Value:
    """Elements of x at steps that are positive."""
    shape, steps = shape_of(x), steps or [1] * len(starts)
    if all((a, b, s) == (0, n, 1) for a, b, s, n in zip(starts, stops, steps, shape)):
        return x
    begin, end, stride = (np.array(part, np.int32) for part in (starts, stops, steps))
    return mb.slice_by_index(x=x, begin=begin, end=end, stride=stride)


def along(x: Value, axis: int, start: int, stop: int) -> Value:
    """A stretch of one axis."""
    starts, stops = [0] * x.rank, list(shape_of(x))
    starts[axis], stops[axis] = start, stop
    return sliced(x, starts, stops)


@lowers("slice")
def _slice(op: Any, x: Value) -> Value:
    """Axes that are taken backwards are turned around first."""
    parts, back = [], []
    for axis, (start, stop, step, extent) in enumerate(zip(op.starts, op.stops, op.steps, shape_of(x))):
        if step < 0:
            back.append(axis)
            start, stop, step = extent - 1 - start, extent - 1 - stop, -step
        parts.append((start, min(stop, extent), step))
    if back:
        x = mb.reverse(x=x, axes=back)
    return sliced(x, *([list(column) for column in zip(*parts)] or ([], [], [])))


@lowers("frames")
def _frames(op: Any, x: Value) -> Value:
    axis = op.axis % x.rank
    count = (shape_of(x)[axis] - op.length) // op.step + 1
    places = np.arange(count)[:, None] * op.step + np.arange(op.length)
    return as_numbers(x, lambda v: mb.gather(x=v, indices=places.astype(np.int32), axis=axis, validate_indices=False))


def joined(parts: Sequence[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else mb.concat(values=list(parts), axis=axis)


def padded(x: Value, low: Sequence[int], high: Sequence[int], fill: Any) -> Value:
    """Elements of `fill` around x; where pads are negative, x is cut. Something of x stays."""
    shape = shape_of(x)
    x = sliced(x, [max(-a, 0) for a in low], [n - max(-b, 0) for b, n in zip(high, shape)])
    widths = [(max(a, 0), max(b, 0)) for a, b in zip(low, high)]
    if not any(a or b for a, b in widths):
        return x
    of = known(x)
    value = np.asarray(fill).astype(of.numpy)
    if of.is_float:
        return mb.pad(x=x, pad=np.array(widths, np.int32).reshape(-1), mode="constant", constant_val=value[()])
    for axis, pair in enumerate(widths):  # MIL pads floats alone
        before, after = (
            [constant(np.full([n if i == axis else d for i, d in enumerate(shape_of(x))], value))] if n else []
            for n in pair
        )
        x = joined([*before, x, *after], axis)
    return x


@lowers("pad")
def _pad(op: Any, x: Value) -> Value:
    shape = shape_of(x)
    empty = any(n + min(a, 0) + min(b, 0) <= 0 for a, b, n in zip(op.low, op.high, shape))
    if empty:  # nothing of x stays
        whole = [n + a + b for a, b, n in zip(op.low, op.high, shape)]
        return constant(np.full(whole, np.asarray(op.value).astype(known(x).numpy)))
    return padded(x, op.low, op.high, op.value)


@lowers("dilate")
def _dilate(op: Any, x: Value) -> Value:
    for axis, step in enumerate(op.steps):
        shape = shape_of(x)
        if step == 1:
            continue
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        rows = reshaped(x, (before, shape[axis], 1, after))
        zeros = constant(np.zeros((before, shape[axis], step - 1, after), known(x).numpy))
        wide = reshaped(joined([rows, zeros], 2), (before, shape[axis] * step, after))
        cut = along(wide, 1, 0, (shape[axis] - 1) * step + 1)
        x = reshaped(cut, (*shape[:axis], (shape[axis] - 1) * step + 1, *shape[axis + 1 :]))
    return x


@lowers("concat")
def _concat(op: Any, *parts: Value) -> Value:
    return joined(parts, op.axis % parts[0].rank)


@lowers("iota", "dims_tensor")
def _known(op: Any) -> Value:
    return constant(op.reference())
