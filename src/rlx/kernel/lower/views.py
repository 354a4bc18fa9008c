"""Strided views: how far a value is only another way to look at memory that is there already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from rlx.ir import dim as dims
from rlx.ir.dim import Dim, Shape
from rlx.ir.graph import Value
from rlx.kernel.ir.index import MOST_PLACES, contiguous
from rlx.ops.shape import BroadcastTo, Frames, Reshape, Slice, Transpose

VIEW_OPS = (Reshape, Transpose, Slice, BroadcastTo, Frames)


@dataclass(frozen=True)
class View:
    """Element [i…] of a value is element offset + Σ iₐ·strides[a] of `root`'s memory."""

    root: Value
    offset: Dim
    strides: tuple[Dim, ...]
    shape: Shape


def view_of(value: Value, strides_of: Callable[[Value], tuple[Dim, ...] | None]) -> View | None:
    """The view that `value` is of a value in memory, or None. `strides_of` gives strides of what lies in memory."""
    chain = [value]
    strides = strides_of(value)
    while strides is None:
        if not isinstance(chain[-1].node.op, VIEW_OPS):
            return None
        chain.append(chain[-1].node.inputs[0])
        strides = strides_of(chain[-1])
    view: View | None = View(chain[-1], 0, strides, chain[-1].shape)
    for step in reversed(chain[:-1]):
        view = _through(view, step) if view is not None else None
    return view


def _through(base: View, value: Value) -> View | None:
    """The view behind one more op."""
    match value.node.op:
        case Transpose(permutation=order):
            return View(base.root, base.offset, tuple(base.strides[i] for i in order), value.shape)
        case Slice(starts=starts, steps=steps):
            offset = base.offset
            for start, stride in zip(starts, base.strides):
                offset = dims.add(offset, dims.mul(start, stride))
            return View(base.root, offset, tuple(dims.mul(s, t) for s, t in zip(base.strides, steps)), value.shape)
        case Frames(axis=axis, step=step):
            at = axis % len(base.shape)
            between = dims.mul(base.strides[at], step)
            return View(base.root, base.offset, (*base.strides[:at], between, *base.strides[at:]), value.shape)
        case BroadcastTo():
            lead = len(value.shape) - len(base.shape)
            repeats = [d == 1 and value.shape[lead + i] != 1 for i, d in enumerate(base.shape)]
            kept = [0 if again else stride for again, stride in zip(repeats, base.strides)]
            return View(base.root, base.offset, (*([0] * lead), *kept), value.shape)
    if base.strides == contiguous(base.shape):
        return View(base.root, base.offset, contiguous(value.shape), value.shape)
    strides = reshape_strides(base.shape, base.strides, value.shape)
    return None if strides is None else View(base.root, base.offset, strides, value.shape)


@lru_cache(MOST_PLACES)
def reshape_strides(old: Shape, strides: tuple[Dim, ...], new: Shape) -> tuple[Dim, ...] | None:
    """Strides of the same memory under another shape, or None if it cannot be said with strides.

    Both shapes are cut into the shortest runs of axes with equal products; an old run must be contiguous in itself.
    """
    old_axes = [(d, s) for d, s in zip(old, strides) if d != 1]
    new_axes = [(i, d) for i, d in enumerate(new) if d != 1]
    result: list[Dim] = [0] * len(new)
    taken, placed = 0, 0
    while taken < len(old_axes) or placed < len(new_axes):
        run = _next_run(old_axes, new_axes, taken, placed)
        if run is None:
            return None
        old_end, new_end = run
        for (_, outer), (extent, inner) in zip(old_axes[taken:old_end], old_axes[taken + 1 : old_end]):
            if outer != dims.mul(extent, inner):
                return None
        step: Dim = old_axes[old_end - 1][1] if old_end > taken else 0
        for position, extent in reversed(new_axes[placed:new_end]):
            result[position] = step
            step = dims.mul(step, extent)
        taken, placed = old_end, new_end
    return tuple(result)


def _next_run(
    old_axes: list[tuple[Dim, Dim]], new_axes: list[tuple[int, Dim]], taken: int, placed: int
) -> tuple[int, int] | None:
    """Ends of the shortest runs from here on whose products are equal."""
    old_product: Dim = 1
    new_product: Dim = 1
    i, j = taken, placed
    while True:
        if old_product == new_product and (i > taken or j > placed):
            return i, j
        old_first = dims.exact_div(new_product, old_product) is not None
        if i < len(old_axes) and (old_first or j == len(new_axes)):
            old_product = dims.mul(old_product, old_axes[i][0])
            i += 1
        elif j < len(new_axes):
            new_product = dims.mul(new_product, new_axes[j][1])
            j += 1
        else:
            return None


def is_whole(shape: Shape, strides: tuple[Dim, ...]) -> bool:
    """Whether an array of these strides lies in memory without gaps, row by row."""
    return all(d == 1 or s == wanted for d, s, wanted in zip(shape, strides, contiguous(shape)))
