"""Scatters, prefix scans, top-k, Fourier transforms and suppression: operands become expressions, results stores."""

from __future__ import annotations

from typing import Any

from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.ir.graph import Node, Value
from rlx.kernel.ir.axes import collapse
from rlx.kernel.ir.index import Linear, axis, dim_value
from rlx.kernel.ir.irregular import FourierTransform, PrefixScan, Scatter, Suppression, TopKSelection
from rlx.kernel.ir.loops import LoopNest, RowBuffer, Store
from rlx.kernel.lower.context import LoweringContext
from rlx.kernel.lower.group import Group
from rlx.kernel.lower.index import ZERO, Emitter, Index
from rlx.kernel.lower.materialise import Materialised
from rlx.kernel.lower.table import demands, lowers
from rlx.ops.cumulative import Cumulative
from rlx.ops.fourier import Fft, Irfft, Rfft
from rlx.ops.index import ScatterElements, ScatterNd
from rlx.ops.nms import SuppressOverlaps
from rlx.ops.ordering import TopK

# scatters


@lowers(ScatterElements, ScatterNd, irregular=True)
def lower_scatter(context: LoweringContext, group: Group) -> None:
    """A copy of the operand, and the updates into it; in a state the updates alone."""
    x, indices, updates = group.anchor.inputs
    op: Any = group.anchor.op
    value = group.results[0]
    make = _elements if isinstance(op, ScatterElements) else _points
    if context.facts.is_in_place(group.anchor):
        buffer = context.in_place(value, x)
        kernel = context.kernel(buffer)
        work = make(context, kernel.emitter(), value, indices, updates, op)
        context.program.main.append(kernel.finish(op.name, work, [group.anchor]))
        return
    buffer = context.result(value)
    copy = context.kernel(buffer)
    index = tuple(axis(i) for i in range(x.rank))
    store = Store(0, context.offset(value, index), copy.emitter().emit(x, index), False)
    first = copy.finish("copy", LoopNest(x.shape, (), (store,)), [group.anchor])
    kernel = context.kernel(buffer)
    work = make(context, kernel.emitter(), value, indices, updates, op)
    context.place([first, kernel.finish(op.name, work, [group.anchor])], [buffer])


def _elements(
    context: LoweringContext, emitter: Emitter, x: Value, indices: Value, updates: Value, op: ScatterElements
) -> Scatter:
    """Positions that differ in another axis than `op.axis` never meet: these are the outer axes, and that one too where
    its places are distinct."""
    at = op.axis % x.rank
    outer = [i for i in range(x.rank) if i != at]
    order = range(x.rank) if op.distinct else [*outer, at]
    numbers = {a: n for n, a in enumerate(order)}
    here: Index = tuple(axis(numbers[i]) for i in range(x.rank))
    place, guard = _wrapped(emitter.emit(indices, here), x.shape[at])
    offset = context.offset(x, tuple(place if i == at else part for i, part in enumerate(here)))
    body = emitter.emit(updates, here)
    if op.distinct:
        return _update(updates.shape, (), offset, guard, body, op.combine)
    return _update(tuple(updates.shape[i] for i in outer), (updates.shape[at],), offset, guard, body, op.combine)


def _points(
    context: LoweringContext, emitter: Emitter, x: Value, indices: Value, updates: Value, op: ScatterNd
) -> Scatter:
    """The axes that an index vector leaves open are the outer ones; the vectors go in order, or if they spell distinct
    places along outer axes themselves."""
    depth = indices.shape[-1]
    assert isinstance(depth, int)  # the type rule says so
    rest = x.rank - depth
    lead = indices.rank - 1
    order: Index = tuple(axis(rest + i) for i in range(lead))
    places: list[Expr] = []
    guard: Expr | None = None
    for i in range(depth):
        place, inside = _wrapped(emitter.emit(indices, (*order, ex.const(i, dtypes.i64))), x.shape[i])
        places.append(place)
        guard = inside if guard is None else ex.apply("and", guard, inside)
    assert guard is not None  # an index vector has a number at least
    inner: Index = tuple(axis(i) for i in range(rest))
    offset = context.offset(x, (*places, *inner))
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


@lowers(Cumulative, irregular=True)
def lower_scan(context: LoweringContext, group: Group) -> None:
    op, x, value = group.anchor.op, group.anchor.inputs[0], group.results[0]
    assert isinstance(op, Cumulative)
    at = op.axis % x.rank
    kernel = context.kernel(context.result(value))
    index, outer = _along(x, at)
    store = Store(0, context.offset(value, index), kernel.emitter().emit(x, index), True)
    joined = collapse(LoopNest(outer, (x.shape[at],), (store,)))
    (kept,) = joined.statements
    assert isinstance(kept, Store)
    total = dtypes.accumulator(x.dtype) if op.combine in ("add", "mul") else x.dtype
    body = ex.cast(kept.body, total)
    work = PrefixScan(
        joined.outer, x.shape[at], kept.offset, body, op.combine, total, x.dtype, op.exclusive, op.reverse
    )
    context.add(kernel, op.name, work, [group.anchor])


@lowers(TopK, irregular=True)
def lower_top_k(context: LoweringContext, group: Group) -> None:
    op, x = group.anchor.op, group.anchor.inputs[0]
    assert isinstance(op, TopK)
    at = op.axis % x.rank
    kernel = context.kernel(*(context.result(v) for v in group.results))
    index, outer = _along(x, at)
    stores = [
        Store(slot, context.offset(value, index), ex.const(0, value.dtype), True)
        for slot, value in enumerate(group.results)
    ]
    joined = collapse(LoopNest(outer, (x.shape[at],), (RowBuffer(kernel.emitter().emit(x, index)), *stores)))
    body, *kept = joined.statements
    where: dict[int, tuple[int, Linear]] = {}
    for value, stage in zip(group.results, kept):
        assert isinstance(stage, Store)
        where[value.index] = (stage.slot, stage.offset)
    work = TopKSelection(joined.outer, x.shape[at], op.k, op.largest, body.body, where.get(0), where.get(1))
    context.add(kernel, op.name, work, [group.anchor])


@demands(Fft, Rfft, Irfft)
def operands_of_transform(node: Node, memory: Materialised) -> None:
    for value in node.inputs:
        memory.add_along(value, value.rank - 1)


@lowers(Fft, Rfft, Irfft, irregular=True)
def lower_transform(context: LoweringContext, group: Group) -> None:
    op, operands = group.anchor.op, group.anchor.inputs
    last = operands[0].rank - 1
    kernel = context.kernel(*(context.result(v) for v in group.results))
    index, outer = _along(operands[0], last)
    emitter = kernel.emitter()
    bodies = [RowBuffer(emitter.emit(x, index)) for x in operands]
    stores = [
        Store(slot, context.offset(value, index), ex.const(0, value.dtype), True)
        for slot, value in enumerate(group.results)
    ]
    joined = collapse(LoopNest(outer, (operands[0].shape[last],), (*bodies, *stores)))
    results: list[tuple[int, Linear] | None] = [None] * len(group.anchor.outputs)
    for value, stage in zip(group.results, joined.statements[len(bodies) :]):
        assert isinstance(stage, Store)
        results[value.index] = (stage.slot, stage.offset)
    parts = [stage.body for stage in joined.statements[: len(bodies)]]
    length = (group.anchor.types[0] if isinstance(op, Irfft) else operands[0].type).shape[last]
    assert isinstance(length, int)  # others are not claimed
    kind = {Fft: "complex", Rfft: "to bins", Irfft: "from bins"}[type(op)]
    inverse = isinstance(op, Fft) and op.inverse
    work = FourierTransform(
        joined.outer, length, kind, inverse, parts[0], parts[1] if len(parts) > 1 else None, tuple(results)
    )
    context.add(kernel, op.name, work, [group.anchor])


@demands(SuppressOverlaps)
def operands_of_suppression(node: Node, memory: Materialised) -> None:
    """Boxes are read for every class, and scores along a row."""
    memory.add(node.inputs[0])
    memory.add_along(node.inputs[1], 2)


@lowers(SuppressOverlaps, irregular=True)
def lower_suppression(context: LoweringContext, group: Group) -> None:
    op = group.anchor.op
    assert isinstance(op, SuppressOverlaps)
    boxes, scores, most, overlap, *threshold = group.anchor.inputs
    buffers = [context.result(value) for value in group.anchor.outputs]
    kernel = context.kernel(*buffers)
    emitter = kernel.emitter()
    here = (axis(0), axis(1), axis(2))
    score = emitter.emit(scores, here)
    a, b, c, d = (emitter.emit(boxes, (axis(0), axis(2), ex.const(i, dtypes.i64))) for i in range(4))
    if op.centered:
        sides = (b - d / 2, a - c / 2, b + d / 2, a + c / 2)
    else:
        sides = (ex.apply("min", a, c), ex.apply("min", b, d), ex.apply("max", a, c), ex.apply("max", b, d))
    picked, kept = (
        (slot, context.offset(value, here[: value.rank])) for slot, value in enumerate(group.anchor.outputs)
    )
    work = Suppression(
        scores.shape[:2], scores.shape[2], op.limit, score,
        ex.apply("lt", emitter.emit(threshold[0], ()), score) if threshold else None,
        sides, ex.cast(emitter.emit(most, ()), dtypes.i64), emitter.emit(overlap, ()), picked, kept,
    )  # fmt: skip
    context.add(kernel, op.name, work, [group.anchor])
