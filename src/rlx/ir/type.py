"""The type of a value: a shape of dims and a dtype."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rlx.arguments import checked, is_iterable
from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.records import dataclass

MAX_RANK = 64
MAX_DIM = 1 << 62
MAX_BYTES = 1 << 56
"""Of a value: offsets into several such still fit into i64."""


@dataclass(frozen=True)
class TensorType:
    """Shape and dtype of a value; prints as `f32[batch, 4]`."""

    shape: Shape
    dtype: DType

    @staticmethod
    def of(shape: Iterable[object], dtype: Any) -> TensorType:
        """From ints and names. Raises ShapeError for a negative dim or a rank over 64, DTypeError."""
        if isinstance(shape, (str, bytes)) or not is_iterable(shape):
            raise ShapeError(f"expected a shape such as ('n', 4), got {shape!r}: one of one axis is ({shape!r},)")
        read = tuple(dims.of(dim) for dim in shape)
        if len(read) > MAX_RANK:
            raise ShapeError(f"expected a rank of at most {MAX_RANK}, got {len(read)}")
        for dim in read:
            if isinstance(dim, int) and not 0 <= dim < MAX_DIM:
                raise ShapeError(f"expected dims in [0, {MAX_DIM}), got {dim} in {list(read)}")
        return TensorType(read, dtypes.of(dtype))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def check(self) -> None:
        """Raises ShapeError for a rank, a dim or a size that nothing has: libraries below would overflow."""
        if len(self.shape) > MAX_RANK:
            raise ShapeError(f"expected a rank of at most {MAX_RANK}, got {len(self.shape)}")
        count = self.dtype.itemsize
        for dim in self.shape:
            if isinstance(dim, int):
                if dim < 0:
                    raise ShapeError(f"expected dims that are not negative, got {list(self.shape)}")
                count *= dim or 1
        if count > MAX_BYTES:
            raise ShapeError(f"expected values of at most {MAX_BYTES} bytes, got {self}")

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """Number of elements."""
        return dims.product(self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(dim, int) for dim in self.shape)

    @checked
    def flows_into(self, other: TensorType) -> bool:
        """Whether arrays of this type may be what a run of the other is given: its dims with names take any extent."""
        same = self.dtype is other.dtype and self.rank == other.rank
        return same and all(to == of or not isinstance(to, int) for of, to in zip(self.shape, other.shape))

    def with_shape(self, shape: Iterable[Dim]) -> TensorType:
        return TensorType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(self.shape, dtype)

    @checked
    def nbytes(self, binding: Mapping[str, int] | None = None) -> int:
        """Bytes of the array. Raises ShapeError on an unbound symbol."""
        return math.prod(dims.evaluate(dim, binding or {}) for dim in self.shape) * self.dtype.itemsize
