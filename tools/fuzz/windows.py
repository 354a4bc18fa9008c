"""A family of small nets of convolutions: channels of any number, strides, dilations, pads of any side, groups, biases,
residuals, activations, and pools behind. A part of the programs of the device `cuda-emulated`."""

from __future__ import annotations

import random

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Value
from rlx.runtime.session import Precision
from tools.fuzz.generate import Maker, Refused, family
from tools.fuzz.nets import window

PIECES = (3, 4, 8, 12, 16, 16, 20, 24, 32, 32, 36, 40)
"""Channels, mostly such as make pieces of 16 bytes,"""
CHANNELS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 36, 40)
"""and any."""
PRECISIONS: tuple[Precision, ...] = ("f32", "f32", "f32_fast")


@family(3)
def net_of_windows(make: Maker) -> None:
    """One to three convolutions in a row, with what stands behind each."""
    choose = make.random.choice
    dtype = choose((dtypes.f32, dtypes.f32, dtypes.f32, dtypes.f16, dtypes.bf16))
    batch = dims.symbol(make.symbols[0]) if make.symbols and make.chance(0.5) else choose((1, 1, 2, 3))
    space = [choose((1, 3, 5, 7, 8, 9, 12, 17)) for _ in range(choose((1, 2, 2, 2, 2, 3)))]
    space = [min(extent, 7) for extent in space] if len(space) == 3 else space
    channels = choose((CHANNELS, PIECES, PIECES))
    value = make.leaf((batch, choose(channels), *space), dtype)
    for _ in range(choose((1, 1, 2, 2, 3))):
        value = activated(make, biased(make, convolved(make, value, channels)), value)
        if make.chance(0.25):
            value = pooled(make, value)


def convolved(make: Maker, value: Value, numbers: tuple[int, ...]) -> Value:
    """A convolution of a value with weights of its own, to one of these numbers of channels, or nearly."""
    choose = make.random.choice
    channels, rank = make.at(value.shape[1]), value.rank - 2
    groups = choose([g for g in (1, 1, 1, 1, 1, 2, 4, channels) if channels % g == 0])
    outputs = groups * max(1, choose(numbers) // groups)
    if make.chance(0.4):
        kernel = tuple(choose((1, 3, 5)) for _ in range(rank))
        pads = tuple(k // 2 for k in kernel)
        attributes = {"strides": (1,) * rank, "dilations": (1,) * rank, "low": pads, "high": pads}
        outputs = channels if make.chance(0.6) else outputs  # so that residuals fit
    else:
        kernel = tuple(choose((1, 1, 2, 3, 3, 5, 7)) for _ in range(rank))
        attributes = window(make, value)
        if make.chance(0.5):
            attributes["high"] = tuple(choose((0, 1, 2, 4)) for _ in range(rank))
    weight = make.leaf((outputs, channels // groups, *kernel), value.dtype, what=None if make.chance(0.2) else "param")
    y = make.add("conv", value, weight, groups=groups, **attributes)
    if not all(make.at(extent) for extent in y.shape) and make.chance(0.9):
        raise Refused("no positions")
    return y


def biased(make: Maker, y: Value) -> Value:
    """With a bias of each channel, mostly."""
    if not make.chance(0.7):
        return y
    return make.add("add", y, make.leaf((y.shape[1], *[1] * (y.rank - 2)), y.dtype))


def activated(make: Maker, y: Value, source: Value) -> Value:
    """With a residual, where one fits or is brought, and an activation."""
    if source.shape == y.shape and make.chance(0.6):
        y = make.add("add", y, source)
    elif make.chance(0.25):
        y = make.add("add", make.leaf(y.shape, y.dtype), y)
    how = make.random.random()
    if how < 0.5:
        return make.add("relu", y)
    if how < 0.6:
        return make.add("clamp", y, 0.0, 6.0)
    if how < 0.7:
        return make.add("mul", y, make.add("sigmoid", y))
    return y


def pooled(make: Maker, value: Value) -> Value:
    """A pool, or the mean of all positions."""
    how = make.random.random()
    rank = value.rank - 2
    if how < 0.3:
        return make.add("reduce_mean", value, axes=tuple(range(2, value.rank)), keepdims=True)
    sizes = tuple(make.random.choice((1, 2, 3)) for _ in range(rank))
    if how < 0.7:
        combine = make.random.choice(("max", "max", "add", "min"))
        return make.add("reduce_window", value, combine=combine, window=sizes, **window(make, value))
    return make.add("average_pool", value, window=sizes, count_pads=make.chance(0.5), **window(make, value))


def precision_of(seed: int) -> Precision:
    """Of a program of nothing but such nets."""
    return random.Random(f"precision {seed}").choice(PRECISIONS)
