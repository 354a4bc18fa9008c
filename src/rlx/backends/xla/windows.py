"""Convolutions and reductions of windows in jax.

XLA's own for processors are slow where there is little to multiply: a depthwise convolution takes 20 to 40 times as
long as the sum of the shifted images that it is, a pooling 1.5 to 3 times, a convolution of single pixels up to twice
as long as a product, one of few channels in an odd number up to seven times as long as of one more. There these are
lowered as what they are, or given empty channels; other platforms get XLA's operations.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.backends.op_by_op import Table
from rlx.codegen.scalar import emulation as emulation
from rlx.ir import dtype as dtypes
from rlx.ops.reduce import identity

TABLE = Table()
lowers = TABLE.lowers
MOST_SHIFTED = 64
"""Places of a window for which an image is shifted to each of them: code grows with them."""
FILLED_CHANNELS, FILLED_WINDOW, FILLED_TO = range(3, 32, 2), 25, 4
"""Numbers of channels that are filled up to multiples of the last, under windows of two axes and so many places."""


def _counts(op: Any, extents: Sequence[int], window: Sequence[int]) -> list[int]:
    """At how many places the window stands, by axis."""
    parts = zip(extents, window, op.low, op.high, op.strides, op.dilations)
    return [max((e + low + high - d * (k - 1) - 1) // s + 1, 0) for e, k, low, high, s, d in parts]


def _shifted(op: Any, x: Any, first: int, window: Sequence[int], value: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """For every place in the window: the place, and what of x lies there for all positions of the window, which is of
    the axes from `first` on. Beyond the borders x is `value`."""
    import jax.numpy as jnp
    from jax import lax

    behind = x.ndim - first - len(window)
    counts = _counts(op, x.shape[first : first + len(window)], window)
    borders = [(0, 0, 0)] * first + [(low, high, 0) for low, high in zip(op.low, op.high)] + [(0, 0, 0)] * behind
    # what is behind the borders is computed once, not anew in each place of the window
    padded = lax.optimization_barrier(lax.pad(x, jnp.asarray(value, x.dtype), borders))
    for place in itertools.product(*map(range, window)):
        parts = [slice(None)] * x.ndim
        for axis, (at, d, s, count) in enumerate(zip(place, op.dilations, op.strides, counts), first):
            parts[axis] = slice(at * d, at * d + (count - 1) * s + 1, s)
        yield place, padded[tuple(parts)]


def _on_processor(there: Callable[..., Any], elsewhere: Callable[..., Any], *operands: Any) -> Any:
    from jax import lax

    return lax.platform_dependent(*operands, cpu=there, default=elsewhere)


@lowers("conv")
def _conv(op: Any, x: Any, w: Any) -> Any:
    made = x.dtype if op.sum_dtype is None else emulation.carrier(op.sum_dtype).numpy
    wide = dtypes.accumulator(dtypes.of(made)).numpy

    def whole(x: Any, w: Any) -> Any:
        return _whole(op, x, w)

    x, w = x.astype(wide), w.astype(wide)
    there = _simpler(op, x, w)
    return (whole(x, w) if there is None else _on_processor(there, whole, x, w)).astype(made)


def _whole(op: Any, x: Any, w: Any) -> Any:
    """By XLA's operation, without axes of a single place: with one such it takes up to three times as long."""
    from jax import lax

    rank = x.ndim - 2
    first = 1 if op.channels_last else 2
    window = w.shape[:-2] if op.channels_last else w.shape[2:]
    kept = [i for i in range(rank) if (x.shape[first + i], window[i], op.low[i], op.high[i]) != (1, 1, 0, 0)]
    idle = [i for i in range(rank) if i not in kept]
    space = "DHW"[-len(kept) :] if kept else ""
    layout = (
        (f"N{space}C", f"{space}IO", f"N{space}C") if op.channels_last else (f"NC{space}", f"OI{space}", f"NC{space}")
    )
    made = lax.conv_general_dilated(
        x.squeeze([first + i for i in idle]), w.squeeze([(0 if op.channels_last else 2) + i for i in idle]),
        [op.strides[i] for i in kept], [(op.low[i], op.high[i]) for i in kept],
        rhs_dilation=[op.dilations[i] for i in kept], dimension_numbers=layout, feature_group_count=op.groups,
        precision="highest",
    )  # fmt: skip
    return lax.expand_dims(made, [first + i for i in idle])


def _simpler(op: Any, x: Any, w: Any) -> Callable[..., Any] | None:
    """A convolution as something else, where that is better on a processor."""
    from jax import lax

    last = op.channels_last
    space = slice(1, -1) if last else slice(2, None)
    window = w.shape[:-2] if last else w.shape[2:]
    channels, outputs = (x.shape[-1], w.shape[-1]) if last else (x.shape[1], w.shape[0])
    if 0 in (*x.shape, *w.shape, *_counts(op, x.shape[space], window)):
        return None
    if op.groups == channels > 1 and math.prod(window) <= MOST_SHIFTED:
        return functools.partial(_depthwise, op, window, outputs // channels)
    if op.groups == 1 and set(window) == {1} and not any((*op.low, *op.high)) and set(op.strides) == {1}:

        def pixels(x: Any, w: Any) -> Any:
            if last:
                return lax.dot_general(x, w.reshape(w.shape[-2:]), (((x.ndim - 1,), (0,)), ((), ())), "highest")
            return lax.dot_general(w.reshape(w.shape[:2]), x, (((1,), (1,)), ((), ())), "highest").swapaxes(0, 1)

        return pixels
    if op.groups == 1 and channels in FILLED_CHANNELS and len(window) == 2 and 1 < math.prod(window) <= FILLED_WINDOW:
        return functools.partial(_filled, op)
    return None


def _filled(op: Any, x: Any, w: Any) -> Any:
    """With channels of zeros."""
    import jax.numpy as jnp

    axis, taken = (x.ndim - 1, w.ndim - 2) if op.channels_last else (1, 1)
    more = -x.shape[axis] % FILLED_TO

    def wider(a: Any, at: int) -> Any:
        return jnp.pad(a, [(0, more if i == at else 0) for i in range(a.ndim)])

    return _whole(op, wider(x, axis), wider(w, taken))


def _depthwise(op: Any, window: Sequence[int], multiple: int, x: Any, w: Any) -> Any:
    """Every channel with windows of its own: x is (N, C, …) and w (C * multiple, 1, …), or (N, …, C) and (…, 1, C *
    multiple)."""
    if op.channels_last:
        terms = (part * w[(*place, 0)] for place, part in _shifted(op, x.repeat(multiple, x.ndim - 1), 1, window, 0))
    else:
        spread = (1, w.shape[0], *[1] * (x.ndim - 2))
        terms = (
            part * w[(slice(None), 0, *place)].reshape(spread)
            for place, part in _shifted(op, x.repeat(multiple, 1), 2, window, 0)
        )
    return functools.reduce(lambda a, b: a + b, terms)


@lowers("reduce_window")
def _window(op: Any, x: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    lead = x.ndim - len(op.window)
    wide = dtypes.accumulator(dtypes.of(x.dtype)).numpy
    join = {"add": lax.add, "max": jnp.maximum, "min": jnp.minimum}[op.combine]
    start = np.asarray(identity(op.combine, wide), wide)[()]

    def ones(values: Any) -> tuple[int, ...]:
        return (*([1] * lead), *values)

    def whole(x: Any) -> Any:
        return lax.reduce_window(
            x, start, join, ones(op.window), ones(op.strides),
            [(0, 0)] * lead + list(zip(op.low, op.high)), window_dilation=ones(op.dilations),
        )  # fmt: skip

    def shifted(x: Any) -> Any:
        return functools.reduce(join, (part for _, part in _shifted(op, x, lead, op.window, start)))

    made, x = x.dtype, x.astype(wide)
    small = 0 not in _counts(op, x.shape[lead:], op.window) and math.prod(op.window) <= MOST_SHIFTED
    return (_on_processor(shifted, whole, x) if small else whole(x)).astype(made)
