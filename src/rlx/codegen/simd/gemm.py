"""Contractions on the CPU: a register-blocked core per tile height, panels of the right side, epilogues on hot tiles.

The core (`microkernels.py`) multiplies `rows` rows of A with one panel of B (`vectors` vectors wide) and leaves the
tile in L1; the epilogue then reads it from there. So one core serves every contraction of its shape, whatever follows.
`docs/design/cpu.md` has the measurements behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from rlx.codegen.simd import block_cores, division
from rlx.codegen.simd.block_cores import BlockForm, Panel, call_block_core, call_unpack
from rlx.codegen.simd.body import Body, lane_mask
from rlx.codegen.simd.byte_packing import pack_byte_panel
from rlx.codegen.simd.function import Callee, Function, Module
from rlx.codegen.simd.isa import Isa
from rlx.codegen.simd.microkernels import (
    BYTES,
    FLOATS,
    OF_DTYPE,
    OPEN_REST,
    BlockOperands,
    Form,
    call_core,
    heights_of,
    tile_at,
    tiles_of,
)
from rlx.codegen.simd.packing import Source, pack_panel
from rlx.codegen.simd.prologue import PARAMETERS, buffer_pointers
from rlx.codegen.simd.registers import Reg, Vector
from rlx.codegen.simd.scheduled import WholePositions
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, offset_of
from rlx.kernel.ir.loops import Store
from rlx.kernel.ir.rows import ROWS
from rlx.kernel.schedule.overrides import overridden
from rlx.kernel.schedule.schedule import Schedule, Tile

NEAR_BYTES = 1 << 16
"""Of a right side whose panels are all read again for every block of rows."""
ROW_BLOCK = 128
"""Rows of A that stay in L2 while all panels of B pass by."""
PACKED_BYTE_BLOCK = 256
"""The same where each block packs its panels of bytes anew: rows of bytes are short, and packing is a tenth of 128."""
FEW_BYTE_ROWS = 2
"""Fewer rows of bytes are multiplied where the right side lies: packing it takes longer."""
STREAMED_ROWS = 2
"""As many rows take as long as one, which waits for the panels to come out of L2."""
_WASTE = {1: 1.3, 2: 1.08}
"""How much more a multiplication costs in panels of one and two vectors, where more are usual."""
_WIDER = 1.02
"""And in panels wider than usual."""


@dataclass(frozen=True)
class ScheduledMatmul(WholePositions):
    """How a contraction is run; fields as in `loops.ScheduledLoops`. A position is (batch…, row block, panel).

    form   what the core multiplies; `tail` elements of the depth are beyond its groups
    depth  elements that one call of the core sums: k, and taps whose elements of A follow one another
    taps   extents of the outer parts of the sum and the steps of A along them
    turns  in a loop, positions are visited from the last to the first in every other trip: the panels that a trip reads
           last are in the nearest caches when the next begins
    """

    work: Contraction
    form: Form
    schedule: Schedule
    depth: Dim
    tail: int
    taps: tuple[tuple[Dim, Dim], ...]
    positions: Dim
    weight: Dim
    scratch: Dim
    turns: bool = False

    @property
    def rows(self) -> int:
        """Rows of A that the core multiplies at once."""
        return self.schedule.static_tile("register", "m")

    @property
    def vectors(self) -> int:
        """Vectors of sums in a row of the core's block."""
        return self.schedule.vectors("register", "n")

    @property
    def row_block(self) -> int:
        """Rows of A that stay in L2 while all panels of B pass by."""
        return self.schedule.static_tile("cache", "m")

    def render(self, module: Module, stem: str, slots: int) -> Callee:
        return module.define(stem, lambda name: _GemmWriter(module, name, self, slots).write())


def form_of(work: Contraction, isa: Isa) -> Form | None:
    """The form of core that fits, once the right side lies in panels: floats of one dtype, or u8 by i8 with sums in
    i32, and neighbouring k of A side by side."""
    if not (work.k == 1 or work.a.coefficient(work.k_axis) == 1) or work.a.others:
        return None
    sides = (work.a_dtype, work.b_dtype, work.dtype)
    if work.blocks is not None:
        wide = {work.a_dtype, work.dtype, work.blocks.scale} == {dtypes.f32}
        return block_cores.form_of(work.blocks) if wide and not work.taps else None
    if sides == (dtypes.u8, dtypes.i8, dtypes.i32):
        return BYTES
    if sides[:2] == (dtypes.f32, dtypes.f32) and work.dtype in (dtypes.f16, dtypes.bf16):
        return FLOATS  # copies in what they are multiplied in
    if work.dtype is dtypes.f16 and not isa.converts_f16:
        return None
    return OF_DTYPE.get(work.dtype) if sides == (work.dtype,) * 3 else None


def takes(work: Contraction, isa: Isa) -> bool:
    """Whether a core fits. Sums over taps, and what is not multiplied as it lies, need packed panels; f32, f64 and
    bytes alone are packed while running, bytes only for rows enough."""
    form = form_of(work, isa)
    if form is None or work.packed:
        return form is not None
    few = form is BYTES and isinstance(work.m, int) and work.m < FEW_BYTE_ROWS
    return form.moves and not few and not work.taps and not work.b.others


def panels(work: Contraction, isa: Isa) -> tuple[int, int]:
    """Width of the panels that a static right side is to be packed into, 0 for none, and elements of k in a group."""
    form = form_of(work, isa)
    return (0, 1) if form is None else (_tiles(work, form, isa).static_tile("register", "n"), form.group)


def panel_vectors(n: Dim, isa: Isa, sum_bytes: int = 4, widest: int = 0) -> int:
    """Vectors of sums, of `lanes` elements, in a panel: as wide as usual, unless a narrower one, or one of up to
    `widest` vectors, wastes less of the last panel."""
    most = isa.gemm_vectors * 4 // sum_bytes
    if not isinstance(n, int):
        return most

    def cost(vectors: int) -> float:
        width = vectors * isa.lanes
        waste = 1.0 if vectors == isa.gemm_vectors else _WIDER if vectors > most else _WASTE.get(vectors, 1.0)
        return -(-n // width) * width * waste

    return min(range(max(most, widest), 0, -1), key=cost)


def schedule(work: Contraction, isa: Isa) -> ScheduledMatmul:
    """The schedule of a contraction; `work.packed` decides the panel width if it is set."""
    form = form_of(work, isa)
    assert form is not None  # `takes` was asked
    tiles = _tiles(work, form, isa)
    width, row_block = tiles.static_tile("register", "n"), tiles.static_tile("cache", "m")
    vectors = width // isa.lanes
    panels = dims.ceildiv(work.n, width)
    blocks = dims.ceildiv(work.m, row_block)
    tile = tiles.static_tile("register", "m") * width * form.dtype.itemsize
    # squares of words of bytes are written whole
    deep = dims.add(dims.ceildiv(work.k, form.group), isa.lanes - 1) if form is BYTES else work.k
    scratch: Dim = (
        tile if work.packed and work.blocks is None else dims.add(tile, dims.mul(deep, width * form.dtype.itemsize))
    )
    per_row = dims.mul(dims.add(dims.ceildiv(work.k, form.group), 8), vectors)
    per_row = dims.mul(per_row, dims.product(work.taps))
    weight = dims.mul(dims.maximum(dims.minimum(work.m, row_block), STREAMED_ROWS), per_row)
    depth, taps = _outer(work, form)
    tail = depth % form.group if isinstance(depth, int) else OPEN_REST if form is BYTES else 0
    positions = dims.product((*work.batch, blocks, panels))
    return ScheduledMatmul(work, form, tiles, depth, tail, taps, positions, weight, scratch)


def _tiles(work: Contraction, form: Form, isa: Isa) -> Schedule:
    """A block of sums in registers, panels of B as wide as it, and rows of A that stay in L2 while these pass by."""
    widest = isa.widest_block if form is FLOATS else 0
    vectors = work.packed // isa.lanes or panel_vectors(work.n, isa, form.dtype.itemsize, widest)
    chosen = Schedule(
        tiles=(
            Tile("cache", "m", PACKED_BYTE_BLOCK if form is BYTES and not work.packed else ROW_BLOCK),
            Tile("register", "m", isa.byte_rows if form is BYTES else isa.block_rows(vectors)),
            Tile("register", "n", vectors * isa.lanes),
        ),
        vector=("n", isa.lanes),
        spaces=(("a", "cache"), ("b", "panels"), ("sum", "register")),
    )
    chosen = overridden("contraction", chosen, work)
    if work.packed:  # panels have the width that they were packed with
        return chosen.with_tile("register", "n", work.packed)
    return chosen.in_whole_vectors("register", "n")


def _outer(work: Contraction, form: Form) -> tuple[Dim, tuple[tuple[Dim, Dim], ...]]:
    """`depth` and `taps`. A window's inner taps read A one behind the other, as do their panels of B, unless
    these are padded."""
    depth = work.k
    taps = [(extent, work.a.coefficient(number)) for extent, number in zip(work.taps, work.tap_axes)]
    whole = form.group == 1 or (isinstance(depth, int) and depth % form.group == 0)
    while whole and taps and taps[-1][1] == depth:
        depth = dims.mul(depth, taps.pop()[0])
    return depth, tuple(taps)


class _GemmWriter:
    def __init__(self, module: Module, name: str, scheduled: ScheduledMatmul, slots: int) -> None:
        self.scheduled = scheduled
        self.work = scheduled.work
        self.form = scheduled.form
        self.f = Function(module, name, PARAMETERS)
        self.lanes = module.target.lanes
        self.width = scheduled.vectors * self.lanes
        n = self.work.n
        self.ragged = not (isinstance(n, int) and n % self.width == 0)
        self.masked = not (isinstance(n, int) and n % self.lanes == 0)
        self.body = Body(self.f, buffer_pointers(self.f, slots))
        self.heights = heights_of(self.work.m, scheduled.row_block, scheduled.rows)
        self.whole = ""  # whether the panel of the position has no columns beyond the last
        rest = -(-(n % self.width) // self.lanes) if isinstance(n, int) else 0
        self.rest = rest or scheduled.vectors
        """Vectors of the last panel that have columns."""
        self.back = self.last = ""
        """Whether positions are visited backwards, and the sum of a position and the one that then takes its turn."""
        self.panel, self.are_many = Panel("", "", ""), ""
        """Of a right side of few bits: the panel of the position, and whether it is unpacked first."""
        self.epilogue = [
            Store(s.slot, s.offset, division.legalise(s.body, module.target.has_fma), False) for s in self.work.epilogue
        ]

        self.added = _added(scheduled)
        """What is added to the sum, or the sum itself, where a core can add it and write all of the result."""

    def write(self) -> Function:
        if self.scheduled.turns:
            self.back = self.f.backwards()
            self.last = self.f.at_entry(f"sub i64 {self.f.at_entry('add i64 %begin, %end')}, 1")
        self.f.loop("%begin", "%end", 1, [], self._position)
        return self.f

    def _position(self, position: str, _: list[str]) -> list[str]:
        f, work = self.f, self.work
        self.body.push()
        if self.back:
            position = f.value(f"select i1 {self.back}, i64 {f.sub(self.last, position)}, i64 {position}")
        panels = f.dim(dims.ceildiv(work.n, self.width))
        blocks = f.dim(dims.ceildiv(work.m, self.scheduled.row_block))
        if work.packed and work.batch and not self._is_near():
            # batches share the panels: each panel stays in cache while all rows pass by
            others = f.dim(dims.product((*work.batch, dims.ceildiv(work.m, self.scheduled.row_block))))
            panel, rest = f.divide(position, others), f.remainder(position, others)
        else:
            panel, rest = f.remainder(position, panels), f.divide(position, panels)
        block, rest = f.remainder(rest, blocks), f.divide(rest, blocks)
        for number in reversed(range(len(work.batch))):
            extent = f.dim(work.batch[number])
            self.body.axes[number] = f.remainder(rest, extent) if number else rest
            rest = f.divide(rest, extent) if number else rest
        m = f.dim(work.m)
        height = f.ceil_divide(m, blocks)
        first = f.mul(block, height)
        rows = f.smin(height, f.sub(m, first))
        column = f.mul(panel, str(self.width))
        self.whole = f.value(f"icmp sle i64 {column}, {f.sub(f.dim(work.n), str(self.width))}") if self.ragged else ""
        if work.blocks is not None:
            right = ahead = self._blocks(panel, rows)
        else:
            right, ahead = self._panel(panel, column)
        self._tiles(first, rows, column, right, ahead)
        self.body.pop()
        return []

    def _blocks(self, panel: str, rows: str) -> str:
        """Where a panel of few bits lies as floats, for many rows; it is unpacked where there are that many."""
        f, work, form = self.f, self.work, self.form
        blocks, bases = work.blocks, self.body.bases
        assert blocks is not None and isinstance(form, BlockForm)
        data = f.offset(bases[work.b_slot], "i8", f.mul(panel, str(blocks.row_bytes * self.width)))
        start = f.mul(panel, str(blocks.count * self.width))
        scales, *zeros = (f.offset(bases[slot], "float", start) for slot in blocks.slots())
        self.panel = Panel(data, scales, zeros[0] if zeros else scales)
        self.are_many = f.value(f"icmp sgt i64 {rows}, {block_cores.FEW_ROWS}")
        target = f.offset("%scratch", "float", str(self.scheduled.rows * self.width))
        call = partial(call_unpack, f, self.scheduled.vectors, self.panel, target, str(blocks.count), form)
        f.branch(self.are_many, call)
        return target

    def _is_near(self) -> bool:
        """Whether all panels stay in a near cache together, so that each row of the result is written at once."""
        side = dims.product((*self.work.taps, self.work.k, self.work.n, self.form.dtype.itemsize))
        return isinstance(side, int) and side <= NEAR_BYTES

    def _panel(self, panel: str, column: str) -> tuple[str, str]:
        """The panel's address, and what to prefetch meanwhile: the panel behind it."""
        f, work = self.f, self.work
        if work.packed:
            size = f.mul(f.dim(dims.mul(dims.product(work.taps), self._padded(work.k))), str(self.width))
            start = f.mul(panel, size)
            start = f.add(start, self.body.offset(work.b)) if work.b.others or work.b.axes else start
            here = f.offset(self.body.bases[work.b_slot], self.form.element, start)
            step = f.value(f"select i1 {self.back}, i64 {f.sub('0', size)}, i64 {size}") if self.back else size
            return here, f.offset(here, self.form.element, step)
        target = f.offset("%scratch", self.form.total, str(self.scheduled.rows * self.width))
        remaining, bytes_ = f.sub(f.dim(work.n), column), self.form is BYTES
        source = Source(work.b_slot, work.b, column, target, self.ragged, work.b_dtype if bytes_ else self.form.dtype)
        pack = pack_byte_panel if bytes_ else pack_panel
        pack(self.body, (work.k_axis, work.n_axis), self.scheduled.vectors, (f.dim(work.k), remaining), source)
        return target, target

    def _padded(self, depth: Dim) -> Dim:
        """Elements along k as they lie in a panel."""
        return dims.mul(dims.ceildiv(depth, self.form.group), self.form.group)

    def _tiles(self, first: str, rows: str, column: str, right: str, ahead: str) -> None:
        """The rows of a block, tile by tile; every tile prefetches its share of the panel to come."""
        f, work = self.f, self.work
        count, base, extra = tiles_of(f, rows, self.scheduled.rows)
        depth = f.dim(self.scheduled.depth)
        share = f.mul(depth, str(self.form.ahead))

        def one(tile: str, _: list[str]) -> list[str]:
            offset, height = tile_at(f, tile, base, extra)
            row = f.add(first, offset)
            self.body.push()
            self.body.axes[work.m_axis] = row
            a_pointer = self.body.pointer(work.a_slot, work.a_dtype, _without_k(work))
            width = str(self.width)
            next_share = f.offset(ahead, self.form.element, f.mul(tile, share))
            lda = f.dim(work.a.coefficient(work.m_axis))
            operands = BlockOperands(a_pointer, lda, right, "%scratch", width, depth, next_share)

            def through_scratch() -> None:
                self._over_taps(height, operands)
                self._finish(row, height, column)

            def in_place() -> None:
                self._in_place(height, column, operands)

            if self.added is None:
                through_scratch()
            elif not self.masked:
                in_place()
            else:
                f.when(self.whole, in_place, through_scratch)
            self.body.pop()
            return []

        f.loop("0", count, 1, [], one)

    def _in_place(self, height: str, column: str, tile: BlockOperands) -> None:
        """One call of the core, which leaves the rows where they belong."""
        f, work, body = self.f, self.work, self.body
        (store,) = self.epilogue
        body.push()
        body.axes[work.n_axis] = column
        tile = dataclasses.replace(
            tile, c=body.pointer(store.slot, work.dtype, store.offset), ldc=f.dim(store.offset.coefficient(work.m_axis))
        )
        if self.added is not None and self.added.kind == "load":
            line = offset_of(self.added)
            start = body.pointer(self.added.attr.slot, work.dtype, line)
            tile = dataclasses.replace(tile, start=start, ldf=f.dim(line.coefficient(work.m_axis)), late=True)
        self._core(height, tile, self.scheduled.tail)
        body.pop()

    def _core(self, height: str, tile: BlockOperands, tail: int) -> None:
        """A call of the core. How many rows threads share out between them changes no sum."""
        f, vectors = self.f, self.scheduled.vectors
        alike = self.work.m == ROWS

        def call(some: int) -> None:
            call_core(f, height, self.heights, some, tile, self.form, tail, alike, vectors)

        if self.rest == vectors:
            call(vectors)
        else:
            f.branch(self.whole, lambda: call(vectors), lambda: call(self.rest))

    def _over_taps(self, height: str, tile: BlockOperands) -> None:
        """One call of the core for every outer tap; all but the first add to the tile."""
        f, scheduled = self.f, self.scheduled
        form = self.form
        if isinstance(form, BlockForm):
            assert self.work.blocks is not None
            few = dataclasses.replace(tile, k=str(self.work.blocks.count))
            f.branch(
                self.are_many,
                lambda: call_core(f, height, scheduled.rows, scheduled.vectors, tile),
                lambda: call_block_core(f, height, scheduled.vectors, few, self.panel, form),
            )
            return
        if not scheduled.taps:
            self._core(height, tile, scheduled.tail)
            return
        total = f.dim(dims.product(extent for extent, _ in scheduled.taps))
        tail = scheduled.tail
        if not total.isdigit() or total == "0":  # a sum of nothing is 0, which one call of no depth writes
            has_terms = f.value(f"icmp sgt i64 {total}, 0")
            tile = dataclasses.replace(tile, k=f.value(f"select i1 {has_terms}, i64 {tile.k}, i64 0"))
            total, tail = f.smax(total, "1"), 0 if total == "0" else tail
        step = f.mul(f.dim(self._padded(scheduled.depth)), str(self.width))

        def one(tap: str, _: list[str]) -> list[str]:
            offset, rest = "0", tap
            for extent, coefficient in reversed(scheduled.taps):
                offset = f.add(offset, f.mul(f.remainder(rest, f.dim(extent)), f.dim(coefficient)))
                rest = f.divide(rest, f.dim(extent))
            here = dataclasses.replace(
                tile,
                a=f.offset(tile.a, scheduled.form.element, offset),
                b=f.offset(tile.b, scheduled.form.element, f.mul(tap, step)),
                start=f.value(f"select i1 {f.value(f'icmp ne i64 {tap}, 0')}, ptr {tile.c}, ptr null"),
                ldf=tile.ldc,
            )
            self._core(height, here, tail)
            return []

        f.loop("0", total, 1, [], one)

    def _finish(self, first: str, height: str, column: str) -> None:
        """The epilogue over a tile that lies in scratch."""
        f, work = self.f, self.work

        def one(row: str, _: list[str]) -> list[str]:
            ats = [f.add(column, str(j * self.lanes)) for j in range(self.scheduled.vectors)]
            vectors = list(enumerate(ats))
            if not self.ragged:
                self._vectors(first, row, vectors)
                return []
            if not self.masked:  # the last panel has some vectors, all of them whole
                some = vectors[: self.rest]
                f.when(self.whole, lambda: self._vectors(first, row, vectors), lambda: self._vectors(first, row, some))
                return []
            for j, at in enumerate(ats):
                if j:
                    f.when(f.value(f"icmp slt i64 {at}, {f.dim(work.n)}"), lambda: self._vectors(first, row, [(j, at)]))  # noqa: B023
                else:
                    self._vectors(first, row, [(j, at)])
            return []

        f.loop("0", height, 1, [], one)

    def _vectors(self, first: str, row: str, vectors: list[tuple[int, str]]) -> None:
        """Vectors of a row of the tile, by number and column: the instructions of the epilogue alternate between
        them."""
        f, work, body = self.f, self.work, self.body
        total = self.form.total
        kind = body.kind(total, True)
        body.push()
        body.axes[work.m_axis] = f.add(first, row)
        sums: list[Reg] = []
        for j, _ in vectors:
            where = f.offset("%scratch", total, f.add(f.mul(row, str(self.width)), str(j * self.lanes)))
            tile_row = Reg(f.value(f"load {kind}, ptr {where}, align 4"), work.dtype, True)
            sums.append(tile_row if work.dtype is self.form.dtype else body.round_narrow(tile_row))
        masks = [lane_mask(body, f.sub(f.dim(work.n), at)) if self.masked else None for _, at in vectors]

        def each() -> Iterator[None]:
            for (_, at), mask, body.accumulated in zip(vectors, masks, sums):
                body.axes[work.n_axis], body.vector = at, Vector(work.n_axis, mask)
                yield

        for store in self.epilogue:
            for node in ex.walk([store.body]):
                for _ in each():
                    body.gen(node)
            for _ in each():
                body.store(store.slot, store.offset, body.gen(store.body))
        body.vector = None
        body.pop()


def _without_k(work: Contraction) -> Linear:
    inside = (*work.tap_axes, work.k_axis)
    return Linear(work.a.const, tuple((n, c) for n, c in work.a.axes if n not in inside))


def _added(scheduled: ScheduledMatmul) -> Expr | None:
    """Of an epilogue that stores a sum, or it and one element: the sum, or the element; None for any other."""
    work = scheduled.work
    if scheduled.taps or len(work.epilogue) != 1 or work.dtype is not scheduled.form.dtype or work.blocks is not None:
        return None
    (store,) = work.epilogue
    if store.guard is not None or store.offset.others or store.offset.coefficient(work.n_axis) != 1:
        return None
    if store.body.kind == "acc":
        return store.body
    if store.body.kind != "add" or {arg.kind for arg in store.body.args} != {"acc", "load"}:
        return None
    (element,) = (arg for arg in store.body.args if arg.kind == "load")
    straight = not element.args and offset_of(element).coefficient(work.n_axis) == 1
    return element if straight and element.dtype is work.dtype else None
