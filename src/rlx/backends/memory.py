"""Arrays in the memory of devices: runs accept and return them without copies, and states are stored in them.

A `DeviceArray` has a dtype and a shape like a NumPy array, supports DLPack, and converts to NumPy on request
(`np.asarray`). Backends derive their own classes; `HostArray` is for devices whose memory is the host's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from rlx.ir.literal import Array

Where = Literal["host", "device", "unchecked", "soon", "nowhere"]
"""Where a result of a run is wanted. `unchecked` is on the device before it is known whether the run's checks hold:
whoever uses it is told (`DeviceArray.checks`). `soon` is on its way to the host (`Late`)."""

HOST_DLPACK = (1, 0)
"""The processor's memory, in DLPack's numbers."""


class Late(ABC):
    """A small result that is on its way to the host."""

    @abstractmethod
    def is_there(self) -> bool: ...

    @abstractmethod
    def numpy(self) -> Array:
        """The result, when it is there. To be called once."""


class LateCheck(Protocol):
    """What a run is yet to tell of its data."""

    def holds(self) -> bool:
        """Whether it is known to hold by now: nobody waits."""

    def settle(self) -> None:
        """Waits until it is known. Raises InputError if it does not hold."""


class DeviceArray(ABC):
    """An array on a device, row-major without gaps. Nobody writes to it but programs whose state it is.

    place    what memory it lies in: programs of that take it as it is
    device   the same for people
    checks   what must hold of the runs that made it: it is told before anyone but a run sees the array
    """

    checks: tuple[LateCheck, ...] = ()
    place: object
    device: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @abstractmethod
    def numpy(self) -> Array:
        """The array on the host, read-only where that is no copy."""

    @abstractmethod
    def copy(self) -> DeviceArray:
        """An array of its own on the device."""

    @abstractmethod
    def read(self, index: tuple[int, ...]) -> Array:
        """The part at indices along the first axes, none of them negative, on the host: no other bytes move."""

    def start_reading(self) -> None:  # noqa: B027  # most have nothing to begin
        """Begins to bring the array to the host, if it is small: `numpy` then waits for it alone, and for no work that
        the device is given from now on."""

    def settle(self) -> None:
        """Waits for what is checked of the runs that made it. Raises InputError for what does not hold."""
        for check in self.checks:
            check.settle()
        self.checks = ()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return np.array(array) if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        return np.array(self.numpy()).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST_DLPACK

    def __repr__(self) -> str:
        return f"<{self.dtype.name}{list(self.shape)} on {self.device}>"


class AdoptingPlace(ABC):
    """A memory whose arrays of other libraries runs take without a copy."""

    @abstractmethod
    def adopt(self, value: Any) -> DeviceArray | None:
        """An array of another library as one of ours, in the same memory; None for what does not lie here."""


class HostArray(DeviceArray):
    """A NumPy array as an array on a device."""

    device = "cpu"
    place = HOST_DLPACK

    def __init__(self, array: Array) -> None:
        self._array = array
        self.dtype = array.dtype
        self.shape = array.shape

    def numpy(self) -> Array:
        return self._array

    def copy(self) -> HostArray:
        return HostArray(self._array.copy())

    def read(self, index: tuple[int, ...]) -> Array:
        return np.array(self._array[index])

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)


class FrontArray(DeviceArray):
    """The first entries along every axis of an array that is larger: a result of a program that has room for more.

    whole   a program with that much room takes it as it is; what lies behind the first entries is anything
    """

    def __init__(self, whole: DeviceArray, shape: tuple[int, ...]) -> None:
        self.whole = whole
        self.dtype = whole.dtype
        self.shape = shape
        self.place = whole.place
        self.device = whole.device

    def numpy(self) -> Array:
        return np.array(self.whole.numpy()[self._front(0)], order="C")

    def copy(self) -> FrontArray:
        return FrontArray(self.whole.copy(), self.shape)

    def read(self, index: tuple[int, ...]) -> Array:
        return np.array(self.whole.read(index)[self._front(len(index))], order="C")

    def _front(self, first: int) -> tuple[Any, ...]:
        return (*(slice(n) for n in self.shape[first:]), ...)


def plain(values: Sequence[Any]) -> list[Any]:
    """All as arrays of their very shapes: fronts as NumPy arrays, others as they are."""
    return [value.numpy() if isinstance(value, FrontArray) else value for value in values]


def on_host(values: Sequence[Array | DeviceArray]) -> list[Array]:
    """All as NumPy arrays."""
    return [value.numpy() if isinstance(value, DeviceArray) else value for value in values]
