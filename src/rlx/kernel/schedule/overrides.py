"""Schedules set by hand, for experiments: `RLX_SCHEDULE="contraction:register.m=4,cache.m=64"`.

Each part names a kind of work and the tiles to change. What a kind has not is an error that lists what it has.
"""

from __future__ import annotations

from functools import lru_cache

from rlx import flags
from rlx.errors import RlxError
from rlx.kernel.schedule.schedule import Schedule

MOST = 1 << 16
"""The largest tile that may be asked for."""


def overridden(kind: str, schedule: Schedule) -> Schedule:
    """The schedule of a kernel of this kind, changed as `RLX_SCHEDULE` says. Raises RlxError."""
    for level, axis, size in _parsed(flags.schedule()).get(kind, ()):
        try:
            schedule = schedule.with_tile(level, axis, size)
        except KeyError:
            has = ", ".join(f"{t.level}.{t.axis}" for t in schedule.tiles) or "no tiles"
            raise RlxError(f"[RLX_SCHEDULE] expected one of {has}, got {level}.{axis}, for {kind}") from None
    return schedule


@lru_cache(maxsize=8)
def _parsed(text: str) -> dict[str, tuple[tuple[str, str, int], ...]]:
    found: dict[str, tuple[tuple[str, str, int], ...]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        kind, colon, rest = part.partition(":")
        if not colon:
            raise RlxError(f"[RLX_SCHEDULE] expected `kind:level.axis=size`, got {part!r}")
        found[kind.strip()] = tuple(_tile(item.strip()) for item in rest.split(",") if item.strip())
    return found


def _tile(text: str) -> tuple[str, str, int]:
    place, equals, size = text.partition("=")
    level, dot, axis = place.strip().partition(".")
    if not (equals and dot and size.strip().isdigit() and 0 < int(size) <= MOST):
        raise RlxError(f"[RLX_SCHEDULE] expected `level.axis=size` with a size of 1 to {MOST}, got {text!r}")
    return level, axis, int(size)
