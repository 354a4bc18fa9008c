"""Reductions. A primitive keeps the reduced axes as 1 or drops them; means, variances and norms are composites."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Shape
from rlx.ir.op import Cost, Primitive, Tolerance, op
from rlx.ir.type import TensorType

Array = np.ndarray[Any, Any]


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """The shape after reducing these (normalised) axes."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


class Reduction(Primitive):
    """Common rule of reductions. `combine` is the instruction that joins two partial results."""

    axes: tuple[int, ...]
    keepdims: bool = False
    kinds: ClassVar[tuple[str, ...]] = ("int", "uint", "float")
    combine: ClassVar[str]
    numpy: ClassVar[str]

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, *self.kinds)
        return x.with_shape(reduced_shape(x.shape, expect.axes(self.axes, x.rank), self.keepdims))

    def reference(self, x: Array) -> Array:
        axes = tuple(a % x.ndim for a in self.axes)
        wide = x.astype(np.float64) if x.dtype.kind not in "biuc" else x
        with np.errstate(all="ignore"):
            result = getattr(np, self.numpy)(wide, axis=axes, keepdims=self.keepdims, **self._start(x))
            return np.asarray(result).astype(x.dtype)

    def _start(self, x: Array) -> dict[str, Any]:
        return {"dtype": x.dtype} if x.dtype.kind in "iuc" else {}

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        moved = sum((dims.mul(t.size, t.dtype.itemsize) for t in (*inputs, *outputs)), start=0)
        return Cost(flops=inputs[0].size, bytes=moved)


@op
class ReduceSum(Reduction):
    """Sum; 0 of nothing. Narrow floats add up in f32; integers wrap."""

    axes: tuple[int, ...]
    keepdims: bool = False
    kinds = ("int", "uint", "float", "complex")
    combine = "add"
    numpy = "sum"
    tolerance = Tolerance(64, scale=1)


@op
class ReduceProd(Reduction):
    """Product; 1 of nothing."""

    axes: tuple[int, ...]
    keepdims: bool = False
    combine = "mul"
    numpy = "prod"
    tolerance = Tolerance(64)


class _Extremum(Reduction):
    kinds = ("bool", "int", "uint", "float")

    def _start(self, x: Array) -> dict[str, Any]:
        return {"initial": identity(self.combine, x.dtype)}


def identity(combine: str, dtype: Any) -> Any:
    """The neutral element of a combining instruction, as a NumPy scalar of `dtype`."""
    of = dtypes.of(dtype)
    kind = of.numpy.type
    if combine in ("add", "or", "xor"):
        return kind(0)
    if combine == "mul":
        return kind(1)
    if of.is_float:
        return kind(np.inf if combine == "min" else -np.inf)
    if of is dtypes.bool_:
        return kind(combine in ("min", "and"))
    low, high = (0, (1 << of.bits) - 1) if of.kind == "uint" else (-(1 << (of.bits - 1)), (1 << (of.bits - 1)) - 1)
    return kind(high if combine in ("min", "and") else low)


@op
class ReduceMax(_Extremum):
    """Greatest; NaN if any is NaN; the least value of the dtype (-inf) of nothing."""

    axes: tuple[int, ...]
    keepdims: bool = False
    combine = "max"
    numpy = "max"


@op
class ReduceMin(_Extremum):
    """Least; NaN if any is NaN; the greatest value of the dtype (inf) of nothing."""

    axes: tuple[int, ...]
    keepdims: bool = False
    combine = "min"
    numpy = "min"


class _Argument(Primitive):
    """Index of an extremum along one axis. The first of equals wins, or the last; a NaN wins over all."""

    axis: int
    keepdims: bool = False
    last: bool = False
    combine: ClassVar[str]

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, "bool", "int", "uint", "float")
        axis = expect.axis(self.axis, x.rank)
        if x.shape[axis] == 0:
            raise ShapeError(f"expected an axis with elements, got {x}")
        return TensorType(reduced_shape(x.shape, (axis,), self.keepdims), dtypes.i64)

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float32) if x.dtype.kind == "V" else x
        pick = np.argmax if self.combine == "max" else np.argmin
        if self.last:
            turned = np.flip(wide, self.axis)
            return np.asarray(x.shape[self.axis] - 1 - pick(turned, self.axis, keepdims=self.keepdims)).astype(np.int64)
        return np.asarray(pick(wide, self.axis, keepdims=self.keepdims)).astype(np.int64)


@op
class Argmax(_Argument):
    """Index of the greatest along `axis`."""

    axis: int
    keepdims: bool = False
    last: bool = False
    combine = "max"


@op
class Argmin(_Argument):
    """Index of the least along `axis`."""

    axis: int
    keepdims: bool = False
    last: bool = False
    combine = "min"
