"""Fused attention, whole or split over the keys (flash decoding)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Self

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.index import Linear
from rlx.kernel.ir.work import Place, Renderable
from rlx.records import dataclass


@dataclass(frozen=True)
class FusedAttention(Renderable):
    """softmax(scale·q·kᵀ, masked)·v over batch and heads; every operand is a strided view.

    Offsets are linear in axes 0 batch, 1 head, 2 query or key position, 3 feature. `mask` uses axes 0 batch, 1 head,
    2 query, 3 key; it is added, or where it is bool, `fill` takes the place of scores at false. Head h reads the keys
    and values of head h // `repeat`. A row whose every score is -inf gives 0 if `empty_zero`, else NaN.
    `window` and `softcap` are as in `ops.transformer.Attention`. `live` is 1, or 0 at sizes at which other kernels do
    the same (`kernel.passes.split_kv`). `float_parts` is as that of a `Contraction`, of both products. `tail` is what
    is stored of an element, which it calls `accumulated`; itself, where there is none. It may load vectors by heads and
    features, which are axis `TAIL_FEATURE` there.
    """

    TAIL_FEATURE: ClassVar[int] = 4

    batch: Dim
    heads: Dim
    queries: Dim
    keys: Dim
    features: int
    value_features: int
    repeat: int
    scale: float
    causal: bool
    offset: Dim
    fill: float
    empty_zero: bool
    dtype: DType
    q: tuple[int, Linear]
    k: tuple[int, Linear]
    v: tuple[int, Linear]
    out: tuple[int, Linear]
    mask: tuple[int, Linear, DType] | None = None
    window: int | None = None
    softcap: float | None = None
    live: Dim = 1
    float_parts: bool = False
    tail: Expr | None = None

    @property
    def out_dtype(self) -> DType:
        """Of the result."""
        return self.dtype if self.tail is None else self.tail.dtype

    def extents(self) -> Shape:
        scores = (self.batch, self.heads, self.queries, self.keys)
        return scores if self.tail is None else (*scores, self.value_features)

    def bodies(self) -> tuple[Expr, ...]:
        return () if self.tail is None else (self.tail,)

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        return self if self.tail is None else dataclasses.replace(self, tail=change(self.tail))

    def writes(self) -> tuple[Place, ...]:
        return (Place(*self.out, (self.batch, self.heads, self.queries, self.value_features), self.out_dtype),)

    def reads(self) -> tuple[Place, ...]:
        shared = dims.floordiv(self.heads, self.repeat)
        places = [
            Place(*self.q, (self.batch, self.heads, self.queries, self.features), self.dtype),
            Place(*self.k, (self.batch, shared, self.keys, self.features), self.dtype),
            Place(*self.v, (self.batch, shared, self.keys, self.value_features), self.dtype),
        ]
        if self.mask is not None:
            slot, line, dtype = self.mask
            places.append(Place(slot, line, self.extents(), dtype))
        return tuple(places)


@dataclass(frozen=True)
class SplitKvPartial(Renderable):
    """The partial results of `work` over parts of its keys. Slot 0 has, for every (batch, head, query, part), the mixed
    values of each feature, the greatest score, and the sum of powers; the other slots are as those of the work. `team`
    tells that matrix units make them, of other parts."""

    work: FusedAttention
    team: bool = False

    def extents(self) -> Shape:
        return self.work.extents()

    def writes(self) -> tuple[Place, ...]:
        return (Place(0, Linear(), (), dtypes.f32),)

    def reads(self) -> tuple[Place, ...]:
        return self.work.reads()


@dataclass(frozen=True)
class SplitKvCombine(Renderable):
    """Makes the result of `work` (slot 0) of its partial results (slot 1)."""

    work: FusedAttention
    team: bool = False

    def extents(self) -> Shape:
        return self.work.extents()

    def bodies(self) -> tuple[Expr, ...]:
        return self.work.bodies()

    def map_bodies(self, change: Callable[[Expr], Expr]) -> Self:
        return dataclasses.replace(self, work=self.work.map_bodies(change))

    def writes(self) -> tuple[Place, ...]:
        return self.work.writes()

    def reads(self) -> tuple[Place, ...]:
        return (Place(1, Linear(), (), dtypes.f32),)
