"""Attention of 16-bit floats on matrix units, and of f32 as sums of shorter floats: a workgroup has a tile of queries
of a head, its warps share the keys.

A warp makes the scores of 16 queries and 16 keys at a time, takes softmax as the keys come, and multiplies the powers,
rounded to the operands' dtype or, of f32, as sums of shorter floats, with the values; its lanes have them where the
next product wants them. What the warps have for the queries meets in workgroup memory, each shrunk to the greatest
score of all.
Source: Dao 2023, arXiv:2307.08691.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rlx.codegen.simt import float_parts
from rlx.codegen.simt.attention import FEATURE, HEAD, PLACE, AttentionWriter
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.cpp import words_of
from rlx.codegen.simt.registers import Reg
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim, Shape
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.index import Linear
from rlx.kernel.schedule.schedule import Schedule, Tile

HALVES = (dtypes.f16, dtypes.bf16)
TILE = 16
"""Queries of a tile, and keys of a step: what an instruction has of rows, and of the sum."""
WARPS = 4
"""Of a workgroup."""
CLUSTER_GUESS, FEW_GUESS, SHORT_GUESS, SOME_GUESS, MANY_GUESS = 0, 1, 2, 256, 4096
"""What tells variants of attention apart: for few queries of a head, by clusters, and for few keys; of others, for so
many tiles of 64 queries of all heads."""
FEW_TILES = 11
"""Tiles of 64 queries, of all heads, up to which the warps of a workgroup share the keys of 16 queries. More of them
have a tile for each warp, and nothing to join: with 24 that took two thirds of the time on an H200."""
FEW_TILES_OF_PARTS = 190
"""The same of f32 as sums of shorter floats, which take longer: with 24 tiles shared keys took two fifths of the time,
with 192 as long, with 384 half as long again."""
SOME_TILES = 264
"""Tiles up to which two groups of four warps share one: two for each multiprocessor of an H200."""
SHORT = 32
"""Keys up to which a warp goes through them alone, as joining what several have takes longer."""
MOST_FEATURES = 128
"""Of a query and of a value, which a lane has 16th parts of in registers."""
MOST_FLOATS = 64
"""The same of f32."""
CHUNKS_AT_ONCE, COLUMNS_AT_ONCE = 2, 4
"""Pieces of queries and keys of f32, and tiles of eight features of values, whose products take turns."""
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


CLUSTER_QUERIES = 8
"""Of a head, up to which clusters share its keys (`cluster_attention.py`)."""
GAP = 8
"""Floats behind a row of workgroup memory, so that lanes put eight rows in other banks; two of them are used."""


def guesses(work: FusedAttention, clusters: bool) -> list[tuple[Dim, int | None, int]]:
    """Of each variant, in the order in which they are tried: a dim, up to which value of it the variant is for, and by
    which number it is told. `clusters` tells that workgroups can share keys."""
    by_queries: list[tuple[Dim, int | None, int]] = [(work.queries, CLUSTER_QUERIES, CLUSTER_GUESS)] if clusters else []
    if isinstance(work.queries, int):
        if by_queries and work.queries <= CLUSTER_QUERIES:
            return [(work.queries, None, CLUSTER_GUESS)]
        by_queries = []
    if isinstance(work.keys, int):
        short = work.keys <= SHORT
        return [*by_queries, (work.keys, None, SHORT_GUESS)] if short else [*by_queries, *_by_tiles(work)]
    return [*by_queries, (work.keys, SHORT, SHORT_GUESS), *_by_tiles(work)]


def _by_tiles(work: FusedAttention) -> list[tuple[Dim, int | None, int]]:
    few = FEW_TILES_OF_PARTS if work.float_parts else FEW_TILES
    tiles = dims.product((work.batch, work.heads, dims.floordiv(work.queries, TILE * WARPS)))
    if isinstance(tiles, int):
        of_some = SOME_GUESS if tiles <= SOME_TILES else MANY_GUESS
        return [(tiles, None, FEW_GUESS if tiles <= few else of_some)]
    return [(tiles, few, FEW_GUESS), (tiles, SOME_TILES, SOME_GUESS), (tiles, None, MANY_GUESS)]


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

    def _prepare(
        self, work: FusedAttention, slots: Sequence[Slot], grid: Shape, rows: Dim, language: Language, own: int = 1,
        warps: int = WARPS,
    ) -> None:  # fmt: skip
        """Of so many `rows`, in tiles along the grid's third axis; warps have `own` tiles in a workgroup: 1, and they
        share its keys, or one each."""
        self.own_tiles, self.warps = own, warps
        super().__init__(work, slots, grid, (*grid[:3], work.keys), team=True, language=language)
        self.rows = rows
        self.fewer = (rows, work.keys)
        self.lanes = 32 * warps
        self.piece = 16 // work.dtype.itemsize
        self.together = 4 * self.piece
        self.chunks = -(-work.features // self.together)
        self.queries_apart: list[tuple[str, str]] = []
        self.diagonals: dict[str, str] = {}
        self.columns = work.value_features // 8
        self.words = self.columns % 4 == 0 and work.v[1].coefficient(FEATURE) == 1 and self.is_aligned(work.v)
        self.schedule = Schedule(
            (Tile("workgroup", "queries", TILE), Tile("thread", "keys", TILE)),
            spaces=(("q", "register"), ("k", "global"), ("v", "global"), ("scores", "register")),
            mma=(16, 8, 8 if work.float_parts else 16),
        )

    def write(self) -> Dim:
        work, code, axes = self.work, self.code, self.body.axes
        head = axes[HEAD]
        first = mine = self._first_row()
        if self.own_tiles > 1:
            mine = code.let(f"{first} + warp * {TILE}", "first")
            first = code.let(f"min({mine}, count - 1)", "first")
        rows = [code.let(f"min({first} + own / 4 + {8 * i}, count - 1)", "row") for i in range(2)]
        queries, masks = self._queries(head, rows)
        axes[HEAD] = self._shared_head(head)
        k, v = (self.start(line, FEATURE, PLACE) for _, line in (work.k, work.v))
        code.emit(f"float mixed[{self.columns}][4] = {{}};")
        tops = [self.variable("top", self.least) for _ in rows]
        totals = [self.variable("total", self.zero) for _ in rows]
        low, stop = self._keys(first, f"min({first} + {TILE - 1}, count - 1)")
        start = code.fresh("start")
        begin, step = (low, TILE) if self.own_tiles > 1 else self._share_of_keys(low)
        head_of_loop = f"for (auto {start} = {begin}; {start} < {stop}; {start} += {step})"
        with self.body.scope(head_of_loop):
            # on their way while scores are made
            values = self._values(v, start, stop) if self.words else None
            elements = self._mask_elements(masks, start)
            self._scores(self._key_pieces(k, start, stop))
            axes[HEAD] = head
            for row in range(2):
                self._admit(row, queries[row], elements[row], start, stop)
            shrunk = [self._powers(row, tops[row], totals[row]) for row in range(2)]
            self._mix(v, start, stop, shrunk, values)
        axes[HEAD] = head
        if self.own_tiles > 1:
            self._finish_alone(mine, totals)
        else:
            self._join(first, tops, totals)
        steps = dims.ceildiv(work.keys, TILE * self.warps)
        return dims.add(steps, TILE * work.value_features // self.lanes + 2)

    def exp(self, text: str) -> str:
        """Of 16-bit floats, with as much of it as the results have room for."""
        if self.work.float_parts:
            return super().exp(text)
        return self.code.let(f"near_exp2(({text}) * {self.number(math.log2(math.e))})")

    # what a row is, and which keys it has: numbers of 32 bits, as there are fewer (`Shader.fewer`)

    def _first_row(self) -> str:
        """Names warps, lanes and the number of rows; the first row of the workgroup."""
        self.code.emit("const int warp = (int)lane / 32, own = (int)lane % 32;")
        self.code.emit(f"const int count = (int){self.record.dim(self.rows)};")
        return self.code.let(f"(int){self.body.axes[PLACE]} * {TILE * self.own_tiles}", "first")

    def _go_to(self, head: str, row: str) -> str:
        """Goes to a row's query and head; the query's number."""
        self.body.axes[HEAD], self.body.axes[PLACE] = head, row
        return row

    def _shared_head(self, head: str) -> str:
        """The head of keys and values."""
        return self.code.let(f"{head} / {self.language.index(self.work.repeat)}", "head")

    def _keys(self, first: str, last: str) -> tuple[str, str]:
        """The keys that rows from one to another have: from the first up to the second (exclusive)."""
        low, stop = self.span(first, last)
        return self.code.let(f"(int){low}", "low"), self.code.let(f"(int){stop}", "stop")

    def last_key(self) -> str:
        return f"(int){self.record.dim(self.work.keys)} - 1"

    def diagonal(self, query: str) -> str:
        return self.diagonals[query]

    def _share_of_keys(self, low: str) -> tuple[str, int]:
        """Where a warp's keys begin, and how far its next ones are from there."""
        return f"{low} + warp * {TILE}", TILE * self.warps

    # scores, and what is mixed by them

    def _queries(self, head: str, rows: Sequence[str]) -> tuple[list[str], list[str]]:
        """Brings both rows of a lane to registers; their queries, and where their masks begin."""
        work, code = self.work, self.code
        queries, masks = [], []
        for row, name in zip(rows, ("high", "low")):
            queries.append(self._go_to(head, row))
            if work.causal or self.window is not None:
                diagonal = code.let(f"(int)({super().diagonal(queries[-1])})", "diagonal")
                self.diagonals[queries[-1]] = diagonal
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
        slot, aligned = operand[0], self.is_aligned(operand)
        feature = f"{self.together * chunk} + own % 4 * {self.piece}"
        place = f"piece_at<{str(aligned).lower()}>(slot{slot} + {at} + {feature})"
        ragged = self.together * (chunk + 1) > features
        return f"{feature} < {features} ? {place} : Piece{{}}" if ragged else place

    def is_aligned(self, operand: tuple[int, Linear]) -> bool:
        """Whether all rows begin at multiples of 16 bytes."""
        slot, line = operand
        strides = [line.const, *(c for n, c in line.axes if n != FEATURE), *(c for _, c in line.others)]
        return self.body.slots[slot].aligned and all(dims.exact_div(c, self.piece) is not None for c in strides)

    def _key_pieces(self, k: str, start: str, stop: str) -> list[list[str]]:
        """A lane's pieces of its two of 16 keys."""
        work, code = self.work, self.code
        step = self.record.dim(work.k[1].coefficient(PLACE))
        found: list[list[str]] = []
        for half in range(2):
            key = code.let(f"min({start} + {8 * half} + own / 4, {stop} - 1)", "key")
            at = code.let(f"{k} + {key} * {step}", "at")
            pieces = (self._piece(work.k, at, chunk, work.features) for chunk in range(self.chunks))
            found.append([code.let(piece, "right") for piece in pieces])
        return found

    def _scores(self, keys: list[list[str]]) -> None:
        """Scores of 16 keys: of each half of them, two of the lane's first row and two of its second."""
        work, code = self.work, self.code
        code.emit("float scores[2][4] = {};")
        if work.float_parts:
            self._scores_of_parts(list(zip(*keys)))
            return
        for chunk, of_halves in enumerate(zip(*keys)):
            for half, right in enumerate(of_halves):
                for x, y in ("xy", "zw"):
                    left = ", ".join(f"{rows}[{chunk}].{pair}" for pair in (x, y) for rows in ("high", "low"))
                    code.emit(f"mma_{work.dtype}(scores[{half}], {left}, {right}.{x}, {right}.{y});")

    def _scores_of_parts(self, keys: Sequence[Sequence[str]]) -> None:
        """The same of f32, some chunks at a time."""
        code = self.code
        for begin in range(0, self.chunks, CHUNKS_AT_ONCE):
            chunks = range(begin, min(begin + CHUNKS_AT_ONCE, self.chunks))
            rows = [self.queries_apart[c] if self.queries_apart else float_parts.rows_apart(code, c) for c in chunks]
            halves = ", ".join(float_parts.array(code, "rows", of_half) for of_half in zip(*rows))
            parts = [", ".join(f"in_parts<true>({key})" for key in keys[chunk]) for chunk in chunks]
            columns = code.fresh("columns")
            code.emit(f"const Parts {columns}[{len(chunks)}][2] = {{{', '.join(f'{{{part}}}' for part in parts)}}};")
            code.emit(f"mma_f32_along(scores, {halves}, {columns});")

    def _mask_elements(self, masks: Sequence[str], start: str) -> list[list[str]]:
        """The mask's elements of a lane's scores, of each of its rows; the same where a mask has none for rows."""
        if self.work.mask is None:
            return [[""] * 4] * 2
        keys = [f"{start} + {offset} + own % 4 * 2" for offset in (0, 1, 8, 9)]
        axes = (HEAD, PLACE)
        rows = 2 if any(self.work.mask[1].coefficient(axis) != 0 for axis in axes) or self.work.mask[1].others else 1
        return [[self.mask_element(mask, key) for key in keys] for mask in masks[:rows]] * (3 - rows)

    def load_element(self, slot: int, at: str) -> str:
        dtype = self.body.slots[slot].dtype
        if dtype not in (*HALVES, dtypes.f32, dtypes.bool_):
            return super().load_element(slot, at)
        element = f"read_now(slot{slot} + {at})"
        decoded = {dtypes.f32: element, dtypes.bool_: f"{element} != 0"}.get(dtype, f"decode_{dtype}({element})")
        return self.code.let(decoded, "mask")

    def _admit(self, row: int, query: str, elements: Sequence[str], start: str, stop: str) -> None:
        """Scales the scores of a row, and puts what takes the place of those that do not count."""
        for half in range(2):
            for number in range(2):
                score = f"scores[{half}][{2 * row + number}]"
                self.code.emit(f"{score} = {score} * {self.number(self.work.scale)};")
                key = self.code.let(f"{start} + {8 * half + number} + own % 4 * 2", "key")
                self.admit(query, elements[2 * half + number], score, key)
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

    def _places(self, v: str, start: str, stop: str) -> tuple[list[str], list[str]]:
        """Where a lane's four values begin, and which of them are there."""
        code = self.code
        keys = [code.let(f"{start} + {8 * half + i} + own % 4 * 2", "key") for half in range(2) for i in range(2)]
        there = [code.let(f"{key} < {stop}", "there") for key in keys]
        step = self.record.dim(self.work.v[1].coefficient(PLACE))
        return [code.let(f"{v} + min({key}, {stop} - 1) * {step}", "at") for key in keys], there

    def _mix(self, v: str, start: str, stop: str, shrunk: Sequence[str], values: list[list[str]] | None) -> None:
        """Adds the values, each by its power: those words, or what is loaded for one product at a time, of f32 for some
        of them."""
        code, parts = self.code, self.work.float_parts
        apart = [float_parts.array(code, "powers", [half]) for half in float_parts.powers(code)] if parts else []
        left = ", ".join(apart or self._rounded())
        places, there = self._places(v, start, stop) if values is None else ([], [])
        at_once = COLUMNS_AT_ONCE if parts else 1
        for begin in range(0, self.columns, at_once):
            columns = range(begin, min(begin + at_once, self.columns))
            for column, number in itertools.product(columns, range(4)):
                code.emit(f"mixed[{column}][{number}] = mixed[{column}][{number}] * {shrunk[number // 2]};")
            pieces = [
                ", ".join(self._elements(column, places, there) if values is None else self._paired(values, column))
                for column in columns
            ]
            if parts:
                right = float_parts.array(code, "columns", [f"in_parts<true>(Piece{{{piece}}})" for piece in pieces])
                code.emit(f"mma_f32(mixed, {begin}, {left}, {right});")
            else:
                code.emit(f"mma_{self.work.dtype}(mixed[{begin}], {left}, {pieces[0]});")

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

    def _values(self, v: str, start: str, stop: str) -> list[list[str]]:
        """A lane's words of each of its four values."""
        code, slot = self.code, self.work.v[0]
        places, there = self._places(v, start, stop)
        kind, count, pieces = self.word_pieces()
        words: list[list[str]] = []
        for inside, at in zip(there, places):
            words.append([])
            for number in range(pieces):
                place = f"(const {kind}*)(slot{slot} + {at} + own / 4 * {self.columns}) + {number}"
                piece = code.let(f"{inside} ? read_now({place}) : {kind}{{}}", "values")
                words[-1] += [f"{piece}.{component}" for component in "xyzw"[:count]]
        return words

    def word_pieces(self) -> tuple[str, int, int]:
        """In what a lane reads its words of a value, how many words that has, and how many of them it reads."""
        of_a_word = 4 // self.work.dtype.itemsize
        kind, count = ("Piece", 4) if self.columns % (4 * of_a_word) == 0 else ("HalfPiece", 2)
        return kind, count, self.columns // (of_a_word * count)

    def _paired(self, words: list[list[str]], column: int) -> list[str]:
        """A lane's part of the values of a product, of its words: pairs of keys; of f32, each key alone."""
        if self.work.float_parts:
            return [of_key[column] for of_key in words]
        which, odd = column // 2, column % 2
        halves = [(words[2 * half][which], words[2 * half + 1][which]) for half in range(2)]
        return [self.code.let(f"paired<{odd}>({first}, {second})") for first, second in halves]

    def _rounded(self) -> list[str]:
        """The powers as 16-bit floats. Sums of two would be nearer, but the second is 0 or less at times, and of an
        infinite value makes NaN."""
        pairs = [(half, first) for half in range(2) for first in (0, 2)]
        scores = [[f"scores[{half}][{first + i}]" for i in range(2)] for half, first in pairs]
        return [self.code.let(words_of(self.work.dtype, pair)[0], "powers") for pair in scores]

    def _finish_alone(self, first: str, totals: Sequence[str]) -> None:
        """Divides and stores what a warp has for its own queries."""
        work, code, body = self.work, self.code, self.body
        slot, line = work.out
        along = self.record.dim(line.coefficient(FEATURE))
        for row in range(2):
            self.add_of_neighbours(totals[row])
            query = code.let(f"{first} + own / 4 + {8 * row}", "row")
            with body.scope(f"if ({query} < count)"):
                divide = self._divided_by(self.whole(totals[row]))
                body.axes[PLACE] = query
                start = self.start(line, FEATURE)
                near = self.words and line.coefficient(FEATURE) == 1 and self.is_aligned(work.out)
                for i in range(2):
                    values = [code.let(divide(f"mixed[{column}][{2 * row + i}]")) for column in range(self.columns)]
                    features = [f"({self._feature(column, f'own % 4 * 2 + {i}')})" for column in range(self.columns)]
                    elements = [self.finished(*each) for each in zip(values, features)]
                    if near:
                        self._store_neighbours(slot, [f"{start} + {feature}" for feature in features], elements)
                        continue
                    for feature, element in zip(features, elements):
                        body.store_at(slot, f"({start} + {feature} * {along})", element)

    def _divided_by(self, whole: str) -> Callable[[str], str]:
        """What divides; of what 16 bits are left of, by one division."""
        if self.work.float_parts:
            return lambda value: f"{value} / {whole}"
        inverse = self.code.let(f"1.0f / {whole}", "inverse")
        return lambda value: f"{value} * {inverse}"

    def _store_neighbours(self, slot: int, places: Sequence[str], elements: Sequence[Reg]) -> None:
        """Stores elements that are neighbours, four at a time."""
        for first in range(0, len(elements), 4):
            words = words_of(self.work.out_dtype, [element.unrounded for element in elements[first : first + 4]])
            kind = {4: "Piece", 2: "HalfPiece", 1: "unsigned"}[len(words)]
            self.code.emit(self.language.put(kind, f"slot{slot} + {places[first]}", words))

    def _join(self, first: str, tops: Sequence[str], totals: Sequence[str]) -> None:
        """What the warps have for each query and feature, by one lane."""
        work, code = self.work, self.code
        width = work.value_features + GAP
        self._room_for_warps(self.warps * TILE * width)
        for row in range(2):
            self.add_of_neighbours(totals[row])
            with code.block(f"if ({first} + own / 4 + {8 * row} < count)"):
                place = f"shared_mixed + (warp * {TILE} + own / 4 + {8 * row}) * {width}"
                code.emit(f"float* const mine = {place};")
                for column in range(self.columns):
                    pair = ", ".join(f"__float_as_uint(mixed[{column}][{2 * row + i}])" for i in range(2))
                    code.emit(f"*(HalfPiece*)(mine + own % 4 * 2 + {8 * column}) = HalfPiece{{{pair}}};")
                code.emit(f"mine[{width - 2}] = {tops[row]};")
                code.emit(f"mine[{width - 1}] = {totals[row]};")
        code.emit(self.language.barrier())
        self._meet(first, width)

    def _meet(self, first: str, width: int) -> None:
        """Joins what the warps have, and stores it."""
        with self._elements_of_rows("(int)lane", self.lanes, first) as (query, place):
            top, mixed, total = self._together(query, place, width)
            self._finish(self.code.let(f"{first} + {query}", "row"), self._feature_at(place), top, mixed, total)

    @contextmanager
    def _elements_of_rows(self, begin: str, step: int, first: str) -> Iterator[tuple[str, str]]:
        """A loop over a lane's elements of the tile: their rows in it, and places in the rows."""
        code, features = self.code, self.work.value_features
        items = code.let(f"min(count - {first}, {TILE}) * {features}", "items")
        item = code.fresh("e")
        with self.body.scope(f"for (int {item} = {begin}; {item} < {items}; {item} += {step})"):
            query, place = code.let(f"{item} / {features}", "row"), code.let(f"{item} % {features}", "place")
            yield query, place

    def _feature_at(self, place: str) -> str:
        """The feature at a place of a row in workgroup memory, where matrix units' products follow one another."""
        return self.code.let(f"{place} % 8 * {self.columns} + {place} / 8" if self.words else place, "feature")

    def _room_for_warps(self, count: int) -> None:
        """Declares floats for what the warps have."""
        self.language.shared_variable(self.code, "shared_mixed", "__align__(8) float", count)

    def _together(self, row: str, place: str, width: int) -> tuple[str, str, str]:
        """What the warps have for a row: the greatest score, a feature of the values mixed by powers, and the sum of
        these."""
        code = self.code
        code.emit(f"const float* const rows = shared_mixed + {row} * {width};")
        starts = [f"rows[{number * TILE * width} + " for number in range(self.warps)]
        top = self.variable("top", self.number(-math.inf))
        for start in starts:
            self.raise_to(top, f"{start}{width - 2}]")
        shift = self.shift(top)
        weights = [self.exp(f"{start}{width - 2}] - {shift}") for start in starts]
        sums = [
            code.let(" + ".join(f"{weight} * {start}{what}]" for weight, start in zip(weights, starts)))
            for what in (place, width - 1)
        ]
        return top, sums[0], sums[1]

    def _finish(self, row: str, feature: str, top: str, mixed: str, total: str) -> None:
        """Divides by the sum of powers, and stores."""
        self.body.axes[PLACE] = row
        self._store(feature, mixed, total)

    def _store(self, feature: str, mixed: str, total: str) -> None:
        """Stores an element of the query and head at hand."""
        work, body = self.work, self.body
        whole = self.whole(total)
        slot, line = work.out
        place = f"({self.start(line, FEATURE)} + {feature} * {self.record.dim(line.coefficient(FEATURE))})"
        body.store_at(slot, place, self.finished(f"{mixed} / {whole}", feature))
