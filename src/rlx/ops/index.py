"""Ops whose operands select elements: gather and scatter in all forms.

Negative indices count from the back. An index that is still out of range ends a run with an error (`ranges` declares
the range, `passes/checks.py` adds the check). Without checks a gather clamps it to the nearest element, and a scatter
drops it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import GraphError, ShapeError
from rlx.ir import dim as dims
from rlx.ir import expect
from rlx.ir.dim import Shape
from rlx.ir.op import Cost, Primitive, Range, Tolerance, op
from rlx.ir.padding import Padded, Padding
from rlx.ir.type import TensorType
from rlx.ops.build import concat

Array = np.ndarray[Any, Any]


@op
class Gather(Primitive):
    """x taken at `indices` along `axis`: the axis is replaced by the axes of `indices`.

    Negative indices count from the back; without checks an index out of range is clamped to the nearest element.
    """

    axis: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        expect.rank(x, 1)
        expect.integer(indices, "indices")
        axis = expect.axis(self.axis, x.rank)
        return x.with_shape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def reference(self, x: Array, indices: Array) -> Array:
        extent = x.shape[self.axis]
        if extent == 0:
            axis = self.axis % x.ndim
            return np.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
        return np.take(x, np.clip(_wide(indices, extent), 0, extent - 1), self.axis)

    def padded(self, padding: Padding, x: Padded, indices: Padded) -> Padded:
        axis = self.axis % len(x.axes)
        x, indices = padding.reached(x, indices, axis)
        return Padded(padding.build(self, x.value, indices.value), (*x.axes[:axis], *indices.axes, *x.axes[axis + 1 :]))

    def ranges(self, x: TensorType, indices: TensorType) -> tuple[Range, ...]:
        return (Range.of_index(1, x.shape[self.axis]),)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return _moved(inputs[1], outputs[0])


@op
class GatherElements(Primitive):
    """out[…, i, …] = x[…, indices[…, i, …], …] along `axis`. Negative and wild indices as in Gather."""

    axis: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        expect.integer(indices, "indices")
        expect.rank(indices, x.rank, "indices", at_most=x.rank)
        _within(x, indices, self.axis)
        return x.with_shape(indices.shape)

    def ranges(self, x: TensorType, indices: TensorType) -> tuple[Range, ...]:
        return (Range.of_index(1, x.shape[self.axis]),)

    def reference(self, x: Array, indices: Array) -> Array:
        extent = x.shape[self.axis]
        if extent == 0:
            return np.zeros(indices.shape, x.dtype)
        inside = np.clip(_wide(indices, extent), 0, extent - 1)
        cut = tuple(slice(None) if i == self.axis % x.ndim else slice(d) for i, d in enumerate(indices.shape))
        return np.take_along_axis(x[cut], inside, self.axis)

    def padded(self, padding: Padding, x: Padded, indices: Padded) -> Padded:
        _check_alike(padding, x, indices, self.axis % len(x.axes))
        x, indices = padding.reached(x, indices, self.axis % len(x.axes))
        return Padded(padding.build(self, x.value, indices.value), indices.axes)


def _check_alike(padding: Padding, x: Padded, indices: Padded, axis: int) -> None:
    """Raises NotPadded where indices along other axes than theirs do not meet the entries of x that count with them."""
    for i, (mine, whole) in enumerate(zip(indices.axes, x.axes)):
        if i != axis and padding.is_open(indices.shape[i], x.shape[i]):
            if indices.shape[i] == x.shape[i]:
                padding.same(mine, whole)
            elif len(mine) > 1 or len(whole) > 1:
                padding.refuse(f"indices along {indices.shape[i]} of {x.shape[i]}", indices.shape[i], x.shape[i])


def _within(x: TensorType, indices: TensorType, axis: int) -> None:
    """Checks that indices along `axis` have a place in x along all others."""
    along = expect.axis(axis, x.rank)
    for i, (mine, whole) in enumerate(zip(indices.shape, x.shape)):
        if i != along:
            expect.at_most(
                mine, whole, f"expected indices no larger than x but along axis {along}, got {indices} and {x}"
            )


def _wide(indices: Array, extent: int) -> Array:
    """Indices as i64, negative ones counted from the back."""
    if indices.dtype == np.uint64:  # the upper half of its values would be negative
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
    wide = indices.astype(np.int64)
    return np.where(wide < 0, wide + extent, wide)


def _index_depth(x: TensorType, indices: TensorType, batch: int) -> int:
    """Number of axes of x that one index vector covers. Raises ShapeError."""
    expect.integer(indices, "indices")
    expect.rank(indices, batch + 1, "indices")
    expect.rank(x, batch + 1)
    depth = indices.shape[-1]
    if batch < 0 or not isinstance(depth, int) or not 1 <= depth <= x.rank - batch:
        raise ShapeError(f"expected index vectors of 1 to {x.rank - batch} numbers, got {indices} into {x}")
    for i in range(batch):
        expect.same_dim(x.shape[i], indices.shape[i], f"batch dims differ: x is {x}, indices are {indices}")
    return depth


@op
class GatherNd(Primitive):
    """x at the positions that the vectors along the last axis of `indices` spell, after `batch` leading axes.

    x        [b..., d1, ..., dk, rest...]
    indices  int [b..., i..., k]
    result   [b..., i..., rest...]
    """

    batch_dims: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        depth = _index_depth(x, indices, self.batch_dims)
        return x.with_shape((*indices.shape[:-1], *x.shape[self.batch_dims + depth :]))

    def ranges(self, x: TensorType, indices: TensorType) -> tuple[Range, ...]:
        return _by_component(x.shape[self.batch_dims :], indices)

    def reference(self, x: Array, indices: Array) -> Array:
        lead, depth = self.batch_dims, indices.shape[-1]
        covered = x.shape[lead : lead + depth]
        shape = (*indices.shape[:-1], *x.shape[lead + depth :])
        if 0 in covered:
            return np.zeros(shape, x.dtype)
        grids = np.ix_(*(np.arange(d) for d in indices.shape[:lead])) if lead else ()
        parts = [grid.reshape(*grid.shape, *([1] * (indices.ndim - 1 - lead))) for grid in grids]
        parts += [np.clip(_wide(indices[..., i], d), 0, d - 1) for i, d in enumerate(covered)]
        return np.asarray(x[tuple(parts)]).reshape(shape)

    def padded(self, padding: Padding, x: Padded, indices: Padded) -> Padded:
        lead = self.batch_dims
        batch = [padding.same(a, b) for a, b in zip(x.axes[:lead], indices.axes)]
        depth = indices.shape[-1]
        assert isinstance(depth, int)  # the type rule asks for it
        columns = []
        for i in range(depth):
            column = indices.value if depth == 1 else indices.value[..., i : i + 1]
            x, taken = padding.reached(x, Padded(column.cast("i64"), indices.axes), lead + i)
            columns.append(taken.value)
        places = columns[0] if depth == 1 else concat(*columns, axis=-1)
        result = padding.build(self, x.value, places)
        return Padded(result, (*batch, *indices.axes[lead:-1], *x.axes[lead + depth :]))

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return _moved(inputs[1], outputs[0])


def _by_component(covered: Shape, indices: TensorType) -> tuple[Range, ...]:
    """Of index vectors along the last axis: each number into an axis of its own."""
    depth = indices.shape[-1]
    assert isinstance(depth, int)  # the type rules ask for it
    return tuple(Range.of_index(1, covered[i], i) for i in range(depth))


def _moved(indices: TensorType, elements: TensorType) -> Cost:
    """Every index read, every element read and written."""
    read = dims.mul(indices.size, indices.dtype.itemsize)
    return Cost(bytes=dims.add(read, dims.mul(elements.size, 2 * elements.dtype.itemsize)))


_COMBINE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


class _Scatter(Primitive):
    """x with elements replaced by, or combined with, `updates`. Of updates to one place without a combination, the last
    in row-major order stays."""

    combine: str | None
    tolerance = Tolerance(64, scale=1)

    def _write_padded(self, padding: Padding, x: Padded, indices: Padded, updates: Padded) -> Padded:
        result = padding.build(self, x.value, indices.value, updates.value)
        return Padded(result, tuple(parts or (d,) for parts, d in zip(x.axes, result.shape)))

    def _check(self, x: TensorType, updates: TensorType) -> None:
        expect.same_dtype(x, updates)
        if self.combine is not None and self.combine not in _COMBINE:
            raise GraphError(f"expected combine to be None, add, mul, min or max, got {self.combine!r}")

    def _write(self, out: Array, places: tuple[Array, ...], updates: Array) -> None:
        with np.errstate(all="ignore"):
            if self.combine is None:
                out[places] = updates
            else:
                _COMBINE[self.combine].at(out, places, updates)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        copied = dims.mul(outputs[0].size, 2 * outputs[0].dtype.itemsize)
        moved = _moved(inputs[1], inputs[2])
        return Cost(inputs[2].size, 0, dims.add(copied, moved.bytes))


@op
class ScatterElements(_Scatter):
    """out[…, indices[…, i, …], …] takes updates[…, i, …] along `axis`; the rest is x.

    x [...], indices int [...] of the same rank, updates like x, of the shape of indices

    distinct   no two indices along `axis` that lie inside are the same, so that updates may go side by side
    """

    axis: int = 0
    combine: str | None = None
    distinct: bool = False

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        self._check(x, updates)
        expect.integer(indices, "indices")
        expect.rank(indices, x.rank, "indices", at_most=x.rank)
        expect.rank(updates, x.rank, "updates", at_most=x.rank)
        _within(x, indices, self.axis)
        for a, b in zip(indices.shape, updates.shape):
            expect.same_dim(a, b, f"expected updates of the shape of indices, got {updates} and {indices}")
        return x

    def ranges(self, x: TensorType, indices: TensorType, updates: TensorType) -> tuple[Range, ...]:
        return (Range.of_index(1, x.shape[self.axis]),)

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        out = np.array(x)
        axis = self.axis % x.ndim
        wide = _wide(indices, x.shape[axis])
        places: list[Array] = list(np.indices(indices.shape))
        places[axis] = wide
        inside = (wide >= 0) & (wide < x.shape[axis])
        self._write(out, tuple(p[inside] for p in places), updates[inside])
        return out

    def padded(self, padding: Padding, x: Padded, indices: Padded, updates: Padded) -> Padded:
        axis = self.axis % len(x.axes)
        _check_alike(padding, x, indices, axis)
        axes = tuple(padding.same(a, b) for a, b in zip(indices.axes, updates.axes))
        x = padding.in_front(x, axis)
        places = padding.dropped(Padded(indices.value, axes), [x.shape[axis]])
        return self._write_padded(padding, x, places, updates)


@op
class ScatterNd(_Scatter):
    """x with the parts replaced that the vectors along the last axis of `indices` spell.

    x        [d1, ..., dk, rest...]
    indices  int [i..., k]
    updates  like x, [i..., rest...]
    distinct no two vectors that lie inside spell one place, so that they may go side by side
    """

    combine: str | None = None
    distinct: bool = False

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        self._check(x, updates)
        depth = _index_depth(x, indices, 0)
        expected = (*indices.shape[:-1], *x.shape[depth:])
        if updates.rank != len(expected):
            raise ShapeError(f"expected updates of shape {list(expected)}, got {updates}")
        for a, b in zip(updates.shape, expected):
            expect.same_dim(a, b, f"expected updates of shape {list(expected)}, got {updates}")
        return x

    def ranges(self, x: TensorType, indices: TensorType, updates: TensorType) -> tuple[Range, ...]:
        return _by_component(x.shape, indices)

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        out = np.array(x)
        depth = indices.shape[-1]
        wide = [_wide(indices[..., i], x.shape[i]) for i in range(depth)]
        inside = np.ones(indices.shape[:-1], np.bool_)
        for part, extent in zip(wide, x.shape):
            inside &= (part >= 0) & (part < extent)
        self._write(out, tuple(part[inside] for part in wide), updates[inside])
        return out

    def padded(self, padding: Padding, x: Padded, indices: Padded, updates: Padded) -> Padded:
        depth, lead = indices.shape[-1], len(indices.axes) - 1
        assert isinstance(depth, int)  # the type rule asks for it
        for axis in range(depth):
            x = padding.in_front(x, axis)
        for mine, whole in zip(updates.axes[lead:], x.axes[depth:]):
            padding.same(mine, whole)
        axes = tuple(padding.same(a, b) for a, b in zip(indices.axes, updates.axes[:lead]))
        places = padding.dropped(Padded(indices.value, (*axes, indices.axes[-1])), x.shape[:depth])
        return self._write_padded(padding, x, places, updates)
