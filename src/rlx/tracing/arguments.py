"""Arguments of a call as arrays: NumPy's, those of other libraries by DLPack, Python's numbers; and results as the
arrays that the caller works with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.backends.memory import DeviceArray
from rlx.errors import DTypeError, InputError
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Value
from rlx.ir.literal import Array
from rlx.records import dataclass
from rlx.runtime.dlpack import array_of

NUMBERS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


@dataclass(frozen=True)
class Kind:
    """What a trace depends on of a leaf, beside its sizes. A number of Python's takes the dtype of what it meets."""

    dtype: DType
    rank: int
    is_number: bool = False

    def __str__(self) -> str:
        return f"a number ({self.dtype})" if self.is_number else f"{self.dtype} of rank {self.rank}"


def as_array(name: str, leaf: Any) -> tuple[Any, Kind]:
    """A leaf as an array, which runs take, and what it is. Raises InputError, DTypeError."""
    kind = type(leaf)
    if kind in NUMBERS:
        try:
            array = np.asarray(leaf, NUMBERS[kind])
        except OverflowError:
            raise InputError(f"[jit] expected an int of 64 bits as {name}, got {leaf}") from None
        return array, Kind(dtypes.of(array.dtype), 0, True)
    if isinstance(leaf, np.generic):
        leaf = np.asarray(leaf)
    elif not isinstance(leaf, (np.ndarray, DeviceArray)):
        leaf = _from_dlpack(name, leaf)
    try:
        return leaf, Kind(dtypes.of(leaf.dtype), len(leaf.shape))
    except DTypeError as error:
        raise DTypeError(f"[jit] {error}, as {name}") from None


def _from_dlpack(name: str, leaf: Any) -> Array:
    if not hasattr(leaf, "__dlpack__"):
        raise InputError(
            f"[jit] expected arrays, numbers, or tuples, lists and dicts of them, got {type(leaf).__name__} as {name}: "
            f"static=({name.partition('.')[0]!r},) makes an argument part of the program"
        )
    try:
        return array_of(leaf)
    except Exception as error:  # whatever the exporter raises
        got = f"{type(leaf).__name__}, which DLPack cannot hand over"
        raise InputError(f"[jit] expected an array as {name}, got {got}: {error}") from None


def is_value(leaf: Any) -> bool:
    """Whether a leaf is a value of a graph: the function is part of another then."""
    return isinstance(leaf, Value)


def library_of(leaves: list[Any]) -> str | None:
    """The library whose tensors are among the arguments, if it gets its own back."""
    for leaf in leaves:
        library = type(leaf).__module__.partition(".")[0]
        if library in _BACK or library == "jaxlib":
            return "jax" if library == "jaxlib" else library
    return None


def _to_torch(array: Array) -> Any:
    torch = sys.modules["torch"]
    if array.dtype.kind == "V" or array.dtype.name in ("bfloat16",):  # NumPy's DLPack has no name for it
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_jax(array: Array) -> Any:
    return sys.modules["jax"].numpy.asarray(array)


_BACK: dict[str, Callable[[Array], Any]] = {"torch": _to_torch, "jax": _to_jax}


def given_back(library: str) -> Callable[[list[Array]], list[Any]]:
    """What makes results of the library's kind."""
    convert = _BACK[library]
    return lambda arrays: [convert(array) for array in arrays]
