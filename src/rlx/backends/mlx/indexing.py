"""Ops whose places the data tell, and order, in mlx."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.backends.mlx.library import Value, known, mx, put
from rlx.backends.mlx.shapes import lowers
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes


def _places(indices: Value, extent: int) -> Value:
    """Indices as i64, those below zero from the back."""
    if known(indices) is dtypes.u64:  # what i64 cannot hold is outside anyway
        indices = mx.minimum(indices, put(np.array((1 << 63) - 1, np.uint64)))
    wide = indices.astype(mx.int64)
    return mx.where(mx.less(wide, 0), wide + extent, wide)


def _clipped(indices: Value, extent: int) -> Value:
    return mx.clip(_places(indices, extent), 0, max(extent - 1, 0))


@lowers("gather")
def _gather(op: Any, x: Value, indices: Value) -> Value:
    axis = op.axis % x.ndim
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if x.size == 0 or indices.size == 0:
        return mx.zeros(shape, x.dtype)
    return mx.take(x, _clipped(indices, x.shape[axis]), axis)


@lowers("gather_elements")
def _gather_elements(op: Any, x: Value, indices: Value) -> Value:
    axis = op.axis % x.ndim
    if x.size == 0 or indices.size == 0:
        return mx.zeros(indices.shape, x.dtype)
    return mx.take(mx.reshape(x, (-1,)), _linear(x.shape, axis, _clipped(indices, x.shape[axis])))


def _linear(shape: tuple[int, ...], axis: int, places: Value) -> Value:
    """Offsets in an array of this shape, C-contiguous, of elements whose place along one axis is given."""
    total: Value = places * math.prod(shape[axis + 1 :])
    for other, extent in enumerate(places.shape):
        if other != axis:
            steps = np.arange(extent) * math.prod(shape[other + 1 :])
            total = total + put(steps.reshape([-1 if i == other else 1 for i in range(places.ndim)]))
    return total


@lowers("gather_nd")
def _gather_nd(op: Any, x: Value, indices: Value) -> Value:
    lead, depth = op.batch_dims, indices.shape[-1]
    inner = x.shape[lead + depth :]
    shape = (*indices.shape[:-1], *inner)
    if x.size == 0 or 0 in shape:
        return mx.zeros(shape, x.dtype)
    total = mx.zeros(indices.shape[:-1], mx.int64)
    for axis, extent in enumerate(x.shape[: lead + depth]):
        if axis < lead:
            grid = np.arange(extent).reshape([-1 if i == axis else 1 for i in range(indices.ndim - 1)])
            total = total * extent + put(grid)
        else:
            total = total * extent + _clipped(indices[..., axis - lead], extent)
    rows = mx.reshape(x, (math.prod(x.shape[: lead + depth]), *inner))
    return mx.take(rows, total, 0)


def _scattered(op: Any, rows: Value, places: Value, updates: Value, distinct: bool = False) -> Value:
    """Rows with updates at places; one behind the last row is for updates that fall away.

    Of several to one place without a combination the last stays, which a GPU's plain stores would not ensure.
    """
    wide = mx.concatenate([rows, mx.zeros((1, *rows.shape[1:]), rows.dtype)], 0)
    if op.combine is not None:
        at = wide.at[places]
        how = {"add": at.add, "mul": at.multiply, "min": at.minimum, "max": at.maximum}[op.combine]
        made = how(updates)[:-1]
        if op.combine in ("min", "max") and known(rows).is_float:  # of a number and NaN mlx keeps either
            odd = mx.zeros(wide.shape, mx.int32).at[places].maximum(mx.isnan(updates).astype(mx.int32))[:-1]
            made = mx.where(mx.logical_or(mx.isnan(rows), odd > 0), put(np.asarray(np.nan, known(rows).numpy)), made)
        return made
    if distinct:
        wide[places] = updates
        return wide[:-1]
    numbers = mx.arange(places.shape[0], dtype=mx.int32)
    last = mx.full((wide.shape[0],), -1, mx.int32).at[places].maximum(numbers)[:-1]
    shape = (-1, *([1] * (rows.ndim - 1)))
    return mx.where(mx.reshape(mx.greater_equal(last, 0), shape), mx.take(updates, mx.maximum(last, 0), 0), rows)


def _inside(places: Value, extent: int) -> Value:
    return mx.logical_and(mx.greater_equal(places, 0), mx.less(places, extent))


@lowers("scatter_elements")
def _scatter_elements(op: Any, x: Value, indices: Value, updates: Value) -> Value:
    axis = op.axis % x.ndim
    if indices.size == 0 or x.size == 0:
        return x
    places = _places(indices, x.shape[axis])
    linear = mx.where(_inside(places, x.shape[axis]), _linear(x.shape, axis, places), x.size)
    return mx.reshape(
        _scattered(op, mx.reshape(x, (-1,)), mx.reshape(linear, (-1,)), mx.reshape(updates, (-1,))), x.shape
    )


@lowers("update_slice")
def _update_slice(op: Any, x: Value, rows: Value, start: Value) -> Value:
    """Where there is no room, rows are what is there."""
    at = op.axis % x.ndim
    room = x.shape[at] - rows.shape[at]
    if room < 0 or rows.size == 0:
        return x
    first = start.astype(mx.int64)
    fits = mx.logical_and(first >= 0, first <= room)
    place = mx.clip(first, 0, room).reshape(1).astype(mx.int32)
    before = mx.slice(x, place, (at,), rows.shape)
    return mx.slice_update(x, mx.where(fits, rows, before), place, (at,))


@lowers("scatter_nd")
def _scatter_nd(op: Any, x: Value, indices: Value, updates: Value) -> Value:
    if updates.size == 0 or x.size == 0:
        return x
    depth = indices.shape[-1]
    count = math.prod(x.shape[:depth])
    total, inside = mx.zeros(indices.shape[:-1], mx.int64), mx.ones(indices.shape[:-1], mx.bool_)
    for axis in range(depth):
        places = _places(indices[..., axis], x.shape[axis])
        inside = mx.logical_and(inside, _inside(places, x.shape[axis]))
        total = total * x.shape[axis] + places
    linear = mx.reshape(mx.where(inside, total, count), (-1,))
    inner = x.shape[depth:]
    made = _scattered(
        op, mx.reshape(x, (count, *inner)), linear, mx.reshape(updates, (linear.size, *inner)), op.distinct
    )
    return mx.reshape(made, x.shape)


# order


def _keys(x: Value) -> Value:
    """What sorts as x does: mlx sorts no bools."""
    return x.astype(mx.uint8) if known(x) is dtypes.bool_ else x


def _reversed(x: Value, axis: int) -> Value:
    return x[tuple(slice(None, None, -1) if i == axis else slice(None) for i in range(x.ndim))]


@lowers("argmax", "argmin")
def _argument(op: Any, x: Value) -> Value:
    """The first of the extremes or the last; a NaN is more extreme than anything."""
    axis = op.axis % x.ndim
    if x.size == 0:
        return mx.sum(x, axis, keepdims=op.keepdims).astype(mx.int64)
    pick = mx.argmax if op.combine == "max" else mx.argmin
    keys = _reversed(_keys(x), axis) if op.last else _keys(x)
    made = pick(keys, axis, keepdims=op.keepdims)
    if known(x).is_float:
        wrong = mx.isnan(keys)
        found = mx.argmax(wrong.astype(mx.uint8), axis, keepdims=op.keepdims)
        made = mx.where(mx.any(wrong, axis, keepdims=op.keepdims), found, made)
    made = made.astype(mx.int64)
    return x.shape[axis] - 1 - made if op.last else made


@lowers("top_k")
def _top(op: Any, x: Value) -> Value:
    axis = op.axis % x.ndim
    count = dims.evaluate(op.k, {})
    if x.size == 0 or not count:
        shape = [count if i == axis else n for i, n in enumerate(x.shape)]
        return mx.zeros(shape, x.dtype), mx.zeros(shape, mx.int64)
    keys = _keys(x)
    if op.largest:  # sorting the axis backwards, stably, and turning the result around keeps equals in their order
        order = x.shape[axis] - 1 - _reversed(mx.argsort(_reversed(keys, axis), axis).astype(mx.int64), axis)
    else:
        order = mx.argsort(keys, axis).astype(mx.int64)
    kept = order[tuple(slice(0, count) if i == axis else slice(None) for i in range(x.ndim))]
    return mx.take_along_axis(x, kept, axis), kept
