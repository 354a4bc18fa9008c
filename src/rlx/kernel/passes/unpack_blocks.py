"""Products of many rows by weights of few bits: these are unpacked to memory first, once in a run, and multiplied as
other weights are. Of few rows the product unpacks them itself; where only a run knows how many rows there are, the
program has both ways, of which one has no rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.kernel.ir.blocks import PANEL, PANEL_BYTES, Blocks
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, axis, contiguous, dim_value, index_of, linear
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.slots import apart
from rlx.kernel.passes.driver import LeafPass


class UnpackBlocks(LeafPass):
    """Splits contractions with panels of blocks. `most_rows` tells up to how many rows one unpacks them itself."""

    name = "unpack-blocks"

    def __init__(self, most_rows: Callable[[Contraction], int]) -> None:
        self.most_rows = most_rows

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
        size = dims.product((many, work.n, work.k))
        copy = program.new_buffer("temp", work.a_dtype, size, f"{source.name}.unpacked")
        places = {slot: number for number, slot in enumerate((work.b_slot, *work.blocks.slots()), 1)}
        slots = (copy.number, *(kernel.slots[slot] for slot in places))
        nest = _unpacking(work, work.blocks.on_slots(places), many)
        unpacking = Kernel("unpack", nest, slots, 1, kernel.sources)
        plain = dataclasses.replace(
            work, m=dims.mul(work.m, many), b_slot=len(kernel.slots), b_dtype=work.a_dtype, blocks=None, packed=0,
            group=1, above=self.most_rows(work), b=Linear(0, ((work.n_axis, work.k), (work.k_axis, 1))),
        )  # fmt: skip
        made = [unpacking, *apart(dataclasses.replace(kernel, slots=(*kernel.slots, copy.number)), [plain])]
        if few != 0:
            own = dataclasses.replace(work, m=dims.mul(work.m, few))
            made.insert(0, dataclasses.replace(kernel, work=own))
        return made


def _unpacking(work: Contraction, blocks: Blocks, many: Dim) -> LoopNest:
    """The weight as [n, k] in slot 0, in the order in which its panels lie in slot 1."""
    assert isinstance(work.n, int)
    a_byte, of_block = 8 // blocks.bits, blocks.block * blocks.bits // 8
    share = PANEL_BYTES // of_block if PANEL_BYTES % of_block == 0 else 1
    extents = (-(-work.n // PANEL), blocks.chunks, PANEL, share, PANEL_BYTES // share, a_byte)
    inner = contiguous((share, PANEL_BYTES // share, a_byte))
    column = Linear(0, ((0, PANEL), (2, 1)))
    byte = Linear(0, tuple(enumerate(contiguous(extents[:-1]))))
    k = Linear(0, ((1, PANEL_BYTES * a_byte), *zip((3, 4, 5), inner)))
    block = Linear(0, ((1, share), (3, 1))) if share > 1 else linear(index_of(k) / dim_value(blocks.block))
    parameter = Linear(0, ((0, blocks.count * PANEL), (2, 1))).plus(block.times(PANEL))
    guard = None
    for line, extent, whole in ((column, work.n, PANEL), (k, work.k, PANEL_BYTES * a_byte)):
        if not (isinstance(extent, int) and extent % whole == 0):
            inside = ex.apply("lt", index_of(line), dim_value(extent))
            guard = inside if guard is None else ex.apply("and", guard, inside)
    body = blocks.value(1, byte, axis(5), parameter, work.a_dtype, guard)
    target = column.times(work.k).plus(k)
    return LoopNest((dims.mul(extents[0], many), *extents[1:]), (), (Store(0, target, body, False, guard),))
