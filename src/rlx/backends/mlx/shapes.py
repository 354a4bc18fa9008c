"""Ops that move elements, in mlx."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.mlx.library import Value, held, known, mx, put
from rlx.backends.op_by_op import Table

TABLE = Table()
lowers = TABLE.lowers


@lowers("reshape")
def _reshape(op: Any, x: Value) -> Value:
    return mx.reshape(x, op.shape)


@lowers("transpose")
def _transpose(op: Any, x: Value) -> Value:
    return mx.transpose(x, op.permutation) if x.ndim else x


@lowers("broadcast_to")
def _broadcast(op: Any, x: Value) -> Value:
    return mx.broadcast_to(x, op.shape)


@lowers("slice")
def _slice(op: Any, x: Value) -> Value:
    parts = zip(op.starts, op.stops, op.steps)
    return x[tuple(slice(a, None if b < 0 else b, s) for a, b, s in parts)] if x.ndim else x


@lowers("frames")
def _frames(op: Any, x: Value) -> Value:
    axis = op.axis % x.ndim
    count = max((x.shape[axis] - op.length) // op.step + 1, 0)
    places = np.arange(count)[:, None] * op.step + np.arange(op.length)
    if places.size == 0 or x.size == 0:
        return mx.zeros((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]), x.dtype)
    return mx.take(x, put(places.astype(np.int32)), axis)


def padded(x: Value, low: Sequence[int], high: Sequence[int], fill: Any) -> Value:
    """Elements of `fill` around x, for the axes that have pads; where these are negative, x is cut."""
    if not x.ndim:
        return x
    x = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(low, high, x.shape))]
    widths = [(max(a, 0), max(b, 0)) for a, b in zip(low, high)]
    if not any(a or b for a, b in widths):
        return x
    return mx.pad(x, widths, constant_values=put(np.asarray(fill).astype(known(x).numpy)))


@lowers("pad")
def _pad(op: Any, x: Value) -> Value:
    for axis, (low, high) in enumerate(zip(op.low, op.high)):
        if min(low, high) < -x.shape[axis]:  # nothing of x stays, and a side cuts into the other's pads too
            shape = list(x.shape)
            shape[axis] += low + high
            x = mx.full(shape, put(np.asarray(op.value).astype(known(x).numpy)))
        else:
            before, after = ([v if i == axis else 0 for i in range(x.ndim)] for v in (low, high))
            x = padded(x, before, after, op.value)
    return x


@lowers("dilate")
def _dilate(op: Any, x: Value) -> Value:
    for axis, step in enumerate(op.steps):
        extent = x.shape[axis]
        if step > 1 and extent:
            zeros = mx.zeros((*x.shape[: axis + 1], step - 1, *x.shape[axis + 1 :]), x.dtype)
            wide = mx.concatenate([mx.expand_dims(x, axis + 1), zeros], axis + 1)
            joined = mx.reshape(wide, (*x.shape[:axis], extent * step, *x.shape[axis + 1 :]))
            last = slice(0, (extent - 1) * step + 1)
            x = joined[tuple(last if i == axis else slice(None) for i in range(x.ndim))]
    return x


@lowers("concat")
def _concat(op: Any, *parts: Value) -> Value:
    return mx.concatenate(list(parts), op.axis)


@lowers("iota", "dims_tensor")
def _known(op: Any) -> Value:
    return held(op.reference())
