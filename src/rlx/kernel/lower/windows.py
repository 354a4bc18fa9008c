"""Convolutions and moving reductions: what an element of the result reads, for every element and tap."""

from __future__ import annotations

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.ir.graph import Node, Value
from rlx.kernel.ir.axes import renumber_linear, renumber_statement, replaced_expr, replaced_linear
from rlx.kernel.ir.contraction import Bound, Contraction
from rlx.kernel.ir.index import Linear, axis, dim_value, index_of, linear, offset_of, row
from rlx.kernel.ir.loops import LoopNest, Reduce, Store
from rlx.kernel.ir.work import Work
from rlx.kernel.lower.context import LoweringContext
from rlx.kernel.lower.contraction import epilogue, name_of
from rlx.kernel.lower.group import Group
from rlx.kernel.lower.index import ZERO, Emitter, Index, guarded
from rlx.kernel.lower.materialise import Materialised
from rlx.kernel.lower.table import demands, lowers
from rlx.ops.convolution import Conv, ReduceWindow
from rlx.ops.reduce import identity

WIDE_GROUP = 4
"""Outputs of a group from which on each is a product of its own."""


@demands(Conv, ReduceWindow)
def operands_of_window(node: Node, memory: Materialised) -> None:
    """Operands are strided views; channels are neighbours where they lie last. Without packed panels, as in several
    groups, vectors lie along the output channels of the weights."""
    for value in node.inputs:
        memory.add_strided(value)
    if isinstance(node.op, Conv) and node.op.channels_last:
        memory.add_along(node.inputs[0], node.inputs[0].rank - 1)
        if node.op.groups > 1:
            memory.add_along(node.inputs[1], node.inputs[1].rank - 1)


@lowers(Conv, ReduceWindow, grows="epilogue")
def lower_window(context: LoweringContext, group: Group) -> None:
    op, operands = group.anchor.op, group.anchor.inputs
    kernel = context.kernel(context.result(group.results[0]))
    emitter = kernel.emitter()
    out = group.anchor.types[0].shape
    store = epilogue(context, kernel, group, len(out))
    work: Work
    if isinstance(op, Conv):
        work = convolution(op, operands[0], operands[1], out, emitter, store, context.facts.bounded)
    else:
        assert isinstance(op, ReduceWindow)
        work = window(op, operands[0], out, emitter, store)
    context.add(kernel, name_of(group), work, group.members)


def convolution(
    op: Conv, x: Value, w: Value, out: Shape, emitter: Emitter, store: Store, bounded: bool = False
) -> Work:
    """The kernel of a convolution whose epilogue is `store`; result axes are numbered 0 …

    Channels last and without pads, or where products may be `bounded`, it is a contraction with taps, of each group
    where there are several; else, and for groups of few channels, a plain nest.
    """
    if op.channels_last and _groups_are_wide(op, out) and (bounded or all(p == 0 for p in (*op.low, *op.high))):
        contracted = _contraction(op, x, w, out, emitter, store)
        if contracted is not None:
            return contracted
    return _nest(op, x, w, out, emitter, store)


def _groups_are_wide(op: Conv, out: Shape) -> bool:
    """Whether all channels are one group, or groups have outputs enough for a product of each."""
    outputs = out[-1]
    return op.groups == 1 or (isinstance(outputs, int) and outputs >= WIDE_GROUP * op.groups)


def _contraction(op: Conv, x: Value, w: Value, out: Shape, emitter: Emitter, store: Store) -> Contraction | None:
    rank = len(op.strides)
    count = len(out)
    taps = [axis(count + i) for i in range(rank)]
    channel = axis(count + rank)
    place = [_position(axis(1 + i), taps[i], op.strides[i], op.dilations[i], op.low[i]) for i in range(rank)]
    padded = [i for i in range(rank) if not all(isinstance(p, int) and p <= 0 for p in (op.low[i], op.high[i]))]
    share, outputs = w.shape[-2], dims.floordiv(out[-1], op.groups)
    # the axis behind all is the group: its outputs and its channels are parts of these
    group = count + rank + 1
    output = Linear(0, ((count - 1, 1), (group, outputs)))
    source = linear(axis(group)).times(share).plus(linear(channel))
    a = emitter.emit(x, (axis(0), *place, index_of(source) if op.groups > 1 else channel))
    b = emitter.emit(w, (*taps, channel, index_of(output) if op.groups > 1 else axis(count - 1)))
    if not all(e.kind == "load" and not e.args for e in (a, b)):
        return None
    if op.groups > 1:
        body = replaced_expr(store.body, {count - 1: output})
        store = Store(store.slot, replaced_linear(store.offset, {count - 1: output}), body, store.per_element)
    # batch is the group, the images and all spatial axes but one, n the output channels, and m the last spatial axis of
    # more than one position: images of one column have long columns
    m = next((i for i in range(rank, 0, -1) if out[i] != 1), rank)
    groups = [group] if op.groups > 1 else []
    order = [*groups, *(i for i in range(rank + 1) if i != m), m, *range(count - 1, group)]
    renumber = {old: new for new, old in enumerate(order)}
    moved = renumber_statement(store, renumber)
    assert isinstance(moved, Store)
    bounds = tuple(Bound(renumber_linear(linear(place[i]), renumber), x.shape[1 + i]) for i in padded)
    lead = tuple(op.groups if i == group else out[i] for i in order[: rank + len(groups)])
    return Contraction(
        lead, out[m], outputs, share, op.sum_dtype or x.dtype,
        a.attr.slot, renumber_linear(offset_of(a), renumber), a.dtype,
        b.attr.slot, renumber_linear(offset_of(b), renumber), b.dtype,
        (moved,), taps=tuple(w.shape[:rank]), bounds=bounds,
    )  # fmt: skip


def _nest(op: Conv, x: Value, w: Value, out: Shape, emitter: Emitter, store: Store) -> LoopNest:
    rank = len(op.strides)
    count = len(out)
    spatial = tuple(range(1, 1 + rank)) if op.channels_last else tuple(range(2, 2 + rank))
    output = axis(count - 1 if op.channels_last else 1)
    kernel = w.shape[:rank] if op.channels_last else w.shape[2:]
    share, outputs = (w.shape[-2], w.shape[-1]) if op.channels_last else (w.shape[1], w.shape[0])
    taps = [axis(count + i) for i in range(rank)]
    channel = axis(count + rank)
    source = channel
    if op.groups > 1:
        per_group = dims.floordiv(outputs, op.groups)
        group = output if per_group == 1 else output / dim_value(per_group)
        inside = ZERO if share == 1 else channel
        source = index_of(linear(group).times(share).plus(linear(inside)))
    place, guard = _window(op, [axis(i) for i in spatial], taps, [x.shape[i] for i in spatial])
    at: Index = (axis(0), *place, source) if op.channels_last else (axis(0), source, *place)
    weight: Index = (*taps, channel, output) if op.channels_last else (output, channel, *taps)
    result = op.sum_dtype or x.dtype
    total = dtypes.accumulator(result)
    seen = emitter.emit(x, at)
    if guard is not None:
        seen = ex.select(guard, guarded(seen, guard), ex.const(0, x.dtype))
    body = ex.cast(seen, total) * ex.cast(emitter.emit(w, weight), total)
    return _finished(out, (*kernel, share), Reduce("add", body, total), result, store)


def window(op: ReduceWindow, x: Value, out: Shape, emitter: Emitter, store: Store) -> LoopNest:
    """The kernel of a moving reduction."""
    rank = len(op.window)
    lead = len(out) - rank
    taps = [axis(len(out) + i) for i in range(rank)]
    positions = [axis(lead + i) for i in range(rank)]
    place, guard = _window(op, positions, taps, list(x.shape[lead:]))
    seen = emitter.emit(x, (*(axis(i) for i in range(lead)), *place))
    if guard is not None:
        seen = ex.select(guard, guarded(seen, guard), ex.const(identity(op.combine, x.dtype.numpy), x.dtype))
    total = dtypes.accumulator(x.dtype) if op.combine == "add" else x.dtype
    return _finished(out, op.window, Reduce(op.combine, ex.cast(seen, total), total), x.dtype, store)


def _finished(out: Shape, inner: Shape, reduce: Reduce, dtype: DType, store: Store) -> LoopNest:
    done = ex.cast(row(0, reduce.dtype), dtype)
    body = ex.rewrite(store.body, lambda e, _: done if e.kind == "acc" else None)
    return LoopNest(out, inner, (reduce, Store(store.slot, store.offset, body, False)))


def _position(at: Expr, tap: Expr, stride: int, dilation: int, low: Dim) -> Expr:
    before = linear(dim_value(dims.mul(low, -1)))
    return index_of(linear(at).times(stride).plus(linear(tap).times(dilation)).plus(before))


def _window(
    op: Conv | ReduceWindow, at: list[Expr], taps: list[Expr], extents: list[Dim]
) -> tuple[list[Expr], Expr | None]:
    """Positions in the operand along the spatial axes, and whether they are inside (None: always)."""
    guard: Expr | None = None
    place = []
    for i, extent in enumerate(extents):
        position = _position(at[i], taps[i], op.strides[i], op.dilations[i], op.low[i])
        place.append(position)
        tests = []
        if op.low[i] != 0:
            tests.append(ex.apply("le", ZERO, position))
        if op.high[i] != 0 or op.low[i] != 0:
            tests.append(ex.apply("lt", position, dim_value(extent)))
        for test in tests:
            guard = test if guard is None else ex.apply("and", guard, test)
    return place, guard
