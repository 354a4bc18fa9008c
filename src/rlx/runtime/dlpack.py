"""Arrays of other libraries, through DLPack. NumPy has no names for bf16 and 8-bit floats, and refuses arrays of them:
their bits are taken as unsigned integers and viewed as their own dtype."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from rlx.errors import InputError
from rlx.ir import dtype as dtypes
from rlx.ir.literal import Array
from rlx.ir.type import TensorType

UNSIGNED = 1
CODES = {
    4: dtypes.bf16, 10: dtypes.f8e4m3, 11: dtypes.f8e4m3fnuz, 12: dtypes.f8e5m2, 13: dtypes.f8e5m2fnuz,
    14: dtypes.f8e8m0,
}  # fmt: skip
"""DLPack's codes of kinds that NumPy lacks."""
_PLACES = {b"dltensor": 20, b"dltensor_versioned": 52}
"""Where the code of the dtype stands in what a capsule of this name holds: behind the pointer to the data, device and
rank of a DLTensor, which begins at byte 32 where it has a version. The bits stand behind it."""
_LAZY = ("resolve_conj", "resolve_neg")
"""Of torch: signs that it has noted and not applied to the memory."""

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _AsBits:
    """An exporter whose dtype is an unsigned integer of as many bits, where NumPy lacks it.

    dtype   what it is, where NumPy lacks it
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.dtype: dtypes.DType | None = None

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.value.__dlpack__(**options)
        name = _name_of(capsule)
        at = _PLACES.get(name)
        if at is not None:
            code = ctypes.c_uint8.from_address(_pointer_of(capsule, name) + at)
            bits = ctypes.c_uint8.from_address(ctypes.addressof(code) + 1)
            dtype = CODES.get(code.value)
            if dtype is not None and dtype.bits == bits.value:
                self.dtype, code.value = dtype, UNSIGNED
        return capsule


def array_of(value: Any) -> Array:
    """What speaks DLPack as an array on the same memory. Raises whatever the exporter or NumPy raises: for a device
    that NumPy cannot read, a gradient, a dtype."""
    for lazy in _LAZY:
        value = getattr(value, lazy, lambda captured=value: captured)()
    exporter = _AsBits(value)
    array: Array = np.from_dlpack(exporter)
    return array if exporter.dtype is None else array.view(exporter.dtype.numpy)


def handed_over(where: str, kind: str, name: str, value: Any, of: TensorType) -> Array:
    """What speaks DLPack as an array. Raises InputError where it cannot be one."""
    try:
        return array_of(value)
    except Exception as error:  # whatever the exporter raises
        actual = f"{type(value).__name__}, which DLPack cannot hand over"
        raise InputError(f"[{where}] expected {kind} {name!r} of {of}, got {actual}: {error}") from None
