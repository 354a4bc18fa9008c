"""Weights in the layout that contraction kernels want: panels
[⌈n / width⌉][taps...][⌈k / group⌉][width][group], made once by `prepare`. Of weights that data choose among, or that
a batch has one of for each, there is such an array for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Shape
from rlx.ir.expr import Expr
from rlx.ir.rewriting import Context
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, axis, contiguous, dim_value, index_of, linear, load
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Buffer, Kernel, Program, storage_roots
from rlx.kernel.passes.driver import LeafPass


class Pack(LeafPass):
    """Gives every contraction of `main` whose right side is static a packed copy.

    `panels_of` gives the width of panels, 0 to leave it, and how many elements along k lie together; `batched` says
    whether the target takes panels of a matrix for each of the batch.
    """

    name = "pack"

    def __init__(self, panels_of: Callable[[Contraction], tuple[int, int]], batched: bool = False) -> None:
        self.panels_of = panels_of
        self.batched = batched
        self._static: set[int] = set()
        self._packed: dict[tuple[int, Linear, Shape, tuple[int, int]], Buffer] = {}

    def regions(self, program: Program) -> tuple[list[Kernel], ...]:
        return (program.main,)

    def run(self, program: Program, context: Context) -> None:
        static = program.static_buffers()
        static |= {
            n
            for n, (_, offset) in program.aliases.items()
            if isinstance(offset, int) and storage_roots(program, n) <= static
        }
        self._static, self._packed = static, {}
        super().run(program, context)

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        work = kernel.work
        if not isinstance(work, Contraction) or kernel.slots[work.b_slot] not in self._static:
            return None
        return "panels" if self._panels(work)[0] else None

    def _panels(self, work: Contraction) -> tuple[int, int]:
        lead = _lead(work)
        plain = len(work.b.others) <= 1 and not (lead and (work.b.others or not self.batched))
        strides = (work.b.const, *(c for _, c in (*work.b.axes, *work.b.others)))
        extents = (*(work.batch[number] for number in lead), work.n, *work.taps, work.k)
        known = all(isinstance(d, int) for d in (*extents, *strides))
        return self.panels_of(work) if plain and known else (0, 1)

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        assert isinstance(kernel.work, Contraction)
        panels = self._panels(kernel.work)
        work = joined_taps(kernel.work)
        source = program.buffers[kernel.slots[work.b_slot]]
        extents = (*(work.batch[number] for number in _lead(work)), work.n, *work.taps, work.k)
        key = (source.number, dataclasses.replace(work.b, others=()), extents, panels)
        if key not in self._packed:
            self._packed[key] = packed_copy(program, work, source, *panels)
        return [_with_packed(kernel, work, self._packed[key], *panels)]


def joined_taps(work: Contraction) -> Contraction:
    """Taps that lie as close as k, on both sides, become part of it: columns and channels of a window are one run."""
    while work.taps:
        tap, k = work.tap_axes[-1], work.k_axis
        close = (side.coefficient(tap) == dims.mul(side.coefficient(k), work.k) for side in (work.a, work.b))
        bounded = any(bound.position.coefficient(tap) != 0 for bound in work.bounds)
        if bounded or not (work.a.coefficient(tap) == 1 if work.k == 1 else all(close)):
            break
        gone, kept = (k, tap) if work.k == 1 else (tap, k)
        a, b = (
            Linear(side.const, tuple((tap if n == kept else n, c) for n, c in side.axes if n != gone), side.others)
            for side in (work.a, work.b)
        )
        work = dataclasses.replace(work, taps=work.taps[:-1], k=dims.mul(work.taps[-1], work.k), a=a, b=b)
    return work


def _lead(work: Contraction) -> tuple[int, ...]:
    """Batch axes for each of which the right side has a matrix."""
    return tuple(number for number, _ in work.b.axes if number < len(work.batch))


def packed_copy(program: Program, work: Contraction, source: Buffer, width: int, group: int) -> Buffer:
    """A new buffer for the panels of a right side, which `prepare` fills from its source."""
    panels = dims.ceildiv(work.n, width)
    depth = (*work.taps, dims.ceildiv(work.k, group))
    lead = _lead(work)
    apart = tuple(stride for _, stride in work.b.others) or tuple(work.b.coefficient(number) for number in lead)
    several = tuple(work.batch[number] for number in lead) or tuple(dims.floordiv(source.size, s) for s in apart)
    extents = (*several, panels, *depth, width, group)
    buffer = program.new_buffer("temp", source.dtype, dims.product(extents), f"{source.name}.packed")
    first = len(apart)
    lane = first + 1 + len(depth)
    column = Linear(0, ((first, width), (lane, 1)))
    step = Linear(0, ((lane - 1, group), (lane + 1, 1)))
    offset = Linear(work.b.const, tuple(enumerate(apart)))
    offset = offset.plus(column.times(work.b.coefficient(work.n_axis)))
    for number, source_axis in enumerate(work.tap_axes, first + 1):
        offset = offset.plus(linear(axis(number)).times(work.b.coefficient(source_axis)))
    offset = offset.plus(step.times(work.b.coefficient(work.k_axis)))
    guard: Expr | None = None
    for line, extent, unit in ((column, work.n, width), (step, work.k, group)):
        if not (isinstance(extent, int) and extent % unit == 0):
            inside = ex.apply("lt", index_of(line), dim_value(extent))
            guard = inside if guard is None else ex.apply("and", guard, inside)
    body = load(1, offset, source.dtype, guard)
    target = Linear(0, tuple(enumerate(contiguous(extents))))
    nest = LoopNest(extents, (), (Store(0, target, body, False),))
    packing = Kernel("pack", nest, (buffer.number, source.number), 1, (source.name,))
    # right behind what makes the source, so that the source's memory is free again soon
    writers = [i for i, k in enumerate(program.prepare) if source.number in k.slots[: k.writes]]
    program.prepare.insert(writers[-1] + 1 if writers else len(program.prepare), packing)
    return buffer


def _with_packed(kernel: Kernel, work: Contraction, buffer: Buffer, width: int, group: int) -> Kernel:
    """The kernel reading the packed copy, in place of the plain one where nothing else of the kernel reads that."""
    chosen = [expression for expression, _ in work.b.others]
    loads = {n.attr.slot for n in ex.walk([*chosen, *(s.body for s in work.epilogue)]) if n.kind == "load"}
    shared = work.b_slot in {work.a_slot, *loads}
    slots = [*kernel.slots, buffer.number]
    if not shared:
        slots[work.b_slot] = slots.pop()
    place = len(slots) - 1 if shared else work.b_slot
    size = dims.product((dims.ceildiv(work.n, width), *work.taps, dims.ceildiv(work.k, group), width * group))
    lead = _lead(work)
    steps = contiguous((*(work.batch[number] for number in lead), size))[:-1]
    apart = Linear(0, tuple(zip(lead, steps)), tuple((expression, size) for expression in chosen))
    changed = dataclasses.replace(work, b_slot=place, b=apart, packed=width, group=group)
    return dataclasses.replace(kernel, work=changed, slots=tuple(slots))
