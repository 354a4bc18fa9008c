"""Fewer, longer loops: neighbouring axes that every access walks as one become one axis."""

from __future__ import annotations

import dataclasses

from rlx.kernel.ir.axes import collapse
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.passes.driver import LeafPass


class Collapse(LeafPass):
    """Collapses loop nests (`kernel.ir.axes.collapse`)."""

    name = "collapse"

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        work = kernel.work
        if not isinstance(work, LoopNest):
            return None
        self._collapsed = collapse(work)
        return "axes" if self._collapsed != work else None

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        return [dataclasses.replace(kernel, work=self._collapsed)]
