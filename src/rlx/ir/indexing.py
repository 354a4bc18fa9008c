"""Indexing on dims: the results of reshapes with -1 and of Python slices. It needs no graph."""

from __future__ import annotations

from typing import Any

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir.dim import Dim, Shape
from rlx.records import dataclass


def resolve_reshape(shape: Shape, target: Shape) -> Shape:
    """`target` with its one -1 worked out. Raises ShapeError."""
    if target.count(-1) > 1:
        raise ShapeError(f"[reshape] expected at most one -1, got {list(target)}")
    if -1 in target:
        total = dims.product(shape)
        rest = dims.product(d for d in target if d != -1)
        inferred = dims.exact_div(total, rest) if rest != 0 else (0 if total == 0 else None)
        if inferred is None and isinstance(total, int) and isinstance(rest, int):
            raise ShapeError(f"[reshape] expected {list(target)} to divide {total} elements, got {list(shape)}")
        missing: Dim = inferred if inferred is not None else dims.floordiv(total, rest)
        return tuple(missing if d == -1 else d for d in target)
    return target


@dataclass(frozen=True)
class Indexing:
    """What basic indexing of an array does: a slice of every axis, then a reshape."""

    starts: tuple[Dim, ...]
    stops: tuple[Dim, ...]
    steps: tuple[int, ...]
    shape: Shape

    def keeps_all(self, shape: Shape) -> bool:
        """Whether the slice takes every element of an array of this shape, in order."""
        return all(s == 0 and e == d and t == 1 for s, e, d, t in zip(self.starts, self.stops, shape, self.steps))


def plan(of: Shape, key: tuple[Any, ...]) -> Indexing:
    """Ints, slices with int or dim ends, None and `...`, as in NumPy. Raises ShapeError."""
    if sum(1 for k in key if k is Ellipsis) > 1:
        raise ShapeError("[index] expected at most one ellipsis")
    used = sum(1 for k in key if k is not None and k is not Ellipsis)
    if used > len(of):
        raise ShapeError(f"[index] expected at most {len(of)} indices, got {used}")
    if not any(k is Ellipsis for k in key):
        key = (*key, Ellipsis)
    at = next(i for i, k in enumerate(key) if k is Ellipsis)
    full = (*key[:at], *([slice(None)] * (len(of) - used)), *key[at + 1 :])
    parts: list[tuple[Dim, Dim, int]] = []
    shape: list[Dim] = []
    for k in full:
        if k is None:
            shape.append(1)
            continue
        parts.append(_slice_of(k, of[len(parts)]))
        if isinstance(k, slice):
            shape.append(slice_extent(*parts[-1]))
    starts, stops, steps = zip(*parts) if parts else ((), (), ())
    return Indexing(tuple(starts), tuple(stops), tuple(steps), tuple(shape))


def slice_extent(start: Dim, stop: Dim, step: int) -> Dim:
    """Number of elements that start, start+step, … short of stop has."""
    span = dims.add(stop, dims.mul(start, -1)) if step > 0 else dims.add(start, dims.mul(stop, -1))
    count = dims.ceildiv(span, abs(step))
    return max(count, 0) if isinstance(count, int) else dims.maximum(0, count)


def _slice_of(key: Any, extent: Dim) -> tuple[Dim, Dim, int]:
    if not isinstance(key, slice):
        if isinstance(key, (str, bool)) or not (isinstance(key, dims.Poly) or hasattr(key, "__index__")):
            raise ShapeError(f"[index] expected ints, dims, slices, None or ..., got {key!r}")
        at = dims.of(key)
        if isinstance(at, int) and at < 0:
            at = dims.add(extent, at)
        if isinstance(at, int) and isinstance(extent, int) and not 0 <= at < extent:
            raise ShapeError(f"[index] expected an index in [{-extent}, {extent}), got {key}")
        return at, dims.add(at, 1), 1
    step = 1 if key.step is None else int(key.step)
    if step == 0:
        raise ShapeError("[index] expected a step that is not zero")
    return clamp_slice(key.start, key.stop, step, extent)


def clamp_slice(start: Any, stop: Any, step: int, extent: Dim) -> tuple[Dim, Dim, int]:
    """Python's slice rule on dims: missing ends, ends from the back, ends past the array."""
    lowest: Dim = 0 if step > 0 else -1
    highest: Dim = extent if step > 0 else dims.add(extent, -1)

    def clamp(end: Any, missing: Dim) -> Dim:
        if end is None:
            return missing
        read = dims.of(end)
        if isinstance(read, int) and read < 0:
            read = dims.add(extent, read)
        if isinstance(read, int) and isinstance(highest, int):
            return max(min(read, highest), lowest if isinstance(lowest, int) else 0)
        if read == extent and step > 0:
            return read
        if isinstance(read, int) and read <= 0:
            return max(read, lowest if isinstance(lowest, int) else 0)
        return dims.maximum(lowest, dims.minimum(read, highest))

    return clamp(start, lowest if step > 0 else highest), clamp(stop, highest if step > 0 else lowest), step
