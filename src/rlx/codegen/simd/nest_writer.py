"""Writes the function of a scheduled loop nest: loops over positions, and passes over the row in them.

Statements that need no result of one another share a pass. Vectors lie along the row, or along the last outer axis;
then several of them may go side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlx.codegen.simd import windows
from rlx.codegen.simd.argument_pass import argument_pass
from rlx.codegen.simd.body import Body, lane_mask, uses_axis
from rlx.codegen.simd.function import Function, Module, register_type
from rlx.codegen.simd.prologue import PARAMETERS, buffer_pointers
from rlx.codegen.simd.reductions import combine, identity_literal, join_lanes
from rlx.codegen.simd.registers import Reg, Vector
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.index import offset_of
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Store, is_once_a_row, row_passes

if TYPE_CHECKING:
    from rlx.codegen.simd.loops import ScheduledLoops

LINE_BYTES = 64
ROWS_AHEAD = 4
"""How far before their use elements of long columns are fetched."""


@dataclass(frozen=True)
class _Part:
    """One of the vectors that go side by side, along the last outer axis or along the row: where it is, and its rows'
    results."""

    position: str
    vector: Vector
    rows: dict[int, Reg]


class NestWriter:
    def __init__(self, module: Module, name: str, scheduled: ScheduledLoops, slots: int) -> None:
        self.module = module
        self.scheduled = scheduled
        self.nest = scheduled.nest
        self.f = Function(module, name, PARAMETERS)
        self.lanes = module.target.lanes
        self.body = Body(self.f, buffer_pointers(self.f, slots))
        self.body.load_temp = self._load_temp
        self.inner_axes = list(range(len(self.nest.outer), len(self.nest.outer) + len(self.nest.inner)))
        self.parts: list[_Part] = []

    def write(self) -> Function:
        if not self.nest.outer:
            self.f.when(self.f.value("icmp slt i64 %begin, %end"), self._single)
        elif self.scheduled.flat:
            self._vector_loop(0, "%begin", "%end")
        else:
            self.f.loop("%begin", "%end", 1, [], self._position)
        return self.f

    def _single(self) -> None:
        self._stages()

    def _position(self, position: str, _: list[str]) -> list[str]:
        outer = self.nest.outer[:-1] if self.scheduled.across else self.nest.outer
        self.body.push()
        rest = position
        for number in reversed(range(len(outer))):
            if number == 0:
                self.body.axes[number] = rest
            else:
                extent = self.f.dim(outer[number])
                self.body.axes[number] = self.f.remainder(rest, extent)
                rest = self.f.divide(rest, extent)
        if self.scheduled.single is not None:
            self._windows(self.scheduled.single)
        elif self.scheduled.across:
            self._last_axis()
        else:
            self._stages()
        self.body.pop()
        return []

    def _last_axis(self) -> None:
        last = len(self.nest.outer) - 1
        self._vector_loop(last, "0", self.f.dim(self.nest.outer[last]))

    def _windows(self, single: LoopNest) -> None:
        """Several positions of windows at a time, or what is left of the axis one by one."""
        f, body, axis = self.f, self.body, len(single.outer) - 2
        count, extent = self.scheduled.tiles.static_tile("register", "positions"), f.dim(single.outer[axis])
        first = f.mul(body.axes[axis], str(count))
        behind = f.add(first, str(count))

        def apart(write: Callable[[], None]) -> None:
            body.push()
            write()
            body.pop()

        def one(position: str, _: list[str]) -> list[str]:
            body.axes[axis] = position
            apart(self._last_axis)
            return []

        def left() -> None:
            f.loop(first, extent, 1, [], one)

        f.when(f.value(f"icmp sle i64 {behind}, {extent}"), lambda: apart(self._last_axis))
        together, block, self.nest = self.nest, body.axes[axis], single
        f.when(f.value(f"icmp sgt i64 {behind}, {extent}"), left)
        self.nest, body.axes[axis] = together, block

    # vectors along the last outer axis

    def _vector_loop(self, axis: int, low: str, high: str) -> None:
        """Whole vectors, several in flight, then one masked vector at a time."""
        bodies = [s.body for s in self.nest.statements]
        loop_axes = {axis, *self.inner_axes}
        if not self.nest.inner:
            self.body.hoist(bodies, lambda n: uses_axis(n, loop_axes) or n.kind in ("row", "temp"), loop_axes)
        span = self.f.sub(high, low)
        if self.nest.inner and self.scheduled.side_by_side > 1:
            self._side_by_side_loop(axis, low, high, span)
            return
        unroll = self.scheduled.side_by_side
        wide = self.lanes * unroll
        whole = self.f.add(low, self.f.mul(self.f.divide(span, str(wide)), str(wide)))

        def step(position: str, _: list[str]) -> list[str]:
            self._at(axis, position, None, unroll)
            return []

        def masked(position: str, _: list[str]) -> list[str]:
            self._at(axis, position, self.f.sub(high, position))
            return []

        if not _below(span, wide):
            self.f.loop(low, whole, wide, [], step)
        if not _multiple(span, wide):
            self.f.loop(whole, high, self.lanes, [], masked)

    def _side_by_side_loop(self, axis: int, low: str, high: str, span: str) -> None:
        """Several vectors at a time: of every row neighbouring elements are read together."""
        f, count = self.f, self.scheduled.side_by_side
        wide = self.lanes * count
        whole = f.add(low, f.mul(f.divide(span, str(wide)), str(wide)))

        def step(position: str, _: list[str]) -> list[str]:
            self._at(axis, position, None, count)
            return []

        def masked(position: str, _: list[str]) -> list[str]:
            self._at(axis, position, f.sub(high, position), rest)
            return []

        if not _below(span, wide):
            f.loop(low, whole, wide, [], step)
        if not _multiple(span, wide):
            rest = -(-(int(span) % wide) // self.lanes) if span.isdigit() else count // 2
            f.loop(whole, high, self.lanes * rest, [], masked)

    def _at(self, axis: int, position: str, remaining: str | None, count: int = 1) -> None:
        """The statements for `count` vectors side by side, of which `remaining` elements are inside."""
        f = self.f
        self.body.push()
        self.parts = []
        for number in range(count):
            step = str(number * self.lanes)
            mask = None if remaining is None else lane_mask(self.body, f.sub(remaining, step))
            self.parts.append(_Part(f.add(position, step), Vector(axis, mask), {}))
        self._stages()
        self.parts = []
        self.body.vector = None
        self.body.pop()

    def side_by_side(self, places: Sequence[str] = ()) -> Iterator[int]:
        """Each of the vectors side by side, with the body there; once where there are none. `places` are those in row
        buffers."""
        for number in range(max(len(self.parts), 1)):
            if self.parts:
                part = self.parts[number]
                self.body.axes[part.vector.axis] = part.position
                self.body.vector = part.vector
                self.body.rows = part.rows
            if places:
                self.body.place = places[number]
            yield number

    def _alternate(self, body: Expr, places: Sequence[str] = ()) -> None:
        """Makes an expression for all vectors side by side, each of its instructions for one after the other: what one
        waits for, the others need not."""
        if len(self.parts) > 1:
            for node in ex.walk([body]):
                for _ in self.side_by_side(places):
                    self.body.gen(node)

    # stages

    def _stages(self) -> None:
        self.body.rows = {}
        for numbers in row_passes(dict(enumerate(self.nest.statements))):
            stage = self.nest.statements[numbers[0]]
            if isinstance(stage, Store) and is_once_a_row(stage):
                self._alternate(stage.body)
                for _ in self.side_by_side():
                    self.body.store(stage.slot, stage.offset, self.body.gen(stage.body))
            else:
                self._walk(numbers)

    def _walk(self, numbers: list[int]) -> None:
        """One pass over the row for these stages."""
        first = self.nest.statements[numbers[0]]
        if isinstance(first, Reduce) and first.argument:
            argument_pass(self, numbers[0], first)
        elif self.scheduled.across or not self.inner_axes:
            self._pass(numbers, self.inner_axes, None)
        else:
            self._pass(numbers, self.inner_axes[:-1], self.inner_axes[-1])

    def _pass(self, numbers: list[int], sequential: list[int], vector_axis: int | None) -> None:
        """Loops over the sequential inner axes, and in them over vectors of the row, carrying the reductions."""
        reduces = [n for n in numbers if isinstance(self.nest.statements[n], Reduce)]
        bodies = [self.nest.statements[n].body for n in numbers]
        loop_axes = set(self.inner_axes)
        own = set(numbers)
        for _ in self.side_by_side():
            self.body.hoist(
                bodies,
                lambda n: uses_axis(n, loop_axes) or (n.kind == "temp") or (n.kind == "row" and n.attr in own),
                loop_axes,
            )
        is_vector = self.scheduled.across or vector_axis is not None
        first = [(self._type(n, is_vector), self._identity(n, is_vector)) for n in reduces]
        statements = [self.nest.statements[n] for n in numbers]
        one_line = vector_axis is None and windows.is_written_out(self.nest) and windows.only_sums(statements)
        with self.body.loading_once() if one_line else nullcontext():
            results = self._loops(numbers, reduces, sequential, vector_axis, first * max(len(self.parts), 1), "0")
        for part in self.side_by_side():
            for number, result in zip(reduces, results[part * len(reduces) :]):
                stage = self.nest.statements[number]
                assert isinstance(stage, Reduce)
                reg = Reg(result, stage.dtype, is_vector)
                self.body.rows[number] = reg if self.scheduled.across else self._across_lanes(stage, reg)

    def _loops(
        self,
        numbers: list[int],
        reduces: list[int],
        sequential: list[int],
        vector_axis: int | None,
        carried: list[tuple[str, str]],
        flat: str,
    ) -> list[str]:
        if sequential:
            axis, *rest = sequential
            extent = self.f.dim(self._inner_extent(axis))

            def one(position: str, values: list[str]) -> list[str]:
                self.body.push()
                self.body.axes[axis] = position
                inner = [(kind, v) for (kind, _), v in zip(carried, values)]
                if len(self.parts) > 1 and not rest:
                    self.fetch_ahead(numbers, axis, position)
                along = self.f.add(self.f.mul(flat, extent), position)
                reduced = self._loops(numbers, reduces, rest, vector_axis, inner, along)
                self.body.pop()
                return reduced

            if vector_axis is None and windows.are_steps_written_out([self._inner_extent(n) for n in sequential]):
                values = [value for _, value in carried]
                for position in range(int(extent)):
                    values = one(str(position), values)
                return values
            if not rest and vector_axis is None and any(self._rounds(n) for n in reduces):
                return self._blocks(extent, reduces, carried, one)
            return self.f.loop("0", extent, 1, carried, one)
        if vector_axis is None:
            return self._visit_parts(numbers, reduces, [v for _, v in carried], flat)
        return self._row_loop(numbers, reduces, vector_axis, carried, flat)

    def _inner_extent(self, axis: int) -> Dim:
        return self.nest.inner[axis - len(self.nest.outer)]

    def fetch_ahead(self, numbers: list[int], axis: int, position: str) -> None:
        """Brings what a later row of the columns side by side reads into the cache: rows lie far apart."""
        f, body = self.f, self.body
        loads = [n for n in ex.walk([self.nest.statements[n].body for n in numbers]) if n.kind == "load" and not n.args]
        body.axes[axis] = f.add(position, str(ROWS_AHEAD))
        for part in self.side_by_side():
            column = self.parts[part].vector.axis
            for load in loads:
                lines = self.lanes * load.dtype.itemsize * part % LINE_BYTES == 0
                if lines and load.attr.coefficient(column) == 1 and load.attr.coefficient(axis) != 0:
                    f.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
                    where = body.pointer(load.attr.slot, load.dtype, offset_of(load))
                    f.emit(f"call void @llvm.prefetch.p0(ptr {where}, i32 0, i32 3, i32 1)")
        body.axes[axis] = position

    def _visit_parts(self, numbers: list[int], reduces: list[int], values: list[str], flat: str) -> list[str]:
        """`_visit` for each of the vectors side by side along the last outer axis."""
        count = max(len(self.parts), 1)
        row = self.f.mul(flat, str(self.lanes * count))
        places = [self.f.add(row, str(part * self.lanes)) for part in range(count)]
        return self._visit(numbers, reduces, values, places)

    def _rounds(self, number: int) -> bool:
        stage = self.nest.statements[number]
        return isinstance(stage, Reduce) and stage.combine == "add" and stage.dtype.is_float

    def _blocks(
        self,
        extent: str,
        reduces: list[int],
        carried: list[tuple[str, str]],
        one: Callable[[str, list[str]], list[str]],
    ) -> list[str]:
        """A loop whose sums start afresh every so often: a sum of n numbers added one by one rounds n times."""
        f, vector, terms = self.f, self.scheduled.across, self.scheduled.terms
        reduces = reduces * max(len(self.parts), 1)
        initial = [(kind, self._identity(n, vector)) for (kind, _), n in zip(carried, reduces)]

        def block(start: str, totals: list[str]) -> list[str]:
            stop = f.smin(f.add(start, str(terms)), extent)
            parts = f.loop(start, stop, 1, initial, one)
            return [self._combine(n, a, b, vector) for n, a, b in zip(reduces, totals, parts)]

        return f.loop("0", extent, terms, carried, block)

    def _row_loop(
        self, numbers: list[int], reduces: list[int], axis: int, carried: list[tuple[str, str]], flat: str
    ) -> list[str]:
        """Vectors along the row: several accumulators in flight, then the rest masked into the first one."""
        f = self.f
        extent = f.dim(self.nest.inner[axis - len(self.nest.outer)])
        start = f.mul(flat, extent)
        unroll = self.scheduled.in_flight(numbers[0])
        wide = self.lanes * unroll
        whole = f.mul(f.divide(extent, str(wide)), str(wide))
        kinds = [kind for kind, _ in carried]
        more = [(kind, self._identity(n, True)) for _ in range(unroll - 1) for kind, n in zip(kinds, reduces)]

        def step(position: str, values: list[str]) -> list[str]:
            ats = [f.add(position, str(part * self.lanes)) for part in range(unroll)]
            return self._along_row(numbers, reduces, [(at, Vector(axis)) for at in ats], start, values)

        def masked(position: str, values: list[str]) -> list[str]:
            mask = lane_mask(self.body, f.sub(extent, position))
            return self._along_row(numbers, reduces, [(position, Vector(axis, mask))], start, values)

        parts = [value for _, value in (*carried, *more)]
        if not _below(extent, wide):
            parts = f.loop("0", whole, wide, [*carried, *more], step)
        totals = parts[: len(reduces)]
        for part in range(1, unroll):
            part_values = parts[part * len(reduces) : (part + 1) * len(reduces)]
            totals = [self._combine(n, a, b, True) for n, a, b in zip(reduces, totals, part_values)]
        if _multiple(extent, wide):
            return totals
        return f.loop(whole, extent, self.lanes, list(zip(kinds, totals)), masked)

    def _along_row(
        self, numbers: list[int], reduces: list[int], vectors: list[tuple[str, Vector]], start: str, values: list[str]
    ) -> list[str]:
        """`_visit` for vectors along the row, by their positions."""
        self.body.push()
        self.parts = [_Part(position, vector, self.body.rows) for position, vector in vectors]
        reduced = self._visit(numbers, reduces, values, [self.f.add(start, position) for position, _ in vectors])
        self.parts = []
        self.body.vector = None
        self.body.pop()
        return reduced

    def _visit(self, numbers: list[int], reduces: list[int], values: list[str], places: list[str]) -> list[str]:
        """All stages of a pass at one position, or for the vectors side by side; gives the reductions' new values,
        those of a vector together."""
        self.body.push()
        value_of = dict(zip(((part, n) for part in range(len(places)) for n in reduces), values))
        for number in numbers:
            stage = self.nest.statements[number]
            self._alternate(stage.body, places)
            for part in self.side_by_side(places):
                reg = self.body.gen(stage.body)
                is_vector = self.body.vector is not None
                wide = self.body.splat(reg) if is_vector else reg
                match stage:
                    case Reduce():
                        inside = self._inside(number, wide)
                        value_of[part, number] = self._combine(number, value_of[part, number], inside, is_vector)
                    case RowBuffer():
                        self._store_temp(number, wide)
                        self.body.remember(Expr("temp", stage.body.dtype, (), number), wide)
                    case Store():
                        self.body.store(stage.slot, stage.offset, reg)
        self.body.pop()
        return [value_of[part, n] for part in range(len(places)) for n in reduces]

    # reductions

    def _type(self, number: int, vector: bool) -> str:
        stage = self.nest.statements[number]
        assert isinstance(stage, Reduce)
        return self.body.kind(register_type(stage.dtype), vector)

    def _identity(self, number: int, vector: bool) -> str:
        stage = self.nest.statements[number]
        assert isinstance(stage, Reduce)
        return identity_literal(self.body, stage.combine, stage.dtype, vector)

    def _inside(self, number: int, reg: Reg) -> Reg:
        """The value, or the identity in lanes that are masked off."""
        if self.body.vector is None or self.body.vector.mask is None or self.scheduled.across:
            return reg
        kind = self._type(number, True)
        neutral = self._identity(number, True)
        mask = self.body.vector.mask
        masked = self.f.value(f"select <{self.lanes} x i1> {mask}, {kind} {reg.name}, {kind} {neutral}")
        return Reg(masked, reg.dtype, True)

    def _combine(self, number: int, total: str, value: Reg | str, vector: bool) -> str:
        stage = self.nest.statements[number]
        assert isinstance(stage, Reduce)
        name = value.name if isinstance(value, Reg) else value
        return combine(self.body, stage.combine, stage.dtype, total, name, vector)

    def _across_lanes(self, stage: Reduce, reg: Reg) -> Reg:
        """A vector of partial results joined to one."""
        if not reg.vector:
            return reg
        return Reg(join_lanes(self.body, stage.combine, stage.dtype, reg.name), stage.dtype, False)

    # temps

    def _temp_address(self, number: int, dtype: DType) -> str:
        start = dict(self.scheduled.temps)[number]
        where = self.f.offset("%scratch", "i8", self.f.dim(start))
        return self.f.offset(where, register_type(dtype) if dtype is not dtypes.bool_ else "i8", self.body.place)

    def _store_temp(self, number: int, reg: Reg) -> None:
        where = self._temp_address(number, reg.dtype)
        kind = register_type(reg.dtype) if reg.dtype is not dtypes.bool_ else "i8"
        raw = self.body.encode(reg) if reg.dtype is dtypes.bool_ else reg
        self.f.emit(f"store {self.body.kind(kind, reg.vector)} {raw.name}, ptr {where}, align 4")

    def _load_temp(self, number: int, dtype: DType) -> Reg:
        where = self._temp_address(number, dtype)
        kind = register_type(dtype) if dtype is not dtypes.bool_ else "i8"
        vector = self.body.vector is not None
        raw = self.f.value(f"load {self.body.kind(kind, vector)}, ptr {where}, align 4")
        return self.body.decode(Reg(raw, dtype, vector)) if dtype is dtypes.bool_ else Reg(raw, dtype, vector)


def _multiple(span: str, width: int) -> bool:
    """Whether a span is known to be a multiple of a width."""
    return span.isdigit() and int(span) % width == 0


def _below(span: str, width: int) -> bool:
    """Whether a span is known to be shorter than a width."""
    return span.isdigit() and int(span) < width
