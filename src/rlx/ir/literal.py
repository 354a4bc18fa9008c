"""Arrays as attributes: immutable, hashed and compared by content."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir.type import TensorType
from rlx.mapped import private

Array = np.ndarray[Any, Any]


class Literal:
    """An array that nobody can write to. The digest of the bytes is made when first asked for."""

    __slots__ = ("_digest", "array")

    def __init__(self, array: Any) -> None:
        read = private(np.asarray(array))
        copy = read if read.flags.c_contiguous and not read.flags.writeable else np.array(read, order="C", copy=True)
        if copy.dtype.byteorder == ">":
            copy = copy.astype(copy.dtype.newbyteorder("="))
        copy.flags.writeable = False
        self.array: Array = copy
        self._digest: str | None = None

    @property
    def type(self) -> TensorType:
        return TensorType.of(self.array.shape, dtypes.of(self.array.dtype))

    @property
    def digest(self) -> str:
        """blake2b of dtype, shape and bytes, in hex."""
        if self._digest is None:
            hasher = hashlib.blake2b(f"{self.array.dtype.name}{self.array.shape}".encode(), digest_size=16)
            hasher.update(self.array.reshape(-1).view(np.uint8).data)
            self._digest = hasher.hexdigest()
        return self._digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and (self is other or self.digest == other.digest)

    def __repr__(self) -> str:
        if self.array.size <= 8:
            return f"Literal({self.array.tolist()}, {dtypes.of(self.array.dtype)})"
        return f"Literal({self.type}, {self.digest[:8]})"
