"""Conditionals and loops: work that owns kernels, over buffers of the same program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Self

from rlx.ir.dim import Dim
from rlx.kernel.ir.work import Work
from rlx.records import dataclass

if TYPE_CHECKING:
    from rlx.kernel.ir.program import Kernel


class Owner(Work):
    """Work that runs other kernels."""

    @property
    def owns_kernels(self) -> bool:
        return True

    def depends_on_run(self) -> bool:
        return True


@dataclass(frozen=True)
class ByThreads(Owner):
    """Two ways to do the same, bit for bit: the kernels `several` if a run has several threads, else `alone`."""

    several: tuple[Kernel, ...]
    alone: tuple[Kernel, ...]

    def children(self) -> tuple[Kernel, ...]:
        return (*self.several, *self.alone)

    def map_children(self, change: Callable[[tuple[Kernel, ...]], Iterable[Kernel]]) -> Self:
        return dataclasses.replace(self, several=tuple(change(self.several)), alone=tuple(change(self.alone)))


@dataclass(frozen=True)
class Branch(Owner):
    """Runs the kernels `yes` if the bool in buffer `predicate` holds, else `no`.

    `yes_checks` and `no_checks` are numbers of `Program.checks` that must hold, else the run has failed.
    """

    predicate: int
    yes: tuple[Kernel, ...]
    no: tuple[Kernel, ...]
    yes_checks: tuple[int, ...] = ()
    no_checks: tuple[int, ...] = ()

    def children(self) -> tuple[Kernel, ...]:
        return (*self.yes, *self.no)

    def map_children(self, change: Callable[[tuple[Kernel, ...]], Iterable[Kernel]]) -> Self:
        return dataclasses.replace(self, yes=tuple(change(self.yes)), no=tuple(change(self.no)))


@dataclass(frozen=True)
class SliceView:
    """Buffer `number` is, in trip t of a loop, element offset + t·step of `base`."""

    number: int
    base: int
    offset: Dim
    step: Dim


@dataclass(frozen=True)
class LoopCarried:
    """A value that a loop carries on, by pointers: nothing is copied.

    The body reads `now`, which is `start` in the first trip, and writes `following`; `last` is what is left. Two
    `ping_pong` buffers take turns as `following`, unless that is a row of a stacked result.
    """

    start: int
    now: int
    following: int
    last: int
    ping_pong: tuple[int, ...]


@dataclass(frozen=True)
class Loop(Owner):
    """Runs `body` for trips 0 … trips - 1 (from the last to the first if `reverse`), while `condition` holds.

    `test` are the kernels that make the bool in buffer `condition`; without one the trips alone decide.
    """

    body: tuple[Kernel, ...]
    trips: Dim | None
    carried: tuple[LoopCarried, ...]
    views: tuple[SliceView, ...] = ()
    reverse: bool = False
    test: tuple[Kernel, ...] = ()
    condition: int | None = None

    def children(self) -> tuple[Kernel, ...]:
        return (*self.test, *self.body)

    def map_children(self, change: Callable[[tuple[Kernel, ...]], Iterable[Kernel]]) -> Self:
        return dataclasses.replace(self, body=tuple(change(self.body)), test=tuple(change(self.test)))


@dataclass(frozen=True)
class RowCut:
    """How a loop comes apart into loops over some of its rows each: no trip mixes rows (the sequences of a batch).

    rows    how many there are; axis 0 of each nest of the body counts them, as does m of each product
    steps   by buffer that has rows: elements from one row to the next
    """

    rows: Dim
    steps: tuple[tuple[int, Dim], ...]


@dataclass(frozen=True)
class LoopGroup(Owner):
    """Loops of which none reads what another writes, in any order or at once; `cuts` says which come apart further."""

    loops: tuple[Kernel, ...]
    cuts: tuple[RowCut | None, ...]

    def children(self) -> tuple[Kernel, ...]:
        return self.loops

    def map_children(self, change: Callable[[tuple[Kernel, ...]], Iterable[Kernel]]) -> Self:
        return dataclasses.replace(self, loops=tuple(change(self.loops)))
