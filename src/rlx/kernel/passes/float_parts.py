"""Products of f32 by matrix units that take shorter floats: each operand as the sum of two of these (the precision
`f32_fast`).

The pass only allows it; what no matrix unit takes is computed in f32 as before. Work of `prepare` stays as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.ir import dtype as dtypes
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.passes.driver import LeafPass


class FloatParts(LeafPass):
    """Marks products and attention of f32. `takes` tells of marked work whether the target would compute it so."""

    name = "float-parts"

    def __init__(self, takes: Callable[[Contraction | FusedAttention], bool]) -> None:
        self.takes = takes

    def regions(self, program: Program) -> tuple[list[Kernel], ...]:
        return (program.main,)

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        work = kernel.work
        if not isinstance(work, Contraction | FusedAttention) or work.float_parts or not _of_f32(work):
            return None
        marked = dataclasses.replace(work, float_parts=True)
        if not self.takes(marked):
            return None
        return "product" if isinstance(work, Contraction) else "attention"

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        assert isinstance(kernel.work, Contraction | FusedAttention)
        return [dataclasses.replace(kernel, work=dataclasses.replace(kernel.work, float_parts=True))]


def _of_f32(work: Contraction | FusedAttention) -> bool:
    """Whether it multiplies f32, and not only sums in it."""
    if isinstance(work, Contraction):
        return work.a_dtype is work.dtype is dtypes.f32
    return work.dtype is dtypes.f32
