"""Tiles of products with many rows: how workgroups can lay them out, and which of that should be fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from rlx.codegen.simt.body import legal
from rlx.codegen.simt.team_layouts import CHUNK, PAD, PANEL, WARP, Layout, is_of_bytes, is_of_float8, with_rows
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import INSTRUCTIONS
from rlx.kernel.ir.contraction import Contraction

PIECE_BYTES = 16
LATER_NUMBERS = 2
"""Of a launch: where weights of a later kernel are, and their sizes. Kernels of many rows leave the memory time for
them; those of few are as fast as that is."""
LEAST_ROWS, LEAST_COLUMNS = 192, 32
"""Of matrices that are worth a tile."""
FEWER_ROWS, MANY_WEIGHTS = 96, 1 << 20
"""Rows that are worth one too, where there are so many weights: as measured on an H200, with 128 rows."""
FEWEST_ROWS = 33
"""The same where workgroups can share sums, so that few tiles keep all multiprocessors busy."""
FEWER_WEIGHTS = 1 << 17
"""From which on FEWER_ROWS are worth one where warps make products together."""
LEAST_SPACE = 256 * 128
"""Products along m and n, of all matrices, from which on bringing operands to workgroup memory gains anything."""
MOST_SHARED_BYTES = 99 << 10
"""Of a workgroup: as much as every GPU with `cp.async` gives to one; those with `wgmma` give more."""
MULTIPROCESSORS = 132
SHARED_BYTES = 227 << 10
REGISTERS = 65536
"""Of an H200, and of a multiprocessor."""
PRODUCTS_A_CLOCK = 1270
"""Of a multiprocessor by `mma.sync`, which reaches some 62 % of what the matrix units can."""
PRODUCTS_TOGETHER = 1970
"""The same by `wgmma`."""
ADDED_A_CLOCK = 128
"""Sums of f32, of a multiprocessor."""
PARTS_A_CLOCK, SPLIT_A_CLOCK = 350, 16
"""Products of f32 as sums of shorter floats, and operands that are made such sums."""
HELD_ROWS = 1.08
"""What that is more for warps with more rows than columns and two chunks a stage, which have registers for neither."""
ALONE_APART = 3.5
"""Clocks in which a warp that has nobody beside it makes such sums of the rows and columns of 16 steps along k, for
each: matrix units wait for it as it does for them."""
SHARED_A_CLOCK, COMMON_A_CLOCK = 123, 60
"""Bytes that a multiprocessor gets from workgroup memory, and from the cache that all share: no more where neighbours
bring them together."""
FINISHED_A_CLOCK, INSTRUCTIONS_A_CLOCK = 3.6, 670
"""Results that a multiprocessor puts through workgroup memory, and instructions of epilogues."""
MOST_SPLIT = 128 * 64
"""Results of a tile whose sum several workgroups share,"""
MOST_BLOCKS_SPLIT = 264
"""how many of them there are, at most, as more only wait for the first ones,"""
MOST_TILES_SPLIT = 48
"""tiles that are split, at most: of the 64 that products of a prompt of 512 tokens have, joins cost more than they hide
on an H200,"""
JOIN_CLOCKS, JOIN_EACH_CLOCKS = 4840, 230
"""and what it takes them to wait for one another, and for what they read of each."""
JOIN_CLOCKS_OF_PARTS, JOIN_EACH_CLOCKS_OF_PARTS = 1050, 30
"""The same of products of f32 as sums of shorter floats, as fitted to those of sentences of 128 tokens."""
STEP_CLOCKS, FILL_CLOCKS, FINISH_CLOCKS = 112, 970, 1420
"""What workgroups that are there at once wait in a step, until their first operands are there, and for what their
epilogue reads."""
FEW_STEPS, MOST_STAGES, WIDE = 16, 6, 64
"""Steps of sums that may have more stages or fewer columns than these: operands of longer ones come no faster so."""
ALONE_CLOCKS = 1500
"""What it takes a kernel more whose workgroups leave no room for those of the next one, neither beside them nor on
other multiprocessors."""
STEP_AHEAD = 128
"""Elements along k that are on their way with that wait; with more it is less."""


@dataclass(frozen=True)
class TileLayout(Layout):
    """How a workgroup computes its tile from operands in workgroup memory.

    depth    elements along k of both sides that are brought there at once: one chunk, or two
    stages   how many times as many have room there
    chunk    elements along k that are 64 bytes
    together   whether four warps make products together where a GPU can: then a warp has 16 of each 64 rows
    splits     workgroups that share the sum along k: neighbours, which read one another's memory
    twice      whether warps have sums of a stage beside those of all
    paired     whether the second half of the columns are those of second sums
    """

    depth: int = 2 * CHUNK
    stages: int = 3
    together: bool = False
    chunk: int = CHUNK
    splits: int = 1
    twice: bool = False
    paired: bool = False

    @property
    def group(self) -> int:
        """Warps whose rows are one piece of the tile."""
        return 4 if self.together else 1

    @property
    def distance(self) -> int:
        """How many stages before they are used operands are asked for. Products that are made together use two stages
        at once."""
        return self.stages - 2 if self.together else self.stages - 1

    @property
    def chunks(self) -> int:
        return self.depth // self.chunk

    @property
    def slice(self) -> int:
        """Chunks of a stage that one warp has: each of the warps along k has its own."""
        return self.chunks // self.warps[2]

    @property
    def side_pieces(self) -> tuple[int, int]:
        """Pieces of 16 bytes that a stage has of the left side, and of the right one."""
        rows, columns = self.tile
        return rows * self.chunks * 4, columns * self.chunks * 4

    @property
    def results(self) -> tuple[int, int]:
        rows, columns = self.tile
        return rows, columns // 2 if self.paired else columns

    @property
    def panels_at_once(self) -> int:
        """Panels of the right side that all lanes copy a stage of at once."""
        return self.lanes // (WARP * self.chunks)

    @property
    def ring_bytes(self) -> int:
        return PIECE_BYTES * sum(self.side_pieces) * self.stages

    @property
    def parts(self) -> int:
        """In how many parts the sums go through workgroup memory: as few as have room where operands had it."""
        parts = 1
        while self._sums_bytes(parts) > self.ring_bytes and self.rows % (32 * parts) == 0:
            parts *= 2
        return parts

    @property
    def share(self) -> int:
        """Rows of a part of the sums that one workgroup finishes."""
        return self.tile[0] // self.parts // self.splits

    def _sums_bytes(self, parts: int) -> int:
        rows, columns = self.tile
        return 4 * rows // parts * (columns + PAD)

    @property
    def shared_bytes(self) -> int:
        return max(self.ring_bytes, self._sums_bytes(self.parts))

    @property
    def bands(self) -> int:
        """In how many bands of columns results are finished: as few as lanes can share evenly."""
        columns = self.results[1]
        possible = (count for count in (1, 3) if columns % (8 * count) == 0)
        return next((count for count in possible if self.lanes % (columns // count) == 0), 0)

    @property
    def is_possible(self) -> bool:
        """Whether all lanes have equally much to bring and to finish, and every GPU has room for it."""
        rows, columns = self.results
        results = rows // self.parts * columns
        share = results // self.splits
        return (
            self.shared_bytes <= (SHARED_BYTES if self.together else MOST_SHARED_BYTES)
            and self.lanes % (WARP * self.chunks) == 0
            and all(pieces % self.lanes == 0 for pieces in self.side_pieces)
            and self.bands > 0
            and self.warps[0] % self.group == 0
            and self.chunks % self.warps[2] == 0
            and results % (8 * self.lanes) == 0
            and rows // self.parts % self.splits == 0
            and (share % (8 * self.lanes) == 0 or share < 8 * self.lanes)
            and columns % PANEL == 0
        )


WARPS = (
    (64, 64, (2, 2, 1)), (64, 64, (4, 2, 1)), (64, 64, (2, 4, 1)), (64, 64, (2, 2, 2)), (64, 32, (2, 4, 1)),
    (64, 32, (2, 2, 1)), (64, 32, (2, 2, 2)), (32, 64, (2, 2, 1)), (32, 64, (4, 2, 1)), (32, 64, (2, 2, 2)),
    (32, 32, (2, 2, 1)), (32, 32, (4, 2, 1)), (32, 32, (2, 2, 2)),
)  # fmt: skip
"""Rows and columns of a warp, and warps."""
GROUPS = (
    (32, 128, (4, 2, 1)), (32, 128, (8, 1, 1)), (32, 128, (4, 1, 1)), (32, 128, (4, 1, 2)), (16, 128, (8, 1, 1)),
    (16, 128, (4, 1, 1)), (32, 64, (4, 1, 1)), (32, 64, (4, 1, 2)), (16, 64, (8, 1, 1)), (16, 64, (4, 2, 1)),
    (16, 64, (4, 1, 1)), (16, 64, (4, 1, 2)), (16, 32, (4, 1, 1)), (16, 192, (8, 1, 1)),
    (16, 192, (12, 1, 1)), (16, 192, (4, 1, 1)), (16, 256, (8, 1, 1)),
)  # fmt: skip
"""The same of warps that make products together."""
LAYOUTS = tuple(
    layout
    for together, splits in ((False, WARPS), (True, GROUPS))
    for rows, columns, warps in splits
    for depth in (64, 32)
    for stages in ((12, 8, 6, 5, 4) if together else (3, 4))
    if (layout := TileLayout(rows, columns, warps, depth, stages, together)).is_possible
)
PARTS = tuple(
    layout
    for rows, columns, warps in WARPS
    if rows * columns < 64 * 64
    for depth in (32, 16)
    for stages in (3, 4)
    if (layout := TileLayout(rows, columns, warps, depth, stages, chunk=CHUNK // 2)).is_possible
)
"""Those for products of f32 as sums of shorter floats, which take more registers."""
BYTES = tuple(
    layout for each in LAYOUTS if (layout := replace(each, depth=2 * each.depth, chunk=2 * CHUNK)).is_possible
)
"""Those for products of bytes, of which 64 bytes along k have twice as many."""
MOST_CUT = 2 * 2 * CHUNK
"""Elements along k that matrix units may add up by themselves of floats of 8 bits, whose sums they cut off, before f32
adds that to the sum. Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2."""
OTHER_REGISTERS = 48
"""Of a lane, beside two sums of each result."""


def _has_room_for_float8(layout: TileLayout) -> bool:
    """Whether lanes have registers for what matrix units add up of floats of 8 bits, beside the sums."""
    if not layout.together:  # one instruction's after the other
        return layout.rows * layout.columns < 64 * 64
    registers = 2 * layout.rows * layout.columns // WARP + OTHER_REGISTERS
    return layout.depth == MOST_CUT and registers <= min(255, REGISTERS // layout.lanes)


FLOAT8 = tuple(replace(layout, twice=layout.together) for layout in BYTES if _has_room_for_float8(layout))
"""Those for products of floats of 8 bits: by products together, a stage is what matrix units add up."""
FLOAT8_ALONE = tuple(layout for layout in FLOAT8 if not layout.together)
ALONE = tuple(layout for layout in LAYOUTS if not layout.together)
BYTES_ALONE = tuple(layout for layout in BYTES if not layout.together)
"""Those for GPUs whose warps make products alone."""


def with_splits(layouts: tuple[TileLayout, ...]) -> tuple[TileLayout, ...]:
    """Those of few tiles and long sums, for GPUs with clusters of workgroups."""
    return tuple(
        split
        for layout in layouts
        for splits in (2, 4, 8)
        if math.prod(layout.tile) <= MOST_SPLIT and (split := replace(layout, splits=splits)).is_possible
    )


SPLIT, SPLIT_PARTS, SPLIT_BYTES, SPLIT_FLOAT8 = map(with_splits, (LAYOUTS, PARTS, BYTES, FLOAT8))


@lru_cache
def _in_pairs(layouts: tuple[TileLayout, ...]) -> tuple[TileLayout, ...]:
    """Those whose columns can be the same of both halves of a right side."""
    return tuple(paired for layout in layouts if (paired := replace(layout, paired=True)).is_possible)


def tile_of(work: Contraction, rows: int, warpgroups: bool = False) -> TileLayout | None:
    """The layout that should take the least time, or None where operands had better come straight from memory. Dims of
    rows that only a run tells are taken to make so many `rows`; `warpgroups` tells that warps can make products
    together."""
    known = with_rows(work, rows)
    m, n, batch = _static(known.m), _static(known.n), math.prod(_static(d) for d in known.batch)
    least, space = LEAST_ROWS, LEAST_SPACE
    weights = n * _static(work.k) * math.prod(_static(d) for d in work.taps)
    if weights >= MANY_WEIGHTS:
        least, space = (FEWEST_ROWS, 0) if warpgroups else (FEWER_ROWS, space)
    elif weights >= FEWER_WEIGHTS and warpgroups:
        least = FEWER_ROWS
    if m < least or n < LEAST_COLUMNS or batch * m * n < space:
        return None
    instructions = instructions_of(work) / (1 + work.paired)

    def key(layout: TileLayout) -> tuple[float, bool, int, int]:
        """Of layouts that the same caches hold up, first those that have more to hide waits with, then those that leave
        the next kernel room."""
        side_by_side = -(-_blocks(known, layout) // MULTIPROCESSORS)
        shown = -min(resident(layout), side_by_side), layout.shared_bytes
        return clocks(known, layout, instructions), not layout.together, *shown

    if is_of_float8(work):
        layouts = (*FLOAT8, *SPLIT_FLOAT8) if warpgroups else FLOAT8_ALONE
    elif is_of_bytes(work):
        layouts = (*BYTES, *SPLIT_BYTES) if warpgroups else BYTES_ALONE
    elif work.float_parts:
        layouts = (*PARTS, *SPLIT_PARTS) if warpgroups else PARTS
    else:
        layouts = (*LAYOUTS, *SPLIT) if warpgroups else ALONE
    return min(_in_pairs(layouts) if work.paired else layouts, key=key)


def is_smaller_left(work: Contraction, rows: int) -> bool:
    """Whether the left side of a matrix has fewer elements than the right one."""
    known = with_rows(work, rows)
    return _static(known.m) < _static(known.n)


def clocks(work: Contraction, layout: TileLayout, instructions: float = 0) -> float:
    """What a contraction of known dims takes, roughly: for each workgroup of a multiprocessor the most of what matrix
    units, workgroup memory and the common cache take, and for all that are there at once what they wait for.
    `instructions` are those that an epilogue has for a sum. The numbers are those with which this finds the fastest
    of the layouts of twenty products that were measured on an H200."""
    rows, columns = layout.tile
    blocks = _blocks(work, layout)
    steps = -(-math.prod(_static(d) for d in work.taps) * -(-_static(work.k) // layout.depth) // layout.splits)
    if layout.splits > 1 and (steps < 2 or blocks > MOST_BLOCKS_SPLIT or blocks > layout.splits * MOST_TILES_SPLIT):
        return math.inf
    if steps > FEW_STEPS and (layout.stages > MOST_STAGES or columns < WIDE):
        return math.inf
    k = steps * layout.depth
    itemsize = work.a_dtype.itemsize
    brought = (rows + columns) * k * itemsize
    slabs = rows // 64 if layout.together else layout.warps[0]
    taken = ((64 if layout.together else layout.rows) + layout.columns) * k * itemsize * slabs * layout.warps[1]
    a_clock = PARTS_A_CLOCK if work.float_parts else PRODUCTS_TOGETHER if layout.together else PRODUCTS_A_CLOCK
    products = rows * columns * k / (2 * a_clock if is_of_bytes(work) else a_clock)
    if is_of_float8(work):  # what f32 adds to the sums
        products += rows * columns * k / (MOST_CUT if layout.together else 2 * CHUNK) / ADDED_A_CLOCK
    if work.float_parts:  # what a warp takes apart
        products += (layout.rows + layout.columns) * k * layout.warps[0] * layout.warps[1] / SPLIT_A_CLOCK
        if layout.rows > layout.columns and layout.chunks > 1:
            products *= HELD_ROWS
    made = max(products, (brought + taken) / SHARED_A_CLOCK, brought / COMMON_A_CLOCK)
    put = (1 / layout.splits + layout.warps[2]) / 2 / FINISHED_A_CLOCK
    finished = rows * columns * (put + instructions / layout.splits / INSTRUCTIONS_A_CLOCK)
    waits = FILL_CLOCKS + FINISH_CLOCKS + _waits(work, layout, steps)
    beside = resident(layout)
    waits += ALONE_CLOCKS if beside == 1 and blocks > MULTIPROCESSORS else 0
    waves = -(-blocks // (MULTIPROCESSORS * beside))
    return -(-blocks // MULTIPROCESSORS) * (made + finished) + waves * waits


def _blocks(work: Contraction, layout: TileLayout) -> int:
    rows, columns = layout.tile
    tiles = math.prod(_static(d) for d in work.batch) * -(-_static(work.m) // rows) * -(-_static(work.n) // columns)
    return tiles * layout.splits


def _waits(work: Contraction, layout: TileLayout, steps: int) -> float:
    """Of workgroups that are there at once: for operands, or what is made of them, and for one another."""
    ahead = min(layout.distance, steps) * layout.depth
    ahead //= 2 if is_of_bytes(work) else 1  # by what it brings, as that of 16 bits
    waits = steps * STEP_CLOCKS * math.pow(STEP_AHEAD / ahead, 1.28)
    joined = JOIN_CLOCKS + JOIN_EACH_CLOCKS * layout.splits
    if work.float_parts:
        of_a_warp = steps * layout.depth / layout.warps[2] / 16
        waits = waits / 5 + of_a_warp * (layout.rows + layout.columns) * ALONE_APART
        joined = JOIN_CLOCKS_OF_PARTS + JOIN_EACH_CLOCKS_OF_PARTS * layout.splits
    return waits + (joined if layout.splits > 1 else 0)


def resident(layout: TileLayout) -> int:
    """How many workgroups a multiprocessor has at once."""
    sums = (1 + layout.twice) * layout.rows * layout.columns // WARP
    registers = sums + (28 if layout.together else 72 + (layout.rows + layout.columns) // 2)
    of_registers = REGISTERS // (min(registers, 255) * layout.lanes)
    return max(min(SHARED_BYTES // (layout.shared_bytes + 1024), of_registers), 1)


def instructions_of(work: Contraction) -> int:
    """What an epilogue does for a result."""
    bodies = [legal(stage.body) for stage in work.epilogue]
    return sum(node.kind in INSTRUCTIONS for node in ex.walk(bodies))


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)  # made so by `with_rows`
    return dim
