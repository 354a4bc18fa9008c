"""Parts of attention of few queries on matrix units, for GPUs whose workgroups cannot meet (`passes.split_kv`)."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.codegen.simt.attention import FEATURE, HEAD, KEY, PLACE
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.split_kv import query_number
from rlx.codegen.simt.team_attention import LINE, TILE, TeamAttention
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.attention import SplitKvPartial
from rlx.kernel.ir.index import Linear
from rlx.kernel.passes.split_kv import chunk_of, part_length, parts_of


class TeamParts(TeamAttention):
    """Parts of attention of few queries. Positions are (batch, head of keys, tile of rows, chunk of keys); rows are the
    queries of all heads that share the keys."""

    def __init__(self, parts: SplitKvPartial, slots: Sequence[Slot], language: Language) -> None:
        work = parts.work
        rows = dims.mul(work.queries, work.repeat)
        self.chunk = chunk_of(work, team=True)
        shared_heads = dims.floordiv(work.heads, work.repeat)
        tiles, chunks = dims.ceildiv(rows, TILE), dims.ceildiv(work.keys, self.chunk)
        self._prepare(work, slots, (dims.mul(work.batch, work.live), shared_heads, tiles, chunks), rows, language)
        self.code.follows = not (work.k[1].others or work.v[1].others)

    def write(self) -> Dim:
        if self.code.follows:
            for slot, line, features in ((*self.work.k, self.work.features), (*self.work.v, self.work.value_features)):
                self._bring(slot, line, features)
            self.code.emit("follow();")
        return super().write()

    def _bring(self, slot: int, line: Linear, features: int) -> None:
        """Asks for the chunk's keys or values while the kernel before still runs: it may still write a few of them, but
        nothing of them is read here."""
        code, index = self.code, self.language.index
        if line.coefficient(FEATURE) != 1:
            return
        row_bytes = features * self.work.dtype.itemsize
        lines = -(-row_bytes // LINE)
        start = self.start(line, FEATURE, PLACE)
        first = code.let(f"{self.body.axes[KEY]} * {index(self.chunk)}", "first")
        with code.block(f"for (int line = (int)lane; line < {self.chunk * lines}; line += {self.lanes})"):
            key = code.let(f"{first} + line / {lines}", "key")
            with code.block(f"if ({key} < {self.record.dim(self.work.keys)})"):
                at = f"{start} + {key} * {self.record.dim(line.coefficient(PLACE))}"
                code.emit(f"bring_near(slot{slot} + {at} + line % {lines} * {LINE // self.work.dtype.itemsize});")

    def _go_to(self, head: str, row: str) -> str:
        repeat = self.work.repeat
        self.body.axes[HEAD] = self.code.let(f"{head} * {self.language.index(repeat)} + {row} % {repeat}", "head")
        self.body.axes[PLACE] = self.code.let(f"{row} / {repeat}", "query")
        return self.body.axes[PLACE]

    def _shared_head(self, head: str) -> str:
        return head

    def _keys(self, first: str, last: str) -> tuple[str, str]:
        code, repeat = self.code, self.work.repeat
        low, stop = super()._keys(code.let(f"{first} / {repeat}", "query"), code.let(f"({last}) / {repeat}", "query"))
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
