"""Attention on the CPU: per head, keys transposed once into panels; per tile of queries, scores, softmax and the
product with the values, all in cache. A position is one (batch, head).

Whole score rows are kept (no online softmax): for the lengths at which attention on a CPU is used they stay in L2. Few
queries, as a decoder's step has, read keys and values where they lie: panels would be read once. f16 and bf16 become
f32 when they are read, and results are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlx.codegen.scalar import maths
from rlx.codegen.simd import gemm
from rlx.codegen.simd.body import Body, lane_mask
from rlx.codegen.simd.function import Callee, Function, Module, memory_type
from rlx.codegen.simd.isa import Isa
from rlx.codegen.simd.microkernels import BlockOperands, call_core, tile_at, tiles_of
from rlx.codegen.simd.packing import Source, pack_panel
from rlx.codegen.simd.prologue import PARAMETERS, buffer_pointers
from rlx.codegen.simd.reductions import join_lanes
from rlx.codegen.simd.registers import Reg, Vector, float_literal
from rlx.codegen.simd.scheduled import WholePositions
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.index import Linear, load
from rlx.kernel.schedule.overrides import overridden
from rlx.kernel.schedule.schedule import Schedule, Tile

BATCH, HEAD, PLACE, FEATURE = 0, 1, 2, 3
FEW = 4
"""Queries up to which nothing is packed."""
DTYPES = (dtypes.f32, dtypes.f16, dtypes.bf16)
MOST_SUMS = 8
"""Vectors of sums over keys at a time."""
_WIDEST = 1 << 40
"""A window that leaves nothing out."""


@dataclass(frozen=True)
class ScheduledAttention(WholePositions):
    """How attention is run; fields as in `loops.ScheduledLoops`."""

    work: FusedAttention
    schedule: Schedule
    positions: Dim
    weight: Dim
    scratch: Dim

    @property
    def rows(self) -> int:
        """Queries that are multiplied at once."""
        return self.schedule.static_tile("register", "queries")

    @property
    def key_vectors(self) -> int:
        """Vectors of scores, along keys."""
        return self.schedule.vectors("register", "keys")

    @property
    def value_vectors(self) -> int:
        """Vectors of results, along the features of values."""
        return self.schedule.vectors("register", "features")

    def render(self, module: Module, stem: str, slots: int) -> Callee:
        return module.define(stem, lambda name: _AttentionWriter(module, name, self, slots).write())

    @property
    def may_be_few(self) -> bool:
        """Whether there is code for few queries: their number may be one, and features lie side by side."""
        work = self.work
        close = all(side[1].coefficient(FEATURE) == 1 for side in (work.k, work.v))
        return close and not (isinstance(work.queries, int) and work.queries > FEW)

    @property
    def may_be_many(self) -> bool:
        """Whether there is code for others."""
        return not (self.may_be_few and isinstance(self.work.queries, int))


def takes(work: FusedAttention) -> bool:
    """Whether the kernel fits: neighbouring features of queries side by side."""
    return work.dtype in DTYPES and (work.features == 1 or work.q[1].coefficient(FEATURE) == 1)


def skips(work: FusedAttention) -> bool:
    """Whether keys that queries may not look at are left out: where a number stands for their scores they count."""
    return work.fill == -math.inf and (work.causal or work.window is not None)


def schedule(work: FusedAttention, isa: Isa) -> ScheduledAttention:
    """Blocks of scores and of results in registers; keys and values in panels as wide as these."""
    chosen = Schedule(
        tiles=(
            Tile("register", "queries", isa.gemm_rows),
            Tile("register", "keys", isa.gemm_vectors * isa.lanes),
            Tile("register", "features", gemm.panel_vectors(work.value_features, isa) * isa.lanes),
        ),
        vector=("keys", isa.lanes),
        spaces=(("q", "cache"), ("k", "panels"), ("v", "panels"), ("scores", "cache")),
    )
    chosen = overridden("attention", chosen, work).in_whole_vectors("register", "keys", "features")
    rows, width, features = (chosen.static_tile("register", axis) for axis in ("queries", "keys", "features"))
    padded = dims.mul(dims.ceildiv(work.keys, width), width)
    value_width = -(-work.value_features // features) * features
    floats = dims.add(
        dims.mul(padded, rows + work.features),
        dims.add(dims.mul(work.keys, value_width), rows * (features + 16 + work.features)),
    )
    keys = work.keys
    if work.window is not None and skips(work):
        keys = dims.minimum(keys, min((1 if work.causal else 2) * work.window, _WIDEST) + width)
    pairs = dims.mul(work.queries, keys)
    weight = dims.floordiv(dims.mul(pairs, work.features + work.value_features + 24), isa.lanes)
    positions = dims.mul(work.batch, work.heads)
    return ScheduledAttention(work, chosen, positions, weight, dims.mul(floats, 4))


class _AttentionWriter:
    def __init__(self, module: Module, name: str, scheduled: ScheduledAttention, slots: int) -> None:
        self.scheduled = scheduled
        self.work = scheduled.work
        self.f = Function(module, name, PARAMETERS)
        self.lanes = module.target.lanes
        self.body = Body(self.f, buffer_pointers(self.f, slots))
        self.kind = self.body.kind("float", True)
        self.key_width = scheduled.key_vectors * self.lanes
        self.value_width = scheduled.value_vectors * self.lanes
        self.value_panels = -(-self.work.value_features // self.value_width)

    def write(self) -> Function:
        f, work = self.f, self.work
        keys, width = f.dim(work.keys), str(self.key_width)
        self.panels = f.ceil_divide(keys, width)
        self.padded = f.mul(self.panels, width)
        # scratch: score rows, transposed keys, values in panels, one tile of the result, its sums, its queries as f32
        self.scores = "%scratch"
        self.k_panels = f.offset(self.scores, "float", f.mul(self.padded, str(self.scheduled.rows)))
        self.v_panels = f.offset(self.k_panels, "float", f.mul(self.padded, str(work.features)))
        values = f.mul(keys, str(self.value_panels * self.value_width))
        self.tile = f.offset(self.v_panels, "float", values)
        self.sums = f.offset(self.tile, "float", str(self.scheduled.rows * self.value_width))
        self.queries = f.offset(self.sums, "float", str(self.scheduled.rows * 16))
        f.loop("%begin", "%end", 1, [], self._position)
        return f

    def _position(self, position: str, _: list[str]) -> list[str]:
        f, scheduled = self.f, self.scheduled
        heads = f.dim(self.work.heads)
        batch, head = f.divide(position, heads), f.remainder(position, heads)
        if scheduled.may_be_few and scheduled.may_be_many:
            few = f.value(f"icmp sle i64 {f.dim(self.work.queries)}, {FEW}")
            f.when(few, lambda: self._few(batch, head), lambda: self._many(batch, head))
        elif scheduled.may_be_few:
            self._few(batch, head)
        else:
            self._many(batch, head)
        return []

    def _many(self, batch: str, head: str) -> None:
        f, work = self.f, self.work
        self.body.push()
        self.body.axes[BATCH] = batch
        self.body.axes[HEAD] = f.divide(head, str(work.repeat))
        self._pack()
        self.body.pop()
        self.body.push()
        self.body.axes[BATCH], self.body.axes[HEAD] = batch, head
        count, base, extra = tiles_of(f, f.dim(work.queries), self.scheduled.rows)
        f.loop("0", count, 1, [], lambda tile, _: self._tile(tile, base, extra))
        self.body.pop()

    # few queries

    def _few(self, batch: str, head: str) -> None:
        """Query by query: sums along the features of each key, the softmax, sums over the values of all keys."""
        f, work = self.f, self.work
        source = f.divide(head, str(work.repeat))

        def one(query: str, _: list[str]) -> list[str]:
            self.body.push()
            self.body.axes[BATCH], self.body.axes[HEAD], self.body.axes[PLACE] = batch, head, query
            low, last = self._seen(query, "1")
            row = self._row(work.q)
            vectors = [self._part(row, j, work.features) for j in range(-(-work.features // self.lanes))]

            def score(key: str, _: list[str]) -> list[str]:
                with self._at(source, key):
                    place = self._row(work.k)
                total = self._splat("0.0")
                for j, vector in enumerate(vectors):
                    total = f.multiply_add(self.kind, vector, self._part(place, j, work.features), total)
                total_score = join_lanes(self.body, "add", dtypes.f32, total)
                f.emit(f"store float {total_score}, ptr {f.offset(self.scores, 'float', key)}, align 4")
                return []

            f.loop(low, last, 1, [], score)
            self._softmax("0", query, low, last)
            factor = f.value(f"load float, ptr {self.sums}, align 4")
            scale = self.body.splat(Reg(factor, dtypes.f32, False)).name
            for first in range(0, -(-work.value_features // self.lanes), MOST_SUMS):
                self._weighted(source, query, (low, last), first, scale)
            self.body.pop()
            return []

        f.loop("0", f.dim(work.queries), 1, [], one)

    def _weighted(self, source: str, query: str, keys: tuple[str, str], first: int, scale: str) -> None:
        """The values of these keys by their scores, for vectors of features from `first` on."""
        f, work = self.f, self.work
        parts = range(first, min(first + MOST_SUMS, -(-work.value_features // self.lanes)))

        def add(key: str, sums: list[str]) -> list[str]:
            with self._at(source, key):
                place = self._row(work.v)
                score = f.value(f"load float, ptr {f.offset(self.scores, 'float', key)}, align 4")
                wide = self.body.splat(Reg(score, dtypes.f32, False)).name
                return [
                    f.multiply_add(self.kind, wide, self._part(place, j, work.value_features), now)
                    for j, now in zip(parts, sums)
                ]

        sums = f.loop(*keys, 1, [(self.kind, "zeroinitializer")] * len(parts), add)
        for j, total in zip(parts, sums):
            self._write(query, j * self.lanes, f.value(f"fmul {self.kind} {total}, {scale}"))

    @contextmanager
    def _at(self, head: str, key: str) -> Iterator[None]:
        """At a key instead of a query."""
        axes = self.body.axes
        before = axes[HEAD], axes[PLACE]
        self.body.push()
        axes[HEAD], axes[PLACE] = head, key
        yield
        self.body.pop()
        axes[HEAD], axes[PLACE] = before

    def _row(self, side: tuple[int, Linear]) -> str:
        """Where the features of a row begin."""
        slot, offset = side
        return self.body.pointer(slot, self.work.dtype, Linear(offset.const, _without_features(offset)))

    def _part(self, row: str, j: int, features: int) -> str:
        """A vector of a row's features, zeros behind the last."""
        remaining, dtype = features - j * self.lanes, self.work.dtype
        mask = lane_mask(self.body, str(remaining)) if remaining < self.lanes else None
        place = self.f.offset(row, memory_type(dtype), str(j * self.lanes))
        raw = self.body.load_vector(place, memory_type(dtype), dtype.itemsize, mask)
        return self.body.decode(Reg(raw, dtype, True)).name

    # tiles of queries

    def _pack(self) -> None:
        """Keys as [panel][feature][width], values as [panel][key][width]."""
        f, work = self.f, self.work
        keys = f.dim(work.keys)

        def key_panel(panel: str, _: list[str]) -> list[str]:
            column = f.mul(panel, str(self.key_width))
            target = f.offset(self.k_panels, "float", f.mul(column, str(work.features)))
            source = Source(work.k[0], work.k[1], column, target, True, work.dtype)
            extents = (str(work.features), f.sub(keys, column))
            pack_panel(self.body, (FEATURE, PLACE), self.scheduled.key_vectors, extents, source)
            return []

        f.loop("0", self.panels, 1, [], key_panel)
        ragged = work.value_features % self.value_width != 0
        for panel in range(self.value_panels):
            column = panel * self.value_width
            target = f.offset(self.v_panels, "float", f.mul(keys, str(column)))
            source = Source(work.v[0], work.v[1], str(column), target, ragged, work.dtype)
            extents = (keys, str(work.value_features - column))
            pack_panel(self.body, (PLACE, FEATURE), self.scheduled.value_vectors, extents, source)

    def _tile(self, tile: str, base: str, extra: str) -> list[str]:
        f, work = self.f, self.work
        self.body.push()
        first, height = tile_at(f, tile, base, extra)
        self.body.axes[PLACE] = first
        queries, lda = self._rows_of_queries(first, height)
        low, last = self._seen(first, height)
        begin = f.divide(low, str(self.key_width))
        low = f.mul(begin, str(self.key_width))
        used = f.ceil_divide(last, str(self.key_width))

        def score_panel(panel: str, _: list[str]) -> list[str]:
            column = f.mul(panel, str(self.key_width))
            right = f.offset(self.k_panels, "float", f.mul(column, str(work.features)))
            target = f.offset(self.scores, "float", column)
            operands = BlockOperands(queries, lda, right, target, self.padded, str(work.features), right)
            call_core(f, height, self.scheduled.rows, self.scheduled.key_vectors, operands)
            return []

        f.loop(begin, used, 1, [], score_panel)
        f.loop("0", height, 1, [], lambda row, _: self._softmax(row, f.add(first, row), low, last))
        for panel in range(self.value_panels):
            self._values(panel, first, height, low, last)
        self.body.pop()
        return []

    def _rows_of_queries(self, first: str, height: str) -> tuple[str, str]:
        """Where the rows of a tile's queries lie as f32, and how far apart."""
        f, work = self.f, self.work
        if work.dtype is dtypes.f32:
            return self._row(work.q), f.dim(work.q[1].coefficient(PLACE))

        def one(row: str, _: list[str]) -> list[str]:
            self.body.push()
            self.body.axes[PLACE] = f.add(first, row)
            place, target = self._row(work.q), f.offset(self.queries, "float", f.mul(row, str(work.features)))
            for j in range(-(-work.features // self.lanes)):
                remaining = work.features - j * self.lanes
                mask = lane_mask(self.body, str(remaining)) if remaining < self.lanes else None
                where = f.offset(target, "float", str(j * self.lanes))
                self.body.store_vector(self._part(place, j, work.features), where, "float", 4, mask)
            self.body.pop()
            return []

        f.loop("0", height, 1, [], one)
        return self.queries, str(work.features)

    def _seen(self, first: str, count: str) -> tuple[str, str]:
        """The first key that queries `first` … look at, `count` of them, and the one behind the last."""
        f, work = self.f, self.work
        last = f.dim(work.keys)
        if not skips(work):
            return "0", last
        ahead = "0" if work.causal else str(min(work.window or 0, _WIDEST) - 1)
        past = f.add(f.add(f.add(first, count), f.dim(work.offset)), ahead)
        last = f.smax(f.smin(past, last), "0")
        if work.window is None:
            return "0", last
        low = f.sub(f.add(first, f.dim(work.offset)), str(min(work.window, _WIDEST) - 1))
        return f.smin(f.smax(low, "0"), last), last

    # softmax of one row of scores

    def _softmax(self, row: str, query: str, low: str, last: str) -> list[str]:
        f = self.f
        self.body.push()
        self.body.axes[PLACE] = query
        scores = f.offset(self.scores, "float", f.mul(row, self.padded))
        least = self._splat(float_literal(float("-inf")))

        def largest(at: str, mask: str | None, values: list[str]) -> list[str]:
            return [self._masked_max(scores, query, at, mask, values[0])]

        top = self._along(low, last, [(self.kind, least)], largest)
        peak = join_lanes(self.body, "max", dtypes.f32, top[0])
        if self.work.empty_zero:
            # a row of -inf alone: shifting by a finite number leaves exp(-inf) = 0 everywhere
            nothing = f.value(f"fcmp oeq float {peak}, {float_literal(float('-inf'))}")
            peak = f.value(f"select i1 {nothing}, float 0.0, float {peak}")
        shift = self.body.splat(Reg(peak, dtypes.f32, False)).name
        zero = self._splat("0.0")

        def exponential(at: str, mask: str | None, values: list[str]) -> list[str]:
            return [self._exponential(scores, shift, at, mask, values[0])]

        total = self._along(low, last, [(self.kind, zero)], exponential)
        sum_ = join_lanes(self.body, "add", dtypes.f32, total[0])
        inverse = f.value(f"fdiv float 1.0, {sum_}")
        if self.work.empty_zero:
            none = f.value(f"fcmp oeq float {sum_}, 0.0")
            inverse = f.value(f"select i1 {none}, float 0.0, float {inverse}")
        f.emit(f"store float {inverse}, ptr {f.offset(self.sums, 'float', row)}, align 4")
        self.body.pop()
        return []

    def _splat(self, literal: str) -> str:
        return "<" + ", ".join([f"float {literal}"] * self.lanes) + ">"

    def _along(self, low: str, last: str, carried: list[tuple[str, str]], visit: _Visit) -> list[str]:
        """Whole vectors of a score row, then one masked."""
        f = self.f
        count = f.sub(last, low)
        whole = f.add(low, f.mul(f.divide(count, str(self.lanes)), str(self.lanes)))
        now = f.loop(low, whole, self.lanes, carried, lambda at, v: visit(at, None, v))
        rest = [(kind, value) for (kind, _), value in zip(carried, now)]

        def masked(at: str, values: list[str]) -> list[str]:
            return visit(at, lane_mask(self.body, f.sub(last, at)), values)

        return f.loop(whole, last, self.lanes, rest, masked)

    def _masked_max(self, scores: str, query: str, at: str, mask: str | None, best: str) -> str:
        """Scales a vector of scores, applies the masks, writes it back; gives the greatest so far."""
        f, work = self.f, self.work
        self.body.push()
        where = f.offset(scores, "float", at)
        raw = f.value(f"load {self.kind}, ptr {where}, align 4")
        score: Expr = Expr("register", dtypes.f32, (), "score")
        self._know(score, Reg(raw, dtypes.f32, True), mask)
        self.body.axes[3] = at
        scaled = score * work.scale
        if work.softcap is not None:
            scaled = maths.legalise(ex.apply("tanh", scaled / work.softcap) * work.softcap)
        if work.mask is not None:
            slot, offset, dtype = work.mask
            element = load(slot, offset, dtype)
            if dtype is dtypes.bool_:
                scaled = ex.select(element, scaled, ex.const(work.fill, dtypes.f32))
            else:
                scaled = scaled + ex.cast(element, dtypes.f32)
        limit = Expr("register", dtypes.i64, (), "limit")
        if work.causal or work.window is not None:
            self.body.remember(limit, Reg(f.add(query, f.dim(work.offset)), dtypes.i64, False))
        key = Expr("axis", dtypes.i64, (), 3)
        if work.causal:
            scaled = ex.select(ex.apply("le", key, limit), scaled, ex.const(work.fill, dtypes.f32))
        if work.window is not None:
            near = ex.const(min(work.window, _WIDEST), dtypes.i64)
            inside = ex.apply("lt", limit - key, near)
            if not work.causal:
                inside = ex.apply("and", inside, ex.apply("lt", key - limit, near))
            scaled = ex.select(inside, scaled, ex.const(work.fill, dtypes.f32))
        value = self.body.gen(scaled).name
        if mask is not None:
            least = self._splat(float_literal(float("-inf")))
            value = f.value(f"select <{self.lanes} x i1> {mask}, {self.kind} {value}, {self.kind} {least}")
        f.emit(f"store {self.kind} {value}, ptr {where}, align 4")
        greater = f.value(f"fcmp ogt {self.kind} {best}, {value}")
        self.body.vector = None
        self.body.pop()
        # a NaN score makes every exponential of its row NaN, whichever way the maximum goes
        return f.value(f"select <{self.lanes} x i1> {greater}, {self.kind} {best}, {self.kind} {value}")

    def _know(self, leaf: Expr, reg: Reg, mask: str | None) -> None:
        self.body.vector = Vector(3, mask)
        self.body.remember(leaf, reg)

    def _exponential(self, scores: str, shift: str, at: str, mask: str | None, total: str) -> str:
        f = self.f
        self.body.push()
        where = f.offset(scores, "float", at)
        raw = f.value(f"load {self.kind}, ptr {where}, align 4")
        leaf = Expr("register", dtypes.f32, (), "shifted")
        self._know(leaf, Reg(f.value(f"fsub {self.kind} {raw}, {shift}"), dtypes.f32, True), mask)
        value = self.body.gen(maths.legalise(ex.apply("exp", leaf))).name
        if mask is not None:
            value = f.value(f"select <{self.lanes} x i1> {mask}, {self.kind} {value}, {self.kind} zeroinitializer")
        f.emit(f"store {self.kind} {value}, ptr {where}, align 4")
        self.body.vector = None
        self.body.pop()
        return f.value(f"fadd {self.kind} {total}, {value}")

    # the product with the values

    def _values(self, panel: int, first: str, height: str, low: str, last: str) -> None:
        f, work = self.f, self.work
        keys, width = f.dim(work.keys), str(self.value_width)
        column = panel * self.value_width
        right = f.offset(self.v_panels, "float", f.add(f.mul(keys, str(column)), f.mul(low, width)))
        scores = f.offset(self.scores, "float", low)
        operands = BlockOperands(scores, self.padded, right, self.tile, width, f.sub(last, low), right)
        call_core(f, height, self.scheduled.rows, self.scheduled.value_vectors, operands)

        def one(row: str, _: list[str]) -> list[str]:
            self.body.push()
            factor = f.value(f"load float, ptr {f.offset(self.sums, 'float', row)}, align 4")
            scale = self.body.splat(Reg(factor, dtypes.f32, False)).name
            for j in range(self.scheduled.value_vectors):
                start = column + j * self.lanes
                if start < work.value_features:
                    self._store(f.add(first, row), f.mul(row, width), start, j, scale)
            self.body.pop()
            return []

        f.loop("0", height, 1, [], one)

    def _store(self, query: str, offset: str, start: int, j: int, scale: str) -> None:
        f = self.f
        where = f.offset(self.tile, "float", f.add(offset, str(j * self.lanes)))
        raw = f.value(f"load {self.kind}, ptr {where}, align 4")
        self._write(query, start, f.value(f"fmul {self.kind} {raw}, {scale}"))

    def _write(self, query: str, start: int, value: str) -> None:
        """A vector of the result, features from `start` on."""
        work = self.work
        self.body.push()
        self.body.axes[PLACE], self.body.axes[FEATURE] = query, str(start)
        remaining = work.value_features - start
        mask = lane_mask(self.body, str(remaining)) if remaining < self.lanes else None
        self.body.vector = Vector(FEATURE, mask)
        self.body.store(work.out[0], work.out[1], Reg(value, work.dtype, True))
        self.body.vector = None
        self.body.pop()


def _without_features(offset: Linear) -> tuple[tuple[int, Dim], ...]:
    return tuple((n, c) for n, c in offset.axes if n != FEATURE)


_Visit = Callable[[str, "str | None", list[str]], list[str]]
