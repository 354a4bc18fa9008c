"""Attention of 16-bit floats on matrix units, and of f32 as sums of shorter floats: a workgroup has a tile of queries
of a head, its warps share the keys.

A warp makes the scores of 16 queries and 16 keys at a time, takes softmax as the keys come, and multiplies the powers,
each as the sum of two shorter floats, with the values; its lanes have them where the next product wants them. What the
warps have for the queries meets in workgroup memory, each shrunk to the greatest score of all.
Source: Dao 2023, arXiv:2307.08691.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from rlx.codegen.simt import float_parts
from rlx.codegen.simt.attention import FEATURE, HEAD, KEY, PLACE, AttentionWriter
from rlx.codegen.simt.code import Binding, Shader, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.cpp import words_of
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.split_kv import query_number
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim, Shape
from rlx.kernel.ir.attention import FusedAttention, SplitKvPartial
from rlx.kernel.ir.index import Linear
from rlx.kernel.passes.split_kv import chunk_of, part_length, parts_of
from rlx.kernel.schedule.schedule import Schedule, Tile

HALVES = (dtypes.f16, dtypes.bf16)
TILE = 16
"""Queries of a tile, and keys of a step: what an instruction has of rows, and of the sum."""
WARPS = 4
FEW_GUESS, SOME_GUESS, MANY_GUESS = 1, 256, 4096
"""What tells variants of attention apart, for tiles of 64 queries of all heads."""
FEW_TILES = 11
"""Tiles of 64 queries, of all heads, up to which the warps of a workgroup share the keys of 16 queries. More of them
have a tile for each warp, and nothing to join: with 24 that took two thirds of the time on an H200."""
SOME_TILES = 264
"""Tiles up to which two groups of four warps share one: two for each multiprocessor of an H200."""
MOST_FEATURES = 128
"""Of a query and of a value, which a lane has 16th parts of in registers."""
MOST_FLOATS = 64
"""The same of f32."""
CHUNKS_APART = 2
"""Pieces of queries of f32 that a lane has registers for the parts of, at most; of more, it makes them again for each
step."""


def takes(work: FusedAttention) -> bool:
    """Whether matrix units can compute it: features that are neighbours, in pieces of 16 bytes."""
    features, values = work.features, work.value_features
    parts = work.float_parts and work.dtype is dtypes.f32
    fits = features % 8 == 0 and values % 8 == 0 and max(features, values) <= (MOST_FLOATS if parts else MOST_FEATURES)
    near = all(line.coefficient(FEATURE) == 1 for _, line in (work.q, work.k))
    return (parts or work.dtype in HALVES) and fits and near


LINE = 128
"""Bytes that come from memory together."""
BANKS = 32
"""Of workgroup memory. Behind so many features of a row there is a gap, as lanes put every 32nd at once."""


def guesses(work: FusedAttention) -> list[tuple[Dim, int | None, int]]:
    """Tiles of queries of all heads, up to how many of them a variant is for, and by which number it is told."""
    tiles = dims.product((work.batch, work.heads, dims.floordiv(work.queries, TILE * WARPS)))
    if isinstance(tiles, int):
        of_some = SOME_GUESS if tiles <= SOME_TILES else MANY_GUESS
        return [(tiles, None, FEW_GUESS if tiles <= FEW_TILES else of_some)]
    return [(tiles, FEW_TILES, FEW_GUESS), (tiles, SOME_TILES, SOME_GUESS), (tiles, None, MANY_GUESS)]


def _spot(feature: int) -> int:
    """Where a feature is in a row of workgroup memory."""
    return feature + feature // BANKS


class TeamAttention(AttentionWriter):
    """Positions are (batch, head, tile of queries), each a workgroup's.

    rows   queries, as tiles have them
    """

    def __init__(
        self, work: FusedAttention, slots: Sequence[Slot], language: Language, rows_guess: int = FEW_GUESS
    ) -> None:
        own = 1 if rows_guess == FEW_GUESS else WARPS
        grid = (dims.mul(work.batch, work.live), work.heads, dims.ceildiv(work.queries, TILE * own))
        self._prepare(work, slots, grid, work.queries, language, own)
        self.code.follows = self.asks_early = own == 1

    def _prepare(
        self, work: FusedAttention, slots: Sequence[Slot], grid: Shape, rows: Dim, language: Language, own: int = 1
    ) -> None:
        """Of so many `rows`, in tiles along the grid's third axis; warps have `own` tiles in a workgroup: 1, and they
        share its keys, or one each."""
        self.own_tiles = own
        self.asks_early = False
        """Whether values are asked for before there are scores, and places found before earlier kernels have ended."""
        super().__init__(work, slots, grid, (*grid[:3], work.keys), team=True, language=language)
        self.rows = rows
        self.lanes = 32 * WARPS
        self.piece = 16 // work.dtype.itemsize
        self.together = 4 * self.piece
        self.chunks = -(-work.features // self.together)
        self.queries_apart: list[str] = []
        self.columns = work.value_features // 8
        self.words = self.columns % 4 == 0 and work.v[1].coefficient(FEATURE) == 1 and self._is_aligned(work.v)
        self.schedule = Schedule(
            (Tile("workgroup", "queries", TILE), Tile("thread", "keys", TILE)),
            spaces=(("q", "register"), ("k", "global"), ("v", "global"), ("scores", "register")),
            mma=(16, 8, 8 if work.float_parts else 16),
        )

    def shader(self, bindings: Sequence[Binding], name: str) -> Shader:
        """Nothing is asked for ahead where only places are found."""
        made = super().shader(bindings, name)
        return dataclasses.replace(made, ahead=False) if self.asks_early else made

    def write(self) -> Dim:
        work, code, axes, index = self.work, self.code, self.body.axes, self.language.index
        head, count = axes[HEAD], self.record.dim(self.rows)
        code.emit("const int warp = (int)lane / 32, own = (int)lane % 32;")
        first = code.let(f"{axes[PLACE]} * {index(TILE * self.own_tiles)}", "first")
        if self.own_tiles > 1:
            mine = code.let(f"{first} + warp * {TILE}", "first")
            first = code.let(f"min({mine}, {count} - {index(1)})", "first")
        rows = [code.let(f"min({first} + own / 4 + {8 * i}, {count} - {index(1)})", "row") for i in range(2)]
        if self.asks_early:
            code.emit("follow();")
        queries, masks = self._queries(head, rows)
        axes[HEAD] = self._shared_head(head)
        k, v = (self.start(line, FEATURE, PLACE) for _, line in (work.k, work.v))
        code.emit(f"float mixed[{self.columns}][4] = {{}};")
        tops = [self.variable("top", self.least) for _ in rows]
        totals = [self.variable("total", self.zero) for _ in rows]
        low, stop = self._keys(first, code.let(f"min({first} + {index(TILE)}, {count}) - {index(1)}", "last"))
        start = code.fresh("start")
        begin, step = (low, TILE) if self.own_tiles > 1 else (f"{low} + warp * {TILE}", TILE * WARPS)
        head_of_loop = f"for (auto {start} = {begin}; {start} < {stop}; {start} += {step})"
        with self.body.scope(head_of_loop):
            values: Iterable[list[str]] = self._values(v, start, stop)
            if self.asks_early:
                values = list(values)
            self._scores(k, start, stop)
            axes[HEAD] = head
            self._admit(queries, masks, start, stop)
            shrunk = [self._powers(row, tops[row], totals[row]) for row in range(2)]
            self._mix(values, shrunk)
        axes[HEAD] = head
        if self.own_tiles > 1:
            self._finish_alone(mine, totals)
        else:
            self._join(first, tops, totals)
        steps = dims.ceildiv(work.keys, TILE * WARPS)
        return dims.add(steps, TILE * work.value_features // self.lanes + 2)

    # what a row is, and which keys it has

    def _go_to(self, head: str, row: str) -> str:
        """Goes to a row's query and head; the query's number."""
        self.body.axes[HEAD], self.body.axes[PLACE] = head, row
        return row

    def _shared_head(self, head: str) -> str:
        """The head of keys and values."""
        return self.code.let(f"{head} / {self.language.index(self.work.repeat)}", "head")

    def _keys(self, first: str, last: str) -> tuple[str, str]:
        """The keys that rows from one to another have: from the first up to the second (exclusive)."""
        return self.span(first, last)

    # scores, and what is mixed by them

    def _queries(self, head: str, rows: Sequence[str]) -> tuple[list[str], list[str]]:
        """Brings both rows of a lane to registers; their queries, and where their masks begin."""
        work, code = self.work, self.code
        queries, masks = [], []
        for row, name in zip(rows, ("high", "low")):
            queries.append(self._go_to(head, row))
            at = self.start(work.q[1], FEATURE)
            code.emit(f"Piece {name}[{self.chunks}];")
            for chunk in range(self.chunks):
                code.emit(f"{name}[{chunk}] = {self._piece(work.q, at, chunk, work.features)};")
            masks.append(self.start(work.mask[1], 3) if work.mask is not None else "")
        if work.float_parts and self.chunks <= CHUNKS_APART:
            self.queries_apart = [float_parts.rows_apart(code, chunk) for chunk in range(self.chunks)]
        return queries, masks

    def _piece(self, operand: tuple[int, Linear], at: str, chunk: int, features: int) -> str:
        """The lane's 16 bytes of 64 of features, zeros behind the last."""
        slot, aligned = operand[0], self._is_aligned(operand)
        feature = f"{self.together * chunk} + own % 4 * {self.piece}"
        place = f"piece_at<{str(aligned).lower()}>(slot{slot} + {at} + {feature})"
        ragged = self.together * (chunk + 1) > features
        return f"{feature} < {features} ? {place} : Piece{{}}" if ragged else place

    def _is_aligned(self, operand: tuple[int, Linear]) -> bool:
        """Whether all rows begin at multiples of 16 bytes."""
        slot, line = operand
        strides = [line.const, *(c for n, c in line.axes if n != FEATURE), *(c for _, c in line.others)]
        return self.body.slots[slot].aligned and all(dims.exact_div(c, self.piece) is not None for c in strides)

    def _scores(self, k: str, start: str, stop: str) -> None:
        """Scores of 16 keys: of each half of them, two of the lane's first row and two of its second."""
        work, code = self.work, self.code
        step = self.record.dim(work.k[1].coefficient(PLACE))
        code.emit("float scores[2][4] = {};")
        keys: list[list[str]] = [[], []]
        for half in range(2):
            key = code.let(f"min({start} + {8 * half} + own / 4, {stop} - {self.language.index(1)})", "key")
            at = code.let(f"{k} + {key} * {step}", "at")
            for chunk in range(self.chunks):
                right = code.let(self._piece(work.k, at, chunk, work.features), "right")
                if work.float_parts:
                    keys[half].append(right)
                    continue
                for x, y in ("xy", "zw"):
                    left = ", ".join(f"{rows}[{chunk}].{pair}" for pair in (x, y) for rows in ("high", "low"))
                    code.emit(f"mma_{work.dtype}(scores[{half}], {left}, {right}.{x}, {right}.{y});")
        for chunk, of_halves in enumerate(zip(*keys)):  # all keys are on their way
            left = self.queries_apart[chunk] if self.queries_apart else float_parts.rows_apart(code, chunk)
            for half, right in enumerate(of_halves):
                code.emit(f"mma_f32(scores[{half}], {left}, in_parts<true>({right}));")

    def _admit(self, queries: Sequence[str], masks: Sequence[str], start: str, stop: str) -> None:
        """Scales the scores, and puts what takes the place of those that do not count."""
        for half in range(2):
            for number in range(4):
                score = f"scores[{half}][{number}]"
                self.code.emit(f"{score} = {score} * {self.number(self.work.scale)};")
                key = self.code.let(f"{start} + {8 * half + number % 2} + own % 4 * 2", "key")
                inside = self.code.let(f"min({key}, {stop} - {self.language.index(1)})", "key")
                row = number // 2
                self.mask(queries[row], masks[row], score, inside)
                self.code.emit(f"{score} = {self.language.select(f'{key} < {stop}', score, self.least)};")

    def _powers(self, row: int, top: str, total: str) -> str:
        """Makes exp(score - greatest so far) of a row's scores, and gives what all before must be multiplied with."""
        code = self.code
        scores = [f"scores[{half}][{2 * row + i}]" for half in range(2) for i in range(2)]
        greatest = self.variable("greatest", top)
        for score in scores:
            self.raise_to(greatest, score)
        for mask in ("1", "2"):
            other = code.let(self.language.from_neighbour(Reg(greatest, dtypes.f32, False), mask), "other")
            self.raise_to(greatest, other)
        shift = self.shift(greatest)
        shrink = self.exp(f"{top} - {shift}")
        code.emit(f"{top} = {greatest};")
        for score in scores:
            code.emit(f"{score} = {self.exp(f'{score} - {shift}')};")
        code.emit(f"{total} = {self.language.fma(total, shrink, ' + '.join(scores))};")
        return shrink

    def _values(self, v: str, start: str, stop: str) -> Iterator[list[str]]:
        """The lane's part of the values of 16 keys, for each product in turn."""
        code = self.code
        keys = [code.let(f"{start} + {8 * half + i} + own % 4 * 2", "key") for half in range(2) for i in range(2)]
        there = [code.let(f"{key} < {stop}", "there") for key in keys]
        last = f"{stop} - {self.language.index(1)}"
        step = self.record.dim(self.work.v[1].coefficient(PLACE))
        places = [code.let(f"{v} + min({key}, {last}) * {step}", "at") for key in keys]
        if self.words:
            yield from self._pairs(places, there)
            return
        for column in range(self.columns):
            yield self._elements(column, places, there)

    def _mix(self, values: Iterable[list[str]], shrunk: Sequence[str]) -> None:
        """Adds the values, each by its power."""
        work, code, dtype = self.work, self.code, self.work.dtype
        left = float_parts.powers(code) if work.float_parts else self._parts()
        for column, right in enumerate(values):
            for number in range(4):
                code.emit(f"mixed[{column}][{number}] = mixed[{column}][{number}] * {shrunk[number // 2]};")
            if work.float_parts:
                piece = f"in_parts<true>(Piece{{{', '.join(right)}}})"
                code.emit(f"mma_f32(mixed[{column}], {left[0]}, {left[1]}, {piece});")
                continue
            for part in left:
                code.emit(f"mma_{dtype}(mixed[{column}], {', '.join(part)}, {', '.join(right)});")

    def _feature(self, column: int, place: str) -> str:
        """The feature at a place among the eight of a product. Where lanes read words, each has neighbours: one of each
        product."""
        return f"({place}) * {self.columns} + {column}" if self.words else f"{8 * column} + ({place})"

    def _elements(self, column: int, places: Sequence[str], there: Sequence[str]) -> list[str]:
        """A lane's part of the values of a product: pairs of keys, element by element; of f32, each key alone."""
        slot, line = self.work.v
        along = self.record.dim(line.coefficient(FEATURE))
        feature = f"({self._feature(column, 'own / 4')}) * {along}"
        if self.work.float_parts:
            loads = [f"{inside} ? slot{slot}[{at} + {feature}] : 0.0f" for inside, at in zip(there, places)]
            return [self.code.let(f"__float_as_uint({load})", "right") for load in loads]
        values = [f"({inside} ? (unsigned)slot{slot}[{at} + {feature}] : 0u)" for inside, at in zip(there, places)]
        return [self.code.let(f"{values[2 * half]} | {values[2 * half + 1]} << 16", "right") for half in range(2)]

    def _pairs(self, places: Sequence[str], there: Sequence[str]) -> list[list[str]]:
        """The same of all products, from words in which neighbouring features are."""
        code, slot = self.code, self.work.v[0]
        of_a_word = 4 // self.work.dtype.itemsize
        kind, count = ("Piece", 4) if self.columns % (4 * of_a_word) == 0 else ("HalfPiece", 2)
        words: list[list[str]] = []
        for inside, at in zip(there, places):
            words.append([])
            for number in range(self.columns // (of_a_word * count)):
                place = f"(const {kind}*)(slot{slot} + {at} + own / 4 * {self.columns}) + {number}"
                piece = code.let(f"{inside} ? *({place}) : {kind}{{}}", "values")
                words[-1] += [f"{piece}.{component}" for component in "xyzw"[:count]]
        if self.work.float_parts:
            return [list(of_keys) for of_keys in zip(*words)]
        return [
            [
                code.let(f"paired<{column % 2}>({words[2 * half][column // 2]}, {words[2 * half + 1][column // 2]})")
                for half in range(2)
            ]
            for column in range(self.columns)
        ]

    def _parts(self) -> tuple[list[str], list[str]]:
        """The powers as sums of two 16-bit floats: one alone would cost as much as the rounding of the result."""
        code, dtype = self.code, self.work.dtype
        parts: tuple[list[str], list[str]] = [], []
        for pair in [(half, i) for half in range(2) for i in (0, 2)]:
            scores = [f"scores[{pair[0]}][{pair[1] + i}]" for i in range(2)]
            bits = [code.let(f"encode_{dtype}({score})", "bits") for score in scores]
            rest = [f"encode_{dtype}({score} - decode_{dtype}({near}))" for score, near in zip(scores, bits)]
            parts[0].append(code.let(f"{bits[0]} | {bits[1]} << 16", "powers"))
            parts[1].append(code.let(f"{rest[0]} | {rest[1]} << 16", "rest"))
        return parts

    def _finish_alone(self, first: str, totals: Sequence[str]) -> None:
        """Divides and stores what a warp has for its own queries."""
        work, code, body = self.work, self.code, self.body
        slot, line = work.out
        along = self.record.dim(line.coefficient(FEATURE))
        for row in range(2):
            self.add_of_neighbours(totals[row])
            query = code.let(f"{first} + own / 4 + {8 * row}", "row")
            with body.scope(f"if ({query} < {self.record.dim(self.rows)})"):
                whole = self.whole(totals[row])
                body.axes[PLACE] = query
                start = self.start(line, FEATURE)
                near = self.words and line.coefficient(FEATURE) == 1 and self._is_aligned(work.out)
                for i in range(2):
                    values = [code.let(f"mixed[{column}][{2 * row + i}] / {whole}") for column in range(self.columns)]
                    features = [f"({self._feature(column, f'own % 4 * 2 + {i}')})" for column in range(self.columns)]
                    elements = [self.finished(*each) for each in zip(values, features)]
                    if near:
                        self._store_neighbours(slot, [f"{start} + {feature}" for feature in features], elements)
                        continue
                    for feature, element in zip(features, elements):
                        body.store_at(slot, f"({start} + {feature} * {along})", element)

    def _store_neighbours(self, slot: int, places: Sequence[str], elements: Sequence[Reg]) -> None:
        """Stores elements that are neighbours, four at a time."""
        for first in range(0, len(elements), 4):
            words = words_of(self.work.out_dtype, [element.unrounded for element in elements[first : first + 4]])
            kind = {4: "Piece", 2: "HalfPiece", 1: "unsigned"}[len(words)]
            self.code.emit(f"*({kind}*)(slot{slot} + {places[first]}) = {kind}{{{', '.join(words)}}};")

    def _join(self, first: str, tops: Sequence[str], totals: Sequence[str]) -> None:
        """What the warps have for each query and feature, by one lane."""
        work, code, body, index = self.work, self.code, self.body, self.language.index
        width = _spot(work.value_features) + 2
        self.floats("shared_mixed", WARPS * TILE * width)
        for row in range(2):
            self.add_of_neighbours(totals[row])
            begin = code.let(f"(warp * {TILE} + own / 4 + {8 * row}) * {width}", "at")
            with code.block(f"if ({first} + own / 4 + {8 * row} < {self.record.dim(self.rows)})"):
                for column in range(self.columns):
                    for i in range(2):
                        feature = f"({self._feature(column, f'own % 4 * 2 + {i}')})"
                        place = f"{begin} + {feature} + {feature} / {BANKS}"
                        code.emit(f"shared_mixed[{place}] = mixed[{column}][{2 * row + i}];")
                code.emit(f"shared_mixed[{begin} + {width - 2}] = {tops[row]};")
                code.emit(f"shared_mixed[{begin} + {width - 1}] = {totals[row]};")
        code.emit(self.language.barrier())
        item = code.fresh("e")
        count = index(TILE * work.value_features)
        with body.scope(self.language.loop(item, self.language.lane_index(), count, self.lanes)):
            query = code.let(f"{item} / {index(work.value_features)}", "row")
            feature = code.let(f"{item} % {index(work.value_features)}", "feature")
            with body.scope(f"if ({first} + {query} < {self.record.dim(self.rows)})"):
                top, mixed, total = self._together(query, feature, width)
                self._finish(code.let(f"{first} + {query}", "row"), feature, top, mixed, total)

    def _together(self, row: str, feature: str, width: int) -> tuple[str, str, str]:
        """What the warps have for a row: the greatest score, a feature of the values mixed by powers, and the sum of
        these."""
        code = self.code
        starts = [code.let(f"({number * TILE} + {row}) * {width}", "at") for number in range(WARPS)]
        top = self.variable("top", self.number(-math.inf))
        for at in starts:
            self.raise_to(top, f"shared_mixed[{at} + {width - 2}]")
        shift = self.shift(top)
        weights = [self.exp(f"shared_mixed[{at} + {width - 2}] - {shift}") for at in starts]
        sums = [
            code.let(" + ".join(f"{weight} * shared_mixed[{at} + {what}]" for weight, at in zip(weights, starts)))
            for what in (f"{feature} + {feature} / {BANKS}", width - 1)
        ]
        return top, sums[0], sums[1]

    def _finish(self, row: str, feature: str, top: str, mixed: str, total: str) -> None:
        """Divides by the sum of powers, and stores."""
        work, body = self.work, self.body
        whole = self.whole(total)
        slot, line = work.out
        body.axes[PLACE] = row
        place = f"({self.start(line, FEATURE)} + {feature} * {self.record.dim(line.coefficient(FEATURE))})"
        body.store_at(slot, place, self.finished(f"{mixed} / {whole}", feature))


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
        repeat = self.language.index(self.work.repeat)
        self.body.axes[HEAD] = self.code.let(f"{head} * {repeat} + {row} % {repeat}", "head")
        self.body.axes[PLACE] = self.code.let(f"{row} / {repeat}", "query")
        return self.body.axes[PLACE]

    def _shared_head(self, head: str) -> str:
        return head

    def _keys(self, first: str, last: str) -> tuple[str, str]:
        code, repeat, chunk = self.code, self.language.index(self.work.repeat), self.language.index(self.chunk)
        low, stop = self.span(code.let(f"{first} / {repeat}", "query"), code.let(f"{last} / {repeat}", "query"))
        start = code.let(f"{self.body.axes[KEY]} * {chunk}", "start")
        return code.let(f"max({low}, {start})", "low"), code.let(f"min({stop}, {start} + {chunk})", "stop")

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
