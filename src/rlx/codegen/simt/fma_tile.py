"""Contractions of f32 with many rows, in f32: tiles of both sides come to workgroup memory as in `tile_contraction.py`,
and every lane multiplies eight rows by eight columns of its own, or four.

Of 16 neighbours along k of a row, a lane reads four at a time; of columns it reads a quad at one step of k, or four
steps of one where these are neighbours. Its rows and its columns lie apart, so that neighbouring lanes read neighbours:
32 lanes are 8 along the rows and 4 along the columns. Two lanes in a row have the same columns, and the next two the
same rows: workgroup memory then gives half a warp 16 bytes each at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack

from rlx.codegen.simt.code import Binding, Shader, Slot
from rlx.codegen.simt.fma_layouts import QUAD, QUADS_DOWN, ROWS_DOWN, fma_layout_of
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.codegen.simt.team_contraction import is_aligned
from rlx.codegen.simt.team_layouts import PAD, WARP
from rlx.codegen.simt.tile_contraction import Copies, TileContraction
from rlx.codegen.simt.tile_layouts import TileLayout
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear

LEAST_K = 8
"""Elements along k that are worth bringing 16 at a time."""
PANEL = 64
"""Columns of a panel where there are several (`contraction.py`)."""
COMPONENTS = "xyzw"


def can_take(work: Contraction) -> bool:
    """Whether tiles can be made of it, if its buffers begin at multiples of 16 bytes: products of f32, rows of which
    are whole pieces of 16 bytes along k. They may be marked as `float_parts` that no matrix unit takes."""
    f32 = work.dtype is dtypes.f32 and work.a_dtype is dtypes.f32 and work.b_dtype is dtypes.f32
    if not f32 or not isinstance(work.k, int) or work.k < LEAST_K or work.k % QUAD:
        return False
    known = all(isinstance(tap, int) for tap in work.taps)
    return known and work.a.coefficient(work.k_axis) == 1 and is_aligned(work.a, work)


def takes(work: Contraction, slots: Sequence[Slot]) -> bool:
    """Whether tiles can be made of it: the right side lies in panels, or its columns are whole pieces."""
    if not can_take(work) or not (slots[work.a_slot].aligned and slots[work.b_slot].aligned):
        return False
    return _has_panels(work) if work.packed else _has_quads(work) or _has_rows(work)


def _has_panels(work: Contraction) -> bool:
    whole = work.packed == PANEL or (isinstance(work.n, int) and work.n <= work.packed)
    strides = [work.b.const, *(c for _, c in (*work.b.axes, *work.b.others))]
    known = isinstance(work.n, int) and all(dims.exact_div(c, QUAD) is not None for c in strides)
    return known and whole and work.group == 1 and work.packed % QUAD == 0


def _has_quads(work: Contraction) -> bool:
    """Whether columns that lie side by side are pieces of 16 bytes."""
    line = work.b
    strides = [line.const, *(c for n, c in line.axes if n != work.n_axis), *(c for _, c in line.others)]
    whole = dims.exact_div(work.n, QUAD) is not None and all(dims.exact_div(c, QUAD) is not None for c in strides)
    return whole and line.coefficient(work.n_axis) == 1


def _has_rows(work: Contraction) -> bool:
    """Whether columns are pieces of 16 bytes along k, as rows of the left side are."""
    return work.b.coefficient(work.k_axis) == 1 and is_aligned(work.b, work)


class FmaTile(TileContraction):
    """The shader of a contraction whose lanes multiply."""

    def __init__(
        self, work: Contraction, slots: Sequence[Slot], language: Language, rows_guess: int, layout: TileLayout
    ) -> None:
        super().__init__(work, slots, language, rows_guess, layout)
        self.along_k = not work.packed and not _has_quads(work)
        lane = tuple(
            dataclasses.replace(tile, size=size)
            for tile, size in zip(self.schedule.tiles[-2:], (layout.rows // ROWS_DOWN, layout.columns // QUADS_DOWN))
        )
        self.schedule = dataclasses.replace(self.schedule, tiles=(*self.schedule.tiles[:-2], *lane), mma=None)

    def _declare_sums(self) -> None:
        self.code.emit(f"float4 sums[{self.ring.rows // ROWS_DOWN}][{self._quads}] = {{}};")

    @property
    def _quads(self) -> int:
        """Of columns of a lane."""
        return self.ring.columns // (QUAD * QUADS_DOWN)

    # operands

    def _panel_copies(self, start: int) -> Copies:
        work = self.work
        depth = dims.mul(dims.product((*work.taps, work.k)), work.packed)
        panel = f"column / {work.packed} * {self.record.dim(depth)} + column % {work.packed}"
        ends = -(-_static(work.n) // QUAD) * QUAD
        tap = f" + now / {-(-_static(work.k) // self.ring.depth)} * {_static(work.k) * work.packed}"
        return self._quad_copies(start, panel, str(work.packed), ends, tap if work.taps else "")

    def _right_copies(self, start: int) -> Copies:
        if self.along_k:
            return super()._right_copies(start)
        step = self.record.dim(self.work.b.coefficient(self.work.k_axis))
        return self._quad_copies(start, "column", step, self.work.n, None)

    def _quad_copies(self, start: int, column: str, step: str, end: Dim, tap: str | None) -> Copies:
        """Those of the right side, whose rows are steps along k: quads of columns, up to the column `end`. `column` is
        where one begins, `step` how far apart steps are, and `tap` what taps add: None for what they add to columns
        that lie side by side."""
        work, code, layout = self.work, self.code, self.ring
        quads = layout.tile[1] // QUAD
        count, at_once = layout.side_pieces[1] // layout.lanes, layout.lanes // quads
        code.emit(f"const int from_step = (int)lane / {quads};")
        code.emit(f"const auto column = {self.left} + (int)lane % {quads} * {QUAD};")
        first = self.body.fresh_offset(self._outside(_without(work.b, work.n_axis)))
        begin = code.let(f"slot{work.b_slot} + {first} + {column} + from_step * {step}", "right")
        is_ragged = dims.exact_div(end, layout.tile[1]) is None
        guard = code.let(f"column < {self.record.dim(end)}", "there") if is_ragged else ""
        k = _static(work.k)

        def write(stage: str) -> None:
            of_tap = tap if tap is not None else f" + {self._tap_offset(work.b)}" if work.taps else ""
            first = code.let(f"{begin} + (along * {step}{of_tap})", "first")
            for number in range(count):
                place = f"{stage} + {start + number * layout.lanes} + lane"
                source = f"{first} + {number * at_once} * {step}"
                inside = f"from_step + along + {number * at_once} < {k}" if k % layout.depth else ""
                self._copy(place, source, guard, inside)

        return write

    # products

    def _name_matrices(self) -> None:
        """Where in a stage a lane's first row is, and its first column, or quad of columns."""
        code, layout = self.code, self.ring
        code.emit("const int lane_row = own % 2 + own / 8 * 2, lane_quad = own / 2 % 4;")
        row = f"warp_row / 8 * {layout.chunks * WARP} + lane_row * 4 + lane_row / 2"
        code.emit(f"const int left_at = first_piece + {row};")
        if self.along_k:
            column = f"warp_column / 8 * {layout.chunks * WARP} + lane_quad * 4 + lane_quad / 2"
            code.emit(f"const int right_at = {layout.side_pieces[0]} + first_piece + {column};")
            return
        step = f"slice * {layout.slice * layout.chunk * layout.tile[1] // QUAD}"
        code.emit(f"const int right_at = {layout.side_pieces[0]} + {step} + warp_column / {QUAD} + lane_quad;")

    def _multiply_stage(self) -> None:
        """All products of a stage: four steps of k of a lane's rows at a time."""
        code, layout = self.code, self.ring
        rows = layout.rows // ROWS_DOWN
        with ExitStack() as loops:
            self._unrolled(loops, "chunk", layout.slice)
            self._unrolled(loops, "quad", layout.chunk // QUAD)
            code.emit(f"float4 rows[{rows}];")
            with ExitStack() as inner:
                self._unrolled(inner, "i", rows)
                place = f"from + (left_at ^ quad) + (i * {layout.chunks} + chunk) * {WARP}"
                code.emit(f"rows[i] = *(const float4*)({place});")
            if self.along_k:
                self._multiply_columns(rows)
            else:
                self._multiply_quads(rows)

    def _multiply_quads(self, rows: int) -> None:
        """With quads of columns at each of four steps."""
        code, layout, quads = self.code, self.ring, self._quads
        for number, component in enumerate(COMPONENTS):
            with code.block(""), ExitStack() as inner:
                code.emit(f"float4 columns[{quads}];")
                step = f"(chunk * {layout.chunk} + quad * {QUAD} + {number}) * {layout.tile[1] // QUAD}"
                for j in range(quads):
                    code.emit(f"columns[{j}] = *(const float4*)(from + right_at + {step} + {j * QUADS_DOWN});")
                self._unrolled(inner, "i", rows)
                self._unrolled(inner, "j", quads)
                code.emit(f"sums[i][j] = quad_fma(rows[i].{component}, columns[j], sums[i][j]);")

    def _multiply_columns(self, rows: int) -> None:
        """With four steps of one column after the other."""
        code, stride = self.code, self.ring.chunks * WARP
        for j in range(self._quads):
            for number, component in enumerate(COMPONENTS):
                with code.block(""), ExitStack() as inner:
                    panel, within = 2 * j + number // 2, number % 2
                    place = f"(right_at ^ quad ^ {2 * within}) + chunk * {WARP} + {panel * stride + within * 16}"
                    code.emit(f"const float4 column = *(const float4*)(from + {place});")
                    self._unrolled(inner, "i", rows)
                    total = f"sums[i][{j}].{component}"
                    for each in COMPONENTS:
                        code.emit(f"{total} = fmaf(rows[i].{each}, column.{each}, {total});")

    # results

    def _put_part(self, part: int, adds: bool) -> None:
        code, layout = self.code, self.ring
        rows, pitch = layout.rows // layout.parts // ROWS_DOWN, layout.tile[1] + PAD
        with ExitStack() as loops:
            self._unrolled(loops, "i", rows)
            self._unrolled(loops, "j", self._quads)
            row = f"part_row + i * {ROWS_DOWN} + lane_row"
            total = f"sums[{part * rows} + i][j]"
            begin = f"shared_sums + ({row}) * {pitch} + warp_column + j * {QUAD * QUADS_DOWN}"
            if self.along_k:
                for number, component in enumerate(COMPONENTS):
                    place = f"({begin})[{number * QUADS_DOWN} + lane_quad]"
                    code.emit(f"{place} {'+' * adds}= {total}.{component};")
                return
            code.emit(f"float4* const place = (float4*)({begin} + lane_quad * {QUAD});")
            code.emit(f"*place = *place + {total};" if adds else f"*place = {total};")


def _without(line: Linear, axis: int) -> Linear:
    return Linear(line.const, tuple((n, c) for n, c in line.axes if n != axis), line.others)


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)  # asked by `takes`
    return dim


def layout_of(work: Contraction, slots: Sequence[Slot], target: Target) -> TileLayout | None:
    """The layout of tiles of a contraction; None where other ways take it."""
    return fma_layout_of(work, target.rows, target.warpgroups) if takes(work, slots) else None


def render(
    work: Contraction, slots: Sequence[Slot], bindings: Sequence[Binding], name: str, target: Target,
    language: Language, chosen: TileLayout,
) -> Shader:  # fmt: skip
    """The shader of a contraction that has a layout."""
    return FmaTile(dataclasses.replace(work, float_parts=False), slots, language, target.rows, chosen).shader(
        bindings, name
    )
