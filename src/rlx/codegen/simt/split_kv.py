"""Attention of few queries in two shaders: one makes parts over chunks of keys, one joins them (`passes.split_kv`).

A workgroup has a chunk of keys, and all queries that read these: those of the heads that share them. First a lane has
keys of its own, and makes their scores; then it has features of its own, and mixes their values by the powers of the
scores, which lie in workgroup memory; where heads are narrow, groups of lanes have keys of their own, and parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.codegen.simt.attention import FEATURE, HEAD, KEY, LEAST, PLACE, AttentionWriter
from rlx.codegen.simt.code import WORKGROUP, Slot
from rlx.codegen.simt.language.wgsl.instructions import rounded
from rlx.codegen.simt.language.wgsl.language import float_literal
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.shared import Shared
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial
from rlx.kernel.passes.split_kv import chunk_of, groups_of, part_length, parts_of

ROWS = 8
"""Queries of a workgroup, at most; half of them where heads are wide, for the sake of workgroup memory."""
WIDE = 32
"""Quads of features above which heads are wide."""
GROUP = 8
"""Lanes whose results one step of a reduction joins: the root of the lanes of a workgroup."""


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

    def __init__(self, parts: SplitKvPartial, slots: Sequence[Slot]) -> None:
        work = parts.work
        self.chunk = chunk_of(work)
        self.rows = dims.mul(work.queries, work.repeat)
        most = ROWS if -(-work.features // 4) <= WIDE else ROWS // 2
        self.held = min(most, self.rows) if isinstance(self.rows, int) else most
        shared_heads = dims.floordiv(work.heads, work.repeat)
        grid = (
            dims.mul(work.batch, work.live),
            shared_heads,
            dims.ceildiv(self.rows, self.held),
            dims.ceildiv(work.keys, self.chunk),
        )
        super().__init__(work, slots, grid, grid, team=True)

    def write(self) -> Dim:
        code, axes = self.code, self.body.axes
        shared_head, chunk = axes[HEAD], axes[KEY]
        first = code.let(f"{axes[PLACE]} * {self.held}i", "first")
        rows = [self._row(shared_head, f"{first} + {number}i") for number in range(self.held)]
        self._stage_queries(shared_head, first)
        start = code.let(f"{chunk} * {self.chunk}i", "start")
        low, stop = self.span(rows[0].query, rows[-1].query)
        low = code.let(f"max({low}, {start})", "low")
        stop = code.let(f"min({stop}, {start} + {self.chunk}i)", "stop")
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
        top = code.fresh("top")
        code.emit(f"var {top} = {LEAST};")
        return _Row(row, head, query, mask, top)

    def _place(self, shared_head: str, row: str) -> tuple[str, str]:
        """Goes to the head and query of a row; behind the last, to the last one's."""
        repeat = self.work.repeat
        inside = self.code.let(f"min({row}, {self.record.dim(self.rows)} - 1i)", "row")
        head = self.code.let(f"{shared_head} * {repeat}i + {inside} % {repeat}i", "head")
        query = self.code.let(f"{inside} / {repeat}i", "query")
        self.body.axes[HEAD], self.body.axes[PLACE] = head, query
        return head, query

    def _stage_queries(self, shared_head: str, first: str) -> None:
        """Brings the queries to workgroup memory, scaled."""
        work, code = self.work, self.code
        self.language.shared_variable(code, "shared_queries", self.language.quad_type, self.held * self.quads)
        with self.each(f"{self.held * self.quads}i", WORKGROUP, "i32(lane)") as item:
            self._place(shared_head, f"({first} + {item} / {self.quads}i)")
            at = self.start(work.q[1], FEATURE)
            quad = self.quad(work.q, at, code.let(f"{item} % {self.quads}i", "quad"), work.features)
            code.emit(f"shared_queries[{item}] = {quad} * {float_literal(work.scale)};")
        code.emit("workgroupBarrier();")

    def _scores(self, rows: Sequence[_Row], start: str, low: str, stop: str) -> None:
        """Scores of the lane's keys to workgroup memory, and the greatest of them."""
        work, code = self.work, self.code
        k, last = self.start(work.k[1], FEATURE, PLACE), f"{self.record.dim(work.keys)} - 1i"
        step = self.record.dim(work.k[1].coefficient(PLACE))
        keys = [code.let(f"{start} + i32(lane) + {i * WORKGROUP}i", "key") for i in range(self.chunk // WORKGROUP)]
        places = [code.let(f"{k} + min({key}, {last}) * {step}", "at") for key in keys]
        scores = [[code.fresh("score") for _ in keys] for _ in rows]
        for score in (score for mine in scores for score in mine):
            code.emit(f"var {score} = 0.0f;")
        depth = code.let(f"select(0i, {self.quads}i, {low} < {stop})", "depth")
        with self.each(depth) as quad:
            rights = [code.let(self.quad(work.k, at, quad, work.features), "right") for at in places]
            for number, mine in enumerate(scores):
                left = code.let(f"shared_queries[{number * self.quads}i + {quad}]", "left")
                for score, right in zip(mine, rights):
                    code.emit(f"{score} = {score} + dot({left}, {right});")
        for number, (row, mine) in enumerate(zip(rows, scores)):
            for i, (score, key) in enumerate(zip(mine, keys)):
                self.mask(row.query, row.mask, score, key)
                code.emit(f"{score} = select({LEAST}, {score}, {key} >= {low} && {key} < {stop});")
                code.emit(f"shared_scores[{number * self.chunk + i * WORKGROUP}u + lane] = {score};")
                code.emit(f"{row.top} = select({row.top}, {score}, {score} > {row.top});")

    def _tops(self, rows: Sequence[_Row]) -> list[str]:
        """The greatest scores of all lanes, in two steps; variables with one for each row."""
        code = self.code
        if code.subgroups:
            return self._tops_of_subgroups(rows)
        self.floats("shared_tops", self.held * WORKGROUP)
        self.floats("shared_group_tops", self.held * GROUP)
        for number, row in enumerate(rows):
            code.emit(f"shared_tops[{number * WORKGROUP}u + lane] = {row.top};")
        code.emit("workgroupBarrier();")
        for source, size, begin in (("shared_tops", WORKGROUP, f"i32(lane) / {GROUP}i * {GROUP}i"),
                                    ("shared_group_tops", GROUP, "0i")):  # fmt: skip
            with self.each(f"{GROUP}i") as item:
                for number, row in enumerate(rows):
                    other = code.let(f"{source}[{number * size}i + {begin} + {item}]", "other")
                    code.emit(f"{row.top} = select({row.top}, {other}, {other} > {row.top});")
            if size == WORKGROUP:
                for number, row in enumerate(rows):
                    code.emit(f"shared_group_tops[{number * GROUP}u + lane / {GROUP}u] = {row.top};")
                code.emit("workgroupBarrier();")
        return [row.top for row in rows]

    def _tops_of_subgroups(self, rows: Sequence[_Row]) -> list[str]:
        code, shared = self.code, Shared(self.code)
        self.floats("shared_tops", self.held * WORKGROUP)

        def greater(a: Reg, b: Reg) -> Reg:
            return a.like(code.let(f"select({a.name}, {b.name}, {b.name} > {a.name})"))

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
        code = self.code
        shifts = [self.shift(top) for top in tops]
        with self.each(f"{self.chunk}i", WORKGROUP, "i32(lane)") as place:
            for number, shift in enumerate(shifts):
                score = f"shared_scores[{number * self.chunk}i + {place}]"
                code.emit(f"{score} = {self.exp(f'{score} - {shift}')};")
        code.emit("workgroupBarrier();")

    def _mix(self, rows: Sequence[_Row], tops: Sequence[str], start: str, low: str, stop: str) -> None:
        """Sums of powers, and of values by them, for four features of the lane; and stores the parts. Groups of lanes
        have all features each, and a part of the chunk's keys."""
        work, code, record = self.work, self.code, self.record
        groups, lanes = groups_of(work), WORKGROUP // groups_of(work)
        group = code.let(f"i32(lane) / {lanes}i", "group")
        first = code.let(f"{start} + {group} * {self.chunk // groups}i", "first")
        v, step = self.start(work.v[1], FEATURE, PLACE), record.dim(work.v[1].coefficient(PLACE))
        own = code.let(f"i32(lane) % {lanes}i", "own")
        quad = code.let(f"min({own}, {-(-work.value_features // 4) - 1}i)", "quad")
        totals, mixed = [code.fresh("total") for _ in rows], [code.fresh("mixed") for _ in rows]
        for total, name in zip(totals, mixed):
            code.emit(f"var {total} = 0.0f;")
            code.emit(f"var {name} = vec4<f32>();")
        end = code.let(f"min({stop}, {first} + {self.chunk // groups}i)", "end")
        with self.each(end, 1, f"max({low}, {first})") as key:
            at = code.let(f"{v} + {key} * {step}", "at")
            value = code.let(self.quad(work.v, at, quad, work.value_features), "value")
            for number, (total, name) in enumerate(zip(totals, mixed)):
                power = code.let(f"shared_scores[{number * self.chunk}i + {key} - {start}]", "power")
                code.emit(f"{total} = {total} + {power};")
                code.emit(f"{name} = fma(vec4<f32>({power}), {value}, {name});")
        for row, top, total, name in zip(rows, tops, totals, mixed):
            with self.body.scope(f"if ({row.row} < {record.dim(self.rows)})"):
                one = query_number(self, work, row.head, row.query)
                part = f"{start} / {self.chunk}i * {groups}i + {group}"
                begin = code.let(f"({one} * {record.dim(parts_of(work))} + {part}) * {part_length(work)}i", "at")
                for i in range(4):
                    feature = code.let(f"{own} * 4i + {i}i", "feature")
                    with self.body.scope(f"if ({feature} < {work.value_features}i)"):
                        self._store(f"({begin} + {feature})", f"{name}.{'xyzw'[i]}")
                with self.body.scope(f"if ({own} == 0i)"):
                    self._store(f"({begin} + {work.value_features}i)", top)
                    self._store(f"({begin} + {work.value_features + 1}i)", total)

    def _store(self, at: str, name: str) -> None:
        self.body.store_at(0, at, Reg(name, dtypes.f32, False))


class Join(AttentionWriter):
    """Positions are (batch, head, query, feature), each an invocation's."""

    def __init__(self, join: SplitKvCombine, slots: Sequence[Slot]) -> None:
        work = join.work
        grid = (dims.mul(work.batch, work.live), work.heads, work.queries, work.value_features)
        super().__init__(work, slots, grid, grid, team=False)

    def write(self) -> Dim:
        work, code, body = self.work, self.code, self.body
        length, chunks = part_length(work), self.record.dim(parts_of(work))
        number = query_number(self, work, body.axes[HEAD], body.axes[PLACE])
        begin = code.let(f"{number} * {chunks} * {length}i", "at")
        top, total, mixed = (code.fresh(stem) for stem in ("top", "total", "mixed"))
        code.emit(f"var {top} = {LEAST};")
        with self.each(chunks) as chunk:
            other = self._of_part(begin, chunk, f"{work.value_features}i")
            code.emit(f"{top} = select({top}, {other}, {other} > {top});")
        shift = self.shift(top)
        code.emit(f"var {total} = 0.0f;")
        code.emit(f"var {mixed} = 0.0f;")
        with self.each(chunks) as chunk:
            shrink = self.exp(f"{self._of_part(begin, chunk, f'{work.value_features}i')} - {shift}")
            for name, at in ((total, f"{work.value_features + 1}i"), (mixed, body.axes[FEATURE])):
                code.emit(f"{name} = fma({self._of_part(begin, chunk, at)}, {shrink}, {name});")
        value = code.let(rounded(work.dtype, f"{mixed} / {self.whole(total)}"))
        body.store(work.out[0], work.out[1], Reg(value, work.dtype, False))
        return dims.add(dims.mul(parts_of(work), 2), 4)

    def _of_part(self, begin: str, chunk: str, at: str) -> str:
        return self.body.load_at(1, f"({begin} + {chunk} * {part_length(self.work)}i + {at})").name


def query_number(writer: AttentionWriter, work: FusedAttention, head: str, query: str) -> str:
    """Which of all queries one is, in the order of parts."""
    record, batch = writer.record, writer.body.axes[0]
    heads, queries = record.dim(work.heads), record.dim(work.queries)
    return writer.code.let(f"({batch} * {heads} + {head}) * {queries} + {query}", "number")
