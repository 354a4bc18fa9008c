"""Large contractions of 16-bit floats on Hopper's matrix units: of a workgroup's three groups of four warps one brings
tiles of both sides to a ring of stages in workgroup memory, and two multiply.

The copy engine brings tiles, asked by one lane, and counters tell which stages are full and which are empty: nothing
waits for a barrier of all, and the next tile's operands come while results are finished. There are as many workgroups
as multiprocessors, which go from tile to tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from rlx.codegen.simt import loops as nests
from rlx.codegen.simt import tile_contraction, tile_layouts
from rlx.codegen.simt.code import Binding, Shader, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.codegen.simt.maps import MOST_RANK, TileMap
from rlx.codegen.simt.team_layouts import CHUNK, CHUNK_BYTES, HALVES, MULTIPROCESSORS, PAD, PANEL, WARP, with_rows
from rlx.codegen.simt.tile_contraction import TileContraction
from rlx.codegen.simt.tile_layouts import PIECE_BYTES, TileLayout, instructions_of, tile_of
from rlx.codegen.simt.tile_results import TileResults
from rlx.codegen.simt.writer import name_axes
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear
from rlx.kernel.ir.loops import Store

GROUP = 4 * WARP
"""Lanes that bring operands, and of each half of those that multiply."""
READERS = 2
"""Groups that multiply."""
BRINGING_REGISTERS, READING_REGISTERS = 24, 240
"""Of a lane."""
ROWS = 16
"""Of a warp's results that go through its own part of workgroup memory at once,"""
COLUMNS = 64
"""and columns."""
ROWS_OF_A_LANE = 4
"""In that, of eight columns."""
MOST_EARLY = 80
"""Words that lanes have registers for beside sums: of what results are made of."""
COUNTER_BYTES = 8
LINE = 64
LINE_PIECES = 8
"""Elements along k of a stage, and pieces of 16 bytes that they are: what comes in one row of 128 bytes."""


@dataclass(frozen=True)
class PipedLayout(TileLayout):
    """How eight warps compute a tile, with others that bring operands."""

    @property
    def counters(self) -> int:
        """One for each stage that is full, and one for each that is empty."""
        return 2 * self.stages

    @property
    def put_bytes(self) -> int:
        """Of a warp's results that go through workgroup memory at once."""
        return 4 * ROWS * (COLUMNS + PAD)

    @property
    def sums_bytes(self) -> int:
        return self.put_bytes * 4 * READERS

    @property
    def shared_bytes(self) -> int:
        return self.ring_bytes + self.sums_bytes + COUNTER_BYTES * self.counters


@dataclass
class Part:
    """Results of a lane: eight neighbours in each of some rows, or one, and pieces of what they are made of, by row.

    column   its first one in the warp's part of workgroup memory, and `at_n` in the results
    rows     in workgroup memory, and `at_m` in the results
    """

    column: str
    at_n: str
    rows: Sequence[str]
    at_m: Sequence[str]
    asked: Sequence[dict[Expr, list[str]]] = ()


class WarpResults(TileResults):
    """Writes what the epilogue makes of sums that a warp has put to its own part of workgroup memory, 16 rows and 64
    columns at a time.

    warp_row   the warp's first row of the tile
    """

    layout: PipedLayout
    warp_row = "warp_row"

    @property
    def is_early(self) -> bool:
        """Whether lanes have registers for all that results are made of, before there are sums."""
        moving = [node for node in self.loads if self._moves_along_m(node)]
        words = sum(self._words(node) * (ROWS_OF_A_LANE if node in moving else 1) for node in self.loads)
        return bool(self.loads) and words * (self.layout.columns // COLUMNS) <= MOST_EARLY

    def part(self, first_column: str, number: int, ask: bool, now: bool = False) -> Part:
        """Those of a lane from a column of the tile on, and what they are made of, if `ask`: `now`, or where compilers
        like. Of single elements there are several numbers."""
        code, lanes = self.code, min(COLUMNS // self.width, WARP)
        column = code.let(f"{number * lanes * self.width} + own % {lanes} * {self.width}", "column")
        at_n = code.let(f"{self.left} + ({first_column} + {column})", "at")
        step = WARP // lanes
        rows = [code.let(f"own / {lanes} + {row}", "row") for row in range(0, ROWS, step)]
        part = Part(column, at_n, rows, [code.let(f"{self.top} + ({self.warp_row} + {row})", "at") for row in rows])
        if ask:
            self.at_n = at_n
            self.near = {node: self._pieces(node, now) for node in self.loads if not self._moves_along_m(node)}
            part.asked = [self._ask(row, now) for row in part.at_m]
        return part

    @property
    def parts(self) -> int:
        """Of a lane, for columns that go through workgroup memory at once."""
        return max(1, COLUMNS // self.width // WARP)

    def write_part(self, part: Part) -> None:
        """Values of all rows are made side by side, as nothing but stores asks whether there is such a row."""
        work = self.work
        self.at_n = part.at_n
        with self._guard(work.n, self.layout.tile[1], self.at_n):
            for row, at, pieces in zip(part.rows, part.at_m, part.asked):
                self.body.axes[work.m_axis] = at
                place = f"{row} * {COLUMNS + PAD} + {part.column}"
                values = [self._values(number, total, pieces) for number, total in enumerate(self._totals(place))]
                self.body.axes[work.n_axis] = self.at_n
                with self._guard(work.m, self.layout.tile[0], at):
                    for stage, of_stage in zip(self.stages, zip(*values)):
                        self._store(stage, of_stage)

    def _totals(self, place: str) -> list[str]:
        if self.width == 1:
            return [f"shared_sums[{place}]"]
        quads = [self.code.let(f"*(const float4*)(shared_sums + {place} + {4 * i})", "quad") for i in range(2)]
        return [f"{quad}.{component}" for quad in quads for component in "xyzw"]


class PipedContraction(TileContraction):
    """The shader of a contraction by warps that bring and warps that multiply."""

    ring: PipedLayout

    def __init__(
        self, work: Contraction, slots: Sequence[Slot], language: Language, rows_guess: int, layout: PipedLayout
    ) -> None:
        super().__init__(work, slots, language, rows_guess, layout)
        self.tiles = self.grid
        self.grid = (dims.minimum(dims.product(self.tiles), MULTIPROCESSORS),)
        self.code.follows = bool(work.packed) and not work.b.others and self.body.slots[work.b_slot].static
        self.code.alone = True
        self.lanes = GROUP * (1 + READERS)

    def write(self) -> Dim:
        """All tiles of a workgroup."""
        work, code, layout = self.work, self.code, self.ring
        a_turn = -(-_static(work.k) // layout.depth)
        self.steps = a_turn * _static(dims.product(work.taps))
        code.emit("const int own = (int)lane % 32;")
        place = f"dynamic_shared + {(layout.ring_bytes + layout.sums_bytes) // PIECE_BYTES}"
        code.emit(f"unsigned long long* const full = (unsigned long long*)({place});")
        code.emit(f"unsigned long long* const empty = full + {layout.stages};")
        with code.block("if (lane == 0)"):
            with code.block(f"for (int stage = 0; stage < {layout.stages}; stage++)"):
                code.emit("count_arrivals(full + stage, 1);")
                code.emit(f"count_arrivals(empty + stage, {4 * READERS});")
            code.emit("show_to_warpgroups();")
        code.emit(self.language.barrier())
        with self.body.scope(f"if (lane < {GROUP})"):
            self._bring()
        with self.body.scope("else"):
            self._read()
        rows, columns = layout.tile
        each = dims.add(dims.mul(self.steps, layout.depth), rows * columns)
        return dims.mul(dims.ceildiv(dims.product(self.tiles), MULTIPROCESSORS), each)

    def _name_tile(self) -> None:
        """Where the tile at hand is."""
        work, code, axes, layout = self.work, self.code, self.body.axes, self.ring
        name_axes(self.body, self.tiles, "tile", True)
        if self.rows_first:
            axes[work.m_axis], axes[work.n_axis] = axes[work.n_axis], axes[work.m_axis]
        rows, columns = layout.tile
        self.top = code.let(f"{axes[work.m_axis]} * {self.language.index(rows)}", "top")
        self.left = code.let(f"{axes[work.n_axis]} * {self.language.index(columns)}", "left")

    def _loop_over_tiles(self) -> str:
        tiles, blocks = self.record.dim(dims.product(self.tiles)), self.record.dim(self.grid[0])
        return f"for (long long tile = position; tile < {tiles}; tile += {blocks})"

    # bringing

    def _bring(self) -> None:
        """Has stages filled in the order in which they are used, as they get empty: one lane asks for all."""
        code, layout = self.code, self.ring
        stages, pieces = layout.stages, sum(layout.side_pieces)
        code.emit(f"leave_registers<{BRINGING_REGISTERS}>();")
        early = min(stages, self.steps) if code.follows else 0
        left, right = self._left_tiles(), self._right_tiles()
        with self.body.scope("if (lane == 0)"):
            code.emit("int filled = 0;")
            code.emit("#pragma unroll 1")
            with self.body.scope(self._loop_over_tiles()):
                self._name_tile()
                if early:
                    with code.block("if (filled == 0)"):
                        with code.block(f"for (int now = 0; now < {early}; now++)"):
                            code.emit(f"Piece* const stage = dynamic_shared + now * {pieces};")
                            code.emit("unsigned long long* const counter = full + now;")
                            code.emit(f"arrive_with_bytes(counter, {pieces * PIECE_BYTES});")
                            right()
                        code.emit("follow();")
                code.emit("#pragma unroll 1")
                with code.block(f"for (int now = 0; now < {self.steps}; now++, filled++)"):
                    ready = f"await_phase(empty + filled % {stages}, filled / {stages} - 1 & 1);"
                    code.emit(f"if (filled >= {stages}) {ready}")
                    code.emit(f"Piece* const stage = dynamic_shared + filled % {stages} * {pieces};")
                    code.emit(f"unsigned long long* const counter = full + filled % {stages};")
                    with code.block(f"if (filled >= {early})") if early else nullcontext():
                        code.emit(f"arrive_with_bytes(counter, {pieces * PIECE_BYTES});")
                        right()
                    left()
        if early:
            code.emit("else follow();")

    def _left_tiles(self) -> Callable[[], None]:
        return self._tiles_of_rows(self.work.a_slot, self.work.a, self.work.m_axis, 0)

    def _right_tiles(self) -> Callable[[], None]:
        work, code, layout = self.work, self.code, self.ring
        start = layout.side_pieces[0]
        if not work.packed:
            return self._tiles_of_rows(work.b_slot, work.b, work.n_axis, start)
        chunks, panels = -(-_static(work.k) // CHUNK), -(-_static(work.n) // PANEL)
        extents: list[Dim] = [LINE, PANEL // 2, panels, chunks]
        strides: list[Dim] = [LINE, CHUNK * PANEL * chunks, CHUNK * PANEL]
        axes = self._batch_axes(work.b, extents, strides)
        box = (LINE, PANEL // 2, layout.tile[1] // PANEL, layout.chunks, *(1 for _ in axes))
        number = self._map(work.b_slot, work.b, extents, strides, box)

        def bring() -> None:
            places = ["0", "0", f"(int){self.left} / {PANEL}", f"now * {layout.chunks}", *self._positions(axes)]
            code.emit(f"bring_tile(map{number}, stage + {start}, counter, {', '.join(places)});")

        return bring

    def _tiles_of_rows(self, slot: int, line: Linear, axis: int, start: int) -> Callable[[], None]:
        """Those of a side whose rows, or columns, are contiguous along k."""
        work, code, layout = self.work, self.code, self.ring
        extents: list[Dim] = [work.k, work.m if axis == work.m_axis else work.n]
        strides = [line.coefficient(axis)]
        axes = self._batch_axes(line, extents, strides)
        rows = layout.tile[axis - work.m_axis]
        number = self._map(slot, line, extents, strides, (LINE, rows, *(1 for _ in axes)))

        def bring() -> None:
            first = self.top if axis == work.m_axis else self.left
            places = ", ".join([f"now * {LINE}", f"(int){first}", *self._positions(axes)])
            code.emit(f"bring_tile(map{number}, stage + {start}, counter, {places});")

        return bring

    def _batch_axes(self, line: Linear, extents: list[Dim], strides: list[Dim]) -> list[int]:
        """Axes of a batch along which a side differs, which become axes of its map."""
        work = self.work
        axes = [axis for axis in range(len(work.batch)) if line.coefficient(axis) != 0]
        extents += [work.batch[axis] for axis in axes]
        strides += [line.coefficient(axis) for axis in axes]
        return axes

    def _positions(self, axes: Sequence[int]) -> list[str]:
        return [f"(int){self.body.axes[axis]}" for axis in axes]

    def _map(self, slot: int, line: Linear, extents: list[Dim], strides: list[Dim], box: tuple[int, ...]) -> int:
        """The number of a map of a side."""
        made = TileMap(slot, self.work.a_dtype, line.const, tuple(extents), tuple(strides), box)
        self.code.maps.append(made)
        return len(self.code.maps) - 1

    # multiplying

    def _read(self) -> None:
        """The tiles of a group that multiplies: half of the rows of each."""
        work, code, layout, stages = self.work, self.code, self.ring, self.ring.stages
        code.emit(f"take_registers<{READING_REGISTERS}>();")
        if code.follows:
            code.emit("follow();")
        code.emit(f"const int warp = (int)lane / {WARP} - 4, reader = warp / 4;")
        ring = layout.ring_bytes // PIECE_BYTES
        code.emit(f"float* const shared_sums = (float*)(dynamic_shared + {ring}) + warp * {layout.put_bytes // 4};")
        code.emit(f"const int warp_row = reader * {layout.group * layout.rows} + warp % 4 * 16;")
        code.emit("int used = 0;")
        code.emit("#pragma unroll 1")
        with self.body.scope(self._loop_over_tiles()):
            self._name_tile()
            of_epilogue = [stage for stage in nests.legal_stages(work.epilogue) if isinstance(stage, Store)]
            results = WarpResults(work, layout, self.body, of_epilogue, self.top, self.left)
            columns = [str(first) for first in range(0, layout.columns, COLUMNS)]
            early = [results.part(first, 0, True, now=True) for first in columns] if results.is_early else []
            self._declare_sums()
            code.emit("#pragma unroll 1")
            with code.block(f"for (int step = 0; step < {self.steps}; step++, used++)"):
                code.emit(f"await_phase(full + used % {stages}, used / {stages} & 1);")
                pieces = sum(layout.side_pieces)
                code.emit(f"const Piece* const from = dynamic_shared + used % {stages} * {pieces};")
                self._multiply_together()
                with code.block("if (step > 0)"):
                    code.emit("await_products<1>();")
                    self._give_back()
            code.emit(f"await_products<0>(); {self._hold()}")
            self._give_back()
            for number, first in enumerate(columns):
                code.emit("__syncwarp();")
                self._put_columns(int(first))
                code.emit("__syncwarp();")
                for part in range(results.parts):
                    with self.body.scope(""):
                        results.write_part(early[number] if early else results.part(first, part, True))

    def _give_back(self) -> None:
        """Tells that the stage before is empty."""
        self.code.emit(f"if (own == 0) arrive(empty + (used - 1) % {self.ring.stages});")

    def _multiply_together(self) -> None:
        """All products of a stage. Of its left side rows of 128 bytes lie one behind the other, of a packed right side
        the panels of each 64 bytes along k."""
        code, layout = self.code, self.ring
        code.emit(f"const Piece* const rows = from + reader * {layout.rows * layout.group * LINE_PIECES};")
        code.emit(f"const Piece* const columns = from + {layout.side_pieces[0]};")
        code.emit(f"{self._hold()} begin_products();")
        for k in range(2 * layout.chunks):
            right = f"lines_at(columns + {2 * k})"
            if self.work.packed:
                place = k // 2 * layout.tile[1] * LINE_PIECES // 2 + k % 2 * 2
                right = f"matrix_at(columns + {place}, {8 * CHUNK_BYTES})"
            code.emit(f"{self.product}(sums[0], lines_at(rows + {2 * k}), {right});")
        code.emit("commit_products();")

    def _put_columns(self, first: int) -> None:
        """Sums of 16 rows, from a column on. Columns of every other panel were swapped by their pieces."""
        for j in range(COLUMNS // 8):
            for half in range(2):
                place = f"shared_sums + ({half * 8} + own / 4) * {COLUMNS + PAD} + {j * 8} + own % 4 * 2"
                of, swap = f"sums[0][{first // 8 + j}]", j % 2 if self.work.packed else 0
                bits = [f"__float_as_uint({of}[{2 * half + (k ^ swap)}])" for k in range(2)]
                self.code.emit(f"*(HalfPiece*)({place}) = HalfPiece{{{', '.join(bits)}}};")


LAYOUTS = (
    PipedLayout(16, 192, (8, 1, 1), LINE, 4, together=True),
    PipedLayout(16, 256, (8, 1, 1), LINE, 3, together=True),
    PipedLayout(16, 128, (8, 1, 1), LINE, 5, together=True),
)
LEAST_ROWS = 256
BROUGHT_A_CLOCK = 38
"""Bytes of tiles that come to a multiprocessor,"""
COLUMN_CLOCKS = 4.04
"""what matrix units take for a column of a tile in a step,"""
BEGIN_CLOCKS, RESULT_CLOCKS, INSTRUCTION_CLOCKS = 3750, 1 / 12, 1 / 110
"""and what it takes until the first operands are there, what a result takes, and an instruction for one, as measured
with ten products on an H200."""
FAVOUR = 1.08
"""How much more than other layouts these may seem to take: prices of those of long sums are too low by more."""


def takes(work: Contraction, language: Language) -> bool:
    """Whether maps can tell where both sides lie: rows and panels at fixed distances, of which no run moves any."""
    halves = not work.paired and work.a_dtype in HALVES and work.a_dtype is work.b_dtype and not work.float_parts
    known = all(isinstance(d, int) for d in (work.k, work.n) if work.packed or d is work.k)
    moving: frozenset[str] = getattr(language, "moving", frozenset())
    still = not any(dims.symbols(dim) & moving for dim in work.dims())
    plain = not (work.taps or work.bounds or work.a.others or work.b.others)
    batched = [sum(side.coefficient(axis) != 0 for axis in range(len(work.batch))) for side in (work.a, work.b)]
    of_batch = batched[0] <= MOST_RANK - 2 and batched[1] <= MOST_RANK - (4 if work.packed else 2)
    return halves and known and still and plain and of_batch


def clocks(work: Contraction, layout: PipedLayout) -> float:
    """What a contraction of known dims takes, roughly, as `tile_layouts.clocks` tells it of other layouts."""
    rows, columns = layout.tile
    tiles = math.prod(map(_static, work.batch)) * -(-_static(work.m) // rows) * -(-_static(work.n) // columns)
    step = max(columns * COLUMN_CLOCKS, (rows + columns) * LINE * work.a_dtype.itemsize / BROUGHT_A_CLOCK)
    finished = rows * columns * (RESULT_CLOCKS + instructions_of(work) * INSTRUCTION_CLOCKS)
    return BEGIN_CLOCKS + -(-tiles // MULTIPROCESSORS) * (-(-_static(work.k) // LINE) * step + finished)


def layout_of(work: Contraction, target: Target, language: Language) -> PipedLayout | None:
    """The layout that should take the least time, or None where tiles of one kind of warps take less."""
    if not (target.warpgroups and takes(work, language)):
        return None
    known = with_rows(work, target.rows)
    if _static(known.m) < LEAST_ROWS or (other := tile_of(work, target.rows, True)) is None:
        return None
    best = min(LAYOUTS, key=lambda layout: clocks(known, layout))
    return best if clocks(known, best) < FAVOUR * tile_layouts.clocks(known, other, instructions_of(work)) else None


def render(
    work: Contraction, slots: Sequence[Slot], bindings: Sequence[Binding], name: str, target: Target, language: Language
) -> Shader:
    """The shader of a contraction that `team_contraction.py` takes: of this form where that should be faster."""
    layout = layout_of(work, target, language) if tile_contraction.fits(work, slots) else None
    if layout is None:
        return tile_contraction.render(work, slots, bindings, name, target, language)
    return PipedContraction(work, slots, language, target.rows, layout).shader(bindings, name)


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)  # asked by `takes` and `fits`
    return dim
