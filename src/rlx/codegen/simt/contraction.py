"""Contractions as compute shaders: an invocation computes ROWS x COLUMNS results in registers.

No workgroup memory: on software drivers tiles there are the slowest form of all, and on GPUs the caches do much of the
same. Lanes lie along n, so that they read neighbouring columns of b and the same elements of a.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from rlx.codegen.scalar.int_ranges import Check, Ranges
from rlx.codegen.simt import loops as nests
from rlx.codegen.simt.body import Body
from rlx.codegen.simt.code import WORKGROUP, Binding, Code, Shader, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.language import WGSL
from rlx.codegen.simt.language.wgsl.types import PLAIN, Target
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.rows import LIBRARY_LOOP
from rlx.codegen.simt.writer import place
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, contiguous
from rlx.kernel.ir.loops import Store
from rlx.kernel.schedule.overrides import overridden
from rlx.kernel.schedule.schedule import Schedule, Tile

ROWS = 4
COLUMNS = 4
BLOCK = 64
"""Products that are added up on their own: one long chain would lose digits."""
PANEL = 64
"""Columns of a panel of packed weights: neighbouring lanes read neighbouring memory."""


def panels(work: Contraction) -> tuple[int, int]:
    """Width of the panels that the static right side of a contraction is to be packed into, 0 for none, and elements
    of k in a group."""
    if work.dtype is not dtypes.f32 or not isinstance(work.n, int):
        return 0, 1
    return min(PANEL, -(-work.n // COLUMNS) * COLUMNS), 1


def schedule(work: Contraction) -> Schedule:
    """A block of sums in registers; columns are a quad, and lanes lie along them."""
    chosen = Schedule(
        tiles=(Tile("register", "m", ROWS), Tile("register", "n", COLUMNS), Tile("register", "k", BLOCK)),
        vector=("n", COLUMNS),
        spaces=(("a", "global"), ("b", "panels" if work.packed else "global"), ("sum", "register")),
    )
    chosen = overridden("contraction", chosen)
    return chosen.with_tile("register", "n", COLUMNS)  # a row of sums is a quad


def render(
    work: Contraction,
    slots: Sequence[Slot],
    bindings: Sequence[Binding],
    name: str,
    target: Target = PLAIN,
    language: Language = WGSL,
) -> Shader:
    """The shader of a contraction: in registers where its sums fit in quads of f32, else as a plain nest."""
    if not work.dtype.is_float or work.dtype is dtypes.f64:
        return nests.render(work.as_nest(), slots, bindings, name, target, language)
    return Blocked(work, slots, bindings, name, language).render()


class Blocked:
    """A contraction in the making, whose invocations have a block of results each."""

    def __init__(
        self, work: Contraction, slots: Sequence[Slot], bindings: Sequence[Binding], name: str, language: Language
    ) -> None:
        self.work = work
        self.schedule = schedule(work)
        self.rows = self.schedule.static_tile("register", "m")
        self.block = self.schedule.static_tile("register", "k")
        self.bindings = bindings
        self.name = name
        self.language = language
        self.code = Code(language)
        self.record = language.record(len(slots))
        self.body = Body(self.code, self.record, slots, Ranges())
        self.rows_of_a: list[str] = []
        self.within: list[str] = []
        """Whether the left side is read at a tap, for each row; nothing where it always is."""

    def render(self) -> Shader:
        work, code, record, index = self.work, self.code, self.record, self.language.index
        grid = (*work.batch, dims.ceildiv(work.m, self.rows), dims.ceildiv(work.n, COLUMNS))
        place(self.body, grid)
        first_row = code.let(f"{self.body.axes[work.m_axis]} * {index(self.rows)}", "row")
        first_column = code.let(f"{self.body.axes[work.n_axis]} * {index(COLUMNS)}", "column")
        rows = [self.inside(first_row, i, work.m, self.rows) for i in range(self.rows)]
        a = [self.a_offset(row) for row in rows]
        b = self.b_offsets(first_column)
        self.sum(a, b)
        self._epilogue(first_row, first_column)
        extents = (*work.batch, work.m, work.n)
        checks = (Check(tuple(self.body.indices), extents),) if self.body.indices else ()
        text = self.language.assemble(code, record, self.bindings, self.name, WORKGROUP)
        blocks = dims.floordiv(dims.add(work.k, self.block - 1), self.block)
        a_tap = dims.add(dims.add(work.k, dims.mul(blocks, 2)), 2 + 2 * len(work.taps))
        iterations = dims.add(dims.mul(dims.product(work.taps), a_tap), self.rows * COLUMNS * LIBRARY_LOOP)
        positions = dims.product(grid)
        return Shader(
            text, tuple(self.bindings), record.slots, record.numbers, positions, False, iterations, checks,
            schedule=self.schedule,
        )  # fmt: skip

    def inside(self, first: str, step: int, extent: Dim, block: int) -> str:
        """A row or column of the block; behind the end the last one stands in, and its results are dropped."""
        index = self.language.index
        if isinstance(extent, int) and extent % block == 0:
            return self.code.let(f"{first} + {index(step)}")
        return self.code.let(f"min({first} + {index(step)}, {self.record.dim(extent)} - {index(1)})")

    def a_offset(self, row: str) -> str:
        """Offset of a row of a, at tap 0 and k = 0."""
        self.body.axes[self.work.m_axis] = row
        self.rows_of_a.append(row)
        return self.body.fresh_offset(self._outside(self.work.a))

    def _outside(self, line: Linear) -> Linear:
        """An offset without what the sum runs over."""
        inside = (*self.work.tap_axes, self.work.k_axis)
        return Linear(line.const, tuple((n, c) for n, c in line.axes if n not in inside), line.others)

    def b_offsets(self, first_column: str) -> list[str]:
        """Offsets of b's columns at tap 0 and k = 0, or of the quad of a packed panel."""
        work, code, index = self.work, self.code, self.language.index
        if work.packed:
            width = index(work.packed)
            panel = code.let(f"{first_column} / {width}")
            depth = self.record.dim(dims.mul(dims.product((*work.taps, work.k)), work.packed))
            return [code.let(f"({panel} * {depth} + {first_column} % {width}) / {index(COLUMNS)}", "at")]
        offsets = []
        for i in range(COLUMNS):
            self.body.axes[work.n_axis] = self.inside(first_column, i, work.n, COLUMNS)
            offsets.append(self.body.fresh_offset(self._outside(work.b)))
        return offsets

    def sum(self, a: list[str], b: list[str]) -> None:
        """Σ over taps and k into total0 … total3, one quad a row."""
        for i in range(self.rows):
            self.code.emit(self.language.mutable(f"total{i}", self.language.quad()))
        self.sum_with(self.blocks, a, b)

    def sum_with(self, products: Callable[[list[str], list[str]], None], a: list[str], b: list[str]) -> None:
        """Has the products at each tap written."""
        code, work, language = self.code, self.work, self.language
        with ExitStack() as loops:
            for i, (axis, extent) in enumerate(zip(work.tap_axes, work.taps)):
                name = f"tap{i}"
                self.body.axes[axis] = name
                loops.enter_context(code.block(language.loop(name, language.index(0), self.record.dim(extent))))
            if work.taps:
                a = [self._at_tap(work.a, at) for at in a]
                b = [self._quad_at_tap(b[0])] if work.packed else [self._at_tap(work.b, at) for at in b]
            self._test_bounds()
            products(a, b)

    def _test_bounds(self) -> None:
        """Tests for each row whether its window is inside at this tap."""
        guard = self.work.guard()
        if guard is not None:
            for row in self.rows_of_a:
                self.body.axes[self.work.m_axis] = row
                self.within.append(self.body.gen(guard).name)

    def _at_tap(self, line: Linear, at: str) -> str:
        steps = tuple((n, c) for n, c in line.axes if n in self.work.tap_axes)
        return self.code.let(f"{at} + {self.body.fresh_offset(Linear(0, steps))}", "at")

    def _quad_at_tap(self, at: str) -> str:
        """The quad of a panel, which holds [taps...][k][width]."""
        work = self.work
        steps = contiguous((*work.taps, work.k, work.packed // 4))[: len(work.taps)]
        return self.code.let(f"{at} + {self.body.fresh_offset(Linear(0, tuple(zip(work.tap_axes, steps))))}", "at")

    def blocks(self, a: list[str], b: list[str]) -> None:
        """Products over k, so many at a time added up on their own."""
        code, work, language = self.code, self.work, self.language
        extent = self.record.dim(work.k)
        if isinstance(work.k, int) and work.k <= self.block and not work.taps:
            self.products("total", language.index(0), extent, a, b)
            return
        with code.block(language.loop("start", language.index(0), extent, self.block)):
            for i in range(self.rows):
                code.emit(language.mutable(f"part{i}", language.quad()))
            code.emit(language.let("stop", f"min(start + {language.index(self.block)}, {extent})"))
            self.products("part", "start", "stop", a, b)
            for i in range(self.rows):
                code.emit(f"total{i} = total{i} + part{i};")

    def products(self, into: str, low: str, high: str, a: list[str], b: list[str]) -> None:
        with self.code.block(self.language.loop("k", low, high)):
            self.multiply(into, self.operands("k", a, b))

    def operands(self, k: str, a: list[str], b: list[str]) -> tuple[list[str], str]:
        """An element of each row of a, and a quad of b, at a step of k."""
        step = self.record.dim(self.work.a.coefficient(self.work.k_axis))
        places = [f"({at} + {k} * {step})" for at in a]
        if self.within:
            left = [self.load_within(self.work.a_slot, at, guard) for at, guard in zip(places, self.within)]
        else:
            left = [self.body.load_at(self.work.a_slot, at).name for at in places]
        return left, self._right(k, b)

    def multiply(self, into: str, operands: tuple[list[str], str]) -> None:
        left, right = operands
        for i, factor in enumerate(left):
            self.code.emit(f"{into}{i} = {self.language.quad_fma(factor, right, f'{into}{i}')};")

    def load_within(self, slot: int, offset: str, guard: str) -> str:
        """The element of a slot as an f32, 0 where the guard is false."""
        return self.language.load(self.body, slot, offset, Reg(guard, dtypes.bool_, False)).name

    def _right(self, k: str, b: list[str]) -> str:
        """Four neighbouring columns of b at k."""
        code, work = self.code, self.work
        if work.packed:
            step = self.language.index(work.packed // COLUMNS)
            return code.let(self.language.load_quad(self.body, work.b_slot, f"{b[0]} + {k} * {step}"))
        step = self.record.dim(work.b.coefficient(work.k_axis))
        columns = [self.body.load_at(work.b_slot, f"({at} + {k} * {step})").name for at in b]
        return code.let(self.language.quad(columns))

    def _epilogue(self, first_row: str, first_column: str) -> None:
        """The stores, one result after the other: a loop, so that long bodies are there only once."""
        code, work, body, language = self.code, self.work, self.body, self.language
        width = language.index(COLUMNS)
        totals = [language.quad_component(f"total{i}", j) for i in range(self.rows) for j in range(COLUMNS)]
        code.emit(language.array_of("results", language.register_type(dtypes.f32, False), totals))
        with body.scope(language.loop("e", language.index(0), language.index(len(totals)))):
            row = code.let(f"{first_row} + e / {width}")
            column = code.let(f"{first_column} + e % {width}")
            m, n = self.record.dim(work.m), self.record.dim(work.n)
            body.axes[work.m_axis], body.axes[work.n_axis] = row, column
            with body.scope(f"if ({row} < {m} && {column} < {n})"):
                total = code.let(language.rounded(work.dtype, "results[e]"))
                body.accumulated = Reg(total, work.dtype, False)
                for stage in nests.legal_stages(work.epilogue):
                    assert isinstance(stage, Store)
                    body.store(stage.slot, stage.offset, body.gen(stage.body))
