"""Contractions on the CPU: a register-blocked core per tile height, panels of the right side, epilogues on hot tiles.

The core multiplies `rows` rows of A (read in place, one broadcast an element) with one panel of B (`vectors` vectors
wide) and leaves the tile in L1; the epilogue then reads it from there. So one core serves every contraction of its
shape, whatever follows. `docs/design/cpu.md` has the measurements behind it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.packing import Source, pack_panel
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel import maths
from rlx.kernel.llvm.body import Body, Reg, Vector, lane_mask
from rlx.kernel.llvm.function import Function, Module
from rlx.kernel.llvm.nest import PARAMETERS, buffer_pointers
from rlx.kernel.nest import Contraction, Linear, Store

UNROLL = 4
ROW_BLOCK = 128
"""Rows of A that stay in L2 while all panels of B pass by."""
PREFETCH_LINES = 4
"""Cache lines of the next panel fetched into L2 per unrolled step."""
_WASTE = {1: 1.3, 2: 1.08}
"""How much more a multiplication costs in panels of one and two vectors."""


@dataclass(frozen=True)
class GemmPlan:
    """How a contraction is run; fields as in `kernel.llvm.nest.NestPlan`. A position is (batch…, row block, panel).

    taps  extents of the outer parts of the sum and the steps of A along them
    run   neighbouring elements of A that one call of the core multiplies: k, and taps that lie just as close
    """

    work: Contraction
    vectors: int
    rows: int
    taps: tuple[tuple[Dim, Dim], ...]
    run: Dim
    positions: Dim
    weight: Dim
    scratch: Dim


def takes(work: Contraction) -> bool:
    """Whether the core fits: f32, and neighbouring k of A lie side by side. Sums over taps need packed panels."""
    dense = work.k == 1 or work.a.coefficient(work.k_axis) == 1
    return work.dtype is dtypes.f32 and dense and not work.a.others and not work.b.others


def panel_vectors(n: Dim, isa: Isa) -> int:
    """Vectors in a panel: as wide as registers allow, unless a narrower one wastes less of the last panel."""
    if not isinstance(n, int):
        return isa.gemm_vectors

    def cost(vectors: int) -> float:
        width = vectors * isa.lanes
        return -(-n // width) * width * (_WASTE.get(vectors, 1.0) if vectors < isa.gemm_vectors else 1.0)

    return min(range(isa.gemm_vectors, 0, -1), key=cost)


def plan(work: Contraction, isa: Isa) -> GemmPlan:
    """The plan of a contraction; `work.packed` decides the panel width if it is set."""
    vectors = work.packed // isa.lanes if work.packed else panel_vectors(work.n, isa)
    width = vectors * isa.lanes
    panels = dims.ceildiv(work.n, width)
    blocks = dims.ceildiv(work.m, ROW_BLOCK)
    tile = isa.gemm_rows * width * 4
    scratch: Dim = tile if work.packed else dims.add(tile, dims.mul(work.k, width * 4))
    per_row = dims.mul(dims.add(work.k, 8), vectors)
    per_row = dims.mul(per_row, dims.product(work.taps))
    weight = dims.mul(dims.minimum(work.m, ROW_BLOCK), per_row)
    taps, run = _runs(work)
    positions = dims.product((*work.batch, blocks, panels))
    return GemmPlan(work, vectors, isa.gemm_rows, taps, run, positions, weight, scratch)


def _runs(work: Contraction) -> tuple[tuple[tuple[Dim, Dim], ...], Dim]:
    """Taps that stay, and the run: in a window over channels-last memory the columns and channels of a row are one."""
    run: Dim = work.k
    taps = [(extent, work.a.coefficient(number)) for extent, number in zip(work.taps, work.tap_axes)]
    while taps and taps[-1][1] == run:
        run = dims.mul(run, taps.pop()[0])
    return tuple(taps), run


def core(module: Module, rows: int, vectors: int) -> str:
    """Adds the core of a tile shape for packed panels.

    void(ptr a, i64 lda, ptr b, ptr c, i64 ldc, i64 k, ptr ahead, i1 more), strides in elements; `ahead` is memory to
    prefetch; with `more` the product is added to what the tile holds.
    """
    stem = f"gemm_{rows}x{vectors}"
    if not module.has(stem):
        module.add(stem, _CoreWriter(module, stem, rows, vectors).write().text())
    return stem


class _CoreWriter:
    """The multiplication of `rows` rows with a panel; sums stay in registers over all of k."""

    def __init__(self, module: Module, name: str, rows: int, vectors: int) -> None:
        self.rows, self.vectors = rows, vectors
        self.lanes = module.target.lanes
        parameters = "ptr noalias %a, i64 %lda, ptr noalias %b, ptr noalias %c, i64 %ldc, i64 %k, ptr %ahead, i1 %more"
        self.f = f = Function(module, name, parameters)
        self.kind = f"<{self.lanes} x float>"
        self.fma = f"@llvm.{'fma' if module.target.has_fma else 'fmuladd'}.v{self.lanes}f32"
        module.declare(f"declare {self.kind} {self.fma}({self.kind}, {self.kind}, {self.kind})")
        module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.row_length = str(vectors * self.lanes)
        self.starts = [f.offset("%a", "float", f.mul("%lda", str(r))) for r in range(rows)]
        # few sums would wait for one another: short tiles get several sets and join them at the end
        few = rows * vectors
        self.ways = 4 if few * 4 <= 24 else 2 if few * 2 <= 24 and few < 10 else 1

    def write(self) -> Function:
        f, count, kind = self.f, self.rows * self.vectors, self.kind
        whole = f.mul(f.divide("%k", str(UNROLL)), str(UNROLL))
        start = [(kind, value) for value in self._start()]
        start += [(kind, "zeroinitializer")] * (count * (self.ways - 1))
        parts = f.loop("0", whole, UNROLL, start, self._unrolled)
        sums = parts[:count]
        for way in range(1, self.ways):
            sums = [f.value(f"fadd {kind} {a}, {b}") for a, b in zip(sums, parts[way * count : (way + 1) * count])]
        sums = f.loop(whole, "%k", 1, [(kind, s) for s in sums], lambda at, now: self._multiply(at, 0, now))
        for r in range(self.rows):
            target = f.offset("%c", "float", f.mul("%ldc", str(r)))
            for j in range(self.vectors):
                place = f.offset(target, "float", str(j * self.lanes))
                f.emit(f"store {kind} {sums[r * self.vectors + j]}, ptr {place}, align 4")
        return f

    def _start(self) -> list[str]:
        """What the sums begin with: zeros, or the tile."""
        f, kind = self.f, self.kind
        before = f.block_name
        f.emit("br i1 %more, label %load, label %go")
        f.label("load")
        held = []
        for r in range(self.rows):
            source = f.offset("%c", "float", f.mul("%ldc", str(r)))
            for j in range(self.vectors):
                held.append(f.value(f"load {kind}, ptr {f.offset(source, 'float', str(j * self.lanes))}, align 4"))
        f.emit("br label %go")
        f.label("go")
        return [f.value(f"phi {kind} [zeroinitializer, %{before}], [{value}, %load]") for value in held]

    def _unrolled(self, position: str, sums: list[str]) -> list[str]:
        f, count = self.f, self.rows * self.vectors
        ahead = f.offset("%ahead", "float", f.mul(position, str(PREFETCH_LINES * 16 // UNROLL)))
        for line in range(PREFETCH_LINES):
            f.emit(f"call void @llvm.prefetch.p0(ptr {f.offset(ahead, 'float', str(line * 16))}, i32 0, i32 2, i32 1)")
        sets = [sums[w * count : (w + 1) * count] for w in range(self.ways)]
        for step in range(UNROLL):
            sets[step % self.ways] = self._multiply(position, step, sets[step % self.ways])
        return [v for part in sets for v in part]

    def _multiply(self, position: str, step: int, sums: list[str]) -> list[str]:
        """One step along k: `sums` with a column of A times a row of B added."""
        f, kind = self.f, self.kind
        where = f.offset("%b", "float", f.mul(f.add(position, str(step)), self.row_length))
        right = [
            f.value(f"load {kind}, ptr {f.offset(where, 'float', str(j * self.lanes))}, align 4")
            for j in range(self.vectors)
        ]
        made = []
        for r in range(self.rows):
            element = f.offset(f.offset(self.starts[r], "float", position), "float", str(step))
            scalar = f.value(f"load float, ptr {element}, align 4")
            first = f.value(f"insertelement {kind} poison, float {scalar}, i64 0")
            left = f.value(f"shufflevector {kind} {first}, {kind} poison, <{self.lanes} x i32> zeroinitializer")
            for j in range(self.vectors):
                operands = f"{kind} {left}, {kind} {right[j]}, {kind} {sums[r * self.vectors + j]}"
                made.append(f.value(f"call {kind} {self.fma}({operands})"))
        return made


@dataclass(frozen=True)
class Tile:
    """Operands of a call of a core: pointers and row lengths in elements, as LLVM values."""

    a: str
    lda: str
    b: str
    c: str
    ldc: str
    k: str
    ahead: str
    more: str = "false"


def call_core(f: Function, height: str, tallest: int, vectors: int, tile: Tile) -> None:
    """Calls the core of a height that is only known at run time (1 … tallest) on a packed panel."""
    text = (
        f"ptr {tile.a}, i64 {tile.lda}, ptr {tile.b}, ptr {tile.c}, i64 {tile.ldc}, i64 {tile.k}, "
        f"ptr {tile.ahead}, i1 {tile.more}"
    )
    number = f.fresh("S")[1:]
    cases = " ".join(f"i64 {r}, label %{number}.{r}" for r in range(1, tallest + 1))
    f.emit(f"switch i64 {height}, label %{number}.end [ {cases} ]")
    for r in range(1, tallest + 1):
        f.label(f"{number}.{r}")
        f.emit(f"call void @{core(f.module, r, vectors)}({text})")
        f.emit(f"br label %{number}.end")
    f.label(f"{number}.end")


def tiles_of(f: Function, rows: str, tallest: int) -> tuple[str, str, str]:
    """(number of tiles, least height, how many are one higher): tiles of nearly equal height."""
    count = f.ceil_divide(rows, str(tallest))
    none = f.value(f"icmp eq i64 {count}, 0")
    divisor = f.value(f"select i1 {none}, i64 1, i64 {count}")
    return count, f.divide(rows, divisor), f.remainder(rows, divisor)


def tile_at(f: Function, tile: str, base: str, extra: str) -> tuple[str, str]:
    """(first row, height) of a tile."""
    taller = f.value(f"icmp slt i64 {tile}, {extra}")
    height = f.add(base, f.value(f"zext i1 {taller} to i64"))
    return f.add(f.mul(tile, base), f.smin(tile, extra)), height


def render(module: Module, stem: str, planned: GemmPlan, slots: int) -> str:
    """Adds the function of a contraction to the module and gives its name."""
    return module.define(stem, lambda name: _GemmWriter(module, name, planned, slots).write())


class _GemmWriter:
    def __init__(self, module: Module, name: str, planned: GemmPlan, slots: int) -> None:
        self.plan = planned
        self.work = planned.work
        self.f = Function(module, name, PARAMETERS)
        self.lanes = module.target.lanes
        self.width = planned.vectors * self.lanes
        self.ragged = not (isinstance(self.work.n, int) and self.work.n % self.width == 0)
        self.body = Body(self.f, buffer_pointers(self.f, slots))
        self.epilogue = [Store(s.slot, s.offset, maths.legalise(s.body), False) for s in self.work.epilogue]

    def write(self) -> Function:
        self.f.loop("%begin", "%end", 1, [], self._position)
        return self.f

    def _position(self, position: str, _: list[str]) -> list[str]:
        f, work = self.f, self.work
        self.body.push()
        panels = f.dim(dims.ceildiv(work.n, self.width))
        blocks = f.dim(dims.ceildiv(work.m, ROW_BLOCK))
        if work.packed and work.batch:
            # batches share the panels: each panel stays in cache while all rows pass by
            others = f.dim(dims.product((*work.batch, dims.ceildiv(work.m, ROW_BLOCK))))
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
        right, ahead = self._panel(panel, column)
        self._tiles(first, rows, column, right, ahead)
        self.body.pop()
        return []

    def _panel(self, panel: str, column: str) -> tuple[str, str]:
        """The panel's address, and what to prefetch meanwhile: the panel behind it."""
        f, work = self.f, self.work
        if work.packed:
            size = f.mul(f.dim(dims.mul(dims.product(work.taps), work.k)), str(self.width))
            here = f.offset(self.body.bases[work.b_slot], "float", f.mul(panel, size))
            return here, f.offset(here, "float", size)
        target = f.offset("%scratch", "float", str(self.plan.rows * self.width))
        left = f.sub(f.dim(work.n), column)
        source = Source(work.b_slot, work.b, column, target, self.ragged)
        pack_panel(self.body, (work.k_axis, work.n_axis), self.plan.vectors, (f.dim(work.k), left), source)
        return target, target

    def _tiles(self, first: str, rows: str, column: str, right: str, ahead: str) -> None:
        """The rows of a block, tile by tile; every tile prefetches its share of the panel to come."""
        f, work = self.f, self.work
        count, base, extra = tiles_of(f, rows, self.plan.rows)
        depth = f.dim(self.plan.run)
        share = f.mul(depth, str(PREFETCH_LINES * 16 // UNROLL))

        def one(tile: str, _: list[str]) -> list[str]:
            offset, height = tile_at(f, tile, base, extra)
            row = f.add(first, offset)
            self.body.push()
            self.body.axes[work.m_axis] = row
            left = self.body.pointer(work.a_slot, work.dtype, _without_k(work))
            width = str(self.width)
            next_share = f.offset(ahead, "float", f.mul(tile, share))
            lda = f.dim(work.a.coefficient(work.m_axis))
            operands = Tile(left, lda, right, "%scratch", width, depth, next_share)
            self._over_taps(height, operands)
            self._finish(row, height, column)
            self.body.pop()
            return []

        f.loop("0", count, 1, [], one)

    def _over_taps(self, height: str, tile: Tile) -> None:
        """One call of the core for every tap; all but the first add to the tile."""
        f, plan = self.f, self.plan
        if not plan.taps:
            call_core(f, height, plan.rows, plan.vectors, tile)
            return
        total = f.dim(dims.product(extent for extent, _ in plan.taps))
        step = f.mul(f.dim(plan.run), str(self.width))

        def one(tap: str, _: list[str]) -> list[str]:
            moved, rest = "0", tap
            for extent, coefficient in reversed(plan.taps):
                moved = f.add(moved, f.mul(f.remainder(rest, f.dim(extent)), f.dim(coefficient)))
                rest = f.divide(rest, f.dim(extent))
            here = dataclasses.replace(
                tile,
                a=f.offset(tile.a, "float", moved),
                b=f.offset(tile.b, "float", f.mul(tap, step)),
                more=f.value(f"icmp ne i64 {tap}, 0"),
            )
            call_core(f, height, plan.rows, plan.vectors, here)
            return []

        f.loop("0", total, 1, [], one)

    def _finish(self, first: str, height: str, column: str) -> None:
        """The epilogue over a tile that lies in scratch."""
        f, work = self.f, self.work

        def one(row: str, _: list[str]) -> list[str]:
            for j in range(self.plan.vectors):
                at = f.add(column, str(j * self.lanes))
                if self.ragged and j:
                    f.when(f.value(f"icmp slt i64 {at}, {f.dim(work.n)}"), lambda: self._vector(first, row, j, at))  # noqa: B023
                else:
                    self._vector(first, row, j, at)
            return []

        f.loop("0", height, 1, [], one)

    def _vector(self, first: str, row: str, j: int, at: str) -> None:
        f, work = self.f, self.work
        kind = self.body.kind("float", True)
        self.body.push()
        self.body.axes[work.m_axis] = f.add(first, row)
        self.body.axes[work.n_axis] = at
        mask = lane_mask(self.body, f.sub(f.dim(work.n), at)) if self.ragged else None
        self.body.vector = Vector(work.n_axis, mask)
        where = f.offset("%scratch", "float", f.add(f.mul(row, str(self.width)), str(j * self.lanes)))
        self.body.accumulated = Reg(f.value(f"load {kind}, ptr {where}, align 4"), dtypes.f32, True)
        for store in self.epilogue:
            self.body.store(store.slot, store.offset, self.body.gen(store.body))
        self.body.vector = None
        self.body.pop()


def _without_k(work: Contraction) -> Linear:
    inside = (*work.tap_axes, work.k_axis)
    return Linear(work.a.const, tuple((n, c) for n, c in work.a.axes if n not in inside))
