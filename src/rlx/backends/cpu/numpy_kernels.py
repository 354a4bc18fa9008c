"""Quick NumPy kernels of the ops in which models spend their time, for runs before a program is compiled.

An op's `reference` is exact and slow: it computes in float64, and loops in Python where NumPy has no function. These
compute in float32, products by the BLAS that NumPy has; `numpy_rows` has those that are no products. All other ops,
dtypes and layouts are left to `reference`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu import numpy_rows
from rlx.backends.cpu.numpy_rows import are_f32
from rlx.ir import dim as dims
from rlx.ir.interpreter import Kernels
from rlx.ops.contraction import Einsum, parse
from rlx.ops.convolution import Conv, ConvTranspose, _padded, _taps, infer_shape
from rlx.ops.integers import IntegerMatmul
from rlx.ops.linalg import DotGeneral, Matmul
from rlx.ops.recurrent import Lstm

Array = np.ndarray[Any, Any]
Axes = Sequence[int]

COLUMN_ELEMENTS = 1 << 18
"""Of the windows of a convolution that are gathered at once: they stay in the last-level cache."""


def conv(op: Conv, x: Array, w: Array) -> Any:
    """Windows are gathered as columns of a matrix, and one product per group computes all channels."""
    if not are_f32(x, w) or op.sum_dtype is not None or op.channels_last:
        return NotImplemented
    shape = infer_shape(op, x, w)
    if not math.prod(shape) or not x.size:
        return np.zeros(shape, np.float32)
    around = (*op.low, *op.high)
    padded = _padded(x, op.low, op.high, 0) if any(around) else x  # type: ignore[arg-type]  # dims are numbers here
    if w.shape[1] == 1 and op.groups == x.shape[1] > 1:
        return _depthwise(op, padded, w, shape)
    return _by_columns(op, padded, w, shape)


def _depthwise(op: Conv, x: Array, w: Array, shape: tuple[int, ...]) -> Array:
    """One channel each, some at a time. Columns of windows are gathered along the last axis alone, a small product
    gives what every row of the window makes of every row of the image, and sums over these are the result."""
    per_group, space = w.shape[0] // op.groups, (*x.shape[2:-1], shape[-1])
    rows = list(itertools.product(*map(range, w.shape[2:-1])))
    weights = w.reshape(op.groups, per_group, len(rows), w.shape[-1])
    result: Array = np.empty((shape[0], op.groups, per_group, *shape[2:]), np.float32)
    step = min(op.groups, max(1, COLUMN_ELEMENTS // (w.shape[-1] * math.prod(space))))
    columns: Any = np.empty((step, w.shape[-1], *space), np.float32)
    products: Any = np.empty((step, len(rows), *space), np.float32)
    for image, first in itertools.product(range(shape[0]), range(0, op.groups, step)):
        part = slice(first, first + step)
        of = x[image, part]
        count = len(of)
        for (tap,), window in _taps(of, w.shape[-1:], op.strides[-1:], op.dilations[-1:]):
            columns[:count, tap] = window
        flat = columns[:count].reshape(count, w.shape[-1], -1)
        for number in range(per_group):
            out = result[image, part, number]
            np.matmul(weights[part, number], flat, out=products[:count].reshape(count, len(rows), -1))
            for row, places in enumerate(rows):
                taps = zip(places, op.dilations, shape[2:-1], op.strides)
                at = tuple(slice(t * g, t * g + (n - 1) * s + 1, s) for t, g, n, s in taps)
                if row:
                    out += products[(slice(count), row, *at)]
                else:
                    out[...] = products[(slice(count), row, *at)]
    return result.reshape(shape)


def _by_columns(op: Conv, x: Array, w: Array, shape: tuple[int, ...]) -> Array:
    if len(shape) == 4 and w.shape[2] > 1 and op.strides[0] == 1:
        return _by_rows(op, x, w, shape)
    images, groups, depth = shape[0], op.groups, math.prod(w.shape[1:])
    weights = w.reshape(groups, w.shape[0] // groups, depth)
    result = np.empty((images, groups, w.shape[0] // groups, *shape[2:]), np.float32)
    inputs = x.reshape(images, groups, w.shape[1], *x.shape[2:])
    plain = depth == w.shape[1] and all(s == 1 for s in op.strides)
    rows = max(1, COLUMN_ELEMENTS // max(1, depth * math.prod(shape[3:])))
    for image, group in itertools.product(range(images), range(groups)):
        of = inputs[image, group]
        if plain:
            np.matmul(weights[group], of.reshape(depth, -1), out=result[image, group].reshape(w.shape[0] // groups, -1))
            continue
        for first in range(0, shape[2], rows):
            count = min(rows, shape[2] - first)
            begin = first * op.strides[0]
            reach = (count - 1) * op.strides[0] + (w.shape[2] - 1) * op.dilations[0] + 1
            columns = _columns(op, of[:, begin : begin + reach], w, (count, *shape[3:]))
            product = weights[group] @ columns
            result[image, group, :, first : first + count] = product.reshape(-1, count, *shape[3:])
    return result.reshape(shape)


def _by_rows(op: Conv, x: Array, w: Array, shape: tuple[int, ...]) -> Array:
    """Columns of windows are gathered along the last axis alone; every row of the window reads them some rows of the
    image further on."""
    images, groups, width = shape[0], op.groups, shape[3]
    outputs, (channels, high, wide) = w.shape[0] // groups, w.shape[1:]
    weights = w.reshape(groups, outputs, channels, high, wide).transpose(0, 3, 1, 4, 2).copy()
    weights = weights.reshape(groups, high, outputs, wide * channels)
    inputs = x.reshape(images, groups, channels, *x.shape[2:])
    result: Array = np.empty((images, groups, outputs, shape[2] * width), np.float32)
    above = (high - 1) * op.dilations[0]
    rows = min(max(1, COLUMN_ELEMENTS // (channels * wide * width)), shape[2])
    columns: Array = np.empty((wide, channels, rows + above, width), np.float32)
    for image, group, first in itertools.product(range(images), range(groups), range(0, shape[2], rows)):
        count = min(rows, shape[2] - first)
        of = inputs[image, group, :, first : first + count + above]
        for (tap,), window in _taps(of, (wide,), op.strides[1:], op.dilations[1:]):
            columns[tap, :, : count + above] = window
        windows = columns.reshape(wide * channels, -1)
        total: Array = weights[group, 0] @ windows[:, : count * width]
        for row in range(1, high):
            begin = row * op.dilations[0] * width
            total += weights[group, row] @ windows[:, begin : begin + count * width]
        result[image, group, :, first * width : (first + count) * width] = total
    return result.reshape(shape)


def _columns(op: Conv, x: Array, w: Array, space: tuple[int, ...]) -> Array:
    """What every window sees, [channels · taps, positions]."""
    columns: Any = np.empty((w.shape[1], *w.shape[2:], *space), np.float32)
    for tap, window in _taps(x, w.shape[2:], op.strides, op.dilations):
        columns[(slice(None), *tap)] = window
    return np.asarray(columns.reshape(math.prod(w.shape[1:]), -1))


def conv_transpose(op: ConvTranspose, x: Array, w: Array) -> Any:
    """One product for all taps; then each is added where its window lies."""
    shape = infer_shape(op, x, w)
    if not are_f32(x, w) or op.groups != 1 or not x.size or not math.prod(shape):
        return NotImplemented
    full = [
        (d - 1) * s + (k - 1) * g + 1 for d, s, k, g in zip(x.shape[2:], op.strides, w.shape[2:], op.dilations)
    ]  # fmt: skip
    low = [dims.evaluate(a, {}) for a in op.low]
    size = [max(f, o + a) for f, o, a in zip(full, shape[2:], low)]
    total: Any = np.zeros((x.shape[0], w.shape[1], *size), np.float32)
    products: Any = np.matmul(w.reshape(w.shape[0], -1).T, x.reshape(*x.shape[:2], -1))
    products = products.reshape(x.shape[0], *w.shape[1:], *x.shape[2:])
    for tap in itertools.product(*map(range, w.shape[2:])):
        parts_of_axes = zip(tap, op.dilations, x.shape[2:], op.strides)
        place = tuple(slice(t * g, t * g + (d - 1) * s + 1, s) for t, g, d, s in parts_of_axes)
        total[(..., *place)] += products[(slice(None), slice(None), *tap)]
    cut = tuple(slice(a, a + o) for a, o in zip(low, shape[2:]))
    return total[(..., *cut)]


def matmul(op: Matmul, x: Array, y: Array) -> Any:
    """In float32."""
    return np.matmul(x, y) if are_f32(x, y) else NotImplemented


def dot_general(op: DotGeneral, lhs: Array, rhs: Array) -> Any:
    """As a product of matrices for each batch."""
    if not are_f32(lhs, rhs) or op.sum_dtype is not None:
        return NotImplemented
    left, right = (op.lhs_batch, op.lhs_contract), (op.rhs_batch, op.rhs_contract)
    return _product(lhs, rhs, *left, *right)


def _product(
    lhs: Array, rhs: Array, lhs_batch: Axes, lhs_contract: Axes, rhs_batch: Axes, rhs_contract: Axes
) -> Array:  # fmt: skip
    """[batch, free axes of lhs, free axes of rhs]"""
    left_free = [a for a in range(lhs.ndim) if a not in (*lhs_batch, *lhs_contract)]
    right_free = [a for a in range(rhs.ndim) if a not in (*rhs_batch, *rhs_contract)]
    batch = [lhs.shape[a] for a in lhs_batch]
    depth = math.prod(lhs.shape[a] for a in lhs_contract)
    rows, columns = [lhs.shape[a] for a in left_free], [rhs.shape[a] for a in right_free]
    left = lhs.transpose(*lhs_batch, *left_free, *lhs_contract).reshape(*batch, math.prod(rows), depth)
    right = rhs.transpose(*rhs_batch, *rhs_contract, *right_free).reshape(*batch, depth, math.prod(columns))
    return np.asarray(np.matmul(left, right).reshape((*batch, *rows, *columns)))


def einsum(op: Einsum, *operands: Array) -> Any:
    """A product of two operands, neither of which has a sum or a diagonal of its own."""
    if len(operands) != 2 or not are_f32(*operands):
        return NotImplemented
    (left, right), out = parse(op.equation, tuple(a.ndim for a in operands))
    lhs, rhs = operands
    shared = [c for c in left if c in right]
    sizes = dict(zip(left, lhs.shape)) | dict(zip(right, rhs.shape))
    is_own = len(set(left)) < len(left) or len(set(right)) < len(right) or not {*left, *right} <= {*shared, *out}
    if is_own or any(lhs.shape[left.index(c)] != sizes[c] for c in shared):
        return NotImplemented
    batch, contract = [c for c in shared if c in out], [c for c in shared if c not in out]
    axes = [[names.index(c) for c in of] for names in (left, right) for of in (batch, contract)]
    made = [*batch, *(c for c in left if c not in shared), *(c for c in right if c not in shared)]
    return _product(lhs, rhs, *axes).transpose([made.index(c) for c in out])


def integer_matmul(op: IntegerMatmul, x: Array, y: Array, x_zero: Array, y_zero: Array) -> Any:
    """In float64, which holds every sum exactly: BLAS has no products of integers."""
    if x.dtype.itemsize != 1 or y.dtype.itemsize != 1 or x.shape[-1] >= 1 << 31:
        return NotImplemented
    left, right = x.astype(np.float64) - x_zero, y.astype(np.float64) - y_zero
    return np.matmul(left, right).astype(np.int64).astype(np.int32)  # which wraps


def lstm(
    op: Lstm, x: Array, w: Array, r: Array, b: Array, h: Array, c: Array, p: Array | None = None,
    lengths: Array | None = None,
) -> Any:  # fmt: skip
    """All of x·w as one product, and a step of both directions at once; the usual functions of the gates alone, which
    have no alpha and beta.

    A sigmoid is half of the tanh of half its argument, and a half: one call computes all gates.
    """
    usual = (*("sigmoid", "tanh", "tanh") * op.directions,)
    other = op.clip is not None or op.input_forget or op.activations not in ((), usual)
    if other or p is not None or lengths is not None or not are_f32(x, w, r, b, h, c) or not x.size:
        return NotImplemented
    (steps, batch), directions, hidden = x.shape[:2], op.directions, r.shape[2]
    backwards = [d for d in range(directions) if op.backwards(d)]
    halves: Array = np.ones(4 * hidden, np.float32)
    halves[: 3 * hidden] = 0.5
    projected: Array = np.matmul(x.reshape(steps * batch, -1), w.transpose(0, 2, 1))
    projected += b.reshape(directions, 2, -1).sum(1)[:, None]
    projected *= halves
    rows = projected.reshape(directions, steps, batch, -1).transpose(1, 0, 2, 3).copy()
    weights = r.transpose(0, 2, 1) * halves
    y: Array = np.empty((steps, directions, batch, hidden), np.float32)
    gates: Array = np.empty((directions, batch, 4 * hidden), np.float32)
    smooth = gates[..., : 3 * hidden]
    i, o, f, g = (gates[..., n * hidden : (n + 1) * hidden] for n in range(4))
    for d in backwards:
        rows[:, d] = rows[::-1, d].copy()
    c = c.copy()
    for row, out in zip(rows, y):
        np.matmul(h, weights, out=gates)
        np.add(gates, row, out=gates)
        np.tanh(gates, out=gates)
        np.multiply(smooth, np.float32(0.5), out=smooth)
        np.add(smooth, np.float32(0.5), out=smooth)
        np.multiply(f, c, out=c)
        np.add(c, i * g, out=c)
        h = np.multiply(o, np.tanh(c), out=out)
    last = h.copy()
    for d in backwards:
        y[:, d] = y[::-1, d].copy()
    return y, last, c


KERNELS: Kernels = {
    **numpy_rows.KERNELS,
    Conv: conv, ConvTranspose: conv_transpose, DotGeneral: dot_general, Einsum: einsum, IntegerMatmul: integer_matmul,
    Lstm: lstm, Matmul: matmul,
}  # fmt: skip
