"""Contractions on matrix units whose rows a nest makes: each workgroup makes those of its tile first, in workgroup
memory, while its weights are on their way. So a norm costs no kernel, and its result no memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rlx.codegen.scalar.int_ranges import Check, Ranges
from rlx.codegen.simt import team_contraction
from rlx.codegen.simt.body import Body
from rlx.codegen.simt.code import Binding, Shader, Slot
from rlx.codegen.simt.group_rows import GroupRows
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.cpp import memory_type, words_of
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.codegen.simt.loops import legal_stages
from rlx.codegen.simt.piece_rows import MOST_WORDS, PieceRows, operands
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.team_contraction import TeamContraction
from rlx.codegen.simt.team_layouts import (
    CACHE_BYTES_A_CLOCK,
    CHUNK_BYTES,
    HALF,
    MULTIPROCESSORS,
    REGISTERS,
    SHARED_BYTES,
    WARP,
    Layout,
    layout_of,
    layouts_by_cost,
)
from rlx.codegen.simt.team_layouts import PAD as SUMS_PAD
from rlx.ir import dtype as dtypes
from rlx.kernel.ir.axes import speaks_of
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.fused import RowProduct
from rlx.kernel.ir.index import offset_of
from rlx.kernel.ir.loops import LoopNest

WHOLE = 2 * HALF
"""Rows of an instruction."""
GUESSES = ((1, 1), (HALF, HALF), (WHOLE, WHOLE))
"""Numbers of rows up to which they are taken for another number; there are never more."""
HALF_WARP = WARP // 2
MOST_WORDS_OF_MANY, OTHER_REGISTERS = 96, 64
"""Of operands that a lane holds of more rows than half of an instruction's, and what else it has."""
BANKS_BYTES = 128
"""Of workgroup memory that lanes have at once."""
KERNEL_CLOCKS = 3500
"""What a kernel takes that others wait for, some 2 us."""


def most_rows(nest: LoopNest, product: Contraction) -> int:
    """The greatest number of rows that tiles have room for, of those in `GUESSES`; 0 for a product that has none. More
    than half of an instruction's only where workgroups need less time to read them all than a kernel takes."""
    is_narrow = product.a_dtype.itemsize == 2 or product.float_parts or product.blocks is not None
    if product.taps or product.batch or not isinstance(product.k, int) or product.k % 16 or not is_narrow:
        return 0
    fitting = 0
    for most, guess in GUESSES:
        layout = _layout(product, guess)
        if layout is None or _shared_bytes(product, layout, most) > SHARED_BYTES:
            break
        if most > HALF and _clocks(nest, product, layout, most) > KERNEL_CLOCKS:
            break
        fitting = most
    return fitting


def _layout(product: Contraction, rows: int) -> Layout | None:
    """The layout of so many rows; None for none. Of more than half of an instruction's, one tile has all, whose lanes
    make them at once, and workgroup memory holds them."""
    if rows <= HALF:
        return layout_of(product, rows)
    if product.blocks is not None:
        return None
    fitting = (
        each
        for each in layouts_by_cost(product, rows)
        if each.tile[0] == rows
        and each.lanes >= rows * HALF_WARP
        and _shared_bytes(product, each, rows) <= SHARED_BYTES
    )
    return next(fitting, None)


def _clocks(nest: LoopNest, product: Contraction, layout: Layout, rows: int) -> float:
    """What workgroups take to read what so many rows are made of: as many at once as there are multiprocessors."""
    assert isinstance(product.n, int)  # as its weights are in panels
    turns = -(-product.n // (layout.tile[1] * MULTIPROCESSORS))
    return turns * rows * _row_bytes(nest) / CACHE_BYTES_A_CLOCK


def _row_bytes(nest: LoopNest) -> int:
    """Bytes that a row is made of, without what is the same for all."""
    *_, length = extents = nest.extents()
    assert isinstance(length, int)  # it is the product's k
    axis = len(extents) - 1
    loads = [load for load in nest.loads() if speaks_of([load], axis)]
    own = [load for load in loads if offset_of(load).others or any(n != axis for n, _ in offset_of(load).axes)]
    return length * sum(load.dtype.itemsize for load in own)


def guesses(most: int, rows: int | None) -> list[tuple[int | None, int]]:
    """Variants for at most so many rows, the last one for all others; one where the number of rows is known."""
    chosen = [(limit, guess) for limit, guess in GUESSES if limit <= most]
    if rows is not None:
        return [(None, next(guess for limit, guess in chosen if rows <= limit))]
    return [*chosen[:-1], (None, chosen[-1][1])]


def _staged(layout: Layout, most: float) -> int:
    """Rows of a tile that workgroup memory holds."""
    return int(min(layout.tile[0], most))


def _stride(product: Contraction) -> int:
    """Elements from row to row: what eight lanes have of two rows lies in different banks."""
    assert isinstance(product.k, int)
    itemsize = product.a_dtype.itemsize
    return product.k + (CHUNK_BYTES - product.k * itemsize) % BANKS_BYTES // itemsize


def _shared_bytes(product: Contraction, layout: Layout, most: float) -> int:
    sums = 4 * layout.warps[2] * int(most) * (layout.tile[1] + SUMS_PAD)
    rows = product.a_dtype.itemsize * _staged(layout, most) * _stride(product)
    return sums + rows + 8 * 4 * layout.lanes // WARP


class RowProductWriter(TeamContraction):
    """The shader of a contraction with its rows."""

    def __init__(self, work: RowProduct, slots: Sequence[Slot], language: Language, target: Target) -> None:
        self.nest = work.nest
        most_held = team_contraction.most_held(target)
        super().__init__(work.product, slots, language, target.rows, _layout(work.product, target.rows), most_held)
        spaces = (("a", "shared"), *(space for space in self.schedule.spaces if space[0] != "a"))
        self.schedule = dataclasses.replace(self.schedule, spaces=spaces)
        self.row_body = Body(self.code, self.record, slots, Ranges())
        self.staged = _staged(self.layout, self.most_rows)

    def _most_rows(self, rows_guess: int) -> float:
        return next(most for most, guess in GUESSES if guess == rows_guess)

    def shader(self, bindings: Sequence[Binding], name: str) -> Shader:
        made = super().shader(bindings, name)
        if not self.row_body.indices:
            return made
        check = Check(tuple(self.row_body.indices), self.nest.extents())
        return dataclasses.replace(made, checks=(*made.checks, check))

    def _before_rows(self) -> None:
        self.rows = self._rows_of(self._lanes_of_a_row())
        if isinstance(self.rows, PieceRows):
            self.rows.bring_ahead()

    def _rows_of(self, widths: Sequence[int]) -> GroupRows:
        """What makes a row: in pieces, by the fewest lanes that have room for them; else by the most."""
        *stages, last = legal_stages(self.nest.statements)
        for width in widths:
            held = operands(self.row_body, self.nest, stages, last.body, width, self._most_words())
            if held is not None or width == widths[-1]:
                break
        storing = f"{self.left} == 0" + f" && {self._is_row('made')}" * (width < WARP)
        common = (self.row_body, self.nest, stages, self.lanes, width, last.body)
        if held is None:
            return GroupRows(*common, self._take, storing)
        return PieceRows(*common, self._take_all, storing, held)

    def _is_row(self, number: str) -> str:
        """Whether a row of the tile is one of the product."""
        return f"{self.top} + {number} < {self.record.dim(self.work.m)}"

    def _prepare_rows(self) -> None:
        """Makes the rows. Lanes of a warp exchange values, so that all of them have a row, or none: of two rows that a
        warp makes, the second one may be the last row once more."""
        code, language, rows = self.code, self.language, self.record.dim(self.work.m)
        element = memory_type(self.work.a_dtype)
        language.shared_variable(code, "left_rows", f"__align__(16) {element}", self.staged * _stride(self.work))
        width = self.rows.step
        first, step = ("0", 1) if width == self.lanes else (f"(int)lane / {width}", self.lanes // width)
        row, inside = f"{self.top} + made", f"made < {self.staged}"
        if width < WARP:
            row = f"min({row}, {rows} - {language.index(1)})"
        else:
            inside += f" && {self._is_row('made')}"
        head = f"for (int made = {first}; {inside}; made += {step})"
        if width < WARP and step >= self.staged:  # one row each, and no loop that a compiler sees lanes leave
            head = f"if (const int made = {first}; {inside if step > self.staged else 'true'})"
        with code.block(head):
            self._place_row(code.let(row, "row"))
            self.rows.write()
        code.emit(language.barrier())

    def _lanes_of_a_row(self) -> tuple[int, ...]:
        """All lanes where there is one row, else those of a warp; of fewer warps than many rows, half of those if they
        can."""
        if self.staged == 1:
            return (self.lanes,)
        at_once = self.staged <= HALF or self.lanes // WARP >= self.staged
        return (WARP,) if at_once else (HALF_WARP, WARP)

    def _most_words(self) -> int:
        """Registers of a lane for what rows are made of."""
        if self.staged <= HALF:
            return MOST_WORDS
        return min(MOST_WORDS_OF_MANY, REGISTERS // self.lanes - OTHER_REGISTERS)

    def _place_row(self, row: str) -> None:
        """Names the position of a row along the nest's axes."""
        outer, rest = self.nest.outer, row
        for number in reversed(range(len(outer))):
            if number == 0:
                self.row_body.axes[number] = rest
                continue
            extent = self.record.divisor(outer[number])
            self.row_body.axes[number] = self.code.let(f"{rest} % {extent}", "index")
            rest = self.code.let(f"{rest} / {extent}", "rest")

    def _take(self, place: str, value: Reg) -> None:
        dtype = self.work.a_dtype
        element = value.name if dtype is dtypes.f32 else f"(unsigned short)encode_{dtype}({value.name})"
        self.code.emit(f"left_rows[made * {_stride(self.work)} + {place}] = {element};")

    def _take_all(self, first: str, values: list[Reg]) -> None:
        words = words_of(self.work.a_dtype, [value.unrounded for value in values])
        for start in range(0, len(words), 4):
            place = f"made * {_stride(self.work)} + {first}" + f" + {start // 4 * self.piece}" * (start > 0)
            self.code.emit(f"*(Piece*)(left_rows + {place}) = Piece{{{', '.join(words[start : start + 4])}}};")

    def _a_offset(self, row: str) -> str:
        return f"min((int)(warp_row + {row}), {self.staged - 1}) * {_stride(self.work)}"

    def _left_row(self) -> str:
        row = f"(int)({self.body.axes[self.work.m_axis]} - {self.top})"
        return self.code.let(f"left_rows + {row} * {_stride(self.work)}", "left")

    def _left_piece(self, at: str) -> str:
        return f"piece_at<true>(left_rows + {at})"
