"""Data with a declared dtype: bytes, and numbers that may be widened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.errors import DTypeError, InputError
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array
from rlx.ir.type import TensorType
from rlx.records import dataclass
from rlx.runtime.dlpack import handed_over


@dataclass(frozen=True)
class Typed:
    """Data with their dtype, wherever an array is taken: inputs, weights, handles.

    data    an array of that dtype (NumPy's, or one that supports DLPack), or bytes of its elements one after another,
            little end first; of dtypes below 8 bits several elements share a byte, the first in its lowest bits
    dtype   of the data. Saying it asks for widening: where the program wants a wider float, or a wider integer that
            has all its values, data become that
    shape   of bytes; None takes that of the declaration, of which one dim may be open
    """

    data: Any
    dtype: Any
    shape: Sequence[int] | None = None

    def array(self, where: str, kind: str, name: str, of: TensorType) -> Array:
        """The data as an array for a declaration. Raises InputError."""
        try:
            dtype = dtypes.of(self.dtype)
        except DTypeError as error:
            raise InputError(f"[{where}] expected {kind} {name!r} with a dtype: {error}") from None
        array = self._typed(where, kind, name, of, dtype)
        if dtype is of.dtype:
            return array
        if not widens(dtype, of.dtype):
            raise InputError(
                f"[{where}] expected {kind} {name!r} of {of}, got {dtype}, which does not widen to it without loss"
            )
        return array.astype(of.dtype.numpy)

    def _typed(self, where: str, kind: str, name: str, of: TensorType, dtype: DType) -> Array:
        if not isinstance(self.data, (bytes, bytearray, memoryview)):
            exported = hasattr(self.data, "__dlpack__") and not isinstance(self.data, (np.ndarray, np.generic))
            array = handed_over(where, kind, name, self.data, of) if exported else np.asarray(self.data)
            if array.dtype != dtype.numpy:
                raise InputError(f"[{where}] expected {kind} {name!r} as data of {dtype}, got {array.dtype}")
            return array
        raw = np.frombuffer(self.data, np.uint8)
        shape = list(self._shape(of))
        count = raw.size * 8 // dtype.bits
        known = int(np.prod([d for d in shape if d >= 0], dtype=np.int64))
        if shape.count(-1) == 1 and known:
            shape[shape.index(-1)] = count // known
        element_count = int(np.prod(shape, dtype=np.int64)) if -1 not in shape else -1
        if element_count < 0 or (element_count * dtype.bits + 7) // 8 != raw.size:
            actual = f"{raw.size} bytes of {dtype}"
            raise InputError(f"[{where}] expected {kind} {name!r} of {of}, got {actual} for the shape {shape}")
        return _decoded(raw, dtype, element_count).reshape(shape)

    def _shape(self, of: TensorType) -> Sequence[int]:
        """-1 where a dim is open."""
        return self.shape if self.shape is not None else [d if isinstance(d, int) else -1 for d in of.shape]


def _decoded(raw: Array, dtype: DType, count: int) -> Array:
    if dtype is dtypes.bool_:
        return np.asarray(raw != 0)
    if dtype.bits >= 8:
        return raw.view(dtype.numpy.newbyteorder("<")).astype(dtype.numpy, copy=False)
    parts = np.stack([raw >> shift for shift in range(0, 8, dtype.bits)], axis=-1).reshape(-1)[:count]
    if dtype.kind == "int":  # NumPy's types of few bits want the sign in all bits of the byte
        parts = (parts << (8 - dtype.bits)).view(np.int8) >> (8 - dtype.bits)
        return parts.astype(dtype.numpy)
    return (parts & ((1 << dtype.bits) - 1)).view(dtype.numpy)


def widens(narrow: DType, wide: DType) -> bool:
    """Whether every value of one dtype is one of another of its kind, which has more bits."""
    if narrow.bits >= wide.bits or "complex" in (narrow.kind, wide.kind):
        return False
    if narrow.kind == wide.kind == "float":
        # neither 16-bit dtype has the other's range and precision; 8-bit ones fit into both, except e8m0's range
        return wide.bits >= 32 or (narrow.bits <= 8 and narrow is not dtypes.f8e8m0)
    return narrow.kind == wide.kind or (narrow.kind == "uint" and wide.kind == "int")
