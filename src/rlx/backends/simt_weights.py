"""Which kernels of `prepare` run again where weights changed, on devices whose kernels the host starts."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rlx.kernel.ir.program import Kernel, Program, storage_roots


def affected(program: Program, changed: Collection[int], is_kept: Callable[[int], bool]) -> list[Kernel]:
    """The kernels of `prepare` behind these arrays, and those before whose results are not kept, or are written over: a
    scatter into a copy needs the copy again."""

    def roots(numbers: Collection[int]) -> set[int]:
        return {root for number in numbers for root in storage_roots(program, number)}

    dirty = roots(changed)
    chosen: set[int] = set()
    for kernel in program.prepare:
        if not dirty.isdisjoint(roots(kernel.slots)):
            chosen.add(id(kernel))
            dirty |= roots(kernel.slots[: kernel.writes])
    needed_slots: set[int] = set()
    for kernel in reversed(program.prepare):
        written = roots(kernel.slots[: kernel.writes])
        if id(kernel) in chosen or not needed_slots.isdisjoint(written):
            chosen.add(id(kernel))
            needed_slots |= written | {n for n in roots(kernel.slots[kernel.writes :]) if not is_kept(n)}
    return [kernel for kernel in program.prepare if id(kernel) in chosen]
