"""Operands of products that no core reads as they lie are copied, or change sides.

A core reads the left side along k, whose elements must be neighbours, and packs the right side whatever its order is,
along one k alone. Where the left side is long and the right one narrow the sides change: results are then written
across, which costs less than to copy the left side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.rewriting import Context
from rlx.kernel.ir.axes import collapse, renumber_linear, renumber_statement
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, contiguous, load
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Buffer, Kernel, Program
from rlx.kernel.passes.driver import LeafPass

ACROSS = 2
"""How many copied elements a result costs that is written across."""
FEW_ROWS = 4
"""Fewer are multiplied where the right side lies, in whichever dtype: a copy would be read but once."""
NARROW = 128
"""Columns that may become rows: all of them stay near while the other side, as panels, passes by once."""

Takes = Callable[[Contraction, bool], bool]


class Operands(LeafPass):
    """Brings contractions into a form that a target's core takes. `takes` says whether it takes one, whose right side
    is packed before runs or is not."""

    name = "operands"

    def __init__(self, takes: Takes) -> None:
        self.takes = takes
        self._static: set[int] = set()
        self._prepare: dict[int, Kernel] = {}  # by id, and held, so that no other kernel gets that
        self._copies: dict[tuple[object, ...], Buffer] = {}

    def run(self, program: Program, context: Context) -> None:
        self._static, self._copies = program.static_buffers(), {}
        self._prepare = {id(kernel): kernel for kernel in program.prepare}
        super().run(program, context)

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        work = kernel.work
        if not isinstance(work, Contraction) or work.packed or work.a.others or work.blocks is not None:
            return None
        packs = self._packs(kernel)
        if self.takes(work, packs):
            return None
        if self._should_turn(work, packs):
            return "sides"
        return "copies" if work.n != 1 and self._wanted(work, packs) is not None else None

    def _packs(self, kernel: Kernel) -> bool:
        """Whether the right side lies in panels before a run begins."""
        work = kernel.work
        assert isinstance(work, Contraction)
        return kernel.slots[work.b_slot] in self._static and id(kernel) not in self._prepare

    def _wanted(self, work: Contraction, packs: bool) -> Contraction | None:
        """The product of copies that the core takes: as they are, else in the dtype of the sum where there are rows
        enough for it."""
        rewritten = _copied(work, packs)
        if rewritten.b != work.b and work.b.others:  # where data choose among matrices, they stay where they are
            return None
        if self.takes(rewritten, packs):
            return rewritten
        if packs or work.b.others or (isinstance(work.m, int) and work.m < FEW_ROWS):
            return None
        wide = _widened(work)
        return wide if self.takes(wide, False) else None

    def _should_turn(self, work: Contraction, packs: bool) -> bool:
        """Whether results that are written across, and a copy of the right side, cost less than a copy of the left."""
        m, n, k = work.m, work.n, work.k
        if work.taps or work.b.others or not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int)):
            return False
        turned = _turned(work)
        along = self.takes(turned, False)
        moved = 0 if along or packs else n * k
        fits = along or self.takes(_copied(turned, False), False)
        return fits and n <= NARROW and n < m and ACROSS * m * n + moved < m * k

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        work, packs = kernel.work, self._packs(kernel)
        assert isinstance(work, Contraction)
        if self._should_turn(work, packs):
            once, packs = id(kernel) in self._prepare, False
            kernel = dataclasses.replace(kernel, work=_turned(work))
            if once:
                self._prepare[id(kernel)] = kernel
        return [*self._with_copies(program, kernel, packs)]

    def _with_copies(self, program: Program, kernel: Kernel, packs: bool) -> list[Kernel]:
        """The kernel behind those that copy its sides, where it needs copies."""
        work = kernel.work
        assert isinstance(work, Contraction)
        if self.takes(work, packs):
            return [kernel]
        rewritten, slots, copies = self._wanted(work, packs), list(kernel.slots), []
        assert rewritten is not None  # it matched
        read = [node.attr.slot for node in ex.walk(list(work.bodies())) if node.kind == "load"]
        read += [work.a_slot, work.b_slot]
        if (rewritten.a, rewritten.a_dtype) != (_now(work, work.a, rewritten), work.a_dtype):
            axes = _order(work, work.a, True)
            place, kernels = self._copy(program, kernel, work.a_slot, work.a, axes, rewritten.a_dtype)
            copies += kernels
            rewritten = dataclasses.replace(rewritten, a_slot=_put(slots, place, work.a_slot, read))
        if (rewritten.b, rewritten.b_dtype) != (_now(work, work.b, rewritten), work.b_dtype):
            axes = _order(work, work.b, False)
            place, kernels = self._copy(program, kernel, work.b_slot, work.b, axes, rewritten.b_dtype)
            copies += kernels
            rewritten = dataclasses.replace(rewritten, b_slot=_put(slots, place, work.b_slot, read))
        return [*copies, dataclasses.replace(kernel, work=rewritten, slots=tuple(slots))]

    def _copy(
        self, program: Program, kernel: Kernel, slot: int, line: Linear, axes: tuple[int, ...], dtype: DType
    ) -> tuple[int, list[Kernel]]:
        """The buffer of the elements of a side along these axes, in a dtype, and the kernels that make it in a run."""
        source = program.buffers[kernel.slots[slot]]
        extents = tuple(kernel.work.extents()[axis] for axis in axes)
        known = all(isinstance(d, int) for d in (*extents, line.const, *(step for _, step in line.axes)))
        once = source.number in self._static and known and id(kernel) not in self._prepare
        key = (source.number, line, extents, axes, dtype)
        if once and key in self._copies:
            return self._copies[key].number, []
        buffer = program.new_buffer("temp", dtype, dims.product(extents), f"{source.name}.copy")
        body = load(1, renumber_linear(line, {axis: i for i, axis in enumerate(axes)}), source.dtype)
        target = Linear(0, tuple(enumerate(contiguous(extents))))
        nest = collapse(LoopNest(extents, (), (Store(0, target, ex.cast(body, dtype), False),)))
        copy = Kernel("operand", nest, (buffer.number, source.number), 1, kernel.sources)
        if not once:
            return buffer.number, [copy]
        writers = [i for i, k in enumerate(program.prepare) if source.number in k.slots[: k.writes]]
        program.prepare.insert(writers[-1] + 1 if writers else len(program.prepare), copy)
        self._copies[key] = buffer
        return buffer.number, []


def _put(slots: list[int], number: int, slot: int, read: list[int]) -> int:
    """Binds a buffer in the place of a slot, or in a new one where something else reads that; gives the slot."""
    if read.count(slot) == 1:
        slots[slot] = number
        return slot
    slots.append(number)
    return len(slots) - 1


def _now(work: Contraction, line: Linear, rewritten: Contraction) -> Linear | None:
    """Where the elements of a side lie before any copy, by the axes of the rewritten product; None where its sum has
    one axis, and no line goes along all that it had."""
    if rewritten.taps == work.taps:
        return line
    step, inside = line.coefficient(work.k_axis), work.k
    for axis, extent in reversed(list(zip(work.tap_axes, work.taps))):
        if line.coefficient(axis) != dims.mul(step, inside):
            return None
        inside = dims.mul(inside, extent)
    kept = [(axis, coefficient) for axis, coefficient in line.axes if axis <= work.n_axis]
    return Linear(line.const, (*kept, (work.n_axis + 1, step)), line.others)


def _order(work: Contraction, line: Linear, rows: bool) -> tuple[int, ...]:
    """The axes of a side's copy: those of the batch that it varies along, then rows and the sum, or the sum and
    columns."""
    batch = tuple(axis for axis in range(len(work.batch)) if line.coefficient(axis) != 0)
    inside = (*work.tap_axes, work.k_axis)
    return (*batch, work.m_axis, *inside) if rows else (*batch, *inside, work.n_axis)


def _turned(work: Contraction) -> Contraction:
    """The product with its sides changed: rows are what were columns."""
    m, n = work.m_axis, work.n_axis
    renumber = {axis: axis for axis in range(len(work.extents()))} | {m: n, n: m}
    stores = [renumber_statement(store, renumber) for store in work.epilogue]
    return dataclasses.replace(
        work, m=work.n, n=work.m, a_slot=work.b_slot, a=renumber_linear(work.b, renumber), a_dtype=work.b_dtype,
        b_slot=work.a_slot, b=renumber_linear(work.a, renumber), b_dtype=work.a_dtype,
        epilogue=tuple(store for store in stores if isinstance(store, Store)),
    )  # fmt: skip


def _copied(work: Contraction, packs: bool) -> Contraction:
    """The product of copies: of the left side, and of the right one too where the sum has several axes, which in copies
    are one. A right side in panels may have several."""
    joins = bool(work.taps) and not packs
    a = _lies(work, work.a, True, joins)
    if not joins:
        return dataclasses.replace(work, a=a)
    depth = dims.product((*work.taps, work.k))
    return dataclasses.replace(work, a=a, b=_lies(work, work.b, False, True), taps=(), k=depth)


def _widened(work: Contraction) -> Contraction:
    """The product of copies of both sides in the dtype that they are multiplied in. The result is rounded as before."""
    wide = dtypes.accumulator(work.dtype)
    joins = bool(work.taps)
    a, b = _lies(work, work.a, True, joins), _lies(work, work.b, False, joins)
    depth = dims.product((*work.taps, work.k))
    return dataclasses.replace(work, a=a, b=b, taps=(), k=depth, a_dtype=wide, b_dtype=wide)


def _lies(work: Contraction, line: Linear, rows: bool, joins: bool) -> Linear:
    """Where the elements of a side's copy lie, by the axes of the product, or of that whose sum has one axis."""
    axes, extents = _order(work, line, rows), work.extents()
    steps = dict(zip(axes, contiguous(tuple(extents[axis] for axis in axes))))
    if joins:
        last = steps[work.k_axis]
        steps = {axis: step for axis, step in steps.items() if axis < work.n_axis + 1} | {work.n_axis + 1: last}
    return Linear(0, tuple(sorted((axis, step) for axis, step in steps.items())))
