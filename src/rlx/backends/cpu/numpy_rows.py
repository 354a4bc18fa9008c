"""Quick NumPy kernels of activations, norms, softmax and maxima over windows, for runs before a program is compiled;
see `numpy_kernels`. They compute in float32, and long arrays piece by piece: temporaries stay in a cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.codegen.scalar import coefficients
from rlx.ir.interpreter import Kernels
from rlx.ops.activation import Sigmoid
from rlx.ops.convolution import ReduceWindow, _padded, infer_shape
from rlx.ops.norm import GroupNorm, InstanceNorm, LayerNorm, Softmax
from rlx.ops.transcendental import Erf

Array = np.ndarray[Any, Any]

CACHE_ELEMENTS = 1 << 14
"""Of an array that is computed at once: it and its temporaries stay in the nearest caches."""


def are_f32(*arrays: Array | None) -> bool:
    """Whether all that are there are of float32."""
    return all(array is None or array.dtype == np.float32 for array in arrays)


def _piecewise(function: Callable[[Array, Array], None], x: Array) -> Array:
    """An elementwise function, which writes what it makes of its first argument into its second."""
    result: Array = np.empty(x.shape, np.float32)
    flat, out = x.reshape(-1), result.reshape(-1)
    for first in range(0, flat.size, CACHE_ELEMENTS):
        part = slice(first, first + CACHE_ELEMENTS)
        function(flat[part], out[part])
    return result


def erf(op: Erf, x: Array) -> Any:
    """By NumPy's tanh, which is quick."""
    return _piecewise(_erf, x) if are_f32(x) else NotImplemented


def _erf(x: Array, out: Array) -> None:
    near = np.clip(x, np.float32(-4), np.float32(4))  # erf(4) is 1 - 1.5e-8
    square = near * near
    first, *between, last = map(np.float32, coefficients.ERF_BY_TANH)
    np.multiply(square, first, out=out)
    for coefficient in between:
        out += coefficient
        out *= square
    out += last
    out *= near
    np.tanh(out, out=out)


def sigmoid(op: Sigmoid, x: Array) -> Any:
    """As it is defined: an overflow of the exponential ends in 0."""
    return _piecewise(_sigmoid, x) if are_f32(x) else NotImplemented


def _sigmoid(x: Array, out: Array) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, np.float32(1), out=out)
    np.divide(np.float32(1), out, out=out)


def softmax(op: Softmax, x: Array) -> Any:
    """Of the last axis, rows of a cache at a time."""
    if not are_f32(x) or op.axis % x.ndim != x.ndim - 1 or not x.size:
        return NotImplemented
    rows = x.reshape(-1, x.shape[-1])
    result: Array = np.empty(rows.shape, np.float32)
    for part in _parts(rows):
        out = result[part]
        np.subtract(rows[part], rows[part].max(1, keepdims=True), out=out)
        np.exp(out, out=out)
        out /= out.sum(1, keepdims=True)
    return result.reshape(x.shape)


def layer_norm(op: LayerNorm, x: Array, scale: Array | None = None, bias: Array | None = None) -> Any:
    """Over trailing axes, with scale and bias along them."""
    axes = sorted(axis % x.ndim for axis in op.axes)
    tail = x.shape[axes[0] :]
    is_along = all(of is None or of.shape == tail for of in (scale, bias))
    if not are_f32(x, scale, bias) or axes != list(range(axes[0], x.ndim)) or not is_along or not x.size:
        return NotImplemented
    y = _normalised(x.reshape(-1, math.prod(tail)), op.epsilon).reshape(x.shape)
    if scale is not None:
        y *= scale
    if bias is not None:
        y += bias
    return y


def group_norm(op: GroupNorm | InstanceNorm, x: Array, scale: Array, bias: Array) -> Any:
    """Of an instance norm every channel is a group."""
    groups = op.groups if isinstance(op, GroupNorm) else x.shape[1]
    if not are_f32(x, scale, bias) or not x.size:
        return NotImplemented
    y = _normalised(x.reshape(x.shape[0] * groups, -1), op.epsilon).reshape(*x.shape[:2], -1)
    if not (scale == 1).all():
        y *= scale[:, None]
    if bias.any():
        y += bias[:, None]
    return y.reshape(x.shape)


def _normalised(rows: Array, epsilon: float) -> Array:
    """Rows less their means, over the roots of their variances. Sums are of pairs, or of BLAS's lanes."""
    result: Array = np.empty(rows.shape, np.float32)
    for part in _parts(rows):
        out = result[part]
        np.subtract(rows[part], rows[part].mean(1, keepdims=True), out=out)
        variance = np.matmul(out[:, None], out[:, :, None])[..., 0] / np.float32(rows.shape[1])
        out /= np.sqrt(variance + np.float32(epsilon))
    return result


def _parts(rows: Array) -> list[slice]:
    """Rows that are computed at once."""
    step = max(1, CACHE_ELEMENTS // rows.shape[1])
    return [slice(first, first + step) for first in range(0, rows.shape[0], step)]


def reduce_window(op: ReduceWindow, x: Array) -> Any:
    """Maxima and minima, one axis after the other."""
    if not are_f32(x) or op.combine == "add" or any(d != 1 for d in op.dilations) or not x.size:
        return NotImplemented
    join, fill = (np.maximum, -np.inf) if op.combine == "max" else (np.minimum, np.inf)
    shape = infer_shape(op, x)
    if not math.prod(shape):
        return np.empty(shape, np.float32)
    around = (*op.low, *op.high)
    total = _padded(x, op.low, op.high, fill) if any(around) else x  # type: ignore[arg-type]  # dims are numbers here
    lead = x.ndim - len(op.window)
    for axis, (window, stride) in enumerate(zip(op.window, op.strides), lead):
        count = shape[axis]
        ends = [slice(tap, tap + (count - 1) * stride + 1, stride) for tap in range(window)]
        parts = [total[(*itertools.repeat(slice(None), axis), end)] for end in ends]
        total = parts[0].copy()
        for part in parts[1:]:
            join(total, part, out=total)
    return total


KERNELS: Kernels = {
    Erf: erf, GroupNorm: group_norm, InstanceNorm: group_norm, LayerNorm: layer_norm, ReduceWindow: reduce_window,
    Sigmoid: sigmoid, Softmax: softmax,
}  # fmt: skip
