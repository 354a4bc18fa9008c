"""Linear algebra: the general contraction, and matmul on top of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dtype import DType
from rlx.ir.graph import Value, build
from rlx.ir.op import Composite, Cost, Primitive, Tolerance, op
from rlx.ir.padding import Padded, Padding
from rlx.ir.type import TensorType

Array = np.ndarray[Any, Any]


@op
class DotGeneral(Primitive):
    """Sum of products over the contracting axes, for every batch index.

    Result axes: batch axes, then the free axes of lhs, then those of rhs. Narrow floats add up in f32, integers wrap.
    With `sum_dtype`, i32 for example, the operands are integers of that width at most, each of its own dtype; they are
    multiplied and added in it, and it is the result's dtype.
    """

    lhs_contract: tuple[int, ...]
    rhs_contract: tuple[int, ...]
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    sum_dtype: DType | None = None
    tolerance = Tolerance(64, scale=1)

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        expect.kind(lhs, "int", "uint", "float", "complex", name="lhs")
        dtype = expect.product_dtype(lhs, rhs, self.sum_dtype)
        left = expect.axes((*self.lhs_batch, *self.lhs_contract), lhs.rank, "lhs axes")
        right = expect.axes((*self.rhs_batch, *self.rhs_contract), rhs.rank, "rhs axes")
        if len(self.lhs_batch) != len(self.rhs_batch) or len(left) != len(right):
            raise ShapeError("expected as many batch and contracting axes on both sides")
        paired = []
        for i, (a, b) in enumerate(zip(left, right)):
            kind = "batch" if i < len(self.lhs_batch) else "contracting"
            text = f"{kind} dims differ: lhs is {lhs}, rhs is {rhs}"
            paired.append(expect.same_dim(lhs.shape[a], rhs.shape[b], text))
        rows = [d for i, d in enumerate(lhs.shape) if i not in left]
        columns = [d for i, d in enumerate(rhs.shape) if i not in right]
        return TensorType((*paired[: len(self.lhs_batch)], *rows, *columns), dtype)

    def reference(self, lhs: Array, rhs: Array) -> Array:
        letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        left, right = [next(letters) for _ in lhs.shape], [next(letters) for _ in rhs.shape]
        for a, b in zip((*self.lhs_batch, *self.lhs_contract), (*self.rhs_batch, *self.rhs_contract)):
            right[b] = left[a]
        batch = [left[a] for a in self.lhs_batch]
        out = batch + [c for c in left if c not in right] + [c for c in right if c not in left]
        dtype = lhs.dtype if self.sum_dtype is None else self.sum_dtype.numpy
        wide = np.float64 if dtypes.of(lhs.dtype).is_float else np.int64 if dtypes.of(dtype).bits < 8 else dtype
        with np.errstate(all="ignore"):
            text = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
            return np.asarray(np.einsum(text, lhs.astype(wide), rhs.astype(wide))).astype(dtype)

    def padded(self, padding: Padding, lhs: Padded, rhs: Padded) -> Padded:
        """Both sides are 0 where contracting axes do not count: 0 times NaN is none."""
        left, right = ([a % len(x.axes) for a in (*batch, *contract)] for x, batch, contract in (
            (lhs, self.lhs_batch, self.lhs_contract), (rhs, self.rhs_batch, self.rhs_contract)))  # fmt: skip
        parts = [padding.same(lhs.axes[a], rhs.axes[b]) for a, b in zip(left, right)]
        count = len(self.lhs_batch)
        for a, b, joined in zip(left[count:], right[count:], parts[count:]):
            lhs, rhs = (padding.filled(x.along(axis, joined), (axis,), 0) for x, axis in ((lhs, a), (rhs, b)))
        rows = [of for i, of in enumerate(lhs.axes) if i not in left]
        columns = [of for i, of in enumerate(rhs.axes) if i not in right]
        return Padded(padding.build(self, lhs.value, rhs.value), (*parts[:count], *rows, *columns))

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        depth = dims.product(inputs[0].shape[a] for a in self.lhs_contract)
        nbytes = sum((dims.mul(t.size, t.dtype.itemsize) for t in (*inputs, *outputs)), start=0)
        return Cost(flops=dims.mul(2, dims.mul(outputs[0].size, depth)), bytes=nbytes)


@op
class Matmul(Composite):
    """NumPy's matmul: the last two axes multiply, leading axes broadcast, a vector gets and loses an axis of 1."""

    tolerance = Tolerance(64, scale=1)

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        expect.rank(x, 1, "x")
        expect.rank(y, 1, "y")
        expect.same_dtype(x, y)
        inner = y.shape[-2] if y.rank > 1 else y.shape[0]
        expect.same_dim(x.shape[-1], inner, f"contracting dims differ: x is {x}, w is {y}")
        lead = expect.broadcast(x.shape[:-2], y.shape[:-2])
        return x.with_shape((*lead, *(x.shape[-2:-1] if x.rank > 1 else ()), *(y.shape[-1:] if y.rank > 1 else ())))

    def reference(self, x: Array, y: Array) -> Array:
        wide = np.float64 if dtypes.of(x.dtype).is_float else x.dtype
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(x.astype(wide), y.astype(wide))).astype(x.dtype)

    def decompose(self, x: Value, y: Value) -> Value:
        return _vector_matmul(x, y) if x.rank == 1 or y.rank == 1 else matrices(x, y)


def matrices(x: Value, y: Value, sum_dtype: DType | None = None) -> Value:
    """The product of the last two axes as a `dot_general`; leading axes broadcast."""
    if y.rank == 2:
        return _dot(x, y, (x.rank - 1,), (0,), (), sum_dtype)
    lead = expect.broadcast(x.shape[:-2], y.shape[:-2])
    x, y = (_spread(v, (*lead, *v.shape[-2:])) for v in (x, y))
    return _dot(x, y, (x.rank - 1,), (y.rank - 2,), tuple(range(len(lead))), sum_dtype)


def _spread(x: Value, shape: tuple[dims.Dim, ...]) -> Value:
    return x if x.shape == shape else build("broadcast_to", x, shape=shape)


def _vector_matmul(x: Value, y: Value) -> Value:
    out = (*(x.shape[:-1] if x.rank > 1 else y.shape[:-2]), *(y.shape[-1:] if y.rank > 1 else ()))
    matrix = build("matmul", x[None, :] if x.rank == 1 else x, y[:, None] if y.rank == 1 else y)
    return matrix.reshape(out)


def _dot(
    x: Value, y: Value, left: tuple[int, ...], right: tuple[int, ...], batch: tuple[int, ...], sum_dtype: DType | None
) -> Value:
    return build(
        "dot_general", x, y,
        lhs_contract=left, rhs_contract=right, lhs_batch=batch, rhs_batch=batch, sum_dtype=sum_dtype,
    )  # fmt: skip


MAX_DET = 32  # elimination is written out step by step


@op
class Det(Composite):
    """Determinants of the matrices in the last two axes, by elimination with pivots.

    x       float [..., n, n], n known and at most 32; of nothing it is 1
    result  [...]
    """

    tolerance = Tolerance(256, scale=1)

    def infer(self, x: TensorType) -> TensorType:
        expect.floating(x)
        expect.rank(x, 2)
        size = expect.same_dim(x.shape[-1], x.shape[-2], f"expected square matrices, got {x}")
        if not isinstance(size, int) or size > MAX_DET:
            raise ShapeError(f"expected matrices of a known size of at most {MAX_DET}, got {x}")
        return x.with_shape(x.shape[:-2])

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        size = next(d for d in x.shape[-2:] if isinstance(d, int))
        wide = x.cast(dtypes.accumulator(x.dtype))
        square = (*x.shape[:-2], size, size)
        rest = wide if wide.shape == square else wide.reshape(*square)  # rows may go by another name than columns
        total = build("broadcast_to", rest.graph.constant(1, rest.dtype), shape=x.shape[:-2])
        for order in range(size, 0, -1):
            pivot, rest = _eliminated(rest, order)
            total = total * pivot
        return total.cast(x.dtype)


def _eliminated(x: Value, size: int) -> tuple[Value, Value]:
    """The factor that the first column gives, and the matrix without it and the pivot's row."""
    place = build("argmax", build("abs", x[..., 0]), axis=-1, keepdims=True)
    row = build("iota", x.graph, shape=(size,), dtype=dtypes.i64)
    chosen = build("eq", row, place)[..., None]
    pivots = build("reduce_sum", build("select", chosen, x, 0.0), axes=(-2,), keepdims=True)
    swapped = build("select", chosen, x[..., :1, :], x)  # the first row takes the pivot's place
    pivot = pivots[..., :1]
    divisor = build("select", build("eq", pivot, 0.0), 1.0, pivot)
    below = swapped[..., 1:, 1:] - swapped[..., 1:, :1] / divisor * pivots[..., 1:]
    sign = build("select", build("eq", place, 0), x.graph.constant(1, x.dtype), x.graph.constant(-1, x.dtype))
    return pivot[..., 0, 0] * sign[..., 0], below
