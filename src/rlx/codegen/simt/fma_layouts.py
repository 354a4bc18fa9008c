"""Tiles of products of f32 whose lanes multiply: how workgroups can lay them out, and which of that should be
fastest."""

from __future__ import annotations

import math

from rlx.codegen.simt.team_layouts import CHUNK, REGISTERS, WARP, with_rows
from rlx.codegen.simt.tile_layouts import (
    COMMON_A_CLOCK,
    MULTIPROCESSORS,
    SHARED_BYTES,
    TileLayout,
    with_splits,
)
from rlx.ir.dim import Dim
from rlx.kernel.ir.contraction import Contraction

QUAD = 4
"""Neighbours of 16 bytes."""
ROWS_DOWN, QUADS_DOWN = 8, 4
"""Lanes of a warp along rows and along columns."""
FEWEST_ROWS, FEWEST_COLUMNS = 33, 8
"""Of matrices that are worth a tile."""
FEWEST_BLOCKS = MULTIPROCESSORS // 2
"""Tiles that are worth it where workgroups cannot share sums."""
SCHEDULERS = 4
"""Of a multiprocessor, each of which has 32 lanes multiply in a clock."""
OF_STAGE, OF_COPY = 50, 4
"""Instructions of a lane beside products and what they read: of a stage, and of each piece that it brings;"""
OF_STAGE_OF_WINDOW, OF_COPY_OF_WINDOW = 75, 8
"""the same where sums run over windows: as counted in machine code for compute capability 9.0."""
BUSY = (0.6, 0.85, 0.95)
"""Of the clocks in which a scheduler gives out an instruction, with one warp, two, and three; with more it is all."""
OTHER_REGISTERS = {(64, 32): 104, (32, 32): 64, (64, 16): 96, (32, 16): 64}
"""Of a lane beside its sums, by rows and columns of a warp: as counted there, rounded up."""
NOT_HIDDEN = 0.1
"""Of what takes less time beside what takes the most: instructions, workgroup memory, the common cache."""
FINISHED_A_CLOCK = 8
"""Results that a multiprocessor puts through workgroup memory and writes."""
FILL_CLOCKS, FINISH_CLOCKS, JOIN_CLOCKS = 1500, 1000, 3000
"""What it takes until the first operands are there, for what an epilogue reads, and for sums of a cluster to meet:
guesses."""
TURNS = 2
"""Of workgroup memory that a warp's read of 16 bytes a lane takes."""


def _layouts() -> tuple[TileLayout, ...]:
    found = []
    for rows, columns in ((64, 32), (32, 32), (64, 16), (32, 16)):
        for m in (1, 2, 4, 8):
            for n in (1, 2, 4):
                for k in (1, 2):
                    if m * n * k in (4, 8):
                        found += [TileLayout(rows, columns, (m, n, k), 32, 3, chunk=CHUNK // 2)]
                        found += [TileLayout(rows, columns, (m, n, k), 16, 4, chunk=CHUNK // 2)] if k == 1 else []
    return tuple(layout for layout in found if layout.is_possible)


ALONE = _layouts()
SPLIT = with_splits(ALONE)


def fma_layout_of(work: Contraction, rows: int, clusters: bool) -> TileLayout | None:
    """The layout that should take the least time, or None where there are too few rows or tiles. Dims of rows that
    only a run tells are taken to make so many `rows`; `clusters` tells that workgroups can share sums."""
    known = with_rows(work, rows)
    if _static(known.m) < FEWEST_ROWS or _static(known.n) < FEWEST_COLUMNS:
        return None
    if clusters:
        return min((*ALONE, *SPLIT), key=lambda layout: clocks(known, layout))
    chosen = min(ALONE, key=lambda layout: clocks(known, layout))
    return chosen if _blocks(known, chosen) >= FEWEST_BLOCKS else None


def clocks(work: Contraction, layout: TileLayout) -> float:
    """What a contraction of known dims takes, roughly: what its instructions take, as many workgroups at once as there
    is room for, or what the common cache takes."""
    rows, columns = layout.tile
    blocks = _blocks(work, layout)
    steps = -(-math.prod(_static(d) for d in work.taps) * -(-_static(work.k) // layout.depth) // layout.splits)
    at_once = resident(layout)
    if layout.splits > 1 and (steps < 2 or blocks > MULTIPROCESSORS * at_once):
        return math.inf
    k, slices = steps * layout.depth, layout.warps[2]
    warps = layout.lanes // WARP
    given = warps * steps * _instructions(layout, bool(work.taps)) / SCHEDULERS
    made = _together(given, warps * k / slices / QUAD * TURNS * sum(_lane_tile(layout)))
    finished = rows * columns * (1 / layout.splits + slices) / 2 / FINISHED_A_CLOCK
    of_one = -(-blocks // MULTIPROCESSORS)
    rounds, rest = divmod(of_one, at_once)
    busy = rounds * at_once * made / _busy(layout, at_once) + (rest * made / _busy(layout, rest) if rest else 0.0)
    once = FILL_CLOCKS + FINISH_CLOCKS + (JOIN_CLOCKS if layout.splits > 1 else 0)
    total = busy + of_one * finished / min(at_once, of_one) + once * (1 + (of_one - 1) / at_once)
    brought = blocks * (rows + columns) * k * work.a_dtype.itemsize / (COMMON_A_CLOCK * MULTIPROCESSORS)
    return _together(total, brought)


def _together(*clocks: float) -> float:
    """What several things take that go on at once."""
    return max(clocks) + NOT_HIDDEN * (sum(clocks) - max(clocks))


def _lane_tile(layout: TileLayout) -> tuple[int, int]:
    """Rows and columns of a lane."""
    return layout.rows // ROWS_DOWN, layout.columns // QUADS_DOWN


def _instructions(layout: TileLayout, of_window: bool) -> int:
    """Those of a lane in one stage."""
    down, across = _lane_tile(layout)
    quads = layout.depth // layout.warps[2] // QUAD
    copies = sum(layout.side_pieces) // layout.lanes
    of_stage, of_copy = (OF_STAGE_OF_WINDOW, OF_COPY_OF_WINDOW) if of_window else (OF_STAGE, OF_COPY)
    return quads * (QUAD * down * across + down + across) + of_stage + of_copy * copies


def _busy(layout: TileLayout, workgroups: int) -> float:
    """The part of its clocks in which a scheduler has something to give out."""
    warps = workgroups * layout.lanes // WARP
    return (*BUSY, 1.0)[min(max(warps // SCHEDULERS, 1), len(BUSY) + 1) - 1]


def resident(layout: TileLayout) -> int:
    """How many workgroups a multiprocessor has at once."""
    sums = layout.rows * layout.columns // WARP
    registers = (sums + OTHER_REGISTERS[layout.rows, layout.columns]) * layout.lanes
    return max(min(SHARED_BYTES // (layout.shared_bytes + 1024), REGISTERS // registers), 1)


def _blocks(work: Contraction, layout: TileLayout) -> int:
    rows, columns = layout.tile
    tiles = math.prod(_static(d) for d in work.batch) * -(-_static(work.m) // rows) * -(-_static(work.n) // columns)
    return tiles * layout.splits


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)  # made so by `with_rows`
    return dim
