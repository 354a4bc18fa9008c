"""Convolutions by Winograd's F(4x4, 3x3) (`kernel.ir.winograd`): the weights are transformed once, in `prepare`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.ir.rewriting import Context
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, axis, contiguous, dim_value, linear, load
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Buffer, Kernel, Program
from rlx.kernel.ir.winograd import KERNEL, POINTS, WINDOW, WinogradConvolution
from rlx.kernel.passes.driver import LeafPass


class Winograd(LeafPass):
    """Turns contractions with 3x3 taps and stride 1 whose weights are static; `width_of` gives a panel width, or 0."""

    name = "winograd"

    def __init__(self, width_of: Callable[[Contraction], int]) -> None:
        self.width_of = width_of
        self._static: set[int] = set()
        self._transformed: dict[tuple[int, Linear, int], Buffer] = {}

    def regions(self, program: Program) -> tuple[list[Kernel], ...]:
        return (program.main,)

    def run(self, program: Program, context: Context) -> None:
        self._static, self._transformed = program.static_buffers(), {}
        super().run(program, context)

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        work = kernel.work
        if not isinstance(work, Contraction) or not _fits(work) or kernel.slots[work.b_slot] not in self._static:
            return None
        return "f4x4" if self.width_of(work) else None

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        work = kernel.work
        assert isinstance(work, Contraction)
        width = self.width_of(work)
        source = program.buffers[kernel.slots[work.b_slot]]
        key = (source.number, work.b, width)
        if key not in self._transformed:
            self._transformed[key] = _transformed(program, work, source, width)
        slots = (*kernel.slots, self._transformed[key].number)
        conv = dataclasses.replace(work, b_slot=len(slots) - 1, b=Linear(), packed=width)
        return [dataclasses.replace(kernel, work=WinogradConvolution(conv), slots=slots)]


def _fits(work: Contraction) -> bool:
    """3x3 taps over two spatial axes with stride 1."""
    if work.dtype is not dtypes.f32 or work.taps != (WINDOW, WINDOW) or len(work.batch) != 2:
        return False
    rows, columns = work.tap_axes
    a = work.a
    straight = a.coefficient(1) == a.coefficient(rows) and a.coefficient(work.m_axis) == a.coefficient(columns)
    known = isinstance(work.n, int) and isinstance(work.k, int)
    return straight and known and not a.others and not work.b.others and a.coefficient(work.k_axis) == 1


def _transformed(program: Program, work: Contraction, source: Buffer, width: int) -> Buffer:
    """Prepares G g Gᵀ of every window, as 36 sums of 9 weights by numbers from a table: short code that runs once."""
    panels = dims.ceildiv(work.n, width)
    extents = (panels, work.k, width)
    buffer = program.new_buffer(
        "temp", source.dtype, dims.mul(dims.product(extents), POINTS * POINTS), f"{source.name}.winograd"
    )
    channel = Linear(0, ((1, width), (3, 1)))
    base = Linear(work.b.const).plus(channel.times(work.b.coefficient(work.n_axis)))
    base = base.plus(linear(axis(2)).times(work.b.coefficient(work.k_axis)))
    ragged = not (isinstance(work.n, int) and work.n % width == 0)
    inside = ex.apply("lt", axis(1) * width + axis(3), dim_value(work.n)) if ragged else None
    rows, columns = (work.b.coefficient(number) for number in work.tap_axes)
    body: Expr = ex.const(0, dtypes.f32)
    for tap in range(WINDOW * WINDOW):
        place = dims.add(dims.mul(rows, tap // WINDOW), dims.mul(columns, tap % WINDOW))
        weight = load(1, base.plus(Linear(place)), source.dtype, inside)
        body = ex.fma(weight, load(2, Linear(tap, ((0, WINDOW * WINDOW),)), dtypes.f32), body)
    every = (POINTS * POINTS, *extents)
    nest = LoopNest(every, (), (Store(0, Linear(0, tuple(enumerate(contiguous(every)))), body, False),))
    slots = (buffer.number, source.number, _table(program))
    program.prepare.append(Kernel("winograd_weights", nest, slots, 1, (source.name,)))
    return buffer


def _table(program: Program) -> int:
    """The number of the buffer with G ⊗ G, [36][9]; one for a program."""
    name = "winograd.table"
    for number in program.constants:
        if program.buffers[number].name == name:
            return number
    table = np.kron(np.array(KERNEL), np.array(KERNEL)).astype(np.float32)
    buffer = program.new_buffer("constant", dtypes.f32, table.size, name)
    program.constants[buffer.number] = table
    return buffer.number
