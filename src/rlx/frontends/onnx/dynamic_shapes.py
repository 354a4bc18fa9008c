"""Ops on shapes whose numbers are known only at run time: they are computed with ops, then measured as dims.

Each function is the counterpart of the importer function of the same name in `shape.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.frontends.onnx.measuring import (
    elements,
    extents,
    length,
    marked,
    measure,
    measure_all,
    number,
    spread,
    unmarked_first,
)
from rlx.frontends.onnx.table import OnnxNode, Operand
from rlx.ir import dim as dims
from rlx.ir.dim import Dim, Poly
from rlx.ir.graph import Value
from rlx.ir.type import MAX_RANK
from rlx.ops import build, shorthand

MOST_PADS = 1 << 40  # with an extent they add up in i64


def reshape(node: OnnxNode, x: Value, target_shape: Value, zero_stays: bool) -> Value:
    """A single number that is not known follows from the others, as -1 does."""
    known = elements(target_shape)
    if len(known) > MAX_RANK:
        raise node.wrong(f"expected a rank of at most {MAX_RANK}, got {len(known)}")
    if zero_stays:
        known = [x.shape[i] if d == 0 and i < x.rank else d for i, d in enumerate(known)]
    unknown = [i for i, d in enumerate(known) if d is None]
    rest = dims.product(d for d in known if d is not None)
    inferred_dim = dims.exact_div(x.type.size, rest)
    if len(unknown) == 1 and -1 not in known and rest != 0 and inferred_dim is not None:
        x = _as_asked(node, x, target_shape[unknown[0]], inferred_dim, zero_stays and unknown[0])
        return x.reshape(tuple(inferred_dim if d is None else d for d in known))
    count = length(node, target_shape)
    if zero_stays:
        shape = extents(node, (*x.shape[:count], *[0] * (count - x.rank)))
        target_shape = build.select(build.eq(target_shape, 0), shape, target_shape)
    fixed = build.reduce_prod(build.select(build.eq(target_shape, -1), 1, target_shape), axes=(0,))
    inferred = build.div(number(node, x.type.size), build.maximum(fixed, 1))
    target_shape = build.select(build.eq(target_shape, -1), inferred, target_shape)
    return x.reshape(
        tuple(
            d if d is not None and (isinstance(d, Poly) or d >= 0) else measure(node, target_shape[i])
            for i, d in enumerate(known)
        )
    )


def _as_asked(node: OnnxNode, x: Value, requested: Value, remaining: Dim, zero_at: int | bool) -> Value:
    """x, if the number for an axis is what is left for it: itself, or -1, or 0 where that keeps an axis so long."""
    fits = build.bitwise_or(build.eq(requested, -1), build.eq(requested, number(node, remaining)))
    if zero_at is not False and zero_at < x.rank:
        same = build.eq(number(node, x.shape[zero_at]), number(node, remaining))
        fits = build.bitwise_or(fits, build.bitwise_and(build.eq(requested, 0), same))
    chosen = build.select(fits, number(node, remaining), requested)
    return node.require(x, chosen, remaining, dims.add(remaining, 1), f"a dim of {x.type} reshaped")


def expand(node: OnnxNode, x: Value, target_shape: Value) -> Value:
    """Only axes of 1, and those that x does not have, take their dim from the run."""
    count = length(node, target_shape)
    known = elements(target_shape)
    rank = max(count, x.rank)
    target: list[Dim] = []
    for axis in range(rank):
        here: Dim = x.shape[axis - rank + x.rank] if axis >= rank - x.rank else 1
        at = axis - rank + count
        requested = known[at] if at >= 0 else 1
        if requested is not None:
            target += node.graph.broadcast((here,), (requested,))
        elif here != 1:
            target.append(here)
            checked = build.select(build.eq(target_shape[at], 1), number(node, here), target_shape[at])
            x = node.require(x, checked, here, dims.add(here, 1), f"axis {axis} of the shape")
        else:
            target.append(measure(node, target_shape[at]))
    return x if tuple(target) == x.shape else build.broadcast_to(x, shape=tuple(target))


def line(node: OnnxNode, start: Operand, limit: Operand, delta: Operand) -> Value:
    """start, start + delta, … short of limit: how many there are is measured. A step of zero and ends that are no
    numbers are out of bounds."""
    first, last, step = (item.value.reshape(()) for item in (start, limit, delta))
    dtype = first.dtype
    if dtype.is_float:
        wide = [v.cast("f64") for v in (first, last, step)]
        count = build.ceil((wide[1] - wide[0]) / wide[2])
        none = build.bitwise_or(build.eq(wide[2], 0), build.is_nan(count))
        count = build.select(none, -1.0, build.clamp(count, 0.0, float(1 << 40))).cast("i64")
        places = build.iota(node.graph, shape=(measure(node, count),), dtype="i64")
        return (places.cast("f64") * wide[2] + wide[0]).cast(dtype)
    begin, end, by = (v.cast("i64") for v in (first, last, step))
    up = by > 0
    some = build.select(up, begin < end, end < begin)
    # as unsigned numbers, since ends may be further apart than i64 can express
    span = build.select(up, end - begin, begin - end).cast("u64")
    step = build.maximum(build.select(up, by, -by).cast("u64"), 1)
    count = build.minimum(build.div(span - 1, step), 1 << 40).cast("i64") + 1
    count = build.select(build.eq(by, 0), -1, build.select(some, count, 0))
    places = build.iota(node.graph, shape=(measure(node, count),), dtype="i64")
    return (places * by + begin).cast(dtype)


def slice_(node: OnnxNode, x: Value, starts: Value, ends: Value, axes: Operand | None, steps: Value | None) -> Value:
    """Python's slices of axes that a run may be the first to know."""
    count = length(node, starts)
    if length(node, ends) != count:
        raise node.wrong(f"expected as many starts as ends, got {starts.type} and {ends.type}")
    by = node.graph.constant([1] * count, "i64") if steps is None else steps
    if axes is not None and axes.known is None:
        at = axes.value.cast("i64")
        shape, rank = extents(node, x.shape), x.rank
        zero, one = (build.broadcast_to(node.graph.constant(n, "i64"), shape=(rank,)) for n in (0, 1))
        starts, ends, by = (spread(node, at, v, rest) for v, rest in ((starts, zero), (ends, shape), (by, one)))
        which: Sequence[int] = range(rank)
    else:
        which = node.axes(range(count) if axes is None or axes.known is None else axes.known, x.rank)
    for i, axis in enumerate(which):
        x = _slice_axis(node, x, axis, starts[i], ends[i], by[i])
    return x


def _slice_axis(node: OnnxNode, x: Value, axis: int, start: Value, end: Value, step: Value) -> Value:
    extent = x.shape[axis]
    size = number(node, extent)
    forward = step > 0
    (by,) = elements(step)
    step = build.clamp(step, -1 - size, size + 1)  # a longer step also selects only the first element
    low = build.select(forward, node.graph.constant(0, "i64"), -1)
    high = build.select(forward, size, size - 1)
    begin, stop = (build.clamp(build.select(v < 0, v + size, v), low, high) for v in (start, end))
    span = build.select(forward, stop - begin, begin - stop)
    count = build.select(span > 0, build.div(span - 1, build.maximum(abs(step), 1)) + 1, 0)
    count = build.select(build.eq(step, 0), -1, count)
    (first,) = elements(start)
    taken_count = measure(node, count, extent)
    if by == 1 and isinstance(first, int) and first >= 0:
        starts = tuple(first if i == axis else 0 for i in range(x.rank))
        stops = tuple(dims.add(first, taken_count) if i == axis else d for i, d in enumerate(x.shape))
        return build.slice(x, starts=starts, stops=stops, steps=(1,) * x.rank)
    places = begin + build.iota(node.graph, shape=(taken_count,), dtype="i64") * step
    return build.gather(x, places, axis=axis)


def pad(node: OnnxNode, x: Value, pads: Value, axes: Operand | None, mode: str, fill: Value | None) -> Value:
    """Axis by axis: a gather of what lies inside, elsewhere the fill."""
    count = length(node, pads)
    low, high = pads[: count // 2], pads[count // 2 :]
    if axes is not None and axes.known is None:
        zero = build.broadcast_to(node.graph.constant(0, "i64"), shape=(x.rank,))
        low, high = (spread(node, axes.value.cast("i64"), v, zero) for v in (low, high))
        which: Sequence[int] = range(x.rank)
    else:
        which = range(x.rank) if axes is None or axes.known is None else node.axes(axes.known, x.rank)
    if length(node, low) != len(which):
        raise node.wrong(f"expected {2 * len(which)} pads, got {count}")
    for i, axis in enumerate(which):
        x = _pad_axis(node, x, axis, low[i], high[i], mode, fill)
    return x


def _pad_axis(node: OnnxNode, x: Value, axis: int, low: Value, high: Value, mode: str, fill: Value | None) -> Value:
    size = number(node, x.shape[axis])
    x = node.require(x, build.concat(low.reshape(1), high.reshape(1), axis=0), -MOST_PADS, MOST_PADS, "pads")
    total = measure(node, size + low + high)
    at = build.iota(node.graph, shape=(total,), dtype="i64") - low
    if mode != "constant":
        return build.gather(x, folded(at, size, mode), axis=axis)
    longer = build.pad(x, low=(0,) * x.rank, high=tuple(int(i == axis) for i in range(x.rank)))
    padded = build.gather(longer, build.clamp(at, 0, size), axis=axis)  # there may be no element to take
    inside = build.bitwise_and(at >= 0, at < size).reshape(tuple(total if i == axis else 1 for i in range(x.rank)))
    outside = node.graph.constant(0, x.dtype) if fill is None else fill.cast(x.dtype).reshape(())
    return build.select(inside, padded, outside)


def folded(at: Value, size: Value, mode: str) -> Value:
    """Positions around an axis as those of the elements that stand there in the mode of a padding."""
    if mode == "wrap":
        return build.mod(at, build.maximum(size, 1))
    if mode == "reflect":  # one period goes there and back without repeating the ends: 0 1 2 1 | 0 1 2 1
        last = size - 1
        return last - abs(build.mod(at, build.maximum(last * 2, 1)) - last)
    return build.clamp(at, 0, size - 1)


def squeeze(node: OnnxNode, x: Value, axes: Value) -> Value:
    mask = marked(node, axes, x.rank)
    kept_axes = unmarked_first(node, mask, x.rank - length(node, axes))
    return x.reshape(tuple(measure_all(node, build.gather(extents(node, x.shape), kept_axes, axis=0))))


def unsqueeze(node: OnnxNode, x: Value, axes: Value) -> Value:
    rank = x.rank + length(node, axes)
    mask = marked(node, axes, rank)
    if x.rank == 0:
        return x.reshape((1,) * rank)
    before = build.cumsum(build.bitwise_not(mask).cast("i64"), axis=0, exclusive=True)
    before = build.minimum(before, x.rank - 1)  # after the last axis that stays there are only new ones
    shape = build.select(mask, 1, build.gather(extents(node, x.shape), before, axis=0))
    return x.reshape(tuple(measure_all(node, shape)))


def trilu(node: OnnxNode, x: Value, offset: Value, upper: bool) -> Value:
    """The diagonal may be a number of the run: no dim hangs on it."""
    row, column = (build.iota(node.graph, shape=x.shape[-2:], dtype="i64", axis=axis) for axis in (0, 1))
    k = offset.cast("i64").reshape(())
    keeps = column - row >= k if upper else column - row <= k
    return build.select(keeps, x, 0)


def split(node: OnnxNode, x: Value, sizes: Value, axis: int) -> Sequence[Value]:
    return shorthand.split(x, measure_all(node, sizes, [x.shape[axis]] * length(node, sizes)), axis)
