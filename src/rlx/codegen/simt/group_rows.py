"""Rows that some lanes of a workgroup walk together, where others walk theirs: all lanes have one, or warps have one
each, or parts of warps; what is made of a row goes to workgroup memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rlx.codegen.simt.body import Body
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.rows import Rows
from rlx.codegen.simt.shared import halves
from rlx.ir import dim as dims
from rlx.ir.expr import Expr
from rlx.kernel.ir.loops import LoopNest, Reduce, Statement, Store

WARP = 32
MOST_UNROLLED = 48
"""Steps along a row that are all written out: what is read twice then stays in registers."""


class GroupRows(Rows):
    """The stages of a row along one axis, and the elements that are made of it.

    lanes     of the workgroup
    width     lanes of a row: those of a part of a warp, of a warp, or all
    element   what is made for every place of the row; `take` gets its place and its value
    storing   the condition under which the nest's own stores are done
    """

    def __init__(
        self, body: Body, nest: LoopNest, stages: Sequence[Statement], lanes: int, width: int, element: Expr,
        take: Callable[[str, Reg], None], storing: str,
    ) -> None:  # fmt: skip
        super().__init__(body, nest, stages)
        self.warps = width // WARP
        self.step = width
        self.lane = "(int)lane" if width == lanes else "own" if width == WARP else f"own % {width}"
        self.element, self.take, self.storing = element, take, storing

    def write(self) -> None:
        stores: list[int] = []
        for group in self.passes():
            sums = [n for n in group if isinstance(self.statements[n], Reduce)]
            stores += [n for n in group if isinstance(self.statements[n], Store)]
            if sums:
                totals = {n: self.variable(s, "total") for n, s in self.reduces(sums).items()}
                self.walk(sums, totals)
                for number, stage in self.reduces(sums).items():
                    self.body.rows[number] = self._joined(stage, totals[number])
        self.body.hoist([self.element], self._varies)
        with self._places() as place:
            self.take(place, self.body.gen(self.element))
            if stores:
                with self.body.scope(f"if ({self.storing})"):
                    self.visit(stores, {})

    def walk(self, group: Sequence[int], totals: dict[int, Reg]) -> None:
        with self._places():
            self.visit(group, totals)

    @contextmanager
    def _places(self) -> Iterator[str]:
        """A loop over a lane's places of the row, written out where their number is known."""
        language, length = self.language, self.length
        place = self.code.fresh("k")
        self.body.axes[self.inner[0]] = place
        self.count(dims.ceildiv(length, self.step))
        if isinstance(length, int) and length % self.step == 0 and length // self.step <= MOST_UNROLLED:
            steps, number = length // self.step, self.code.fresh("step")
            language.unroll(self.code, steps)
            with self.body.scope(f"for (int {number} = 0; {number} < {steps}; {number}++)"):
                self.code.emit(f"const int {place} = {self.lane} + {number} * {self.step};")
                yield place
            return
        language.unroll(self.code, 4)
        head = f"for (int {place} = {self.lane}; {place} < {self.body.record.dim(length)}; {place} += {self.step})"
        with self.body.scope(head):
            yield place

    def _joined(self, stage: Reduce, total: Reg) -> Reg:
        """What all lanes of a row have together: those of a warp, then the warps."""
        code, language, body = self.code, self.language, self.body
        held = total
        for step in reversed(halves(min(self.step, WARP))):
            other = held.like(code.let(language.from_neighbour(held, f"{step}")))
            held = body.apply(stage.combine, held, other)
        if self.warps <= 1:
            return held
        kind = language.register_type(held.dtype, held.wide)
        array = code.fresh("shared_part")
        language.shared_variable(code, array, kind, self.warps)
        with code.block("if (own == 0)"):
            code.emit(f"{array}[warp] = {held.name};")
        code.emit(language.barrier())
        held = held.like(code.let(f"{array}[0]"))
        for number in range(1, self.warps):
            held = body.apply(stage.combine, held, held.like(code.let(f"{array}[{number}]")))
        return held
