"""Whether the windows of a contraction's rows are within what they read, in CUDA C++."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.codegen.simt.body import Body
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear


class Bounds:
    """Tests of the bounds of a contraction. What depends on a row is worked out once, what depends on taps in each step
    of the sum."""

    def __init__(self, work: Contraction, body: Body) -> None:
        self.work, self.body, self.code = work, body, body.code

    def of_row(self) -> list[str]:
        """The positions of the row at which the body is, but for taps: one for each bound."""
        lines, taps = [bound.position for bound in self.work.bounds], self.work.tap_axes
        parts = [Linear(at.const, tuple((n, c) for n, c in at.axes if n not in taps), at.others) for at in lines]
        return [self.code.let(f"(int)({self.body.fresh_offset(part)})", "position") for part in parts]

    def of_taps(self) -> list[str]:
        """What the taps at which the body is add to them."""
        lines = [bound.position for bound in self.work.bounds]
        parts = [Linear(0, tuple((n, c) for n, c in line.axes if n in self.work.tap_axes)) for line in lines]
        return [self.code.let(f"(int)({self.body.fresh_offset(part)})", "tap") for part in parts]

    def test(self, of_row: Sequence[str], of_taps: Sequence[str]) -> str:
        """Whether all positions are inside; empty where there are no bounds."""
        extents = [self.body.record.dim(bound.extent) for bound in self.work.bounds]
        tests = [f"(unsigned)({at} + {tap}) < (unsigned){end}" for at, tap, end in zip(of_row, of_taps, extents)]
        return " && ".join(tests)
