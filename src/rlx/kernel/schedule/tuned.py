"""Schedules that a search has found (`rlx tune`), by what a kernel computes and for what processor.

A *signature* tells kernels apart as far as their speed does: kind, sizes, dtypes, bodies. It is the same before and
after passes that pack operands, and in every net. A table has the tiles of signatures, such as `register.m`. Found ones
are one entry of the cache on disk. Whatever tiles a kernel gets, its results are right: generators refuse the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rlx import disk, flags
from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.origins import at_origins
from rlx.kernel.ir.work import Work
from rlx.kernel.schedule.schedule import Schedule
from rlx.records import dataclass

Tiles = Mapping[str, int]
Table = Mapping[str, Tiles]
USE_WINOGRAD = "use.winograd"
"""In the place of a tile: whether a convolution that can be one of Winograd's is."""


@dataclass(frozen=True)
class Chosen:
    """The schedule that a kernel got."""

    kind: str
    signature: str
    schedule: Schedule

    def tiles(self) -> dict[str, int]:
        """Its tiles of known sizes, as tables have them."""
        return {f"{t.level}.{t.axis}": t.size for t in self.schedule.tiles if isinstance(t.size, int)}


@dataclass(frozen=True)
class Found:
    """What a search found for a signature: tiles, the kernel where it was found, and microseconds of a run there."""

    tiles: dict[str, int]
    kernel: str
    before_us: float
    after_us: float


_table: ContextVar[Table] = ContextVar("rlx_tuned_table", default={})  # noqa: B039  # never written
_tried: ContextVar[Table | None] = ContextVar("rlx_tried_table", default=None)
_heard: ContextVar[list[Chosen] | None] = ContextVar("rlx_chosen_schedules", default=None)


def signature(kind: str, work: Work) -> str:
    """What tells this kernel from others of its kind."""
    if isinstance(work, Contraction):
        rows = dims.product((*work.batch, work.m))
        sizes = f"{rows}x{work.n}x{work.k}" + "".join(f" of {extent}" for extent in work.taps)
        behind = sum(1 for _ in ex.walk(work.bodies()))
        return f"{kind} {work.a_dtype}*{work.b_dtype}->{work.dtype} {sizes} and {behind}"
    sizes = "x".join(map(str, work.extents()))
    return f"{kind} {sizes} {hashlib.blake2b(_told(at_origins(work)[0]).encode(), digest_size=8).hexdigest()}"


def with_changes(table: Table, changes: Mapping[str, Tiles]) -> dict[str, Tiles]:
    """A table with tiles of some signatures changed. Whether a product is a convolution by Winograd stands under the
    signature that it has as one."""
    merged: dict[str, Tiles] = dict(table)
    for name, change in changes.items():
        for place, size in change.items():
            entry = _as_winograd(name) if place == USE_WINOGRAD else name
            merged[entry] = {**merged.get(entry, {}), place: size}
    return merged


def _as_winograd(name: str) -> str:
    return f"winograd {name.partition(' ')[2]}"


def _told(work: Work) -> str:
    """Bodies and places of a kernel as text: equal for equal work."""
    numbers: dict[int, int] = {}
    parts = [type(work).__name__]
    for node in ex.walk(work.bodies()):
        numbers[id(node)] = len(numbers)
        parts.append(f"{node.kind} {node.dtype} {node.attr} {[numbers[id(argument)] for argument in node.args]}")
    parts += [str(place) for place in (*work.writes(), *work.reads())]
    return "\n".join(parts)


def applied(kind: str, schedule: Schedule, work: Work) -> Schedule:
    """The schedule with the tiles that the table in use has for this work."""
    table = _table.get()
    for place, size in table.get(signature(kind, work), {}).items() if table else ():
        level, _, axis = place.partition(".")
        if any((tile.level, tile.axis) == (level, axis) for tile in schedule.tiles):
            schedule = schedule.with_tile(level, axis, size)
    return schedule


def choice(kind: str, name: str, work: Work, usual: int) -> int:
    """A number that no schedule has: what the table in use says of it, or the usual one."""
    table = _table.get()
    return table.get(signature(kind, work), {}).get(name, usual) if table else usual


def told(kind: str, schedule: Schedule, work: Work) -> None:
    """Says which schedule a kernel gets, to who listens."""
    heard = _heard.get()
    if heard is not None:
        heard.append(Chosen(kind, signature(kind, work), schedule))


@contextmanager
def using(table: Table) -> Iterator[None]:
    """Has kernels scheduled by a table."""
    token = _table.set(table)
    try:
        yield
    finally:
        _table.reset(token)


@contextmanager
def listening() -> Iterator[list[Chosen]]:
    """The schedules that kernels get meanwhile, in order."""
    heard: list[Chosen] = []
    token = _heard.set(heard)
    try:
        yield heard
    finally:
        _heard.reset(token)


@contextmanager
def trying(table: Table) -> Iterator[None]:
    """Has programs compiled by a table in the place of what is kept; they are not kept either, and tell schedules."""
    token = _tried.set(table)
    try:
        yield
    finally:
        _tried.reset(token)


def tried() -> Table | None:
    """The table of `trying`, None outside of it."""
    return _tried.get()


def in_use() -> Table:
    """The table of `using`."""
    return _table.get()


def state() -> str:
    """Changes with what kernels are scheduled by: what is kept for any processor, or is tried."""
    table = _tried.get()
    return disk.digest_of(disk.TUNED) if table is None else json.dumps({s: dict(t) for s, t in table.items()})


def kept(target: str) -> dict[str, Found]:
    """What was found for a processor, by signature."""
    try:
        return {name: Found(**entry) for name, entry in _entries().get(target, {}).items()}
    except (TypeError, AttributeError):  # of another version of rlx
        return {}


def keep(target: str, found: Mapping[str, Found]) -> None:
    """Adds what was found for a processor to what is kept, beside other processes that do the same."""
    if not flags.cache():
        return
    try:
        with disk.alone(disk.TUNED):
            entries = _entries()
            entries[target] = {**entries.get(target, {}), **{name: vars(each) for name, each in found.items()}}
            disk.write(disk.TUNED, json.dumps(entries, sort_keys=True).encode())
    except OSError as error:
        disk.tell_unwritable(str(error))


def forget() -> int:
    """Drops all that was found; how many schedules that were."""
    count = sum(map(len, _entries().values()))
    disk.remove(disk.TUNED)
    return count


def _entries() -> dict[str, dict[str, dict[str, Any]]]:
    data = disk.read(disk.TUNED)
    if data is None:
        return {}
    try:
        read = json.loads(data)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}
