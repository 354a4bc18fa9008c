"""Attention as one compute shader that never holds the scores: softmax is taken as the keys come (online).

A workgroup has a tile of queries, two a lane, and goes through the keys in tiles that lie in workgroup memory,
with their values beside. For each tile a lane makes the scores of its queries, in registers, raises the greatest score
so far, and shrinks what it has by exp(old - new). Sources: Milakov & Gimelshein 2018, arXiv:1805.02867, alg. 3; Dao et
al. 2022, arXiv:2205.14135, alg. 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlx.codegen.simt.body import legal
from rlx.codegen.simt.code import WORKGROUP, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.language import WGSL
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.writer import Writer
from rlx.errors import RlxError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.index import Linear
from rlx.kernel.schedule.overrides import overridden
from rlx.kernel.schedule.schedule import Schedule, Tile

HEAD, PLACE, KEY, FEATURE = 1, 2, 3, 3
"""Axes of the work's offsets, behind the batch."""
SHARED_QUADS = 1024
"""Quads of floats in workgroup memory: 16 KiB, which every WebGPU device has."""
KEYS = 16
"""Keys of a tile, at most."""
ROWS = 2
"""Queries of a lane: each key that it reads serves so many. They are neighbours, so that of few queries few lanes, and
on software drivers few vectors, have work."""
TILE = WORKGROUP * ROWS
"""Queries of a workgroup, unless a schedule set by hand says otherwise."""
WIDEST = 1 << 30
"""A window that leaves nothing out."""


@dataclass(frozen=True)
class _Query:
    """A query of a lane: its position, and one that exists in any case; where its q and its mask begin; and variables,
    for what it has so far: the greatest score, the sum of powers, and the mixed values."""

    row: str
    inside: str
    q: str
    mask: str
    top: str
    total: str
    mixed: str


class AttentionWriter(Writer):
    """What all ways of attention share: offsets, quads of features, and what becomes of a score."""

    def __init__(
        self, work: FusedAttention, slots: Sequence[Slot], grid: Shape, extents: Shape, team: bool, language: Language
    ) -> None:
        super().__init__(slots, grid, extents, team, language=language)
        self.work = work
        self.zero, self.least = self.number(0.0), self.number(-math.inf)
        self.window = None if work.window is None else min(work.window, WIDEST)
        self.quads = -(-work.features // 4)

    def number(self, value: float) -> str:
        """A float as a literal."""
        return self.language.constant(ex.const(value, dtypes.f32)).name

    def variable(self, stem: str, value: str) -> str:
        """A new variable with a first value."""
        name = self.code.fresh(stem)
        self.code.emit(self.language.mutable(name, value))
        return name

    def start(self, line: Linear, *without: int) -> str:
        """An offset at position 0 along some axes."""
        kept = Linear(line.const, tuple((n, c) for n, c in line.axes if n not in without))
        return self.code.let(self.body.fresh_offset(kept), "at")

    def span(self, first: str, last: str) -> tuple[str, str]:
        """The keys, from one up to another (exclusive), that queries of a range (inclusive) may attend to. Where what
        is forbidden counts for something, all."""
        work, code, record, index = self.work, self.code, self.record, self.language.index
        keys, low, stop = record.dim(work.keys), index(0), record.dim(work.keys)
        if work.fill != -math.inf or not (work.causal or self.window is not None):
            return low, stop
        offset = record.dim(work.offset)
        if self.window is not None:
            low = code.let(f"max({first} + {offset} - {index(self.window - 1)}, {index(0)})", "low")
        beyond = 1 if work.causal or self.window is None else self.window
        return low, code.let(f"min({last} + {offset} + {index(beyond)}, {keys})", "stop")

    @contextmanager
    def each(self, stop: str, step: int = 1, first: str = "") -> Iterator[str]:
        name = self.code.fresh("k")
        with self.body.scope(self.language.loop(name, first or self.language.index(0), stop, step)):
            yield name

    def quad(self, operand: tuple[int, Linear], at: str, quad: str, features: int) -> str:
        """Four neighbouring features, zeros behind the last."""
        slot, line = operand
        step, index = self.record.dim(line.coefficient(FEATURE)), self.language.index
        parts = []
        for i in range(4):
            feature = self.code.let(f"{quad} * {index(4)} + {index(i)}", "feature")
            ragged = features % 4 != 0 and i >= features % 4
            near = f"min({feature}, {index(features - 1)})" if ragged else feature
            part = self.body.load_at(slot, f"({at} + {near} * {step})").name
            inside = f"{feature} < {index(features)}"
            parts.append(self.language.select(inside, part, self.zero) if ragged else part)
        return self.language.quad(parts)

    def floats(self, name: str, count: int) -> None:
        """Declares floats in workgroup memory."""
        self.language.shared_variable(self.code, name, self.language.register_type(dtypes.f32, False), count)

    def exp(self, text: str) -> str:
        reg = Reg(self.code.let(text), dtypes.f32, False)
        return self.body.through(lambda leaf: legal(ex.apply("exp", leaf)), reg).name

    def shift(self, top: str) -> str:
        """What is taken from scores of which this is the greatest: where all are -inf, -inf - -inf would be NaN."""
        nothing = f"{self.language.float_bits(top)} == 0xff800000u"
        return self.code.let(self.language.select(nothing, self.zero, top), "shift")

    def raise_to(self, top: str, score: str) -> None:
        """Puts a score into a variable that has a lesser one."""
        self.code.emit(f"{top} = {self.language.select(f'{score} > {top}', score, top)};")

    def add_of_neighbours(self, total: str) -> None:
        """Adds up what the four lanes have that share a row on matrix units."""
        for mask in ("1", "2"):
            other = self.language.from_neighbour(Reg(total, dtypes.f32, False), mask)
            self.code.emit(f"{total} = {total} + {other};")

    def last_key(self) -> str:
        return f"{self.record.dim(self.work.keys)} - {self.language.index(1)}"

    def diagonal(self, query: str) -> str:
        """The last key that a query may attend to where it may not look ahead."""
        return f"{query} + {self.record.dim(self.work.offset)}"

    def mask(self, inside: str, mask: str, score: str, key: str) -> None:
        """Puts what takes the place of a score that does not count, of the query `inside`, with a mask at `mask`."""
        element = self.mask_element(mask, key) if self.work.mask is not None else ""
        self.admit(inside, element, score, key)

    def mask_element(self, mask: str, key: str) -> str:
        """The element of a mask that begins at a place; what is behind the last key counts for nothing."""
        assert self.work.mask is not None
        slot, line, _ = self.work.mask
        at = f"({mask} + min({key}, {self.last_key()}) * {self.record.dim(line.coefficient(KEY))})"
        return self.load_element(slot, at)

    def load_element(self, slot: int, at: str) -> str:
        return self.body.load_at(slot, at).name

    def admit(self, inside: str, element: str, score: str, key: str) -> None:
        """The same with an element of the mask, if there is one."""
        work, code, select = self.work, self.code, self.language.select
        fill = self.number(work.fill)
        if work.softcap is not None:
            cap = work.softcap
            reg = Reg(code.let(score), dtypes.f32, False)
            code.emit(f"{score} = {self.body.through(lambda x: legal(ex.apply('tanh', x / cap) * cap), reg).name};")
        if work.mask is not None:
            admitted = select(element, score, fill) if work.mask[2] is dtypes.bool_ else f"{score} + {element}"
            code.emit(f"{score} = {admitted};")
        if work.causal:
            before = f"{key} <= {self.diagonal(inside)}"
            code.emit(f"{score} = {select(before, score, fill)};")
        if self.window is not None:
            near = f"abs({self.diagonal(inside)} - {key}) < {self.language.index(self.window)}"
            code.emit(f"{score} = {select(near, score, fill)};")

    def finished(self, value: str, feature: str) -> Reg:
        """What is stored of an element of the head and query at hand."""
        work = self.work
        element = Reg(self.code.let(self.language.rounded(work.dtype, value)), work.dtype, False)
        if work.tail is None:
            return element
        self.body.accumulated = element
        self.body.axes[work.TAIL_FEATURE] = feature
        return self.body.gen(legal(work.tail))

    def whole(self, total: str) -> str:
        """What results are divided by: the sum of powers; where that is 0, what makes of 0 what the work asks for."""
        select, nothing = self.language.select, self.number(1.0)
        if not self.work.empty_zero:  # of no keys, the sum is 0 as it is
            no_keys = f"{self.record.dim(self.work.keys)} == {self.language.index(0)}"
            nothing = select(no_keys, nothing, self.number(math.nan))
        return self.code.let(select(f"{total} == {self.zero}", nothing, total), "total")


def schedule(work: FusedAttention) -> Schedule:
    """A tile of queries a workgroup; keys and values in workgroup memory, as many as fit there."""
    quads, value_quads = -(-work.features // 4), -(-work.value_features // 4)
    width = KEYS
    while width * (quads + value_quads) > SHARED_QUADS:
        width //= 2
    chosen = overridden(
        "attention",
        Schedule(
            tiles=(Tile("thread", "queries", ROWS), Tile("workgroup", "keys", width)),
            vector=("features", 4),
            spaces=(("q", "register"), ("k", "shared"), ("v", "shared"), ("scores", "register")),
        ),
    )
    most = SHARED_QUADS // (quads + value_quads)
    if chosen.static_tile("workgroup", "keys") > most:
        keys = chosen.static_tile("workgroup", "keys")
        raise RlxError(
            f"[RLX_SCHEDULE] expected workgroup.keys of at most {most}, which workgroup memory holds of heads of "
            f"{work.features} and {work.value_features} features, got {keys}, for attention"
        )
    return chosen


class Attention(AttentionWriter):
    """Positions are (batch, head, tile of queries), each a workgroup's."""

    def __init__(self, work: FusedAttention, slots: Sequence[Slot], language: Language = WGSL) -> None:
        self.schedule = schedule(work)
        self.rows = self.schedule.static_tile("thread", "queries")
        self.tile = self.rows * WORKGROUP
        grid = (dims.mul(work.batch, work.live), work.heads, dims.ceildiv(work.queries, self.tile))
        super().__init__(work, slots, grid, (*grid, work.keys), team=True, language=language)
        self.value_quads = -(-work.value_features // 4)
        self.width = self.schedule.static_tile("workgroup", "keys")

    def write(self) -> Dim:
        work, code, axes, language = self.work, self.code, self.body.axes, self.language
        tile, head = axes[PLACE], axes[HEAD]
        shared_head = code.let(f"{head} / {language.index(work.repeat)}", "head")
        first = code.let(f"{tile} * {language.index(self.tile)}", "first")
        queries = [self._query(first, number) for number in range(self.rows)]
        axes[HEAD] = shared_head
        k, v = (self.start(line, FEATURE, PLACE) for _, line in (work.k, work.v))
        depth, value_depth = self._depths(queries[0])
        language.shared_variable(code, "shared_keys", language.quad_type, self.width * self.quads)
        language.shared_variable(code, "shared_values", language.quad_type, self.width * self.value_quads)
        start, (low, stop) = code.fresh("start"), self._tile_span(first)
        with self.body.scope(language.loop(start, low, stop, self.width)):
            code.emit(language.barrier())
            self._stage("shared_keys", work.k, k, start, work.features)
            self._stage("shared_values", work.v, v, start, work.value_features)
            code.emit(language.barrier())
            scores = self._scores(queries, depth)
            shrunk = [self._powers(query, mine, start) for query, mine in zip(queries, scores)]
            self._mix(queries, scores, shrunk, value_depth)
        axes[HEAD] = head
        for query in queries:
            self._finish(query)
        staged = sum(2 + self.width * quads // WORKGROUP for quads in (self.quads, self.value_quads))
        a_tile = self.quads + self.value_quads + staged + 4
        return dims.add(dims.mul(dims.ceildiv(work.keys, self.width), a_tile), 4 + self.rows * (self.value_quads + 1))

    # where things lie

    def _query(self, first: str, number: int) -> _Query:
        work, code, language, index = self.work, self.code, self.language, self.language.index
        row = code.let(f"{first} + {language.lane_index()} * {index(self.rows)} + {index(number)}", "row")
        inside = code.let(f"min({row}, {self.record.dim(work.queries)} - {index(1)})", "row")
        self.body.axes[PLACE] = inside
        q = self.start(work.q[1], FEATURE)
        mask = self.start(work.mask[1], KEY) if work.mask is not None else ""
        top, total, mixed = (code.fresh(stem) for stem in ("top", "total", "mixed"))
        code.emit(language.mutable(top, self.least))
        code.emit(language.mutable(total, self.zero))
        code.emit(language.array_variable(mixed, language.quad_type, self.value_quads))
        return _Query(row, inside, q, mask, top, total, mixed)

    def _depths(self, query: _Query) -> tuple[str, str]:
        """Quads of features that a lane goes through: none if it has no query, which spares software drivers work."""
        works = self.code.let(f"{query.row} < {self.record.dim(self.work.queries)}", "works")
        both = (self.quads, self.value_quads)
        select, index = self.language.select, self.language.index
        depth, value_depth = (self.code.let(select(works, index(quads), index(0)), "depth") for quads in both)
        return depth, value_depth

    def _tile_span(self, first: str) -> tuple[str, str]:
        """The keys that the tile's queries may attend to."""
        index, queries = self.language.index, self.record.dim(self.work.queries)
        last = self.code.let(f"min({first} + {index(self.tile)}, {queries}) - {index(1)}", "last")
        return self.span(first, last)

    # a tile of keys and values

    def _stage(self, array: str, operand: tuple[int, Linear], at: str, start: str, features: int) -> None:
        """Brings a tile to workgroup memory; behind the last key there are zeros, whatever lies there."""
        code, keys, quads = self.code, self.record.dim(self.work.keys), -(-features // 4)
        step = self.record.dim(operand[1].coefficient(PLACE))
        language, width, one = self.language, self.language.index(quads), self.language.index(1)
        with self.each(language.index(self.width * quads), WORKGROUP, language.lane_index()) as item:
            key = code.let(f"{start} + {item} / {width}", "key")
            place = code.let(f"{at} + min({key}, {keys} - {one}) * {step}", "at")
            quad = self.quad(operand, place, code.let(f"{item} % {width}", "quad"), features)
            code.emit(f"{array}[{item}] = {language.select(f'{key} < {keys}', quad, language.quad())};")

    def _scores(self, queries: Sequence[_Query], depth: str) -> list[list[str]]:
        """Variables with q·k of every query and key of the tile, scaled."""
        code, work = self.code, self.work
        scores = [[code.fresh("score") for _ in range(self.width)] for _ in queries]
        for name in (name for mine in scores for name in mine):
            code.emit(self.language.mutable(name, self.zero))
        scale = self.number(work.scale)
        with self.each(depth) as quad:
            lefts = [code.let(f"{self.quad(work.q, q.q, quad, work.features)} * {scale}", "query") for q in queries]
            for key in range(self.width):
                right = code.let(f"shared_keys[{self.language.index(key * self.quads)} + {quad}]", "key")
                for left, mine in zip(lefts, scores):
                    code.emit(f"{mine[key]} = {mine[key]} + dot({left}, {right});")
        return scores

    # softmax, as far as the keys have come

    def _powers(self, query: _Query, scores: Sequence[str], start: str) -> str:
        """Makes exp(score - greatest so far) of the scores, and gives what all before must be multiplied with."""
        work, code = self.work, self.code
        aligned = isinstance(work.keys, int) and work.keys % self.width == 0 and self.window is None
        top = self.variable("top", query.top)
        for number, score in enumerate(scores):
            key = code.let(f"{start} + {self.language.index(number)}", "key")
            self.mask(query.inside, query.mask, score, key)
            if not aligned:
                there = f"{key} < {self.record.dim(work.keys)}"
                code.emit(f"{score} = {self.language.select(there, score, self.least)};")
            self.raise_to(top, score)
        shift = self.shift(top)
        shrink = self.exp(f"{query.top} - {shift}")
        code.emit(f"{query.top} = {top};")
        part = self.variable("part", self.zero)
        for score in scores:
            code.emit(f"{score} = {self.exp(f'{score} - {shift}')};")
            code.emit(f"{part} = {part} + {score};")
        code.emit(f"{query.total} = {self.language.fma(query.total, shrink, part)};")
        return shrink

    def _mix(self, queries: Sequence[_Query], powers: list[list[str]], shrunk: Sequence[str], depth: str) -> None:
        """Adds the values, each by its power."""
        code = self.code
        with self.each(depth) as quad:
            sums = [code.fresh("sum") for _ in queries]
            for name, query, shrink in zip(sums, queries, shrunk):
                code.emit(self.language.mutable(name, f"{query.mixed}[{quad}] * {shrink}"))
            for key in range(self.width):
                value = code.let(f"shared_values[{self.language.index(key * self.value_quads)} + {quad}]", "value")
                for name, mine in zip(sums, powers):
                    code.emit(f"{name} = {self.language.quad_fma(mine[key], value, name)};")
            for name, query in zip(sums, queries):
                code.emit(f"{query.mixed}[{quad}] = {name};")

    def _finish(self, query: _Query) -> None:
        """Divides by the sum of powers, and stores."""
        work, code, body, index = self.work, self.code, self.body, self.language.index
        slot, line = work.out
        with body.scope(f"if ({query.row} < {self.record.dim(work.queries)})"):
            total = self.whole(query.total)
            body.axes[PLACE] = query.row
            start, step = self.start(line, FEATURE), self.record.dim(line.coefficient(FEATURE))
            with self.each(index(self.value_quads)) as quad:
                mixed = code.let(f"{query.mixed}[{quad}]", "found")
                for i in range(4):
                    feature = code.let(f"{quad} * {index(4)} + {index(i)}", "feature")
                    with body.scope(f"if ({feature} < {index(work.value_features)})"):
                        value = code.let(self.language.rounded(work.dtype, f"{mixed}.{'xyzw'[i]} / {total}"))
                        body.store_at(slot, f"({start} + {feature} * {step})", Reg(value, work.dtype, False))
