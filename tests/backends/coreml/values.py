"""NumPy's word for ops of MIL that coremltools has no values for, or says otherwise than its pages do."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.backends.coreml import folding
from rlx.backends.coreml.library import tools

Array = np.ndarray[Any, Any]


def install() -> None:
    """Lets `folding` know them. Every conversion of coremltools collects garbage, which takes the longer the more there
    is to look at: what is there now is left out."""
    tools()
    gc.freeze()
    folding.MISSING.update(
        conv=conv, max_pool=max_pool, avg_pool=avg_pool, scatter=scatter, topk=topk, silu=silu, batch_norm=batch_norm,
        gelu=gelu,
    )  # fmt: skip


def _pads(pad_type: Any, pad: Any, rank: int) -> list[tuple[int, int]]:
    assert pad_type in ("valid", "custom")
    flat = [0] * (2 * rank) if pad_type == "valid" else [int(n) for n in pad]
    return [(0, 0), (0, 0), *zip(flat[::2], flat[1::2])]


def _taps(x: Array, window: Any, strides: Any, dilations: Any) -> Iterator[tuple[tuple[int, ...], Array]]:
    counts = [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], window, strides, dilations)]
    for tap in itertools.product(*map(range, window)):
        part = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilations, counts, strides)]
        yield tap, x[(..., *part)]


def conv(
    x: Array, weight: Array, strides: Array, pad_type: str, dilations: Array, groups: int,
    pad: Array | None = None, bias: Array | None = None,
) -> Array:  # fmt: skip
    rank, groups = x.ndim - 2, int(groups)
    wide = np.pad(x.astype(np.float64), _pads(pad_type, pad, rank))
    parts: Any = weight.astype(np.float64).reshape(groups, -1, *weight.shape[1:])
    sums: Any = 0.0
    for tap, patch in _taps(wide, weight.shape[2:], strides, dilations):
        grouped = patch.reshape(x.shape[0], groups, -1, *patch.shape[2:])
        product = parts[(..., *tap)] @ grouped.reshape(*grouped.shape[:3], -1)
        sums = sums + product.reshape(x.shape[0], weight.shape[0], *grouped.shape[3:])
    return sums if bias is None else sums + bias.astype(np.float64).reshape(-1, *([1] * rank))


def _pooled(x: Array, fill: float, kernel_sizes: Any, strides: Any, pad_type: str, pad: Any) -> list[Array]:
    rank = x.ndim - 2
    wide = np.pad(x.astype(np.float64), _pads(pad_type, pad, rank), constant_values=fill)
    return [patch for _, patch in _taps(wide, kernel_sizes, strides, [1] * rank)]


def max_pool(
    x: Array, kernel_sizes: Array, strides: Array, pad_type: str, pad: Any = None, ceil_mode: bool = False
) -> Array:
    assert not ceil_mode
    return np.max(_pooled(x, -np.inf, kernel_sizes, strides, pad_type, pad), 0)


def avg_pool(
    x: Array, kernel_sizes: Array, strides: Array, pad_type: str, exclude_padding_from_average: bool,
    pad: Any = None, ceil_mode: bool = False,
) -> Array:  # fmt: skip
    assert not ceil_mode and not exclude_padding_from_average
    return np.mean(_pooled(x, 0.0, kernel_sizes, strides, pad_type, pad), 0)


def scatter(data: Array, indices: Array, updates: Array, axis: int, mode: str, validate_indices: bool = False) -> Array:
    assert axis == 0
    scattered = data.copy()
    if mode == "update":
        for place, row in zip(indices, updates):  # the last of several stays
            scattered[place] = row
        return scattered
    join = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[mode]
    join.at(scattered, indices, updates)
    return scattered


def topk(x: Array, k: Any, axis: Any, ascending: bool, **rest: Any) -> tuple[Array, Array]:
    """Of equals the one that lies first: coremltools' own function leaves that open, and so do its pages."""
    axis, count = int(axis), x.shape[int(axis)]
    if ascending:
        order = np.argsort(x, axis, kind="stable")
    else:
        order = count - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    order = order.take(range(int(k)), axis)
    return np.take_along_axis(x, order, axis), order


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x.astype(np.float64)))


def batch_norm(x: Array, mean: Array, variance: Array, gamma: Any = None, beta: Any = None, epsilon: Any = 0) -> Array:
    def spread(a: Any) -> Array:
        return np.asarray(a, np.float64).reshape(1, -1, *([1] * (x.ndim - 2)))

    normed = (x - spread(mean)) / np.sqrt(spread(variance) + epsilon)
    normed = normed if gamma is None else normed * spread(gamma)
    return normed if beta is None else normed + spread(beta)


def gelu(x: Array, mode: str) -> Array:
    """coremltools calls a function of Python's for every element."""
    from scipy import special  # what all tests import goes without

    wide = x.astype(np.float64)
    if mode == "TANH_APPROXIMATION":
        return wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    if mode == "SIGMOID_APPROXIMATION":
        return wide / (1 + np.exp(-1.702 * wide))
    return np.asarray(wide / 2 * (1 + special.erf(wide / np.sqrt(2))))
