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
from rlx.codegen.simd.function import Function, Module
from rlx.codegen.simd.prologue import PARAMETERS, buffer_pointers, over_positions
from rlx.codegen.simd.reductions import combine
from rlx.codegen.simd.registers import Reg, Vector
from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.expr import INSTRUCTIONS, Expr
from rlx.kernel.ir.index import Linear, load
from rlx.kernel.ir.irregular import OrderedWork, PrefixScan, Scatter, TopKSelection
from rlx.kernel.schedule.schedule import Schedule
from rlx.ops.reduce import identity


@dataclass(frozen=True)
class ScheduledIrregular:
    """How irregular work is run; fields as in `loops.ScheduledLoops`."""

    work: OrderedWork
    lanes: int
    across: bool
    flat: bool
    positions: Dim
    weight: Dim
    scratch: Dim

    @property
    def schedule(self) -> Schedule:
        return Schedule(vector=(f"a{len(self.work.outer) - 1}", self.lanes) if self.across else None)

    def cycles(self, lanes: int) -> Dim:
        return self.weight

    def render(self, module: Module, stem: str, slots: int) -> str:
        def make(name: str) -> Function:
            match self.work:
                case Scatter():
                    return _UpdateWriter(module, name, self, slots, self.work).write()
                case PrefixScan():
                    return _RunningWriter(module, name, self, slots, self.work).write()
                case TopKSelection():
                    return ranking.TopKWriter(module, name, slots, self.work).write()

        return module.define(stem, make)


def schedule(work: OrderedWork, lanes: int) -> ScheduledIrregular:
    """Legalises bodies, and chooses whether vectors lie along the last outer axis."""
    match work:
        case TopKSelection():
            work = replace(work, body=maths.legalise(work.body))
            weight = dims.mul(work.length, 8 + weight_of([work.body]))
            return ScheduledIrregular(
                work, lanes, False, False, dims.product(work.outer), weight, ranking.scratch_bytes(work)
            )
        case Scatter():
            guard, body = maths.legalise(work.guard), maths.legalise(work.body)
            work = replace(work, offset=_legal(work.offset), guard=guard, body=body)
            weight = dims.mul(dims.product(work.inner), 4 + weight_of([guard, body]))
        case PrefixScan():
            body = maths.legalise(work.body)
            work = replace(work, body=body)
            weight = dims.mul(work.length, 4 + weight_of([body]))
    across = _across(work.outer, work.offset, lanes)
    flat = across and len(work.outer) == 1
    parallel = work.outer[:-1] if across and not flat else work.outer
    if across and not flat:
        weight = dims.add(dims.floordiv(dims.mul(weight, work.outer[-1]), lanes), 1)
    return ScheduledIrregular(work, lanes, across, flat, dims.product(parallel), weight, 0)


def _legal(line: Linear) -> Linear:
    return Linear(line.const, line.axes, tuple((maths.legalise(e), c) for e, c in line.others))


def weight_of(bodies: Iterable[Expr]) -> int:
    """Instructions for one element, roughly."""
    return sum(1 for n in ex.walk(list(bodies)) if n.kind in INSTRUCTIONS or n.kind == "load")


def _across(outer: Shape, offset: Linear, lanes: int) -> bool:
    if not outer or offset.coefficient(len(outer) - 1) != 1:
        return False
    return not isinstance(outer[-1], int) or outer[-1] * 2 >= lanes


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
        whole = f.add(low, f.mul(f.divide(f.sub(high, low), str(self.lanes)), str(self.lanes)))

        def at(position: str, mask: str | None) -> list[str]:
            body.push()
            body.axes[axis] = position
            body.vector = Vector(axis, mask)
            visit()
            body.vector = None
            body.pop()
            return []

        f.loop(low, whole, self.lanes, [], lambda position, _: at(position, None))
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
