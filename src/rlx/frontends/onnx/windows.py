"""Importer functions: convolutions and pools over windows, with every padding rule of the standard."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from rlx.frontends.onnx.table import OnnxNode, onnx_op
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Value
from rlx.ops import build
from rlx.records import dataclass

MAX_WINDOW = 1 << 24  # elements of a window: larger than any picture
MAX_TAPS = 64  # elements of a window whose argmax is requested: each is written out


@dataclass
class Window:
    """The attributes that all window ops share, one entry per spatial axis. `beyond` is what rounding up added."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Dim, ...]
    high: tuple[Dim, ...]
    beyond: tuple[Dim, ...]

    def reach(self, axis: int) -> int:
        """Elements from the first to the last that a window sees."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


def window_of(node: OnnxNode, x: Value, kernel: Sequence[int]) -> Window:
    rank = x.rank - 2
    if rank < 1 or len(kernel) != rank or any(not isinstance(k, int) or k < 1 for k in kernel):
        raise node.wrong(f"expected a kernel for the {rank} spatial axes of {x.type}, got {list(kernel)}")
    if math.prod(kernel) > MAX_WINDOW:
        raise node.wrong(f"expected a kernel of at most {MAX_WINDOW} elements, got {list(kernel)}")
    strides = _numbers(node, "strides", rank)
    dilations = _numbers(node, "dilations", rank)
    window = Window(tuple(kernel), strides, dilations, (), (), (0,) * rank)
    window.low, window.high = _pads(node, x.shape[2:], window)
    _check_inside(node, x, window)
    return window


def _check_inside(node: OnnxNode, x: Value, window: Window) -> None:
    """Raises ModelError for pads that are negative, and for a window that fits nowhere."""
    for axis, (extent, low, high) in enumerate(zip(x.shape[2:], window.low, window.high)):
        if any(isinstance(pad, int) and pad < 0 for pad in (low, high)):
            raise node.wrong(f"expected pads that are not negative, got {[*window.low, *window.high]}")
        inside = dims.add(extent, dims.add(low, high))
        if isinstance(inside, int) and window.reach(axis) > inside:
            raise node.wrong(f"expected a window of at most {inside} elements with pads, got {window.reach(axis)}")


def pool_of(node: OnnxNode, x: Value) -> Window:
    """The window of a pool: each of its places has an element of x in it."""
    window = window_of(node, x, node.integers("kernel_shape"))
    for axis, pads in enumerate(zip(window.low, window.high)):
        if any(isinstance(pad, int) and pad >= window.reach(axis) for pad in pads):
            raise node.wrong(f"expected pads smaller than the kernel {list(window.kernel)}, got {list(pads)}")
    return rounded_up(node, x, window)


def _numbers(node: OnnxNode, name: str, rank: int) -> tuple[int, ...]:
    numbers: tuple[int, ...] = node.integers(name, (1,) * rank)
    if len(numbers) != rank or any(n < 1 for n in numbers):
        raise node.wrong(f"expected {name} of at least 1 for {rank} spatial axes, got {list(numbers)}")
    return numbers


def _pads(node: OnnxNode, extents: Sequence[Dim], window: Window) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    rank = len(extents)
    mode = node.text("auto_pad", "NOTSET")
    explicit = node.integers("pads", None) if mode in ("NOTSET", "") else None
    if mode in ("NOTSET", "VALID", ""):
        pads = explicit or (0,) * (2 * rank)
        if len(pads) != 2 * rank:
            raise node.wrong(f"expected {2 * rank} pads, got {list(pads)}")
        return tuple(pads[:rank]), tuple(pads[rank:])
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.wrong(f"expected auto_pad to be NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {mode!r}")
    low: list[Dim] = []
    high: list[Dim] = []
    for i, extent in enumerate(extents):
        span = dims.mul(dims.add(dims.ceildiv(extent, window.strides[i]), -1), window.strides[i])
        total = dims.maximum(0, dims.add(dims.add(span, window.reach(i)), dims.mul(extent, -1)))
        less, more = dims.floordiv(total, 2), dims.ceildiv(total, 2)
        low.append(less if mode == "SAME_UPPER" else more)
        high.append(more if mode == "SAME_UPPER" else less)
    return tuple(low), tuple(high)


def kernel_of_weight(node: OnnxNode, x: Value, weight: Value) -> tuple[int, ...]:
    kernel = tuple(k for k in weight.shape[2:] if isinstance(k, int))
    if len(kernel) != weight.rank - 2:
        raise node.unsupported(f"the kernel's size is known only when the graph runs: {weight.type}")
    if tuple(node.integers("kernel_shape", kernel)) != kernel:
        raise node.wrong(f"expected a kernel_shape that fits the weight {weight.type}")
    return kernel


def with_bias(y: Value, bias: Value | None) -> Value:
    return y if bias is None else y + bias.reshape(-1, *([1] * (y.rank - 2)))


@onnx_op("Conv")
def conv(node: OnnxNode, x: Value, weight: Value, bias: Value | None) -> Value:
    window = window_of(node, x, kernel_of_weight(node, x, weight))
    y = build.conv(
        x, weight, strides=window.strides, dilations=window.dilations, low=window.low, high=window.high,
        groups=node.integer("group", 1),
    )  # fmt: skip
    return with_bias(y, bias)


@onnx_op("ConvTranspose")
def conv_transpose(node: OnnxNode, x: Value, weight: Value, bias: Value | None) -> Value:
    """`output_shape` and SAME pads say how large the result is; pads follow from that."""
    rank = x.rank - 2
    kernel = kernel_of_weight(node, x, weight)
    if len(kernel) != rank or rank < 1:
        raise node.wrong(f"expected a kernel for the {rank} spatial axes of {x.type}, got {list(kernel)}")
    strides, dilations = _numbers(node, "strides", rank), _numbers(node, "dilations", rank)
    extra = tuple(node.integers("output_padding", (0,) * rank))
    mode = node.text("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", ""):
        raise node.wrong(f"expected auto_pad to be NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {mode!r}")
    if len(extra) != rank or any(e < 0 for e in extra):
        raise node.wrong(f"expected output_padding of at least 0 for {rank} spatial axes, got {list(extra)}")
    output_shape = node.integers("output_shape", None)
    full = [
        dims.add(dims.mul(dims.add(d, -1), s), (k - 1) * g + 1 + e)
        for d, s, k, g, e in zip(x.shape[2:], strides, kernel, dilations, extra)
    ]
    if output_shape is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        output_shape = [dims.mul(d, s) for d, s in zip(x.shape[2:], strides)]
    if output_shape is not None:
        cut = [dims.add(f, dims.mul(w, -1)) for f, w in zip(full, output_shape[-rank:])]
        less, more = [dims.floordiv(c, 2) for c in cut], [dims.ceildiv(c, 2) for c in cut]
        low, high = (less, more) if mode == "SAME_UPPER" else (more, less)
    else:
        pads = node.integers("pads", (0,) * (2 * rank)) if mode in ("NOTSET", "") else (0,) * (2 * rank)
        low, high = list(pads[:rank]), list(pads[rank:])
        if len(pads) != 2 * rank:
            raise node.wrong(f"expected {2 * rank} pads, got {list(pads)}")
    extents = [dims.add(f, dims.mul(dims.add(a, b), -1)) for f, a, b in zip(full, low, high)]
    if any(isinstance(d, int) and d < 0 for d in extents):
        raise node.wrong(f"expected a result of at least no elements along each axis, got {extents}")
    y = build.conv_transpose(
        x, weight, strides=strides, dilations=dilations, low=tuple(low), high=tuple(high), extra=extra,
        groups=node.integer("group", 1),
    )  # fmt: skip
    return with_bias(y, bias)


def rounded_up(node: OnnxNode, x: Value, window: Window) -> Window:
    """With `ceil_mode` a last window may reach beyond the pads, if it starts on the input or before it."""
    if not node.flag("ceil_mode"):
        return window
    beyond: list[Dim] = []
    for i, extent in enumerate(x.shape[2:]):
        inside = dims.add(dims.add(extent, window.low[i]), window.high[i])
        span = dims.add(inside, -window.reach(i))
        count = dims.add(dims.ceildiv(span, window.strides[i]), 1)
        within = dims.add(dims.floordiv(dims.add(dims.add(extent, window.low[i]), -1), window.strides[i]), 1)
        count = dims.minimum(count, within)
        reached = dims.add(dims.mul(dims.add(count, -1), window.strides[i]), window.reach(i))
        beyond.append(dims.maximum(0, dims.add(reached, dims.mul(inside, -1))))
    window.beyond = tuple(beyond)
    window.high = tuple(dims.add(h, b) for h, b in zip(window.high, beyond))
    return window


@onnx_op("MaxPool")
def max_pool(node: OnnxNode, x: Value) -> list[Value]:
    window = pool_of(node, x)
    pooled = build.reduce_window(
        x, combine="max", window=window.kernel, strides=window.strides, dilations=window.dilations,
        low=window.low, high=window.high,
    )  # fmt: skip
    by_columns = node.flag("storage_order")
    return [pooled, _greatest_places(node, x, window, by_columns)] if any(node.outputs[1:]) else [pooled]


def _greatest_places(node: OnnxNode, x: Value, window: Window, by_columns: bool) -> Value:
    """Where in the flattened input the first of the greatest of each window is; image axes in either order."""
    if math.prod(window.kernel) > MAX_TAPS:
        raise node.unsupported(f"indices of windows of more than {MAX_TAPS} elements are not supported")
    numbers = _numbered(x, by_columns)
    edge = (0, 0, *window.low), (0, 0, *window.high)
    fill = -math.inf if x.dtype.is_float else float(np.iinfo(x.dtype.numpy).min)
    padded = build.pad(x, low=edge[0], high=edge[1], value=fill)
    places = build.pad(build.broadcast_to(numbers, shape=x.shape), low=edge[0], high=edge[1], value=-1)
    best: Value | None = None
    at = places
    for tap in itertools.product(*map(range, window.kernel)):
        here, number = (_tap(part, tap, window) for part in (padded, places))
        if best is None:
            best, at = here, number
            continue
        better = (here > best) | ((at < 0) & (number >= 0))  # a pad is no place, whatever is beside it
        best, at = build.select(better, here, best), build.select(better, number, at)
    return at


def _tap(x: Value, tap: Sequence[int], window: Window) -> Value:
    """What one element of the window sees at every position."""
    key = [slice(None), slice(None)]
    for axis, (at, dilation, stride) in enumerate(zip(tap, window.dilations, window.strides)):
        start = at * dilation
        key.append(slice(start, dims.add(x.shape[axis + 2], start - window.reach(axis) + 1), stride))
    return x[tuple(key)]


def _numbered(x: Value, by_columns: bool) -> Value:
    """The number of each element of x in memory, with the axes of the image turned around if they go by columns."""
    order = [0, 1, *(reversed(range(2, x.rank)) if by_columns else range(2, x.rank))]
    shape = tuple(x.shape[i] for i in order)
    flat = build.iota(x.graph, shape=(dims.product(shape),), dtype="i64").reshape(shape)
    return flat.transpose(*order) if by_columns else flat


@onnx_op("AveragePool")
def average_pool(node: OnnxNode, x: Value) -> Value:
    window = pool_of(node, x)
    return build.average_pool(
        x, window=window.kernel, strides=window.strides, dilations=window.dilations, low=window.low, high=window.high,
        count_pads=node.flag("count_include_pad"), beyond=window.beyond,
    )  # fmt: skip


@onnx_op("LpPool")
def lp_pool(node: OnnxNode, x: Value) -> Value:
    p = float(node.integer("p", 2))
    if p < 1:
        raise node.wrong(f"expected p of at least 1, got {p:g}")
    window = pool_of(node, x)
    powers = build.pow(abs(x), p) if p != 1 else abs(x)
    total = build.reduce_window(
        powers, combine="add", window=window.kernel, strides=window.strides, dilations=window.dilations,
        low=window.low, high=window.high,
    )  # fmt: skip
    return build.pow(total, 1.0 / p) if p != 1 else total
