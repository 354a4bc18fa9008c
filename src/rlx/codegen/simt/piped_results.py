"""How eight warps lay out tiles whose operands others bring, and what becomes of their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.codegen.simt.team_layouts import PAD, WARP
from rlx.codegen.simt.tile_layouts import TileLayout
from rlx.codegen.simt.tile_results import WIDTH, TileResults
from rlx.ir import dim as dims
from rlx.ir.expr import Expr

READERS = 2
"""Groups of four warps that multiply."""
ROWS = 16
"""Of a warp's results that go through its own part of workgroup memory at once,"""
COLUMNS = 64
"""and columns."""
ROWS_OF_A_LANE = 4
"""In that, of eight columns."""
MOST_EARLY = 80
"""Words that lanes have registers for beside sums: of what results are made of."""
COUNTER_BYTES = 8


@dataclass(frozen=True)
class PipedLayout(TileLayout):
    """How eight warps compute a tile, with others that bring operands.

    waits   whether sums wait in 16 bits for others that finish results while the next tile's products run
    """

    waits: bool = False

    @property
    def counters(self) -> int:
        """One for each stage that is full, one for each that is empty, and two for sums that wait."""
        return 2 * self.stages + 2

    @property
    def in_halves(self) -> bool:
        """Whether sums are put to workgroup memory in 16 bits, all of a tile at once."""
        return self.waits or self.paired

    @property
    def put_bytes(self) -> int:
        """Of a warp's results that go through workgroup memory at once."""
        return 2 * ROWS * (self.columns + PAD) if self.in_halves else 4 * ROWS * (COLUMNS + PAD)

    @property
    def units(self) -> int:
        """In how many units results that wait are finished: each of a lane's eight neighbours of a row."""
        return ROWS * self.results[1] // WIDTH // WARP

    @property
    def sums_bytes(self) -> int:
        return self.put_bytes * 4 * READERS

    @property
    def shared_bytes(self) -> int:
        return self.ring_bytes + self.sums_bytes + COUNTER_BYTES * self.counters


@dataclass
class Part:
    """Results of a lane: eight neighbours in each of some rows, or one, and pieces of what they are made of, by row.

    column   its first one in the warp's part of workgroup memory, and `at_n` in the results
    rows     in workgroup memory, and `at_m` in the results
    """

    column: str
    at_n: str
    rows: Sequence[str]
    at_m: Sequence[str]
    asked: Sequence[dict[Expr, list[str]]] = ()


class SideBySide(TileResults):
    """Writes what the epilogue makes of sums of a warp: values of all rows are made side by side, as nothing but stores
    asks whether there is such a row. What is behind the last one is made of what that is made of.

    warp_row   the warp's first row of the tile
    """

    layout: PipedLayout
    warp_row = "warp_row"

    def _finish(self, place: str, at: str, pieces: dict[Expr, list[str]]) -> None:
        work, axes = self.work, self.body.axes
        axes[work.m_axis] = at
        if dims.exact_div(work.m, self.layout.tile[0]) is None:
            last = f"{self.body.record.dim(work.m)} - {self.language.index(1)}"
            axes[work.m_axis] = self.code.let(f"min({at}, {last})", "near")
        values = self._all_values(place, pieces)
        axes[work.m_axis] = at
        with self._guard(work.m, self.layout.tile[0], at):
            for stage, of_stage in zip(self.stages, zip(*values)):
                self._store(stage, of_stage)


class WarpResults(SideBySide):
    """Of sums that a warp has put to its own part of workgroup memory, 16 rows and 64 columns at a time."""

    @property
    def is_early(self) -> bool:
        """Whether lanes have registers for all that results are made of, before there are sums."""
        moving = [node for node in self.loads if self._moves_along_m(node)]
        words = sum(self._words(node) * (ROWS_OF_A_LANE if node in moving else 1) for node in self.loads)
        whole = dims.exact_div(self.work.n, self.layout.tile[1]) is not None
        return bool(self.loads) and whole and words * (self.layout.columns // COLUMNS) <= MOST_EARLY

    def part(self, first_column: str, number: int) -> Part:
        """Those of a lane from a column of the tile on. Of single elements there are several numbers."""
        code, lanes = self.code, min(COLUMNS // self.width, WARP)
        column = code.let(f"{number * lanes * self.width} + own % {lanes} * {self.width}", "column")
        at_n = code.let(f"{self.left} + ({first_column} + {column})", "at")
        step = WARP // lanes
        rows = [code.let(f"own / {lanes} + {row}", "row") for row in range(0, ROWS, step)]
        return Part(column, at_n, rows, [code.let(f"{self.top} + ({self.warp_row} + {row})", "at") for row in rows])

    def ask(self, part: Part, now: bool = False) -> Part:
        """Asks for what results are made of: `now`, or where compilers like."""
        self.at_n = part.at_n
        self.near = {node: self._pieces(node, now) for node in self.loads if not self._moves_along_m(node)}
        part.asked = [self._ask(row, now) for row in part.at_m]
        return part

    @property
    def parts(self) -> int:
        """Of a lane, for columns that go through workgroup memory at once."""
        return max(1, COLUMNS // self.width // WARP)

    def write_part(self, part: Part) -> None:
        """What a lane has of one."""
        work = self.work
        self.at_n = part.at_n
        with self._guard(work.n, self.layout.tile[1], self.at_n):
            asked = part.asked or self.ask(part).asked
            for row, at, pieces in zip(part.rows, part.at_m, asked):
                self._finish(f"{row} * {COLUMNS + PAD} + {part.column}", at, pieces)


class WaitingResults(SideBySide):
    """The same of sums that wait in 16 bits, in any order: all columns of 16 rows."""

    def write_unit(self, unit: str) -> None:
        """Those of a lane that have a number."""
        code, groups = self.code, self.layout.results[1] // WIDTH
        item = code.let(f"{unit} * {WARP} + own", "item")
        row, column = code.let(f"{item} / {groups}", "row"), code.let(f"{item} % {groups} * {WIDTH}", "column")
        self.at_n = code.let(f"{self.left} + {column}", "at")
        at = code.let(f"{self.top} + ({self.warp_row} + {row})", "at")
        with self._guard(self.work.n, self.layout.results[1], self.at_n):
            self.near = {node: self._pieces(node) for node in self.loads if not self._moves_along_m(node)}
            self._finish(f"{row} * {self.layout.columns + PAD} + {column}", at, self._ask(at))

    def _sums_at(self, place: str) -> list[str]:
        piece = self.code.let(f"*(const Piece*)(waiting + {place})", "piece")
        decode = f"decode_{self.work.dtype}"
        halves = ("& 0xffffu", ">> 16")
        return [self.code.let(f"{decode}({piece}.{word} {half})") for word in "xyzw" for half in halves]

    def _rounded(self, total: str) -> str:
        return total  # it was when it was put there
