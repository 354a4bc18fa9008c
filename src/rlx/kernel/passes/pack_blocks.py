"""Weights of few bits in panels, with their scales and zeros, for kernels that unpack them in registers: so many
columns, some bytes along k of each, are neighbours, and so are the scales of these columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.rewriting import Context
from rlx.kernel.ir.blocks import Panels
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.slots import apart
from rlx.kernel.passes.driver import LeafPass
from rlx.kernel.passes.pack import packed_copy


class PackBlocks(LeafPass):
    """Packs right sides of blocks once, in `prepare`. `panels_of` tells the columns of a panel, 0 to leave a side, and
    the bytes of each that are neighbours."""

    name = "pack-blocks"

    def __init__(self, panels_of: Callable[[Contraction], Panels]) -> None:
        self.panels_of = panels_of
        self._static: set[int] = set()
        self._packed: dict[tuple[int, int, Panels], int] = {}

    def regions(self, program: Program) -> tuple[list[Kernel], ...]:
        return (program.main,)

    def run(self, program: Program, context: Context) -> None:
        self._static, self._packed = program.static_buffers(), {}
        super().run(program, context)

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        work = kernel.work
        if not isinstance(work, Contraction) or work.blocks is None or work.packed:
            return None
        sources = {kernel.slots[slot] for slot in (work.b_slot, *work.blocks.slots())}
        return "panels" if sources <= self._static and isinstance(work.n, int) and self.panels_of(work)[0] else None

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        work = kernel.work
        assert isinstance(work, Contraction) and work.blocks is not None
        blocks, slots = work.blocks, list(kernel.slots)
        width, group = self.panels_of(work)
        parts = [(work.b_slot, dtypes.u8, blocks.row_bytes, group)]
        parts += [(slot, blocks.scale, blocks.count, 1) for slot in blocks.slots()]
        moved = {}
        for slot, dtype, length, together in parts:
            moved[slot] = len(slots)
            slots.append(self._panels(program, work, kernel.slots[slot], dtype, length, (width, together)))
        changed = dataclasses.replace(
            work, b_slot=moved[work.b_slot], blocks=blocks.on_slots(moved), packed=width, group=group
        )
        return list(apart(dataclasses.replace(kernel, slots=tuple(slots)), [changed]))

    def _panels(
        self, program: Program, work: Contraction, source: int, dtype: DType, length: int, panels: Panels
    ) -> int:
        """The panels of a matrix [n, length]."""
        key = (source, length, panels)
        if key not in self._packed:
            plain = Linear(0, ((work.n_axis, length), (work.k_axis, 1)))
            matrix = dataclasses.replace(work, k=length, b=plain, b_dtype=dtype, blocks=None)
            self._packed[key] = packed_copy(program, matrix, program.buffers[source], *panels).number
        return self._packed[key]
