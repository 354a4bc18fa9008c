"""What becomes of the sums of a tile in workgroup memory: eight neighbours of a row by one lane, where memory takes
them at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from rlx.codegen.simt.body import Body
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.language.cpp import WHOLE_BYTES, words_of
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.team_layouts import PAD
from rlx.codegen.simt.tile_layouts import PIECE_BYTES, TileLayout
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.axes import speaks_of
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, offset_of
from rlx.kernel.ir.loops import Store

WIDTH = 8
"""Neighbours of a row that a lane takes."""
ROWS_AT_ONCE = 4
"""Rows whose operands a lane asks for before it needs the first."""
MOST_SUMS, MOST_EARLY = 64, 40
"""Registers of a lane's sums up to which it has others for operands of the results meanwhile, and for how many
words."""
PIECES = (dtypes.f16, dtypes.bf16, dtypes.f32, dtypes.i32, *WHOLE_BYTES)
"""What pieces of 16 bytes, or of 8, are taken apart for."""


def depends_on(line: Linear, axis: int) -> bool:
    """Whether what is not linear in an offset reads an axis."""
    return speaks_of((e for e, _ in line.others), axis)


def _is_wide(work: Contraction, slots: Sequence[Slot], slot: int, line: Linear) -> bool:
    """Whether neighbours along n are neighbours in memory, which begin at multiples of their bytes."""
    place, n_axis = slots[slot], work.n_axis
    if place.dtype not in PIECES or not place.aligned or line.coefficient(n_axis) != 1 or depends_on(line, n_axis):
        return False
    strides = [line.const, *(c for number, c in line.axes if number != n_axis), *(c for _, c in line.others)]
    return all(dims.exact_div(c, WIDTH) is not None for c in strides)


def stores_pieces(work: Contraction, slots: Sequence[Slot]) -> bool:
    """Whether all that the epilogue stores is eight neighbours at a time."""
    wide = all(_is_wide(work, slots, stage.slot, stage.offset) for stage in work.epilogue if isinstance(stage, Store))
    return wide and dims.exact_div(work.n, WIDTH) is not None


class TileResults:
    """Writes what the epilogue makes of sums.

    stages      of the epilogue, with bodies that the language can say
    top, left   the tile's first row and column
    second      of a paired contraction, how many floats behind a sum the second one of its result is
    """

    def __init__(
        self, work: Contraction, layout: TileLayout, body: Body, stages: Sequence[Store], top: str, left: str,
        second: int = 0,
    ) -> None:  # fmt: skip
        self.work, self.layout, self.body, self.stages = work, layout, body, stages
        self.code, self.language = body.code, body.language
        self.top, self.left, self.second = top, left, second
        wide = all(self._is_wide(stage.slot, stage.offset) for stage in stages)
        self.width = WIDTH if wide and dims.exact_div(work.n, WIDTH) is not None else 1
        loads = [node for node in ex.walk([stage.body for stage in stages]) if node.kind == "load"]
        self.loads = [node for node in loads if self.width > 1 and self._is_wide_load(node)]
        self.early: list[dict[Expr, list[str]]] = []
        """Pieces that a lane has of each of its rows before there are sums."""

    def ask_early(self) -> None:
        """Asks for what the results are made of beside sums, where lanes have registers for it."""
        layout = self.layout
        a_row, passes, at_once = self._passes()
        moving = [node for node in self.loads if self._moves_along_m(node)]
        words = sum(self._words(node) * (at_once if node in moving else 1) for node in self.loads)
        alone = layout.bands == layout.parts == 1 and passes == at_once and not self.work.float_parts
        whole = dims.exact_div(self.work.n, layout.results[1]) is not None
        sums = layout.rows // 16 * (layout.columns // 8) * 4
        if not self.loads or not (alone and whole) or sums > MOST_SUMS or words > MOST_EARLY:
            return
        self.at_n = self.code.let(f"{self.left} + (int)lane % {a_row} * {self.width}", "at")
        self.near = {node: self._pieces(node, now=True) for node in self.loads if node not in moving}
        first = f"split * {layout.share} + (int)lane / {a_row}" if layout.splits > 1 else f"(int)lane / {a_row}"
        rows = [self.code.let(f"{first} + {number * layout.lanes // a_row}", "row") for number in range(at_once)]
        inside = [f"min({row}, {layout.tile[0] - 1})" for row in rows]  # lanes may be more than a share has
        self.early = [self._ask(self.at_m(row, 0), now=True) for row in inside]

    def _words(self, node: Expr) -> int:
        """Of a lane's neighbours of an operand."""
        nbytes: int = WIDTH * self.body.slots[node.attr.slot].dtype.itemsize
        return max(2, nbytes // 4)

    def _passes(self) -> tuple[int, int, int]:
        """Lanes that have a row of a part, how many rows each of them has, and how many of these at once."""
        layout = self.layout
        a_row = layout.results[1] // max(layout.bands, 1) // self.width
        passes = max(1, layout.share * a_row // layout.lanes)
        return a_row, passes, next(count for count in (ROWS_AT_ONCE, 2, 1) if passes % count == 0)

    def _is_wide_load(self, node: Expr) -> bool:
        return not node.attr.guarded and self._is_wide(node.attr.slot, offset_of(node))

    def _is_wide(self, slot: int, line: Linear) -> bool:
        return _is_wide(self.work, self.body.slots, slot, line)

    def write(self, part: int) -> None:
        """What lanes have of a part of the rows, when all sums are there."""
        bands = self.layout.bands
        if bands == 1:
            self._write_band(part, "0")
            return
        with self.body.scope(f"for (int band = 0; band < {bands}; band++)"):
            self._write_band(part, f"band * {self.layout.results[1] // bands}")

    def _write_band(self, part: int, first_column: str) -> None:
        """The same of some columns, from one on."""
        code, work, layout = self.code, self.work, self.layout
        share = layout.share
        a_row, _, at_once = self._passes()
        own = f"(int)lane % {a_row} * {self.width}"
        column = code.let(own if first_column == "0" else f"{first_column} + {own}", "column")
        self.at_n = code.let(f"{self.left} + {column}", "at")
        with self._guard(work.n, layout.results[1], self.at_n):
            if not self.early:
                self.near = {node: self._pieces(node) for node in self.loads if not self._moves_along_m(node)}
            first = code.fresh("first")
            step = layout.lanes // a_row
            end, begin = str(share), f"(int)lane / {a_row}"
            if layout.splits > 1:
                end, begin = f"(split + 1) * {share}", f"split * {share} + {begin}"
            with self.body.scope(f"for (int {first} = {begin}; {first} < {end}; {first} += {at_once * step})"):
                rows = [code.let(f"{first} + {number * step}", "row") for number in range(at_once)]
                at = [self.at_m(row, part) for row in rows]
                asked = self.early or [self._ask(row_at) for row_at in at]
                for row, row_at, pieces in zip(rows, at, asked):
                    self._finish(f"{row} * {layout.tile[1] + PAD} + {column}", row_at, pieces)

    def _guard(self, extent: Dim, tile: int, at: str) -> AbstractContextManager[None]:
        """A block for what is within the results; none where all is."""
        if dims.exact_div(extent, tile) is not None:
            return nullcontext()
        return self.body.scope(f"if ({at} < {self.body.record.dim(extent)})")

    def at_m(self, row: str, part: int) -> str:
        """The row of the results that is one of a part's sums: of each warp's rows, or those of a group of warps, so
        many follow one another."""
        layout = self.layout
        rows = layout.rows * layout.group
        of_part = rows // layout.parts
        if layout.parts == 1:
            return self.code.let(f"{self.top} + {row}", "at")
        return self.code.let(f"{self.top} + ({row} / {of_part} * {rows} + {part * of_part} + {row} % {of_part})", "at")

    def _moves_along_m(self, node: Expr) -> bool:
        line, m_axis = offset_of(node), self.work.m_axis
        return line.coefficient(m_axis) != 0 or depends_on(line, m_axis)

    def _ask(self, at: str, now: bool = False) -> dict[Expr, list[str]]:
        """Pieces that belong to a row of the results, or to the last one, where there is no such row."""
        moving = [node for node in self.loads if self._moves_along_m(node)]
        if moving:
            last = f"{self.body.record.dim(self.work.m)} - {self.language.index(1)}"
            self.body.axes[self.work.m_axis] = self.code.let(f"min({at}, {last})", "near")
        return self.near | {node: self._pieces(node, now) for node in moving}

    def _pieces(self, node: Expr, now: bool = False) -> list[str]:
        """A lane's neighbours of an operand; loaded `now`, or where compilers like."""
        slot = node.attr.slot
        self.body.axes[self.work.n_axis] = self.at_n
        at = self.body.fresh_offset(offset_of(node))
        itemsize = self.body.slots[slot].dtype.itemsize
        if itemsize == 1:
            place = f"(const HalfPiece*)(slot{slot} + {at})"
            return [self.code.let(f"read_now({place})" if now else f"*{place}", "piece")]
        places = [f"slot{slot} + {at} + {start}" for start in range(0, WIDTH, PIECE_BYTES // itemsize)]
        load = "read_now((const Piece*)({}))" if now else "piece_at<true>({})"
        return [self.code.let(load.format(place), "piece") for place in places]

    def _element(self, node: Expr, pieces: Sequence[str], number: int) -> Reg:
        """A lane's neighbour of this number of an operand."""
        dtype = self.body.slots[node.attr.slot].dtype
        piece, within = divmod(number * dtype.itemsize, PIECE_BYTES)
        word = f"{pieces[piece]}.{'xyzw'[within // 4]}"
        if dtype is dtypes.f32:
            return Reg(self.code.let(f"__uint_as_float({word})"), dtype, False)
        if dtype is dtypes.i32:
            return Reg(self.code.let(f"(int){word}"), dtype, False)
        if dtype in WHOLE_BYTES:
            byte = f"{word} >> {8 * (within % 4)}"
            element = f"(int)(signed char)({byte})" if dtype is dtypes.i8 else f"{byte} & 0xffu"
            element = f"decode_{dtype}({element})" if dtype.is_float else element
            return Reg(self.code.let(element), dtype, False)
        bits = f"{word} >> 16" if within % 4 else f"{word} & 0xffffu"
        return Reg(self.code.let(f"decode_{dtype}({bits})"), dtype, False)

    def _finish(self, place: str, at: str, pieces: dict[Expr, list[str]]) -> None:
        """A lane's neighbours of a row."""
        with self._guard(self.work.m, self.layout.tile[0], at):
            self.body.axes[self.work.m_axis] = at
            for stage, of_stage in zip(self.stages, zip(*self._all_values(place, pieces))):
                self._store(stage, of_stage)

    def _all_values(self, place: str, pieces: dict[Expr, list[str]]) -> list[list[Reg]]:
        """What each stage makes of the sums of a lane's neighbours."""
        sums = [self._sums_at(place)]
        if self.second:
            sums.append(self._sums_at(f"{place} + {self.second}"))
        values = [self._values(number, totals, pieces) for number, totals in enumerate(zip(*sums))]
        self.body.axes[self.work.n_axis] = self.at_n
        return values

    def _sums_at(self, place: str) -> list[str]:
        """A lane's neighbours of a row of sums, from a place on."""
        work = self.work
        splits = 1 if work.float_parts else self.layout.splits  # those are whole already
        kind = "float" if work.dtype.is_float else "int"  # sums of integers lie there by their bits
        if self.width == 1:
            own = f"(const {kind}*)shared_sums + {place}"
            return [f"sum_of_cluster<{splits}>({own})" if splits > 1 else f"*({own})"]
        places = [f"(const {kind}4*)(shared_sums + {place} + {4 * i})" for i in range(2)]
        read = [f"sum_of_cluster<{splits}>({each})" if splits > 1 else f"*{each}" for each in places]
        quads = [self.code.let(each, "quad") for each in read]
        return [f"{quad}.{component}" for quad in quads for component in "xyzw"]

    def _values(self, number: int, totals: Sequence[str], pieces: dict[Expr, list[str]]) -> list[Reg]:
        """What each stage makes of a sum, or of both sums of a result."""
        body, work = self.body, self.work
        body.axes[work.n_axis] = self.code.let(f"{self.at_n} + {number}", "at") if number else self.at_n
        regs = [Reg(self.code.let(self._rounded(each)), work.dtype, False) for each in totals]
        body.accumulated, body.second = regs[0], regs[-1]
        for node, of_node in pieces.items():
            body.remember(node, self._element(node, of_node, number))
        return [body.gen(stage.body) for stage in self.stages]

    def _rounded(self, total: str) -> str:
        return self.language.rounded(self.work.dtype, total)

    def _store(self, stage: Store, values: Sequence[Reg]) -> None:
        if self.width == 1:
            self.body.store(stage.slot, stage.offset, values[0])
            return
        dtype = self.body.slots[stage.slot].dtype
        words = words_of(dtype, [value.unrounded for value in values])
        at = self.body.fresh_offset(stage.offset)
        kind, count = ("Piece", 4) if len(words) > 2 else ("HalfPiece", 2)
        for start in range(0, len(words), count):
            place = f"slot{stage.slot} + {at} + {start * 4 // dtype.itemsize}"
            self.code.emit(self.language.put(kind, place, words[start : start + count]))
