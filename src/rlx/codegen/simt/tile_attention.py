"""Attention of many queries on matrix units: a workgroup has a tile of queries of a head, 16 a warp, which it brings to
workgroup memory, and keys and values in tiles, some ahead of the one that its warps use.

A warp makes the scores of its queries and a tile's keys, takes softmax as the tiles come, and multiplies the powers,
rounded to the operands' dtype, with the values; its lanes have them where the next product wants them. Where warps can
multiply in fours, they do so with keys and values straight from workgroup memory; where there are few tiles of queries,
two groups of four take turns at the keys of one (`brought_attention.py`). Tiles of which every score counts have no
masks; a mask of keys alone is a word of a bit for each of 32 keys.

All of them lie there as `tile_rows.py` has it; so do results on their way to memory.
Source: Dao 2023, arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608 for products by fours of warps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext

from rlx.codegen.simt.attention import FEATURE, HEAD, KEY, PLACE
from rlx.codegen.simt.attention_results import OF_A_WARP, AttentionResults, Mixed
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.cpp import words_of
from rlx.codegen.simt.language.cuda_warpgroups import warpgroup_product, warpgroup_steps_product
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.tile_layouts import LATER_NUMBERS
from rlx.codegen.simt.tile_rows import CHUNK, OF_A_CHUNK, PIECE, PIECES, RowTile
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.index import Linear
from rlx.kernel.schedule.schedule import Schedule, Tile

WARPS = 4
QUERIES = WARPS * OF_A_WARP
KEYS = 64
"""Of a tile."""
LANES = 32 * WARPS
STAGES = 2
"""Of keys and values; where warps multiply in fours there is room for one more."""
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


class TileAttention(AttentionResults):
    """Positions are (batch, head, tile of queries), each a workgroup's.

    together   whether four warps multiply together where the target can and features are whole lines
    groups     of four warps that do so, which take turns at the tiles of keys
    lane       the number of a lane of those that bring operands
    """

    def __init__(
        self, work: FusedAttention, slots: Sequence[Slot], language: Language, together: bool = False, groups: int = 1,
        lane: str = "(int)lane",
    ) -> None:  # fmt: skip
        grid = (dims.mul(work.batch, work.live), work.heads, dims.ceildiv(work.queries, QUERIES))
        super().__init__(work, slots, grid, (*grid, work.keys), team=True, language=language)
        sides = (work.features, work.value_features)
        self.together = together and all(n % CHUNK == 0 for n in sides)
        self.only_together = False
        """Whether it is for targets alone that have warpgroups."""
        self.stages = STAGES + 1 if self.together else STAGES
        self.lanes = LANES
        keys = RowTile("k", work.features, KEYS, 0, lane, LANES)
        self.tiles = (keys, RowTile("v", work.value_features, KEYS, keys.size, lane, LANES))
        self.chunks = [tile.chunks for tile in self.tiles]
        self.of_stage = sum(tile.size for tile in self.tiles)
        """Pieces of keys and values."""
        self.of_stages = self.stages * groups * self.of_stage
        """Those of all stages, behind which there are queries, and results later on."""
        self.queries = RowTile("q", work.features, QUERIES, self.of_stages, lane, LANES)
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
        self.has_bits = self.by_place and work.mask is not None
        """Whether a mask is of keys alone."""
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
        work, code = self.work, self.code
        self._name_lanes()
        first, mine, rows = self._name_queries()
        masks = self._masks(rows)
        self._copy_queries(first)
        self._places()
        low, stop = self._span(first)
        free = self._free(mine, stop)
        self._begin_sums()
        code.emit("commit_copies();")
        ahead = self.stages - 1
        self._copy_first(low, stop)
        self._ask_masks(masks, low, stop)
        self._load_queries()
        code.emit("int stage = 0;")
        start = code.fresh("start")
        code.emit("#pragma unroll 1")
        with self.body.scope(f"for (auto {start} = {low}; {start} < {stop}; {start} += {KEYS})"):
            admitted = self._admitted_now()
            self._ask_masks(masks, f"({start} + {KEYS})", stop)
            code.emit(f"wait_copies<{ahead - 1}>();")
            if self.together:
                code.emit("show_to_warpgroups();")
            code.emit(self.language.barrier())  # behind which nobody reads the stage before any more
            with code.block(f"if ({start} + {ahead * KEYS} < {stop})"):
                before = f"(stage + {ahead}) % {self.stages}"
                self._copy(f"({start} + {ahead * KEYS})", stop, self._stage_at(f"({before})"))
            code.emit("commit_copies();")
            self._use(self._stage_at("stage"), rows, masks, admitted, start, stop, free)
            code.emit(f"stage = (stage + 1) % {self.stages};")
        if work.tail is None:
            code.emit(self.language.barrier())  # behind which nobody reads queries any more
        self.finish(mine, Mixed("mixed", self.columns))
        return dims.add(dims.ceildiv(self.work.keys, KEYS), 2)

    def _name_lanes(self) -> None:
        self.code.emit(f"const int warp = (int)lane / 32 % {WARPS}, own = (int)lane % 32;")

    def _name_queries(self) -> tuple[str, str, list[str]]:
        """The first query of the workgroup, that of the warp, and a lane's two."""
        work, code, index, tile = self.work, self.code, self.language.index, self.body.axes[PLACE]
        self.count = self.record.dim(work.queries)
        if work.causal:  # those with the most keys begin first
            tile = code.let(f"{self.record.dim(self.grid[2])} - {index(1)} - {tile}", "tile")
        first = code.let(f"{tile} * {index(QUERIES)}", "first")
        mine = code.let(f"{first} + warp * {OF_A_WARP}", "first")
        rows = [code.let(f"min({mine} + own / 4 + {8 * i}, {self.count} - {index(1)})", "row") for i in range(2)]
        return first, mine, rows

    def _span(self, first: str) -> tuple[str, str]:
        """The keys of the workgroup's queries."""
        index = self.language.index
        last = self.code.let(f"min({first} + {index(QUERIES)}, {self.count}) - {index(1)}", "last")
        return self.span(first, last)

    def _begin_sums(self) -> None:
        """What a lane has of both of its queries so far."""
        self.code.emit(f"float mixed[{self.columns}][4] = {{}};")
        self.tops = [self.variable("top", self.least) for _ in range(2)]
        self.shifts = [self.variable("shift", self.zero) for _ in range(2)]
        self.totals = [self.variable("total", self.zero) for _ in range(2)]
        if self.has_bits:
            self.code.emit("bool asked0 = false, asked1 = false;")

    def _ask_masks(self, masks: Sequence[str], start: str, stop: str) -> None:
        """Asks for what a mask of keys alone has for two keys of the tile that begins there, if one does: a tile before
        that is used."""
        if not self.has_bits:
            return
        with self.body.scope(f"if ({start} < {stop})"):
            for half in range(2):
                self.code.emit(f"asked{half} = {self._admitted(masks[0], f'{start} + own + {32 * half}')};")

    def _admitted_now(self) -> list[str]:
        """What was asked for before."""
        return [self.code.let(f"asked{half}", "admitted") for half in range(2 if self.has_bits else 0)]

    def _use(
        self, stage: str, rows: Sequence[str], masks: Sequence[str], admitted: Sequence[str], start: str, stop: str,
        free: str,
    ) -> None:  # fmt: skip
        """Takes in a tile of keys and values, which begins at a place of workgroup memory."""
        self._score(stage)
        if self.by_place:
            self._admit_places(rows, admitted, start, stop, free)
        else:
            self._admit(rows, masks, start, stop)
        self._powers()
        self._mix()

    def _masks(self, rows: Sequence[str]) -> list[str]:
        """Where the masks of both rows of a lane begin."""
        masks = []
        for row in rows:
            self.body.axes[PLACE] = row
            masks.append(self.start(self.work.mask[1], KEY) if self.work.mask is not None else "")
        return masks

    def _copy_queries(self, first: str) -> None:
        """Asks for the tile's queries; behind the last there is the last one again."""
        code, (slot, line) = self.code, self.work.q
        step, start = self.record.dim(line.coefficient(PLACE)), self.start(line, FEATURE, PLACE)

        def copy(row: str, number: int, place: str) -> str:
            near = f"min({first} + {row}, {self.count} - {self.language.index(1)})"
            return f"copy_ahead({place}, slot{slot} + {start} + {near} * {step} + piece_q * {PIECE});"

        self.queries.declare(code)
        self.queries.bring(code, "", copy)

    def _load_queries(self) -> None:
        """Waits for a tile's queries, and brings a warp's to registers, where warps multiply alone."""
        code, steps = self.code, self.work.features // 16
        code.emit(f"Piece query_of[{steps}];")
        with code.block("if (!has_warpgroups)") if self.together else nullcontext():
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

    def _places(self) -> None:
        """Where a lane's first piece of a tile's keys, and of its values, lies, and where it is to come."""
        axes = self.body.axes
        head = axes[HEAD]
        axes[HEAD] = self.code.let(f"{head} / {self.language.index(self.work.repeat)}", "head")
        starts = [self.start(line, FEATURE, PLACE) for _, line in (self.work.k, self.work.v)]
        axes[HEAD] = head
        for tile, (slot, line), at in zip(self.tiles, (self.work.k, self.work.v), starts):
            tile.declare(self.code)
            step = self.record.dim(line.coefficient(PLACE))
            place = f"slot{slot} + {at} + row_{tile.name} * {step} + piece_{tile.name} * {PIECE}"
            self.code.emit(f"const auto from_{tile.name} = {place};")

    def _stage_at(self, stage: str) -> str:
        """Where a stage begins in workgroup memory."""
        return f"{stage} * {self.of_stage}"

    def _copy(self, start: str, stop: str, stage: str) -> None:
        """Asks for a tile, at a place of workgroup memory; behind the last key there are zeros."""
        code = self.code
        code.emit(f"const int there = (int)min({stop} - {start}, {self.language.index(KEYS)});")
        for tile, (_, line) in zip(self.tiles, (self.work.k, self.work.v)):
            step = self.record.dim(line.coefficient(PLACE))
            source = code.let(f"from_{tile.name} + {start} * {step}", "source")

            def copy(row: str, number: int, place: str, step: str = step, source: str = source) -> str:
                return f"copy_ahead_if({row} < there, {place}, {source} + {number} * {step});"

            tile.bring(code, f"{stage} + ", copy)

    def _copy_first(self, low: str, stop: str) -> None:
        """Asks for the first tiles, as many as are under way later on."""
        code = self.code
        for number in range(self.stages - 1):
            begin = f"({low} + {number * KEYS})"
            with code.block(f"if ({begin} < {stop})"):
                self._copy(begin, stop, self._stage_at(str(number)))
            code.emit("commit_copies();")

    def _score(self, stage: str) -> None:
        """Scores of the tile at a place of workgroup memory, scaled unless that waits."""
        code, scale = self.code, self.number(self.work.scale)
        code.emit(f"const Piece* const keys = dynamic_shared + {stage};")
        code.emit(f"const Piece* const values = keys + {self.tiles[0].size};")
        self._scores()
        if not self.scaled_late:
            self._for_blocks([f"scores[block][{i}] = scores[block][{i}] * {scale};" for i in range(4)])

    def _scores(self) -> None:
        """Scores of all keys of the tile: of eight of them, two of the lane's first row and two of its second."""
        work, code, chunks = self.work, self.code, self.chunks[0]
        code.emit(f"float scores[{self.blocks}][4] = {{}};")
        with ExitStack() as scopes:
            if self.only_together:
                self._scores_together()
                return
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

    def _powers(self) -> None:
        """Makes exp(score - greatest so far) of the scores, and shrinks what was mixed before. What waits for what
        comes before it goes in two rows."""
        code, language = self.code, self.language
        log2e = self.number(self.log2e)
        for row, (top, before, total) in enumerate(zip(self.tops, self.shifts, self.totals)):
            pair = [f"scores[block][{2 * row + i}]" for i in range(2)]
            greatest, other = self.variable("greatest", top), self.variable("greatest", top)
            self._for_blocks([f"{g} = fmaxf({g}, {s});" for g, s in zip((greatest, other), pair)])  # leaves NaN out
            code.emit(f"{greatest} = fmaxf({greatest}, {other});")
            for mask in ("1", "2"):
                other = code.let(language.from_neighbour(Reg(greatest, dtypes.f32, False), mask), "other")
                code.emit(f"{greatest} = fmaxf({greatest}, {other});")
            shift = code.let(f"{self.shift(greatest)} * {log2e}", "shift")
            # The first tile's greatest score may be far below 0, from where nothing has been mixed yet.
            shrink = code.let(f"near_exp2(fminf({before} - {shift}, {self.zero}))", "shrink")
            code.emit(f"{top} = {greatest}; {before} = {shift};")
            parts = [self.variable("part", self.zero) for _ in range(2)]
            powers = [f"{s} = near_exp2({language.fma(s, log2e, f'-{shift}')});" for s in pair]
            self._for_blocks([*powers, *(f"{part} = {part} + {s};" for part, s in zip(parts, pair))])
            code.emit(f"{total} = {language.fma(total, shrink, f'{parts[0]} + {parts[1]}')};")
            self.for_columns(self.columns, [f"mixed[column][{2 * row + i}] *= {shrink};" for i in range(2)])

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
            if self.only_together:
                self._mix_together(left)
                return
            if self.together:
                with code.block("if (has_warpgroups)"):
                    self._mix_together(left)
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

    def _mix_together(self, left: str) -> None:
        """The same by products of four warps."""
        code, stride = self.code, self.chunks[1] * OF_A_CHUNK
        code.emit("hold(mixed); hold(powers); begin_products();")
        code.emit("#pragma unroll")
        with code.block(f"for (int step = 0; step < {KEYS // 16}; step++)"):
            right = f"matrix_at(values + step * {2 * stride}, {16 * stride}, {16 * OF_A_CHUNK})"
            code.emit(f"{self.mixes}(mixed, {left}, {right});")
        code.emit("commit_products(); await_products<0>(); hold(mixed);")

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


def _is_of_keys(mask: Linear) -> bool:
    """Whether a mask is the same for all queries."""
    return mask.coefficient(PLACE) == 0 and not mask.others
