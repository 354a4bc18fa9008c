"""Maps whose elements come several times in a row, as enlarged images have them: each is made once, and what a vector
of them becomes is put together in registers."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.codegen.simd.body import Body, lane_mask
from rlx.codegen.simd.function import Callee, Function, Module, memory_type
from rlx.codegen.simd.loops import ScheduledLoops, body_weight
from rlx.codegen.simd.prologue import PARAMETERS, buffer_pointers, over_positions
from rlx.codegen.simd.registers import Vector
from rlx.codegen.simd.scheduled import WholePositions
from rlx.ir import dim as dims
from rlx.ir.dim import Dim, Shape
from rlx.kernel.ir.axes import speaks_of
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.schedule.schedule import Schedule, Tile

MOST_REPEATS = 8
"""Of an element in a row, and of a row of them."""
BLOCK = 1 << 12
"""Elements of a row that one thread does, at most."""


@dataclass(frozen=True)
class ScheduledRepeats(WholePositions):
    """How such a map is run. A position is one of `outer`, whose last axis are blocks of a row if that is long: it does
    `times` elements from each of the nest's last axis but one, in `rows` equal rows."""

    nest: LoopNest
    schedule: Schedule
    outer: Shape
    times: int
    rows: int
    weight: Dim
    scratch: Dim = 0

    @property
    def positions(self) -> Dim:
        return dims.product(self.outer)

    def render(self, module: Module, stem: str, slots: int) -> Callee:
        return module.define(stem, lambda name: _RepeatWriter(module, name, self, slots).write())


def schedule(loops: ScheduledLoops, lanes: int) -> ScheduledRepeats | None:
    """The schedule if a nest is such a map, else None."""
    nest, last = loops.nest, len(loops.nest.outer) - 1
    if nest.inner or last < 1 or len(nest.statements) != 1:
        return None
    (store,) = nest.stores()
    times, line = _repeats(nest, store, last), store.offset
    if times < 2 or store.guard is not None or line.others:
        return None
    if line.coefficient(last) != 1 or line.coefficient(last - 1) != times:
        return None
    rows = max(_repeats(nest, store, last - 2), 1) if last > 1 else 1
    outer, length = nest.outer[: last - 2 if rows > 1 else last - 1], nest.outer[last - 1]
    blocks = dims.ceildiv(length, BLOCK)
    vectors = dims.ceildiv(dims.minimum(length, BLOCK), lanes)
    weight = dims.add(dims.mul(vectors, body_weight(store.body) + 2 * times * rows), 4)
    tiles = Schedule((Tile("cache", "elements", BLOCK),), vector=(f"a{last - 1}", lanes))
    return ScheduledRepeats(nest, tiles, outer if blocks == 1 else (*outer, blocks), times, rows, weight)


def _repeats(nest: LoopNest, store: Store, number: int) -> int:
    """How many positions an axis has that all have the same element; 0 where they have others, or are many."""
    extent = nest.outer[number]
    if not isinstance(extent, int) or extent > MOST_REPEATS or speaks_of([store.body], number):
        return 0
    return extent


class _RepeatWriter:
    def __init__(self, module: Module, name: str, scheduled: ScheduledRepeats, slots: int) -> None:
        self.scheduled = scheduled
        self.axis = len(scheduled.nest.outer) - 2
        self.f = Function(module, name, PARAMETERS)
        self.lanes = module.target.lanes
        self.body = Body(self.f, buffer_pointers(self.f, slots))

    def write(self) -> Function:
        over_positions(self.f, self.body, self.scheduled.outer, self._row)
        return self.f

    def _row(self) -> None:
        """A row or a block of one, vector by vector; the last vector may be masked."""
        f, lanes = self.f, self.lanes
        extent = f.dim(self.scheduled.nest.outer[self.axis])
        outer = len(self.scheduled.outer)
        is_block = outer > (self.axis - 1 if self.scheduled.rows > 1 else self.axis)
        first = f.mul(self.body.axes[outer - 1], str(BLOCK)) if is_block else "0"
        end = f.smin(f.add(first, str(BLOCK)), extent) if is_block else extent
        span = f.sub(end, first)
        whole = f.add(first, f.mul(f.divide(span, str(lanes)), str(lanes)))

        def full(position: str, _: list[str]) -> list[str]:
            self._vector(position, None)
            return []

        def part(position: str, _: list[str]) -> list[str]:
            self._vector(position, f.sub(end, position))
            return []

        if first != whole:
            f.loop(first, whole, lanes, [], full)
        if whole.isdigit():
            if whole != end:
                part(whole, [])
        else:
            f.loop(whole, end, lanes, [], part)

    def _vector(self, position: str, remaining: str | None) -> None:
        """A vector of elements, each `times` in a row, to all rows. `remaining` of its elements are inside."""
        body, f, lanes, times = self.body, self.f, self.lanes, self.scheduled.times
        (store,) = self.scheduled.nest.stores()
        body.push()
        body.axes[self.axis], body.axes[self.axis + 1] = position, "0"
        body.vector = Vector(self.axis, None if remaining is None else lane_mask(body, remaining))
        scalar = memory_type(store.body.dtype)
        made = body.splat_raw(body.encode(body.gen(store.body)), scalar)
        body.vector = None
        kind, inside = body.kind(scalar, True), None if remaining is None else f.mul(remaining, str(times))
        for number in range(times):
            left = None if inside is None else f.sub(inside, str(number * lanes))
            if left is not None and left.lstrip("-").isdigit() and int(left) <= 0:
                break  # none is inside
            mask = None if left is None else lane_mask(body, left)
            order = ", ".join(f"i32 {(number * lanes + lane) // times}" for lane in range(lanes))
            spread = f.value(f"shufflevector {kind} {made}, {kind} poison, <{lanes} x i32> <{order}>")
            for row in range(self.scheduled.rows):
                if self.scheduled.rows > 1:
                    body.axes[self.axis - 1] = str(row)
                where = f.offset(body.pointer(store.slot, store.body.dtype, store.offset), scalar, str(number * lanes))
                body.store_vector(spread, where, scalar, store.body.dtype.itemsize, mask)
        body.pop()
