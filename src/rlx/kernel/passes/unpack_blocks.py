"""Products of many rows by weights of few bits: these are unpacked to memory first, once in a run, and multiplied as
other weights are. Of few rows the product unpacks them itself; where only a run knows how many rows there are, the
program has both ways, of which one has no rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.rewriting import Context
from rlx.kernel.ir.blocks import PANEL, PANEL_BYTES, Blocks
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, axis, contiguous, dim_value, index_of, linear, load
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Buffer, Kernel, Program
from rlx.kernel.ir.slots import apart
from rlx.kernel.passes.driver import LeafPass

NEIGHBOURS = 8
"""Elements that a lane unpacks: 16 bytes of 16-bit floats."""
WORDS = {2: dtypes.u16, 4: dtypes.u32, 8: dtypes.u64}
"""What they lie in, by their bits."""


class UnpackBlocks(LeafPass):
    """Splits contractions with panels of blocks. `most_rows` tells up to how many rows one unpacks them itself."""

    name = "unpack-blocks"

    def __init__(self, most_rows: Callable[[Contraction], int]) -> None:
        self.most_rows = most_rows
        self._of_panels: dict[int, Buffer] = {}

    def run(self, program: Program, context: Context) -> None:
        self._of_panels = {}
        super().run(program, context)

    def regions(self, program: Program) -> tuple[list[Kernel], ...]:
        return (program.main,)

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        work = kernel.work
        if not isinstance(work, Contraction) or work.blocks is None or not work.packed:
            return None
        rows = dims.product((*work.batch, work.m))
        return None if isinstance(rows, int) and rows <= self.most_rows(work) else "rows"

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        work = kernel.work
        assert isinstance(work, Contraction) and work.blocks is not None and isinstance(work.n, int)
        rows = dims.product((*work.batch, work.m))
        few = dims.maximum(dims.add(1, dims.mul(dims.floordiv(rows, self.most_rows(work) + 1), -1)), 0)
        many = dims.add(1, dims.mul(few, -1))
        source = program.buffers[kernel.slots[work.b_slot]]
        pitch = _pitch(work.blocks)
        size = dims.product((many, -(-work.n // PANEL) * PANEL, pitch))
        copy = program.new_buffer("temp", work.a_dtype, size, f"{source.name}.unpacked")
        words = self._words(program, source, work.blocks.bits)
        places = {slot: number for number, slot in enumerate((work.b_slot, *work.blocks.slots()), 1)}
        slots = (copy.number, words.number, *(kernel.slots[slot] for slot in work.blocks.slots()))
        nest = _unpacking(work, work.blocks.on_slots(places), words.dtype, many)
        unpacking = Kernel("unpack", nest, slots, 1, kernel.sources)
        plain = dataclasses.replace(
            work, m=dims.mul(work.m, many), b_slot=len(kernel.slots), b_dtype=work.a_dtype, blocks=None, packed=0,
            group=1, above=self.most_rows(work), b=Linear(0, ((work.n_axis, pitch), (work.k_axis, 1))),
        )  # fmt: skip
        made = [unpacking, *apart(dataclasses.replace(kernel, slots=(*kernel.slots, copy.number)), [plain])]
        if few != 0:
            own = dataclasses.replace(work, m=dims.mul(work.m, few))
            made.insert(0, dataclasses.replace(kernel, work=own))
        return made

    def _words(self, program: Program, source: Buffer, bits: int) -> Buffer:
        """The memory of panels as words of eight elements."""
        if source.number not in self._of_panels:
            dtype = WORDS[bits]
            size = dims.floordiv(source.size, dtype.itemsize)
            words = program.new_buffer("alias", dtype, size, f"{source.name}.words")
            program.aliases[words.number] = (source.number, 0)
            program.holds[words.number] = (source.number,)
            self._of_panels[source.number] = words
        return self._of_panels[source.number]


def _pitch(blocks: Blocks) -> int:
    """Elements from column to column: those of all chunks."""
    return blocks.chunks * PANEL_BYTES * 8 // blocks.bits


def _unpacking(work: Contraction, blocks: Blocks, dtype: DType, many: Dim) -> LoopNest:
    """The weight as [n, pitch] in slot 0, in the order in which its panels lie in slot 1: lanes have the elements of a
    word each."""
    assert isinstance(work.n, int)
    in_panel, of_block = PANEL_BYTES // dtype.itemsize, blocks.block // NEIGHBOURS
    whole = blocks.block % NEIGHBOURS == 0 and in_panel % of_block == 0
    share = in_panel // of_block if whole else 1
    extents = (-(-work.n // PANEL), blocks.chunks, PANEL, share, in_panel // share, NEIGHBOURS)
    column = Linear(0, ((0, PANEL), (2, 1)))
    word = load(1, Linear(0, tuple(enumerate(contiguous(extents[:-1])))), dtype)
    k = Linear(0, ((1, in_panel * NEIGHBOURS), *zip((3, 4, 5), contiguous(extents[3:]))))
    block = Linear(0, ((1, share), (3, 1))) if whole else linear(index_of(k) / dim_value(blocks.block))
    if blocks.row_bytes % PANEL_BYTES:  # behind the last block there are elements that nothing reads
        last = ex.apply("min", index_of(block), dim_value(blocks.count - 1))
        block = linear(last)
    parameter = Linear(0, ((0, blocks.count * PANEL), (2, 1))).plus(block.times(PANEL))
    body = blocks.value(word, axis(5), parameter, work.a_dtype)
    target = column.times(_pitch(blocks)).plus(k)
    return LoopNest((dims.mul(extents[0], many), *extents[1:]), (), (Store(0, target, body, False),))
