"""Loop nests in pieces: a lane has neighbours along the last axis, which it reads and writes by 16 bytes at a time.

A map has a lane for each of them; a row has the lanes of a part of a warp, of a warp or of the workgroup, which keep
what they read for all passes over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from rlx.codegen.scalar.int_ranges import Check, Ranges
from rlx.codegen.simt.body import Body
from rlx.codegen.simt.code import WIDE, WORKGROUP, Binding, Code, Shader, Slot
from rlx.codegen.simt.group_rows import WARP
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.cpp import WHOLE_BYTES
from rlx.codegen.simt.piece_rows import (
    HELD_DTYPES,
    NEIGHBOURS,
    Operand,
    PieceRows,
    held_operands,
    in_pieces,
    steps,
)
from rlx.codegen.simt.piece_rows import words as words_held
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.rows import needs
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import INSTRUCTIONS
from rlx.kernel.ir.axes import speaks_of
from rlx.kernel.ir.index import offset_of
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Statement, Store, is_once_a_row
from rlx.kernel.schedule.schedule import Schedule, Tile

MOST_WORDS = 96
"""Of operands that a lane holds; it has little else."""
MOST_INSTRUCTIONS = 100
"""Of an element: small maps of more are done sooner by more lanes."""
WIDTHS = (WARP // 2, WARP, WORKGROUP)
"""Numbers of lanes that a row may have."""
MOST_ALONE = 5 << 18
"""Elements of all rows up to which lanes have one row at a time."""
USUAL_STEPS = 4
"""Of a warp, or a part of it, along a row; where there are more, a workgroup has the row."""


class PieceNest(PieceRows):
    """A nest whose last axis is in pieces; `width` is the number of a row's lanes, 0 for maps, and `at_once` how many
    rows these have: what is the same for all rows is there once for them."""

    loads_at_once = True

    def __init__(
        self, body: Body, nest: LoopNest, stages: Sequence[Statement], width: int, held: Sequence[Operand],
        at_once: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(body, nest, stages, WORKGROUP, width or 1, ex.const(0, dtypes.i64), _nothing, "", held)
        self.is_map = width == 0
        self.at_once = at_once
        self.axis = len(nest.extents()) - 1
        if self.is_map:
            self.inner, self.length, self.lane = [self.axis], NEIGHBOURS, "piece"

    def place(self) -> Dim:
        """Names a lane's place, and tells how many lanes there are."""
        code, record = self.code, self.body.record
        outer = [*self.nest.outer[:-1], self._pieces_along()] if self.is_map else list(self.nest.outer)
        self.counted = dims.product(outer)
        if self.is_map:
            code.emit(f"if (position >= {record.dim(self.counted)}) {{ follow(); return; }}")
            self._place_at(outer, "position")
            return self.counted
        code.emit(f"const int own = (int)lane % {min(self.step, WARP)}, warp = (int)lane / {WARP};")
        total = dims.mul(dims.ceildiv(self.counted, self.at_once), self.step)
        self.rows_at = code.let(
            f"position / {self.language.index(self.step)} * {self.language.index(self.at_once)}", "row"
        )
        return total

    def _place_row(self, number: int) -> str:
        """Names the place of one of the lane's rows along the outer axes, and gives what tells whether there is one."""
        index = self.language.index
        row = self.code.let(f"{self.rows_at} + {index(number)}", "row") if number else self.rows_at
        count = self.body.record.dim(self.counted)
        inside = self.code.let(f"{row} < {count}", "inside")
        self._place_at(list(self.nest.outer), self.code.let(f"minimum({row}, {count} - {index(1)})", "row"))
        return inside

    def _place_at(self, outer: Sequence[Dim], rest: str) -> None:
        code, record = self.code, self.body.record
        for number in reversed(range(len(outer))):
            at = rest
            if number:
                extent = record.divisor(outer[number])
                at, rest = code.let(f"{rest} % {extent}", "index"), code.let(f"{rest} / {extent}", "rest")
            if self.is_map and number == self.axis:
                code.emit(f"const auto piece = {at};")
            else:
                self.body.axes[number] = at

    def _pieces_along(self) -> Dim:
        pieces = dims.exact_div(self.nest.outer[-1], NEIGHBOURS)
        assert pieces is not None
        return pieces

    def write(self) -> None:
        self.bring_ahead()
        self.code.emit("follow();")
        if self.is_map:
            self._load_own(self.held)
            self._write_row()
            return
        rows = []
        for number in range(self.at_once):
            self.inside = self._place_row(number)
            held = [each if each.ahead else replace(each, name=f"{each.name}_{number}") for each in self.held]
            self._load_own(held)
            rows.append((self.inside, dict(self.body.axes), held))
        # behind which assemblers put no load that stands before: some would come after sums of rows, and be waited for
        self.code.emit("__syncwarp();")
        for inside, axes, held in rows:
            self.inside, self.held = inside, held
            self.body.axes.update(axes)
            with self.body.scope(""):
                self._write_row()

    def _load_own(self, held: Sequence[Operand]) -> None:
        for operand in held:
            if not operand.ahead:
                self._load(operand)

    def _write_row(self) -> None:
        for group in self.passes():
            first = self.statements[group[0]]
            if isinstance(first, Store) and is_once_a_row(first) and not self.is_map:
                with self.body.scope(f"if ({self.inside} && {'own' if self.step <= WARP else '(int)lane'} == 0)"):
                    self.put(first)
                continue
            sums = [n for n in group if isinstance(self.statements[n], Reduce)]
            totals = {n: self.variable(s, "total") for n, s in self.reduces(sums).items()}
            stores = [s for n in group if isinstance(s := self.statements[n], Store)]
            with self._pieces() as (place, step):
                for _ in self._neighbours(place, step, [self.statements[n].body for n in sums]) if sums else ():
                    self.visit(sums, totals)
                for store in stores:
                    self._store(store, place, step)
            for number, stage in self.reduces(sums).items():
                self.body.rows[number] = self._joined(stage, totals[number])

    def _store(self, store: Store, place: str, step: str) -> None:
        """Makes a statement's values of some neighbours, and stores them, where its guard holds."""
        body = self.body
        with ExitStack() as scopes:
            conditions = [] if self.is_map else [self.inside]
            if store.guard is not None:
                body.axes[self.axis] = place
                conditions.append(body.gen(store.guard).name)
            if conditions:
                scopes.enter_context(body.scope(f"if ({' && '.join(conditions)})"))
            values = [body.gen(store.body) for _ in self._neighbours(place, step, [store.body])]
            slot = body.slots[store.slot]
            if slot.dtype not in HELD_DTYPES and not (slot.dtype in WHOLE_BYTES and slot.aligned):
                for number, value in enumerate(values):
                    body.axes[self.axis] = f"({place} + {number})"
                    body.store(store.slot, store.offset, value)
                return
            self.store_pieces(store, place, values)

    @contextmanager
    def _pieces(self) -> Iterator[tuple[str, str]]:
        if not self.is_map:
            with super()._pieces() as found:
                yield found
            return
        self.count(NEIGHBOURS)
        place = self.code.let(f"piece * {self.language.index(NEIGHBOURS)}", "k")
        yield place, "0"

    @property
    def _is_whole(self) -> bool:
        return self.is_map or super()._is_whole


def _nothing(first: str, values: list[Reg]) -> None:
    """Rows of a nest are for nobody else."""


def plan(nest: LoopNest, stages: Sequence[Statement], slots: Sequence[Slot]) -> tuple[int, list[Operand]] | None:
    """The lanes of a row, 0 for maps, and what they hold; None for nests that do not lie in pieces."""
    extents = nest.extents()
    if not extents or len(nest.inner) > 1 or any(isinstance(s, RowBuffer) and nest.inner == () for s in stages):
        return None
    axis, bodies = len(extents) - 1, [e for stage in stages for e in needs(stage)]
    along = [s for s in stages if isinstance(s, Store) and not (nest.inner and is_once_a_row(s))]
    if not all(_stores_pieces(store, axis) for store in along):
        return None
    sums = [s for s in stages if isinstance(s, Reduce)]
    if any(s.argument or s.dtype is not dtypes.f32 for s in sums) or (sums and not nest.inner):
        return None
    held = held_operands(slots, bodies, axis)
    if held is None:
        return None
    if not nest.inner:
        instructions = sum(node.kind in INSTRUCTIONS for node in ex.walk(bodies))
        fits = words_held(held) <= MOST_WORDS and instructions <= MOST_INSTRUCTIONS
        return (0, held) if fits and dims.exact_div(extents[-1], NEIGHBOURS) is not None else None
    length = nest.inner[0]
    if not isinstance(length, int) or length % NEIGHBOURS or not length:
        return None
    fitting = [width for width in WIDTHS if words_held(held) * steps(length, width) <= MOST_WORDS]
    usual = [width for width in fitting if width <= WARP and steps(length, width) <= USUAL_STEPS]
    busy = [width for width in usual if length % (NEIGHBOURS * width) == 0]
    for widths in (busy[::-1], usual, fitting):  # lanes without elements wait for the others
        if widths:
            return widths[0], held
    return None


def most_with_one(nest: LoopNest) -> int | None:
    """Up to how many rows of a nest lanes have one each; None where they always do, as nothing along a row is the same
    for all."""
    length = nest.inner[0] if len(nest.inner) == 1 else 0
    if not isinstance(length, int) or not length:
        return None
    loads = [node for node in ex.walk([e for s in nest.statements for e in needs(s)]) if node.kind == "load"]
    lines = [offset_of(node) for node in loads]
    same = any(line.axes and all(n == len(nest.outer) for n, _ in line.axes) and not line.others for line in lines)
    return MOST_ALONE // length if same else None


def rows_at_once(nest: LoopNest, width: int, held: Sequence[Operand], rows: int) -> int:
    """How many rows the same lanes have: two where there are many, as each lane has the cache of the multiprocessor
    give it once more what is the same for all of them."""
    most, count = most_with_one(nest), dims.product(nest.outer)
    rows = count if isinstance(count, int) else rows
    same = words_held([each for each in held if each.ahead])
    both = words_held(held) + words_held([each for each in held if not each.ahead])
    fits = (
        0 < width <= WARP and both * steps(_static(nest.inner[0]), width) <= MOST_WORDS if most is not None else False
    )
    return 2 if same and fits and most is not None and rows > most else 1


def _stores_pieces(store: Store, axis: int) -> bool:
    """Whether a statement's values are neighbours in memory."""
    dtype = store.body.dtype
    if store.guard is not None and speaks_of([store.guard], axis):
        return False
    return (dtype in HELD_DTYPES or dtype.itemsize == 1) and in_pieces(store.offset, axis)


def render(
    nest: LoopNest, stages: Sequence[Statement], found: tuple[int, list[Operand]], slots: Sequence[Slot],
    bindings: Sequence[Binding], name: str, language: Language, rows: int = 0,
) -> Shader:  # fmt: skip
    """The shader of a nest of which `plan` found what lies in pieces; `rows` is a guess where only a run knows them."""
    width, held = found
    at_once = rows_at_once(nest, width, held, rows)
    record = language.record(len(slots))
    code = Code(language, subgroups=True, follows=True)
    body = Body(code, record, slots, Ranges())
    writer = PieceNest(body, nest, stages, width, held, at_once)
    positions = writer.place()
    writer.write()
    wide = bool(language.group_size) and width <= WARP
    text = language.assemble(code, record, bindings, name, *((0, WIDE) if wide else (WORKGROUP, WORKGROUP)))
    checks = (Check(tuple(body.indices), nest.extents()),) if body.indices else ()
    along = f"a{len(nest.extents()) - 1}"
    tile = Tile("workgroup", "rows", WORKGROUP // width) if width else Tile("workgroup", "pieces", WORKGROUP)
    return Shader(
        text, tuple(bindings), len(slots), record.numbers, positions, False, writer.iterations, checks,
        schedule=Schedule((tile,), vector=(along, NEIGHBOURS)), wide_positions=positions if wide else None,
    )  # fmt: skip


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)  # asked by `plan`
    return dim
