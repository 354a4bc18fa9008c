"""Contractions of 16-bit floats whose warps multiply in fours, with tiles that the copy engine brings, asked by one
lane of theirs.

Where a multiprocessor has four warps, each scheduler has one, which issues an instruction in four clocks: copies by all
lanes, with their places, took as long as everything else in products of a hundred rows. A counter for each stage tells
when it is full. As far as the ring has stages, all of a sum's operands are asked for at once, weights before the kernel
before has ended; behind that a stage is asked for again when all warps have used it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from rlx.codegen.simt import mapped_contraction, tile_contraction
from rlx.codegen.simt.code import Binding, Shader, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.codegen.simt.mapped_contraction import LINE, LINE_PIECES, MappedContraction
from rlx.codegen.simt.team_layouts import CHUNK_BYTES, PANEL
from rlx.codegen.simt.tile_layouts import PIECE_BYTES, SHARED_BYTES, TileLayout
from rlx.ir.dim import Dim
from rlx.kernel.ir.contraction import Contraction

COUNTER_BYTES = 8
PANEL_PIECES = PANEL * CHUNK_BYTES // PIECE_BYTES


class AskedContraction(MappedContraction):
    """The shader of a contraction whose operands one lane asks for."""

    def __init__(
        self, work: Contraction, slots: Sequence[Slot], language: Language, rows_guess: int, layout: TileLayout
    ) -> None:
        super().__init__(work, slots, language, rows_guess, layout)
        self.code.dynamic_shared = _shared_bytes(layout)
        self.fewer = (work.m, work.n)  # the copy engine takes numbers of 32 bits

    def _sums(self) -> None:
        """All products of the workgroup: those of a stage end when those of the next one follow them."""
        code, layout = self.code, self.ring
        count = -(-_static(self.work.k) // LINE)
        steps, first = self._name_steps(count)
        most = -(-count // layout.splits)
        self._set_counters()
        left, right = self._left_tiles(), self._right_tiles()
        self._ask_first(left, right, steps, first, most)
        self.results.ask_early()
        self._name_matrices()
        again = most > layout.stages
        code.emit("int stage = 0, parity = 0;")
        code.emit("#pragma unroll 1")
        with code.block(f"for (int step = 0; step < {steps}; step++)"):
            code.emit("await_phase(full + stage, parity);")
            code.emit(f"const int at = stage * {sum(layout.side_pieces)};")
            self._multiply_together()
            code.emit("await_products<1>();")
            if again:
                self._ask_again(left, right, steps, first)
                code.emit(f"if (++stage == {layout.stages}) stage = 0, parity ^= 1;")
            else:
                code.emit("stage++;")
        code.emit(f"await_products<0>(); {self._hold()}")

    def _set_counters(self) -> None:
        code, stages = self.code, self.ring.stages
        place = f"dynamic_shared + {_counters_at(self.ring)}"
        code.emit(f"unsigned long long* const full = (unsigned long long*)({place});")
        with code.block("if (lane == 0)"):
            with code.block(f"for (int stage = 0; stage < {stages}; stage++)"):
                code.emit("count_arrivals(full + stage, 1);")
            code.emit("show_to_warpgroups();")

    def _ask_first(
        self, left: Callable[[], None], right: Callable[[], None], steps: str, first: str, most: int
    ) -> None:  # fmt: skip
        """Asks for the operands of the first stages: for weights while the kernel before still runs, which made none of
        them. All lanes see the counters behind this."""
        code, layout = self.code, self.ring
        nbytes = sum(layout.side_pieces) * PIECE_BYTES
        early = f"{layout.stages}" if most > layout.stages else steps

        def each(*sides: Callable[[], None], counts: bool) -> None:
            code.emit("#pragma unroll 1")
            with code.block(f"for (int ahead = 0; ahead < {early}; ahead++)"):
                code.emit(f"const int now = {first}ahead;")
                self._name_stage("ahead")
                if counts:
                    code.emit(f"arrive_with_bytes(counter, {nbytes});")
                for side in sides:
                    side()

        with code.block("if (lane == 0)"):
            if code.follows:
                each(right, counts=True)
                code.emit("follow();")
                each(left, counts=False)
            else:
                each(right, left, counts=True)
        if code.follows:
            code.emit("else follow();")
        code.emit(self.language.barrier())

    def _name_stage(self, stage: str) -> None:
        self.code.emit(f"Piece* const stage = dynamic_shared + {stage} * {sum(self.ring.side_pieces)};")
        self.code.emit(f"unsigned long long* const counter = full + {stage};")

    def _ask_again(self, left: Callable[[], None], right: Callable[[], None], steps: str, first: str) -> None:
        """Asks for operands in the place of those of the step before, which all warps have used."""
        code, stages = self.code, self.ring.stages
        with code.block(f"if (step > 0 && step - 1 + {stages} < {steps})"):
            code.emit(self.language.barrier())
            with code.block("if (lane == 0)"):
                code.emit(f"const int now = {first}step + {stages - 1}, used = (stage + {stages - 1}) % {stages};")
                self._name_stage("used")
                code.emit(f"arrive_with_bytes(counter, {sum(self.ring.side_pieces) * PIECE_BYTES});")
                right()
                left()

    # products

    def _name_matrices(self) -> None:
        """Where in the first stage the matrices of four warps begin: a slice of both sides along k."""
        code, layout = self.code, self.ring
        rows = f"warp / 4 % {layout.warps[0] // 4} * {layout.group * layout.rows * LINE_PIECES}"
        pieces = layout.slice * LINE_PIECES // layout.chunks
        code.emit(f"const unsigned long long left_at = lines_at(dynamic_shared + {rows} + slice * {pieces});")
        right = f"dynamic_shared + {layout.side_pieces[0]} + "
        if self.work.packed:
            of_slice = layout.slice * layout.tile[1] // PANEL * PANEL_PIECES
            right += f"warp_column / {PANEL} * {PANEL_PIECES} + slice * {of_slice}"
            code.emit(f"const unsigned long long right_at = matrix_at({right}, {PANEL * CHUNK_BYTES});")
        else:
            right += f"warp_column * {LINE_PIECES} + slice * {pieces}"
            code.emit(f"const unsigned long long right_at = lines_at({right});")

    def _multiply_together(self) -> None:
        """All products of a stage."""
        code, layout = self.code, self.ring
        of_chunk = layout.tile[1] // PANEL * PANEL_PIECES
        code.emit(f"{self._hold()} begin_products();")
        with ExitStack() as loops:
            self._unrolled(loops, "k", 2 * layout.slice)
            self._unrolled(loops, "i", layout.rows // 16)
            left = f"matrix_behind(left_at, at + i * {64 * LINE_PIECES} + k * 2)"
            place = f"k / 2 * {of_chunk} + k % 2 * 2" if self.work.packed else "k * 2"
            code.emit(f"{self.product}(sums[i], {left}, matrix_behind(right_at, at + {place}));")
        code.emit("commit_products();")

    def _of_pair(self, number: int) -> str:
        """The other one in every other panel."""
        return f"({number} ^ j % 2)" if self.work.packed else str(number)


def _counters_at(layout: TileLayout) -> int:
    """Pieces of workgroup memory before the counters."""
    return -(-layout.shared_bytes // PIECE_BYTES)


def _shared_bytes(layout: TileLayout) -> int:
    return _counters_at(layout) * PIECE_BYTES + layout.stages * COUNTER_BYTES


def takes(work: Contraction, layout: TileLayout, language: Language) -> bool:
    """Whether the copy engine can bring the operands of a layout in lines of 128 bytes."""
    fits = layout.together and layout.depth == LINE and _shared_bytes(layout) <= SHARED_BYTES
    return fits and mapped_contraction.takes(work, language)


def render(
    work: Contraction, slots: Sequence[Slot], bindings: Sequence[Binding], name: str, target: Target, language: Language
) -> Shader:
    """The shader of a contraction that `team_contraction.py` takes: of this form where it can be."""
    layout = tile_contraction.layout_of(work, slots, target)
    if layout is None or not takes(work, layout, language):
        return tile_contraction.render(work, slots, bindings, name, target, language)
    return AskedContraction(work, slots, language, target.rows, layout).shader(bindings, name)


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)  # asked by `takes`
    return dim
