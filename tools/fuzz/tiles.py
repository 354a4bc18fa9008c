"""Tiles of every kind on small products, which have none by themselves, as they gain nothing there. A product has the
layout that hangs on its extents, or none, the same on every machine."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rlx.codegen.simt import fma_layouts, fma_tile, piped_contraction, tile_contraction, tile_layouts
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.codegen.simt.piped_contraction import PipedLayout
from rlx.codegen.simt.team_layouts import HALVES, is_of_bytes, is_of_float8
from rlx.codegen.simt.tile_layouts import TileLayout
from rlx.kernel.ir.contraction import Contraction

VARIABLE = "RLX_FUZZ_TILES"
"""Set where all processes of a campaign force tiles."""
ALONE = 0.15
"""Of products have none."""


def force(
    fma: Sequence[TileLayout] = (), parts: Sequence[TileLayout] = (), halves: Sequence[TileLayout] = (),
    of_bytes: Sequence[TileLayout] = (), piped: Sequence[PipedLayout] = (),
) -> None:  # fmt: skip
    """Has this process make tiles of all products that can be: of these layouts, or of all that a device may have."""

    def fma_layout_of(work: Contraction, rows: int, clusters: bool) -> TileLayout | None:
        device = (*fma_layouts.ALONE, *fma_layouts.SPLIT) if clusters else fma_layouts.ALONE
        return _one_of(fma or device, work)

    def tile_of(work: Contraction, rows: int, warpgroups: bool = False) -> TileLayout | None:
        given = of_bytes if is_of_bytes(work) else parts if work.float_parts else halves
        return _one_of(given or _of_a_device(work, warpgroups), work)

    def layout_of(work: Contraction, target: Target, language: Language) -> PipedLayout | None:
        here = target.warpgroups or bool(piped)
        return _piped(piped or piped_contraction.LAYOUTS, work, language) if here else None

    fma_tile.fma_layout_of = fma_layout_of
    tile_contraction.tile_of = tile_of
    piped_contraction.layout_of = layout_of


@contextmanager
def unforced() -> Iterator[None]:
    """Layouts are what they were, behind this, whatever is done within."""
    before = fma_tile.fma_layout_of, tile_contraction.tile_of, piped_contraction.layout_of
    try:
        yield
    finally:
        fma_tile.fma_layout_of, tile_contraction.tile_of, piped_contraction.layout_of = before


@contextmanager
def forced(layout: TileLayout | None = None) -> Iterator[None]:
    """All products that can be are tiles of this layout, or of any that a device may have, within this."""
    with unforced():
        force()
        if layout is not None:
            fma_tile.fma_layout_of = lambda work, rows, clusters: layout
            tile_contraction.tile_of = lambda work, rows, warpgroups=False: layout
            piped_contraction.layout_of = lambda work, target, language: _only(layout, work, language)
        yield


def _only(layout: TileLayout, work: Contraction, language: Language) -> PipedLayout | None:
    if not (isinstance(layout, PipedLayout) and piped_contraction.takes(work, language)):
        return None
    return replace(layout, paired=work.paired)


def _of_a_device(work: Contraction, warpgroups: bool) -> Sequence[TileLayout]:
    """All layouts that the code generator may choose of for such a product."""
    of = tile_layouts
    if is_of_float8(work):
        return (*of.FLOAT8, *of.SPLIT_FLOAT8) if warpgroups else of.FLOAT8_ALONE
    if is_of_bytes(work):
        return (*of.BYTES, *of.SPLIT_BYTES) if warpgroups else of.BYTES_ALONE
    if work.float_parts:
        return (*of.PARTS, *of.SPLIT_PARTS) if warpgroups else of.PARTS
    return (*of.LAYOUTS, *of.SPLIT) if warpgroups else of.ALONE


def _one_of(layouts: Sequence[TileLayout], work: Contraction) -> TileLayout | None:
    """A layout, or none for some products: the same for the same extents."""
    rows = work.m if isinstance(work.m, int) else "some"  # of which passes make other dims
    chosen = random.Random(str((*work.batch, rows, work.n, *work.taps, work.k)))
    return None if chosen.random() < ALONE else replace(chosen.choice(layouts), paired=work.paired)


def _piped(layouts: Sequence[PipedLayout], work: Contraction, language: Language) -> PipedLayout | None:
    """The same of those whose operands the copy engine brings, for half of the products that can have one."""
    chosen = random.Random(f"piped {work.batch} {work.n} {work.k}")
    if chosen.random() < 0.5 or not piped_contraction.takes(work, language):
        return None
    layout = chosen.choice(layouts)
    waits = layout.columns <= piped_contraction.MOST_WAITING and work.dtype in HALVES and chosen.random() < 0.5
    return replace(layout, paired=work.paired, waits=waits)


def force_if_asked() -> None:
    if os.environ.get(VARIABLE):
        force()
