"""Loop nests as LLVM functions `void(ptr args, i64 begin, i64 end, ptr scratch)`.

`args[0]` points to the dims, `args[1 + slot]` to the buffers. A function does the parallel positions begin … end-1;
how these are counted, and how many there are, `ScheduledLoops` says. Vectors lie along the row (`across=False`), or
along the last outer axis (`across=True`: maps, and reductions over other axes than the last).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlx.codegen.scalar import small_floats as narrow
from rlx.codegen.simd import chains, division, windows
from rlx.codegen.simd.function import Callee, Module
from rlx.codegen.simd.isa import Isa
from rlx.codegen.simd.nest_writer import NestWriter
from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import INSTRUCTIONS, Expr
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Statement, Store, is_once_a_row, row_passes
from rlx.kernel.schedule.overrides import overridden, unfit
from rlx.kernel.schedule.schedule import UNTILED, Schedule, Tile

LONG_COLUMN = 32
"""Rows from which on neighbouring columns are worked on together."""
NEAR_BYTES = 1 << 18
"""What row buffers may take for that."""
SUM_BLOCK = 256
"""Terms of a column that are added one by one; longer sums are sums of such."""
MOST_VECTORS = 16
"""Vectors in flight, at most: one for each register of the poorest instruction set."""


@dataclass(frozen=True)
class ScheduledLoops:
    """How a nest is run: `positions` parallel positions, each `weight` instructions of work, `scratch` bytes a thread.

    tiles     vectors in flight, of a map or of columns, or for each pass over a row; terms of a block of a sum;
              positions of windows
    across    vectors lie along the last outer axis
    flat      the last outer axis is itself what is cut into pieces (there is no other outer axis)
    temps     where row buffers begin in the scratch memory
    single    of windows that several positions share: the nest of one, for those that are left
    """

    nest: LoopNest
    lanes: int
    tiles: Schedule
    across: bool
    flat: bool
    positions: Dim
    weight: Dim
    scratch: Dim
    temps: tuple[tuple[int, Dim], ...]
    single: LoopNest | None = None

    @property
    def schedule(self) -> Schedule:
        return replace(self.tiles, spaces=tuple((f"s{number}", "cache") for number, _ in self.temps))

    @property
    def side_by_side(self) -> int:
        """Vectors along the last outer axis that are worked on together."""
        return self.tiles.vectors("register", "elements") if self.across else 1

    def in_flight(self, statement: int) -> int:
        """Vectors along the row that are worked on together in the pass that begins with a statement."""
        return self.tiles.vectors("register", f"s{statement}")

    @property
    def terms(self) -> int:
        """Terms of a column that are added one by one."""
        return self.tiles.static_tile("register", "terms")

    def cycles(self, lanes: int) -> Dim:
        return self.weight if self.flat else dims.add(dims.floordiv(self.weight, lanes), 4)

    def render(self, module: Module, stem: str, slots: int) -> Callee:
        return module.define(stem, lambda name: NestWriter(module, name, self, slots).write())


def schedule(nest: LoopNest, isa: Isa) -> ScheduledLoops:
    """Legalises bodies and chooses along which axis vectors lie."""
    lanes = isa.lanes
    nest = LoopNest(nest.outer, nest.inner, tuple(_legal(s, isa) for s in nest.statements))
    across = _across(nest, lanes)
    flat = across and len(nest.outer) == 1
    parallel = nest.outer if not across or flat else nest.outer[:-1]
    inside = dims.product(nest.inner)
    tiles = _tiles(nest, lanes, across, flat)
    single = None
    if any(tile.axis == "positions" for tile in tiles.tiles):
        count = tiles.static_tile("register", "positions")
        single, nest = (None if dims.exact_div(nest.outer[-2], count) else nest), windows.together(nest, count)
        parallel = nest.outer[:-1]
    beside = tiles.vectors("register", "elements") if across and nest.inner else 1
    weight: Dim = 0
    for stage in nest.statements:
        per = body_weight(stage.body)
        weight = dims.add(weight, per if isinstance(stage, Store) and not stage.per_element else dims.mul(inside, per))
    if across and not flat:
        weight = dims.mul(weight, nest.outer[-1])
    temps = []
    total: Dim = 0
    for number, stage in enumerate(nest.statements):
        if isinstance(stage, RowBuffer):
            temps.append((number, total))
            dtype = stage.body.dtype
            item_bytes = 4 if dtype in narrow.DTYPES else dtype.itemsize  # what registers hold, in f32 if it is narrow
            size = dims.mul(dims.mul(inside, lanes * beside if across else 1), item_bytes)
            total = dims.add(total, dims.mul(dims.floordiv(dims.add(size, 127), 64), 64))
    return ScheduledLoops(nest, lanes, tiles, across, flat, dims.product(parallel), weight, total, tuple(temps), single)


def _tiles(nest: LoopNest, lanes: int, across: bool, flat: bool) -> Schedule:
    """How many elements are in registers together. Raises RlxError for what is set by hand and no target has."""
    last = len(nest.outer) - 1
    tiles: tuple[Tile, ...]
    if across and nest.inner:
        kind = "columns"
        elements = Tile("register", "elements", _side_by_side(nest, lanes) * lanes)
        tiles = (elements, Tile("register", "terms", SUM_BLOCK))
        if windows.are_in(nest):
            kind, positions = "windows", windows.positions_at_a_time(nest)
            tiles = (Tile("register", "positions", positions), Tile("register", "elements", lanes))
    elif across:
        kind = "map"
        vectors = _in_flight([s.body for s in nest.statements], None if flat else nest.outer[-1], lanes)
        tiles = (Tile("register", "elements", vectors * lanes),)
    elif nest.inner:
        kind, last = "rows", last + len(nest.inner)
        passes = row_passes(dict(enumerate(nest.statements)))
        walks = [numbers for numbers in passes if not is_once_a_row(nest.statements[numbers[0]])]
        bodies = [[nest.statements[number].body for number in numbers] for numbers in walks]
        tiles = tuple(
            Tile("register", f"s{numbers[0]}", _in_flight(some, nest.inner[-1], lanes) * lanes)
            for numbers, some in zip(walks, bodies)
        )
    else:
        return UNTILED
    chosen = overridden(kind, Schedule(tiles, vector=(f"a{last}", lanes)), nest)
    for tile in chosen.tiles:
        if tile.axis == "positions":
            windows.check(tile.size)
        elif tile.axis != "terms":
            chosen = chosen.in_whole_vectors(tile.level, tile.axis)
            if chosen.vectors(tile.level, tile.axis) > MOST_VECTORS:
                raise unfit(kind, tile.level, tile.axis, tile.size, f"of at most {MOST_VECTORS * lanes}")
    return chosen


def _in_flight(bodies: Sequence[Expr], extent: Dim | None, lanes: int) -> int:
    """Vectors in flight; a known extent that they would not divide gets fewer, so that no rest is left. What fills an
    array with one number needs no more than one, and such kernels are many: every pad has two."""
    if all(body.kind == "const" for body in bodies):
        return 1
    size = sum(body_weight(body) for body in bodies)
    most = 4 if size <= 12 else max(2 if size <= 64 else 1, chains.side_by_side(bodies, size))
    if isinstance(extent, int) and extent % lanes == 0:
        return max(n for n in (1, 2, 4) if n <= most and extent % (n * lanes) == 0)
    return most


def body_weight(body: Expr) -> int:
    """Instructions for one element, roughly."""
    return 1 + sum(1 for n in ex.walk([body]) if n.kind in INSTRUCTIONS or n.kind == "load")


def _side_by_side(nest: LoopNest, lanes: int) -> int:
    """Vectors along the last outer axis that are worked on together: long columns are read row by row, as they lie.
    Rows are kept for some where they fit into the nearest cache."""
    inside = dims.product(nest.inner)
    if isinstance(inside, int) and inside < LONG_COLUMN:
        return 1
    size = sum(body_weight(stage.body) for stage in nest.statements)
    count = 8 if size <= 16 else 4 if size <= 48 else 2
    buffers = sum(isinstance(stage, RowBuffer) for stage in nest.statements)
    if buffers and not (isinstance(inside, int) and inside * lanes * 4 * buffers * count <= NEAR_BYTES):
        return 1
    last = nest.outer[-1]
    if isinstance(last, int):
        count = min(count, max(1, -(-last // lanes)))
    return 1 << (count.bit_length() - 1)


def _legal(stage: Statement, isa: Isa) -> Statement:
    body = division.legalise(stage.body, isa.has_fma)
    match stage:
        case Reduce():
            return Reduce(stage.combine, body, stage.dtype, stage.argument, stage.last)
        case RowBuffer():
            return RowBuffer(body)
        case Store():
            return Store(stage.slot, stage.offset, body, stage.per_element)


def _across(nest: LoopNest, lanes: int) -> bool:
    if not nest.outer:
        return False
    if not nest.inner:
        return True
    row_axis, column_axis = len(nest.outer) + len(nest.inner) - 1, len(nest.outer) - 1
    loads = [n.attr for n in ex.walk([s.body for s in nest.statements]) if n.kind == "load"]
    stores = [s.offset for s in nest.statements if isinstance(s, Store)]
    row_misses = sum(a.coefficient(row_axis) not in (0, 1) for a in loads)
    column_misses = sum(a.coefficient(column_axis) not in (0, 1) for a in [*loads, *stores])
    short = isinstance(nest.inner[-1], int) and nest.inner[-1] * 2 < lanes and len(nest.inner) == 1
    return column_misses < row_misses or (short and column_misses <= row_misses)
