"""Contractions of 16-bit floats on matrix units, with sums of f32, and of f32 as sums of shorter floats: warps of a
workgroup share its tile, and the sum over k where there are few tiles.

Operands come straight from memory, 16 bytes a lane; what warps read twice, caches have. A lane's 16 bytes are eight
neighbours along k, or four of f32, of which it takes what an instruction wants from it. That permutes k, alike on both
sides.
The sums meet in workgroup memory, from which the results are finished and written row by row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from contextlib import ExitStack

from rlx.codegen.simt import block_sums, float_parts
from rlx.codegen.simt.bounds import Bounds
from rlx.codegen.simt.code import Binding, Shader, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.codegen.simt.team_layouts import (
    HALF,
    HALVES,
    MULTIPROCESSORS,
    PAD,
    PANEL,
    PIECE_BYTES,
    Layout,
    chunk_of,
    guesses_of,
    is_of_bytes,
    is_of_float8,
    layout_of,
    piece_of,
    rows_of,
)
from rlx.codegen.simt.team_results import TeamResults
from rlx.codegen.simt.writer import Writer
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.blocks import PANEL_BYTES
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, contiguous
from rlx.kernel.schedule.schedule import Schedule, Tile

LEAST = 16
"""Elements along k that are worth while."""
FEW_ROWS = 32
"""Rows up to which a workgroup reads its weights once, and mostly waits for them."""
LINE = 128
"""Bytes that come from memory together."""
HELD_BYTES, HELD_BYTES_OF_WARPGROUPS = 50 << 10, 112 << 10
"""Of weights that a workgroup has on their way before it waits for earlier kernels, beside arrays of its own: what
every GPU has room for, and half of what those have whose kernels overlap, so that the next one's come beside them."""


def takes(work: Contraction) -> bool:
    """Whether a workgroup can compute it: rows that are contiguous along k, and as long as pieces of 16 bytes are."""
    if work.blocks is not None:
        return block_sums.takes(work)
    parts = work.float_parts and work.a_dtype is dtypes.f32 and work.dtype is dtypes.f32
    floats = (parts or work.a_dtype in HALVES) and work.a_dtype is work.b_dtype and work.dtype.is_float
    if not (floats or is_of_bytes(work)) or work.dtype is dtypes.f64 or not _has_pieces(work):
        return False
    panels = (PANEL, chunk_of(work))
    return (work.packed, work.group) == panels if work.packed else work.b.coefficient(work.k_axis) == 1


def panels(work: Contraction) -> tuple[int, int]:
    """Width of panels for the static right side of a contraction that a workgroup computes, and of groups; 0 for
    none."""
    if work.blocks is not None:
        return 0, 1
    chunk = chunk_of(work)
    return (PANEL, chunk) if takes(dataclasses.replace(work, packed=PANEL, group=chunk)) else (0, 1)


def _has_pieces(work: Contraction) -> bool:
    """Whether rows of a are pieces of 16 bytes; of a window they may end with half of one."""
    piece = piece_of(work)
    least = piece // 2 if work.taps and work.a_dtype in HALVES else piece
    fits = isinstance(work.k, int) and work.k >= LEAST and work.k % least == 0
    return fits and work.a.coefficient(work.k_axis) == 1


def is_aligned(side: Linear, work: Contraction) -> bool:
    """Whether all runs along k begin at multiples of 16 bytes."""
    strides = [side.const, *(c for n, c in side.axes if n != work.k_axis), *(c for _, c in side.others)]
    return all(dims.exact_div(c, piece_of(work)) is not None for c in strides)


def _most_rows(work: Contraction, rows_guess: int) -> float:
    """How many rows the variant for a guess has at most."""
    rows = rows_of(work)
    if isinstance(rows, int):
        return rows
    guesses = guesses_of(work)
    return next((most for most, guess in guesses if guess == rows_guess and most is not None), math.inf)


class TeamContraction(Writer):
    """The shader of a contraction that a workgroup computes."""

    def __init__(
        self,
        work: Contraction,
        slots: Sequence[Slot],
        language: Language,
        rows_guess: int,
        layout: Layout | None = None,
        most_held: int = HELD_BYTES,
    ) -> None:
        self.work = work
        self.layout = layout or layout_of(work, rows_guess)
        rows, columns = self.layout.results
        grid = (*work.batch, dims.ceildiv(work.m, rows), dims.ceildiv(work.n, columns))
        super().__init__(slots, grid, (*work.batch, work.m, work.n), team=True, language=language)
        self.lanes = self.layout.lanes
        self.chunk, self.piece = chunk_of(work), piece_of(work)
        is_bytes = work.blocks is not None
        self.right_chunk, self.right_piece = (PANEL_BYTES, PIECE_BYTES) if is_bytes else (self.chunk, self.piece)
        """Elements of the right side's buffer along k that four lanes have of a column, and that one has."""
        self.blocks = block_sums.BlockSums(self) if work.blocks is not None else None
        self.sum_type = "float" if work.dtype.is_float else "int"
        self.mma = f"mma_{work.a_dtype}" if work.dtype.is_float else f"mma_{work.a_dtype}_{work.b_dtype}"
        self.bounds = Bounds(work, self.body)
        self.positions: list[list[str]] = []
        self.most_rows = self._most_rows(rows_guess)
        self.code.follows = self.most_rows <= FEW_ROWS and self._has_own_weights()
        self.code.alone = self.code.follows and self.most_rows > HALF and self._has_few_tiles()
        steps = -(-_static(work.k) // (self.chunk * self.layout.warps[2]))
        holds = self.code.follows and self._is_aligned(work.b_slot, work.b)
        held_bytes = 16 * steps * self.layout.columns // 8 * self.lanes
        self.held = steps if holds and held_bytes <= most_held else 0
        """Steps along k of a warp whose weights come to workgroup memory before it waits for earlier kernels."""
        self.code.dynamic_shared = held_bytes if self.held else 0
        self.kept = rows if self.most_rows > HALF else max(int(self.most_rows), 1)
        """Rows of the tile whose sums are kept."""
        warp = (Tile("thread", "m", self.layout.rows), Tile("thread", "n", self.layout.columns))
        self.schedule = Schedule(
            (Tile("workgroup", "m", rows), Tile("workgroup", "n", columns), *warp),
            spaces=(("a", "global"), ("b", "panels" if work.packed else "global"), ("sum", "register")),
            mma=mma_of(work),
        )

    def write(self) -> Dim:
        """Everything of one tile."""
        work, code = self.work, self.code
        rows, columns = self.layout.tile
        self.top = code.let(f"{self.body.axes[work.m_axis]} * {self.language.index(rows)}", "top")
        self.left = code.let(f"{self.body.axes[work.n_axis]} * {self.language.index(columns)}", "left")
        along_m, _, along_k = self.layout.warps
        code.emit("const int warp = (int)lane / 32, own = (int)lane % 32;")
        code.emit(f"const int part = warp % {along_k};")
        code.emit(f"const int warp_row = warp / {along_k} % {along_m} * {self.layout.rows};")
        code.emit(f"const int warp_column = warp / {along_k * along_m} * {self.layout.columns};")
        if code.follows:
            if self.held:
                self._hold_weights()
            else:
                self._bring_weights()
        self._before_rows()
        results = TeamResults(self)
        results.ask(static=True)
        if code.follows:
            code.emit("follow();")
        results.ask(static=False)
        self._prepare_rows()
        self._sums()
        code.emit(self.language.barrier())
        results.write()
        steps = dims.mul(dims.product(work.taps), dims.add(work.k, 64))
        return dims.add(steps, rows * columns)

    def _most_rows(self, rows_guess: int) -> float:
        """How many rows there are at most."""
        return _most_rows(self.work, rows_guess)

    def _before_rows(self) -> None:
        """What is loaded for the rows of a before earlier kernels have ended."""

    def _prepare_rows(self) -> None:
        """What is done about the rows of a before sums: nothing, as they lie in memory."""

    def _has_own_weights(self) -> bool:
        """Whether its weights are the same in every run, and their places known before a run."""
        work = self.work
        return bool(work.packed) and not work.taps and not work.b.others and self.body.slots[work.b_slot].static

    def _has_few_tiles(self) -> bool:
        """Whether each multiprocessor has one tile of sixteen rows at most."""
        return not self.work.batch and -(-_static(self.work.n) // self.layout.tile[1]) <= MULTIPROCESSORS

    def _bring_weights(self) -> None:
        """Asks for the tile's weights while the kernel before still runs, which made none of them."""
        work, code = self.work, self.code
        columns = self.layout.tile[1]
        panel_bytes = depth(work) * PANEL * work.b_dtype.itemsize
        last = -(-_static(work.n) // PANEL) * panel_bytes
        first = code.let(f"{self.left} / {PANEL} * {panel_bytes}", "first")
        end = code.let(f"minimum({first} + {columns // PANEL * panel_bytes}, {self.language.index(last)})", "end")
        start = f"(const char*)(slot{work.b_slot} + {self.body.fresh_offset(work.b)})"
        with code.block(f"for (auto at = {first} + lane * {LINE}; at < {end}; at += {self.lanes * LINE})"):
            code.emit(f"bring_near({start} + at);")

    def _hold_weights(self) -> None:
        """Loads the warp's weights while the kernel before still runs, which made none of them."""
        code, work = self.code, self.work
        chunks, slices = -(-_static(work.k) // self.chunk), self.layout.warps[2]
        for j in range(self.layout.columns // 8):
            at = code.let(self._column(j), "b")
            for i in range(self.held):
                chunk = f"(part + {i * slices})"
                source = f"slot{work.b_slot} + {at} + {chunk} * {self.right_chunk * PANEL} + own * {self.right_piece}"
                there = "" if (i + 1) * slices <= chunks else f"{chunk} < {chunks}, "
                code.emit(f"copy_ahead{'_if' if there else ''}({there}&{self._held(j, str(i))}, {source});")
        code.emit("commit_copies();")
        if self.blocks is not None:
            self.blocks.hold()

    def _held(self, panel: int, step: str) -> str:
        """A lane's piece of a panel's weights at one of its steps; nobody else has it."""
        return f"dynamic_shared[({panel * self.held} + {step}) * {self.lanes} + lane]"

    # where operands lie

    def _rows(self, count: int, row_of: str) -> list[str]:
        """Offsets of the rows of a that a lane reads: `row_of` is the first, in the warp's tile, `count` in steps; and
        where their windows are."""
        step = self.layout.rows // count
        offsets = []
        for i in range(count):
            offsets.append(self._a_offset(f"{row_of} + {i * step}"))
            self.positions.append(self.bounds.of_row())
        return offsets

    def _a_offset(self, row: str) -> str:
        work, code = self.work, self.code
        last = f"{self.record.dim(work.m)} - {self.language.index(1)}"
        self.body.axes[work.m_axis] = code.let(f"min({self.top} + warp_row + {row}, {last})", "row")
        return self.body.fresh_offset(self._outside(work.a))

    def _left_piece(self, at: str) -> str:
        """The 16 bytes of a row of a."""
        return self._piece(self.work.a_slot, self.work.a, at)

    def _outside(self, line: Linear) -> Linear:
        inside = (*self.work.tap_axes, self.work.k_axis)
        return Linear(line.const, tuple((n, c) for n, c in line.axes if n not in inside), line.others)

    def _piece(self, slot: int, line: Linear, at: str) -> str:
        """The 16 bytes of a side at an offset in elements."""
        return f"piece_at<{str(self._is_aligned(slot, line)).lower()}>(slot{slot} + {at})"

    def _is_aligned(self, slot: int, line: Linear) -> bool:
        return self.body.slots[slot].aligned and is_aligned(line, self.work)

    def _panel(self, first: str, width: int) -> str:
        """Where the panel begins that a column of the warp's tile is the first of; behind the end, the last one."""
        work, index = self.work, self.language.index
        count = index(-(-_static(work.n) // width))
        size = self.record.dim(dims.mul(dims.product(work.taps), depth(work) * width))
        start = self.body.fresh_offset(work.b)
        panel = f"min(({self.left} + warp_column + {first}) / {index(width)}, {count} - {index(1)})"
        return f"{start} + {panel} * {size}"

    def _taps(self, loops: ExitStack) -> tuple[str, str]:
        """Loops over the window, and what they add to the offsets of both sides."""
        work, body = self.work, self.body
        for i, (axis, extent) in enumerate(zip(work.tap_axes, work.taps)):
            name = f"tap{i}"
            body.axes[axis] = name
            head = self.language.loop(name, self.language.index(0), self.record.dim(extent))
            loops.enter_context(self.code.block(head))
        if not work.taps:
            return "", ""
        a = " + " + self._tap_offset(work.a)
        if not work.packed:
            return a, " + " + self._tap_offset(work.b)
        steps = tuple(dims.mul(c, depth(work) * work.packed) for c in contiguous(work.taps))
        return a, " + " + body.fresh_offset(Linear(0, tuple(zip(work.tap_axes, steps))))

    def _tap_offset(self, line: Linear) -> str:
        return self.body.fresh_offset(Linear(0, tuple((n, c) for n, c in line.axes if n in self.work.tap_axes)))

    # sums

    def _sums(self) -> None:
        """16 bytes of each row and column at a time: two steps of the matrix units."""
        if self.blocks is not None:
            self.blocks.write()
            return
        work, code, layout = self.work, self.code, self.layout
        m_tiles, n_tiles = layout.rows // 16, layout.columns // 8
        k = _static(work.k)
        few = self.most_rows <= HALF
        a = [code.let(at, "a") for at in self._rows(2 * m_tiles, "own / 4")][: 1 if few else None]
        code.emit(f"{self.sum_type} sums[{m_tiles}][{n_tiles}][4] = {{}};")
        if self.held:
            code.emit("wait_copies<0>();")
        b = [] if self.held else [code.let(self._column(j), "b") for j in range(n_tiles)]
        with ExitStack() as loops:
            a_tap, b_tap = self._taps(loops)
            self._steps(loops, few)
            code.emit(f"const int along = chunk * {self.chunk} + own % 4 * {self.piece};")
            behind = k % self.chunk or (self.held and -(-k // self.chunk) % layout.warps[2])

            def within_k(slot: int, line: Linear, at: str) -> str:
                """A piece of a side, zeros behind the end of k."""
                whole = self._piece(slot, line, at) if slot != work.a_slot else self._left_piece(at)
                if k % self.piece:
                    half = f"along < {k} ? half_at(slot{slot} + {at}) : Piece{{}}"
                    return f"along + {self.piece} <= {k} ? {whole} : {half}"
                return f"along < {k} ? {whole} : Piece{{}}" if behind else whole

            taps = self.bounds.of_taps()
            left = []
            for at, of_row in zip(a, self.positions):
                piece = within_k(work.a_slot, work.a, f"{at} + along{a_tap}")
                within = self.bounds.test(of_row, taps)
                left.append(code.let(f"{within} ? ({piece}) : Piece{{}}" if within else piece, "left"))
            if not work.float_parts:
                left += [code.let("Piece{}", "left")] * (2 * m_tiles - len(left))
            if self.held:
                right = [code.let(self._held(j, "step"), "right") for j in range(n_tiles)]
            elif work.packed:
                columns = [
                    self._piece(work.b_slot, work.b, f"{at} + chunk * {self.chunk * PANEL} + own * {self.piece}{b_tap}")
                    for at in b
                ]
                right = [code.let(column, "right") for column in columns]
            else:
                right = [code.let(within_k(work.b_slot, work.b, f"{at} + along{b_tap}"), "right") for at in b]
            if work.float_parts:
                float_parts.multiply(code, left, 2 * m_tiles, right)
            else:
                for i in range(m_tiles):
                    for j in range(n_tiles):
                        self._multiply(f"sums[{i}][{j}]", left[2 * i], left[2 * i + 1], right[j])
        self._declare()
        self._put_sums()

    def _put_sums(self) -> None:
        """The sums of a warp, into workgroup memory."""
        for i in range(self.layout.rows // 16):
            for j in range(self.layout.columns // 8):
                for number in range(2 if self.kept <= HALF else 4):
                    row = f"warp_row + {16 * i + 8 * (number // 2)} + own / 4"
                    column = f"warp_column + {8 * j + number % 2} + own % 4 * 2"
                    self._put(row, column, f"sums[{i}][{j}][{number}]")

    def _steps(self, loops: ExitStack, few: bool) -> None:
        """The loop over a warp's chunks along k; over those whose weights it has, written out."""
        code, layout = self.code, self.layout
        slices, tiles = layout.warps[2], layout.rows // 16 * (layout.columns // 8)
        if self.held:
            code.emit("#pragma unroll")
            loops.enter_context(code.block(f"for (int step = 0; step < {self.held}; step++)"))
            code.emit(f"const int chunk = part + step * {slices};")
            return
        unrolled = 8 if few and layout.columns <= 16 else 4 if tiles <= 8 else 2
        code.emit(f"#pragma unroll {unrolled}")
        head = f"for (int chunk = part; chunk < {-(-_static(self.work.k) // self.chunk)}; chunk += {slices})"
        loops.enter_context(code.block(head))

    def _multiply(self, sums: str, high: str, low: str, right: str) -> None:
        """What four lanes have of eight rows each, high and low, and of eight columns: 64 bytes along k."""
        if is_of_float8(self.work):
            self.code.emit(f"add_products({sums}, woven<0>({high}, {low}), woven<1>({high}, {low}), {right});")
            return
        for x, y in ("xy", "zw"):
            left = ", ".join(f"{rows}.{pair}" for pair in (x, y) for rows in (high, low))
            self.code.emit(f"{self.mma}({sums}, {left}, {right}.{x}, {right}.{y});")

    def _column(self, number: int) -> str:
        """Where a lane begins in the columns of its tile of this number."""
        work, code = self.work, self.code
        if work.packed:
            return self._panel(str(PANEL * number), PANEL)
        last = f"{self.record.dim(work.n)} - {self.language.index(1)}"
        column = f"min({self.left} + warp_column + {8 * number} + own / 4, {last})"
        self.body.axes[work.n_axis] = code.let(column, "column")
        return self.body.fresh_offset(self._outside(work.b))

    # results

    @property
    def pitch(self) -> int:
        """Floats from row to row of the sums in workgroup memory."""
        return self.layout.tile[1] + PAD

    def _declare(self) -> None:
        size = self.layout.warps[2] * self.kept * self.pitch
        self.language.shared_variable(self.code, "shared_sums", self.sum_type, size)

    def _put(self, row: str, column: str, value: str) -> None:
        put = f"shared_sums[(part * {self.kept} + {row}) * {self.pitch} + {column}] = {value};"
        self.code.emit(f"if (own / 4 < {self.kept}) {put}" if self.kept < HALF else put)

    def made_sure(self, total: str) -> str:
        """The sum of the row and column at hand, made again in f32 where it is not finite."""
        sure = self.code.fresh("sure")
        self.code.emit(self.language.mutable(sure, total))
        with self.body.scope(f"if (is_lost({total}))"):
            self.code.emit(f"{sure} = 0.0f;")
            with ExitStack() as loops:
                left, right, of_row = self._left_row(), self._right_column(), self.bounds.of_row()
                a_tap, b_tap = self._taps(loops)
                within = self.bounds.test(of_row, self.bounds.of_taps())
                if within:
                    loops.enter_context(self.code.block(f"if ({within})"))
                float_parts.add_products(self.code, self.work, sure, left + a_tap, right + b_tap)
        return sure

    def _left_row(self) -> str:
        """A pointer to the row of a at hand."""
        return self.code.let(f"slot{self.work.a_slot} + {self.body.fresh_offset(self._outside(self.work.a))}", "left")

    def _right_column(self) -> str:
        """A pointer to the column of b at hand."""
        work, code, column = self.work, self.code, self.body.axes[self.work.n_axis]
        if not work.packed:
            return code.let(f"slot{work.b_slot} + {self.body.fresh_offset(self._outside(work.b))}", "right")
        size = self.record.dim(dims.mul(dims.product(work.taps), depth(work) * PANEL))
        own = f"{column} / {PANEL} * {size} + {column} % {PANEL} * {work.group}"
        return code.let(f"slot{work.b_slot} + {self.body.fresh_offset(work.b)} + {own}", "right")


def mma_of(work: Contraction) -> tuple[int, int, int] | None:
    """What an instruction multiplies along m, n and k, if it is one of matrix units."""
    if work.blocks is not None and work.a_dtype is dtypes.f32:
        return None
    return 16, 8, 8 if work.float_parts else 32 if is_of_bytes(work) else 16


def depth(work: Contraction) -> int:
    """Elements of a column of a panel, with those behind its end; of blocks the bytes."""
    if work.blocks is not None:
        return work.blocks.chunks * PANEL_BYTES
    return -(-_static(work.k) // work.group) * work.group


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)  # asked by `takes`
    return dim


def most_held(target: Target) -> int:
    """Bytes of weights that a workgroup may have on their way."""
    return HELD_BYTES_OF_WARPGROUPS if target.warpgroups else HELD_BYTES


def render(
    work: Contraction, slots: Sequence[Slot], bindings: Sequence[Binding], name: str, target: Target, language: Language
) -> Shader:
    """The shader of a contraction that a workgroup `takes`."""
    return TeamContraction(work, slots, language, target.rows, most_held=most_held(target)).shader(bindings, name)
