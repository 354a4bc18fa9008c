"""How workgroups lay out products of few rows, and which layout should be fastest."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.kernel.ir.contraction import Contraction

HALVES = (dtypes.f16, dtypes.bf16)
WARP = 32
SHARED_BYTES = 48 << 10
MOST_LANES = 512
REGISTERS = 65536
"""Of a multiprocessor."""
MOST_REGISTERS = 224
"""Of a lane, so that there are some for addresses."""
PARTS_A_CLOCK = 128
"""Products of f32 that a multiprocessor makes as sums of shorter floats, with what it takes to make these."""
MULTIPROCESSORS = 132
"""Of GPUs of the larger kind."""
CACHE_BYTES_A_CLOCK = 40
"""That a multiprocessor gets from the cache that all have."""
MANY_ROWS = 512
"""From here on warps of a tile have rows of their own, and each all of the sum."""
CHUNK_BYTES = 64
"""Of elements along k that four lanes have of a row."""
CHUNK = 32
"""Such elements of 16 bits."""
PANEL = 8
"""Columns of a panel."""
GUESSES = ((8, 1), (32, 16), (192, 128), (1024, 512), (None, 4096))
"""Where only a run tells how many rows there are: numbers up to which they are taken for another number."""
HALF = 8
"""Rows that are one half of those of an instruction: the other half is zeros, which nothing brings."""
MANY_SLICES = (8, 12)
"""Warps along k of few rows."""
MOST_PANELS = 8
"""Panels of columns of a tile of few rows."""
PIECE_BYTES = 16
MOST_ROWS, MOST_ROWS_OF_F32 = 64, 8
"""Rows that products unpack weights of few bits for themselves: for more of them those are unpacked to memory."""
GUESSES_OF_BLOCKS = ((1, 1), (HALF, HALF), (32, 32), (None, MOST_ROWS))
GUESSES_OF_F32 = ((1, 1), (None, MOST_ROWS_OF_F32))
"""As `GUESSES`, of such products."""
SLICES = (1, 2, 4, 8, 12, 16)
"""Warps along k of theirs."""
PANELS_OF_ROWS = ((HALF, 8), (32, 4), (MOST_ROWS, 2))
"""Panels of columns of a tile of at most so many rows,"""
PANELS_OF_MANY = 4
"""and of few rows where there are far more tiles than multiprocessors."""
PAD = 8
"""Floats behind each row of sums, so that rows begin in different banks."""


@dataclass(frozen=True)
class Layout:
    """How a workgroup computes its tile.

    rows, columns    of a warp's tile
    warps            along m, n and k
    """

    rows: int
    columns: int
    warps: tuple[int, int, int]

    @property
    def lanes(self) -> int:
        m, n, k = self.warps
        return WARP * m * n * k

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the workgroup."""
        return self.rows * self.warps[0], self.columns * self.warps[1]

    @property
    def results(self) -> tuple[int, int]:
        """Rows and columns of what the workgroup makes of its sums."""
        return self.tile

    @property
    def shared_bytes(self) -> int:
        rows, columns = self.tile
        return 4 * self.warps[2] * rows * (columns + PAD)


def chunk_of(work: Contraction) -> int:
    """Elements along k that four lanes have of a row: with a panel's columns, what a warp reads at once."""
    if work.blocks is not None:
        return CHUNK_BYTES * 8 // work.blocks.bits
    return CHUNK_BYTES // work.a_dtype.itemsize


def piece_of(work: Contraction) -> int:
    """Elements of 16 bytes."""
    return PIECE_BYTES // work.a_dtype.itemsize


def most_rows_of_blocks(work: Contraction) -> int:
    """Rows up to which a product unpacks weights of few bits itself."""
    return MOST_ROWS if work.a_dtype in HALVES else MOST_ROWS_OF_F32


def guesses_of(work: Contraction) -> tuple[tuple[int | None, int], ...]:
    """Numbers of rows up to which they are taken for another number, where only a run tells them."""
    if work.blocks is None:
        return GUESSES
    return GUESSES_OF_BLOCKS if work.a_dtype in HALVES else GUESSES_OF_F32


def is_of_bytes(work: Contraction) -> bool:
    """Whether it is a product of bytes that matrix units have: exact of integers, or of floats of 8 bits."""
    exact = {work.a_dtype, work.b_dtype} <= {dtypes.u8, dtypes.i8} and work.dtype is dtypes.i32
    return exact or is_of_float8(work)


def is_of_float8(work: Contraction) -> bool:
    """Whether it is one of floats of 8 bits, whose sums matrix units cut off, so that long ones are of f32 outside."""
    return work.a_dtype is work.b_dtype is dtypes.f8e4m3 and work.dtype is dtypes.f32


def rows_of(work: Contraction) -> Dim:
    """Rows of all matrices of the left side."""
    return dims.mul(dims.product(work.batch), work.m)


def layout_of(work: Contraction, rows: int = GUESSES[-1][1]) -> Layout:
    """The layout that should take the least time: what is loaded and multiplied, and how long one warp waits for its
    operands. Dims of rows that only a run tells are taken to make so many `rows`."""
    known = with_rows(work, rows)
    if work.blocks is not None:
        return _of_blocks(known)
    if _static(rows_of(known)) <= HALF and _static(known.k) >= chunk_of(known) * min(MANY_SLICES):
        return _narrow(known)
    return layouts_by_cost(work, rows)[0]


def layouts_by_cost(work: Contraction, rows: int) -> list[Layout]:
    """All layouts of so many rows of a product without blocks, from the one on that should take the least time."""
    known = with_rows(work, rows)
    return sorted(_layouts(known), key=lambda layout: (_cost(known, layout), layout.lanes))


def _narrow(work: Contraction) -> Layout:
    """The layout of few rows, where all time goes into reading the weights: warps have slices of the sum, and a
    workgroup so many columns that each multiprocessor has one, if that keeps all of its weights on their way; else
    small tiles."""
    panels = -(-_static(work.n) // 8)
    tiles = max(1, round(panels / MULTIPROCESSORS))
    if tiles > MOST_PANELS:
        return Layout(16, 16, (1, 1, min(MANY_SLICES)))
    slices = (
        max(MANY_SLICES) if tiles == 1 and _static(work.k) >= chunk_of(work) * max(MANY_SLICES) else min(MANY_SLICES)
    )
    return Layout(16, 8 * tiles, (1, 1, slices))


def _of_blocks(work: Contraction) -> Layout:
    """The layout of weights of few bits: so many columns that each multiprocessor has a tile, and so many warps along k
    that each has as few steps as possible."""
    blocks, most_rows = work.blocks, most_rows_of_blocks(work)
    assert blocks is not None
    rows = min(_static(work.m), most_rows)
    tiles = max(1, round(-(-_static(work.n) // PANEL) / MULTIPROCESSORS))
    most = next(panels for limit, panels in PANELS_OF_ROWS if rows <= limit)
    panels = tiles if tiles <= most else min(most, PANELS_OF_MANY)
    slices = [count for count in SLICES if rows <= HALF or count <= min(MANY_SLICES)]
    fewest = min(slices, key=lambda count: (-(-blocks.chunks // count), count))
    height = -(-rows // 16) * 16 if work.a_dtype in HALVES else rows
    return Layout(height, PANEL * panels, (1, 1, fewest))


def with_rows(work: Contraction, rows: int) -> Contraction:
    """A contraction of known dims that takes as long: both columns of a pair are columns."""
    m = max(work.m, 1) if isinstance(work.m, int) else rows
    known = math.prod(d for d in work.batch if isinstance(d, int))
    batch = (known, 1 if all(isinstance(d, int) for d in work.batch) else max(1, rows // max(known * m, 1)))
    n = max(work.columns, 1) if isinstance(work.columns, int) else rows
    return dataclasses.replace(work, batch=batch, m=m, n=n, paired=False)


def _layouts(work: Contraction) -> list[Layout]:
    """Those that a workgroup can have, for a contraction of known dims."""
    m = _static(work.m)
    tiles = [(16 * i, 8 * j) for i in (1, 2, 4) for j in (1, 2, 3, 4, 6, 8)]
    splits = [(i, j, k) for i in (1, 2, 4, 8) for j in (1, 2, 3, 4) for k in (1, 2, 4, 8, 12)]
    splits = splits if m < MANY_ROWS else [(4, 1, 1), (2, 2, 1)]
    found = []
    for rows, columns in tiles:
        for warps in splits:
            layout = Layout(rows, columns, warps)
            covers = rows * (warps[0] - 1) < m and columns * (warps[1] - 1) < _static(work.n)
            most = _lanes_with_registers(layout) if work.float_parts else MOST_LANES
            if covers and 128 <= layout.lanes <= most and layout.shared_bytes <= SHARED_BYTES:
                found.append(layout)
    return found


def _registers(layout: Layout) -> int:
    """Of a lane, roughly."""
    return 40 + layout.rows * layout.columns // WARP + layout.rows + layout.columns


def _lanes_with_registers(layout: Layout) -> int:
    """How many lanes have registers for both parts of their operands."""
    registers = _registers(layout)
    return min(MOST_LANES, REGISTERS // registers) if registers <= MOST_REGISTERS else 0


def _cost(work: Contraction, layout: Layout) -> float:
    """Clocks, roughly. The numbers are fitted to what layouts took on an H200: a step along k takes a warp 160 clocks
    where it waits for memory, a multiprocessor gets 96 bytes a clock from its own cache, and
    CACHE_BYTES_A_CLOCK from the common one."""
    m, n, k = _static(work.m), _static(work.n), _static(work.k)
    taps = _static(dims.product(work.taps)) if all(isinstance(d, int) for d in work.taps) else 1
    steps = taps * -(-k // (chunk_of(work) * layout.warps[2]))
    k *= taps
    rows, columns = layout.tile
    blocks = _static(dims.product(work.batch)) * -(-m // rows) * -(-n // columns)
    resident = max(1, min(2048 // layout.lanes, REGISTERS // (_registers(layout) * layout.lanes), 16))
    itemsize = work.a_dtype.itemsize
    warps = layout.lanes // WARP
    loaded = (layout.rows + layout.columns) * k * itemsize * layout.warps[0] * layout.warps[1]
    multiplied = rows * columns * k / (PARTS_A_CLOCK if work.float_parts else 1024)
    fetched = (rows + columns) * k * itemsize / CACHE_BYTES_A_CLOCK
    busy = -(-blocks // MULTIPROCESSORS) * max(loaded / 96, multiplied, fetched)
    rounds = -(-blocks // (MULTIPROCESSORS * resident))
    finish = 400 + rows * columns * layout.warps[2] / layout.lanes * 8
    return max(busy, rounds * steps * 160.0) + rounds * finish + warps


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)  # made so by `with_rows`
    return dim
