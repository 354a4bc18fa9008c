"""Right sides of contractions whose elements have few bits: bytes with several in each, and a scale for each block."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.index import Linear, dim_value, linear, load
from rlx.records import dataclass

PANEL, PANEL_BYTES = 8, 64
"""Columns of a panel of GPUs, and bytes along k that each has next to the others'."""
Panels = tuple[int, int]


@dataclass(frozen=True)
class Blocks:
    """How a right side of [n, k] lies in bytes: scale · (q - zero), or scale · q + zero, of integers q of few bits,
    rounded to the dtype of scales and then to that of the left side. Layout: `rlx.ops.packed.PackedMatmul`.

    bits        of an element; the first ones of a byte are the low ones
    block       elements along k that share a scale
    count       blocks of a row, which has whole ones
    scale_slot  [n, count], or [⌈n / width⌉, count, width] where the bytes are in panels of so many columns
    zero_slot   the same of zeros; NO_ZERO where all are half of what the bits can say
    scale       dtype of scales and zeros
    added       whether zeros are added to scaled integers
    whole       whether zeros are known to be integers from 0 to 255
    """

    NO_ZERO: ClassVar[int] = -1

    bits: int
    block: int
    count: int
    scale_slot: int
    zero_slot: int
    scale: DType
    added: bool = False
    whole: bool = False

    @property
    def row_bytes(self) -> int:
        return self.count * self.block * self.bits // 8

    @property
    def chunks(self) -> int:
        """Of a row in panels of GPUs."""
        return -(-self.row_bytes // PANEL_BYTES)

    def slots(self) -> tuple[int, ...]:
        """Those of scales and zeros."""
        return (self.scale_slot,) if self.zero_slot == self.NO_ZERO else (self.scale_slot, self.zero_slot)

    def on_slots(self, places: Mapping[int, int]) -> Blocks:
        """The same of a kernel in which slots have other places."""
        zero = self.zero_slot if self.zero_slot == self.NO_ZERO else places[self.zero_slot]
        return dataclasses.replace(self, scale_slot=places[self.scale_slot], zero_slot=zero)

    def element(self, slot: int, panels: Panels, column: Expr, k: Expr, dtype: DType) -> Expr:
        """The element of a column at a place along k, rounded to a dtype. `panels` is their width, 0 if there are none,
        and the bytes along k that each column has next to the others'."""
        a_byte = 8 // self.bits
        byte, place = (k, ex.const(0, dtypes.i64)) if a_byte == 1 else (k / dim_value(a_byte), _rem(k, a_byte))
        word = load(slot, self._byte(panels, column, byte), dtypes.u8)
        return self.value(word, place, self._parameter(panels[0], column, k), dtype)

    def value(self, word: Expr, place: Expr, parameter: Linear, dtype: DType) -> Expr:
        """The element at a place of a word, with the scale and zero there, rounded to a dtype."""
        shift = ex.cast(place * dim_value(self.bits), word.dtype)
        whole = ex.apply("and", ex.apply("shr", word, shift), (1 << self.bits) - 1)
        value = ex.cast(ex.cast(whole, dtypes.u32), dtypes.f32)
        step, *rest = (ex.cast(load(each, parameter, self.scale), dtypes.f32) for each in self.slots())
        zero = rest[0] if rest else ex.const(float(1 << (self.bits - 1)), dtypes.f32)
        weight = value * step + zero if self.added else (value - zero) * step
        return ex.cast(ex.cast(weight, self.scale), dtype)

    def _byte(self, panels: Panels, column: Expr, byte: Expr) -> Linear:
        width, group = panels
        if not width:
            return linear(column).times(self.row_bytes).plus(linear(byte))
        panel, lane = column / dim_value(width), _rem(column, width)
        chunk, place = byte / dim_value(group), _rem(byte, group)
        start = (
            linear(panel).times(-(-self.row_bytes // group) * width * group).plus(linear(chunk).times(width * group))
        )
        return start.plus(linear(lane).times(group)).plus(linear(place))

    def _parameter(self, width: int, column: Expr, k: Expr) -> Linear:
        """Where the scale and the zero of an element are."""
        block = k / dim_value(self.block)
        if not width:
            return linear(column).times(self.count).plus(linear(block))
        panel, lane = column / dim_value(width), _rem(column, width)
        start = linear(panel).times(self.count * width).plus(linear(block).times(width))
        return start.plus(linear(lane))


def _rem(index: Expr, extent: int) -> Expr:
    return ex.apply("rem", index, dim_value(extent))
