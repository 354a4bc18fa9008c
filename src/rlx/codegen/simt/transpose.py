"""Maps whose operands run along another axis than their result: in squares, through workgroup memory.

Neighbouring lanes read neighbours along the operands' axis, and write neighbours along the result's. A row of a square
has one place more than it holds, so that lanes that go down a column do not meet in one bank of the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlx.codegen.simt.body import legal
from rlx.codegen.simt.code import WORKGROUP, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.rows import iterations_of
from rlx.codegen.simt.writer import Writer
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.schedule.overrides import overridden, unfit
from rlx.kernel.schedule.schedule import Schedule, Tile
from rlx.kernel.schedule.transposes import Transposition

SHORT_SIDE = 16
"""Extents below which squares would be mostly empty."""
SHARED_BYTES = 16 << 10
"""Of workgroup memory, which every device has."""
SIDES = (1, 8, 16, 32)


def schedule(nest: LoopNest, transposed: Transposition, target: Target) -> Schedule:
    """The side of the squares; 1 where lanes read as they write. Raises RlxError for a side set by hand that no
    workgroup can have."""
    last = len(nest.outer) - 1
    short = any(isinstance(n, int) and n < SHORT_SIDE for n in (nest.outer[transposed.axis], nest.outer[last]))
    element = max(8 if read.dtype.bits == 64 else 4 for read in transposed.reads)
    fitting = [side for side in SIDES if _bytes(side, transposed, element) <= SHARED_BYTES and side <= target.square]
    side = 1 if short else max(fitting)
    chosen = overridden("transpose", Schedule((Tile("workgroup", "side", side),), vector=(f"a{last}", WORKGROUP)))
    side = chosen.static_tile("workgroup", "side")
    if side not in SIDES:
        raise unfit("transpose", "workgroup", "side", side, f"of {', '.join(map(str, SIDES))}")
    if _bytes(side, transposed, element) > SHARED_BYTES:
        words = f"whose {len(transposed.reads)} squares take at most {SHARED_BYTES} bytes"
        raise unfit("transpose", "workgroup", "side", side, words)
    if side == 1:
        return chosen
    spaces = tuple((f"slot {slot}", "shared") for slot in dict.fromkeys(read.attr.slot for read in transposed.reads))
    return Schedule(chosen.tiles, vector=(f"a{last}", side), spaces=spaces)


def _bytes(side: int, transposed: Transposition, element: int) -> int:
    return len(transposed.reads) * element * side * (side + 1) if side > 1 else 0


class Squares(Writer):
    """A workgroup takes a square, some rows at a time: first along the operands' axis, then along the result's."""

    def __init__(
        self, nest: LoopNest, transposed: Transposition, chosen: Schedule, slots: Sequence[Slot], language: Language
    ) -> None:
        self.side = chosen.static_tile("workgroup", "side")
        self.axis, self.last = transposed.axis, len(nest.outer) - 1
        grid = [
            dims.ceildiv(extent, self.side) if number in (self.axis, self.last) else extent
            for number, extent in enumerate(nest.outer)
        ]
        super().__init__(slots, tuple(grid), nest.outer, team=True, language=language)
        self.nest, self.schedule = nest, chosen
        store = nest.statements[0]
        assert isinstance(store, Store)
        self.store, self.reads = store, transposed.reads

    def write(self) -> Dim:
        code, body, language, index = self.code, self.body, self.language, self.language.index
        side = index(self.side)
        across, down = (code.let(f"{body.axes[n]} * {side}", "first") for n in (self.axis, self.last))
        beside = code.let(f"{language.lane_index()} % {side}", "beside")
        value = legal(self.store.body)
        arrays: list[tuple[str, Reg]] = []
        with self._places(across, down, beside, along=self.axis) as (row, inside):
            place = code.let(f"{row} * {index(self.side + 1)} + {beside}", "place")
            with body.scope(f"if ({inside})"):
                for number, read in enumerate(self.reads):
                    reg = body.gen(read)
                    stem, count = f"square{number}", self.side * (self.side + 1)
                    array = language.shared_array(code, reg.dtype, reg.wide, stem, count)
                    code.emit(f"{array}[{place}] = {language.shared_value(reg)};")
                    arrays.append((array, reg))
        code.emit(language.barrier())
        with self._places(down, across, beside, along=self.last) as (row, inside):
            place = code.let(f"{beside} * {index(self.side + 1)} + {row}", "place")
            with body.scope(f"if ({inside})"):
                for read, (array, reg) in zip(self.reads, arrays):
                    held = code.let(language.from_shared(f"{array}[{place}]", reg))
                    body.remember(read, reg.like(held))
                body.store(self.store.slot, self.store.offset, body.gen(value))
        rounds = self.side * self.side // WORKGROUP
        return rounds * (4 + iterations_of([value])) + 4

    @contextmanager
    def _places(self, first: str, start: str, beside: str, along: int) -> Iterator[tuple[str, str]]:
        """A loop over a lane's elements of a square, whose rows lie `along` an axis: the row, and a test for the end.
        `first` and `start` are where the square begins along the axis and along the other one."""
        code, language, body = self.code, self.language, self.body
        other = self.last if along == self.axis else self.axis
        rows = WORKGROUP // self.side
        below = code.let(f"{language.lane_index()} / {language.index(self.side)}", "below")
        step = code.fresh("k")
        with body.scope(language.loop(step, below, language.index(self.side), rows)):
            body.axes[along] = code.let(f"{first} + {beside}", "index")
            body.axes[other] = code.let(f"{start} + {step}", "index")
            extents = self.record.dim(self.nest.outer[along]), self.record.dim(self.nest.outer[other])
            yield step, f"{body.axes[along]} < {extents[0]} && {body.axes[other]} < {extents[1]}"
