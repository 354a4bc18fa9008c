"""Capsules of DLPack for arrays on GPUs: NumPy makes and reads those of the host alone."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.errors import InputError
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType

NAME, USED_NAME = b"dltensor", b"used_dltensor"
_KINDS = {"int": 0, "uint": 1, "float": 2, "complex": 5, "bool": 6}
_OWN_KINDS = {
    "bf16": 4, "f8e4m3": 10, "f8e4m3fnuz": 11, "f8e5m2": 12, "f8e5m2fnuz": 13, "f8e8m0": 14,
}  # fmt: skip
"""DLPack's codes, of kinds and of floats that have one of their own."""


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
_is_named = ctypes.pythonapi.PyCapsule_IsValid
_is_named.restype, _is_named.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
"""The same of a capsule that ends, of which nobody may have a new reference."""

_handed_over: dict[int, tuple[Any, ...]] = {}
"""What capsules point to, by address, until their taker is done with it."""


def _delete(managed: Any) -> None:
    _handed_over.pop(ctypes.addressof(managed.contents), None)


def _destroy(capsule: int) -> None:
    """The end of a capsule. One that was taken has another name, and its taker calls the deleter."""
    if _is_named(capsule, NAME):
        _handed_over.pop(_address_of(capsule, NAME), None)


_deleter, _destructor = _Deleter(_delete), _Destructor(_destroy)


def capsule_of(
    dtype: DType, shape: tuple[int, ...], pointer: int, device: tuple[int, int], owner: object
) -> Any:  # fmt: skip
    """A capsule by which another library takes an array without gaps on a device, whose kind and ordinal are DLPack's;
    `owner` lives until it is done with it. Raises BufferError for a dtype that DLPack has no code for."""
    if dtype.bits != 8 * dtype.itemsize:
        raise BufferError(f"[dlpack] expected a dtype that DLPack has, got {dtype}")
    rank = len(shape)
    extents = (ctypes.c_int64 * max(rank, 1))(*shape)
    strides = (ctypes.c_int64 * max(rank, 1))(*(math.prod(shape[axis + 1 :]) for axis in range(rank)))
    managed = _Managed()
    tensor = managed.tensor
    tensor.data = pointer or None
    tensor.device_type, tensor.device_id = device
    tensor.ndim, tensor.code = rank, _OWN_KINDS.get(str(dtype), _KINDS[dtype.kind])
    tensor.bits, tensor.lanes = dtype.bits, 1
    tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _deleter
    address = ctypes.addressof(managed)
    _handed_over[address] = (managed, extents, strides, owner)
    return _new(address, NAME, _destructor)


@dataclass(frozen=True)
class Described:
    """What a capsule tells of an array: `strides` are in elements, None where there are no gaps."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    pointer: int


def described(capsule: Any) -> Described:
    """What a capsule tells; it stays whole. Raises InputError for a dtype that there is not."""
    tensor = _Tensor.from_address(_pointer_of(capsule, NAME))
    axes = range(tensor.ndim)
    strides = tuple(tensor.strides[axis] for axis in axes) if tensor.strides else None
    kinds = {code: kind for kind, code in _KINDS.items()}
    own = {code: dtypes.parse(name) for name, code in _OWN_KINDS.items()}
    if tensor.code in own:
        dtype = own[tensor.code]
    elif tensor.code in kinds and tensor.lanes == 1:
        name = kinds[tensor.code]
        dtype = dtypes.of(np.dtype(name if name == "bool" else f"{name}{tensor.bits}"))
    else:
        raise InputError(f"[dlpack] expected a dtype of rlx, got DLPack's {tensor.code} of {tensor.bits} bits")
    shape = tuple(tensor.shape[axis] for axis in axes)
    return Described(dtype, shape, strides, (tensor.data or 0) + tensor.byte_offset)
