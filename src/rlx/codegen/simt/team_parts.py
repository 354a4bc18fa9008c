"""Parts of attention of few queries on matrix units, for GPUs whose workgroups cannot meet (`passes.split_kv`)."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.codegen.simt.attention import HEAD, KEY
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.shared_heads import SharedHeads
from rlx.codegen.simt.split_kv import query_number
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.attention import SplitKvPartial
from rlx.kernel.passes.split_kv import chunk_of, part_length, parts_of


class TeamParts(SharedHeads):
    """Parts of attention of few queries. Positions are (batch, head of keys, tile of rows, chunk of keys); rows are the
    queries of all heads that share the keys."""

    def __init__(self, parts: SplitKvPartial, slots: Sequence[Slot], language: Language) -> None:
        work = parts.work
        self.chunk = chunk_of(work, team=True)
        self._prepare_heads(work, slots, language, dims.ceildiv(work.keys, self.chunk))
        self.code.follows = not (work.k[1].others or work.v[1].others)

    def write(self) -> Dim:
        if self.code.follows:
            first = self.code.let(f"{self.body.axes[KEY]} * {self.language.index(self.chunk)}", "first")
            self._bring(self.chunk, lambda number: f"{first} + {number}", self.record.dim(self.work.keys))
            self.code.emit("follow();")
        return super().write()

    def _keys(self, first: str, last: str) -> tuple[str, str]:
        code = self.code
        low, stop = super()._keys(first, last)
        start = code.let(f"(int){self.body.axes[KEY]} * {self.chunk}", "start")
        return code.let(f"max({low}, {start})", "low"), code.let(f"min({stop}, {start} + {self.chunk})", "stop")

    def _finish(self, row: str, feature: str, top: str, mixed: str, total: str) -> None:
        """Stores the part."""
        work, code, body, index = self.work, self.code, self.body, self.language.index
        query = self._go_to(body.axes[HEAD], row)
        number = query_number(self, work, body.axes[HEAD], query)
        parts = self.record.dim(parts_of(work, team=True))
        begin = code.let(f"({number} * {parts} + {body.axes[KEY]}) * {index(part_length(work))}", "at")
        with body.scope(f"if ({feature} == {index(0)})"):
            for i, value in enumerate((top, total)):
                place = f"({begin} + {index(work.value_features + i)})"
                body.store_at(0, place, Reg(value, dtypes.f32, False))
        body.store_at(0, f"({begin} + {feature})", Reg(mixed, dtypes.f32, False))
