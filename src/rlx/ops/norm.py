"""Softmax and the normalisations. All are composites: derivatives, batching and every backend come from `decompose`;
a backend with a faster row kernel claims the op. Statistics are kept in float32 or wider."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import expect
from rlx.ir.dtype import accumulator
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Tolerance, op
from rlx.ir.padding import Padded, Padding
from rlx.ir.type import TensorType
from rlx.ops.build import (
    broadcast_to,
    div,
    exp,
    group_norm,
    log,
    maximum,
    pow,
    reduce_max,
    reduce_sum,
    reduce_window,
    rsqrt,
    sqrt,
    square,
)
from rlx.ops.reduce import mean

Array = np.ndarray[Any, Any]


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    """NumPy's mean without its warning about empty slices."""
    return np.asarray(x.sum(axes, keepdims=True) / np.float64(np.prod([x.shape[a] for a in axes])))


class OverAxis(Composite):
    """A normalisation along one axis that keeps the type."""

    axis: int

    def infer(self, x: TensorType) -> TensorType:
        expect.floating(x)
        expect.axis(self.axis, x.rank)
        return x


@op
class Softmax(OverAxis):
    """eˣ / Σeˣ along one axis, the greatest taken out first. A row of nothing but -inf gives NaN.

    x   float [..., n, ...], n on `axis`
    """

    axis: int = -1
    tolerance = Tolerance(16, scale=1e-30)

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            top = wide.max(self.axis, keepdims=True, initial=-np.inf)
            powers = np.exp(wide - top)
            return np.asarray(powers / powers.sum(self.axis, keepdims=True)).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        wide = x.cast(accumulator(x.dtype))
        powers = exp(wide - reduce_max(wide, axes=(self.axis,), keepdims=True))
        return div(powers, reduce_sum(powers, axes=(self.axis,), keepdims=True)).cast(x.dtype)


@op
class LogSoftmax(OverAxis):
    """x - log Σeˣ along one axis, the greatest taken out first.

    x   float [..., n, ...], n on `axis`
    """

    axis: int = -1
    tolerance = Tolerance(16, scale=1)

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            shifted = wide - wide.max(self.axis, keepdims=True, initial=-np.inf)
            return np.asarray(shifted - np.log(np.exp(shifted).sum(self.axis, keepdims=True))).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        wide = x.cast(accumulator(x.dtype))
        shifted = wide - reduce_max(wide, axes=(self.axis,), keepdims=True)
        return (shifted - log(reduce_sum(exp(shifted), axes=(self.axis,), keepdims=True))).cast(x.dtype)


def _affine(y: Value, scale: Value | None, bias: Value | None) -> Value:
    """y · scale + bias in y's dtype."""
    if scale is not None:
        y = y * scale.cast(y.dtype)
    return y if bias is None else y + bias.cast(y.dtype)


def _check_affine(x: TensorType, scale: TensorType | None, bias: TensorType | None) -> None:
    for of, name in ((scale, "scale"), (bias, "bias")):
        if of is not None:
            expect.same_dtype(x, of)
            expect.broadcastable(of, x.shape, name)


def _rows(norm: LayerNorm | RmsNorm, padding: Padding, x: Padded, *affine: Padded) -> Padded | None:
    """The norm as it is, of rows that count whole; others have to be taken apart."""
    if padding.is_open(*(x.shape[a] for a in norm.axes)):
        return None
    return padding.elementwise(norm, x, *affine)


@op
class LayerNorm(Composite):
    """(x - mean) / √(variance + epsilon) · scale + bias; mean and variance over `axes`, in two passes.

    x            float [...]
    scale, bias  like x, broadcastable to its shape
    Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450.
    """

    axes: tuple[int, ...] = (-1,)
    epsilon: float = 1e-5
    tolerance = Tolerance(64, scale=1)

    def infer(self, x: TensorType, scale: TensorType | None = None, bias: TensorType | None = None) -> TensorType:
        expect.floating(x)
        expect.axes(self.axes, x.rank)
        _check_affine(x, scale, bias)
        return x

    def reference(self, x: Array, scale: Array | None = None, bias: Array | None = None) -> Array:
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            y = wide - _mean(wide, self.axes)
            y = y / np.sqrt(_mean(y * y, self.axes) + self.epsilon)
            y = y if scale is None else y * scale.astype(np.float64)
            return np.asarray(y if bias is None else y + bias.astype(np.float64)).astype(x.dtype)

    def padded(self, padding: Padding, x: Padded, *affine: Padded) -> Padded | None:
        return _rows(self, padding, x, *affine)

    def decompose(self, x: Value, scale: Value | None = None, bias: Value | None = None) -> Value:
        wide = x.cast(accumulator(x.dtype))
        centred = wide - mean(wide, self.axes)
        y = centred * rsqrt(mean(square(centred), self.axes) + self.epsilon)
        return _affine(y, scale, bias).cast(x.dtype)


@op
class RmsNorm(Composite):
    """x / √(mean(x²) + epsilon) · scale, the mean over `axes`.

    x      float [...]
    scale  like x, broadcastable to its shape
    Source: Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4.
    """

    axes: tuple[int, ...] = (-1,)
    epsilon: float = 1e-6
    tolerance = Tolerance(64, scale=1)

    def infer(self, x: TensorType, scale: TensorType | None = None) -> TensorType:
        expect.floating(x)
        expect.axes(self.axes, x.rank)
        _check_affine(x, scale, None)
        return x

    def reference(self, x: Array, scale: Array | None = None) -> Array:
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            y = wide / np.sqrt(_mean(wide * wide, self.axes) + self.epsilon)
            return np.asarray(y if scale is None else y * scale.astype(np.float64)).astype(x.dtype)

    def padded(self, padding: Padding, x: Padded, *affine: Padded) -> Padded | None:
        return _rows(self, padding, x, *affine)

    def decompose(self, x: Value, scale: Value | None = None) -> Value:
        wide = x.cast(accumulator(x.dtype))
        y = wide * rsqrt(mean(square(wide), self.axes) + self.epsilon)
        return _affine(y, scale, None).cast(x.dtype)


def _channels(x: TensorType, *vectors: TensorType) -> None:
    """x is [N, C, ...] and every vector [C], of one dtype."""
    expect.floating(x)
    expect.rank(x, 2)
    expect.same_dtype(x, *vectors)
    for vector in vectors:
        expect.rank(vector, 1, "a vector over channels", at_most=1)
        expect.same_dim(vector.shape[0], x.shape[1], f"expected one number for each channel of {x}")


def _per_channel(vector: Value, rank: int) -> Value:
    return vector.reshape(-1, *([1] * (rank - 2)))


@op
class GroupNorm(Composite):
    """Layer norm over each of `groups` runs of channels with all their positions, then scale and bias by channel.

    x            float [N, C, ...], C a multiple of groups
    scale, bias  like x, [C]
    Source: Wu & He 2018, arXiv:1803.08494.
    """

    groups: int
    epsilon: float = 1e-5
    tolerance = Tolerance(64, scale=1)

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        _channels(x, scale, bias)
        if self.groups < 1 or dims.exact_div(x.shape[1], self.groups) is None:
            raise ShapeError(f"expected {self.groups} groups to divide the channels of {x}")
        return x

    def reference(self, x: Array, scale: Array, bias: Array) -> Array:
        with np.errstate(all="ignore"):
            n, c, *rest = x.shape
            wide = x.astype(np.float64).reshape(n, self.groups, int(np.prod([c // self.groups, *rest])))
            y = wide - _mean(wide, (2,))
            y = (y / np.sqrt(_mean(y * y, (2,)) + self.epsilon)).reshape(x.shape)
            a, b = (part.astype(np.float64).reshape(c, *([1] * len(rest))) for part in (scale, bias))
            return np.asarray(y * a + b).astype(x.dtype)

    def decompose(self, x: Value, scale: Value, bias: Value) -> Value:
        """Statistics of each channel first, then of its group: x itself keeps its axes, in whichever order they lie."""
        wide = x.cast(accumulator(x.dtype))
        centred = wide - self._of_groups(wide)
        y = centred * self._of_groups(square(centred), root=True)
        return _affine(y, _per_channel(scale, x.rank), _per_channel(bias, x.rank)).cast(x.dtype)

    def _of_groups(self, x: Value, root: bool = False) -> Value:
        """The mean of its group, or one over its root, for each channel."""
        share = dims.floordiv(x.shape[1], self.groups)
        places = tuple(range(2, x.rank))
        statistic = mean(x, places) if places else x
        statistic = statistic if share == 1 else mean(statistic.reshape(x.shape[0], self.groups, share), (2,))
        statistic = rsqrt(statistic + self.epsilon) if root else statistic
        if share == 1:
            return statistic
        spread = broadcast_to(statistic, shape=(x.shape[0], self.groups, share))
        return spread.reshape(x.shape[0], x.shape[1], *[1] * len(places))


@op
class InstanceNorm(Composite):
    """Group norm with every channel its own group.

    x            float [N, C, ...]
    scale, bias  like x, [C]
    """

    epsilon: float = 1e-5
    tolerance = Tolerance(64, scale=1)

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        _channels(x, scale, bias)
        if not isinstance(x.shape[1], int):
            raise ShapeError(f"expected a known number of channels, got {x}")
        return x

    def reference(self, x: Array, scale: Array, bias: Array) -> Array:
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            axes = tuple(range(2, x.ndim))
            y = wide - _mean(wide, axes)
            y = y / np.sqrt(_mean(y * y, axes) + self.epsilon)
            a, b = (part.astype(np.float64).reshape(-1, *([1] * len(axes))) for part in (scale, bias))
            return np.asarray(y * a + b).astype(x.dtype)

    def decompose(self, x: Value, scale: Value, bias: Value) -> Value:
        return group_norm(x, scale, bias, groups=x.shape[1], epsilon=self.epsilon)


@op
class BatchNorm(Composite):
    """(x - mean) / √(variance + epsilon) · scale + bias with statistics that the model brings (inference).

    It becomes one multiply and one add by channel, whose factors depend on weights alone.

    x                            float [N, C, ...]
    scale, bias, mean, variance  like x, [C]
    Source: Ioffe & Szegedy 2015, arXiv:1502.03167.
    """

    epsilon: float = 1e-5
    tolerance = Tolerance(64, scale=1)

    def infer(
        self, x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, variance: TensorType
    ) -> TensorType:
        _channels(x, scale, bias, mean, variance)
        return x

    def reference(self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
        by_channel = (-1, *([1] * (x.ndim - 2)))
        with np.errstate(all="ignore"):
            a, b, m, v = (part.astype(np.float64).reshape(by_channel) for part in (scale, bias, mean, variance))
            return np.asarray((x.astype(np.float64) - m) / np.sqrt(v + self.epsilon) * a + b).astype(x.dtype)

    def decompose(self, x: Value, scale: Value, bias: Value, mean: Value, variance: Value) -> Value:
        wide = accumulator(x.dtype)
        factor = scale.cast(wide) * rsqrt(variance.cast(wide) + self.epsilon)
        shift = bias.cast(wide) - mean.cast(wide) * factor
        return _affine(x.cast(wide), _per_channel(factor, x.rank), _per_channel(shift, x.rank)).cast(x.dtype)


@op
class L2Normalize(OverAxis):
    """x / max(√Σx², epsilon) along one axis; a row of zeros stays zero where epsilon is above 0.

    x   float [..., n, ...], n on `axis`
    """

    axis: int = -1
    epsilon: float = 1e-12
    tolerance = Tolerance(64)

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            length = np.sqrt((wide * wide).sum(self.axis, keepdims=True))
            return np.asarray(wide / np.maximum(length, self.epsilon)).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        wide = x.cast(accumulator(x.dtype))
        length = sqrt(reduce_sum(square(wide), axes=(self.axis,), keepdims=True))
        return div(wide, maximum(length, self.epsilon)).cast(x.dtype)


MAX_NEIGHBOURS = 1 << 16  # channels that a local response norm adds up


@op
class LocalResponseNorm(Composite):
    """x / (bias + alpha / size · Σx²)^beta, the sum over `size` neighbouring channels.

    x   float [N, C, ...]; of an even size the greater half lies behind
    Source: Krizhevsky, Sutskever & Hinton 2012, 3.3.
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    tolerance = Tolerance(64, scale=1)

    def infer(self, x: TensorType) -> TensorType:
        expect.floating(x)
        expect.rank(x, 2)
        if not 1 <= self.size <= MAX_NEIGHBOURS:
            raise ShapeError(f"expected a size in [1, {MAX_NEIGHBOURS}], got {self.size}")
        return x

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            total = np.zeros_like(wide)
            for channel in range(x.shape[1]):
                low, high = channel - (self.size - 1) // 2, channel + self.size // 2
                total[:, channel] = (wide[:, max(low, 0) : high + 1] ** 2).sum(1)
            return np.asarray(wide / (self.bias + self.alpha / self.size * total) ** self.beta).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        wide = x.cast(accumulator(x.dtype))
        rest = (0,) * (x.rank - 2)
        ones = (1,) * (x.rank - 1)
        total = reduce_window(
            square(wide), combine="add", window=(self.size, *ones[1:]), strides=ones, dilations=ones,
            low=((self.size - 1) // 2, *rest), high=(self.size // 2, *rest),
        )  # fmt: skip
        return div(wide, pow(total * (self.alpha / self.size) + self.bias, self.beta)).cast(x.dtype)
