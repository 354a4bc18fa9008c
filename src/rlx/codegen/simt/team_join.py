"""Partial results of attention joined by a workgroup: a lane has a feature, and first some of the parts' shares.

How much each part counts is worked out once for all features, side by side, while the first parts' values come.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.codegen.simt.attention import FEATURE, HEAD, PLACE, AttentionWriter
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.shared import halves
from rlx.codegen.simt.split_kv import query_number
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.attention import SplitKvCombine
from rlx.kernel.passes.split_kv import part_length, parts_of

WARP = 32
MOST_FEATURES = 512
"""Of a workgroup's lanes."""
AHEAD = 16
"""Parts whose values come before it is known how much they count."""


def takes(join: SplitKvCombine) -> bool:
    """Whether a workgroup has a lane for each feature."""
    return join.work.value_features <= MOST_FEATURES


class TeamJoin(AttentionWriter):
    """Positions are (batch, head, query), each a workgroup's."""

    def __init__(self, join: SplitKvCombine, slots: Sequence[Slot], language: Language) -> None:
        work = join.work
        self.parts = parts_of(work, join.team)
        grid = (dims.mul(work.batch, work.live), work.heads, work.queries)
        super().__init__(work, slots, grid, (*grid, work.value_features), team=True, language=language)
        self.lanes = -(-work.value_features // WARP) * WARP

    def write(self) -> Dim:
        work, code, body, language, index = self.work, self.code, self.body, self.language, self.language.index
        length, parts = part_length(work), self.record.dim(self.parts)
        number = query_number(self, work, body.axes[HEAD], body.axes[PLACE])
        begin = code.let(f"{number} * {parts} * {index(length)}", "at")
        feature = code.let(f"min({language.lane_index()}, {index(work.value_features - 1)})", "feature")
        for name in ("shared_shrink", "shared_power"):
            self.floats(name, self.lanes)
        self.floats("shared_top", self.lanes // WARP)
        code.emit(f"float ahead[{AHEAD}];")
        code.emit("#pragma unroll")
        with code.block(f"for (int part = 0; part < {AHEAD}; part++)"):
            value = f"slot1[{begin} + part * {index(length)} + {feature}]"
            code.emit(f"ahead[part] = part < {parts} ? {value} : {self.zero};")
        shift = self.shift(self._greatest(begin, length, parts))
        total, mixed = self.variable("total", self.zero), self.variable("mixed", self.zero)
        with self.body.scope(language.loop("first", index(0), parts, self.lanes)):
            part = f"{begin} + (first + {language.lane_index()}) * {index(length)} + {index(work.value_features)}"
            with self.body.scope(f"if (first + {language.lane_index()} < {parts})"):
                code.emit(f"shared_shrink[lane] = {self.exp(f'slot1[{part}] - {shift}')};")
                code.emit(f"shared_power[lane] = slot1[{part} + {index(1)}];")
            code.emit(language.barrier())
            end = code.let(f"min(first + {index(self.lanes)}, {parts})", "end")
            start = code.let(language.select(f"first == {index(0)}", f"min({index(AHEAD)}, {parts})", "first"), "start")
            code.emit("#pragma unroll")
            near = f"first == {index(0)} && part < {AHEAD} && part < {parts}"
            with code.block(f"for (int part = 0; {near}; part++)"):
                self._add(total, mixed, "part", "ahead[part]")
            code.emit(f"#pragma unroll {AHEAD}")
            with code.block(f"for (long long part = {start}; part < {end}; part++)"):
                value = f"slot1[{begin} + part * {index(length)} + {feature}]"
                self._add(total, mixed, "part - first", value)
            code.emit(language.barrier())
        body.axes[FEATURE] = language.lane_index()
        with self.body.scope(f"if ({language.lane_index()} < {index(work.value_features)})"):
            body.store(work.out[0], work.out[1], self.finished(f"{mixed} / {self.whole(total)}", language.lane_index()))
        return dims.add(dims.mul(self.parts, 2), 4 + AHEAD)

    def _add(self, total: str, mixed: str, part: str, value: str) -> None:
        for name, of_part in ((total, f"shared_power[{part}]"), (mixed, value)):
            self.code.emit(f"{name} = {self.language.fma(of_part, f'shared_shrink[{part}]', name)};")

    def _greatest(self, begin: str, length: int, parts: str) -> str:
        """The greatest score of all parts: of a lane's, then of a warp's, then of all."""
        code, language, index = self.code, self.language, self.language.index
        top = self.variable("top", self.least)
        lane = language.lane_index()
        with self.body.scope(language.loop("part", lane, parts, self.lanes)):
            of_part = f"slot1[{begin} + part * {index(length)} + {index(self.work.value_features)}]"
            self.raise_to(top, code.let(of_part, "score"))
        for step in reversed(halves(WARP)):
            mine = Reg(top, dtypes.f32, False)
            self.raise_to(top, code.let(language.from_neighbour(mine, str(step)), "other"))
        with code.block(f"if ({lane} % {WARP} == 0)"):
            code.emit(f"shared_top[{lane} / {WARP}] = {top};")
        code.emit(language.barrier())
        for warp in range(self.lanes // WARP):
            self.raise_to(top, f"shared_top[{warp}]")
        return top
