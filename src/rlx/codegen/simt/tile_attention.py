"""Attention of many queries on matrix units: a workgroup has a tile of queries of a head, 16 a warp, and brings keys
and values to workgroup memory in tiles, one ahead of the one that its warps use.

A warp makes the scores of its queries and a tile's keys, takes softmax as the tiles come, and multiplies the powers,
rounded to the operands' dtype, with the values; its lanes have them where the next product wants them. Tiles of which
every score counts have no masks; a mask of keys alone is a word of a bit for each of 32 keys.
Source: Dao 2023, arXiv:2307.08691.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

from rlx.codegen.simt.attention import FEATURE, HEAD, KEY, PLACE, AttentionWriter
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.cpp import words_of
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.tile_layouts import LATER_NUMBERS
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.index import Linear
from rlx.kernel.schedule.schedule import Schedule, Tile

WARPS = 4
OF_A_WARP = 16
QUERIES = WARPS * OF_A_WARP
KEYS = 64
"""Of a tile."""
LANES = 32 * WARPS
STAGES = 2
PIECE = 8
"""Features of 16 bytes."""
CHUNK = 32
"""Features that are loaded from workgroup memory at once."""
LOG2E = math.log2(math.e)


def takes(work: FusedAttention, slots: Sequence[Slot]) -> bool:
    """Whether it is of 16-bit floats, its features are whole steps of products, and rows of all operands lie in pieces
    of 16 bytes."""
    whole = work.dtype.itemsize == 2 and work.features % 16 == 0 and work.value_features % 16 == 0
    return whole and all(_is_aligned(slots, side) for side in (work.q, work.k, work.v, work.out))


def _is_aligned(slots: Sequence[Slot], operand: tuple[int, Linear]) -> bool:
    slot, line = operand
    strides = [line.const, *(c for n, c in line.axes if n != FEATURE), *(c for _, c in line.others)]
    near = line.coefficient(FEATURE) == 1 and slots[slot].aligned
    return near and all(dims.exact_div(c, PIECE) is not None for c in strides)


class TileAttention(AttentionWriter):
    """Positions are (batch, head, tile of queries), each a workgroup's."""

    def __init__(self, work: FusedAttention, slots: Sequence[Slot], language: Language) -> None:
        grid = (dims.mul(work.batch, work.live), work.heads, dims.ceildiv(work.queries, QUERIES))
        super().__init__(work, slots, grid, (*grid, work.keys), team=True, language=language)
        self.lanes = LANES
        self.rows_of = [_row_pieces(features) for features in (work.features, work.value_features)]
        self.sides = [KEYS * pieces for pieces in self.rows_of]
        self.given = [features // PIECE for features in (work.features, work.value_features)]
        """Pieces of a key, and of its values."""
        self.code.dynamic_shared = 16 * STAGES * sum(self.sides)
        self.code.later = LATER_NUMBERS
        self.blocks, self.columns = KEYS // 8, work.value_features // 8
        of_keys = work.mask is None or (work.mask[2] is dtypes.bool_ and _is_of_keys(work.mask[1]))
        self.by_place = of_keys and self.window is None and work.softcap is None
        """Whether a key's place in the tile tells what becomes of its score."""
        self.scaled_late = self.by_place and work.scale > 0 and work.fill == -math.inf
        """Whether scores can stay without their scale until powers are made of them."""
        self.schedule = Schedule(
            (Tile("workgroup", "queries", QUERIES), Tile("workgroup", "keys", KEYS), Tile("thread", "queries", 16)),
            spaces=(("q", "register"), ("k", "shared"), ("v", "shared"), ("scores", "register")),
            stages=STAGES,
            mma=(16, 8, 16),
        )

    def write(self) -> Dim:
        work, code, axes, index = self.work, self.code, self.body.axes, self.language.index
        head, count, tile = axes[HEAD], self.record.dim(work.queries), axes[PLACE]
        code.emit("const int warp = (int)lane / 32, own = (int)lane % 32;")
        if work.causal:  # those with the most keys begin first
            tile = code.let(f"{self.record.dim(self.grid[2])} - {index(1)} - {tile}", "tile")
        first = code.let(f"{tile} * {index(QUERIES)}", "first")
        mine = code.let(f"{first} + warp * {OF_A_WARP}", "first")
        rows = [code.let(f"min({mine} + own / 4 + {8 * i}, {count} - {index(1)})", "row") for i in range(2)]
        masks = self._queries(rows)
        axes[HEAD] = code.let(f"{head} / {index(work.repeat)}", "head")
        starts = [self.start(line, FEATURE, PLACE) for _, line in (work.k, work.v)]
        axes[HEAD] = head
        self._places(starts)
        low, stop = self.span(first, code.let(f"min({first} + {index(QUERIES)}, {count}) - {index(1)}", "last"))
        free = self._free(code.let(f"min({mine}, {count} - {index(1)})", "first"), stop)
        code.emit(f"float mixed[{self.columns}][4] = {{}};")
        tops = [self.variable("top", self.least) for _ in rows]
        shifts = [self.variable("shift", self.zero) for _ in rows]
        totals = [self.variable("total", self.zero) for _ in rows]
        code.emit("int stage = 0;")
        self._copy(low, stop, "stage")
        code.emit("commit_copies();")
        start = code.fresh("start")
        code.emit("#pragma unroll 1")
        with self.body.scope(f"for (auto {start} = {low}; {start} < {stop}; {start} += {KEYS}, stage ^= 1)"):
            halves = range(2 if self.by_place and work.mask is not None else 0)
            admitted = [self._admitted(masks[0], f"{start} + own + {32 * half}") for half in halves]
            with code.block(f"if ({start} + {KEYS} < {stop})"):
                self._copy(f"({start} + {KEYS})", stop, "(stage ^ 1)")
            code.emit("commit_copies();")
            code.emit("wait_copies<1>();")
            code.emit(self.language.barrier())
            code.emit(f"const Piece* const keys = dynamic_shared + stage * {sum(self.sides)};")
            code.emit(f"const Piece* const values = keys + {self.sides[0]};")
            self._scores()
            if not self.scaled_late:
                scale = self.number(work.scale)
                self._for_blocks([f"scores[block][{i}] = scores[block][{i}] * {scale};" for i in range(4)])
            if self.by_place:
                self._admit_places(rows, admitted, start, stop, free)
            else:
                self._admit(rows, masks, start, stop)
            self._powers(tops, shifts, totals)
            self._mix()
            code.emit(self.language.barrier())
        self._finish(mine, totals)
        steps = dims.ceildiv(work.keys, KEYS)
        return dims.add(steps, 2)

    def _queries(self, rows: Sequence[str]) -> list[str]:
        """Brings both rows of a lane to registers; where their masks begin."""
        work, code, masks = self.work, self.code, []
        slot, line = work.q
        for row, name in zip(rows, ("high", "low")):
            self.body.axes[PLACE] = row
            at = self.start(line, FEATURE)
            words = work.features // 8
            code.emit(f"unsigned {name}[{words}];")
            code.emit("#pragma unroll")
            with code.block(f"for (int i = 0; i < {words}; i++)"):
                code.emit(f"{name}[i] = *(const unsigned*)(slot{slot} + {at} + i * 8 + own % 4 * 2);")
            masks.append(self.start(work.mask[1], 3) if work.mask is not None else "")
        return masks

    def _free(self, first: str, stop: str) -> str:
        """Up to which key (exclusive) every score of the warp counts as it is, behind the first of the span."""
        work, index = self.work, self.language.index
        if not self.by_place or not work.causal:
            return stop
        return self.code.let(f"min({first} + {self.record.dim(work.offset)} + {index(1)}, {stop})", "free")

    # a tile of keys and values

    def _places(self, starts: Sequence[str]) -> None:
        """Where a lane's first piece of a tile's keys, and of its values, lies, and where it is to come."""
        code, begin = self.code, 0
        sides = zip("kv", (self.work.k, self.work.v), self.given, self.rows_of, self.sides, starts)
        for name, (slot, line), given, pieces, side, at in sides:
            key, piece = f"(int)lane / {given}", f"(int)lane % {given}"
            step = self.record.dim(line.coefficient(PLACE))
            code.emit(f"const auto from_{name} = slot{slot} + {at} + {key} * {step} + {piece} * {PIECE};")
            code.emit(f"const int to_{name} = {begin} + {key} * {pieces} + {piece};")
            begin += side

    def _copy(self, start: str, stop: str, stage: str) -> None:
        """Asks for a tile; behind the last key there are zeros."""
        code = self.code
        code.emit(f"const int there = (int)min({stop} - {start}, {self.language.index(KEYS)});")
        sides = zip("kv", (self.work.k, self.work.v), self.given, self.rows_of)
        for name, (_, line), given, pieces in sides:
            step, keys = self.record.dim(line.coefficient(PLACE)), LANES // given
            source = code.let(f"from_{name} + {start} * {step}", "source")
            to = f"dynamic_shared + {stage} * {sum(self.sides)} + to_{name}"
            for number in range(-(-KEYS // keys)):
                key = f"(int)lane / {given} + {number * keys}"
                place = f"{to} + {number * keys * pieces}"
                copy = f"copy_ahead_if({key} < there, {place}, {source} + {number * keys} * {step});"
                ends = [f"(int)lane < {keys * given}"] * (LANES % given > 0)
                ends += [f"{key} < {KEYS}"] * ((number + 1) * keys > KEYS)
                code.emit(f"if ({' && '.join(ends)}) {copy}" if ends else copy)

    def _scores(self) -> None:
        """Scores of all keys of the tile: of eight of them, two of the lane's first row and two of its second."""
        work, code, pieces = self.work, self.code, self.rows_of[0]
        code.emit(f"float scores[{self.blocks}][4] = {{}};")
        chunks = -(-work.features // CHUNK)
        code.emit("#pragma unroll")
        with code.block(f"for (int chunk = 0; chunk < {chunks}; chunk++)"):
            within = "own / 8" if work.features % CHUNK == 0 else f"min(own / 8, {work.features // 8 - 1} - chunk * 4)"
            code.emit(f"const Piece* const row = keys + own % 8 * {pieces} + chunk * 4 + {within};")
            code.emit("#pragma unroll")
            with code.block(f"for (int block = 0; block < {self.blocks}; block++)"):
                code.emit(f"const Piece right = load_matrices(row + block * {8 * pieces});")
                for number, pair in enumerate(("xy", "zw")):
                    at = f"chunk * 4 + {2 * number}"
                    left = ", ".join(f"{name}[{at} + {half}]" for half in range(2) for name in ("high", "low"))
                    with ExitStack() as scopes:
                        if number and work.features % CHUNK:
                            scopes.enter_context(code.block(f"if ({at} < {work.features // 8})"))
                        code.emit(f"mma_{work.dtype}(scores[block], {left}, right.{pair[0]}, right.{pair[1]});")

    def _admit(self, rows: Sequence[str], masks: Sequence[str], start: str, stop: str) -> None:
        """Puts what takes the place of scores that do not count."""
        code = self.code
        code.emit("#pragma unroll")
        with self.body.scope(f"for (int block = 0; block < {self.blocks}; block++)"):
            for number in range(4):
                score = f"scores[block][{number}]"
                key = code.let(f"{start} + block * 8 + own % 4 * 2 + {number % 2}", "key")
                inside = code.let(f"min({key}, {stop} - {self.language.index(1)})", "key")
                self.mask(rows[number // 2], masks[number // 2], score, inside)
                code.emit(f"{score} = {self.language.select(f'{key} < {stop}', score, self.least)};")

    def _admitted(self, mask: str, key: str) -> str:
        """What the mask has for a key, or for the last one."""
        assert self.work.mask is not None
        slot, line, _ = self.work.mask
        near = f"min({key}, {self.record.dim(self.work.keys)} - {self.language.index(1)})"
        return self.body.load_at(slot, f"({mask} + {near} * {self.record.dim(line.coefficient(KEY))})").name

    def _admit_places(
        self, rows: Sequence[str], admitted: Sequence[str], start: str, stop: str, free: str
    ) -> None:  # fmt: skip
        """The same by places in the tile, where not every score counts."""
        code, work, select = self.code, self.work, self.language.select
        for half, mine in enumerate(admitted):
            code.emit(f"const unsigned admitted{half} = __ballot_sync(0xffffffffu, {mine});")
        some = " || (admitted0 & admitted1) != 0xffffffffu" if admitted else ""
        with code.block(f"if ({start} + {KEYS} > {free}{some})"):
            code.emit(f"const int left = (int)min({stop} - {start}, {self.language.index(KEYS)}) - own % 4 * 2;")
            for half in range(len(admitted)):
                code.emit(f"const unsigned own_bits{half} = admitted{half} >> own % 4 * 2;")
            for number, row in enumerate(rows if work.causal else ()):
                reach = f"{row} + {self.record.dim(work.offset)} - {start}"
                reach = f"min(max({reach}, {self.language.index(-1)}), {self.language.index(KEYS)})"
                code.emit(f"const int reach{number} = (int){reach} - own % 4 * 2;")
            fill, lines = self.number(work.fill), []
            for number in range(4):
                score, place = f"scores[block][{number}]", f"block * 8 + {number % 2}"
                if admitted:
                    bit = f"(block < 4 ? own_bits0 : own_bits1) >> (block % 4 * 8 + {number % 2}) & 1"
                    lines.append(f"{score} = {select(bit, score, fill)};")
                if work.causal:
                    lines.append(f"{score} = {select(f'{place} <= reach{number // 2}', score, fill)};")
                lines.append(f"{score} = {select(f'{place} < left', score, self.least)};")
            self._for_blocks(lines)

    # softmax as far as the keys have come, and what is mixed by it

    def _powers(self, tops: Sequence[str], shifts: Sequence[str], totals: Sequence[str]) -> None:
        """Makes exp(score - greatest so far) of the scores, and shrinks what was mixed before."""
        code, language = self.code, self.language
        for row in range(2):
            greatest = self.variable("greatest", tops[row])
            pair = [f"scores[block][{2 * row + i}]" for i in range(2)]
            self._for_blocks([f"{greatest} = fmaxf({greatest}, {s});" for s in pair])  # which leaves NaN out
            for mask in ("1", "2"):
                other = code.let(language.from_neighbour(Reg(greatest, dtypes.f32, False), mask), "other")
                code.emit(f"{greatest} = fmaxf({greatest}, {other});")
            log2e = self.number(LOG2E * self.work.scale if self.scaled_late else LOG2E)
            shift = code.let(f"{self.shift(greatest)} * {log2e}", "shift")
            shrink = code.let(f"power_of_two({shifts[row]} - {shift})", "shrink")
            code.emit(f"{tops[row]} = {greatest}; {shifts[row]} = {shift};")
            part = self.variable("part", self.zero)
            powers = [f"{s} = power_of_two({language.fma(s, log2e, f'-{shift}')});" for s in pair]
            self._for_blocks([*powers, f"{part} = {part} + {' + '.join(pair)};"])
            code.emit(f"{totals[row]} = {language.fma(totals[row], shrink, part)};")
            code.emit("#pragma unroll")
            with code.block(f"for (int column = 0; column < {self.columns}; column++)"):
                for i in range(2):
                    mixed = f"mixed[column][{2 * row + i}]"
                    code.emit(f"{mixed} = {mixed} * {shrink};")

    def _for_blocks(self, lines: Sequence[str]) -> None:
        self.code.emit("#pragma unroll")
        with self.code.block(f"for (int block = 0; block < {self.blocks}; block++)"):
            for line in lines:
                self.code.emit(line)

    def _mix(self) -> None:
        """Adds the values, each by its power."""
        work, code, pieces = self.work, self.code, self.rows_of[1]
        code.emit("#pragma unroll")
        with code.block(f"for (int step = 0; step < {KEYS // 16}; step++)"):
            left = []
            for block in ("step * 2", "step * 2 + 1"):
                for first in (0, 2):
                    (powers,) = words_of(work.dtype, [f"scores[{block}][{first + i}]" for i in range(2)])
                    left.append(code.let(powers, "powers"))
            code.emit(f"const Piece* const row = values + (step * 16 + own % 16) * {pieces} + own / 16;")
            code.emit("#pragma unroll")
            with code.block(f"for (int column = 0; column < {self.columns}; column += 2)"):
                code.emit("const Piece right = load_transposed(row + column);")
                for number, pair in enumerate(("xy", "zw")):
                    mixed = f"mixed[column + {number}]"
                    code.emit(f"mma_{work.dtype}({mixed}, {', '.join(left)}, right.{pair[0]}, right.{pair[1]});")

    def _finish(self, first: str, totals: Sequence[str]) -> None:
        """Divides by the sum of powers, and stores."""
        work, code, body = self.work, self.code, self.body
        slot, line = work.out
        for row in range(2):
            self.add_of_neighbours(totals[row])
            query = code.let(f"{first} + own / 4 + {8 * row}", "row")
            with body.scope(f"if ({query} < {self.record.dim(work.queries)})"):
                part = code.let(f"{self.number(1.0)} / {self.whole(totals[row])}", "part")
                body.axes[PLACE] = query
                start = self.start(line, FEATURE)
                code.emit("#pragma unroll")
                with body.scope(f"for (int column = 0; column < {self.columns}; column++)"):
                    pair = [f"mixed[column][{2 * row + i}] * {part}" for i in range(2)]
                    self._store_pair(f"slot{slot} + {start}", "column * 8 + own % 4 * 2", pair)

    def _store_pair(self, start: str, feature: str, pair: Sequence[str]) -> None:
        """Stores two elements that are neighbours, from a feature on."""
        place = f"{start} + {feature}"
        dtype = self.work.out_dtype
        if self.work.tail is None:
            (word,) = words_of(dtype, pair)
            self.code.emit(f"*(unsigned*)({place}) = {word};")
            return
        finished = [self.finished(each, f"({feature} + {number})") for number, each in enumerate(pair)]
        low, high = (element.unrounded for element in finished)
        if dtype is dtypes.f8e4m3:
            (word,) = words_of(dtype, (low, high, low, high))
            self.code.emit(f"*(unsigned short*)({place}) = (unsigned short){word};")
        elif dtype.itemsize == 1:
            self.code.emit(f"*(unsigned short*)({place}) = (unsigned short)(({low} & 0xff) | {high} << 8);")
        elif dtype.itemsize == 2:
            (word,) = words_of(dtype, (low, high))
            self.code.emit(f"*(unsigned*)({place}) = {word};")
        else:
            self.code.emit(f"*(HalfPiece*)({place}) = HalfPiece{{{', '.join(words_of(dtype, (low, high)))}}};")


def _is_of_keys(mask: Linear) -> bool:
    """Whether a mask is the same for all queries."""
    return mask.coefficient(PLACE) == 0 and not mask.others


def _row_pieces(features: int) -> int:
    """Pieces between the beginnings of rows in workgroup memory: an odd number, so that eight rows meet in no bank."""
    return features // PIECE | 1
