"""Sums of contractions of few rows whose right side has few bits: a lane loads 16 bytes of a column, four lanes 64 that
follow one another, and unpacks them in registers, so that only bytes come from memory.

Where the scale has the dtype of the left side and zeros are integers, both halves of a word become pairs of 16 bits at
once, exactly up to the product with the scale; the left side is paired alike. Other weights are unpacked in f32 and
rounded. Matrix units multiply floats of 16 bits; of f32 each lane adds the products of its own column.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.team_layouts import HALF, HALVES, PANEL
from rlx.ir import dtype as dtypes
from rlx.kernel.ir.blocks import PANEL_BYTES, Blocks
from rlx.kernel.ir.contraction import Contraction

if TYPE_CHECKING:
    from rlx.codegen.simt.team_contraction import TeamContraction

PIECE_BITS, WORD_BITS = 128, 32


def takes(work: Contraction) -> bool:
    """Whether a workgroup can compute it: panels of blocks of whole words, and rows that are contiguous along k and as
    long as 16 bytes of these."""
    blocks = work.blocks
    if blocks is None or not work.packed or not isinstance(work.n, int) or not isinstance(work.k, int):
        return False
    piece, word = PIECE_BITS // blocks.bits, WORD_BITS // blocks.bits
    shares = blocks.block % piece == 0 or (piece % blocks.block == 0 and blocks.block % word == 0)
    narrow = work.a_dtype in HALVES and blocks.scale in (work.a_dtype, dtypes.f32)
    fits = narrow or (work.a_dtype is dtypes.f32 and blocks.scale is dtypes.f32)
    return shares and fits and work.k % piece == 0 and work.n > 0 and work.a.coefficient(work.k_axis) == 1


class BlockSums:
    """The part of a kernel that adds up."""

    def __init__(self, writer: TeamContraction) -> None:
        self.writer, self.work, self.code = writer, writer.work, writer.code
        blocks = self.work.blocks
        assert blocks is not None
        self.blocks: Blocks = blocks
        self.panels = writer.layout.columns // PANEL
        self.piece = PIECE_BITS // blocks.bits
        """Elements of 16 bytes."""
        self.word = WORD_BITS // blocks.bits
        self.steps = max(1, self.piece // blocks.block)
        """Scales of a piece."""
        self.dtype = self.work.a_dtype
        paired = blocks.scale is self.dtype and (blocks.zero_slot == Blocks.NO_ZERO or blocks.whole)
        self.paired = paired and (self.dtype is dtypes.f16 or (self.dtype is dtypes.bf16 and blocks.bits < 8))
        """Whether halves of words are unpacked as pairs of 16 bits."""

    # scales

    def hold(self) -> None:
        """Loads the scales of all steps of a warp, before it waits for earlier kernels."""
        code, held = self.code, self.writer.held
        for name, _ in self._parameters():
            code.emit(f"{self._type} {name}_held[{held}][{self.panels}][{self.steps}];")
        code.emit("#pragma unroll")
        with code.block(f"for (int step = 0; step < {held}; step++)"):
            self._name_place(f"part + step * {self.writer.layout.warps[2]}")
            for name, slot in self._parameters():
                for panel in range(self.panels):
                    for number in range(self.steps):
                        target = f"{name}_held[step][{panel}][{number}]"
                        code.emit(f"{target} = {self._parameter(slot, panel, number)};")

    def _parameters(self) -> list[tuple[str, int]]:
        return list(zip(("scale", "zero"), self.blocks.slots()))

    @property
    def _type(self) -> str:
        return "float" if self.blocks.scale is dtypes.f32 else "unsigned"

    def _name_place(self, chunk: str) -> None:
        """Where a lane's piece begins along k, and whether it is there."""
        self.code.emit(f"const int along = ({chunk}) * {self.writer.chunk} + own % 4 * {self.piece};")
        self.code.emit(f"const bool inside = along < {self.work.k};")

    def _panel(self, number: int) -> str:
        last = -(-_static(self.work.n) // PANEL) - 1
        return f"min((int)({self.writer.left} / {PANEL}) + {number}, {last})"

    def _parameter(self, slot: int, panel: int, number: int) -> str:
        """A scale or zero, 0 behind the end of k."""
        block = f"along / {self.blocks.block} + {number}"
        place = f"({self._panel(panel)} * {self.blocks.count} + {block}) * {PANEL} + own / 4"
        return f"inside ? element_ahead(slot{slot} + {place}) : 0"

    def _unpacking(self, name: str, panel: int, number: int) -> str:
        """A scale or zero in the form that words are unpacked by."""
        held = f"{name}_held[step][{panel}][{number}]"
        bits = held if self.writer.held else self._parameter(dict(self._parameters())[name], panel, number)
        if not self.paired:
            number_of = bits if self.blocks.scale is dtypes.f32 else f"decode_{self.blocks.scale}({bits})"
            return self.code.let(number_of, name)
        word = self.code.let(f"twice({bits})", name)
        if name == "zero" and self.dtype is dtypes.f16:
            return self.code.let(f"less_f16({word}, 0xe400e400u)", name)  # 1024 more
        return word

    def _zero(self, panel: int, number: int) -> str:
        if self.blocks.zero_slot != Blocks.NO_ZERO:
            return self._unpacking("zero", panel, number)
        half = 1 << (self.blocks.bits - 1)
        if not self.paired:
            return f"{float(half)}f"
        if self.dtype is dtypes.f16:
            return f"{0x6400 | half:#x}u * 0x10001u"
        return f"{_bf16_of(half):#x}u * 0x10001u"

    # sums

    def write(self) -> None:
        """Adds up all of a warp's share of k, and puts the sums into workgroup memory."""
        writer, code, layout = self.writer, self.code, self.writer.layout
        if self.dtype is dtypes.f32:
            rows = [code.let(writer._a_offset(str(row)), "a") for row in range(writer.kept)]
            code.emit(f"float sums[{self.panels}][{writer.kept}] = {{}};")
        else:
            halves = 1 if writer.most_rows <= HALF else 2 * (layout.rows // 16)
            rows = [code.let(at, "a") for at in writer._rows(2 * (layout.rows // 16), "own / 4")][:halves]
            code.emit(f"float sums[{layout.rows // 16}][{self.panels}][4] = {{}};")
        if writer.held:
            code.emit("wait_copies<0>();")
        columns = [] if writer.held else [code.let(writer._column(j), "b") for j in range(self.panels)]
        with ExitStack() as loops:
            writer._steps(loops, writer.most_rows <= HALF)
            self._name_place("chunk")
            if writer.held:
                right = [code.let(writer._held(j, "step"), "right") for j in range(self.panels)]
            else:
                each = (f"{at} + chunk * {PANEL * PANEL_BYTES} + own * 16" for at in columns)
                there = f"chunk < {self.blocks.chunks}"
                right = [code.let(f"{there} ? piece_at<true>(slot{self.work.b_slot} + {at}) : Piece{{}}", "right")
                         for at in each]  # fmt: skip
            numbers = range(self.steps)
            steps = [[self._unpacking("scale", j, number) for number in numbers] for j in range(self.panels)]
            zeros = [[self._zero(j, number) for number in numbers] for j in range(self.panels)]
            for word in range(4):
                number = word * self.word // self.blocks.block if self.steps > 1 else 0
                self._multiply(word, right, [each[number] for each in zeros], [each[number] for each in steps], rows)
        writer._declare()
        self._put()

    def _multiply(self, word: int, right: list[str], zeros: list[str], steps: list[str], rows: list[str]) -> None:
        """The products with a word of each panel."""
        code, bits = self.code, self.blocks.bits
        added = str(self.blocks.added).lower()
        is_f32 = self.dtype is dtypes.f32
        weights = []
        for piece, zero, step in zip(right, zeros, steps):
            name = code.fresh("weights")
            code.emit(f"float {name}[{self.word}];" if is_f32 else f"unsigned {name}[{self.word // 2}];")
            kind = "unpack" if is_f32 else f"{'unpack' if self.paired else 'round'}_{self.dtype}"
            mode = f"{bits}" if self.paired else f"{bits}, {added}"
            code.emit(f"{kind}<{mode}>({name}, {piece}.{'xyzw'[word]}, {zero}, {step});")
            weights.append(name)
        if is_f32:
            self._add(word, weights, rows)
        else:
            self._multiply_pairs(word, weights, rows)

    def _left(self, at: str, first: int) -> str:
        """16 bytes of a row from an element of the lane's piece on, zeros behind the end."""
        return f"inside ? {self.writer._left_piece(f'{at} + along + {first}')} : Piece{{}}"

    def _add(self, word: int, weights: list[str], rows: list[str]) -> None:
        for row, at in enumerate(rows):
            for first in range(0, self.word, 4):
                left = self.code.let(self._left(at, word * self.word + first), "left")
                for panel, name in enumerate(weights):
                    self.code.emit(f"add_products(sums[{panel}][{row}], {left}, {name} + {first});")

    def _multiply_pairs(self, word: int, weights: list[str], rows: list[str]) -> None:
        """Two pairs of each row and column at a time."""
        code = self.code
        left = [self._words(at, word) for at in rows]
        tiles = max(1, len(rows) // 2)
        for pair in range(0, self.word // 2, 2):
            for tile in range(tiles):
                high = self._pairs(left[2 * tile], pair)
                low = self._pairs(left[2 * tile + 1], pair) if len(rows) > 1 else ("0u", "0u")
                operands = ", ".join((high[0], low[0], high[1], low[1]))
                for panel, name in enumerate(weights):
                    right = f"{name}[{pair}], {name}[{pair + 1}]"
                    code.emit(f"mma_{self.dtype}(sums[{tile}][{panel}], {operands}, {right});")

    def _words(self, at: str, word: int) -> list[str]:
        """The words of a row, two elements each, that meet a word of the right side."""
        first, count = word * self.word, self.word // 2
        start = first // 8 * 8
        pieces = [self.code.let(self._left(at, place), "left") for place in range(start, first + self.word, 8)]
        words = [f"{piece}.{part}" for piece in pieces for part in "xyzw"]
        return words[(first - start) // 2 :][:count]

    def _pairs(self, words: list[str], pair: int) -> tuple[str, str]:
        """What of a row meets a pair, and the next one."""
        if not self.paired:
            return words[pair], words[pair + 1]
        low, high = words[pair // 2], words[pair // 2 + self.word // 4]
        first, second = (self.code.let(f"paired<{half}>({low}, {high})", "left") for half in range(2))
        return first, second

    def _put(self) -> None:
        """The sums of a warp, into workgroup memory."""
        writer, code = self.writer, self.code
        if self.dtype is not dtypes.f32:
            writer._put_sums()
            return
        pitch = writer.pitch
        for panel in range(self.panels):
            for row in range(writer.kept):
                held = f"sums[{panel}][{row}]"
                for mask in ("1", "2"):  # four lanes have shares of it
                    other = writer.language.from_neighbour(Reg(held, dtypes.f32, False), mask)
                    held = code.let(f"{held} + {other}", "sum")
                place = f"(part * {writer.kept} + {row}) * {pitch} + {PANEL * panel} + own / 4"
                code.emit(f"if (own % 4 == 0) shared_sums[{place}] = {held};")


def _bf16_of(number: int) -> int:
    """The bits of a power of two."""
    return (127 + number.bit_length() - 1) << 7


def _static(extent: object) -> int:
    assert isinstance(extent, int)  # asked by `takes`
    return extent
