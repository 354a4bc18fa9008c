"""Attention of few queries in two shaders: one makes parts over chunks of keys, one joins them (`passes.split_kv`).

A workgroup has a chunk of keys, and all queries that read these: those of the heads that share them. First a lane has
keys of its own, and makes their scores; then it has features of its own, and mixes their values by the powers of the
scores, which lie in workgroup memory; where heads are narrow, groups of lanes have keys of their own, and parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.codegen.simt.attention import FEATURE, HEAD, KEY, PLACE, AttentionWriter
from rlx.codegen.simt.code import WORKGROUP, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.language import WGSL
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.shared import Shared
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial
from rlx.kernel.passes.split_kv import groups_of, part_length, parts_of, schedule

GROUP = 8
"""Lanes whose results one step of a reduction joins: the root of the lanes of a workgroup."""
UNROLLED = 8
"""Parts that a lane reads at once, where compilers write out loops."""


@dataclass(frozen=True)
class _Row:
    """A query and head of a workgroup: its number; the head and the query, which exist in any case; where its mask
    begins; and a variable for the greatest score of the lane's keys."""

    row: str
    head: str
    query: str
    mask: str
    top: str


class Parts(AttentionWriter):
    """Positions are (batch, head of keys, tile of queries, chunk of keys), each a workgroup's."""

    def __init__(self, parts: SplitKvPartial, slots: Sequence[Slot], language: Language = WGSL) -> None:
        work = parts.work
        self.schedule = schedule(work)
        self.chunk = self.schedule.static_tile("workgroup", "keys")
        self.held = self.schedule.static_tile("workgroup", "queries")
        self.rows = dims.mul(work.queries, work.repeat)
        shared_heads = dims.floordiv(work.heads, work.repeat)
        grid = (
            dims.mul(work.batch, work.live),
            shared_heads,
            dims.ceildiv(self.rows, self.held),
            dims.ceildiv(work.keys, self.chunk),
        )
        super().__init__(work, slots, grid, grid, team=True, language=language)

    def write(self) -> Dim:
        code, axes, index = self.code, self.body.axes, self.language.index
        shared_head, chunk = axes[HEAD], axes[KEY]
        first = code.let(f"{axes[PLACE]} * {index(self.held)}", "first")
        rows = [self._row(shared_head, f"{first} + {index(number)}") for number in range(self.held)]
        self._stage_queries(shared_head, first)
        start = code.let(f"{chunk} * {index(self.chunk)}", "start")
        low, stop = self.span(rows[0].query, rows[-1].query)
        low = code.let(f"max({low}, {start})", "low")
        stop = code.let(f"min({stop}, {start} + {index(self.chunk)})", "stop")
        axes[HEAD] = shared_head
        self.floats("shared_scores", self.held * self.chunk)
        self._scores(rows, start, low, stop)
        tops = self._tops(rows)
        self._powers(tops)
        self._mix(rows, tops, start, low, stop)
        staged = 2 + self.held * self.quads // WORKGROUP
        return staged + self.chunk // WORKGROUP * (self.quads + 4) + 2 * GROUP + self.chunk + 4 * self.held

    def _row(self, shared_head: str, number: str) -> _Row:
        work, code = self.work, self.code
        row = code.let(number, "row")
        head, query = self._place(shared_head, row)
        mask = self.start(work.mask[1], KEY) if work.mask is not None else ""
        return _Row(row, head, query, mask, self.variable("top", self.least))

    def _place(self, shared_head: str, row: str) -> tuple[str, str]:
        """Goes to the head and query of a row; behind the last, to the last one's."""
        repeat, one = self.language.index(self.work.repeat), self.language.index(1)
        inside = self.code.let(f"min({row}, {self.record.dim(self.rows)} - {one})", "row")
        head = self.code.let(f"{shared_head} * {repeat} + {inside} % {repeat}", "head")
        query = self.code.let(f"{inside} / {repeat}", "query")
        self.body.axes[HEAD], self.body.axes[PLACE] = head, query
        return head, query

    def _stage_queries(self, shared_head: str, first: str) -> None:
        """Brings the queries to workgroup memory, scaled."""
        work, code, language = self.work, self.code, self.language
        count, quads = self.held * self.quads, language.index(self.quads)
        language.shared_variable(code, "shared_queries", language.quad_type, count)
        with self.each(language.index(count), WORKGROUP, language.lane_index()) as item:
            self._place(shared_head, f"({first} + {item} / {quads})")
            at = self.start(work.q[1], FEATURE)
            quad = self.quad(work.q, at, code.let(f"{item} % {quads}", "quad"), work.features)
            code.emit(f"shared_queries[{item}] = {quad} * {self.number(work.scale)};")
        code.emit(language.barrier())

    def _scores(self, rows: Sequence[_Row], start: str, low: str, stop: str) -> None:
        """Scores of the lane's keys to workgroup memory, and the greatest of them."""
        work, code, language, index = self.work, self.code, self.language, self.language.index
        k, last = self.start(work.k[1], FEATURE, PLACE), f"{self.record.dim(work.keys)} - {index(1)}"
        step = self.record.dim(work.k[1].coefficient(PLACE))
        first = f"{start} + {language.lane_index()}"
        keys = [code.let(f"{first} + {index(i * WORKGROUP)}", "key") for i in range(self.chunk // WORKGROUP)]
        places = [code.let(f"{k} + min({key}, {last}) * {step}", "at") for key in keys]
        scores = [[code.fresh("score") for _ in keys] for _ in rows]
        for score in (score for mine in scores for score in mine):
            code.emit(language.mutable(score, self.zero))
        depth = code.let(language.select(f"{low} < {stop}", index(self.quads), index(0)), "depth")
        with self.each(depth) as quad:
            rights = [code.let(self.quad(work.k, at, quad, work.features), "right") for at in places]
            for number, mine in enumerate(scores):
                left = code.let(f"shared_queries[{index(number * self.quads)} + {quad}]", "left")
                for score, right in zip(mine, rights):
                    code.emit(f"{score} = {score} + dot({left}, {right});")
        for number, (row, mine) in enumerate(zip(rows, scores)):
            for i, (score, key) in enumerate(zip(mine, keys)):
                self.mask(row.query, row.mask, score, key)
                inside = f"{key} >= {low} && {key} < {stop}"
                code.emit(f"{score} = {language.select(inside, score, self.least)};")
                code.emit(f"shared_scores[{number * self.chunk + i * WORKGROUP}u + lane] = {score};")
                self.raise_to(row.top, score)

    def _tops(self, rows: Sequence[_Row]) -> list[str]:
        """The greatest scores of all lanes, in two steps; variables with one for each row."""
        code, index, lane = self.code, self.language.index, self.language.lane_index()
        if code.subgroups:
            return self._tops_of_subgroups(rows)
        self.floats("shared_tops", self.held * WORKGROUP)
        self.floats("shared_group_tops", self.held * GROUP)
        for number, row in enumerate(rows):
            code.emit(f"shared_tops[{number * WORKGROUP}u + lane] = {row.top};")
        code.emit(self.language.barrier())
        for source, size, begin in (("shared_tops", WORKGROUP, f"{lane} / {index(GROUP)} * {index(GROUP)}"),
                                    ("shared_group_tops", GROUP, index(0))):  # fmt: skip
            with self.each(index(GROUP)) as item:
                for number, row in enumerate(rows):
                    other = code.let(f"{source}[{index(number * size)} + {begin} + {item}]", "other")
                    self.raise_to(row.top, other)
            if size == WORKGROUP:
                for number, row in enumerate(rows):
                    code.emit(f"shared_group_tops[{number * GROUP}u + lane / {GROUP}u] = {row.top};")
                code.emit(self.language.barrier())
        return [row.top for row in rows]

    def _tops_of_subgroups(self, rows: Sequence[_Row]) -> list[str]:
        code, shared = self.code, Shared(self.code)
        self.floats("shared_tops", self.held * WORKGROUP)

        def greater(a: Reg, b: Reg) -> Reg:
            return a.like(code.let(self.language.select(f"{b.name} > {a.name}", b.name, a.name)))

        tops = [shared.among_neighbours(Reg(row.top, dtypes.f32, False), greater) for row in rows]
        for number, top in enumerate(tops):
            code.emit(f"shared_tops[{number * WORKGROUP}u + lane] = {top.name};")
        shared.barrier()
        with shared.other_subgroups() as first:
            for number, top in enumerate(tops):
                other = top.like(code.let(f"shared_tops[{number * WORKGROUP}u + (lane + {first}) % {WORKGROUP}u]"))
                code.emit(f"{top.name} = {greater(top.like(code.let(top.name)), other).name};")
        return [top.name for top in tops]

    def _powers(self, tops: Sequence[str]) -> None:
        """Makes powers of the lane's scores."""
        code, index = self.code, self.language.index
        shifts = [self.shift(top) for top in tops]
        with self.each(index(self.chunk), WORKGROUP, self.language.lane_index()) as place:
            for number, shift in enumerate(shifts):
                score = f"shared_scores[{index(number * self.chunk)} + {place}]"
                code.emit(f"{score} = {self.exp(f'{score} - {shift}')};")
        code.emit(self.language.barrier())

    def _mix(self, rows: Sequence[_Row], tops: Sequence[str], start: str, low: str, stop: str) -> None:
        """Sums of powers, and of values by them, for four features of the lane; and stores the parts. Groups of lanes
        have all features each, and a part of the chunk's keys."""
        work, code, record, language, index = self.work, self.code, self.record, self.language, self.language.index
        groups, lanes = groups_of(work), index(WORKGROUP // groups_of(work))
        own_keys = index(self.chunk // groups)
        group = code.let(f"{language.lane_index()} / {lanes}", "group")
        first = code.let(f"{start} + {group} * {own_keys}", "first")
        v, step = self.start(work.v[1], FEATURE, PLACE), record.dim(work.v[1].coefficient(PLACE))
        own = code.let(f"{language.lane_index()} % {lanes}", "own")
        quad = code.let(f"min({own}, {index(-(-work.value_features // 4) - 1)})", "quad")
        totals, mixed = [code.fresh("total") for _ in rows], [code.fresh("mixed") for _ in rows]
        for total, name in zip(totals, mixed):
            code.emit(language.mutable(total, self.zero))
            code.emit(language.mutable(name, language.quad()))
        end = code.let(f"min({stop}, {first} + {own_keys})", "end")
        with self.each(end, 1, f"max({low}, {first})") as key:
            at = code.let(f"{v} + {key} * {step}", "at")
            value = code.let(self.quad(work.v, at, quad, work.value_features), "value")
            for number, (total, name) in enumerate(zip(totals, mixed)):
                power = code.let(f"shared_scores[{index(number * self.chunk)} + {key} - {start}]", "power")
                code.emit(f"{total} = {total} + {power};")
                code.emit(f"{name} = {language.quad_fma(power, value, name)};")
        for row, top, total, name in zip(rows, tops, totals, mixed):
            with self.body.scope(f"if ({row.row} < {record.dim(self.rows)})"):
                one = query_number(self, work, row.head, row.query)
                part = f"{start} / {index(self.chunk)} * {index(groups)} + {group}"
                begin = code.let(f"({one} * {record.dim(parts_of(work))} + {part}) * {index(part_length(work))}", "at")
                for i in range(4):
                    feature = code.let(f"{own} * {index(4)} + {index(i)}", "feature")
                    with self.body.scope(f"if ({feature} < {index(work.value_features)})"):
                        self._store(f"({begin} + {feature})", f"{name}.{'xyzw'[i]}")
                with self.body.scope(f"if ({own} == {index(0)})"):
                    self._store(f"({begin} + {index(work.value_features)})", top)
                    self._store(f"({begin} + {index(work.value_features + 1)})", total)

    def _store(self, at: str, name: str) -> None:
        self.body.store_at(0, at, Reg(name, dtypes.f32, False))


class Join(AttentionWriter):
    """Positions are (batch, head, query, feature), each an invocation's."""

    def __init__(self, join: SplitKvCombine, slots: Sequence[Slot], language: Language = WGSL) -> None:
        work = join.work
        self.of_teams = join.team
        grid = (dims.mul(work.batch, work.live), work.heads, work.queries, work.value_features)
        super().__init__(work, slots, grid, grid, team=False, language=language)

    def write(self) -> Dim:
        work, code, body, language = self.work, self.code, self.body, self.language
        greatest, powers = (language.index(work.value_features + i) for i in range(2))
        length, chunks = language.index(part_length(work)), self.record.dim(parts_of(work, self.of_teams))
        number = query_number(self, work, body.axes[HEAD], body.axes[PLACE])
        begin = code.let(f"{number} * {chunks} * {length}", "at")
        top, total, mixed = (code.fresh(stem) for stem in ("top", "total", "mixed"))
        code.emit(language.mutable(top, self.least))
        language.unroll(code, UNROLLED)
        with self.each(chunks) as chunk:
            self.raise_to(top, self._of_part(begin, chunk, greatest))
        shift = self.shift(top)
        code.emit(language.mutable(total, self.zero))
        code.emit(language.mutable(mixed, self.zero))
        language.unroll(code, UNROLLED)
        with self.each(chunks) as chunk:
            shrink = self.exp(f"{self._of_part(begin, chunk, greatest)} - {shift}")
            for name, at in ((total, powers), (mixed, body.axes[FEATURE])):
                code.emit(f"{name} = {language.fma(self._of_part(begin, chunk, at), shrink, name)};")
        value = code.let(language.rounded(work.dtype, f"{mixed} / {self.whole(total)}"))
        body.store(work.out[0], work.out[1], Reg(value, work.dtype, False))
        return dims.add(dims.mul(parts_of(work, self.of_teams), 2), 4)

    def _of_part(self, begin: str, chunk: str, at: str) -> str:
        length = self.language.index(part_length(self.work))
        return self.body.load_at(1, f"({begin} + {chunk} * {length} + {at})").name


def query_number(writer: AttentionWriter, work: FusedAttention, head: str, query: str) -> str:
    """Which of all queries one is, in the order of parts."""
    record, batch = writer.record, writer.body.axes[0]
    heads, queries = record.dim(work.heads), record.dim(work.queries)
    return writer.code.let(f"({batch} * {heads} + {head}) * {queries} + {query}", "number")
