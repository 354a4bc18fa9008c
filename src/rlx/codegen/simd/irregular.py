"""Special work as LLVM functions of the form that `codegen.simd.loops` describes: scatters and running reductions.

Vectors lie along the last outer axis where results are neighbours there; else elements are done one by one. The axes of
the work itself are loops that go in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rlx.codegen.scalar import maths
from rlx.codegen.simd import top_k as ranking
from rlx.codegen.simd.body import Body, lane_mask
from rlx.codegen.simd.function import Callee, Function, Module
from rlx.codegen.simd.loops import MOST_VECTORS
from rlx.codegen.simd.prologue import PARAMETERS, buffer_pointers, over_positions
from rlx.codegen.simd.reductions import combine
from rlx.codegen.simd.registers import Reg, Vector
from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.expr import INSTRUCTIONS, Expr
from rlx.kernel.ir.index import Linear, load
from rlx.kernel.ir.irregular import OrderedWork, PrefixScan, Scatter, TopKSelection
from rlx.kernel.schedule.overrides import overridden, unfit
from rlx.kernel.schedule.schedule import Schedule, Tile
from rlx.ops.reduce import identity


@dataclass(frozen=True)
class ScheduledIrregular:
    """How irregular work is run; fields as in `loops.ScheduledLoops`."""

    work: OrderedWork
    schedule: Schedule
    flat: bool
    positions: Dim
    weight: Dim
    scratch: Dim

    @property
    def across(self) -> bool:
        """Whether vectors lie along the last outer axis."""
        return self.schedule.vector is not None

    def cycles(self, lanes: int) -> Dim:
        return self.weight

    def render(self, module: Module, stem: str, slots: int) -> Callee:
        def make(name: str) -> Function:
            match self.work:
                case Scatter():
                    return _UpdateWriter(module, name, self, slots, self.work).write()
                case PrefixScan():
                    return _RunningWriter(module, name, self, slots, self.work).write()
                case TopKSelection():
                    least = self.schedule.static_tile("cache", "elements")
                    return ranking.TopKWriter(module, name, slots, self.work, least).write()

        return module.define(stem, make)


def schedule(work: OrderedWork, lanes: int) -> ScheduledIrregular:
    """Legalises bodies, and chooses whether vectors lie along the last outer axis."""
    match work:
        case TopKSelection():
            work = replace(work, body=maths.legalise(work.body))
            weight = dims.mul(work.length, 8 + weight_of([work.body]))
            chosen = ranking.schedule()
            scratch = ranking.scratch_bytes(work, chosen.static_tile("cache", "elements"))
            return ScheduledIrregular(work, chosen, False, dims.product(work.outer), weight, scratch)
        case Scatter():
            guard, body = maths.legalise(work.guard), maths.legalise(work.body)
            work = replace(work, offset=_legal(work.offset), guard=guard, body=body)
            weight = dims.mul(dims.product(work.inner), 4 + weight_of([guard, body]))
            chosen = _columns("scatter", work, lanes, MOST_VECTORS)
        case PrefixScan():
            body = maths.legalise(work.body)
            work = replace(work, body=body)
            weight = dims.mul(work.length, 4 + weight_of([body]))
            chosen = _columns("prefix-scan", work, lanes, 1)
    across = chosen.vector is not None
    flat = across and len(work.outer) == 1
    parallel = work.outer[:-1] if across and not flat else work.outer
    if across and not flat:
        weight = dims.add(dims.floordiv(dims.mul(weight, work.outer[-1]), lanes), 1)
    return ScheduledIrregular(work, chosen, flat, dims.product(parallel), weight, 0)


def _columns(kind: str, work: Scatter | PrefixScan, lanes: int, vectors: int) -> Schedule:
    """Columns that are worked on together, in as many `vectors` at most; one where they are no neighbours, or few.
    Raises RlxError for what is set by hand and the kernel cannot have."""
    last = len(work.outer) - 1
    neighbours = bool(work.outer) and work.offset.coefficient(last) == 1
    few = neighbours and isinstance(work.outer[last], int) and work.outer[last] * 2 < lanes
    columns = Tile("register", "columns", lanes if neighbours and not few else 1)
    chosen = overridden(kind, Schedule((columns,)))
    count = chosen.static_tile("register", "columns")
    if count == 1:
        return chosen
    if not neighbours:
        raise unfit(kind, "register", "columns", count, "of 1, as results do not lie side by side")
    if count % lanes or count > vectors * lanes:
        wide = f"{lanes} times 1 to {vectors}" if vectors > 1 else str(lanes)
        raise unfit(kind, "register", "columns", count, f"of 1 or {wide}")
    return replace(chosen, vector=(f"a{last}", lanes))


def _legal(line: Linear) -> Linear:
    return Linear(line.const, line.axes, tuple((maths.legalise(e), c) for e, c in line.others))


def weight_of(bodies: Iterable[Expr]) -> int:
    """Instructions for one element, roughly."""
    return sum(1 for n in ex.walk(list(bodies)) if n.kind in INSTRUCTIONS or n.kind == "load")


class _SpecialWriter:
    """The loops over outer positions; `rows` writes what is done at one of them, or along a vector axis."""

    def __init__(self, module: Module, name: str, scheduled: ScheduledIrregular, slots: int, outer: Shape) -> None:
        self.scheduled = scheduled
        self.outer = outer
        self.f = Function(module, name, PARAMETERS)
        self.body = Body(self.f, buffer_pointers(self.f, slots))
        self.lanes = module.target.lanes
        self.vector_axis = len(outer) - 1 if scheduled.across else None

    def rows(self, low: str, high: str) -> None:
        """All that belongs to one position; vectors lie along low … high of the last outer axis, where they do."""
        raise NotImplementedError

    def write(self) -> Function:
        if self.scheduled.flat:
            self.rows("%begin", "%end")
        elif not self.outer:
            self.f.when(self.f.value("icmp slt i64 %begin, %end"), lambda: self.rows("0", "0"))
        else:
            over_positions(self.f, self.body, self.outer[:-1] if self.scheduled.across else self.outer, self._position)
        return self.f

    def _position(self) -> None:
        self.rows("0", self.f.dim(self.outer[-1]) if self.scheduled.across else "0")

    def vectors(self, low: str, high: str, visit: Callable[[], None]) -> None:
        """Calls `visit` for whole vectors along the vector axis and for a masked rest; once where there is none."""
        axis = self.vector_axis
        if axis is None:
            visit()
            return
        f, body = self.f, self.body
        wide = self.scheduled.schedule.static_tile("register", "columns")
        whole = f.add(low, f.mul(f.divide(f.sub(high, low), str(wide)), str(wide)))

        def at(position: str, mask: str | None) -> list[str]:
            body.push()
            body.axes[axis] = position
            body.vector = Vector(axis, mask)
            visit()
            body.vector = None
            body.pop()
            return []

        def several(position: str, _: list[str]) -> list[str]:
            return [value for step in range(0, wide, self.lanes) for value in at(f.add(position, str(step)), None)]

        f.loop(low, whole, wide, [], several)
        f.loop(whole, high, self.lanes, [], lambda position, _: at(position, lane_mask(body, f.sub(high, position))))


class _UpdateWriter(_SpecialWriter):
    """A scatter: vectors inside of the loop over updates, so that an index is looked at once for all of them."""

    def __init__(self, module: Module, name: str, scheduled: ScheduledIrregular, slots: int, work: Scatter) -> None:
        super().__init__(module, name, scheduled, slots, work.outer)
        self.work = work

    def rows(self, low: str, high: str) -> None:
        self._inner(len(self.outer), self.work.inner, low, high)

    def _inner(self, number: int, extents: Shape, low: str, high: str) -> None:
        if not extents:
            self._guarded(low, high)
            return

        def one(position: str, _: list[str]) -> list[str]:
            self.body.push()
            self.body.axes[number] = position
            self._inner(number + 1, extents[1:], low, high)
            self.body.pop()
            return []

        self.f.loop("0", self.f.dim(extents[0]), 1, [], one)

    def _guarded(self, low: str, high: str) -> None:
        """Scalar guards are branches; those that differ from lane to lane are masks."""
        work, body = self.work, self.body
        parts = [work.guard, work.body, *(e for e, _ in work.offset.others)]
        body.push()
        if self.vector_axis is not None:
            axis = self.vector_axis
            body.hoist(parts, lambda node: depends(node, axis), {axis})
        if self.vector_axis is None or not any(depends(node, self.vector_axis) for node in ex.walk([work.guard])):
            self.f.when(body.gen(work.guard).name, lambda: self._vectors(low, high, guarded=False))
        else:
            self._vectors(low, high, guarded=True)
        body.pop()

    def _vectors(self, low: str, high: str, guarded: bool) -> None:
        self.body.push()
        self.vectors(low, high, lambda: self._store(guarded))
        self.body.pop()

    def _store(self, guarded: bool) -> None:
        work, body = self.work, self.body
        body.push()
        if guarded:
            assert body.vector is not None  # the guard depends on the vector axis
            mask = self.f.value(f"and <{self.lanes} x i1> {body.mask()}, {body.splat(body.gen(work.guard)).name}")
            body.vector = Vector(body.vector.axis, mask)
        value = body.gen(work.body)
        if work.combine is not None:
            old = body.gen(load(0, work.offset, value.dtype))
            both = old.vector or value.vector
            left, right = (body.splat(old), body.splat(value)) if both else (old, value)
            value = Reg(combine(body, work.combine, value.dtype, left.name, right.name, both), value.dtype, both)
        body.store(0, work.offset, value)
        body.pop()


class _RunningWriter(_SpecialWriter):
    """A running reduction: a loop along the axis for every vector, the total in a register."""

    def __init__(self, module: Module, name: str, scheduled: ScheduledIrregular, slots: int, work: PrefixScan) -> None:
        super().__init__(module, name, scheduled, slots, work.outer)
        self.work = work

    def rows(self, low: str, high: str) -> None:
        self.vectors(low, high, self._line)

    def _line(self) -> None:
        work, f, body = self.work, self.f, self.body
        axis = len(self.outer)
        vector = body.vector is not None
        first = body.gen(ex.const(identity(work.combine, work.total.numpy), work.total))
        start = body.splat(first) if vector else first
        body.hoist([work.body], lambda node: depends(node, axis), {axis})
        last = f.sub(f.dim(work.length), "1")

        def step(position: str, values: list[str]) -> list[str]:
            body.push()
            body.axes[axis] = f.sub(last, position) if work.reverse else position
            register = body.gen(work.body)
            value = body.splat(register) if vector else register
            total = combine(body, work.combine, work.total, values[0], value.name, vector)
            self._store(values[0] if work.exclusive else total, vector)
            body.pop()
            return [total]

        f.loop("0", f.dim(work.length), 1, [(body.type_of(start), start.name)], step)

    def _store(self, total: str, vector: bool) -> None:
        work, body = self.work, self.body
        leaf = Expr("register", work.total, (), ("running", total))
        body.remember(leaf, Reg(total, work.total, vector))
        body.store(0, work.offset, body.gen(ex.cast(leaf, work.dtype)))


def depends(node: Expr, axis: int) -> bool:
    """Whether a leaf changes along an axis."""
    if node.kind == "axis":
        return bool(node.attr == axis)
    return node.kind == "load" and any(number == axis for number, _ in node.attr.axes)
