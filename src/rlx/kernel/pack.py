"""Weights in the layout that contraction kernels want: panels [⌈n / width⌉][taps...][k][width],
made once by `prepare`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.kernel.flatten import reals, with_bodies
from rlx.kernel.nest import (
    Branch,
    Buffer,
    Contraction,
    Kernel,
    Linear,
    Loop,
    Nest,
    Program,
    Store,
    axis,
    contiguous,
    dim_value,
    linear,
    load,
)


def pack_weights(program: Program, width_of: Callable[[Contraction], int]) -> None:
    """Gives every contraction of `main` whose right side is static a packed copy; `width_of` gives 0 to leave it."""
    static = {*program.params, *program.constants, *(n for k in program.prepare for n in k.slots[: k.writes])}
    static |= {
        n for n, (_, offset) in program.aliases.items() if isinstance(offset, int) and reals(program, n) <= static
    }
    packed: dict[tuple[int, Linear, Dim, Shape, int], Buffer] = {}

    def packed_kernel(kernel: Kernel) -> Kernel:
        work = kernel.work
        if isinstance(work, (Branch, Loop)):
            return with_bodies(kernel, packed_kernel)
        if not isinstance(work, Contraction) or kernel.slots[work.b_slot] not in static:
            return kernel
        inside = (work.n_axis, *work.tap_axes, work.k_axis)
        plain = not work.b.others and all(n in inside for n, _ in work.b.axes)
        strides = (work.b.const, *(c for _, c in work.b.axes))
        known = all(isinstance(d, int) for d in (work.n, *work.taps, work.k, *strides))
        width = width_of(work) if plain and known else 0
        if not width:
            return kernel
        source = program.buffers[kernel.slots[work.b_slot]]
        key = (source.number, work.b, work.n, (*work.taps, work.k), width)
        if key not in packed:
            packed[key] = _pack(program, work, source, width)
        return _with_packed(kernel, work, packed[key], width)

    program.main[:] = [packed_kernel(kernel) for kernel in program.main]


def _pack(program: Program, work: Contraction, source: Buffer, width: int) -> Buffer:
    panels = dims.ceildiv(work.n, width)
    depth = (*work.taps, work.k)
    size = dims.mul(dims.mul(panels, dims.product(depth)), width)
    buffer = program.new_buffer("temp", source.dtype, size, f"{source.name}.packed")
    lane = 1 + len(depth)
    column = Linear(0, ((0, width), (lane, 1)))
    offset = Linear(work.b.const)
    offset = offset.plus(column.times(work.b.coefficient(work.n_axis)))
    for number, source_axis in enumerate((*work.tap_axes, work.k_axis), 1):
        offset = offset.plus(linear(axis(number)).times(work.b.coefficient(source_axis)))
    inside = ex.apply("lt", axis(0) * width + axis(lane), dim_value(work.n))
    whole = isinstance(work.n, int) and work.n % width == 0
    body = load(1, offset, source.dtype, None if whole else inside)
    extents = (panels, *depth, width)
    target = Linear(0, tuple(enumerate(contiguous(extents))))
    nest = Nest(extents, (), (Store(0, target, body, False),))
    made = Kernel("pack", nest, (buffer.number, source.number), 1, (source.name,))
    # right behind what makes the source, so that the source's memory is free again soon
    writers = [i for i, k in enumerate(program.prepare) if source.number in k.slots[: k.writes]]
    program.prepare.insert(writers[-1] + 1 if writers else len(program.prepare), made)
    return buffer


def _with_packed(kernel: Kernel, work: Contraction, buffer: Buffer, width: int) -> Kernel:
    """The kernel reading the packed copy, in place of the plain one where nothing else of the kernel reads that."""
    loads = {n.attr.slot for n in ex.walk([s.body for s in work.epilogue]) if n.kind == "load"}
    shared = work.b_slot in {work.a_slot, *loads}
    slots = [*kernel.slots, buffer.number]
    if not shared:
        slots[work.b_slot] = slots.pop()
    place = len(slots) - 1 if shared else work.b_slot
    changed = dataclasses.replace(work, b_slot=place, b=Linear(), packed=width)
    return dataclasses.replace(kernel, work=changed, slots=tuple(slots))
