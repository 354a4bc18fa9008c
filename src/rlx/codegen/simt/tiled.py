"""The products of many results, in tiles that a workgroup brings to its memory: lanes have EDGE x EDGE results each,
and read what they share from there. The right sides are packed weights.

A lane's rows and columns are quads that lie half a tile apart, so that neighbouring lanes read neighbouring quads.
"""

from __future__ import annotations

from rlx.codegen.simt.code import WORKGROUP
from rlx.codegen.simt.contraction import COLUMNS, Blocked
from rlx.kernel.ir.contraction import Contraction

EDGE = 8
TILE = 64
"""Rows and columns of a tile."""
QUADS = TILE // COLUMNS
DEPTH = 16
"""Steps of k that are brought at once."""
PITCH = QUADS + 1
"""Quads from one step of k to the next in a tile of a, so that lanes which write to one place do not wait."""
SHARED = "shared_tiles"
ALL_QUADS = TILE * QUADS
"""Of workgroup memory: the results of a tile, in the place of what they were made of."""


def takes(work: Contraction) -> bool:
    """Whether lanes can find what they bring: elements of a that lie at steady distances, and panels."""
    return bool(work.packed) and not work.a.others and not work.bounds


class Tile:
    """One tile of a contraction that is being written."""

    def __init__(self, blocked: Blocked, first_row: str, first_quad: str, last_quad: str) -> None:
        self.blocked = blocked
        self.code, self.work, self.record = blocked.code, blocked.work, blocked.record
        self.language, self.index = blocked.language, blocked.language.index
        self.first_row = first_row
        lane, index = self.language.lane_index(), self.index
        self.language.shared_variable(self.code, SHARED, self.language.quad_type, ALL_QUADS)
        self.step = self.code.let(f"{lane} % {index(DEPTH)}", "step")
        self.part = self.code.let(f"{lane} / {index(DEPTH)}", "part")
        self.across = self.code.let(f"{lane} % {index(EDGE)}", "across")
        self.down = self.code.let(f"{lane} / {index(EDGE)}", "down")
        own = f"min({first_quad} + {lane} % {index(QUADS)}, {last_quad})"
        self.column = self.code.let(f"{own} * {index(COLUMNS)}", "column")

    def write(self) -> None:
        """Leaves the results in workgroup memory, row by row. Lanes that brought nothing wait there too."""
        for row in range(EDGE):
            for half in range(2):
                self.code.emit(self.language.mutable(f"tile{row}_{half}", self.language.quad()))
        a = [self.blocked.a_offset(self.first_row)]
        self.blocked.sum_with(self.steps, a, self.blocked.b_offsets(self.column))
        self.code.emit(self.language.barrier())
        for row in range(EDGE):
            for half in range(2):
                place = f"{self._row(row)} * {self.index(QUADS)} + {self.across} + {self.index(half * QUADS // 2)}"
                self.code.emit(f"{SHARED}[{place}] = tile{row}_{half};")

    def _row(self, number: int) -> str:
        """A lane's row in the tile, by its number."""
        quad, within = divmod(number, COLUMNS)
        return f"({self.down} * {self.index(COLUMNS)} + {self.index(quad * TILE // 2 + within)})"

    def steps(self, a: list[str], b: list[str]) -> None:
        """Brings and multiplies, so many steps of k at once."""
        code, language, extent = self.code, self.language, self.record.dim(self.work.k)
        with code.block(language.loop("start", self.index(0), extent, DEPTH)):
            code.emit(language.barrier())
            self._bring_a(a[0], extent)
            self._bring_b(b[0], extent)
            code.emit(language.barrier())
            language.unroll(code, DEPTH)
            with code.block(language.loop("k", self.index(0), self.index(DEPTH))):
                self._multiply()

    def _bring_a(self, at: str, extent: str) -> None:
        """Quads of four rows at one step; zeros behind the last row and the last step."""
        code, language, index, work = self.code, self.language, self.index, self.work
        down = self.record.dim(work.a.coefficient(work.m_axis))
        along = self.record.dim(work.a.coefficient(work.k_axis))
        first = code.let(f"{at} + (start + {self.step}) * {along}", "at")
        inside_k = code.let(f"start + {self.step} < {extent}", "inside")
        for each in range(QUADS * DEPTH // WORKGROUP):
            quad = code.let(f"{self.part} + {index(each * WORKGROUP // DEPTH)}", "quad")
            values = []
            for within in range(COLUMNS):
                row = code.let(f"{quad} * {index(COLUMNS)} + {index(within)}", "row")
                inside = code.let(f"{inside_k} && {self.first_row} + {row} < {self.record.dim(work.m)}", "inside")
                values.append(self.blocked.load_within(work.a_slot, f"{first} + {row} * {down}", inside))
            code.emit(f"{SHARED}[{self.step} * {index(PITCH)} + {quad}] = {language.quad(values)};")

    def _bring_b(self, at: str, extent: str) -> None:
        """Quads of a panel; zeros behind the last step."""
        code, language, index, work = self.code, self.language, self.index, self.work
        width = index(work.packed // COLUMNS)
        lane = language.lane_index()
        for each in range(QUADS * DEPTH // WORKGROUP):
            step = code.let(f"{index(each * WORKGROUP // QUADS)} + {lane} / {index(QUADS)}", "step")
            quad = language.load_quad(self.blocked.body, work.b_slot, f"{at} + (start + {step}) * {width}")
            brought = language.select(f"start + {step} < {extent}", quad, language.quad())
            place = f"{index(DEPTH * PITCH)} + {step} * {index(QUADS)} + {lane} % {index(QUADS)}"
            code.emit(f"{SHARED}[{place}] = {brought};")

    def _multiply(self) -> None:
        code, language, index = self.code, self.language, self.index
        left = [
            code.let(f"{SHARED}[k * {index(PITCH)} + {self.down} + {index(half * QUADS // 2)}]", "left")
            for half in range(2)
        ]
        right = [
            code.let(
                f"{SHARED}[{index(DEPTH * PITCH + half * QUADS // 2)} + k * {index(QUADS)} + {self.across}]", "right"
            )
            for half in range(2)
        ]
        for row in range(EDGE):
            factor = language.quad_component(left[row // COLUMNS], row % COLUMNS)
            for half in range(2):
                total = f"tile{row}_{half}"
                code.emit(f"{total} = {language.quad_fma(factor, right[half], total)};")
