"""mlx itself, imported at its first use, and arrays to it and from it."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from rlx.codegen.scalar import emulation as emulation
from rlx.errors import MissingExtra
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array

Value = Any
"""An array of mlx."""


class _Library:
    """The module `mlx.core`, imported when something of it is asked for. Raises MissingExtra."""

    def __getattr__(self, name: str) -> Any:
        try:
            module = importlib.import_module("mlx.core")
        except ImportError as error:
            raise MissingExtra(f"[device] the package mlx is needed ({error}): pip install 'rlx[mlx]'") from None
        found = getattr(module, name)
        setattr(self, name, found)
        return found


mx: Any = _Library()
_NAMES = {
    dtypes.bool_: "bool_", dtypes.i8: "int8", dtypes.i16: "int16", dtypes.i32: "int32", dtypes.i64: "int64",
    dtypes.u8: "uint8", dtypes.u16: "uint16", dtypes.u32: "uint32", dtypes.u64: "uint64",
    dtypes.f16: "float16", dtypes.bf16: "bfloat16", dtypes.f32: "float32", dtypes.f64: "float64",
    dtypes.c64: "complex64",
}  # fmt: skip


def dtype_of(dtype: DType) -> Any:
    """The dtype in mlx; of one that mlx has not, its carrier's."""
    return getattr(mx, _NAMES[emulation.carrier(dtype)])


def known(value: Value) -> DType:
    """Our dtype of an array of mlx."""
    return _BY_NAME[str(value.dtype).rpartition(".")[2]]


_BY_NAME = {name.rstrip("_"): dtype for dtype, name in _NAMES.items()}


def put(array: Array) -> Value:
    """A copy of the array in mlx, with its dtype, or as it is stored."""
    array = emulation.to_stored(np.asarray(array))
    if array.dtype == dtypes.bf16.numpy:
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    return mx.array(array, dtype=dtype_of(dtypes.of(array.dtype)))


def held(array: Array) -> Value:
    """A copy of the array in mlx, in its carrier."""
    array = np.asarray(array)
    return put(array.astype(emulation.carrier(dtypes.of(array.dtype)).numpy, copy=False))


def take(value: Value, dtype: DType) -> Array:
    """A new array of NumPy's with what a value of mlx stores for a dtype."""
    if dtype is dtypes.bf16:
        return np.array(value.view(mx.uint16), order="C").view(dtype.numpy)
    return emulation.from_stored(np.array(value, order="C"), dtype)
