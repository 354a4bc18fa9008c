"""Kernels that need nothing of each other become one: on GPUs each costs a start, and small ones leave most lanes idle.

The norms of queries and keys, and what goes to a cache's keys and values, run side by side in one launch.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.ir.rewriting import Context
from rlx.kernel.ir.fused import SideBySide
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.slots import joined, nest_on_slots
from rlx.kernel.passes.driver import KernelPass
from rlx.kernel.passes.row_tails import is_in_the_way

MOST_WORKS = 4
"""Kernels that become one."""
MOST_AHEAD = 12
"""Kernels behind one that are looked at."""


class BesideEachOther(KernelPass):
    """Brings nests together that a target can run in one launch; `fits` says which those are."""

    name = "side-by-side"

    def __init__(self, fits: Callable[[LoopNest], bool]) -> None:
        self.fits = fits

    def run(self, program: Program, context: Context) -> None:
        at = 0
        while at < len(program.main):
            group = self._group(program, at)
            if len(group) > 1 and self.spend(context, "launch", program.main[at]):
                program.main[at] = _together(group)
                program.main = [k for k in program.main if not any(k is member for member in group)]
            at += 1

    def _group(self, program: Program, first: int) -> list[Kernel]:
        """The kernel of this number and those behind it that could run with it."""
        group: list[Kernel] = []
        ahead = program.main[first : first + MOST_AHEAD]
        for number, kernel in enumerate(ahead):
            if self._takes(kernel) and not is_in_the_way(program, kernel, ahead[:number]):
                group.append(kernel)
            if not group or len(group) == MOST_WORKS:
                break
        return group

    def _takes(self, kernel: Kernel) -> bool:
        return isinstance(kernel.work, LoopNest) and self.fits(kernel.work)


def _together(kernels: list[Kernel]) -> Kernel:
    slots, writes = joined(kernels)
    works = [nest_on_slots(k.work, k.slots, slots) for k in kernels if isinstance(k.work, LoopNest)]
    names = tuple(dict.fromkeys(name for kernel in kernels for name in kernel.sources))
    return Kernel("_and_".join(k.name for k in kernels), SideBySide(tuple(works)), slots, writes, names)
