"""Contractions: matrix products, batched or not, and convolutions as products with further summed axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import reduce
from typing import ClassVar, Self

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.blocks import Blocks
from rlx.kernel.ir.index import Linear, axis, dim_value, index_of, load, row
from rlx.kernel.ir.loops import LoopNest, Reduce, Store
from rlx.kernel.ir.work import Place, Renderable
from rlx.records import dataclass


@dataclass(frozen=True)
class Bound:
    """A window's position along an axis of its operand, linear in the axes of a contraction, and that axis' extent:
    positions from 0 on and below it are inside."""

    position: Linear
    extent: Dim

    @property
    def is_inside(self) -> Expr:
        """Whether the position is inside."""
        at = index_of(self.position)
        return ex.apply("and", ex.apply("le", dim_value(0), at), ex.apply("lt", at, dim_value(self.extent)))


@dataclass(frozen=True)
class Contraction(Renderable):
    """out[batch, m, n] = epilogue(Σ_k a[batch, m, k] · b[batch, k, n]); `dtype` is the sum's.

    The sum runs over `taps` (the window of a convolution) and k. Axes are numbered batch, then m, n, taps, k.
    `epilogue` statements are `Store`s, once per sum, whose bodies use `accumulated` and loads at the axes. `packed` is
    the panel width (in elements) if slot `b_slot` holds panels [⌈n / packed⌉][taps...][⌈k / group⌉][packed][group] with
    zeros behind n and k; `b` then says where the panels of a matrix begin: one that data choose, or one of the batch.
    With `NO_SLOT` as its slot, the left side is in no buffer: who owns the contraction makes it. `float_parts` lets a
    target multiply operands of f32 as sums of shorter floats, with errors of the size that sums of f32 have. Where a
    position of `bounds` is not inside, its elements are zeros, and none is read. With `blocks` the right side is bytes
    of elements of few bits, of which k and n are whole; `packed` then means panels of them, and `b` says nothing.
    A run has either no rows or more than `above`; and at most `up_to`, if that is not 0.
    A `paired` contraction has a packed right side of 2 · n columns, and of each result a second sum, of the column n
    further on: `accumulated(dtype, second=True)`.
    """

    NO_SLOT: ClassVar[int] = -1

    batch: Shape
    m: Dim
    n: Dim
    k: Dim
    dtype: DType
    a_slot: int
    a: Linear
    a_dtype: DType
    b_slot: int
    b: Linear
    b_dtype: DType
    epilogue: tuple[Store, ...]
    packed: int = 0
    group: int = 1
    taps: Shape = ()
    float_parts: bool = False
    bounds: tuple[Bound, ...] = ()
    blocks: Blocks | None = None
    above: int = 0
    up_to: int = 0
    paired: bool = False

    @property
    def m_axis(self) -> int:
        return len(self.batch)

    @property
    def n_axis(self) -> int:
        return len(self.batch) + 1

    @property
    def tap_axes(self) -> tuple[int, ...]:
        return tuple(range(len(self.batch) + 2, len(self.batch) + 2 + len(self.taps)))

    @property
    def k_axis(self) -> int:
        return len(self.batch) + 2 + len(self.taps)

    @property
    def columns(self) -> Dim:
        """Those of the right side."""
        return dims.mul(self.n, 2) if self.paired else self.n

    def extents(self) -> Shape:
        return (*self.batch, self.m, self.n, *self.taps, self.k)

    def bodies(self) -> tuple[Expr, ...]:
        return tuple(store.body for store in self.epilogue)

    def writes(self) -> tuple[Place, ...]:
        return tuple(Place(s.slot, s.offset, self.extents(), s.body.dtype) for s in self.epilogue)

    def reads(self) -> tuple[Place, ...]:
        """The sides. Where panels of a packed one begin is no place of its elements, and has no extents; nor has the
        left one where it is not read everywhere."""
        left = Place(self.a_slot, self.a, () if self.bounds else self.extents(), self.a_dtype)
        whole = bool(self.packed) or self.blocks is not None
        sides = [Place(self.b_slot, self.b, () if whole else self.extents(), self.b_dtype)]
        if self.blocks is not None:
            sides += [Place(slot, Linear(), (), self.blocks.scale) for slot in self.blocks.slots()]
        return tuple(sides) if self.a_slot == self.NO_SLOT else (left, *sides)

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        return dataclasses.replace(
            self, epilogue=tuple(dataclasses.replace(s, body=change(s.body)) for s in self.epilogue)
        )

    def guard(self) -> Expr | None:
        """Whether the left side is read; None for always."""
        inside = [bound.is_inside for bound in self.bounds]
        return reduce(lambda a, b: ex.apply("and", a, b), inside) if inside else None

    def weight(self, column: Expr, k: Expr) -> Expr:
        """The element of a right side of blocks, as the left side multiplies it."""
        assert self.blocks is not None
        return self.blocks.element(self.b_slot, (self.packed, self.group), column, k, self.a_dtype)

    def as_nest(self) -> LoopNest:
        """The same as a plain nest with one reduction: what any code generator can take, of one that is not paired."""
        a = load(self.a_slot, self.a, self.a_dtype, self.guard())
        b = load(self.b_slot, self.b, self.b_dtype)
        if self.blocks is not None:
            b = self.weight(axis(self.n_axis), axis(self.k_axis))
        total = dtypes.accumulator(self.dtype)
        body = ex.cast(a, total) * ex.cast(b, total)
        done = ex.cast(row(0, total), self.dtype)
        stores = tuple(
            Store(s.slot, s.offset, ex.rewrite(s.body, lambda e, _: done if e.kind == "acc" else None), False)
            for s in self.epilogue
        )
        return LoopNest((*self.batch, self.m, self.n), (*self.taps, self.k), (Reduce("add", body, total), *stores))
