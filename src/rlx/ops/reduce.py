"""Reductions. A primitive keeps the reduced axes as 1 or drops them; means, variances and norms are composites."""

from __future__ import annotations

from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Shape
from rlx.ir.dtype import accumulator
from rlx.ir.expr import INSTRUCTIONS
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Cost, Primitive, Tolerance, op
from rlx.ir.padding import Padded, Padding, Parts
from rlx.ir.type import TensorType
from rlx.ops.build import dims_tensor, div, exp, log, minimum, reduce_max, reduce_min, reduce_sum, select, sqrt, square

Array = np.ndarray[Any, Any]


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """The shape after reducing these (normalised) axes."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def reduced_axes(x: Padded, axes: tuple[int, ...], keepdims: bool) -> tuple[Parts, ...]:
    """The parts of the axes after reducing these (normalised) ones."""
    if keepdims:
        return tuple((1,) if i in axes else parts for i, parts in enumerate(x.axes))
    return tuple(parts for i, parts in enumerate(x.axes) if i not in axes)


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

    def padded(self, padding: Padding, x: Padded) -> Padded:
        axes = tuple(a % len(x.axes) for a in self.axes)
        result = padding.build(self, padding.filled(x, axes, identity(self.combine, x.value.dtype)).value)
        return Padded(result, reduced_axes(x, axes, self.keepdims))

    def _start(self, x: Array) -> dict[str, Any]:
        return {"dtype": x.dtype} if x.dtype.kind in "iuc" else {}

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        nbytes = sum((dims.mul(t.size, t.dtype.itemsize) for t in (*inputs, *outputs)), start=0)
        return Cost(flops=inputs[0].size, bytes=nbytes)


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
        end = kind(np.inf if combine == "min" else -np.inf)
        ends = ml_dtypes.finfo(of.numpy)
        return end if np.isinf(float(end)) else kind(ends.max if combine == "min" else ends.min)
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
    """Index of an extremum along one axis. The first of equals wins, or the last; a NaN wins over all.

    An axis without elements has none: ShapeError, when the graph is made or, of a dim that a run tells, before it runs.
    """

    axis: int
    keepdims: bool = False
    last: bool = False
    combine: ClassVar[str]

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, "bool", "int", "uint", "float")
        axis = expect.axis(self.axis, x.rank)
        extent, what = x.shape[axis], f"expected an axis with elements, got {x}"
        if extent == 0:
            raise ShapeError(what)
        expect.same_dim(extent, dims.maximum(extent, 1), what)
        return TensorType(reduced_shape(x.shape, (axis,), self.keepdims), dtypes.i64)

    def reference(self, x: Array) -> Array:
        if x.shape[self.axis] == 0:
            raise ShapeError(f"[{self.name}] expected an axis with elements, got {list(x.shape)}")
        wide = x.astype(np.float32) if x.dtype.kind == "V" else x
        pick = np.argmax if self.combine == "max" else np.argmin
        if self.last:
            flipped = np.flip(wide, self.axis)
            return np.asarray(x.shape[self.axis] - 1 - pick(flipped, self.axis, keepdims=self.keepdims)).astype(
                np.int64
            )
        return np.asarray(pick(wide, self.axis, keepdims=self.keepdims)).astype(np.int64)

    def padded(self, padding: Padding, x: Padded) -> Padded:
        """What does not count loses, or comes after its equals; where the last of these wins, all that counts are."""
        axis = self.axis % len(x.axes)
        x, extent = padding.in_front(x, axis), x.shape[axis]
        result = padding.build(self, padding.filled(x, (axis,), identity(self.combine, x.value.dtype)).value)
        if self.last and padding.is_open(extent):
            result = minimum(result, padding.size(dims.add(extent, -1)))
        return Padded(result, reduced_axes(x, (axis,), self.keepdims))


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


class Statistic(Composite):
    """Common rule of composite reductions: `exact` says it in NumPy on float64, `formula` in float32 or wider.

    x   float [...]; the axes fall away, or stay as 1 under `keepdims`
    """

    axes: tuple[int, ...]
    keepdims: bool = False
    kinds: ClassVar[tuple[str, ...]] = ("float",)
    tolerance = Tolerance(64, scale=1)

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, *self.kinds)
        return x.with_shape(reduced_shape(x.shape, expect.axes(self.axes, x.rank), self.keepdims))

    def exact(self, x: Array, **over: Any) -> Array:
        raise NotImplementedError

    def formula(self, x: Value) -> Value:
        raise NotImplementedError

    def reference(self, x: Array) -> Array:
        wide = x if dtypes.of(x.dtype).is_integer else x.astype(np.float64)
        with np.errstate(all="ignore"):
            result = self.exact(wide, axis=tuple(a % x.ndim for a in self.axes), keepdims=self.keepdims)
            return np.asarray(result).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        return self.formula(x.cast(accumulator(x.dtype))).cast(x.dtype)

    def total(self, x: Value) -> Value:
        """The sum over this op's axes."""
        return reduce_sum(x, axes=self.axes, keepdims=self.keepdims)


def count(x: Value, axes: tuple[int, ...]) -> Value:
    """Number of elements that a reduction of x over these axes joins, as a scalar of x's dtype."""
    extent = dims.product(x.shape[a] for a in axes)
    if isinstance(extent, int):
        return x.graph.constant(extent, x.dtype)
    return dims_tensor(x.graph, values=(extent,), dtype=x.dtype).reshape()


def mean(x: Value, axes: tuple[int, ...], keepdims: bool = True) -> Value:
    """Sum over the axes by their number of elements."""
    return div(reduce_sum(x, axes=axes, keepdims=keepdims), count(x, axes))


@op
class ReduceMean(Statistic):
    """Sum by number; NaN of nothing. Integers divide towards zero, 0 of nothing; narrow ones are added up in 64 bits,
    since neither their sum nor their number need fit."""

    axes: tuple[int, ...]
    keepdims: bool = False
    kinds = ("int", "uint", "float")

    def exact(self, x: Array, **over: Any) -> Array:
        dtype = dtypes.of(x.dtype)
        if not dtype.is_integer:
            return np.asarray(np.sum(x, **over, dtype=x.dtype) / np.prod([x.shape[a] for a in over["axis"]]))
        wide = x.astype(np.int64) if dtype.bits < 64 else x  # f64 would not hold all of an i64
        number = np.asarray(np.prod([x.shape[a] for a in over["axis"]], dtype=np.int64)).astype(wide.dtype)
        return np.asarray(INSTRUCTIONS["div"].numpy(np.sum(wide, **over, dtype=wide.dtype), number)).astype(x.dtype)

    def formula(self, x: Value) -> Value:
        if x.dtype.is_integer and x.dtype.bits < 64:
            return mean(x.cast("i64"), self.axes, self.keepdims).cast(x.dtype)
        return mean(x, self.axes, self.keepdims)


@op
class ReduceVariance(Statistic):
    """Mean squared distance from the mean (two passes); `correction` is taken off the number: 1 for a sample."""

    axes: tuple[int, ...]
    keepdims: bool = False
    correction: int = 0

    def exact(self, x: Array, **over: Any) -> Array:
        number = np.prod([x.shape[a] for a in over["axis"]])
        distance = x - x.sum(over["axis"], keepdims=True) / np.float64(number)
        return np.asarray(np.sum(distance * distance, **over) / np.float64(number - self.correction))

    def formula(self, x: Value) -> Value:
        return div(self.total(square(x - mean(x, self.axes))), count(x, self.axes) - self.correction)


@op
class ReduceL1(Statistic):
    """Sum of |x|."""

    axes: tuple[int, ...]
    keepdims: bool = False
    kinds = ("int", "uint", "float")

    def exact(self, x: Array, **over: Any) -> Array:
        return np.asarray(np.sum(np.abs(x), **over, dtype=x.dtype))

    def formula(self, x: Value) -> Value:
        return self.total(abs(x))


@op
class ReduceL2(Statistic):
    """√ of the sum of squares. Squares past the range of the accumulator give inf."""

    axes: tuple[int, ...]
    keepdims: bool = False

    def exact(self, x: Array, **over: Any) -> Array:
        return np.asarray(np.sqrt(np.sum(x * x, **over)))

    def formula(self, x: Value) -> Value:
        return sqrt(self.total(square(x)))


@op
class ReduceSumSquare(Statistic):
    """Sum of squares; integers wrap."""

    axes: tuple[int, ...]
    keepdims: bool = False
    kinds = ("int", "uint", "float")

    def exact(self, x: Array, **over: Any) -> Array:
        return np.asarray(np.sum(x * x, **over, dtype=x.dtype))

    def formula(self, x: Value) -> Value:
        return self.total(square(x))


@op
class ReduceLogSum(Statistic):
    """Logarithm of the sum."""

    axes: tuple[int, ...]
    keepdims: bool = False

    def exact(self, x: Array, **over: Any) -> Array:
        return np.asarray(np.log(np.sum(x, **over)))

    def formula(self, x: Value) -> Value:
        return log(self.total(x))


@op
class ReduceLogSumExp(Statistic):
    """Logarithm of the sum of eˣ, safe for any x: the greatest is taken out first. -inf of nothing."""

    axes: tuple[int, ...]
    keepdims: bool = False

    def exact(self, x: Array, **over: Any) -> Array:
        return np.asarray(np.logaddexp.reduce(x, **over, initial=-np.inf))

    def formula(self, x: Value) -> Value:
        top = reduce_max(x, axes=self.axes, keepdims=True)
        # An infinite top would make inf - inf; without it, e^inf and log 0 give the right infinities.
        finite = select(abs(top) < float("inf"), top, 0)
        total = log(reduce_sum(exp(x - finite), axes=self.axes, keepdims=True)) + finite
        return total if self.keepdims else total.reshape(reduced_shape(x.shape, expect.axes(self.axes, x.rank), False))


class _Logical(Composite):
    axes: tuple[int, ...]
    keepdims: bool = False

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, "bool")
        return x.with_shape(reduced_shape(x.shape, expect.axes(self.axes, x.rank), self.keepdims))


@op
class ReduceAny(_Logical):
    """Whether any is true; false of nothing. x bool [...]."""

    axes: tuple[int, ...]
    keepdims: bool = False

    def reference(self, x: Array) -> Array:
        return np.asarray(np.any(x, axis=tuple(self.axes), keepdims=self.keepdims))

    def decompose(self, x: Value) -> Value:
        return reduce_max(x, axes=self.axes, keepdims=self.keepdims)


@op
class ReduceAll(_Logical):
    """Whether all are true; true of nothing. x bool [...]."""

    axes: tuple[int, ...]
    keepdims: bool = False

    def reference(self, x: Array) -> Array:
        return np.asarray(np.all(x, axis=tuple(self.axes), keepdims=self.keepdims))

    def decompose(self, x: Value) -> Value:
        return reduce_min(x, axes=self.axes, keepdims=self.keepdims)
