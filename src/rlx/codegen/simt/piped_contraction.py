"""Large contractions of 16-bit floats on Hopper's matrix units: of a workgroup's groups of four warps one brings tiles
of both sides to a ring of stages in workgroup memory, and two multiply.

The copy engine brings tiles, asked by one lane, and counters tell which stages are full and which are empty: nothing
waits for a barrier of all, and the next tile's operands come while results are finished. There are as many workgroups
as multiprocessors, which go from tile to tile. Warps that multiply are held up by matrix units most of the time. So
where there are several tiles for each workgroup, a fourth group finishes results meanwhile, of sums that were put to
workgroup memory in 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from rlx.codegen.simt import asked_contraction, tile_contraction, tile_layouts
from rlx.codegen.simt import loops as nests
from rlx.codegen.simt.code import Binding, Shader, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.codegen.simt.mapped_contraction import LINE, LINE_PIECES, MappedContraction, takes
from rlx.codegen.simt.piped_results import (
    COLUMNS,
    READERS,
    PipedLayout,
    WaitingResults,
    WarpResults,
)
from rlx.codegen.simt.team_layouts import CHUNK_BYTES, HALVES, MULTIPROCESSORS, PAD, WARP, with_rows
from rlx.codegen.simt.tile_layouts import PIECE_BYTES, SHARED_BYTES, instructions_of, tile_of
from rlx.codegen.simt.tile_results import WIDTH, stores_pieces
from rlx.codegen.simt.writer import name_axes
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.loops import Store

GROUP = 4 * WARP
"""Lanes that bring operands, and of each half of those that multiply."""
BRINGING_REGISTERS, READING_REGISTERS = 24, 240
"""Of a lane,"""
BESIDE_FINISHING = 160
"""and of one that multiplies beside others that finish results, and of these."""


class PipedContraction(MappedContraction):
    """The shader of a contraction by warps that bring and warps that multiply."""

    ring: PipedLayout

    def __init__(
        self, work: Contraction, slots: Sequence[Slot], language: Language, rows_guess: int, layout: PipedLayout
    ) -> None:
        super().__init__(work, slots, language, rows_guess, layout)
        assert layout.paired == work.paired
        self.tiles = self.grid
        self.grid = (dims.minimum(dims.product(self.tiles), MULTIPROCESSORS),)
        self.code.follows = bool(work.packed) and not work.b.others and self.body.slots[work.b_slot].static
        self.code.alone = True
        self.lanes = GROUP * (1 + READERS + layout.waits)
        self.fewer = (work.m, work.n)  # the copy engine takes numbers of 32 bits

    def write(self) -> Dim:
        """All tiles of a workgroup."""
        work, code, layout = self.work, self.code, self.ring
        a_turn = -(-_static(work.k) // layout.depth)
        self.steps = a_turn * _static(dims.product(work.taps))
        code.emit("const int own = (int)lane % 32;")
        place = f"dynamic_shared + {(layout.ring_bytes + layout.sums_bytes) // PIECE_BYTES}"
        code.emit(f"unsigned long long* const full = (unsigned long long*)({place});")
        code.emit(f"unsigned long long* const empty = full + {layout.stages};")
        if layout.waits:
            code.emit(f"unsigned long long* const put = empty + {layout.stages}, * const done = put + 1;")
        with code.block("if (lane == 0)"):
            with code.block(f"for (int stage = 0; stage < {layout.stages}; stage++)"):
                code.emit("count_arrivals(full + stage, 1);")
                code.emit(f"count_arrivals(empty + stage, {4 * READERS});")
            if layout.waits:
                code.emit(f"count_arrivals(put, {GROUP * READERS});")
                code.emit(f"count_arrivals(done, {GROUP});")
            code.emit("show_to_warpgroups();")
        code.emit(self.language.barrier())
        with self.body.scope(f"if (lane < {GROUP})"):
            self._bring()
        of_readers = f"else if (lane < {GROUP * (1 + READERS)})" if layout.waits else "else"
        with self.body.scope(of_readers):
            self._read()
        if layout.waits:
            with self.body.scope("else"):
                self._finish_all()
        rows, columns = layout.tile
        each = dims.add(dims.mul(self.steps, layout.depth), rows * columns)
        return dims.mul(dims.ceildiv(dims.product(self.tiles), MULTIPROCESSORS), each)

    def _name_tile(self) -> None:
        """Where the tile at hand is."""
        work, code, axes, layout = self.work, self.code, self.body.axes, self.ring
        name_axes(self.body, self.tiles, "tile", True)
        if self.rows_first:
            axes[work.m_axis], axes[work.n_axis] = axes[work.n_axis], axes[work.m_axis]
        rows, columns = layout.results
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

    # multiplying

    def _stores(self) -> list[Store]:
        return [stage for stage in nests.legal_stages(self.work.epilogue) if isinstance(stage, Store)]

    def _enter(self, registers: int) -> None:
        self.code.emit(f"take_registers<{registers}>();")
        if self.code.follows:
            self.code.emit("follow();")

    def _read(self) -> None:
        """The tiles of a group that multiplies: half of the rows of each."""
        code, layout = self.code, self.ring
        self._enter(BESIDE_FINISHING if layout.waits else READING_REGISTERS)
        code.emit(f"const int warp = (int)lane / {WARP} - 4, reader = warp / 4;")
        if not layout.waits:
            code.emit(f"const int warp_row = reader * {layout.group * layout.rows} + warp % 4 * 16;")
        self._name_place("warp")
        code.emit("int used = 0, number = 0;")
        code.emit("#pragma unroll 1")
        with self.body.scope(self._loop_over_tiles()):
            if layout.waits:
                self._sum()
                code.emit("if (number > 0) await_phase(done, number - 1 & 1);")
                self._put_halves()
                code.emit("arrive(put);")
                code.emit("number++;")
            elif layout.in_halves:
                self._name_tile()
                self._sum()
                code.emit("__syncwarp();")
                self._put_halves()
                code.emit("__syncwarp();")
                self._finish_waiting()
            else:
                self._finish_own()

    def _name_place(self, warp: str) -> None:
        """Where a warp's sums are."""
        layout = self.ring
        kind, name = ("unsigned short", "waiting") if layout.in_halves else ("float", "shared_sums")
        of_a_warp = layout.put_bytes // (2 if layout.in_halves else 4)
        place = f"(dynamic_shared + {layout.ring_bytes // PIECE_BYTES}) + {warp} * {of_a_warp}"
        self.code.emit(f"{kind}* const {name} = ({kind}*){place};")

    def _finish_own(self) -> None:
        """A tile whose results are finished by the warps that have its sums."""
        layout, code = self.ring, self.code
        self._name_tile()
        results = WarpResults(self.work, layout, self.body, self._stores(), self.top, self.left)
        columns = [str(first) for first in range(0, layout.columns, COLUMNS)]
        early = [results.ask(results.part(first, 0), now=True) for first in columns] if results.is_early else []
        self._sum()
        for number, first in enumerate(columns):
            code.emit("__syncwarp();")
            self._put_columns(int(first))
            code.emit("__syncwarp();")
            for part in range(results.parts):
                with self.body.scope(""):
                    results.write_part(early[number] if early else results.part(first, part))

    def _finish_all(self) -> None:
        """The tiles of the group that finishes results, while the next tile's products run."""
        code, layout = self.code, self.ring
        self._enter(BESIDE_FINISHING)
        code.emit(f"const int warp = (int)lane / {WARP} - {4 * (1 + READERS)};")
        code.emit("int number = 0;")
        code.emit("#pragma unroll 1")
        with self.body.scope(self._loop_over_tiles()):
            self._name_tile()
            code.emit("await_phase(put, number & 1);")
            code.emit("#pragma unroll 1")
            with self.body.scope(f"for (int reader = 0; reader < {READERS}; reader++)"):
                code.emit(f"const int warp_row = reader * {layout.group * layout.rows} + warp * 16;")
                self._name_place("(reader * 4 + warp)")
                self._finish_waiting()
            code.emit("arrive(done);")
            code.emit("number++;")

    def _finish_waiting(self) -> None:
        """Results of a warp's sums in 16 bits."""
        code, layout, work = self.code, self.ring, self.work
        second = layout.results[1] if work.paired else 0
        results = WaitingResults(work, layout, self.body, self._stores(), self.top, self.left, second)
        at_once = next(count for count in (4, 3, 2, 1) if layout.units % count == 0)
        code.emit("#pragma unroll 1")
        with self.body.scope(f"for (int unit = 0; unit < {layout.units}; unit += {at_once})"):
            code.emit("#pragma unroll")
            with self.body.scope(f"for (int more = 0; more < {at_once}; more++)"):
                results.write_unit("(unit + more)")

    def _sum(self) -> None:
        """All products of a tile."""
        code, layout, stages = self.code, self.ring, self.ring.stages
        self._declare_sums()
        code.emit("#pragma unroll 1")
        with self.body.scope(f"for (int step = 0; step < {self.steps}; step++, used++)"):
            code.emit(f"await_phase(full + used % {stages}, used / {stages} & 1);")
            pieces = sum(layout.side_pieces)
            code.emit(f"const Piece* const from = dynamic_shared + used % {stages} * {pieces};")
            self._multiply_together()
            with code.block("if (step > 0)"):
                code.emit("await_products<1>();")
                self._give_back()
        code.emit(f"await_products<0>(); {self._hold()}")
        self._give_back()

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

    def _put_halves(self) -> None:
        """The same of all columns, rounded to 16 bits."""
        for j in range(self.ring.columns // 8):
            for half in range(2):
                place = f"waiting + ({half * 8} + own / 4) * {self.ring.columns + PAD} + {j * 8} + own % 4 * 2"
                swap = j % 2 if self.work.packed else 0
                pair = ", ".join(f"sums[0][{j}][{2 * half + (k ^ swap)}]" for k in range(2))
                self.code.emit(f"*(unsigned*)({place}) = pair_{self.work.dtype}({pair});")


LAYOUTS = (
    PipedLayout(16, 192, (8, 1, 1), LINE, 4, together=True),
    PipedLayout(16, 256, (8, 1, 1), LINE, 3, together=True),
    PipedLayout(16, 128, (8, 1, 1), LINE, 5, together=True),
)
LEAST_ROWS = 256
BROUGHT_A_CLOCK = 45
"""Bytes of tiles that come to a multiprocessor,"""
COLUMN_CLOCKS = 4.04
"""what matrix units take for a column of a tile in a step,"""
BEGIN_CLOCKS, RESULT_CLOCKS, INSTRUCTION_CLOCKS = 2000, 1 / 12, 1 / 140
"""and what it takes until the first operands are there, what a result takes, and an instruction for one, as measured
with ten products on an H200."""
WAIT_CLOCKS = 400
"""What it takes to put a tile's sums where they wait."""
MOST_WAITING = 192
"""Columns of tiles whose sums leave registers to a fourth group."""
BY_ONE_GROUP = 2.7
"""How much longer results take a group by itself than two: each scheduler has one warp of it."""
FAVOUR, LONG = 1.1, 1024
"""How much more than other layouts these may seem to take with sums so long: prices of others are too low by more."""


def _tiles(work: Contraction, layout: PipedLayout) -> int:
    """How many there are of a contraction of known dims, whose columns are those of both sums."""
    rows, columns = layout.tile
    return math.prod(map(_static, work.batch)) * -(-_static(work.m) // rows) * -(-_static(work.n) // columns)


def clocks(work: Contraction, layout: PipedLayout) -> float:
    """What a contraction of known dims takes, roughly, as `tile_layouts.clocks` tells it of other layouts."""
    rows, columns = layout.tile
    step = max(columns * COLUMN_CLOCKS, (rows + columns) * LINE * work.a_dtype.itemsize / BROUGHT_A_CLOCK)
    results = math.prod(layout.results)
    finished = results * (RESULT_CLOCKS + instructions_of(work) * INSTRUCTION_CLOCKS)
    tiles, steps = -(-_tiles(work, layout) // MULTIPROCESSORS), -(-_static(work.k) // LINE)
    if layout.waits:
        finished *= BY_ONE_GROUP
        return BEGIN_CLOCKS + steps * step + (tiles - 1) * max(steps * step + WAIT_CLOCKS, finished) + finished
    return BEGIN_CLOCKS + tiles * (steps * step + finished)


def layout_of(work: Contraction, target: Target, language: Language) -> PipedLayout | None:
    """The layout that should take the least time, or None where tiles of one kind of warps take less."""
    if not (target.warpgroups and takes(work, language)):
        return None
    known = with_rows(work, target.rows)
    if _static(known.m) < LEAST_ROWS or (other := tile_of(work, target.rows, True)) is None:
        return None
    pieces = work.dtype in HALVES and dims.exact_div(work.n, WIDTH) is not None
    layouts = [replace(layout, paired=work.paired) for layout in LAYOUTS if pieces or not work.paired]
    layouts = [layout for layout in layouts if layout.shared_bytes <= SHARED_BYTES]
    layouts += [replace(each, waits=True) for each in layouts if pieces and each.columns <= MOST_WAITING]
    best = min(layouts, key=lambda layout: clocks(known, layout), default=None)
    if best is None:
        return None
    favour = FAVOUR if _static(work.k) >= LONG else 1
    return best if clocks(known, best) < favour * tile_layouts.clocks(known, other, instructions_of(work)) else None


def render(
    work: Contraction, slots: Sequence[Slot], bindings: Sequence[Binding], name: str, target: Target, language: Language
) -> Shader:
    """The shader of a contraction that `team_contraction.py` takes: of this form where that should be faster."""
    layout = layout_of(work, target, language) if tile_contraction.fits(work, slots) else None
    if layout is None or (layout.in_halves and not stores_pieces(work, slots)):
        return asked_contraction.render(work, slots, bindings, name, target, language)
    return PipedContraction(work, slots, language, target.rows, layout).shader(bindings, name)


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)  # asked by `takes` and `fits`
    return dim
