"""The memory plan: temporaries share slots of one arena, by live range. Sizes may hold dims; offsets are then worked
out per call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cache

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Bounds, Dim
from rlx.kernel.ir.index import Access
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Kernel, Program, storage_roots
from rlx.records import dataclass

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector."""


@dataclass
class MemoryPlan:
    """Slot of each temporary, and the slots' sizes in bytes (multiples of the alignment, one behind the other).

    `tenants` are the temporaries of each slot.
    """

    slot_of: dict[int, int] = field(default_factory=dict)
    sizes: list[Dim] = field(default_factory=list)
    tenants: list[list[int]] = field(default_factory=list)

    @property
    def total(self) -> Dim:
        """Bytes of the arena."""
        return sum(self.sizes, start=0)


def plan_memory(
    program: Program, kernels: Sequence[Kernel], temps: set[int], bounds: Bounds, reuse: bool
) -> MemoryPlan:
    """Places the buffers `temps` that the kernels write and read. With `reuse` off each gets memory of its own."""
    kernels = linearised(program, kernels)
    last: dict[int, int] = {}
    for position, kernel in enumerate(kernels):
        for number in kernel.slots:
            last[number] = position
    result = MemoryPlan()
    free: list[int] = []

    @cache
    def holds(larger: Dim, smaller: Dim) -> bool:
        return dims.bounds(dims.add(larger, dims.mul(smaller, -1)), bounds)[0] >= 0

    for position, kernel in enumerate(kernels):
        for number in kernel.slots[: kernel.writes]:
            if number not in temps or number in result.slot_of:
                continue
            size = _rounded(program.buffers[number].nbytes)
            slot = _in_place(program, kernel, number, position, last, result) if reuse else None
            if slot is None:
                slot = _take(free, result, size, holds) if reuse else None
            if slot is None:
                result.sizes.append(size)
                result.tenants.append([])
                slot = len(result.sizes) - 1
            result.slot_of[number] = slot
            result.tenants[slot].append(number)
        for number in kernel.slots:
            slot = result.slot_of.get(number)
            if slot is None or last[number] != position or slot in free:
                continue
            if all(last[n] <= position for n in result.tenants[slot]):
                free.append(slot)
                result.tenants[slot] = []
    return result


def _rounded(size: Dim) -> Dim:
    if isinstance(size, int):
        return max(-(-size // ALIGNMENT) * ALIGNMENT, ALIGNMENT)
    factor = dims.exact_div(size, ALIGNMENT)
    return size if factor is not None else dims.mul(dims.floordiv(dims.add(size, ALIGNMENT - 1), ALIGNMENT), ALIGNMENT)


def _take(free: list[int], plan: MemoryPlan, size: Dim, holds: Callable[[Dim, Dim], bool]) -> int | None:
    """A free slot: of the same size, else one that is provably larger, else one that can grow."""
    for slot in free:
        if plan.sizes[slot] == size:
            free.remove(slot)
            return slot
    for slot in free:
        if holds(plan.sizes[slot], size):
            free.remove(slot)
            return slot
    for slot in free:
        if holds(size, plan.sizes[slot]):
            free.remove(slot)
            plan.sizes[slot] = size
            return slot
    return None


def _in_place(
    program: Program, kernel: Kernel, number: int, position: int, last: dict[int, int], plan: MemoryPlan
) -> int | None:
    """The slot of an operand that dies here and that the kernel reads just where it then writes."""
    work = kernel.work
    if not isinstance(work, LoopNest) or work.inner or kernel.writes != 1:
        return None
    store = work.statements[-1]
    assert isinstance(store, Store)
    access = Access(0, store.offset.const, store.offset.axes)
    loads = [n for n in ex.walk([s.body for s in work.statements]) if n.kind == "load"]
    mine = program.buffers[number]
    for slot, candidate in enumerate(kernel.slots):
        other = program.buffers[candidate]
        if slot == 0 or candidate not in plan.slot_of or last[candidate] != position:
            continue
        if other.dtype.itemsize != mine.dtype.itemsize or other.size != mine.size:
            continue
        places = [n for n in loads if n.attr.slot == slot]
        same = all(n.attr.axes == access.axes and n.attr.const == access.const and not n.args for n in places)
        shared = [n for n in plan.tenants[plan.slot_of[candidate]] if last[n] >= position]
        if places and same and shared == [candidate] and not store.offset.others:
            return plan.slot_of[candidate]
    return None


def linearised(program: Program, kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels as a memory plan sees them: in one row, on buffers with memory of their own.

    A branch or loop stands before and behind those that it owns: what a loop writes for later is there before its
    first trip, and what it reads stays until its last.
    """
    order: list[Kernel] = []
    for kernel in kernels:
        around = _on_storage_roots(program, kernel)
        order.append(around)
        if kernel.work.owns_kernels:
            order.extend(linearised(program, kernel.children))
            order.append(dataclasses.replace(around, writes=0))
    return order


def _on_storage_roots(program: Program, kernel: Kernel) -> Kernel:
    slots: list[int] = []
    more: list[int] = []
    for number in kernel.slots:
        roots = storage_roots(program, number)
        slots.append(next(iter(roots)) if len(roots) == 1 else number)
        if len(roots) > 1:
            more.extend(sorted(roots))
    return dataclasses.replace(kernel, slots=(*slots, *more)) if more or tuple(slots) != kernel.slots else kernel
