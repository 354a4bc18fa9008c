"""Lowering of scatters, running reductions, rankings and transforms: operands become expressions, results stores.

A part of `kernel.lower.Lowering` in a file of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.ir.graph import Value
from rlx.kernel.ir.axes import collapse
from rlx.kernel.ir.index import Linear, axis, dim_value
from rlx.kernel.ir.irregular import FourierTransform, PrefixScan, Scatter, TopKSelection
from rlx.kernel.ir.loops import LoopNest, RowBuffer, Store
from rlx.kernel.lower.index import ZERO, Index
from rlx.ops.cumulative import Cumulative
from rlx.ops.fourier import Fft, Irfft, Rfft
from rlx.ops.index import ScatterElements, ScatterNd
from rlx.ops.ordering import TopK

if TYPE_CHECKING:
    from rlx.kernel.lower.fuse import Group
    from rlx.kernel.lower.lowering import Lowering


def lower_special(lowering: Lowering, group: Group) -> None:
    """Adds the kernels of a group whose lead is one of `fuse.SPECIALS`."""
    match group.lead.op:
        case ScatterElements() | ScatterNd():
            _scatter(lowering, group)
        case Cumulative():
            _running(lowering, group)
        case TopK():
            _ranking(lowering, group)
        case Fft() | Rfft() | Irfft():
            _fourier(lowering, group)


# scatters


def _scatter(lowering: Lowering, group: Group) -> None:
    """A copy of the operand, and the updates into it."""
    x, indices, updates = group.lead.inputs
    op: Any = group.lead.op
    value = group.results[0]
    buffer = lowering._result_buffer(value)
    lowering._new_kernel([buffer])
    index = tuple(axis(i) for i in range(x.rank))
    store = Store(0, lowering._contiguous(value, index), lowering._emitter().emit(x, index), False)
    copy = lowering._kernel([buffer], "copy", LoopNest(x.shape, (), (store,)), (group.lead,))
    lowering._new_kernel([buffer])
    make = _elements if isinstance(op, ScatterElements) else _points
    work = make(lowering, value, indices, updates, op)
    lowering._place([copy, lowering._kernel([buffer], op.name, work, (group.lead,))], [buffer])


def _elements(lowering: Lowering, x: Value, indices: Value, updates: Value, op: ScatterElements) -> Scatter:
    """Positions that differ in another axis than `op.axis` never meet: these are the outer axes."""
    at = op.axis % x.rank
    outer = [i for i in range(x.rank) if i != at]
    numbers = {a: n for n, a in enumerate([*outer, at])}
    here: Index = tuple(axis(numbers[i]) for i in range(x.rank))
    emitter = lowering._emitter()
    place, guard = _wrapped(emitter.emit(indices, here), x.shape[at])
    offset = lowering._contiguous(x, tuple(place if i == at else part for i, part in enumerate(here)))
    body = emitter.emit(updates, here)
    return _update(tuple(updates.shape[i] for i in outer), (updates.shape[at],), offset, guard, body, op.combine)


def _points(lowering: Lowering, x: Value, indices: Value, updates: Value, op: ScatterNd) -> Scatter:
    """The axes that an index vector leaves open are the outer ones; the vectors go in order, or if they spell distinct
    places along outer axes themselves."""
    depth = indices.shape[-1]
    assert isinstance(depth, int)  # the type rule says so
    rest = x.rank - depth
    lead = indices.rank - 1
    order: Index = tuple(axis(rest + i) for i in range(lead))
    emitter = lowering._emitter()
    places: list[Expr] = []
    guard: Expr | None = None
    for i in range(depth):
        place, inside = _wrapped(emitter.emit(indices, (*order, ex.const(i, dtypes.i64))), x.shape[i])
        places.append(place)
        guard = inside if guard is None else ex.apply("and", guard, inside)
    assert guard is not None  # an index vector has a number at least
    inner: Index = tuple(axis(i) for i in range(rest))
    offset = lowering._contiguous(x, (*places, *inner))
    body = emitter.emit(updates, (*order, *inner))
    if op.distinct:
        return _update((*x.shape[depth:], *indices.shape[:-1]), (), offset, guard, body, op.combine)
    return _update(x.shape[depth:], indices.shape[:-1], offset, guard, body, op.combine)


def _wrapped(position: Expr, extent: Dim) -> tuple[Expr, Expr]:
    """A position from data, counted from the back if negative, and whether it lies inside."""
    wide = ex.cast(position, dtypes.i64)
    size = dim_value(extent)
    if position.dtype.kind == "int":
        wide = ex.select(ex.apply("lt", wide, ZERO), wide + size, wide)
    # as an unsigned number: below zero is far too large
    return wide, ex.apply("lt", ex.bitcast(wide, dtypes.u64), ex.bitcast(size, dtypes.u64))


_BOOLEAN = {"add": "or", "mul": "and"}


def _update(
    outer: tuple[Dim, ...], inner: tuple[Dim, ...], offset: Linear, guard: Expr, body: Expr, combine: str | None
) -> Scatter:
    joined = collapse(LoopNest(outer, inner, (RowBuffer(guard), Store(0, offset, body, True))))
    keep, store = joined.statements
    assert isinstance(store, Store)
    if combine is not None and body.dtype is dtypes.bool_:
        combine = _BOOLEAN.get(combine, combine)
    return Scatter(joined.outer, joined.inner, store.offset, keep.body, store.body, combine)


# along one axis


def _along(x: Value, at: int) -> tuple[Index, tuple[Dim, ...]]:
    """The index of an element, with axis `at` numbered behind the others, and the extents of these."""
    outer = [i for i in range(x.rank) if i != at]
    numbers = {a: n for n, a in enumerate([*outer, at])}
    return tuple(axis(numbers[i]) for i in range(x.rank)), tuple(x.shape[i] for i in outer)


def _running(lowering: Lowering, group: Group) -> None:
    op, x, value = group.lead.op, group.lead.inputs[0], group.results[0]
    assert isinstance(op, Cumulative)
    at = op.axis % x.rank
    writes = lowering._new_kernel([lowering._result_buffer(value)])
    index, outer = _along(x, at)
    store = Store(0, lowering._contiguous(value, index), lowering._emitter().emit(x, index), True)
    joined = collapse(LoopNest(outer, (x.shape[at],), (store,)))
    (kept,) = joined.statements
    assert isinstance(kept, Store)
    total = dtypes.accumulator(x.dtype) if op.combine in ("add", "mul") else x.dtype
    body = ex.cast(kept.body, total)
    work = PrefixScan(
        joined.outer, x.shape[at], kept.offset, body, op.combine, total, x.dtype, op.exclusive, op.reverse
    )
    lowering._add(writes, op.name, work, (group.lead,))


def _ranking(lowering: Lowering, group: Group) -> None:
    op, x = group.lead.op, group.lead.inputs[0]
    assert isinstance(op, TopK)
    at = op.axis % x.rank
    writes = lowering._new_kernel([lowering._result_buffer(v) for v in group.results])
    index, outer = _along(x, at)
    stores = [
        Store(slot, lowering._contiguous(value, index), ex.const(0, value.dtype), True)
        for slot, value in enumerate(group.results)
    ]
    joined = collapse(LoopNest(outer, (x.shape[at],), (RowBuffer(lowering._emitter().emit(x, index)), *stores)))
    body, *kept = joined.statements
    where: dict[int, tuple[int, Linear]] = {}
    for value, stage in zip(group.results, kept):
        assert isinstance(stage, Store)
        where[value.index] = (stage.slot, stage.offset)
    work = TopKSelection(joined.outer, x.shape[at], op.k, op.largest, body.body, where.get(0), where.get(1))
    lowering._add(writes, op.name, work, (group.lead,))


def _fourier(lowering: Lowering, group: Group) -> None:
    op, operands = group.lead.op, group.lead.inputs
    last = operands[0].rank - 1
    writes = lowering._new_kernel([lowering._result_buffer(v) for v in group.results])
    index, outer = _along(operands[0], last)
    emitter = lowering._emitter()
    bodies = [RowBuffer(emitter.emit(x, index)) for x in operands]
    stores = [
        Store(slot, lowering._contiguous(value, index), ex.const(0, value.dtype), True)
        for slot, value in enumerate(group.results)
    ]
    joined = collapse(LoopNest(outer, (operands[0].shape[last],), (*bodies, *stores)))
    results: list[tuple[int, Linear] | None] = [None] * len(group.lead.outputs)
    for value, stage in zip(group.results, joined.statements[len(bodies) :]):
        assert isinstance(stage, Store)
        results[value.index] = (stage.slot, stage.offset)
    parts = [stage.body for stage in joined.statements[: len(bodies)]]
    length = (group.lead.types[0] if isinstance(op, Irfft) else operands[0].type).shape[last]
    assert isinstance(length, int)  # others are not claimed
    kind = {Fft: "complex", Rfft: "to bins", Irfft: "from bins"}[type(op)]
    inverse = isinstance(op, Fft) and op.inverse
    work = FourierTransform(
        joined.outer, length, kind, inverse, parts[0], parts[1] if len(parts) > 1 else None, tuple(results)
    )
    lowering._add(writes, op.name, work, (group.lead,))
