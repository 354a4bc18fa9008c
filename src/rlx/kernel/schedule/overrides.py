"""Schedules set by hand, for experiments: `RLX_SCHEDULE="contraction:register.m=4,cache.m=64"`.

Each part names a kind of work and the tiles to change, `*` all axes of a level. What a kind has not is an error that
lists what it has.
"""

from __future__ import annotations

from functools import lru_cache

from rlx import flags
from rlx.errors import RlxError
from rlx.ir.dim import Dim
from rlx.kernel.ir.work import Work
from rlx.kernel.schedule import tuned
from rlx.kernel.schedule.schedule import Schedule

KINDS = (
    "attention", "bitonic", "columns", "contraction", "fourier", "map", "prefix-scan", "rows", "scatter", "split-kv",
    "top-k", "transpose", "windows", "winograd",
)  # fmt: skip
"""Kernels that are written from a schedule; each target has some of them."""
EVERY = "*"
"""In the place of an axis: all axes that the level has tiles of."""
MOST = 1 << 16
"""The largest tile that may be asked for."""


def overridden(kind: str, schedule: Schedule, work: Work | None = None) -> Schedule:
    """The schedule of a kernel of this kind, changed as a search has found for its `work`, and as `RLX_SCHEDULE` says.
    Raises RlxError."""
    assert kind in KINDS
    if work is not None:
        schedule = tuned.applied(kind, schedule, work)
    for level, axis, size in _parsed(flags.schedule()).get(kind, ()):
        axes = [tile.axis for tile in schedule.tiles if tile.level == level and axis in (tile.axis, EVERY)]
        if not axes:
            has = ", ".join(f"{t.level}.{t.axis}" for t in schedule.tiles) or "no tiles"
            raise RlxError(f"[RLX_SCHEDULE] expected one of {has}, got {level}.{axis}, for {kind}")
        for each in axes:
            schedule = schedule.with_tile(level, each, size)
    if work is not None:
        tuned.told(kind, schedule, work)
    return schedule


def is_by_hand(kind: str) -> bool:
    """Whether tiles of kernels of this kind are set by hand."""
    return kind in _parsed(flags.schedule())


def unfit(kind: str, level: str, axis: str, size: Dim, expected: str) -> RlxError:
    """The error for a tile set by hand that a kernel, or its target, cannot have."""
    return RlxError(f"[RLX_SCHEDULE] expected {level}.{axis} {expected}, got {size}, for {kind}")


@lru_cache(maxsize=8)
def _parsed(text: str) -> dict[str, tuple[tuple[str, str, int], ...]]:
    tiles: dict[str, tuple[tuple[str, str, int], ...]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        kind, colon, rest = part.partition(":")
        if not colon:
            raise RlxError(f"[RLX_SCHEDULE] expected `kind:level.axis=size`, got {part!r}")
        if kind.strip() not in KINDS:
            raise RlxError(f"[RLX_SCHEDULE] expected one of {', '.join(KINDS)}, got {kind.strip()!r}")
        tiles[kind.strip()] = tuple(_tile(item.strip()) for item in rest.split(",") if item.strip())
    return tiles


def _tile(text: str) -> tuple[str, str, int]:
    place, equals, size = text.partition("=")
    level, dot, axis = place.strip().partition(".")
    if not (equals and dot and size.strip().isdigit() and 0 < int(size) <= MOST):
        raise RlxError(f"[RLX_SCHEDULE] expected `level.axis=size` with a size of 1 to {MOST}, got {text!r}")
    return level, axis, int(size)
