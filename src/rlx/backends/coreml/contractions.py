"""Products, sums and windows in MIL."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from rlx.backends.coreml.library import Value, constant, is_compressed, known, mb, rounded_as, shape_of, widened
from rlx.backends.coreml.shapes import TABLE, along, as_numbers, joined, lowers, padded, reshaped, sliced, turned
from rlx.ops.reduce import identity

Join = Callable[[Value, Value], Value]


@lowers("dot_general")
def _dot(op: Any, x: Value, y: Value) -> Value:
    lead = [shape_of(x)[a] for a in op.lhs_batch]
    lhs_free, rhs_free = ([a for a in range(v.rank) if a not in (*b, *c)] for v, b, c in (
        (x, op.lhs_batch, op.lhs_contract), (y, op.rhs_batch, op.rhs_contract),
    ))  # fmt: skip
    left = turned(x, [*op.lhs_batch, *lhs_free, *op.lhs_contract])
    shape = (*lead, *(shape_of(x)[a] for a in lhs_free), *(shape_of(y)[a] for a in rhs_free))
    depth = math.prod(shape_of(x)[a] for a in op.lhs_contract)
    width = math.prod(shape_of(y)[a] for a in rhs_free)
    if not lead and lhs_free and is_compressed(y) and y.rank == 2 and len(op.lhs_contract) == 1:
        # a weight that becomes an array when the model is loaded: transposing it would be done in every run
        return reshaped(mb.matmul(x=left, y=y, transpose_y=op.rhs_contract[0] % 2 == 1), shape)
    right = turned(y, [*op.rhs_batch, *op.rhs_contract, *rhs_free])
    if not lead and len(op.lhs_contract) == 1 and lhs_free and y.val is not None:
        # a weight: MIL's matmul keeps the axes of the other side, and becomes `linear` with a bias behind it
        return reshaped(mb.matmul(x=left, y=reshaped(right, (depth, width))), shape)
    rows = math.prod(shape_of(x)[a] for a in lhs_free)
    if len(lead) + 2 > 5:
        lead = [math.prod(lead)]
    product = mb.matmul(x=reshaped(left, (*lead, rows, depth)), y=reshaped(right, (*lead, depth, width)))
    return reshaped(product, shape)


@lowers("conv")
def _conv(op: Any, x: Value, w: Value) -> Value:
    """MIL's is for channels first."""
    if not op.channels_last:
        return _convolved(op, x, w)
    space = list(range(1, x.rank - 1))
    y = _convolved(op, turned(x, [0, x.rank - 1, *space]), turned(w, [x.rank - 1, x.rank - 2, *(a - 1 for a in space)]))
    return turned(y, [0, *(a + 1 for a in space), 1])


def _convolved(op: Any, x: Value, w: Value) -> Value:
    low, high = [0, 0, *op.low], [0, 0, *op.high]
    if not known(x).is_float:
        return _whole_conv(op, padded(x, low, high, 0), w)
    if min(*low, *high) < 0:
        x = padded(x, [min(a, 0) for a in low], [min(b, 0) for b in high], 0)
    dilations = list(op.dilations)
    if (
        w.val is None and not is_compressed(w) and any(d > 1 for d in dilations)
    ):  # MIL spreads weights that are constants alone
        w = TABLE["dilate"](_Steps((1, 1, *dilations)), w)
        dilations = [1] * len(dilations)
    pads = [max(n, 0) for pair in zip(op.low, op.high) for n in pair]
    return mb.conv(
        x=x, weight=w, strides=list(op.strides), dilations=dilations, groups=op.groups,
        **({"pad_type": "custom", "pad": pads} if any(pads) else {"pad_type": "valid"}),
    )  # fmt: skip


def _whole_conv(op: Any, x: Value, w: Value) -> Value:
    """Of integers, for which MIL has no convolution: a product of the weight and what its windows see."""
    (batch, channels, *space), kernel, groups = shape_of(x), shape_of(w)[2:], op.groups
    patches = _seen(x, kernel, op.strides, op.dilations)
    space = list(shape_of(patches[0])[2:])
    rows = [reshaped(part, (batch, channels, 1, math.prod(space))) for part in patches]
    depth = channels // groups * len(rows)
    right = reshaped(joined(rows, 2), (batch, groups, depth, math.prod(space)))
    left = reshaped(w, (1, groups, shape_of(w)[0] // groups, depth))
    return reshaped(mb.matmul(x=left, y=right), (batch, shape_of(w)[0], *space))


def _seen(x: Value, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[Value]:
    """For each place of a window over the last axes what lies there."""
    lead = shape_of(x)[: x.rank - len(window)]
    parts = list(zip(shape_of(x)[len(lead) :], window, strides, dilations))
    spans = [(n - (k - 1) * d - 1) // s * s + 1 for n, k, s, d in parts]
    taps = product(*([t * d for t in range(k)] for _, k, _, d in parts))
    ahead, steps = [0] * len(lead), [*([1] * len(lead)), *strides]
    return [sliced(x, [*ahead, *tap], [*lead, *(t + n for t, n in zip(tap, spans))], steps) for tap in taps]


class _Steps:
    """What the lowering of `dilate` reads of its op."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        self.steps = steps


@lowers("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
def _reduce(op: Any, x: Value) -> Value:
    axes = sorted(a % x.rank for a in op.axes)
    if not axes:
        return x
    total = {"add": mb.reduce_sum, "mul": mb.reduce_prod, "max": mb.reduce_max, "min": mb.reduce_min}[op.combine]
    return as_numbers(x, lambda v: total(x=v, axes=axes, keep_dims=op.keepdims))


@lowers("argmax", "argmin")
def _argument(op: Any, x: Value) -> Value:
    axis = op.axis % x.rank
    pick = mb.reduce_argmax if op.combine == "max" else mb.reduce_argmin
    keys = mb.cast(x=x, dtype="int32") if known(x).kind == "bool" else x
    if op.last:
        index = pick(x=mb.reverse(x=keys, axes=[axis]), axis=axis, keep_dims=op.keepdims)
        return mb.sub(x=np.int32(shape_of(x)[axis] - 1), y=index)
    return pick(x=keys, axis=axis, keep_dims=op.keepdims)


def _joins(combine: str) -> Join:
    function = {"add": mb.add, "mul": mb.mul, "max": mb.maximum, "min": mb.minimum}[combine]
    return lambda a, b: function(x=a, y=b)


@lowers("reduce_window")
def _window(op: Any, x: Value) -> Value:
    """The pools of MIL are for floats, without dilations, on [batch, channels, spatial...]."""
    rank = len(op.window)
    lead = shape_of(x)[: x.rank - rank]
    if min(*op.low, *op.high) < 0:
        cut = [min(n, 0) for n in (*([0] * len(lead)), *op.low)], [min(n, 0) for n in (*([0] * len(lead)), *op.high)]
        x = padded(x, *cut, 0)
    low, high = ([max(n, 0) for n in side] for side in (op.low, op.high))
    inside = all(max(a, b) < k for a, b, k in zip(low, high, op.window))
    if not known(x).is_float or rank > 3 or not inside or any(d > 1 for d in op.dilations):
        return _taps(op, x, low, high)
    two = lead if len(lead) == 2 else (math.prod(lead), 1)
    pads = [n for pair in zip(low, high) for n in pair]
    pool_arguments: dict[str, Any] = {"kernel_sizes": list(op.window), "strides": list(op.strides)}
    pool_arguments |= {"pad_type": "custom", "pad": pads} if any(pads) else {"pad_type": "valid"}
    flat = reshaped(x, (*two, *shape_of(x)[len(lead) :]))
    one = known(x).numpy.type
    match op.combine:
        case "max":
            pooled = mb.max_pool(x=flat, **pool_arguments)
        case "min":
            pooled = mb.mul(x=mb.max_pool(x=mb.mul(x=flat, y=one(-1)), **pool_arguments), y=one(-1))
        case _:
            mean = mb.avg_pool(x=flat, exclude_padding_from_average=False, **pool_arguments)
            pooled = mb.mul(x=mean, y=one(math.prod(op.window)))
    return reshaped(pooled, (*lead, *shape_of(pooled)[2:]))


def _taps(op: Any, x: Value, low: Sequence[int], high: Sequence[int]) -> Value:
    """What lies at each place of the window, joined."""
    ahead = [0] * (x.rank - len(op.window))
    x = padded(x, [*ahead, *low], [*ahead, *high], identity(op.combine, known(x).numpy))
    first, *rest = _seen(x, op.window, op.strides, op.dilations)
    return reduce(_joins(op.combine), rest, first)


@lowers("cumsum", "cumprod", "cummax", "cummin")
def _running(op: Any, x: Value) -> Value:
    axis = op.axis % x.rank
    if op.combine == "add":
        if op.exclusive:  # coremltools 9.0 fails on constants if MIL does it
            x = _moved(x, axis, 1, op.reverse, 0)
        return rounded_as(x, mb.cumsum(x=widened(x), axis=axis, reverse=op.reverse))
    return as_numbers(x, lambda v: _doubled(op, v, axis, identity(op.combine, known(v).numpy)))


def _doubled(op: Any, x: Value, axis: int, neutral: Any) -> Value:
    """Every element joined with that 1, 2, 4, … places before it."""
    extent, join, shift = shape_of(x)[axis], _joins(op.combine), 1
    if op.exclusive:
        x = _moved(x, axis, 1, op.reverse, neutral)
    while shift < extent:
        x = join(x, _moved(x, axis, shift, op.reverse, neutral))
        shift *= 2
    return x


def _moved(x: Value, axis: int, shift: int, back: bool, neutral: Any) -> Value:
    """x some places further on along the axis, the neutral element in front."""
    shape = list(shape_of(x))
    extent, shape[axis] = shape[axis], shift
    front = constant(np.full(shape, neutral, known(x).numpy))
    if shift >= extent:
        return front
    rest = along(x, axis, shift, extent) if back else along(x, axis, 0, extent - shift)
    return joined([rest, front] if back else [front, rest], axis)
