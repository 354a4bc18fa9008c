"""Maps of tensors, by which a GPU's copy engine brings tiles of them to workgroup memory."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.ir.dim import Dim
from rlx.ir.dtype import DType

MOST_RANK = 5
PIECE_BYTES = 16
"""At multiples of which a tensor begins, and all but the first axis step."""


@dataclass(frozen=True)
class TileMap:
    """A tensor in a kernel's buffer, and the tiles that come of it at once, in rows of 128 bytes whose pieces of 16 are
    swapped: three bits of a piece's number by three of its row's. What is outside the tensor comes as zeros.

    slot      of the kernel
    first     element with which it begins
    extents   elements along each axis, the fastest first
    strides   elements from one to the next, along all axes but the first, which has neighbours
    box       elements of a tile along each axis
    """

    slot: int
    dtype: DType
    first: Dim
    extents: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    box: tuple[int, ...]


@dataclass(frozen=True)
class PlacedMap:
    """A map at known sizes: `first` and `strides` in bytes."""

    slot: int
    dtype: DType
    first: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
