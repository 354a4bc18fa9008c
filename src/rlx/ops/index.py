"""Ops whose operands say which elements: gather in its forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir import dim as dims
from rlx.ir import expect
from rlx.ir.op import Cost, Primitive, op
from rlx.ir.type import TensorType

Array = np.ndarray[Any, Any]


@op
class Gather(Primitive):
    """x taken at `indices` along `axis`: the axis is replaced by the axes of `indices`.

    Negative indices count from the back; an index out of range is clamped to the nearest element.
    """

    axis: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        expect.rank(x, 1)
        expect.integer(indices, "indices")
        axis = expect.axis(self.axis, x.rank)
        return x.with_shape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def reference(self, x: Array, indices: Array) -> Array:
        extent = x.shape[self.axis]
        if extent == 0:
            axis = self.axis % x.ndim
            return np.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
        wide = indices.astype(np.int64)
        return np.take(x, np.clip(np.where(wide < 0, wide + extent, wide), 0, extent - 1), self.axis)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        read = dims.mul(inputs[1].size, inputs[1].dtype.itemsize)
        return Cost(bytes=dims.add(read, dims.mul(outputs[0].size, 2 * outputs[0].dtype.itemsize)))


@op
class GatherElements(Primitive):
    """out[…, i, …] = x[…, indices[…, i, …], …] along `axis`. Negative and wild indices as in Gather."""

    axis: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        expect.integer(indices, "indices")
        expect.rank(indices, x.rank, "indices", at_most=x.rank)
        expect.axis(self.axis, x.rank)
        return x.with_shape(indices.shape)

    def reference(self, x: Array, indices: Array) -> Array:
        extent = x.shape[self.axis]
        wide = indices.astype(np.int64)
        inside = np.clip(np.where(wide < 0, wide + extent, wide), 0, max(extent - 1, 0))
        cut = tuple(slice(None) if i == self.axis % x.ndim else slice(d) for i, d in enumerate(indices.shape))
        return np.take_along_axis(x[cut], inside, self.axis)
