"""What follows a row nest element by element becomes part of it: rotary positions behind a norm, rows of a cache.

A nest that makes rows of one temporary, which a single map or scatter reads row by row, stores what that makes instead:
the elements that it reads are made again, from what the nest knows of the row. So a shift along the row, as of the
halves of rotary positions, needs no memory. On GPUs, where a kernel costs more than the arithmetic of a short row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.expr import Expr
from rlx.ir.rewriting import Context
from rlx.kernel.ir.axes import replaced_expr, replaced_linear
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, contiguous, linear, offset_of
from rlx.kernel.ir.irregular import Scatter
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Store
from rlx.kernel.ir.program import Kernel, Program, storage_roots
from rlx.kernel.ir.slots import joined, nest_on_slots
from rlx.kernel.passes.driver import KernelPass

MOST_ELEMENTS = 1024
"""Of a row whose elements are made again."""


class SideWrites(KernelPass):
    """Scatters whose updates go side by side become maps that store where a guard holds."""

    name = "side-writes"

    def run(self, program: Program, context: Context) -> None:
        for number, kernel in enumerate(program.main):
            work = kernel.work
            if not isinstance(work, Scatter) or work.inner or work.combine is not None or work.atomic:
                continue
            if self.spend(context, "guarded-store", kernel):
                store = Store(0, work.offset, work.body, False, work.guard)
                program.main[number] = dataclasses.replace(kernel, work=LoopNest(work.outer, (), (store,)))


class RowTails(KernelPass):
    """Takes maps that read rows into the nests that make these."""

    name = "row-tails"

    def run(self, program: Program, context: Context) -> None:
        for kernel in tuple(program.main):
            tail = _only_reader(program, kernel)
            if tail is None:
                continue
            made = _followed(kernel, tail)
            if made is not None and self.spend(context, "row-tail", kernel):
                at = program.main.index(tail)
                program.main[at] = made
                program.main.remove(kernel)


def rows_written(kernel: Kernel) -> int | None:
    """The buffer that a nest of rows along one axis writes, of which every element is one of a row; None for others."""
    work = kernel.work
    if not isinstance(work, LoopNest) or len(work.inner) != 1 or not work.reduces or kernel.writes != 1:
        return None
    if any(isinstance(s, Reduce) and s.argument for s in work.statements):
        return None
    last = work.statements[-1]
    if not isinstance(last, Store) or last.guard is not None or sum(isinstance(s, Store) for s in work.statements) != 1:
        return None
    return kernel.slots[0] if last.per_element and last.offset == _row_major(work) else None


def _row_major(work: LoopNest) -> Linear:
    return Linear(0, tuple(enumerate(contiguous(work.extents()))))


def is_in_the_way(program: Program, kernel: Kernel, between: Sequence[Kernel]) -> bool:
    """Whether kernels in between change what a kernel reads, or use what it writes: it could not run behind them."""
    own = {root for n in kernel.slots for root in storage_roots(program, n)}
    made = {root for n in kernel.slots[: kernel.writes] for root in storage_roots(program, n)}
    for other in between:
        written = {root for n in other.slots[: other.writes] for root in storage_roots(program, n)}
        used = {root for n in other.slots for root in storage_roots(program, n)}
        if other.work.owns_kernels or own & written or made & used:
            return True
    return False


def _only_reader(program: Program, kernel: Kernel) -> Kernel | None:
    """The map that alone reads what a nest writes, if it could do so where the nest would run as late."""
    rows = rows_written(kernel)
    if rows is None or program.buffers[rows].kind != "temp":
        return None
    users = [k for k in program.main if rows in k.slots and k is not kernel]
    if len(users) != 1 or rows in program.outputs or users[0].work.owns_kernels:
        return None
    (tail,) = users
    start, end = program.main.index(kernel), program.main.index(tail)
    between = program.main[start + 1 : end]
    aliased = any(rows in roots for roots in program.holds.values())
    if end < start or aliased or tail.writes != 1 or rows in tail.slots[:1] or is_in_the_way(program, kernel, between):
        return None
    return tail


def _followed(kernel: Kernel, tail: Kernel) -> Kernel | None:
    """The nest with the map's store in the place of its own."""
    nest, follower = kernel.work, tail.work
    assert isinstance(nest, LoopNest)
    if not isinstance(follower, LoopNest) or follower.inner or len(follower.statements) != 1:
        return None
    (store,) = follower.statements
    length = nest.inner[0]
    if not isinstance(store, Store) or not isinstance(length, int) or length > MOST_ELEMENTS:
        return None
    axes = _refined(nest.outer, follower.outer[:-1]) if follower.outer[-1:] == nest.inner else None
    if axes is None:
        return None
    outer, own_places, places = axes
    row = Linear(0, ((len(outer), 1),))
    own_places[len(nest.outer)] = places[len(follower.outer) - 1] = row
    slots, writes = joined((kernel, tail), inside=kernel.slots[:1])
    (store,) = nest_on_slots(follower, tail.slots, slots).statements
    own = _on_axes(nest_on_slots(nest, kernel.slots, slots), outer, own_places)
    assert isinstance(store, Store)
    if any(_reads_rows(part) for part in store.needs()[1:]):
        return None  # where it writes depends on the rows
    body = _with_rows(store.body, own, places)
    if body is None:
        return None
    guard = None if store.guard is None else replaced_expr(store.guard, places)
    last = Store(store.slot, replaced_linear(store.offset, places), body, True, guard)
    names = tuple(dict.fromkeys((*kernel.sources, *tail.sources)))
    work = LoopNest(outer, nest.inner, (*own.statements[:-1], last))
    return Kernel(f"{kernel.name}_{tail.name}", work, slots, writes, names)


def _on_axes(nest: LoopNest, outer: Shape, places: dict[int, Linear]) -> LoopNest:
    """A nest with other outer axes; its own in terms of these."""
    statements = []
    for statement in nest.statements:
        changed = dataclasses.replace(statement, body=replaced_expr(statement.body, places))
        if isinstance(changed, Store):
            changed = dataclasses.replace(changed, offset=replaced_linear(changed.offset, places))
        statements.append(changed)
    return LoopNest(outer, nest.inner, tuple(statements))


def _reads_rows(body: Expr) -> bool:
    return any(node.kind == "load" and node.attr.slot == Contraction.NO_SLOT for node in ex.walk([body]))


def _refined(left: Shape, right: Shape) -> tuple[Shape, dict[int, Linear], dict[int, Linear]] | None:
    """Axes of which those of both sides are made, each of neighbours, and both sides' in terms of them. None where they
    cannot be told to go together."""
    extents: list[Dim] = []
    mine: dict[int, Linear] = {}
    its: dict[int, Linear] = {}

    def split(whole: int, into: dict[int, Linear], parts: Sequence[tuple[int, Dim]], each: dict[int, Linear]) -> None:
        first = len(extents)
        for (number, extent), step in zip(parts, contiguous(tuple(d for _, d in parts))):
            each[number] = Linear(0, ((len(extents), 1),))
            into[whole] = into.get(whole, Linear()).plus(Linear(0, ((len(extents), step),)))
            extents.append(extent)
        assert len(extents) > first

    ours, theirs = list(enumerate(left)), list(enumerate(right))
    while ours and theirs:
        for one, other, into, each in ((ours, theirs, mine, its), (theirs, ours, its, mine)):
            count = _factors(one[0][1], [d for _, d in other])
            if count:
                split(one.pop(0)[0], into, other[:count], each)
                del other[:count]
                break
        else:
            return None
    for rest, into in ((ours, mine), (theirs, its)):
        if any(extent != 1 for _, extent in rest):
            return None
        into.update((number, Linear()) for number, _ in rest)
    return tuple(extents), mine, its


def _factors(extent: Dim, parts: Sequence[Dim]) -> int:
    """How many of some dims, from the first one on, make an extent together; 0 for none."""
    for count in range(1, len(parts) + 1):
        if dims.product(parts[:count]) == extent:
            return count
    return 0


def _with_rows(body: Expr, nest: LoopNest, places: dict[int, Linear]) -> Expr | None:
    """The map's body in the nest's axes, with elements of rows made where it loads them. None if it loads others than
    those of its own row."""
    last = nest.statements[-1]
    assert isinstance(last, Store)
    element, row_axis = _without_buffers(nest, last.body), len(nest.outer)
    row_start = Linear(0, last.offset.axes[:-1]) if last.offset.axes[-1:] == ((row_axis, 1),) else last.offset
    made: dict[Expr, Expr] = {}
    for node in ex.walk([body]):
        if node.kind != "load" or node.attr.slot != Contraction.NO_SLOT:
            continue
        guard = replaced_expr(node.args[0], places) if node.attr.guarded else None
        at = replaced_linear(offset_of(node), places).plus(row_start.times(-1))
        if at.others or not _is_in_row(at, guard, row_axis, nest.inner[0]):
            return None
        made[node] = _guarded(replaced_expr(element, {row_axis: at}), guard)
    marked = {node: Expr("register", node.dtype, (), number) for number, node in enumerate(made)}
    values = {marked[node]: value for node, value in made.items()}
    outside = replaced_expr(ex.rewrite(body, lambda node, _: marked.get(node)), places)
    return ex.rewrite(outside, lambda node, _: values.get(node))


def _without_buffers(nest: LoopNest, body: Expr) -> Expr:
    """A body that makes itself what the nest's buffers hold."""
    held: dict[int, Expr] = {}

    def rule(node: Expr, _: tuple[Expr, ...]) -> Expr | None:
        return held[node.attr] if node.kind == "temp" else None

    for number, statement in enumerate(nest.statements):
        if isinstance(statement, RowBuffer):
            held[number] = ex.rewrite(statement.body, rule)
    return ex.rewrite(body, rule)


def _guarded(body: Expr, guard: Expr | None) -> Expr:
    """0 where the guard does not hold, where nothing is read either."""
    if guard is None:
        return body

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind != "load":
            return None
        both = ex.apply("and", guard, args[0]) if node.attr.guarded else guard
        others = args[1:] if node.attr.guarded else args
        return Expr("load", node.dtype, (both, *others), dataclasses.replace(node.attr, guarded=True))

    return ex.apply("select", guard, ex.rewrite(body, rule), ex.const(0, body.dtype))


def _is_in_row(at: Linear, guard: Expr | None, axis: int, length: Dim) -> bool:
    """Whether a position is one of the row's wherever the guard holds."""
    if not isinstance(at.const, int) or not isinstance(length, int) or at.axes not in (((axis, 1),), ()):
        return False
    low, high = _range(guard, axis, length) if at.axes else (0, 0)
    return low > high or (low + at.const >= 0 and high + at.const < length)


def _range(guard: Expr | None, axis: int, length: int) -> tuple[int, int]:
    """The least and greatest position along an axis at which a guard may hold, as comparisons with constants say."""
    low, high = 0, length - 1
    for test in _conjuncts(guard):
        if test.kind not in ("lt", "le"):
            continue
        left, right = (linear(side) for side in test.args)
        apart = right.plus(left.times(-1))  # test: apart is positive, or not negative
        if apart.others or not isinstance(apart.const, int) or len(apart.axes) != 1 or apart.axes[0][0] != axis:
            continue
        least = apart.const - (test.kind == "lt")
        if apart.axes[0][1] == 1:
            low = max(low, -least)
        elif apart.axes[0][1] == -1:
            high = min(high, least)
    return low, high


def _conjuncts(guard: Expr | None) -> Iterator[Expr]:
    if guard is not None and guard.kind == "and":
        yield from (test for arg in guard.args for test in _conjuncts(arg))
    elif guard is not None:
        yield guard
