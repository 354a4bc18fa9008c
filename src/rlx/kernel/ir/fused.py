"""Work made of other work: a contraction that makes the rows of its left side itself, and pieces that run side by side.

Slots of the parts are those of the whole; axes are each part's own.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Self

from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.work import Place, Renderable
from rlx.records import dataclass


class Composite(Renderable):
    """Renderable work whose parts have axes of their own, so that it has none itself."""

    @abstractmethod
    def parts(self) -> tuple[Renderable, ...]: ...

    def bodies(self) -> tuple[Expr, ...]:
        return tuple(body for part in self.parts() for body in part.bodies())

    def writes(self) -> tuple[Place, ...]:
        return tuple(place for part in self.parts() for place in part.writes())

    def reads(self) -> tuple[Place, ...]:
        return tuple(place for part in self.parts() for place in part.reads())

    def loads(self) -> Iterator[Expr]:
        return (load for part in self.parts() for load in part.loads())

    def dims(self) -> Iterator[Dim]:
        return (dim for part in self.parts() for dim in part.dims())


@dataclass(frozen=True)
class RowProduct(Composite):
    """A contraction of rows that a nest makes: the value of the nest's last statement, a `RowBuffer` over all of the
    row, is the element of the contraction's left side; row number r of the nest, in row-major order, is its row r.

    The contraction has no batch and no taps, and its `a_slot` is `Contraction.NO_SLOT`. A run has at most `most_rows`.
    """

    nest: LoopNest
    product: Contraction
    most_rows: int

    def parts(self) -> tuple[Renderable, ...]:
        return self.nest, self.product

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        return dataclasses.replace(self, nest=self.nest.map_bodies(change), product=self.product.map_bodies(change))


@dataclass(frozen=True)
class SideBySide(Composite):
    """Pieces of work of which none needs what another makes."""

    works: tuple[Renderable, ...]

    def parts(self) -> tuple[Renderable, ...]:
        return self.works

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        return dataclasses.replace(self, works=tuple(work.map_bodies(change) for work in self.works))
