"""Attention of many queries by warps that multiply in fours and warps that bring: a workgroup has two groups of four
that take turns at the tiles of keys of 64 queries, and one more, which asks for all queries, keys and values.

Copies to workgroup memory hold up those who ask for them, as each multiprocessor takes some 60 bytes a clock: half of
the time that such attention takes, where those who multiply ask. Counters in workgroup memory tell which tiles are
there, and which have been used, so that nobody waits for a barrier of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlx.codegen.simt.attention_results import Mixed
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.team_attention import SOME_GUESS
from rlx.codegen.simt.tile_attention import KEYS, LANES, QUERIES, WARPS, TileAttention
from rlx.codegen.simt.tile_layouts import PIECE_BYTES
from rlx.codegen.simt.tile_rows import CHUNK, OF_A_CHUNK
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.kernel.ir.attention import FusedAttention

GROUPS = 2
"""That multiply."""
COUNTER_BYTES = 8


class BroughtAttention(TileAttention):
    """Positions are (batch, head, tile of queries), each a workgroup's, whose last four warps bring."""

    def __init__(self, work: FusedAttention, slots: Sequence[Slot], language: Language) -> None:
        super().__init__(work, slots, language, True, GROUPS, "of_group")
        assert self.together  # or it would not be chosen
        self.only_together = True
        self.lanes = LANES * (GROUPS + 1)
        self.ring = self.stages * GROUPS
        self.counters = self.of_stages + QUERIES // 8 * max(self.chunks) * OF_A_CHUNK
        """Pieces in front of the counters: those of full stages, of empty ones, and of queries."""
        self.code.dynamic_shared = PIECE_BYTES * self.counters + COUNTER_BYTES * 2 * (self.ring + 1)
        self.code.alone = True

    def write(self) -> Dim:
        code = self.code
        self._name_lanes()
        self._set_counters()
        first, mine, rows = self._name_queries()
        low, stop = self._span(first)
        self._begin_sums()
        with self.body.scope(f"if (group == {GROUPS})"):
            self._bring(first, low, stop)
        with self.body.scope("else"):
            masks = self._masks(rows)
            free = self._free(mine, stop)
            code.emit("int stage = group, parity = 0;")
            own = code.let(f"{low} + {self.language.index(KEYS)} * group", "low")
            self._ask_masks(masks, own, stop)
            code.emit("await_phase(asked, 0);")
            with self._tiles(own, stop, GROUPS) as start:
                admitted = self._admitted_now()
                self._ask_masks(masks, f"({start} + {KEYS * GROUPS})", stop)
                code.emit("await_phase(full + stage, parity);")
                code.emit("show_to_warpgroups();")
                self._use(self._stage_at("stage"), rows, masks, admitted, start, stop, free)
                code.emit("__syncwarp();")
                code.emit("if (own == 0) arrive(empty + stage);")
        self._join()
        with self.body.scope(f"if (group < {GROUPS})"):
            self.finish(mine, Mixed("joined", self.columns // GROUPS, f"group * {self.columns // GROUPS}"))
        return dims.add(dims.ceildiv(self.work.keys, KEYS), 2)

    def _set_counters(self) -> None:
        code = self.code
        place = f"dynamic_shared + {self.counters}"
        code.emit(f"unsigned long long* const full = (unsigned long long*)({place});")
        code.emit(f"unsigned long long* const empty = full + {self.ring}, * const asked = empty + {self.ring};")
        with code.block("if (lane == 0)"):
            with code.block(f"for (int stage = 0; stage < {self.ring}; stage++)"):
                code.emit(f"count_arrivals(full + stage, {LANES});")
                code.emit(f"count_arrivals(empty + stage, {WARPS});")
            code.emit(f"count_arrivals(asked, {LANES});")
        code.emit(self.language.barrier())

    @contextmanager
    def _tiles(self, first: str, stop: str, step: int) -> Iterator[str]:
        """A loop over every so-many-th tile of keys up to `stop`, with the stage of each and its phase's parity."""
        code, start = self.code, self.code.fresh("start")
        code.emit("#pragma unroll 1")
        with self.body.scope(f"for (auto {start} = {first}; {start} < {stop}; {start} += {KEYS * step})"):
            yield start
            code.emit(f"stage += {step};")
            code.emit(f"if (stage >= {self.ring}) stage -= {self.ring}, parity ^= 1;")

    def _bring(self, first: str, low: str, stop: str) -> None:
        """Asks for queries, and for tiles of keys and values as their stages get empty: they are at first, which is the
        end of a phase of parity 1."""
        code = self.code
        self._copy_queries(first)
        code.emit("arrive_with_copies(asked);")
        self._places()
        code.emit("int stage = 0, parity = 1;")
        with self._tiles(low, stop, 1) as start:
            code.emit("await_phase(empty + stage, parity);")
            self._copy(start, stop, self._stage_at("stage"))
            code.emit("arrive_with_copies(full + stage);")

    def _name_lanes(self) -> None:
        super()._name_lanes()
        self.code.emit(f"const int group = (int)lane / {LANES}, of_group = (int)lane % {LANES};")

    def _join(self) -> None:
        """Each group gives the other one what it has of half of the columns, and adds up the other half."""
        code, language, half = self.code, self.language, self.columns // GROUPS
        held = [name for row in zip(self.tops, self.shifts, self.totals) for name in row]
        of_group, rest = (4 * half + len(held)) * LANES, 4 * half
        code.emit(f"float joined[{half}][4] = {{}};")
        code.emit(language.barrier())
        with code.block(f"if (group < {GROUPS})"):
            code.emit(f"float* const place = (float*)dynamic_shared + (1 - group) * {of_group} + of_group;")
            own, other = (
                [f"(group == {group} ? mixed[column][{i}] : mixed[column + {half}][{i}])" for i in range(4)]
                for group in range(GROUPS)
            )
            put = [f"place[(column * 4 + {i}) * {LANES}] = {other[i]};" for i in range(4)]
            self.for_columns(half, [*put, *(f"joined[column][{i}] = {own[i]};" for i in range(4))])
            for number, name in enumerate(held):
                code.emit(f"place[{(rest + number) * LANES}] = {name};")
        code.emit(language.barrier())
        with self.body.scope(f"if (group < {GROUPS})"):
            code.emit(f"const float* const given = (float*)dynamic_shared + group * {of_group} + of_group;")
            for row in range(2):
                self._join_row(row, rest, half)

    def _join_row(self, row: int, rest: int, half: int) -> None:
        code = self.code
        top, shift, total = (f"given[{(rest + 3 * row + number) * LANES}]" for number in range(3))
        greatest = code.let(f"fmaxf({self.tops[row]}, {top})", "greatest")
        joint = code.let(f"{self.shift(greatest)} * {self.number(self.log2e)}", "shift")
        own, other = (
            code.let(f"near_exp2(fminf({each} - {joint}, {self.zero}))", "shrink") for each in (self.shifts[row], shift)
        )
        code.emit(f"{self.totals[row]} = {self.totals[row]} * {own} + {total} * {other};")
        pairs = [(f"joined[column][{i}]", f"given[(column * 4 + {i}) * {LANES}]") for i in (2 * row, 2 * row + 1)]
        self.for_columns(half, [f"{mine} = {mine} * {own} + {theirs} * {other};" for mine, theirs in pairs])


def takes(work: FusedAttention, rows: int) -> bool:
    """Whether four warps can multiply together, and two groups should: where there are few tiles of queries, which
    `rows` tells, half of the keys take half of the time."""
    return rows == SOME_GUESS and all(n % CHUNK == 0 for n in (work.features, work.value_features))
