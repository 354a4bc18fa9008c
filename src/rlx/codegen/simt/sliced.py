"""Contractions whose sums the lanes of a workgroup share, for GPUs that have more lanes than products have results.

A lane has a block of ROWS x COLUMNS results as in `contraction.py`, and of their sums a slice: every so many-th step of
k, so that neighbours read neighbours. How many slices there are hangs on how many blocks: few blocks, as of one
sentence or one token, have many. Parts of sums meet in workgroup memory, and each lane finishes results of its own.
"""

from __future__ import annotations

from rlx.codegen.scalar.int_ranges import Check
from rlx.codegen.simt import loops as nests
from rlx.codegen.simt import tiled
from rlx.codegen.simt.code import WORKGROUP, Shader
from rlx.codegen.simt.contraction import COLUMNS, Blocked
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.rows import LIBRARY_LOOP
from rlx.codegen.simt.writer import place
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.loops import Store

MOST_SLICES = 16
SOME_SLICES = 4
FEW_BLOCKS = 1 << 13
"""With no fewer blocks there are some slices,"""
MANY_BLOCKS = 1 << 16
"""and with no fewer than these one: they keep all lanes of a GPU busy;"""
TILED_BLOCKS = 1 << 14
"""or with no fewer than these, where tiles can take their place."""
LEAST_K = 16
"""Shorter sums have no slices."""
STEPS = 8
"""Of a loop over k that are written out, so that as many loads are under way: compilers move none before the test
whether its step is there."""


def takes(work: Contraction, target: Target) -> bool:
    """Whether a product is written so: of floats that are added up in f32, with sums that are long enough."""
    long = not isinstance(work.k, int) or work.k >= LEAST_K
    return target.shares_sums and long and work.dtype.is_float and work.dtype is not dtypes.f64


class Sliced(Blocked):
    """Positions are (batch, rows, columns), each a workgroup's: `width` quads of columns, or a tile where there are
    many blocks."""

    def render(self) -> Shader:
        work, code, record, index = self.work, self.code, self.record, self.language.index
        quads = dims.ceildiv(work.n, COLUMNS)
        rows = dims.ceildiv(work.m, self.rows)
        is_tiled = tiled.takes(work)
        several, many = how_many(dims.product((*work.batch, rows, quads)), is_tiled)
        self.tiles = many if is_tiled else 0
        number = dims.add(MOST_SLICES, _choice(several, SOME_SLICES - MOST_SLICES, many, 1 - SOME_SLICES))
        groups = _among(several, many, [dims.ceildiv(quads, WORKGROUP // n) for n in (MOST_SLICES, SOME_SLICES, 1)])
        if self.tiles != 0:
            tile_groups = dims.ceildiv(work.n, tiled.TILE)
            rows = _among(0, many, [rows, rows, dims.ceildiv(work.m, tiled.TILE)])
            groups = _among(0, many, [groups, groups, tile_groups])
        grid = (*work.batch, rows, groups)
        place(self.body, grid)
        self.slices = code.let(record.dim(number), "slices")
        self.last_quad = code.let(f"{record.dim(quads)} - {index(1)}", "last")
        self._results()
        extents = (*work.batch, work.m, work.n)
        checks = (Check(tuple(self.body.indices), extents),) if self.body.indices else ()
        text = self.language.assemble(code, record, self.bindings, self.name, 1)
        steps = dims.mul(dims.product(work.taps), dims.add(dims.mul(work.k, 2), 2 + 2 * len(work.taps)))
        iterations = dims.add(steps, tiled.TILE * (LIBRARY_LOOP + MOST_SLICES))
        return Shader(
            text, tuple(self.bindings), record.slots, record.numbers, dims.product(grid), True, iterations, checks,
            schedule=self.schedule,
        )  # fmt: skip

    def _results(self) -> None:
        """Sums in workgroup memory, and what the epilogue makes of them."""
        code, work, index, record = self.code, self.work, self.language.index, self.record
        row, group = self.body.axes[work.m_axis], self.body.axes[work.n_axis]
        width = code.let(f"{index(WORKGROUP)} / {self.slices}", "width")
        if self.tiles == 0:
            first_row, first_quad = f"{row} * {index(self.rows)}", f"{group} * {width}"
            rows, shift = index(self.rows), self._shift()
        else:
            choose = self.language.select
            is_tiled = self.is_tiled = code.let(f"{record.dim(self.tiles)} != {index(0)}", "is_tiled")
            first_row = f"{row} * {choose(is_tiled, index(tiled.TILE), index(self.rows))}"
            first_quad = f"{group} * {choose(is_tiled, index(tiled.QUADS), width)}"
            rows = choose(is_tiled, index(tiled.TILE), index(self.rows))
            shift = choose(is_tiled, index(tiled.TILE.bit_length() - 1), self._shift())
        first_row, first_quad = code.let(first_row, "row"), code.let(first_quad, "quad")
        if self.tiles == 0:
            self._sums(first_row, first_quad)
        else:
            with self.body.scope(f"if ({self.is_tiled})"):
                tiled.Tile(self, first_row, first_quad, self.last_quad).write()
            with self.body.scope("else"):
                self._sums(first_row, first_quad)
        code.emit(self.language.barrier())
        self._join(first_row, code.let(f"{first_quad} * {index(COLUMNS)}", "column"), rows, code.let(shift, "shift"))

    def _shift(self) -> str:
        """The power of two that is how many columns a workgroup has without tiles: nothing is divided by it."""
        choose, index = self.language.select, self.language.index
        powers = {n: index((WORKGROUP // n * COLUMNS).bit_length() - 1) for n in (MOST_SLICES, SOME_SLICES, 1)}
        some = choose(f"{self.slices} == {index(SOME_SLICES)}", powers[SOME_SLICES], powers[1])
        return choose(f"{self.slices} == {index(MOST_SLICES)}", powers[MOST_SLICES], some)

    def _sums(self, first_row: str, first_quad: str) -> None:
        """The sums of slices, in workgroup memory."""
        code, work, language, index = self.code, self.work, self.language, self.language.index
        lane = language.lane_index()
        self.slice = code.let(f"{lane} % {self.slices}", "slice")
        own_quad = f"min({first_quad} + {lane} / {self.slices}, {self.last_quad})"
        own_column = code.let(f"{own_quad} * {index(COLUMNS)}", "column")
        a = [self.a_offset(self.inside(first_row, i, work.m, self.rows)) for i in range(self.rows)]
        self.sum(a, self.b_offsets(own_column))
        for i in range(self.rows):
            for j in range(COLUMNS):
                part = language.quad_component(f"total{i}", j)
                code.emit(f"{self._shared()}[{index((i * COLUMNS + j) * WORKGROUP)} + {lane}] = {part};")

    def _shared(self) -> str:
        """Workgroup memory as floats: of tiles where there are any."""
        if self.tiles != 0:
            return self.language.floats_of(tiled.SHARED)
        count = self.rows * COLUMNS * WORKGROUP
        return self.language.shared_array(self.code, dtypes.f32, False, "shared_sums", count)

    def blocks(self, a: list[str], b: list[str]) -> None:
        """The slice's products over k, so many at a time added up on their own."""
        code, language = self.code, self.language
        extent = self.record.dim(self.work.k)
        stride = code.let(f"{self.slices} * {language.index(self.block)}", "stride")
        with code.block(language.loop_while("start", language.index(0), f"start < {extent}", f"start + {stride}")):
            for i in range(self.rows):
                code.emit(language.mutable(f"part{i}", language.quad()))
            code.emit(language.let("stop", f"min(start + {stride}, {extent})"))
            self._slice_of_products("part", f"start + {self.slice}", "stop", a, b)
            for i in range(self.rows):
                code.emit(f"total{i} = total{i} + part{i};")

    def _slice_of_products(self, into: str, low: str, high: str, a: list[str], b: list[str]) -> None:
        """Every so many-th step: some at once, whose loads are all under way before the first product, and the rest."""
        code, language, index = self.code, self.language, self.language.index
        code.emit(language.mutable("done", low))
        last, following = (f"k + {index(count)} * {self.slices}" for count in (STEPS - 1, STEPS))
        with code.block(language.loop_while("k", "done", f"{last} < {high}", following)):
            steps = [code.let(f"k + {index(number)} * {self.slices}", "step") for number in range(STEPS)]
            for operands in [self.operands(step, a, b) for step in steps]:
                self.multiply(into, operands)
            code.emit(f"done = {following};")
        with code.block(language.loop_while("k", "done", f"k < {high}", f"k + {self.slices}")):
            self.multiply(into, self.operands("k", a, b))

    def _join(self, first_row: str, first_column: str, rows: str, shift: str) -> None:
        """Adds up the slices of each result, and stores what the epilogue makes of it."""
        code, work, body, language = self.code, self.work, self.body, self.language
        index, shared = language.index, self._shared()
        count = code.let(f"{rows} << {shift}", "count")
        last = code.let(f"({index(1)} << {shift}) - {index(1)}", "last")
        with body.scope(language.loop("e", language.lane_index(), count, WORKGROUP)):
            row = code.let(f"{first_row} + (e >> {shift})")
            column = code.let(f"{first_column} + (e & {last})")
            m, n = self.record.dim(work.m), self.record.dim(work.n)
            body.axes[work.m_axis], body.axes[work.n_axis] = row, column
            with body.scope(f"if ({row} < {m} && {column} < {n})"):
                among = f"((e >> {shift}) * {index(COLUMNS)} + e % {index(COLUMNS)}) * {index(WORKGROUP)}"
                first = f"{among} + (e & {last}) / {index(COLUMNS)} * {self.slices}"
                first = code.let(first if self.tiles == 0 else language.select(self.is_tiled, "e", first), "first")
                code.emit(language.mutable("sum", f"{shared}[{first}]"))
                with code.block(language.loop("s", index(1), self.slices)):
                    code.emit(f"sum = sum + {shared}[{first} + s];")
                total = code.let(language.rounded(work.dtype, "sum"))
                body.accumulated = Reg(total, work.dtype, False)
                for stage in nests.legal_stages(work.epilogue):
                    assert isinstance(stage, Store)
                    body.store(stage.slot, stage.offset, body.gen(stage.body))


def how_many(blocks: Dim, is_tiled: bool) -> tuple[Dim, Dim]:
    """Whether there are several, and whether there are many, as 1 or 0."""
    many = TILED_BLOCKS if is_tiled else MANY_BLOCKS
    return dims.minimum(dims.floordiv(blocks, FEW_BLOCKS), 1), dims.minimum(dims.floordiv(blocks, many), 1)


def _choice(several: Dim, of_several: int, many: Dim, of_many: int) -> Dim:
    return dims.add(dims.mul(several, of_several), dims.mul(many, of_many))


def _among(several: Dim, many: Dim, numbers: list[Dim]) -> Dim:
    """The first of three numbers where there are few blocks, the second where there are several, else the third."""
    few, some, most = numbers
    between = dims.mul(several, dims.add(some, dims.mul(few, -1)))
    return dims.add(few, dims.add(between, dims.mul(many, dims.add(most, dims.mul(few if several == 0 else some, -1)))))
