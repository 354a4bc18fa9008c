"""Arrays of mlx as what runs take and give."""

from __future__ import annotations

from rlx.backends.memory import DeviceArray
from rlx.backends.mlx.library import Value, mx, put, take
from rlx.errors import DeviceLost
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array


class MlxArray(DeviceArray):
    """`value` is mlx's array, in the dtype that ours is stored in, and computed. A program that writes a state takes
    it, and gives another: in the same memory, where nothing of mlx holds that any more."""

    def __init__(self, value: Value, dtype: DType, place: object) -> None:
        self.value: Value | None = value
        self.of = dtype
        self.dtype = dtype.numpy
        self.shape = tuple(value.shape)
        self.place = place
        self.device = f"mlx {place}"

    @staticmethod
    def of_host(array: Array, place: object) -> MlxArray:
        """A copy of an array of the host."""
        value = put(array)
        mx.eval(value)
        return MlxArray(value, dtypes.of(array.dtype), place)

    def there(self) -> Value:
        """The value. Raises DeviceLost where a run that failed in mlx had taken it."""
        if self.value is None:
            raise DeviceLost("[mlx] expected a state, got one that was lost with a run: bind_handle gives it a value")
        return self.value

    def numpy(self) -> Array:
        return take(self.there(), self.of)

    def copy(self) -> MlxArray:
        return MlxArray(self.there(), self.of, self.place)  # mlx copies what two have before it writes to it

    def read(self, index: tuple[int, ...]) -> Array:
        return take(self.there()[index], self.of)
