"""Gathers, scatters and ordering in MIL."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.backends.coreml.library import Value, constant, known, mb, shape_of
from rlx.backends.coreml.scalar import choose
from rlx.backends.coreml.shapes import along, as_numbers, joined, lowers, reshaped, sliced
from rlx.ir import dim as dims

MODES = {None: "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _counted(indices: Value, extent: int) -> Value:
    """Indices, those below zero from the back."""
    return choose(mb.less(x=indices, y=np.int32(0)), mb.add(x=indices, y=np.int32(extent)), indices)


def _clipped(indices: Value, extent: int) -> Value:
    low = mb.maximum(x=_counted(indices, extent), y=np.int32(0))
    return mb.minimum(x=low, y=np.int32(extent - 1))


def _taken(x: Value, places: Value, axis: int) -> Value:
    """x at places along an axis, which the axes of the places replace."""
    shape = shape_of(places)
    flat = places if places.rank else reshaped(places, (1,))
    rows = as_numbers(x, lambda v: mb.gather(x=v, indices=flat, axis=axis, validate_indices=False))
    return rows if shape else mb.squeeze(x=rows, axes=[axis])


@lowers("gather")
def _gather(op: Any, x: Value, indices: Value) -> Value:
    axis = op.axis % x.rank
    return _taken(x, _clipped(indices, shape_of(x)[axis]), axis)


@lowers("gather_elements")
def _gather_elements(op: Any, x: Value, indices: Value) -> Value:
    axis, shape = op.axis % x.rank, shape_of(x)
    target_shape = [n if i == axis else m for i, (n, m) in enumerate(zip(shape, shape_of(indices)))]
    near = sliced(x, [0] * x.rank, target_shape)
    places = _clipped(indices, shape[axis])
    return as_numbers(near, lambda v: mb.gather_along_axis(x=v, indices=places, axis=axis, validate_indices=False))


def _line(extent: int, axis: int, rank: int) -> np.ndarray[Any, Any]:
    """0, 1, 2, … along one of `rank` axes."""
    return np.arange(extent, dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(rank)])


def _component(indices: Value, i: int) -> Value:
    """The i-th number of every index."""
    part = along(indices, indices.rank - 1, i, i + 1)
    return mb.squeeze(x=part, axes=[indices.rank - 1])


@lowers("gather_nd")
def _gather_nd(op: Any, x: Value, indices: Value) -> Value:
    shape, lead, depth = shape_of(x), op.batch_dims, shape_of(indices)[-1]
    total: Value = constant(np.zeros(shape_of(indices)[:-1], np.int32))
    for axis, extent in enumerate(shape[: lead + depth]):
        if axis < lead:
            place: Any = _line(extent, axis, indices.rank - 1)
        else:
            place = _clipped(_component(indices, axis - lead), extent)
        total = mb.add(x=mb.mul(x=total, y=np.int32(extent)), y=place)
    rows = reshaped(x, (math.prod(shape[: lead + depth]), *shape[lead + depth :]))
    return _taken(rows, total, 0)


def written(rows: Value, places: Value, updates: Value, mode: str) -> Value:
    """Rows joined with updates at places, as `mode` says."""
    if known(rows).kind == "bool":
        numbers = written(mb.cast(x=rows, dtype="int32"), places, mb.cast(x=updates, dtype="int32"), mode)
        return mb.not_equal(x=numbers, y=np.int32(0))
    return mb.scatter(data=rows, indices=places, updates=updates, axis=0, mode=mode, validate_indices=False)


def _scattered(op: Any, rows: Value, places: Value, updates: Value) -> Value:
    """Rows with updates at places; one behind the last row is for updates that fall away."""
    shape = shape_of(rows)
    wide = joined([rows, constant(np.zeros((1, *shape[1:]), known(rows).numpy))], 0)
    return along(written(wide, places, updates, MODES[op.combine]), 0, 0, shape[0])


def _inside(places: Value, extent: int) -> Value:
    return mb.logical_and(x=mb.greater_equal(x=places, y=np.int32(0)), y=mb.less(x=places, y=np.int32(extent)))


@lowers("scatter_elements")
def _scatter_elements(op: Any, x: Value, indices: Value, updates: Value) -> Value:
    axis, shape, count = op.axis % x.rank, shape_of(x), math.prod(shape_of(x))
    places = _counted(indices, shape[axis])
    inside = _inside(places, shape[axis])
    total = mb.mul(x=places, y=np.int32(math.prod(shape[axis + 1 :])))
    for other, extent in enumerate(shape_of(indices)):
        if other != axis:
            total = mb.add(x=total, y=_line(extent, other, x.rank) * np.int32(math.prod(shape[other + 1 :])))
    total = choose(inside, total, np.int32(count))
    scattered = _scattered(op, reshaped(x, (count,)), reshaped(total, (-1,)), reshaped(updates, (-1,)))
    return reshaped(scattered, shape)


@lowers("scatter_nd")
def _scatter_nd(op: Any, x: Value, indices: Value, updates: Value) -> Value:
    shape, depth = shape_of(x), shape_of(indices)[-1]
    count, number = math.prod(shape[:depth]), math.prod(shape_of(indices)[:-1])
    total: Value = constant(np.zeros(shape_of(indices)[:-1], np.int32))
    inside: Value = None
    for axis in range(depth):
        places = _counted(_component(indices, axis), shape[axis])
        fits = _inside(places, shape[axis])
        inside = fits if inside is None else mb.logical_and(x=inside, y=fits)
        total = mb.add(x=mb.mul(x=total, y=np.int32(shape[axis])), y=places)
    if inside is not None:
        total = choose(inside, total, np.int32(count))
    inner = shape[depth:]
    flat = reshaped(total, (number,)), reshaped(updates, (number, *inner))
    return reshaped(_scattered(op, reshaped(x, (count, *inner)), *flat), shape)


@lowers("top_k")
def _top(op: Any, x: Value) -> tuple[Value, Value]:
    axis, count = op.axis % x.rank, dims.evaluate(op.k, {})
    keys = mb.cast(x=x, dtype="int32") if known(x).kind == "bool" else x
    values, places = mb.topk(x=keys, k=count, axis=axis, ascending=not op.largest, sort=True, return_indices=True)
    if known(x).kind == "bool":
        values = mb.not_equal(x=values, y=np.int32(0))
    return values, places


# rows of sequences, for loops


def row_of(x: Value, place: int) -> Value:
    """x[place]."""
    return mb.squeeze(x=along(x, 0, place, place + 1), axes=[0])


def element_of(x: Value, at: Value) -> Value:
    """x[at[0]]."""
    return mb.squeeze(x=_taken(x, at, 0), axes=[0])


def put_at(x: Value, at: Value, value: Value) -> Value:
    """x with x[at[0]] replaced."""
    return written(x, at, mb.expand_dims(x=value, axes=[0]), "update")
