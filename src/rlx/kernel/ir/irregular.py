"""Irregular work that no loop nest says: scatters, prefix scans, top-k, sorting networks, whole Fourier transforms,
suppression of boxes.

Like a `LoopNest`, each has parallel `outer` axes (numbers 0 …) and reads through the leaves of `kernel.ir.index`; what
follows along its own axes goes in order. A code generator may lack any of them: `kernel.lower.untaken` is told which it
has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Self

from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.index import Linear
from rlx.kernel.ir.work import Place, Renderable
from rlx.records import dataclass


@dataclass(frozen=True)
class Scatter(Renderable):
    """For every outer position, along the inner axes in row-major order: where `guard` holds, the element of slot 0 at
    `offset` becomes `body`, or is joined with it by an instruction (`combine`).

    No two outer positions write to one place. With `atomic` inner positions may come in any order, and at once, and
    the elements are joined by atomic instructions (`kernel.passes.atomic_scatter` makes such).
    """

    outer: Shape
    inner: Shape
    offset: Linear
    guard: Expr
    body: Expr
    combine: str | None
    atomic: bool = False

    def extents(self) -> Shape:
        return (*self.outer, *self.inner)

    def bodies(self) -> tuple[Expr, ...]:
        return (self.guard, self.body)

    def writes(self) -> tuple[Place, ...]:
        return (Place(0, self.offset, self.extents(), self.body.dtype),)

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        return dataclasses.replace(self, guard=change(self.guard), body=change(self.body))


@dataclass(frozen=True)
class PrefixScan(Renderable):
    """Along one axis (number len(outer)) of `length` positions: slot 0 at `offset` gets what `combine` makes of `body`
    up to there.

    total       dtype of body and of what is kept; `dtype` is that of the result
    exclusive   leaves the position itself out; `reverse` comes from the end
    """

    outer: Shape
    length: Dim
    offset: Linear
    body: Expr
    combine: str
    total: DType
    dtype: DType
    exclusive: bool
    reverse: bool

    def extents(self) -> Shape:
        return (*self.outer, self.length)

    def bodies(self) -> tuple[Expr, ...]:
        return (self.body,)

    def writes(self) -> tuple[Place, ...]:
        return (Place(0, self.offset, self.extents(), self.dtype),)

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        return dataclasses.replace(self, body=change(self.body))


@dataclass(frozen=True)
class TopKSelection(Renderable):
    """The `k` first positions along an axis (number len(outer)) of `length`, in the order of `body`: greatest first if
    `largest`; of equals the lower position; NaN is greater than all.

    values, indices   slot and offset (axis len(outer) counts to k there) of what is written, where it is asked for
    """

    outer: Shape
    length: Dim
    k: Dim
    largest: bool
    body: Expr
    values: tuple[int, Linear] | None
    indices: tuple[int, Linear] | None

    def extents(self) -> Shape:
        return (*self.outer, self.length)

    def bodies(self) -> tuple[Expr, ...]:
        return (self.body,)

    def writes(self) -> tuple[Place, ...]:
        places = [place for place in (self.values, self.indices) if place is not None]
        return tuple(Place(slot, offset, (*self.outer, self.k)) for slot, offset in places)

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        return dataclasses.replace(self, body=change(self.body))

    def depends_on_run(self) -> bool:
        return super().depends_on_run() or not isinstance(self.k, int)


@dataclass(frozen=True)
class FourierTransform(Renderable):
    """A transform along an axis (number len(outer)) of `length` elements of a signal.

    kind       "complex"; "to bins" 0 … length / 2 of a real signal, or "from bins" to one: of an even length
    inverse    of the complex kind; it and "from bins" divide by the length
    results    slots and offsets of the real and the imaginary part, where they are asked for; "from bins" has one
    table      slot of the twiddles (`kernel.passes.twiddles`)

    A NaN in a row that is no bin makes all of its result NaN. Imaginary parts of bins 0 and length / 2 count as 0.
    """

    outer: Shape
    length: int
    kind: str
    inverse: bool
    real: Expr
    imaginary: Expr | None
    results: tuple[tuple[int, Linear] | None, ...]
    table: int = -1

    @property
    def bins(self) -> int:
        """Bins of a real signal."""
        return self.length // 2 + 1

    def extents(self) -> Shape:
        return (*self.outer, self.bins if self.kind == "from bins" else self.length)

    def bodies(self) -> tuple[Expr, ...]:
        return (self.real,) if self.imaginary is None else (self.real, self.imaginary)

    def writes(self) -> tuple[Place, ...]:
        length = self.bins if self.kind == "to bins" else self.length
        return tuple(Place(*r, (*self.outer, length), self.real.dtype) for r in self.results if r is not None)

    def reads(self) -> tuple[Place, ...]:
        return () if self.table < 0 else (Place(self.table, Linear(), (), self.real.dtype),)

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        imaginary = None if self.imaginary is None else change(self.imaginary)
        return dataclasses.replace(self, real=change(self.real), imaginary=imaginary)


@dataclass(frozen=True)
class FourierPart(Renderable):
    """One of the kernels that a long transform is cut into (`kernel.passes.twiddles`), each shared by threads.

    of      the transform. Parts that do not read its signal have zeros for it, those that do not write its results none
    part    "pairs" of bins from or to points; "rows", the first half of the steps, reads columns and writes rows; then
            "columns", the second half; "nan" spreads a NaN in the first element of a result over all of it
    source, target   slots of what the part before has left and of what this one leaves, -1 where there is none
    """

    of: FourierTransform
    part: str
    source: int = -1
    target: int = -1

    def extents(self) -> Shape:
        return self.of.extents()

    def bodies(self) -> tuple[Expr, ...]:
        return self.of.bodies()

    def writes(self) -> tuple[Place, ...]:
        return (*self.of.writes(), *self._between(self.target))

    def reads(self) -> tuple[Place, ...]:
        return (*self.of.reads(), *self._between(self.source))

    def _between(self, slot: int) -> tuple[Place, ...]:
        return () if slot < 0 else (Place(slot, Linear(), (), self.of.real.dtype),)

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        return dataclasses.replace(self, of=self.of.map_bodies(change))


@dataclass(frozen=True)
class BitonicSort(Renderable):
    """Puts rows of `length` keys (slot 0) and their positions (slot 1), one behind the other in memory, in order: the
    least key first, of equals the lower position. `kernel.passes.bitonic` makes them of long top-k selections."""

    outer: Shape
    length: Dim

    def extents(self) -> Shape:
        return (*self.outer, self.length)

    def writes(self) -> tuple[Place, ...]:
        return (Place(0, Linear(), ()), Place(1, Linear(), ()))


@dataclass(frozen=True)
class Suppression(Renderable):
    """For every outer position, the boxes of a row of `length` (axis len(outer)) by their score, the greatest first (of
    equals the lower position; NaN is greater than all), without those that one before them covers.

    counts       whether a box takes part; all do where it is None
    sides        least y and x, greatest y and x of a box
    most         how many are kept, i64; no more than `limit`
    overlap      a box is covered where the intersection with one that is kept over their union is greater
    picked       slot and offset (axis len(outer) counts to `limit` there) of the boxes kept, i32, -1 behind the last
    kept         slot and offset of how many they are, i64
    """

    outer: Shape
    length: Dim
    limit: Dim
    score: Expr
    counts: Expr | None
    sides: tuple[Expr, ...]
    most: Expr
    overlap: Expr
    picked: tuple[int, Linear]
    kept: tuple[int, Linear]

    def extents(self) -> Shape:
        return (*self.outer, self.length)

    def bodies(self) -> tuple[Expr, ...]:
        return (self.score, *([] if self.counts is None else [self.counts]), *self.sides, self.most, self.overlap)

    def writes(self) -> tuple[Place, ...]:
        picked = Place(*self.picked, (*self.outer, self.limit), dtypes.i32)
        return (picked, Place(*self.kept, self.outer, dtypes.i64))

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        return dataclasses.replace(
            self,
            score=change(self.score),
            counts=None if self.counts is None else change(self.counts),
            sides=tuple(map(change, self.sides)),
            most=change(self.most),
            overlap=change(self.overlap),
        )

    def depends_on_run(self) -> bool:
        return super().depends_on_run() or not isinstance(self.limit, int)


OrderedWork = Scatter | PrefixScan | TopKSelection
IrregularWork = OrderedWork | FourierTransform | Suppression
