"""Maps whose operand runs along another axis than their result (transposes): done in squares, in registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.codegen.simd.body import Body, lane_mask
from rlx.codegen.simd.function import Callee, Function, Module, memory_type
from rlx.codegen.simd.loops import ScheduledLoops, body_weight
from rlx.codegen.simd.prologue import PARAMETERS, buffer_pointers
from rlx.codegen.simd.registers import Reg, Vector
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.index import offset_of
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.schedule.overrides import overridden, unfit
from rlx.kernel.schedule.schedule import Schedule, Tile
from rlx.kernel.schedule.transposes import transposition

MOST_WRITTEN_OUT = 6
"""Instructions of a body that is written for each row of a square; longer ones are a loop over rows in memory."""
MOST_INTERLEAVED = 8
"""Columns that are written in turns instead of as parts of squares."""


@dataclass(frozen=True)
class ScheduledTranspose:
    """How a transposing map is run; fields as in `ScheduledLoops`. A position is the other outer axes and a block of
    `axis`: so many rows of the result, which are written square by square."""

    inner: ScheduledLoops
    schedule: Schedule
    axis: int
    transposed: tuple[Expr, ...]
    positions: Dim
    weight: Dim
    scratch: Dim = 0
    flat: bool = False

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.schedule.static_tile("cache", "rows")

    def cycles(self, lanes: int) -> Dim:
        return self.weight

    def render(self, module: Module, stem: str, slots: int) -> Callee:
        return module.define(stem, lambda name: _TransposeWriter(module, name, self, slots).write())


def schedule(loops: ScheduledLoops, lanes: int) -> ScheduledTranspose | None:
    """The schedule if a nest is such a map, else None."""
    nest = loops.nest
    transposed = transposition(nest)
    if transposed is None or not all(map(_turns, transposed.reads)):
        return None
    axis, last = transposed.axis, len(nest.outer) - 1
    tiles = _tiles(nest, axis, lanes)
    rows = tiles.static_tile("cache", "rows")
    others = dims.product(d for i, d in enumerate(nest.outer) if i not in (axis, last))
    weight = dims.mul(dims.mul(nest.outer[last], rows), 4)
    positions = dims.mul(others, dims.ceildiv(nest.outer[axis], rows))
    scheduled = ScheduledTranspose(loops, tiles, axis, transposed.reads, positions, weight)
    narrow = any(isinstance(nest.outer[side], int) and nest.outer[side] < lanes for side in (axis, last))
    # what no square covers is masked, and not all processors can mask bytes
    masked = narrow and not few_columns(scheduled, lanes) and not all(map(_is_word, transposed.reads))
    return None if masked else scheduled


def _is_word(read: Expr) -> bool:
    return memory_type(read.dtype) in ("float", "i32")


def _turns(read: Expr) -> bool:
    """Whether squares of these elements, as they are in memory, can be turned and worked with."""
    return _is_word(read) or read.dtype in (dtypes.u8, dtypes.i8)


def _tiles(nest: LoopNest, axis: int, lanes: int) -> Schedule:
    """Squares in registers, as long and wide as a vector, and rows of them whose columns are done together: of these
    the next elements of the operand may be in a line of the cache that was read."""
    tiles = (Tile("cache", "rows", lanes), Tile("register", "rows", lanes), Tile("register", "columns", lanes))
    chosen = overridden("transpose", Schedule(tiles, vector=(f"a{axis}", lanes)), nest).in_whole_vectors(
        "cache", "rows"
    )
    for side in ("rows", "columns"):
        if chosen.static_tile("register", side) != lanes:
            raise unfit("transpose", "register", side, chosen.tile("register", side), f"of {lanes}, a vector's length")
    return chosen


def few_columns(scheduled: ScheduledTranspose, lanes: int) -> int:
    """How many columns there are if they are few and rows lie side by side in the result, else 0."""
    nest = scheduled.inner.nest
    columns, store = nest.outer[-1], nest.statements[0]
    assert isinstance(store, Store)
    if not isinstance(columns, int) or not 1 < columns <= min(MOST_INTERLEAVED, lanes):
        return 0
    return columns if store.offset.coefficient(scheduled.axis) == columns else 0


class _TransposeWriter:
    def __init__(self, module: Module, name: str, scheduled: ScheduledTranspose, slots: int) -> None:
        self.scheduled = scheduled
        self.nest = scheduled.inner.nest
        self.last = len(self.nest.outer) - 1
        self.f = Function(module, name, PARAMETERS)
        self.lanes = module.target.lanes
        self.body = Body(self.f, buffer_pointers(self.f, slots))
        self.columns = few_columns(scheduled, self.lanes)

    def write(self) -> Function:
        self.f.loop("%begin", "%end", 1, [], self._position)
        return self.f

    def _position(self, position: str, _: list[str]) -> list[str]:
        f, nest = self.f, self.nest
        self.body.push()
        extent = f.dim(nest.outer[self.scheduled.axis])
        height = self.scheduled.rows
        blocks = f.dim(dims.ceildiv(nest.outer[self.scheduled.axis], height))
        first = f.mul(f.remainder(position, blocks), str(height))
        rest = f.divide(position, blocks)
        for number in reversed(range(self.last)):
            if number != self.scheduled.axis:
                along = f.dim(nest.outer[number])
                self.body.axes[number] = f.remainder(rest, along)
                rest = f.divide(rest, along)
        columns = f.dim(nest.outer[self.last])
        whole = f.mul(f.divide(columns, str(self.lanes)), str(self.lanes))
        full = f.value(f"icmp sle i64 {f.add(first, str(height))}, {extent}")

        def squares() -> None:
            if self.columns:
                self._each_square(first, self._interleave)
                return
            f.loop(
                "0", whole, self.lanes, [], lambda at, _: self._each_square(first, lambda row: self._square(row, at))
            )
            if whole != columns:
                self._rows(first, f.add(first, str(height)), whole, columns)

        if extent.isdigit() and int(extent) % height == 0:
            squares()
        else:
            f.when(full, squares, lambda: self._rows(first, extent, "0", columns))
        self.body.pop()
        return []

    def _each_square(self, first: str, visit: Callable[[str], None]) -> list[str]:
        """Calls `visit` for the first row of every square of a block."""
        height = self.scheduled.rows
        if height == self.lanes:
            visit(first)
            return []

        def square(row: str, _: list[str]) -> list[str]:
            visit(row)
            return []

        return self.f.loop(first, self.f.add(first, str(height)), self.lanes, [], square)

    def _interleave(self, first: str) -> None:
        """A vector along `axis` for each of the few columns, and their elements in turns: pixels of three channels."""
        body, f, lanes, count = self.body, self.f, self.lanes, self.columns
        store = self.nest.statements[0]
        assert isinstance(store, Store)
        scalar = memory_type(store.body.dtype)
        kind = body.kind(scalar, True)
        parts = []
        for column in range(count):
            body.push()
            body.axes[self.scheduled.axis], body.axes[self.last] = first, str(column)
            body.vector = Vector(self.scheduled.axis)
            parts.append(body.splat_raw(body.encode(body.gen(store.body)), scalar))
            body.vector = None
            body.pop()
        body.push()
        body.axes[self.scheduled.axis], body.axes[self.last] = first, "0"
        where = body.pointer(store.slot, store.body.dtype, store.offset)
        for number in range(count):
            row = parts[0]
            places = [divmod(number * lanes + lane, count) for lane in range(lanes)]
            for column in range(1, count):
                if column == 1:
                    order = [here + (lanes if at == 1 else 0) for here, at in places]
                else:
                    order = [lanes + here if at == column else lane for lane, (here, at) in enumerate(places)]
                row = f.value(f"shufflevector {kind} {row}, {kind} {parts[column]}, <{lanes} x i32> <{_order(order)}>")
            place = f.offset(where, scalar, str(number * lanes))
            body.store_vector(row, place, scalar, store.body.dtype.itemsize, None)
        body.pop()

    def _square(self, first: str, column: str) -> None:
        """lanes x lanes elements: read along `axis`, transposed, used along the last axis."""
        body = self.body
        held = []
        for node in self.scheduled.transposed:
            lines = []
            for lane in range(self.lanes):
                body.push()
                body.axes[self.scheduled.axis], body.axes[self.last] = first, self.f.add(column, str(lane))
                where = body.pointer(node.attr.slot, node.dtype, offset_of(node))
                lines.append(body.load_vector(where, memory_type(node.dtype), 1, None))
                body.pop()
            held.append(transpose(body, lines, memory_type(node.dtype)))
        if body_weight(self.nest.statements[0].body) <= MOST_WRITTEN_OUT:
            for lane in range(self.lanes):
                self._row_of_square(self.f.add(first, str(lane)), column, [rows[lane] for rows in held])
            return
        kinds = [body.kind(memory_type(node.dtype), True) for node in self.scheduled.transposed]
        places = [self.f.at_entry(f"alloca [{self.lanes} x {kind}], align 64") for kind in kinds]
        for kind, place, rows in zip(kinds, places, held):
            for lane, row in enumerate(rows):
                self.f.emit(f"store {kind} {row}, ptr {self.f.offset(place, kind, str(lane))}, align 64")

        def one(lane: str, _: list[str]) -> list[str]:
            rows = [
                self.f.value(f"load {kind}, ptr {self.f.offset(place, kind, lane)}, align 64")
                for kind, place in zip(kinds, places)
            ]
            self._row_of_square(self.f.add(first, lane), column, rows)
            return []

        self.f.loop("0", str(self.lanes), 1, [], one)

    def _row_of_square(self, row: str, column: str, held: list[str]) -> None:
        """Writes a row of the result, of which the operands that are transposed are held in registers."""
        body = self.body
        body.push()
        body.axes[self.scheduled.axis], body.axes[self.last] = row, column
        body.vector = Vector(self.last)
        for node, of in zip(self.scheduled.transposed, held):
            body.remember(node, Reg(of, node.dtype, True))
        self._store()
        body.vector = None
        body.pop()

    def _rows(self, first: str, end: str, low: str, high: str) -> None:
        """What no square covers, a row at a time with scattered reads."""

        def row(position: str, _: list[str]) -> list[str]:
            def vector(column: str, _: list[str]) -> list[str]:
                body = self.body
                body.push()
                body.axes[self.scheduled.axis], body.axes[self.last] = position, column
                body.vector = Vector(self.last, lane_mask(body, self.f.sub(high, column)))
                self._store()
                body.vector = None
                body.pop()
                return []

            self.f.loop(low, high, self.lanes, [], vector)
            return []

        self.f.loop(first, end, 1, [], row)

    def _store(self) -> None:
        store = self.nest.statements[0]
        assert isinstance(store, Store)
        self.body.store(store.slot, store.offset, self.body.gen(store.body))


def transpose(body: Body, rows: list[str], scalar: str = "float") -> list[str]:
    """A square of vectors transposed: halves of ever larger blocks change places."""
    f, lanes = body.f, body.lanes
    kind = body.kind(scalar, True)
    rows = list(rows)
    step = 1
    while step < lanes:
        low = [lane if lane & step == 0 else lanes + lane - step for lane in range(lanes)]
        high = [lane + step if lane & step == 0 else lanes + lane for lane in range(lanes)]
        for i in range(lanes):
            if i & step == 0:
                a, b = rows[i], rows[i + step]
                rows[i], rows[i + step] = (
                    f.value(f"shufflevector {kind} {a}, {kind} {b}, <{lanes} x i32> <{_order(order)}>")
                    for order in (low, high)
                )
        step *= 2
    return rows


def _order(lanes: list[int]) -> str:
    return ", ".join(f"i32 {lane}" for lane in lanes)
