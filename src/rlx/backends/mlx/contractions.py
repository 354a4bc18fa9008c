"""Products, sums and windows in mlx."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from rlx.backends.mlx.library import Value, dtype_of, known, mx, put
from rlx.backends.mlx.shapes import lowers, padded
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ops.reduce import identity

BYTES_EXACT = 256
"""Products of bytes that an f32 adds up exactly: 255 · 255 · 256 < 2²⁴."""
PART = 1 << 22
"""Products of other integers that are in memory at once."""


def multiply(x: Value, y: Value, made: DType) -> Value:
    """[..., m, k] times [..., k, n] with sums in `made`; mlx multiplies matrices of floats alone."""
    shape = (*x.shape[:-1], y.shape[-1])
    depth = x.shape[-1]
    if 0 in shape or not depth:
        return mx.zeros(shape, dtype_of(made))
    if made.is_float:
        wide = dtype_of(dtypes.accumulator(made))
        return mx.matmul(x.astype(wide), y.astype(wide)).astype(dtype_of(made))
    if known(x).bits == known(y).bits == 8:
        return sum(
            mx.matmul(
                x[..., at : at + BYTES_EXACT].astype(mx.float32), y[..., at : at + BYTES_EXACT, :].astype(mx.float32)
            ).astype(mx.int32)
            for at in range(0, depth, BYTES_EXACT)
        ).astype(dtype_of(made))
    x, y = x.astype(dtype_of(made)), y.astype(dtype_of(made))
    step = max(PART // math.prod(shape), 1)
    parts = [
        mx.sum(mx.expand_dims(x[..., at : at + step], -1) * mx.expand_dims(y[..., at : at + step, :], -3), -2)
        for at in range(0, depth, step)
    ]
    return sum(parts[1:], start=parts[0]).astype(dtype_of(made))


@lowers("dot_general")
def _dot(op: Any, x: Value, y: Value) -> Value:
    made = known(x) if op.sum_dtype is None else op.sum_dtype
    lhs, lhs_free = _sides(x, op.lhs_batch, op.lhs_contract)
    rhs, rhs_free = _sides(y, op.rhs_batch, op.rhs_contract)
    lead = [x.shape[a] for a in op.lhs_batch]
    depth = math.prod(x.shape[a] for a in op.lhs_contract)
    batch = [math.prod(lead)] if lead else []
    left = mx.reshape(lhs, (*batch, math.prod(lhs_free), depth))
    right = mx.swapaxes(mx.reshape(rhs, (*batch, math.prod(rhs_free), depth)), -1, -2)
    return mx.reshape(multiply(left, right, made), (*lead, *lhs_free, *rhs_free))


def _sides(x: Value, batch: Sequence[int], contract: Sequence[int]) -> tuple[Value, list[int]]:
    """x as [batch..., free..., contract...], and the extents of its free axes."""
    free = [a for a in range(x.ndim) if a not in batch and a not in contract]
    return (mx.transpose(x, (*batch, *free, *contract)) if x.ndim else x), [x.shape[a] for a in free]


def _spans(space: Sequence[int], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """From the first to the last element that a place of the window meets; 0 where the window does not fit."""
    return [max((n - (k - 1) * d - 1) // s * s + 1, 0) for n, k, s, d in zip(space, window, strides, dilations)]


def _windows(x: Value, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[Value]:
    """For each place of the window what lies there, over axes 1 to the number of the window's."""
    spans = _spans(x.shape[1:], window, strides, dilations)
    taps = product(*([t * d for t in range(k)] for k, d in zip(window, dilations)))
    return [x[(slice(None), *(slice(t, t + n, s) for t, n, s in zip(tap, spans, strides)))] for tap in taps]


@lowers("conv")
def _conv(op: Any, x: Value, w: Value) -> Value:
    made = known(x) if op.sum_dtype is None else op.sum_dtype
    rank = x.ndim - 2
    if op.channels_last:
        w = mx.transpose(w, (rank + 1, *range(rank), rank))
    else:
        x, w = mx.moveaxis(x, 1, -1), mx.moveaxis(w, 1, -1)
    x = padded(x, (0, *op.low, 0), (0, *op.high, 0), 0)
    some = x.size and w.size and all(_spans(x.shape[1:-1], w.shape[1:-1], op.strides, op.dilations))
    # f64 it would compute with f32's precision
    fits = made.is_float and made is not dtypes.f64 and rank <= 3 and (op.groups == 1 or rank <= 2)
    y = _native_conv(op, x, w, made) if some and fits else _taps_conv(op, x, w, made)
    return y if op.channels_last else mx.moveaxis(y, -1, 1)


def _native_conv(op: Any, x: Value, w: Value, made: DType) -> Value:
    wide = dtype_of(dtypes.accumulator(made))
    y = mx.conv_general(
        x.astype(wide), w.astype(wide), stride=list(op.strides), kernel_dilation=list(op.dilations), groups=op.groups
    )
    return y.astype(dtype_of(made))


def _taps_conv(op: Any, x: Value, w: Value, made: DType) -> Value:
    """What mlx has no convolution for, as one product of windows with the weight."""
    groups, outputs, channels = op.groups, w.shape[0], w.shape[-1]
    seen = mx.stack(_windows(x, w.shape[1:-1], op.strides, op.dilations), -2)  # [n, space..., taps, channels]
    space, taps = seen.shape[:-2], seen.shape[-2]
    left = mx.reshape(seen, (math.prod(space), taps, groups, channels))
    left = mx.reshape(mx.transpose(left, (2, 0, 1, 3)), (groups, math.prod(space), taps * channels))
    right = mx.swapaxes(mx.reshape(w, (groups, outputs // groups, taps * channels)), -1, -2)
    return mx.reshape(mx.moveaxis(multiply(left, right, made), 0, 1), (*space, outputs))


@lowers("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
def _reduce(op: Any, x: Value) -> Value:
    of = known(x)
    axes = tuple(sorted(a % x.ndim for a in op.axes))
    if not axes:
        return x
    if any(x.shape[a] == 0 for a in axes) or x.size == 0:
        kept = [1 if a in axes else n for a, n in enumerate(x.shape)]
        shape = kept if op.keepdims else [n for a, n in enumerate(x.shape) if a not in axes]
        return mx.full(shape, put(np.asarray(identity(op.combine, of.numpy))))
    table = {"add": mx.sum, "mul": mx.prod, "max": mx.max, "min": mx.min}
    wide = x.astype(dtype_of(dtypes.accumulator(of))) if op.combine in ("add", "mul") else x
    return table[op.combine](wide, axes, keepdims=op.keepdims).astype(x.dtype)


@lowers("reduce_window")
def _window(op: Any, x: Value) -> Value:
    of, lead, rank = known(x), x.shape[: x.ndim - len(op.window)], len(op.window)
    wide = dtypes.accumulator(of)
    flat = mx.reshape(x, (math.prod(lead), *x.shape[len(lead) :])).astype(dtype_of(wide))
    fill = np.asarray(identity(op.combine, wide.numpy))
    flat = padded(flat, (0, *op.low), (0, *op.high), fill)
    join = {"add": mx.add, "max": mx.maximum, "min": mx.minimum}[op.combine]
    parts = _windows(flat, op.window, op.strides, op.dilations)
    made = parts[0]
    for part in parts[1:]:
        made = join(made, part)
    return mx.reshape(made, (*lead, *made.shape[-rank:])).astype(x.dtype)


@lowers("cumsum", "cumprod", "cummax", "cummin")
def _running(op: Any, x: Value) -> Value:
    of = known(x)
    if x.size == 0:
        return x
    # running extrema of narrow floats lose NaN in mlx
    wide = x.astype(dtype_of(dtypes.accumulator(of)))
    table = {"add": mx.cumsum, "mul": mx.cumprod, "max": mx.cummax, "min": mx.cummin}
    axis = op.axis % x.ndim
    made = table[op.combine](wide, axis, reverse=op.reverse).astype(x.dtype)
    if op.exclusive:
        first = mx.full(
            [1 if i == axis else n for i, n in enumerate(x.shape)], put(np.asarray(identity(op.combine, of.numpy)))
        )
        cut = slice(1, None) if op.reverse else slice(0, x.shape[axis] - 1)
        inner = made[tuple(cut if i == axis else slice(None) for i in range(x.ndim))]
        made = mx.concatenate([inner, first] if op.reverse else [first, inner], axis)
    return made
