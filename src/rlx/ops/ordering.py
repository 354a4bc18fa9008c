"""Ordering: the top k of a row, and sorting of whole rows.

NaN is greater than all other numbers, -0.0 and 0.0 are equal, and of equal elements the first comes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.graph import Value, call
from rlx.ir.op import Composite, Cost, Primitive, op
from rlx.ir.padding import Padded, Padding
from rlx.ir.type import TensorType
from rlx.ops.reduce import identity

Array = np.ndarray[Any, Any]


def order_of(x: Array, axis: int, largest: bool) -> Array:
    """Positions along the axis in order, of equals the lower one first."""
    keys = x.astype(np.float32) if x.dtype.kind == "V" else x
    if not largest:
        return np.argsort(keys, axis, kind="stable")
    # sorting the axis backwards, stably, and turning the result around keeps equals in their order
    places = np.argsort(np.flip(keys, axis), axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(places, axis))


@op
class TopK(Primitive):
    """The k greatest (or least) along an axis, in order, and their positions.

    x        any but complex [..., n, ...]
    results  like x [..., k, ...], positions i64; k is at most n
    """

    axis: int
    k: Dim
    largest: bool = True

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        expect.kind(x, "bool", "int", "uint", "float")
        axis = expect.axis(self.axis, x.rank)
        least = dims.minimum(self.k, x.shape[axis])
        expect.same_dim(least, self.k, f"expected k of at most {x.shape[axis]}, got {self.k}")
        shape = tuple(self.k if i == axis else d for i, d in enumerate(x.shape))
        return x.with_shape(shape), TensorType(shape, dtypes.i64)

    def reference(self, x: Array) -> tuple[Array, Array]:
        order = order_of(x, self.axis % x.ndim, self.largest).take(range(dims.evaluate(self.k, {})), self.axis)
        return np.take_along_axis(x, order, self.axis), order.astype(np.int64)

    def padded(self, padding: Padding, x: Padded) -> tuple[Padded, Padded]:
        """What does not count comes behind its equals, and behind all others."""
        axis, of = self.axis % len(x.axes), x.value.dtype
        x = padding.in_front(x, axis)
        last = identity("max", of) if self.largest else np.nan if of.is_float else identity("min", of)
        result = padding.graph.add(self, padding.filled(x, (axis,), last).value)
        assert isinstance(result, tuple)  # it has two results
        axes = (*x.axes[:axis], (self.k,), *x.axes[axis + 1 :])
        return Padded(result[0], axes), Padded(result[1], axes)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        """A comparison with the least of the best for every element, and some sorting."""
        return Cost(dims.mul(4, inputs[0].size), 0, super().cost(inputs, outputs).bytes)


@op
class Sort(Composite):
    """x in order along an axis, equals as they lay.

    x   any but complex [...]
    """

    axis: int = -1
    descending: bool = False

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, "bool", "int", "uint", "float")
        expect.axis(self.axis, x.rank)
        return x

    def reference(self, x: Array) -> Array:
        return np.take_along_axis(x, order_of(x, self.axis % x.ndim, self.descending), self.axis)

    def decompose(self, x: Value) -> Value:
        return _sorted(x, self.axis, self.descending)[0]


@op
class Argsort(Composite):
    """Positions that put x in order along an axis, i64, equals as they lay.

    x   any but complex [...]
    """

    axis: int = -1
    descending: bool = False

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, "bool", "int", "uint", "float")
        expect.axis(self.axis, x.rank)
        return TensorType(x.shape, dtypes.i64)

    def reference(self, x: Array) -> Array:
        return order_of(x, self.axis % x.ndim, self.descending).astype(np.int64)

    def decompose(self, x: Value) -> Value:
        return _sorted(x, self.axis, self.descending)[1]


def _sorted(x: Value, axis: int, descending: bool) -> tuple[Value, Value]:
    results = call("top_k", x, axis=axis, k=x.shape[axis], largest=descending)
    assert isinstance(results, tuple)  # the op has two results
    return results[0], results[1]
