"""What becomes of the values that warps have mixed for their queries: results of attention of many queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.codegen.simt.attention import FEATURE, PLACE, AttentionWriter
from rlx.codegen.simt.language.cpp import words_of
from rlx.codegen.simt.tile_rows import CHUNK, OF_A_CHUNK, PIECE, place_of
from rlx.ir import dtype as dtypes

OF_A_WARP = 16
"""Queries."""


@dataclass(frozen=True)
class Mixed:
    """An array of what a lane has of its two rows: in so many columns of eight features, from the `first` one on, two
    neighbours of each row."""

    name: str
    columns: int
    first: str = "0"


class AttentionResults(AttentionWriter):
    """Writes results.

    of_stages   pieces of workgroup memory before those by way of which results go
    totals      names of the sums of powers of a lane's two rows
    """

    of_stages: int
    totals: list[str]

    def for_columns(self, columns: int, lines: Sequence[str]) -> None:
        """Writes lines for each `column` of so many."""
        self.code.emit("#pragma unroll")
        with self.code.block(f"for (int column = 0; column < {columns}; column++)"):
            for line in lines:
                self.code.emit(line)

    def finish(self, first: str, mixed: Mixed) -> None:
        """Divides by the sum of powers of a lane's rows, and stores. `first` is the first query of the warp."""
        work, code, body = self.work, self.code, self.body
        if work.tail is None:
            self._finish_in_pieces(first, mixed)
            return
        slot, line = work.out
        for row in range(2):
            self.add_of_neighbours(self.totals[row])
            query = code.let(f"{first} + own / 4 + {8 * row}", "row")
            with body.scope(f"if ({query} < {self.record.dim(work.queries)})"):
                part = code.let(f"{self.number(1.0)} / {self.whole(self.totals[row])}", "part")
                body.axes[PLACE] = query
                start = self.start(line, FEATURE)
                code.emit("#pragma unroll")
                with body.scope(f"for (int column = 0; column < {mixed.columns}; column++)"):
                    pair = [f"{mixed.name}[column][{2 * row + i}] * {part}" for i in range(2)]
                    self._store_pair(f"slot{slot} + {start}", f"({mixed.first} + column) * 8 + own % 4 * 2", pair)

    def _finish_in_pieces(self, first: str, mixed: Mixed) -> None:
        """The same by way of workgroup memory, a warp by itself, from where 16 bytes go at a time."""
        work, code, chunks = self.work, self.code, -(-self.work.value_features // CHUNK)
        slot, line = work.out
        code.emit(f"Piece* const made = dynamic_shared + {self.of_stages} + warp * {2 * chunks * OF_A_CHUNK};")
        for row in range(2):
            self.add_of_neighbours(self.totals[row])
            part = code.let(f"{self.number(1.0)} / {self.whole(self.totals[row])}", "part")
            (word,) = words_of(work.out_dtype, [f"{mixed.name}[column][{2 * row + i}] * {part}" for i in range(2)])
            place = place_of(f"(own / 4 + {8 * row})", f"({mixed.first} + column)", chunks)
            self.for_columns(mixed.columns, [f"((unsigned*)(made + {place}))[own % 4] = {word};"])
        code.emit("__syncwarp();")
        self.body.axes[PLACE] = self.language.index(0)
        start, step = self.start(line, FEATURE, PLACE), self.record.dim(line.coefficient(PLACE))
        count = self.record.dim(work.queries)
        code.emit("#pragma unroll")
        with code.block(f"for (int e = own; e < {OF_A_WARP * mixed.columns}; e += 32)"):
            code.emit(f"const int row = e / {mixed.columns}, piece = {mixed.first} + e % {mixed.columns};")
            with code.block(f"if ({first} + row < {count})"):
                place = f"slot{slot} + {start} + ({first} + row) * {step} + piece * {PIECE}"
                code.emit(f"put_piece((Piece*)({place}), made[{place_of('row', 'piece', chunks)}]);")

    def _store_pair(self, start: str, feature: str, pair: Sequence[str]) -> None:
        """Stores two elements that are neighbours, from a feature on."""
        place = f"{start} + {feature}"
        dtype = self.work.out_dtype
        finished = [self.finished(each, f"({feature} + {number})") for number, each in enumerate(pair)]
        low, high = (element.unrounded for element in finished)
        if dtype is dtypes.f8e4m3:
            (word,) = words_of(dtype, (low, high, low, high))
            self.code.emit(f"*(unsigned short*)({place}) = (unsigned short){word};")
        elif dtype.itemsize == 1:
            self.code.emit(f"*(unsigned short*)({place}) = (unsigned short)(({low} & 0xff) | {high} << 8);")
        elif dtype.itemsize == 2:
            (word,) = words_of(dtype, (low, high))
            self.code.emit(f"*(unsigned*)({place}) = {word};")
        else:
            self.code.emit(f"*(HalfPiece*)({place}) = HalfPiece{{{', '.join(words_of(dtype, (low, high)))}}};")
