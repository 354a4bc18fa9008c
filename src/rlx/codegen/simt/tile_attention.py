"""Attention of many queries on matrix units: a workgroup has a tile of queries of a head, 16 a warp, which it brings to
workgroup memory, and keys and values in tiles, some ahead of the one that its warps use.

A warp makes the scores of its queries and a tile's keys, takes softmax as the tiles come, and multiplies the powers,
rounded to the operands' dtype, with the values; its lanes have them where the next product wants them. Where warps can
multiply in fours, they do so with keys and values straight from workgroup memory, and two groups of four take turns at
the tiles of the same queries. Tiles of which every score counts have no masks; a mask of keys alone is a word of a bit
for each of 32 keys.

All of them lie there as `tile_rows.py` has it; so do results on their way to memory.
Source: Dao 2023, arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608 for products by fours of warps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext

from rlx.codegen.simt import team_attention
from rlx.codegen.simt.attention import FEATURE, HEAD, KEY, PLACE, AttentionWriter
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.cpp import words_of
from rlx.codegen.simt.language.cuda_warpgroups import warpgroup_product, warpgroup_steps_product
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.tile_layouts import LATER_NUMBERS
from rlx.codegen.simt.tile_rows import CHUNK, OF_A_CHUNK, PIECE, PIECES, RowTile, place_of
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
"""Of a group."""
STAGES = 2
"""Of keys and values; where warps multiply in fours there is room for one more."""
LOG2E = math.log2(math.e)


def groups_of(rows: int, warpgroups: bool) -> int:
    """How many groups of four warps, which multiply together where the target has `warpgroups`, have a tile of queries,
    by what tells variants apart: two where there are few tiles, as half of the keys take half of the time."""
    if not warpgroups:
        return 0
    return 2 if rows == team_attention.SOME_GUESS else 1


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
    """Positions are (batch, head, tile of queries), each a workgroup's.

    groups   of four warps, each of which multiplies together, that share a tile of queries; 0 for warps that multiply
             alone
    """

    def __init__(self, work: FusedAttention, slots: Sequence[Slot], language: Language, groups: int = 0) -> None:
        grid = (dims.mul(work.batch, work.live), work.heads, dims.ceildiv(work.queries, QUERIES))
        super().__init__(work, slots, grid, (*grid, work.keys), team=True, language=language)
        sides = (work.features, work.value_features)
        self.together = groups > 0 and all(n % CHUNK == 0 for n in sides)
        self.groups = groups if self.together else 1
        self.stages = STAGES + 1 if self.together else STAGES
        self.lanes = LANES * self.groups
        keys = RowTile("k", work.features, KEYS, 0, "of_group", LANES)
        self.tiles = (keys, RowTile("v", work.value_features, KEYS, keys.size, "of_group", LANES))
        self.chunks = [tile.chunks for tile in self.tiles]
        self.of_stage = sum(tile.size for tile in self.tiles)
        """Pieces of keys and values."""
        self.of_stages = self.stages * self.groups * self.of_stage
        """Those of all stages, behind which there are queries, and results later on."""
        self.queries = RowTile("q", work.features, QUERIES, self.of_stages, "(int)lane", self.lanes)
        self.code.dynamic_shared = 16 * (self.of_stages + QUERIES // 8 * max(self.chunks) * OF_A_CHUNK)
        if self.together:
            self.scored, text = warpgroup_product(work.dtype, work.dtype, KEYS)
            self.mixes, mixing = warpgroup_steps_product(work.dtype, work.value_features)
            self.code.functions.update({self.scored: text, self.mixes: mixing})
        self.code.later = LATER_NUMBERS
        self.blocks, self.columns = KEYS // 8, work.value_features // 8
        of_keys = work.mask is None or (work.mask[2] is dtypes.bool_ and _is_of_keys(work.mask[1]))
        self.by_place = of_keys and self.window is None and work.softcap is None
        """Whether a key's place in the tile tells what becomes of its score."""
        self.scaled_late = self.by_place and work.scale > 0 and work.fill == -math.inf
        """Whether scores can stay without their scale until powers are made of them."""
        self.log2e = LOG2E * work.scale if self.scaled_late else LOG2E
        self.schedule = Schedule(
            (Tile("workgroup", "queries", QUERIES), Tile("workgroup", "keys", KEYS), Tile("thread", "queries", 16)),
            spaces=(("q", "register"), ("k", "shared"), ("v", "shared"), ("scores", "register")),
            stages=self.stages,
            mma=(16, 8, 16),
        )

    def write(self) -> Dim:
        work, code, axes, index = self.work, self.code, self.body.axes, self.language.index
        head, count, tile = axes[HEAD], self.record.dim(work.queries), axes[PLACE]
        code.emit(f"const int warp = (int)lane / 32 % {WARPS}, own = (int)lane % 32;")
        code.emit(f"const int group = (int)lane / {LANES}, of_group = (int)lane % {LANES};")
        if work.causal:  # those with the most keys begin first
            tile = code.let(f"{self.record.dim(self.grid[2])} - {index(1)} - {tile}", "tile")
        first = code.let(f"{tile} * {index(QUERIES)}", "first")
        mine = code.let(f"{first} + warp * {OF_A_WARP}", "first")
        rows = [code.let(f"min({mine} + own / 4 + {8 * i}, {count} - {index(1)})", "row") for i in range(2)]
        masks = self._masks(rows)
        self._copy_queries(first, count)
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
        code.emit("commit_copies();")
        ahead, all_keys = self.stages - 1, KEYS * self.groups
        self._copy_first(low, stop)
        self._load_queries()
        code.emit("int stage = 0;")
        start, base = code.fresh("start"), code.fresh("base")
        code.emit("#pragma unroll 1")
        with self.body.scope(f"for (auto {base} = {low}; {base} < {stop}; {base} += {all_keys})"):
            code.emit(f"const auto {start} = {base} + {index(KEYS)} * group;")
            halves = range(2 if self.by_place and work.mask is not None else 0)
            admitted = [self._admitted(masks[0], f"{start} + own + {32 * half}") for half in halves]
            code.emit(f"wait_copies<{ahead - 1}>();")
            if self.together:
                code.emit("show_to_warpgroups();")
            # behind which nobody reads the stage before any more; groups need not go on together
            code.emit("group_barrier(group);" if self.groups > 1 else self.language.barrier())
            with code.block(f"if ({start} + {ahead * all_keys} < {stop})"):
                before = f"(stage + {ahead}) % {self.stages}"
                self._copy(f"({start} + {ahead * all_keys})", stop, f"({before})")
            code.emit("commit_copies();")
            with self.body.scope(f"if ({start} < {stop})"):
                self._score()
                if self.by_place:
                    self._admit_places(rows, admitted, start, stop, free)
                else:
                    self._admit(rows, masks, start, stop)
                self._powers(tops, shifts, totals)
                self._mix()
            code.emit(f"stage = (stage + 1) % {self.stages};")
        if self.groups > 1:
            self._join(tops, shifts, totals)
            with self.body.scope("if (group == 0)"):
                self._finish(mine, totals)
        else:
            self._finish(mine, totals)
        steps = dims.ceildiv(work.keys, KEYS)
        return dims.add(steps, 2)

    def _masks(self, rows: Sequence[str]) -> list[str]:
        """Where the masks of both rows of a lane begin."""
        masks = []
        for row in rows:
            self.body.axes[PLACE] = row
            masks.append(self.start(self.work.mask[1], KEY) if self.work.mask is not None else "")
        return masks

    def _copy_queries(self, first: str, count: str) -> None:
        """Asks for the tile's queries; behind the last there is the last one again."""
        code, (slot, line) = self.code, self.work.q
        step, start = self.record.dim(line.coefficient(PLACE)), self.start(line, FEATURE, PLACE)

        def copy(row: str, number: int, place: str) -> str:
            near = f"min({first} + {row}, {count} - {self.language.index(1)})"
            return f"copy_ahead({place}, slot{slot} + {start} + {near} * {step} + piece_q * {PIECE});"

        self.queries.declare(code)
        self.queries.bring(code, "", copy)

    def _load_queries(self) -> None:
        """Waits for a tile's queries, where no barrier of all comes behind, and brings a warp's to registers, where
        warps multiply alone."""
        code, steps = self.code, self.work.features // 16
        code.emit(f"Piece query_of[{steps}];")
        if self.groups > 1:
            code.emit(f"wait_copies<{self.stages - 1}>();")
            code.emit("show_to_warpgroups();")
            code.emit(self.language.barrier())
        with code.block("if (!has_warpgroups)") if self.together else nullcontext():
            if self.groups == 1:
                code.emit(f"wait_copies<{self.stages - 1}>();")
                code.emit(self.language.barrier())
            eight = f"(warp * 2 + own / 8 % 2) * {self.chunks[0] * OF_A_CHUNK} + own % 8 * {PIECES}"
            code.emit(f"const Piece* const mine = dynamic_shared + {self.of_stages} + {eight};")
            code.emit("#pragma unroll")
            with code.block(f"for (int step = 0; step < {steps}; step++)"):
                piece = f"step / 2 * {OF_A_CHUNK} + (step % 2 * 2 + own / 16 ^ own % 8 / 2)"
                code.emit(f"query_of[step] = load_matrices(mine + {piece});")

    def _free(self, first: str, stop: str) -> str:
        """Up to which key (exclusive) every score of the warp counts as it is, behind the first of the span."""
        work, index = self.work, self.language.index
        if not self.by_place or not work.causal:
            return stop
        return self.code.let(f"min({first} + {self.record.dim(work.offset)} + {index(1)}, {stop})", "free")

    # a tile of keys and values

    def _places(self, starts: Sequence[str]) -> None:
        """Where a lane's first piece of a tile's keys, and of its values, lies, and where it is to come."""
        for tile, (slot, line), at in zip(self.tiles, (self.work.k, self.work.v), starts):
            tile.declare(self.code)
            step = self.record.dim(line.coefficient(PLACE))
            place = f"slot{slot} + {at} + row_{tile.name} * {step} + piece_{tile.name} * {PIECE}"
            self.code.emit(f"const auto from_{tile.name} = {place};")

    def _stage_at(self, stage: str) -> str:
        """Where a stage of the group begins in workgroup memory."""
        of_groups = f" + group * {self.stages * self.of_stage}" if self.groups > 1 else ""
        return f"{stage} * {self.of_stage}{of_groups}"

    def _copy(self, start: str, stop: str, stage: str) -> None:
        """Asks for a tile; behind the last key there are zeros."""
        code = self.code
        code.emit(f"const int there = (int)min({stop} - {start}, {self.language.index(KEYS)});")
        for tile, (_, line) in zip(self.tiles, (self.work.k, self.work.v)):
            step = self.record.dim(line.coefficient(PLACE))
            source = code.let(f"from_{tile.name} + {start} * {step}", "source")

            def copy(row: str, number: int, place: str, step: str = step, source: str = source) -> str:
                return f"copy_ahead_if({row} < there, {place}, {source} + {number} * {step});"

            tile.bring(code, f"{self._stage_at(stage)} + ", copy)

    def _copy_first(self, low: str, stop: str) -> None:
        """Asks for the tiles that a group begins with, as many as are under way later on."""
        code, index = self.code, self.language.index
        first = code.let(f"{low} + {index(KEYS)} * group", "low") if self.groups > 1 else low
        for number in range(self.stages - 1):
            begin = f"({first} + {number * KEYS * self.groups})"
            with code.block(f"if ({begin} < {stop})"):
                self._copy(begin, stop, str(number))
            code.emit("commit_copies();")

    def _score(self) -> None:
        """Scores of the stage's tile, scaled unless that waits."""
        code, scale = self.code, self.number(self.work.scale)
        code.emit(f"const Piece* const keys = dynamic_shared + {self._stage_at('stage')};")
        code.emit(f"const Piece* const values = keys + {self.tiles[0].size};")
        self._scores()
        if not self.scaled_late:
            self._for_blocks([f"scores[block][{i}] = scores[block][{i}] * {scale};" for i in range(4)])

    def _scores(self) -> None:
        """Scores of all keys of the tile: of eight of them, two of the lane's first row and two of its second."""
        work, code, chunks = self.work, self.code, self.chunks[0]
        code.emit(f"float scores[{self.blocks}][4] = {{}};")
        with ExitStack() as scopes:
            if self.together:
                with code.block("if (has_warpgroups)"):
                    self._scores_together()
                scopes.enter_context(code.block("else"))
            code.emit("#pragma unroll")
            scopes.enter_context(code.block(f"for (int chunk = 0; chunk < {chunks}; chunk++)"))
            code.emit(f"const int own_piece = chunk * {OF_A_CHUNK} + own % 8 * {PIECES} + (own / 8 ^ own % 8 / 2);")
            code.emit("#pragma unroll")
            with code.block(f"for (int block = 0; block < {self.blocks}; block++)"):
                code.emit(f"const Piece right = load_matrices(keys + own_piece + block * {chunks * OF_A_CHUNK});")
                for number, pair in enumerate(("xy", "zw")):
                    step = f"chunk * 2 + {number}"
                    left = ", ".join(f"query_of[{step}].{word}" for word in "xyzw")
                    with ExitStack() as scopes:
                        if number and work.features % CHUNK:
                            scopes.enter_context(code.block(f"if ({step} < {work.features // 16})"))
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
            log2e = self.number(self.log2e)
            shift = code.let(f"{self.shift(greatest)} * {log2e}", "shift")
            # The first tile's greatest score may be far below 0, from where nothing has been mixed yet.
            shrink = code.let(f"power_of_two(fminf({shifts[row]} - {shift}, {self.zero}))", "shrink")
            code.emit(f"{tops[row]} = {greatest}; {shifts[row]} = {shift};")
            part = self.variable("part", self.zero)
            powers = [f"{s} = power_of_two({language.fma(s, log2e, f'-{shift}')});" for s in pair]
            self._for_blocks([*powers, f"{part} = {part} + {' + '.join(pair)};"])
            code.emit(f"{totals[row]} = {language.fma(totals[row], shrink, part)};")
            self._for_mixed([f"mixed[column][{2 * row + i}] *= {shrink};" for i in range(2)])

    def _for_blocks(self, lines: Sequence[str]) -> None:
        self.code.emit("#pragma unroll")
        with self.code.block(f"for (int block = 0; block < {self.blocks}; block++)"):
            for line in lines:
                self.code.emit(line)

    def _mix(self) -> None:
        """Adds the values, each by its power."""
        work, code, stride = self.work, self.code, self.chunks[1] * OF_A_CHUNK
        code.emit(f"unsigned powers[{KEYS // 4}];")
        code.emit("#pragma unroll")
        with code.block(f"for (int step = 0; step < {KEYS // 16}; step++)"):
            for number in range(4):
                pair = [f"scores[step * 2 + {number // 2}][{number % 2 * 2 + i}]" for i in range(2)]
                (word,) = words_of(work.dtype, pair)
                code.emit(f"powers[step * 4 + {number}] = {word};")
        left = ", ".join(f"powers[step * 4 + {number}]" for number in range(4))
        with ExitStack() as scopes:
            if self.together:
                with code.block("if (has_warpgroups)"):
                    code.emit("hold(mixed); hold(powers); begin_products();")
                    code.emit("#pragma unroll")
                    with code.block(f"for (int step = 0; step < {KEYS // 16}; step++)"):
                        right = f"matrix_at(values + step * {2 * stride}, {16 * stride}, {16 * OF_A_CHUNK})"
                        code.emit(f"{self.mixes}(mixed, {left}, {right});")
                    code.emit("commit_products(); await_products<0>(); hold(mixed);")
                scopes.enter_context(code.block("else"))
            code.emit("#pragma unroll")
            scopes.enter_context(code.block(f"for (int step = 0; step < {KEYS // 16}; step++)"))
            code.emit(f"const Piece* const eight = values + (step * 2 + own / 8 % 2) * {stride} + own % 8 * {PIECES};")
            code.emit("#pragma unroll")
            with code.block(f"for (int column = 0; column < {self.columns}; column += 2)"):
                place = f"column / {PIECES} * {OF_A_CHUNK} + (column % {PIECES} + own / 16 ^ own % 8 / 2)"
                code.emit(f"const Piece right = load_transposed(eight + {place});")
                for number, (x, y) in enumerate((("x", "y"), ("z", "w"))):
                    mixed = f"mixed[column + {number}]"
                    code.emit(f"mma_{work.dtype}({mixed}, {left}, right.{x}, right.{y});")

    def _scores_together(self) -> None:
        """Scores by products of four warps."""
        code, stride = self.code, self.chunks[0] * OF_A_CHUNK
        code.emit(f"const Piece* const queries = dynamic_shared + {self.of_stages};")
        code.emit("hold(scores); begin_products();")
        code.emit("#pragma unroll")
        with code.block(f"for (int step = 0; step < {self.work.features // 16}; step++)"):
            at = f"step / 2 * {OF_A_CHUNK} + step % 2 * 2"
            left, right = (f"matrix_at({side} + {at}, {16 * stride})" for side in ("queries", "keys"))
            code.emit(f"{self.scored}(scores, {left}, {right});")
        code.emit("commit_products(); await_products<0>(); hold(scores);")

    def _join(self, tops: Sequence[str], shifts: Sequence[str], totals: Sequence[str]) -> None:
        """Adds what the other group has of the same queries to the first group's, lane by lane."""
        code, language, rest = self.code, self.language, 4 * self.columns
        code.emit(language.barrier())
        code.emit("float* const given = (float*)dynamic_shared + of_group;")
        held = [name for row in zip(tops, shifts, totals) for name in row]
        with code.block("if (group == 1)"):
            self._for_mixed([f"given[(column * 4 + {i}) * {LANES}] = mixed[column][{i}];" for i in range(4)])
            for number, name in enumerate(held):
                code.emit(f"given[{(rest + number) * LANES}] = {name};")
        code.emit(language.barrier())
        with self.body.scope("if (group == 0)"):
            for row in range(2):
                top, shift, total = (f"given[{(rest + 3 * row + number) * LANES}]" for number in range(3))
                greatest = code.let(f"fmaxf({tops[row]}, {top})", "greatest")
                joint = code.let(f"{self.shift(greatest)} * {self.number(self.log2e)}", "shift")
                own, other = (
                    code.let(f"power_of_two(fminf({each} - {joint}, {self.zero}))", "shrink")
                    for each in (shifts[row], shift)
                )
                code.emit(f"{totals[row]} = {totals[row]} * {own} + {total} * {other};")
                mixed = [f"mixed[column][{2 * row + i}]" for i in range(2)]
                others = [f"given[(column * 4 + {2 * row + i}) * {LANES}]" for i in range(2)]
                self._for_mixed([f"{m} = {m} * {own} + {o} * {other};" for m, o in zip(mixed, others)])

    def _for_mixed(self, lines: Sequence[str]) -> None:
        self.code.emit("#pragma unroll")
        with self.code.block(f"for (int column = 0; column < {self.columns}; column++)"):
            for line in lines:
                self.code.emit(line)

    def _finish(self, first: str, totals: Sequence[str]) -> None:
        """Divides by the sum of powers, and stores."""
        work, code, body = self.work, self.code, self.body
        if work.tail is None:
            self._finish_in_pieces(first, totals)
            return
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

    def _finish_in_pieces(self, first: str, totals: Sequence[str]) -> None:
        """The same by way of workgroup memory, a warp by itself, from where 16 bytes go at a time."""
        work, code, chunks = self.work, self.code, self.chunks[1]
        slot, line = work.out
        code.emit(f"Piece* const made = dynamic_shared + {self.of_stages} + warp * {2 * chunks * OF_A_CHUNK};")
        if self.groups == 1:
            code.emit(self.language.barrier())  # behind which nobody reads queries any more
        for row in range(2):
            self.add_of_neighbours(totals[row])
            part = code.let(f"{self.number(1.0)} / {self.whole(totals[row])}", "part")
            (word,) = words_of(work.out_dtype, [f"mixed[column][{2 * row + i}] * {part}" for i in range(2)])
            place = place_of(f"(own / 4 + {8 * row})", "column", chunks)
            self._for_mixed([f"((unsigned*)(made + {place}))[own % 4] = {word};"])
        code.emit("__syncwarp();")
        pieces = work.value_features // PIECE
        self.body.axes[PLACE] = self.language.index(0)
        start, step = self.start(line, FEATURE, PLACE), self.record.dim(line.coefficient(PLACE))
        count = self.record.dim(work.queries)
        code.emit("#pragma unroll")
        with code.block(f"for (int e = own; e < {OF_A_WARP * pieces}; e += 32)"):
            code.emit(f"const int row = e / {pieces}, piece = e % {pieces};")
            with code.block(f"if ({first} + row < {count})"):
                place = f"slot{slot} + {start} + ({first} + row) * {step} + piece * {PIECE}"
                code.emit(f"put_piece((Piece*)({place}), made[{place_of('row', 'piece', chunks)}]);")

    def _store_pair(self, start: str, feature: str, pair: Sequence[str]) -> None:
        """Stores two elements that are neighbours, from a feature on."""
        place = f"{start} + {feature}"
        dtype = self.work.out_dtype
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
