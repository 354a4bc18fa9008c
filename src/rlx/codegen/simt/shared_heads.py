"""Attention of few queries on matrix units, whose rows are the queries of all heads that share keys: positions are
(batch, head of keys, tile of rows, share of the keys), each a workgroup's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.codegen.simt.attention import FEATURE, HEAD, PLACE
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.team_attention import TILE, WARPS, TeamAttention
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.index import Linear

LINE = 128
"""Bytes that come from memory together."""


class SharedHeads(TeamAttention):
    def _prepare_heads(
        self, work: FusedAttention, slots: Sequence[Slot], language: Language, shares: Dim, warps: int = WARPS
    ) -> None:
        """Of keys in so many shares."""
        rows = dims.mul(work.queries, work.repeat)
        heads = dims.floordiv(work.heads, work.repeat)
        grid = (dims.mul(work.batch, work.live), heads, dims.ceildiv(rows, TILE), shares)
        self._prepare(work, slots, grid, rows, language, warps=warps)

    def _bring(self, most: int, key_of: Callable[[str], str], stop: str) -> None:
        """Asks for at most so many keys and values of the workgroup, up to `stop`, while the kernel before still runs.
        That may still write a few of them, but nothing of them is read here. `key_of` gives the key of a number."""
        work = self.work
        for (slot, line), features in ((work.k, work.features), (work.v, work.value_features)):
            if line.coefficient(FEATURE) == 1 and not line.others:
                self._bring_side(slot, line, features * work.dtype.itemsize, most, key_of, stop)

    def _bring_side(
        self, slot: int, line: Linear, nbytes: int, most: int, key_of: Callable[[str], str], stop: str
    ) -> None:  # fmt: skip
        code, lines = self.code, -(-nbytes // LINE)
        start = self.start(line, FEATURE, PLACE)
        with code.block(f"for (int line = (int)lane; line < {most * lines}; line += {self.lanes})"):
            key = code.let(key_of(f"line / {lines}"), "key")
            code.emit(f"if ({key} >= {stop}) break;")
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
        repeat = self.work.repeat
        return super()._keys(self.code.let(f"{first} / {repeat}"), self.code.let(f"({last}) / {repeat}"))
