"""Rows of 16-bit elements that lanes bring to workgroup memory in pieces of 16 bytes, as products on matrix units and
`wgmma` read them: of eight rows, 64 bytes of each are 512 neighbouring bytes, in which the pieces of a row are swapped
by its number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.codegen.simt.code import Code

PIECE = 8
"""Elements of 16 bytes."""
CHUNK = 32
"""Elements of 64 bytes, which are loaded from workgroup memory at once."""
PIECES = CHUNK // PIECE
"""Of a chunk."""
OF_A_CHUNK = 8 * PIECES
"""Pieces of eight rows."""


def place_of(row: str, piece: str, chunks: int) -> str:
    """Where a piece of a row lies among rows of so many chunks."""
    chunk = f"({row} / 8 * {chunks} + {piece} / {PIECES}) * {OF_A_CHUNK}"
    return f"{chunk} + {row} % 8 * {PIECES} + ({piece} % {PIECES} ^ {row} % 8 / 2)"


@dataclass(frozen=True)
class RowTile:
    """A tile of rows.

    name      that ends those of its variables: `row_…` and `piece_…`, what a lane brings first, and `to_…`, to where
    elements   of a row
    rows      of the tile
    begin     pieces of workgroup memory before it
    lane      the number of a lane, of so many `lanes` that bring it
    """

    name: str
    elements: int
    rows: int
    begin: int
    lane: str
    lanes: int

    @property
    def chunks(self) -> int:
        """Of a row."""
        return -(-self.elements // CHUNK)

    @property
    def size(self) -> int:
        """Pieces of the tile."""
        return self.rows // 8 * self.chunks * OF_A_CHUNK

    def declare(self, code: Code) -> None:
        """Eight lanes in a row bring a chunk of two rows: they fill all banks, and read whole lines of memory."""
        two = f"{self.lane} / {2 * PIECES}"
        code.emit(f"const int row_{self.name} = {two} / {self.chunks} * 2 + {self.lane} / {PIECES} % 2;")
        code.emit(f"const int piece_{self.name} = {two} % {self.chunks} * {PIECES} + {self.lane} % {PIECES};")
        place = place_of(f"row_{self.name}", f"piece_{self.name}", self.chunks)
        code.emit(f"const int to_{self.name} = {self.begin} + {place};")

    def bring(self, code: Code, stage: str, copy: Callable[[str, int, str], str]) -> None:
        """Asks for all of it: `copy` makes the statement for a row, by its name and how far it is behind a lane's first
        one, to a place in workgroup memory. `stage` is in front of the tile there."""
        lanes_of_two = 2 * PIECES * self.chunks
        step = 2 * (self.lanes // lanes_of_two)
        ends = [f"{self.lane} < {step // 2 * lanes_of_two}"] * (self.lanes % lanes_of_two > 0)
        ends += [f"piece_{self.name} < {self.elements // PIECE}"] * (self.elements % CHUNK > 0)
        for number in range(0, self.rows, step):
            row = f"(row_{self.name} + {number})"
            place = f"to_{self.name} + {number // 8 * self.chunks * OF_A_CHUNK}"
            if step % 8:  # rows go to other places among eight
                place = f"{self.begin} + {place_of(row, f'piece_{self.name}', self.chunks)}"
            inside = [*ends, *[f"{row} < {self.rows}"] * (number + step > self.rows)]
            statement = copy(row, number, f"dynamic_shared + {stage}{place}")
            code.emit(f"if ({' && '.join(inside)}) {statement}" if inside else statement)
