"""Loop nests as LLVM functions `void(ptr args, i64 begin, i64 end, ptr scratch)`.

`args[0]` points to the dims, `args[1 + slot]` to the buffers. A function does the parallel positions begin … end-1;
how these are counted, and how many there are, `ScheduledLoops` says. Vectors lie along the row (`across=False`), or
along the last outer axis (`across=True`: maps, and reductions over other axes than the last).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.codegen.scalar import maths
from rlx.codegen.scalar import small_floats as narrow
from rlx.codegen.simd.body import Body, Reg, Vector, float_literal, lane_mask
from rlx.codegen.simd.function import Function, Module, register_type
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.expr import INSTRUCTIONS, Expr
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Statement, Store
from rlx.kernel.schedule.schedule import Schedule
from rlx.ops.reduce import identity

MOST_UNROLLED = 7
"""Steps of an inner loop that are written out one by one."""
SUM_BLOCK = 256
"""Terms that are added one by one; longer sums are sums of such."""
PARAMETERS = "ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch"


@dataclass(frozen=True)
class ScheduledLoops:
    """How a nest is run: `positions` parallel positions, each `weight` instructions of work, `scratch` bytes a thread.

    across    vectors lie along the last outer axis
    flat      the last outer axis is itself what is cut into pieces (there is no other outer axis)
    temps     where row buffers begin in the scratch memory
    """

    nest: LoopNest
    lanes: int
    across: bool
    flat: bool
    positions: Dim
    weight: Dim
    scratch: Dim
    temps: tuple[tuple[int, Dim], ...]

    @property
    def schedule(self) -> Schedule:
        last = len(self.nest.outer) - 1 if self.across else len(self.nest.outer) + len(self.nest.inner) - 1
        spaces = tuple((f"s{number}", "cache") for number, _ in self.temps)
        return Schedule(vector=(f"a{last}", self.lanes) if last >= 0 else None, spaces=spaces)

    def cycles(self, lanes: int) -> Dim:
        return self.weight if self.flat else dims.add(dims.floordiv(self.weight, lanes), 4)

    def render(self, module: Module, stem: str, slots: int) -> str:
        return module.define(stem, lambda name: _NestWriter(module, name, self, slots).write())


def schedule(nest: LoopNest, lanes: int) -> ScheduledLoops:
    """Legalises bodies and chooses along which axis vectors lie."""
    nest = LoopNest(nest.outer, nest.inner, tuple(_legal(s) for s in nest.statements))
    across = _across(nest, lanes)
    flat = across and len(nest.outer) == 1
    parallel = nest.outer if not across or flat else nest.outer[:-1]
    inside = dims.product(nest.inner)
    weight: Dim = 0
    for stage in nest.statements:
        per = _weight(stage.body)
        weight = dims.add(weight, per if isinstance(stage, Store) and not stage.per_element else dims.mul(inside, per))
    if across and not flat:
        weight = dims.mul(weight, nest.outer[-1])
    temps = []
    total: Dim = 0
    for number, stage in enumerate(nest.statements):
        if isinstance(stage, RowBuffer):
            temps.append((number, total))
            dtype = stage.body.dtype
            held = 4 if dtype in narrow.DTYPES else dtype.itemsize  # what registers hold, in f32 if it is narrow
            size = dims.mul(dims.mul(inside, lanes if across else 1), held)
            total = dims.add(total, dims.mul(dims.floordiv(dims.add(size, 127), 64), 64))
    return ScheduledLoops(nest, lanes, across, flat, dims.product(parallel), weight, total, tuple(temps))


def _legal(stage: Statement) -> Statement:
    body = maths.legalise(stage.body)
    match stage:
        case Reduce():
            return Reduce(stage.combine, body, stage.dtype, stage.argument, stage.last)
        case RowBuffer():
            return RowBuffer(body)
        case Store():
            return Store(stage.slot, stage.offset, body, stage.per_element)


def _weight(body: Expr) -> int:
    """Instructions for one element, roughly; loads that are not neighbours count more."""
    return 1 + sum(1 for n in ex.walk([body]) if n.kind in INSTRUCTIONS or n.kind == "load")


def _across(nest: LoopNest, lanes: int) -> bool:
    if not nest.outer:
        return False
    if not nest.inner:
        return True
    if any(isinstance(s, Reduce) and s.argument for s in nest.statements):
        return False
    row_axis, column_axis = len(nest.outer) + len(nest.inner) - 1, len(nest.outer) - 1
    loads = [n.attr for n in ex.walk([s.body for s in nest.statements]) if n.kind == "load"]
    stores = [s.offset for s in nest.statements if isinstance(s, Store)]
    row_misses = sum(a.coefficient(row_axis) not in (0, 1) for a in loads)
    column_misses = sum(a.coefficient(column_axis) not in (0, 1) for a in [*loads, *stores])
    short = isinstance(nest.inner[-1], int) and nest.inner[-1] * 2 < lanes and len(nest.inner) == 1
    return column_misses < row_misses or (short and column_misses <= row_misses)


def buffer_pointers(f: Function, slots: int) -> list[str]:
    """Reads `%dims` and the slots' pointers from `%args`, in the entry block."""
    f.entry.append("  %dims = load ptr, ptr %args, align 8")
    places = [f.at_entry(f"getelementptr ptr, ptr %args, i64 {slot + 1}") for slot in range(slots)]
    return [f.at_entry(f"load ptr, ptr {place}, align 8", "b") for place in places]


def over_positions(f: Function, body: Body, outer: Shape, visit: Callable[[], None]) -> None:
    """Calls `visit` for each of the positions begin … end-1, with positions of the outer axes set. Without such axes
    there is one position, and no loop."""
    if not outer:
        f.when(f.value("icmp slt i64 %begin, %end"), visit)
        return

    def one(position: str, _: list[str]) -> list[str]:
        body.push()
        rest = position
        for number in reversed(range(len(outer))):
            extent = f.dim(outer[number])
            body.axes[number] = rest if number == 0 else f.remainder(rest, extent)
            rest = f.divide(rest, extent) if number else rest
        visit()
        body.pop()
        return []

    f.loop("%begin", "%end", 1, [], one)


class _NestWriter:
    def __init__(self, module: Module, name: str, scheduled: ScheduledLoops, slots: int) -> None:
        self.module = module
        self.scheduled = scheduled
        self.nest = scheduled.nest
        self.f = Function(module, name, PARAMETERS)
        self.lanes = module.target.lanes
        self.body = Body(self.f, buffer_pointers(self.f, slots))
        self.body.load_temp = self._load_temp
        self.inner_axes = list(range(len(self.nest.outer), len(self.nest.outer) + len(self.nest.inner)))
        self.flat_position = "0"

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
        if self.scheduled.across:
            last = len(self.nest.outer) - 1
            self._vector_loop(last, "0", self.f.dim(self.nest.outer[last]))
        else:
            self._stages()
        self.body.pop()
        return []

    # vectors along the last outer axis

    def _vector_loop(self, axis: int, low: str, high: str) -> None:
        """Whole vectors, several in flight, then one masked vector at a time."""
        bodies = [s.body for s in self.nest.statements]
        loop_axes = {axis, *self.inner_axes}
        if not self.nest.inner:
            self.body.hoist(bodies, lambda n: _uses_axis(n, loop_axes) or n.kind in ("row", "temp"), loop_axes)
        span = self.f.sub(high, low)
        unroll = self._unroll(bodies, span)
        wide = self.lanes * unroll
        whole = self.f.add(low, self.f.mul(self.f.divide(span, str(wide)), str(wide)))

        def step(position: str, _: list[str]) -> list[str]:
            for part in range(unroll):
                self._at(axis, self.f.add(position, str(part * self.lanes)), None)
            return []

        def masked(position: str, _: list[str]) -> list[str]:
            self._at(axis, position, lane_mask(self.body, self.f.sub(high, position)))
            return []

        if not _below(span, wide):
            self.f.loop(low, whole, wide, [], step)
        if not _multiple(span, wide):
            self.f.loop(whole, high, self.lanes, [], masked)

    def _at(self, axis: int, position: str, mask: str | None) -> None:
        self.body.push()
        self.body.axes[axis] = position
        self.body.vector = Vector(axis, mask)
        self._stages()
        self.body.vector = None
        self.body.pop()

    def _unroll(self, bodies: Sequence[Expr], span: str) -> int:
        """Vectors in flight; a known span that they would not divide gets fewer, so that no rest is left."""
        if self.nest.inner and self.scheduled.across:
            return 1
        size = sum(_weight(b) for b in bodies)
        most = 4 if size <= 12 else 2 if size <= 64 else 1
        if _multiple(span, self.lanes):
            return max(n for n in (1, 2, 4) if n <= most and _multiple(span, n * self.lanes))
        return most

    # stages

    def _stages(self) -> None:
        self.body.rows = {}
        pending: list[int] = []
        for number, stage in enumerate(self.nest.statements):
            if isinstance(stage, Store) and not stage.per_element:
                self._flush(pending)
                pending = []
                self.body.store(stage.slot, stage.offset, self._row_value(stage.body))
                continue
            used = {n.attr for n in ex.walk([stage.body]) if n.kind == "row"}
            alone = isinstance(stage, Reduce) and stage.argument
            if used & set(pending) or (alone and pending):
                self._flush(pending)
                pending = []
            pending.append(number)
            if alone:
                self._flush(pending)
                pending = []
        self._flush(pending)

    def _row_value(self, body: Expr) -> Reg:
        return self.body.gen(body)

    def _flush(self, numbers: list[int]) -> None:
        """One pass over the row for these stages."""
        if not numbers:
            return
        first = self.nest.statements[numbers[0]]
        if isinstance(first, Reduce) and first.argument:
            self._argument(numbers[0], first)
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
        self.body.hoist(
            bodies,
            lambda n: _uses_axis(n, loop_axes) or (n.kind == "temp") or (n.kind == "row" and n.attr in own),
            loop_axes,
        )
        is_vector = self.scheduled.across or vector_axis is not None
        first = [(self._type(n, is_vector), self._identity(n, is_vector)) for n in reduces]
        results = self._loops(numbers, reduces, sequential, vector_axis, first, "0")
        for number, result in zip(reduces, results):
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
            extent = self.f.dim(self.nest.inner[axis - len(self.nest.outer)])

            def one(position: str, values: list[str]) -> list[str]:
                self.body.push()
                self.body.axes[axis] = position
                inner = [(kind, v) for (kind, _), v in zip(carried, values)]
                along = self.f.add(self.f.mul(flat, extent), position)
                made = self._loops(numbers, reduces, rest, vector_axis, inner, along)
                self.body.pop()
                return made

            if extent.isdigit() and int(extent) <= MOST_UNROLLED and vector_axis is None:
                values = [value for _, value in carried]
                for position in range(int(extent)):  # windows are short: no loop pays for them
                    values = one(str(position), values)
                return values
            if not rest and vector_axis is None and any(self._rounds(n) for n in reduces):
                return self._blocks(extent, reduces, carried, one)
            return self.f.loop("0", extent, 1, carried, one)
        if vector_axis is None:
            self.flat_position = self.f.mul(flat, str(self.lanes))
            return self._visit(numbers, reduces, [v for _, v in carried])
        return self._row_loop(numbers, reduces, vector_axis, carried, flat)

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
        f, vector = self.f, self.scheduled.across
        fresh = [(kind, self._identity(n, vector)) for (kind, _), n in zip(carried, reduces)]

        def block(start: str, totals: list[str]) -> list[str]:
            stop = f.smin(f.add(start, str(SUM_BLOCK)), extent)
            parts = f.loop(start, stop, 1, fresh, one)
            return [self._combine(n, a, b, vector) for n, a, b in zip(reduces, totals, parts)]

        return f.loop("0", extent, SUM_BLOCK, carried, block)

    def _row_loop(
        self, numbers: list[int], reduces: list[int], axis: int, carried: list[tuple[str, str]], flat: str
    ) -> list[str]:
        """Vectors along the row: several accumulators in flight, then the rest masked into the first one."""
        f = self.f
        extent = f.dim(self.nest.inner[axis - len(self.nest.outer)])
        start = f.mul(flat, extent)
        unroll = self._unroll([self.nest.statements[n].body for n in numbers], extent)
        wide = self.lanes * unroll
        whole = f.mul(f.divide(extent, str(wide)), str(wide))
        kinds = [kind for kind, _ in carried]
        more = [(kind, self._identity(n, True)) for _ in range(unroll - 1) for kind, n in zip(kinds, reduces)]

        def step(position: str, values: list[str]) -> list[str]:
            made: list[str] = []
            for part in range(unroll):
                at = f.add(position, str(part * self.lanes))
                mine = values[part * len(reduces) : (part + 1) * len(reduces)]
                made.extend(self._vector_visit(numbers, reduces, axis, at, f.add(start, at), None, mine))
            return made

        def masked(position: str, values: list[str]) -> list[str]:
            mask = lane_mask(self.body, f.sub(extent, position))
            return self._vector_visit(numbers, reduces, axis, position, f.add(start, position), mask, values)

        parts = [value for _, value in (*carried, *more)]
        if not _below(extent, wide):
            parts = f.loop("0", whole, wide, [*carried, *more], step)
        joined = parts[: len(reduces)]
        for part in range(1, unroll):
            mine = parts[part * len(reduces) : (part + 1) * len(reduces)]
            joined = [self._combine(n, a, b, True) for n, a, b in zip(reduces, joined, mine)]
        if _multiple(extent, wide):
            return joined
        return f.loop(whole, extent, self.lanes, list(zip(kinds, joined)), masked)

    def _vector_visit(
        self,
        numbers: list[int],
        reduces: list[int],
        axis: int,
        position: str,
        flat: str,
        mask: str | None,
        values: list[str],
    ) -> list[str]:
        self.body.push()
        self.body.axes[axis] = position
        self.body.vector = Vector(axis, mask)
        self.flat_position = flat
        made = self._visit(numbers, reduces, values)
        self.body.vector = None
        self.body.pop()
        return made

    def _visit(self, numbers: list[int], reduces: list[int], values: list[str]) -> list[str]:
        """All stages of a pass at one position; gives the reductions' new values."""
        self.body.push()
        made = dict(zip(reduces, values))
        for number in numbers:
            stage = self.nest.statements[number]
            reg = self.body.gen(stage.body)
            is_vector = self.body.vector is not None
            match stage:
                case Reduce():
                    wide = self.body.splat(reg) if is_vector else reg
                    made[number] = self._combine(number, made[number], self._inside(number, wide), is_vector)
                case RowBuffer():
                    wide = self.body.splat(reg) if is_vector else reg
                    self._store_temp(number, wide)
                    self.body.remember(Expr("temp", stage.body.dtype, (), number), wide)
                case Store():
                    self.body.store(stage.slot, stage.offset, reg)
        self.body.pop()
        return [made[n] for n in reduces]

    # reductions

    def _type(self, number: int, vector: bool) -> str:
        stage = self.nest.statements[number]
        assert isinstance(stage, Reduce)
        return self.body.kind(register_type(stage.dtype), vector)

    def _identity(self, number: int, vector: bool) -> str:
        stage = self.nest.statements[number]
        assert isinstance(stage, Reduce)
        return _identity_literal(self.body, stage, vector)

    def _inside(self, number: int, reg: Reg) -> Reg:
        """The value, or the identity in lanes that are masked off."""
        if self.body.vector is None or self.body.vector.mask is None or self.scheduled.across:
            return reg
        kind = self._type(number, True)
        neutral = self._identity(number, True)
        mask = self.body.vector.mask
        made = self.f.value(f"select <{self.lanes} x i1> {mask}, {kind} {reg.name}, {kind} {neutral}")
        return Reg(made, reg.dtype, True)

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

    def _argument(self, number: int, stage: Reduce) -> None:
        """Index of an extremum, element by element: a NaN beats all, then the first or last of equals."""
        f, body = self.f, self.body
        axis = self.inner_axes[0]
        dtype = stage.body.dtype
        kind = register_type(dtype)
        body.hoist([stage.body], lambda n: _uses_axis(n, {axis}), {axis})

        def one(position: str, values: list[str]) -> list[str]:
            body.push()
            body.axes[axis] = position
            value = body.gen(stage.body).name
            best, index = values
            leaf, old = Expr("register", dtype, (), "new"), Expr("register", dtype, (), "best")
            body.remember(leaf, Reg(value, dtype, False))
            body.remember(old, Reg(best, dtype, False))
            first = Reg(f.value(f"icmp eq i64 {position}, 0"), dtypes.bool_, False)
            body.remember(Expr("register", dtypes.bool_, (), "first"), first)
            better = body.gen(_better(stage, leaf, old)).name
            body.pop()
            return [
                f.value(f"select i1 {better}, {kind} {value}, {kind} {best}"),
                f.value(f"select i1 {better}, i64 {position}, i64 {index}"),
            ]

        zero = "0.0" if kind in ("float", "double") else "false" if kind == "i1" else "0"
        _, found = f.loop("0", f.dim(self.nest.inner[0]), 1, [(kind, zero), ("i64", "0")], one)
        body.rows[number] = Reg(found, dtypes.i64, False)

    # temps

    def _temp_address(self, number: int, dtype: DType) -> str:
        start = dict(self.scheduled.temps)[number]
        where = self.f.offset("%scratch", "i8", self.f.dim(start))
        return self.f.offset(where, register_type(dtype) if dtype is not dtypes.bool_ else "i8", self.flat_position)

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


def _better(stage: Reduce, new: Expr, best: Expr) -> Expr:
    """Whether `new` replaces `best` in an argmax or argmin."""
    left, right = (best, new) if stage.combine == "max" else (new, best)
    wins = ex.apply("le" if stage.last else "lt", left, right)
    if new.dtype.is_float:
        new_nan, best_nan = ex.apply("ne", new, new), ex.apply("ne", best, best)
        nan_wins = new_nan if stage.last else ex.apply("and", new_nan, ex.apply("not", best_nan))
        wins = ex.apply("or", ex.apply("and", wins, ex.apply("not", best_nan)), nan_wins)
    return ex.apply("or", wins, Expr("register", dtypes.bool_, (), "first"))


def _multiple(span: str, width: int) -> bool:
    """Whether a span is known to be a multiple of a width."""
    return span.isdigit() and int(span) % width == 0


def _below(span: str, width: int) -> bool:
    """Whether a span is known to be shorter than a width."""
    return span.isdigit() and int(span) < width


def _uses_axis(node: Expr, axes: set[int]) -> bool:
    if node.kind == "axis":
        return node.attr in axes
    return node.kind == "load" and any(n in axes for n, _ in node.attr.axes)


def combine(body: Body, name: str, dtype: DType, total: str, value: str, vector: bool) -> str:
    """Two partial results joined by an instruction."""
    left, right = Expr("register", dtype, (), ("total", total)), Expr("register", dtype, (), ("value", value))
    body.push()
    body.remember(left, Reg(total, dtype, vector))
    body.remember(right, Reg(value, dtype, vector))
    made = body.gen(ex.apply(name, left, right)).name
    body.pop()
    return made


def join_lanes(body: Body, name: str, dtype: DType, reg: str) -> str:
    """All lanes of a vector joined by an instruction, halving the vector each time."""
    f, lanes = body.f, body.lanes
    scalar = register_type(dtype)
    kind = f"<{lanes} x {scalar}>"
    width = lanes
    while width > 1:
        width //= 2
        order = ", ".join(f"i32 {(i + width) % lanes}" for i in range(lanes))
        moved = f.value(f"shufflevector {kind} {reg}, {kind} poison, <{lanes} x i32> <{order}>")
        reg = combine(body, name, dtype, reg, moved, True)
    return f.value(f"extractelement {kind} {reg}, i64 0")


def _identity_literal(body: Body, stage: Reduce, vector: bool) -> str:
    value = identity(stage.combine, stage.dtype.numpy)
    if stage.dtype is dtypes.bool_:
        text = "true" if value else "false"
    else:
        text = float_literal(float(value)) if stage.dtype.is_float else str(int(value))
    scalar = register_type(stage.dtype)
    return "<" + ", ".join([f"{scalar} {text}"] * body.lanes) + ">" if vector else text
