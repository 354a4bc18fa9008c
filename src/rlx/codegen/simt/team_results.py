"""What becomes of the sums of few rows: each result by one lane, neighbours by neighbours.

What the results are made of beside sums, as a bias and a residual, is on its way before the sums are there: what is the
same in every run before earlier kernels have ended, all else right behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlx.codegen.simt import loops as nests
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.team_layouts import HALF, HALVES
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.kernel.ir.index import offset_of
from rlx.kernel.ir.loops import Store

if TYPE_CHECKING:
    from rlx.codegen.simt.team_contraction import TeamContraction

MOST_HELD = 8
"""Elements that a lane asks for."""


class TeamResults:
    """The part of a kernel that finishes its results."""

    def __init__(self, writer: TeamContraction) -> None:
        self.writer, self.work, self.body, self.code = writer, writer.work, writer.body, writer.code
        self.columns = writer.layout.tile[1]
        self.count = writer.kept * self.columns
        self.turns = -(-self.count // writer.lanes)
        """Results of a lane."""
        self.stages: list[Store] = []
        for stage in nests.legal_stages(self.work.epilogue):
            assert isinstance(stage, Store)  # of a contraction
            self.stages.append(stage)
        loads = [node for node in ex.walk([stage.body for stage in self.stages]) if self._can_hold(node)]
        asks = writer.code.follows and writer.most_rows > HALF and len(loads) * self.turns <= MOST_HELD
        self.held = {node: f"held_{number}" for number, node in enumerate(loads)} if asks else {}
        """What lanes hold, and the names of their arrays. Kernels of fewer rows mostly wait for their weights."""

    def _can_hold(self, node: Expr) -> bool:
        """Whether it is an element of a place that is known before the sum, in memory that is not written."""
        if node.kind != "load" or node.attr.guarded or offset_of(node).others:
            return False
        is_float = node.dtype in (*HALVES, dtypes.f32)
        return is_float and all(node.attr.slot != stage.slot for stage in self.stages)

    def ask(self, static: bool) -> None:
        """Loads what is the same in every run, or what is not."""
        chosen = {node: name for node, name in self.held.items() if self.body.slots[node.attr.slot].static == static}
        if not chosen:
            return
        for name in chosen.values():
            self.code.emit(f"float {name}[{self.turns}] = {{}};")
        with self._turns() as turn, self._result(f"(int)lane + {turn} * {self.writer.lanes}"):
            for node, name in chosen.items():
                element = f"element_ahead(slot{node.attr.slot} + {self.body.fresh_offset(offset_of(node))})"
                value = element if node.dtype is dtypes.f32 else f"decode_{node.dtype}({element})"
                self.code.emit(f"{name}[{turn}] = {value};")

    def write(self) -> None:
        """Finishes the results."""
        if not self.held:
            language = self.writer.language
            head = language.loop("e", language.lane_index(), language.index(self.count), self.writer.lanes)
            with self.body.scope(head), self._result("(int)e") as (row, column):
                self._finish(row, column)
            return
        with self._turns() as turn, self._result(f"(int)lane + {turn} * {self.writer.lanes}") as (row, column):
            for node, name in self.held.items():
                self.body.remember(node, Reg(f"{name}[{turn}]", node.dtype, False))
            self._finish(row, column)

    @contextmanager
    def _turns(self) -> Iterator[str]:
        """A loop over a lane's results, written out; the number of the turn."""
        self.code.emit("#pragma unroll")
        turn = self.code.fresh("turn")
        with self.body.scope(f"for (int {turn} = 0; {turn} < {self.turns}; {turn}++)"):
            yield turn

    @contextmanager
    def _result(self, number: str) -> Iterator[tuple[str, str]]:
        """Goes to a result of the tile, if there is one of this number; its row and column there."""
        body, code, work, writer = self.body, self.code, self.work, self.writer
        row = code.let(f"({number}) / {self.columns}", "row")
        column = code.let(f"({number}) % {self.columns}", "column")
        body.axes[work.m_axis] = code.let(f"{writer.top} + {row}", "at")
        body.axes[work.n_axis] = code.let(f"{writer.left} + {column}", "at")
        inside = [f"{body.axes[work.m_axis]} < {body.record.dim(work.m)}"]
        inside.append(f"{body.axes[work.n_axis]} < {body.record.dim(work.n)}")
        if self.count % writer.lanes:
            inside.append(f"{row} < {writer.kept}")
        with body.scope(f"if ({' && '.join(inside)})"):
            yield row, column

    def _finish(self, row: str, column: str) -> None:
        """The result from the sums of all warps."""
        work, code, body, writer = self.work, self.code, self.body, self.writer
        places = [f"shared_sums[({part} * {writer.kept} + {row}) * {writer.pitch} + {column}]"
                  for part in range(writer.layout.warps[2])]  # fmt: skip
        total = code.let(writer.language.rounded(work.dtype, " + ".join(places)))
        if work.float_parts and work.blocks is None:
            total = writer.made_sure(total)
        body.accumulated = Reg(total, work.dtype, False)
        for stage in self.stages:
            body.store(stage.slot, stage.offset, body.gen(stage.body))
