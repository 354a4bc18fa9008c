"""Arrays in the memory of a GPU, with their elements as on the host."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlx.backends.cuda.device import SMALL_BYTES, Borrowed, Device, Memory, Reading
from rlx.backends.cuda.dlpack import capsule_of, described
from rlx.backends.cuda.driver import Driver
from rlx.backends.memory import HOST_DLPACK, AdoptingPlace, DeviceArray, Late
from rlx.errors import InputError
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array

_TORCH = {
    "torch.float64": "f64", "torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16",
    "torch.int64": "i64", "torch.int32": "i32", "torch.int16": "i16", "torch.int8": "i8", "torch.uint8": "u8",
    "torch.bool": "bool",
}  # fmt: skip
"""Torch's dtypes, of which tensors are taken without DLPack."""


class CudaArray(DeviceArray):
    """An array from the start of a memory. What fills it was given to the device's stream, and may not be done yet."""

    def __init__(self, owner: Device, dtype: DType, shape: tuple[int, ...], memory: Memory) -> None:
        self.place = owner.place or place_of(owner)
        self.owner = owner
        self.device = owner.told
        self.of = dtype
        self.dtype = dtype.numpy
        self.shape = shape
        self.memory = memory
        self._reading: Reading | None = None

    @staticmethod
    def empty(owner: Device, dtype: DType, shape: tuple[int, ...], what: str) -> CudaArray:
        """Call it within `Device.work`. Raises OutOfMemory."""
        return CudaArray(owner, dtype, shape, owner.allocate(math.prod(shape) * dtype.itemsize, what))

    @staticmethod
    def of_host(owner: Device, array: Array, what: str = "an array") -> CudaArray:
        """A copy of an array of the host."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        with owner.work("bind") as driver:
            copied = CudaArray.empty(owner, dtypes.of(array.dtype), array.shape, what)
            if array.nbytes:
                driver.copy_in(copied.pointer, array.ctypes.data, array.nbytes, owner.stream)
                driver.synchronise(owner.stream)  # the caller may change its array
        return copied

    @property
    def pointer(self) -> int:
        return self.memory.pointer

    def start_reading(self) -> None:
        if 0 < self.nbytes <= SMALL_BYTES and self._reading is None:
            with self.owner.work("run"):
                self._reading = Reading.of(self.owner, self.pointer, self.nbytes)

    def numpy(self) -> Array:
        self.settle()
        reading, self._reading = self._reading, None
        if reading is None:
            return self._read(0, self.shape)
        result = np.empty(self.shape, self.dtype)
        reading.into(result.reshape(-1).view(np.uint8))
        return result

    def read(self, index: tuple[int, ...]) -> Array:
        self.settle()
        rest = self.shape[len(index) :]
        first = 0
        for i, extent in zip(index, self.shape):
            first = first * extent + i
        return self._read(first * math.prod(rest), rest)

    def _read(self, first: int, shape: tuple[int, ...]) -> Array:
        result = np.empty(shape, self.dtype)
        if result.nbytes:
            with self._seen() as driver:
                start = self.pointer + first * self.dtype.itemsize
                driver.copy_out(result.ctypes.data, start, result.nbytes, self.owner.stream)
                driver.synchronise(self.owner.stream)
        return result

    @contextmanager
    def _seen(self) -> Iterator[Driver]:
        """The driver, for who reads the bytes in the order of the device's stream."""
        with self.owner.work("run") as driver:
            if isinstance(self.memory, Borrowed):
                self.memory.follow()
            yield driver

    def copy(self) -> CudaArray:
        self.settle()
        with self._seen() as driver:
            copy = CudaArray.empty(self.owner, self.of, self.shape, "a copy of an array")
            if self.nbytes:
                driver.copy(copy.pointer, self.pointer, self.nbytes, self.owner.stream)
        return copy

    def __dlpack__(self, **options: Any) -> Any:
        """A capsule of this memory. `stream` is that of who takes it: it waits for ours; -1 says that it need not."""
        wanted = options.get("dl_device")
        if wanted is not None and tuple(wanted) == HOST_DLPACK:
            return self.numpy().__dlpack__()
        if wanted is not None and tuple(wanted) != self.__dlpack_device__():
            raise BufferError(f"[dlpack] expected {self.device} or the host, got the device {wanted}")
        if not self.owner.api.dlpack:
            raise BufferError(
                f"[dlpack] expected memory that other libraries take, got {self.device}: .numpy() copies it"
            )
        self.settle()
        array = self.copy() if options.get("copy") else self
        with self._seen():
            stream = options.get("stream")
            if stream != -1:
                self.owner.let_wait(self.owner.api.legacy_stream if stream is None else int(stream))
        array.memory.shared = True
        return capsule_of(self.of, self.shape, array.pointer if self.size else 0, self.__dlpack_device__(), array)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.owner.api.dlpack, self.owner.ordinal

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What other libraries read the memory by. All that fills it is done: not all of them wait for a stream."""
        if not self.owner.api.dlpack:
            raise AttributeError(f"[{self.owner.api.device}] expected memory of CUDA's kind: .numpy() copies it")
        if self.dtype.isbuiltin != 1:
            raise AttributeError(
                f"[{self.owner.api.device}] expected a dtype of NumPy, got {self.dtype}: DLPack hands it over"
            )
        self.settle()
        with self._seen() as driver:
            driver.synchronise(self.owner.stream)
        self.memory.shared = True
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer if self.size else 0, False),
            "strides": None, "version": 3,
        }  # fmt: skip


class LateArray(Late):
    """An array of at most SMALL_BYTES on its way to the host."""

    def __init__(self, dtype: DType, shape: tuple[int, ...], reading: Reading) -> None:
        self.dtype = dtype.numpy
        self.shape = shape
        self._reading = reading

    def is_there(self) -> bool:
        return self._reading.is_there()

    def numpy(self) -> Array:
        result = np.empty(self.shape, self.dtype)
        self._reading.into(result.reshape(-1).view(np.uint8))
        return result


class CudaPlace(AdoptingPlace):
    """The memory of a device, whose arrays of other libraries are taken as they are."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._torch: Any = None
        self._torch_type: Any = None
        self._torch_dtypes: dict[Any, DType | None] = {}
        self._current: Callable[[int], int] = int

    def adopt(self, value: Any) -> CudaArray | None:
        """Raises InputError for an array with gaps, or of a dtype that there is not."""
        if not self.device.api.dlpack:
            return None
        torch = sys.modules.get("torch")
        if torch is not None:
            if self._torch is not torch:
                self._know(torch)
            if type(value) is self._torch_type and value.is_cuda:
                array = self._of_torch(torch, value)
                if array is not None:
                    return array
        if hasattr(value, "__dlpack_device__"):
            if tuple(map(int, value.__dlpack_device__())) != (self.device.api.dlpack, self.device.ordinal):
                return None
            return self._of_dlpack(value)
        interface = getattr(value, "__cuda_array_interface__", None)
        return None if interface is None else self._of_interface(value, interface)

    def _know(self, torch: Any) -> None:
        """Finds what tensors of this torch are told by: its dtypes, and how it tells its current stream."""
        ours = self.device.api.torch and getattr(torch.version, self.device.api.torch) is not None
        self._torch = torch
        self._torch_type = torch.Tensor if ours else None
        raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
        self._current = raw or (lambda ordinal: torch.cuda.current_stream(ordinal).cuda_stream)
        self._torch_dtypes.clear()

    def _torch_dtype(self, told: Any) -> DType | None:
        """Torch's dtype as ours, None where tensors of it go by DLPack."""
        if told not in self._torch_dtypes:
            name = _TORCH.get(str(told))
            self._torch_dtypes[told] = None if name is None else dtypes.parse(name)
        return self._torch_dtypes[told]

    def _of_torch(self, torch: Any, value: Any) -> CudaArray | None:
        """A tensor of which nothing is to be known but its memory, without what DLPack costs: torch makes objects for
        streams and events at each exchange. None for any other."""
        device = self.device
        dtype = self._torch_dtypes.get(value.dtype) or self._torch_dtype(value.dtype)
        if dtype is None or value.layout is not torch.strided or value.get_device() != device.ordinal:
            return None
        if value.is_neg():
            return None
        theirs = self._current(device.ordinal) or device.api.legacy_stream
        shape = tuple(value.shape)
        if not value.is_contiguous():
            return self._array(value, dtype, shape, value.stride(), value.data_ptr(), theirs)
        memory = Borrowed(device, value.data_ptr(), math.prod(shape) * dtype.itemsize, value, theirs)
        return CudaArray(device, dtype, shape, memory)

    def _of_dlpack(self, value: Any) -> CudaArray:
        for lazy in ("detach", "resolve_conj", "resolve_neg"):  # of torch: what it has noted beside the memory
            value = getattr(value, lazy, lambda captured=value: captured)()
        number = self.device.driver.stream_number(self.device.own_stream)
        try:
            capsule = value.__dlpack__(stream=number)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:  # what exporters raise, each its own
            kind = type(value).__name__
            raise InputError(
                f"[{self.device.api.device}] expected an array that DLPack hands over, got {kind}: {error}"
            ) from error
        told = described(capsule)
        return self._array(value, told.dtype, told.shape, told.strides, told.pointer)

    def _of_interface(self, value: Any, interface: Mapping[str, Any]) -> CudaArray:
        if interface.get("mask") is not None:
            raise InputError(f"[{self.device.api.device}] expected an array without a mask, got one with it")
        dtype, strides = dtypes.of(np.dtype(interface["typestr"])), interface.get("strides")
        stream = interface.get("stream")
        elements = None if strides is None else tuple(stride // dtype.itemsize for stride in strides)
        with self.device.work("run") as driver:
            if stream is None:
                driver.synchronise_all()
            else:
                driver.synchronise(int(stream))
        return self._array(value, dtype, tuple(interface["shape"]), elements, interface["data"][0])

    def _array(
        self, owner: Any, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None, pointer: int,
        stream: int | None = None,
    ) -> CudaArray:  # fmt: skip
        expected = 1
        for extent, stride in zip(reversed(shape), reversed(strides or ())):
            if extent != 1 and stride != expected:
                raise InputError(
                    f"[{self.device.api.device}] expected an array without gaps, row by row, got {shape} in strides "
                    f"{strides}"
                )
            expected *= extent
        borrowed = Borrowed(self.device, pointer, expected * dtype.itemsize, owner, stream)
        return CudaArray(self.device, dtype, shape, borrowed)


def place_of(device: Device) -> CudaPlace:
    """The one place of a device."""
    if device.place is None:
        device.place = CudaPlace(device)
    place = device.place
    assert isinstance(place, CudaPlace)
    return place
