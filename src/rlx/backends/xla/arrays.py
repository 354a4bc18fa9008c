"""Arrays of jax as what runs take and give."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.backends.memory import DeviceArray
from rlx.codegen.scalar import emulation as emulation
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array


class XlaArray(DeviceArray):
    """`value` is jax's array, in the dtype that ours is stored in. A program that writes a state gives it another, in
    the same memory."""

    def __init__(self, value: Any, dtype: DType, place: Any) -> None:
        self.value = value
        self.of = dtype
        self.dtype = dtype.numpy
        self.shape = tuple(value.shape)
        self.place = place
        self.device = str(place)

    @staticmethod
    def of_host(array: Array, place: Any) -> XlaArray:
        """A copy of an array of the host."""
        import jax

        stored = emulation.to_stored(array)
        with jax.enable_x64(True):
            # what lies on the host could be taken as it is, and is not ours
            return XlaArray(jax.device_put(np.array(stored), place), dtypes.of(array.dtype), place)

    def numpy(self) -> Array:
        return emulation.from_stored(np.asarray(self.value), self.of)

    def copy(self) -> XlaArray:
        return XlaArray(self.value.copy(), self.of, self.place)

    def read(self, index: tuple[int, ...]) -> Array:
        return emulation.from_stored(np.asarray(self.value[index]), self.of)

    def __dlpack__(self, **options: Any) -> Any:
        if emulation.is_emulated(self.of):
            return super().__dlpack__(**options)
        return self.value.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        if emulation.is_emulated(self.of):
            return super().__dlpack_device__()
        kind, number = self.value.__dlpack_device__()
        return int(kind), int(number)
