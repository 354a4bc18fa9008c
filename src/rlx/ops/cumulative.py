"""Running reductions: every element is combined with all elements before it along an axis."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from rlx.ir import expect
from rlx.ir.op import Cost, Primitive, Tolerance, op
from rlx.ir.padding import Padded, Padding
from rlx.ir.type import TensorType
from rlx.ops.reduce import identity

Array = np.ndarray[Any, Any]


class Cumulative(Primitive):
    """Common rule. `combine` is the instruction that joins two elements.

    exclusive   an element is not part of its own result: the first is the identity (0, 1, the least, the greatest)
    reverse     from the end of the axis to its beginning
    """

    axis: int
    exclusive: bool
    reverse: bool
    kinds: ClassVar[tuple[str, ...]] = ("int", "uint", "float")
    combine: ClassVar[str]
    numpy: ClassVar[np.ufunc]

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, *self.kinds)
        expect.axis(self.axis, x.rank)
        return x

    def reference(self, x: Array) -> Array:
        wide = x if x.dtype.kind in "biu" else x.astype(np.float64)
        wide = np.flip(wide, self.axis) if self.reverse else wide
        with np.errstate(all="ignore"):
            totals = np.asarray(self.numpy.accumulate(wide, self.axis, dtype=wide.dtype)) if x.size else wide
            if self.exclusive:
                totals = self._shifted(totals, x)
            return np.asarray(np.flip(totals, self.axis) if self.reverse else totals).astype(x.dtype)

    def padded(self, padding: Padding, x: Padded) -> Padded:
        axis = self.axis % len(x.axes)
        x, extent = padding.in_front(x, axis), x.shape[axis]
        if self.reverse:
            x = padding.filled(x, (axis,), identity(self.combine, x.value.dtype))
        return Padded(padding.build(self, x.value), (*x.axes[:axis], (extent,), *x.axes[axis + 1 :]))

    def _shifted(self, totals: Array, x: Array) -> Array:
        """Everything one place further on, the identity in front."""
        first = np.full([1 if i == self.axis % x.ndim else d for i, d in enumerate(x.shape)], 0, totals.dtype)
        first[...] = identity(self.combine, x.dtype)
        return np.concatenate([first, totals], self.axis).take(range(x.shape[self.axis]), self.axis)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return Cost(inputs[0].size, 0, super().cost(inputs, outputs).bytes)


@op
class Cumsum(Cumulative):
    """Running sum. Narrow floats add up in f32; integers wrap."""

    axis: int
    exclusive: bool = False
    reverse: bool = False
    combine = "add"
    numpy = np.add
    tolerance = Tolerance(64, scale=1)


@op
class Cumprod(Cumulative):
    """Running product. Narrow floats multiply in f32; integers wrap."""

    axis: int
    exclusive: bool = False
    reverse: bool = False
    combine = "mul"
    numpy = np.multiply
    tolerance = Tolerance(64)


@op
class Cummax(Cumulative):
    """Greatest so far; NaN from the first NaN on."""

    axis: int
    exclusive: bool = False
    reverse: bool = False
    kinds = ("bool", "int", "uint", "float")
    combine = "max"
    numpy = np.maximum


@op
class Cummin(Cumulative):
    """Least so far; NaN from the first NaN on."""

    axis: int
    exclusive: bool = False
    reverse: bool = False
    kinds = ("bool", "int", "uint", "float")
    combine = "min"
    numpy = np.minimum
