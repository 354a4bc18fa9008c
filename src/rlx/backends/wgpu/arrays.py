"""Arrays in buffers of a WebGPU device. Elements are stored as on the host, or each in words of its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.backends.memory import DeviceArray
from rlx.backends.wgpu.device import Device, translated
from rlx.backends.wgpu.layout import is_packed
from rlx.codegen.simt.language.wgsl.types import WORD_BYTES, Target, element_words, is_narrow_float
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array
from rlx.kernel.ir.program import Buffer


def words_of(nbytes: int) -> int:
    """Bytes of the whole words that hold so many."""
    return -(-nbytes // WORD_BYTES) * WORD_BYTES


def upload(device: Device, buffer: Any, offset: int, array: Array) -> None:
    """Writes an array's bytes, padded to whole words."""
    if array.nbytes == 0:
        return
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if data.nbytes % WORD_BYTES:
        data = np.concatenate([data, np.zeros(-data.nbytes % WORD_BYTES, np.uint8)])
    device.raw.queue.write_buffer(buffer, offset, data)


def lies_as_host(buffer: Buffer, target: Target) -> bool:
    """Whether a buffer's bytes on the device are those of the array on the host."""
    return is_packed(buffer, target) or target.is_native(buffer.dtype) or buffer.dtype.bits >= 8 * WORD_BYTES


def from_stored(dtype: DType, shape: tuple[int, ...], raw: Any, as_host: bool) -> Array:
    """Bytes on the device as an array."""
    if as_host:
        return np.frombuffer(raw, dtype.numpy).reshape(shape).copy()
    if is_narrow_float(dtype):
        return np.frombuffer(raw, np.float32).astype(dtype.numpy).reshape(shape)
    words = np.frombuffer(raw, np.int32 if dtype.kind == "int" else np.uint32)
    return words.astype(dtype.numpy).reshape(shape)


def to_stored(dtype: DType, array: Array, as_host: bool) -> Array:
    """An array whose bytes are those on the device."""
    if as_host:
        return array
    if is_narrow_float(dtype):
        return array.astype(np.float32)
    return array.astype(np.int32 if dtype.kind == "int" else np.uint32)


class WgpuArray(DeviceArray):
    """A buffer of its own. Whoever speaks with the device holds its lock.

    as_host   whether its bytes are those of the array on the host
    """

    def __init__(self, owner: Device, dtype: DType, shape: tuple[int, ...], as_host: bool) -> None:
        self.place = self.owner = owner
        self.device = owner.name
        self.of = dtype
        self.dtype = dtype.numpy
        self.shape = shape
        self.as_host = as_host
        self.element_bytes = dtype.itemsize if as_host else element_words(dtype) * WORD_BYTES
        self.stored_bytes = self.size * self.element_bytes
        usages = "STORAGE", "COPY_SRC"
        self.buffer = owner.buffer(max(words_of(self.stored_bytes), WORD_BYTES), "array", *usages)

    @staticmethod
    def of_host(owner: Device, array: Array, as_host: bool) -> WgpuArray:
        """A copy of an array of the host. Zeros are there without being written."""
        dtype = dtypes.of(array.dtype)
        with owner.lock, translated("array"):
            copied = WgpuArray(owner, dtype, array.shape, as_host or dtype.bits >= 8 * WORD_BYTES)
            if array.size and array.reshape(-1).view(np.uint8).any():
                upload(owner, copied.buffer, 0, to_stored(dtype, array, copied.as_host))
        return copied

    def lying(self, as_host: bool) -> WgpuArray:
        """The array with its elements lying so; through the host where they lie otherwise."""
        return self if self.as_host == as_host else WgpuArray.of_host(self.owner, self.numpy(), as_host)

    def numpy(self) -> Array:
        return self._read(0, self.shape)

    def read(self, index: tuple[int, ...]) -> Array:
        rest = self.shape[len(index) :]
        first = 0
        for i, extent in zip(index, self.shape):
            first = first * extent + i
        return self._read(first * math.prod(rest), rest)

    def _read(self, first: int, shape: tuple[int, ...]) -> Array:
        start, size = first * self.element_bytes, math.prod(shape) * self.element_bytes
        if size == 0:
            return np.zeros(shape, self.dtype)
        before = start % WORD_BYTES  # copies begin at words
        with self.owner.lock, translated("read"):
            raw = self.owner.raw
            length = words_of(before + size)
            staging = self.owner.buffer(length, "read", "MAP_READ")
            encoder = raw.create_command_encoder()
            encoder.copy_buffer_to_buffer(self.buffer, start - before, staging, 0, length)
            raw.queue.submit([encoder.finish()])
            self.owner.begin_mapping(staging).sync_wait()
            try:
                data = staging.read_mapped(0, length, copy=False)[before : before + size]
                return from_stored(self.of, shape, data, self.as_host)
            finally:
                staging.unmap()

    def copy(self) -> WgpuArray:
        with self.owner.lock, translated("copy"):
            copy = WgpuArray(self.owner, self.of, self.shape, self.as_host)
            encoder = self.owner.raw.create_command_encoder()
            encoder.copy_buffer_to_buffer(self.buffer, 0, copy.buffer, 0, self.buffer.size)
            self.owner.raw.queue.submit([encoder.finish()])
        return copy
