"""Contractions of 16-bit floats on matrix units, with sums of f32: warps of a workgroup share its tile, and the sum
over k where there are few tiles.

Operands come straight from memory, 16 bytes a lane; what warps read twice, caches have. A lane's 16 bytes are eight
neighbours along k, of which it takes the pairs that an instruction wants from it. That permutes k, alike on both sides.
The sums meet in workgroup memory, from which the results are finished and written row by row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rlx.codegen.simt import loops as nests
from rlx.codegen.simt.bounds import Bounds
from rlx.codegen.simt.code import Binding, Shader, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.writer import Writer
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, contiguous
from rlx.kernel.ir.loops import Store
from rlx.kernel.schedule.schedule import Schedule, Tile

HALVES = (dtypes.f16, dtypes.bf16)
WARP = 32
LEAST = 16
"""Elements along k that are worth while."""
SHARED_BYTES = 48 << 10
MOST_LANES = 512
REGISTERS = 65536
"""Of a multiprocessor."""
MULTIPROCESSORS = 132
"""Of GPUs of the larger kind."""
MANY_ROWS = 512
"""From here on warps of a tile have rows of their own, and each all of the sum."""
CHUNK = 32
"""Elements along k that four lanes have of a row."""
PANELS = (8, CHUNK)
"""Width and groups of panels: what a warp reads at once."""
GUESSES = ((8, 1), (32, 16), (192, 128), (1024, 512), (None, 4096))
"""Where only a run tells how many rows there are: numbers up to which they are taken for another number."""
FEW_ROWS = 32
"""Rows up to which a workgroup reads its weights once, and mostly waits for them."""
HALF = 8
"""Rows that are one half of those of an instruction: the other half is zeros, which nothing brings."""
LINE = 128
"""Bytes that come from memory together."""
MANY_SLICES = (8, 12)
"""Warps along k of few rows."""
MOST_PANELS = 8
"""Panels of columns of a tile of few rows."""
HELD_BYTES, HELD_BYTES_OF_WARPGROUPS = 50 << 10, 112 << 10
"""Of weights that a workgroup has on their way before it waits for earlier kernels, beside arrays of its own: what
every GPU has room for, and half of what those have whose kernels overlap, so that the next one's come beside them."""
PAD = 8
"""Floats behind each row of sums, so that rows begin in different banks."""


@dataclass(frozen=True)
class Layout:
    """How a workgroup computes its tile.

    rows, columns    of a warp's tile
    warps            along m, n and k
    """

    rows: int
    columns: int
    warps: tuple[int, int, int]

    @property
    def lanes(self) -> int:
        m, n, k = self.warps
        return WARP * m * n * k

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the workgroup."""
        return self.rows * self.warps[0], self.columns * self.warps[1]

    @property
    def shared_bytes(self) -> int:
        rows, columns = self.tile
        return 4 * self.warps[2] * rows * (columns + PAD)


def takes(work: Contraction) -> bool:
    """Whether a workgroup can compute it: rows that are contiguous along k, and as long as pieces of 16 bytes are."""
    if work.a_dtype not in HALVES or work.a_dtype is not work.b_dtype or not work.dtype.is_float:
        return False
    if work.dtype is dtypes.f64 or not _has_pieces(work):
        return False
    return (work.packed, work.group) == PANELS if work.packed else work.b.coefficient(work.k_axis) == 1


def panels(work: Contraction) -> tuple[int, int]:
    """Width of panels for the static right side of a contraction that a workgroup computes, and of groups; 0 for
    none."""
    return PANELS if takes(dataclasses.replace(work, packed=PANELS[0], group=PANELS[1])) else (0, 1)


def _has_pieces(work: Contraction) -> bool:
    """Whether rows of a are pieces of 16 bytes; of a window they may end with half of one."""
    piece = _piece(work)
    fits = isinstance(work.k, int) and work.k >= LEAST and work.k % (piece // 2 if work.taps else piece) == 0
    return fits and work.a.coefficient(work.k_axis) == 1


def _piece(work: Contraction) -> int:
    """Elements of 16 bytes."""
    return 16 // work.a_dtype.itemsize


def is_aligned(side: Linear, work: Contraction) -> bool:
    """Whether all runs along k begin at multiples of 16 bytes."""
    strides = [side.const, *(c for n, c in side.axes if n != work.k_axis), *(c for _, c in side.others)]
    return all(dims.exact_div(c, _piece(work)) is not None for c in strides)


def rows_of(work: Contraction) -> Dim:
    """Rows of all matrices of the left side."""
    return dims.mul(dims.product(work.batch), work.m)


def _most_rows(work: Contraction, rows_guess: int) -> float:
    """How many rows the variant for a guess has at most."""
    rows = rows_of(work)
    if isinstance(rows, int):
        return rows
    return next((most for most, guess in GUESSES if guess == rows_guess and most is not None), math.inf)


def layout_of(work: Contraction, rows: int = GUESSES[-1][1]) -> Layout:
    """The layout that should take the least time: what is loaded and multiplied, and how long one warp waits for its
    operands. Dims of rows that only a run tells are taken to make so many `rows`."""
    known = with_rows(work, rows)
    if _static(rows_of(known)) <= HALF and _static(known.k) >= CHUNK * min(MANY_SLICES):
        return _narrow(known)
    return min(_layouts(known), key=lambda layout: (_cost(known, layout), layout.lanes))


def _narrow(work: Contraction) -> Layout:
    """The layout of few rows, where all time goes into reading the weights: warps have slices of the sum, and a
    workgroup so many columns that each multiprocessor has one, if that keeps all of its weights on their way; else
    small tiles."""
    panels = -(-_static(work.n) // 8)
    tiles = max(1, round(panels / MULTIPROCESSORS))
    if tiles > MOST_PANELS:
        return Layout(16, 16, (1, 1, min(MANY_SLICES)))
    slices = max(MANY_SLICES) if tiles == 1 and _static(work.k) >= CHUNK * max(MANY_SLICES) else min(MANY_SLICES)
    return Layout(16, 8 * tiles, (1, 1, slices))


def with_rows(work: Contraction, rows: int) -> Contraction:
    m = max(work.m, 1) if isinstance(work.m, int) else rows
    known = math.prod(d for d in work.batch if isinstance(d, int))
    batch = (known, 1 if all(isinstance(d, int) for d in work.batch) else max(1, rows // max(known * m, 1)))
    n = max(work.n, 1) if isinstance(work.n, int) else rows
    return dataclasses.replace(work, batch=batch, m=m, n=n)


def _layouts(work: Contraction) -> list[Layout]:
    """Those that a workgroup can have, for a contraction of known dims."""
    m = _static(work.m)
    tiles = [(16 * i, 8 * j) for i in (1, 2, 4) for j in (1, 2, 3, 4, 6, 8)]
    splits = [(i, j, k) for i in (1, 2, 4, 8) for j in (1, 2, 3, 4) for k in (1, 2, 4, 8, 12)]
    splits = splits if m < MANY_ROWS else [(4, 1, 1), (2, 2, 1)]
    found = []
    for rows, columns in tiles:
        for warps in splits:
            layout = Layout(rows, columns, warps)
            covers = rows * (warps[0] - 1) < m and columns * (warps[1] - 1) < _static(work.n)
            if covers and 128 <= layout.lanes <= MOST_LANES and layout.shared_bytes <= SHARED_BYTES:
                found.append(layout)
    return found


def _cost(work: Contraction, layout: Layout) -> float:
    """Clocks, roughly. The numbers are fitted to what layouts took on an H200: a step along k takes a warp 160 clocks
    where it waits for memory, a multiprocessor gets 96 bytes a clock from its own cache and 40 from the common one."""
    m, n, k = _static(work.m), _static(work.n), _static(work.k)
    taps = _static(dims.product(work.taps)) if all(isinstance(d, int) for d in work.taps) else 1
    steps = taps * -(-k // (CHUNK * layout.warps[2]))
    k *= taps
    rows, columns = layout.tile
    blocks = _static(dims.product(work.batch)) * -(-m // rows) * -(-n // columns)
    accumulators = layout.rows * layout.columns // WARP
    registers = 40 + accumulators + layout.rows + layout.columns
    resident = max(1, min(2048 // layout.lanes, REGISTERS // (registers * layout.lanes), 16))
    itemsize = work.a_dtype.itemsize
    warps = layout.lanes // WARP
    loaded = (layout.rows + layout.columns) * k * itemsize * layout.warps[0] * layout.warps[1]
    multiplied = rows * columns * k / 1024
    fetched = (rows + columns) * k * itemsize / 40
    busy = -(-blocks // MULTIPROCESSORS) * max(loaded / 96, multiplied, fetched)
    rounds = -(-blocks // (MULTIPROCESSORS * resident))
    finish = 400 + rows * columns * layout.warps[2] / layout.lanes * 8
    return max(busy, rounds * steps * 160.0) + rounds * finish + warps


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
        rows, columns = self.layout.tile
        grid = (*work.batch, dims.ceildiv(work.m, rows), dims.ceildiv(work.n, columns))
        super().__init__(slots, grid, (*work.batch, work.m, work.n), team=True, language=language)
        self.lanes = self.layout.lanes
        self.bounds = Bounds(work, self.body)
        self.positions: list[list[str]] = []
        self.most_rows = self._most_rows(rows_guess)
        self.code.follows = self.most_rows <= FEW_ROWS and self._has_own_weights()
        steps = -(-_static(work.k) // (CHUNK * self.layout.warps[2]))
        holds = self.code.follows and self._is_aligned(work.b_slot, work.b)
        held_bytes = 16 * steps * self.layout.columns // 8 * self.lanes
        self.held = steps if holds and held_bytes <= most_held else 0
        """Steps along k of a warp whose weights come to workgroup memory before it waits for earlier kernels."""
        self.code.dynamic_shared = held_bytes if self.held else 0
        self.kept = rows if self.most_rows > HALF else int(self.most_rows)
        """Rows of the tile whose sums are kept."""
        warp = (Tile("thread", "m", self.layout.rows), Tile("thread", "n", self.layout.columns))
        self.schedule = Schedule(
            (Tile("workgroup", "m", rows), Tile("workgroup", "n", columns), *warp),
            spaces=(("a", "global"), ("b", "panels" if work.packed else "global"), ("sum", "register")),
            mma=(16, 8, 16),
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
        if code.follows:
            code.emit("follow();")
        self._prepare_rows()
        self._sums()
        code.emit(self.language.barrier())
        self._finish()
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

    def _bring_weights(self) -> None:
        """Asks for the tile's weights while the kernel before still runs, which made none of them."""
        work, code = self.work, self.code
        columns = self.layout.tile[1]
        panel_bytes = depth(work) * PANELS[0] * work.b_dtype.itemsize
        last = -(-_static(work.n) // PANELS[0]) * panel_bytes
        first = code.let(f"{self.left} / {PANELS[0]} * {panel_bytes}", "first")
        end = code.let(f"minimum({first} + {columns // PANELS[0] * panel_bytes}, {self.language.index(last)})", "end")
        start = f"(const char*)(slot{work.b_slot} + {self.body.fresh_offset(work.b)})"
        with code.block(f"for (auto at = {first} + lane * {LINE}; at < {end}; at += {self.lanes * LINE})"):
            code.emit(f"bring_near({start} + at);")

    def _hold_weights(self) -> None:
        """Loads the warp's weights while the kernel before still runs, which made none of them."""
        code, work = self.code, self.work
        chunks, slices = -(-_static(work.k) // CHUNK), self.layout.warps[2]
        for j in range(self.layout.columns // 8):
            at = code.let(self._column(j), "b")
            for i in range(self.held):
                chunk = f"(part + {i * slices})"
                source = f"slot{work.b_slot} + {at} + {chunk} * {CHUNK * PANELS[0]} + own * 8"
                there = "" if (i + 1) * slices <= chunks else f"{chunk} < {chunks}, "
                code.emit(f"copy_ahead{'_if' if there else ''}({there}&{self._held(j, str(i))}, {source});")
        code.emit("commit_copies();")

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
        work, code, layout = self.work, self.code, self.layout
        m_tiles, n_tiles = layout.rows // 16, layout.columns // 8
        k = _static(work.k)
        few = self.most_rows <= HALF
        a = [code.let(at, "a") for at in self._rows(2 * m_tiles, "own / 4")][: 1 if few else None]
        code.emit(f"float sums[{m_tiles}][{n_tiles}][4] = {{}};")
        if self.held:
            code.emit("wait_copies<0>();")
        b = [] if self.held else [code.let(self._column(j), "b") for j in range(n_tiles)]
        with ExitStack() as loops:
            a_tap, b_tap = self._taps(loops)
            self._steps(loops, few)
            code.emit(f"const int along = chunk * {CHUNK} + own % 4 * 8;")
            behind = k % CHUNK or (self.held and -(-k // CHUNK) % layout.warps[2])

            def within_k(slot: int, line: Linear, at: str) -> str:
                """A piece of a side, zeros behind the end of k."""
                whole = self._piece(slot, line, at) if slot != work.a_slot else self._left_piece(at)
                if k % _piece(work):
                    half = f"along < {k} ? half_at(slot{slot} + {at}) : Piece{{}}"
                    return f"along + {_piece(work)} <= {k} ? {whole} : {half}"
                return f"along < {k} ? {whole} : Piece{{}}" if behind else whole

            taps = self.bounds.of_taps()
            left = []
            for at, of_row in zip(a, self.positions):
                piece = within_k(work.a_slot, work.a, f"{at} + along{a_tap}")
                within = self.bounds.test(of_row, taps)
                left.append(code.let(f"{within} ? ({piece}) : Piece{{}}" if within else piece, "left"))
            left += [code.let("Piece{}", "left")] * (2 * m_tiles - len(left))
            if self.held:
                right = [code.let(self._held(j, "step"), "right") for j in range(n_tiles)]
            elif work.packed:
                columns = [self._piece(work.b_slot, work.b, f"{at} + chunk * 256 + own * 8{b_tap}") for at in b]
                right = [code.let(column, "right") for column in columns]
            else:
                right = [code.let(within_k(work.b_slot, work.b, f"{at} + along{b_tap}"), "right") for at in b]
            for i in range(m_tiles):
                for j in range(n_tiles):
                    self._multiply(f"sums[{i}][{j}]", left[2 * i], left[2 * i + 1], right[j])
        self._declare()
        for i in range(m_tiles):
            for j in range(n_tiles):
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
        code.emit(f"#pragma unroll {8 if few and layout.columns <= 16 else 4 if tiles <= 8 else 2}")
        head = f"for (int chunk = part; chunk < {-(-_static(self.work.k) // CHUNK)}; chunk += {slices})"
        loops.enter_context(code.block(head))

    def _multiply(self, sums: str, high: str, low: str, right: str) -> None:
        """What four lanes have of eight rows each, high and low, and of eight columns: 32 steps along k."""
        for x, y in ("xy", "zw"):
            left = ", ".join(f"{rows}.{pair}" for pair in (x, y) for rows in (high, low))
            self.code.emit(f"mma_{self.work.a_dtype}({sums}, {left}, {right}.{x}, {right}.{y});")

    def _column(self, number: int) -> str:
        """Where a lane begins in the columns of its tile of this number."""
        work, code = self.work, self.code
        if work.packed:
            return self._panel(str(8 * number), 8)
        last = f"{self.record.dim(work.n)} - {self.language.index(1)}"
        column = f"min({self.left} + warp_column + {8 * number} + own / 4, {last})"
        self.body.axes[work.n_axis] = code.let(column, "column")
        return self.body.fresh_offset(self._outside(work.b))

    # results

    def _declare(self) -> None:
        size = self.layout.warps[2] * self.kept * (self.layout.tile[1] + PAD)
        self.language.shared_variable(self.code, "shared_sums", "float", size)

    def _put(self, row: str, column: str, value: str) -> None:
        put = f"shared_sums[(part * {self.kept} + {row}) * {self.layout.tile[1] + PAD} + {column}] = {value};"
        self.code.emit(f"if (own / 4 < {self.kept}) {put}" if self.kept < HALF else put)

    def _finish(self) -> None:
        """Each result by one lane, neighbours by neighbours."""
        work, code, body, language = self.work, self.code, self.body, self.language
        rows, columns = self.kept, self.layout.tile[1]
        with body.scope(language.loop("e", language.lane_index(), language.index(rows * columns), self.lanes)):
            row = code.let(f"(int)e / {columns}", "row")
            column = code.let(f"(int)e % {columns}", "column")
            body.axes[work.m_axis] = code.let(f"{self.top} + {row}", "at")
            body.axes[work.n_axis] = code.let(f"{self.left} + {column}", "at")
            m, n = self.record.dim(work.m), self.record.dim(work.n)
            with body.scope(f"if ({body.axes[work.m_axis]} < {m} && {body.axes[work.n_axis]} < {n})"):
                places = [f"shared_sums[({part} * {rows} + {row}) * {columns + PAD} + {column}]"
                          for part in range(self.layout.warps[2])]  # fmt: skip
                total = code.let(language.rounded(work.dtype, " + ".join(places)))
                body.accumulated = Reg(total, work.dtype, False)
                for stage in nests.legal_stages(work.epilogue):
                    assert isinstance(stage, Store)  # of a contraction
                    body.store(stage.slot, stage.offset, body.gen(stage.body))


def depth(work: Contraction) -> int:
    """Elements of a column of a panel, with those behind its end."""
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
