"""Products with weights of few bits, packed in bytes, with a scale for each block of a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import DTypeError, ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Tolerance, op
from rlx.ir.padding import Padded, Padding
from rlx.ir.type import TensorType
from rlx.ops import build

Array = np.ndarray[Any, Any]
WIDTHS = (2, 4, 8)
"""Bits of an element."""


@op
class PackedMatmul(Composite):
    """x times the transposed matrix scale · (q - zero), or scale · q + zero, whose integers q have few bits.

    x       float [..., depth]
    w       u8 [N, B · block · bits / 8], the elements of a row in turn, low bits first; B is depth / block, rounded up
    scale   float [N, B], one for each block of a row
    zero    like scale; 2^(bits - 1) if absent
    result  like x, [..., N]

    depth  elements of a row that count: those of the last block behind it are padding
    bits   2, 4 or 8
    block  elements that share a scale, whole bytes of them
    added  zero is there, and is what is added to the scaled q
    The weight is scale's dtype, rounded once to x's. Layout: MatMulNBits of com.microsoft.
    """

    depth: int
    bits: int
    block: int
    added: bool = False
    tolerance = Tolerance(64, scale=1)

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-self.depth // self.block)

    def infer(self, x: TensorType, w: TensorType, scale: TensorType, zero: TensorType | None = None) -> TensorType:
        expect.floating(x)
        expect.floating(scale, "scale")
        expect.rank(x, 1)
        if self.bits not in WIDTHS or self.block < 1 or self.block * self.bits % 8 or self.depth < 1:
            raise ShapeError(
                f"expected 2, 4 or 8 bits, blocks of whole bytes and a depth above 0, got {self.bits}, "
                f"{self.block} and {self.depth}"
            )
        if self.added and zero is None:
            raise ShapeError("expected zero, which is added, got none")
        if w.dtype is not dtypes.u8:
            raise DTypeError(f"expected w of u8, got {w.dtype}")
        expect.rank(w, 2, "w", at_most=2)
        expect.same_dim(x.shape[-1], self.depth, f"contracting dims differ: x is {x}, the depth is {self.depth}")
        row = self.blocks * self.block * self.bits // 8
        expect.same_dim(w.shape[1], row, f"expected w with rows of {row} bytes, got {w}")
        for of, name in ((scale, "scale"), (zero, "zero")):
            if of is not None:
                expect.same_dtype(scale, of)
                expect.rank(of, 2, name, at_most=2)
                for have, expected in zip(of.shape, (w.shape[0], self.blocks)):
                    expect.same_dim(
                        have, expected, f"expected {name} for {self.blocks} blocks of each row of {w}, got {of}"
                    )
        return x.with_shape((*x.shape[:-1], w.shape[0]))

    def reference(self, x: Array, w: Array, scale: Array, zero: Array | None = None) -> Array:
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        whole = (w[..., None] >> shifts & ((1 << self.bits) - 1)).reshape(w.shape[0], self.blocks, self.block)
        zero_point = np.float64(1 << (self.bits - 1)) if zero is None else zero.astype(np.float64)[..., None]
        step = scale.astype(np.float64)[..., None]
        with np.errstate(all="ignore"):
            weight = whole * step + zero_point if self.added else (whole - zero_point) * step
            weight = weight.astype(scale.dtype).astype(x.dtype).astype(np.float64)
            rows = weight.reshape(w.shape[0], self.blocks * self.block)[:, : self.depth]
            return np.asarray(np.matmul(x.astype(np.float64), rows.T)).astype(x.dtype)

    def padded(self, padding: Padding, x: Padded, w: Padded, *others: Padded) -> Padded:
        for operand in (w, *others):
            padding.closed(operand, 0, "packed weights with")
        result = padding.build(self, x.value, w.value, *(operand.value for operand in others))
        return Padded(result, (*x.axes[:-1], (result.shape[-1],)))

    def decompose(self, x: Value, w: Value, scale: Value, zero: Value | None = None) -> Value:
        weight = packed_rows(w, scale, zero, bits=self.bits, added=self.added)
        return build.matmul(x, weight[:, : self.depth].transpose(1, 0).cast(x.dtype))


def packed_rows(w: Value, scale: Value, zero: Value | None = None, *, bits: int, added: bool = True) -> Value:
    """Rows of weights as floats of scale's dtype: u8 [..., bytes] and scale [..., B] → [..., elements]. Arguments are
    those of `PackedMatmul`."""
    *before, size = w.shape
    blocks = scale.shape[-1]
    whole = unpacked(w.reshape(*before, blocks, dims.floordiv(size, blocks)), bits).cast(scale.dtype)
    step = scale.reshape(*scale.shape, 1)
    zero_point = float(1 << (bits - 1)) if zero is None else zero.reshape(*scale.shape, 1)
    weight = whole * step + zero_point if added and zero is not None else (whole - zero_point) * step
    return weight.reshape(*before, dims.floordiv(dims.mul(size, 8), bits))


def unpacked(x: Value, bits: int) -> Value:
    """u8 [..., n] → u8 [..., n · 8 / bits], the low bits first."""
    if bits == 8:
        return x
    count = 8 // bits
    shifts = x.graph.constant([i * bits for i in range(count)], dtypes.u8)
    parts = build.bitwise_and(build.shift_right(x.reshape(*x.shape, 1), shifts), (1 << bits) - 1)
    return parts.reshape(*x.shape[:-1], dims.mul(x.shape[-1], count))


def packed(x: Value, bits: int) -> Value:
    """u8 [..., n · 8 / bits] of numbers below 2^bits → u8 [..., n], the low bits first."""
    if bits == 8:
        return x
    count = 8 // bits
    parts = x.reshape(*x.shape[:-1], dims.floordiv(x.shape[-1], count), count)
    numbers = parts[..., 0]
    for i in range(1, count):
        numbers = build.bitwise_or(numbers, build.shift_left(parts[..., i], i * bits))
    return numbers
