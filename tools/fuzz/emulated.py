"""The device `cuda-emulated`: the backend `cuda` on the tests' driver, which runs kernels as C++ on the processor.
Small products are tiles there too, of a layout that hangs on their extents: programs of this size would have none."""

from __future__ import annotations

import os
from functools import cache

from backends.cuda.emulated_driver import EmulatedDriver
from rlx.backends.base import Probe
from rlx.backends.cuda import CudaBackend, device
from rlx.codegen.simt.piped_contraction import PipedLayout
from rlx.codegen.simt.tile_layouts import TileLayout
from rlx.device import registry
from tools.fuzz import tiles

NAME = "cuda-emulated"
"""In place of a device."""
FMA = (
    TileLayout(32, 32, (2, 2, 1), 16, 4, chunk=16), TileLayout(32, 16, (2, 1, 2), 32, 3, chunk=16),
    TileLayout(64, 16, (2, 2, 1), 32, 3, chunk=16), TileLayout(32, 32, (1, 2, 2), 32, 3, chunk=16, splits=2),
)  # fmt: skip
PARTS = (
    TileLayout(32, 32, (2, 2, 1), 16, 3, chunk=16), TileLayout(32, 32, (2, 2, 2), 32, 3, chunk=16),
    TileLayout(32, 32, (2, 2, 2), 32, 3, chunk=16, splits=2),
)  # fmt: skip
HALVES = (
    TileLayout(32, 32, (2, 2, 1), 32, 3), TileLayout(32, 32, (2, 2, 2), 64, 3),
    TileLayout(16, 64, (4, 1, 1), 64, 3, together=True), TileLayout(16, 32, (4, 1, 1), 64, 8, together=True),
    TileLayout(32, 32, (2, 2, 1), 32, 3, splits=2),
)  # fmt: skip
BYTES = (
    TileLayout(32, 32, (2, 2, 1), 64, 3, chunk=64), TileLayout(32, 32, (2, 2, 2), 128, 3, chunk=64),
    TileLayout(16, 64, (4, 1, 1), 128, 3, True, 64), TileLayout(32, 32, (2, 2, 1), 64, 3, chunk=64, splits=2),
)  # fmt: skip
PIPED = (PipedLayout(16, 64, (8, 1, 1), 64, 3, together=True),)


@cache
def install() -> str:
    """Has this process run `cuda` on the processor; the name of the device."""
    device._drivers[os.getpid(), "cuda"] = EmulatedDriver(in_front=True)
    CudaBackend.probe = lambda self: Probe(devices=("Emulated",))  # type: ignore[method-assign]
    tiles.force(FMA, PARTS, HALVES, BYTES, PIPED)
    registry.refresh()
    return "cuda"
