"""Puts neighbouring loops that do not depend on one another together, and finds those whose rows do not either, so that
threads can run them whole: the two directions of a recurrent net, the sequences of a batch. Nobody waits between trips.

Loops of a group have as many trips, so that no thread is left alone with a long one: whoever called could not end it.
"""

from __future__ import annotations

from rlx.ir.dim import Dim
from rlx.ir.rewriting import Context
from rlx.kernel.ir.control import Loop, LoopGroup, RowCut
from rlx.kernel.ir.program import Kernel, Program, buffers_used, leaves, storage_roots
from rlx.kernel.ir.rows import cut_of
from rlx.kernel.passes.driver import KernelPass

REACH = 32
"""Kernels behind a loop among which others are looked for."""


class LoopGroups(KernelPass):
    """Makes groups of loops."""

    name = "loop-groups"

    def run(self, program: Program, context: Context) -> None:
        kernels, position = program.main, 0
        while position < len(kernels):
            kernel = kernels[position]
            if _can_join(kernel):
                before, loops, behind = _together(program, kernels[position : position + REACH])
                cuts = tuple(_cut(program, loop) for loop in loops)
                several = len(loops) > 1
                if (several or cuts[0] is not None) and self.spend(context, "together" if several else "cut", kernel):
                    kernels[position : position + REACH] = [*before, _grouped(program, loops, cuts), *behind]
                    position += len(before)
            position += 1


def _can_join(kernel: Kernel) -> bool:
    """Whether it is a loop whose trips nothing but their number ends, of kernels that own no others."""
    work = kernel.work
    plain = isinstance(work, Loop) and work.condition is None and work.trips is not None
    return plain and not any(inner.work.owns_kernels for inner in kernel.children)


def _together(program: Program, kernels: list[Kernel]) -> tuple[list[Kernel], list[Kernel], list[Kernel]]:
    """(kernels to run before, loops, kernels to run behind them) of a row that begins with a loop."""
    before: list[Kernel] = []
    loops, behind, free = [kernels[0]], list[Kernel](), list[Kernel]()
    for kernel in kernels[1:]:
        if any(_conflict(program, kernel, other) for other in (*loops, *behind)):
            behind.append(kernel)
        elif _can_join(kernel) and _trips(kernel) == _trips(loops[0]):
            if any(_conflict(program, kernel, other) for other in free):
                before += free
                free = []
            loops.append(kernel)
        else:
            free.append(kernel)
    if not free:
        return before, loops, behind
    stay = {id(kernel) for kernel in (*free, *behind)}
    return before, loops, [kernel for kernel in kernels if id(kernel) in stay]


def _trips(kernel: Kernel) -> Dim | None:
    assert isinstance(kernel.work, Loop)  # as those that can join are
    return kernel.work.trips


def _conflict(program: Program, a: Kernel, b: Kernel) -> bool:
    """Whether one writes what the other reads or writes."""
    used_a, used_b = buffers_used(program, [a]), buffers_used(program, [b])
    return bool(_written(program, a) & used_b or _written(program, b) & used_a)


def _written(program: Program, kernel: Kernel) -> set[int]:
    """Memory that a kernel, and those that it owns, write."""
    numbers = {n for each in (kernel, *leaves([kernel])) for n in each.slots[: each.writes]}
    return {root for number in numbers for root in storage_roots(program, number)}


def _cut(program: Program, kernel: Kernel) -> RowCut | None:
    assert isinstance(kernel.work, Loop)  # as those that can join are
    return cut_of(program, kernel.work)


def _grouped(program: Program, loops: list[Kernel], cuts: tuple[RowCut | None, ...]) -> Kernel:
    """The group. It writes all that its loops do, temporaries of their trips too: all of them are in use at once."""
    if len(loops) == 1 and cuts[0] is None:
        return loops[0]
    written = sorted(set().union(*(_written(program, loop) for loop in loops)))
    read = sorted({n for loop in loops for n in loop.slots} - set(written))
    names = "_".join(dict.fromkeys(loop.name for loop in loops))
    sources = tuple(dict.fromkeys(source for loop in loops for source in loop.sources))
    return Kernel(names, LoopGroup(tuple(loops), cuts), (*written, *read), len(written), sources)
