"""Importer functions: convolutions and pools over windows, with every padding rule of the standard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.frontends.onnx.table import OnnxNode, onnx_op
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Value
from rlx.ops import build


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
    strides = _numbers(node, "strides", rank)
    dilations = _numbers(node, "dilations", rank)
    made = Window(tuple(kernel), strides, dilations, (), (), (0,) * rank)
    made.low, made.high = _pads(node, x.shape[2:], made)
    return made


def _numbers(node: OnnxNode, name: str, rank: int) -> tuple[int, ...]:
    found: tuple[int, ...] = node.integers(name, (1,) * rank)
    if len(found) != rank or any(n < 1 for n in found):
        raise node.wrong(f"expected {name} of at least 1 for {rank} spatial axes, got {list(found)}")
    return found


def _pads(node: OnnxNode, extents: Sequence[Dim], window: Window) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    rank = len(extents)
    mode = node.text("auto_pad", "NOTSET")
    given = node.integers("pads", None) if mode in ("NOTSET", "") else None
    if mode in ("NOTSET", "VALID", ""):
        pads = given or (0,) * (2 * rank)
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


def with_bias(made: Value, bias: Value | None) -> Value:
    return made if bias is None else made + bias.reshape(-1, *([1] * (made.rank - 2)))


@onnx_op("Conv")
def conv(node: OnnxNode, x: Value, weight: Value, bias: Value | None) -> Value:
    window = window_of(node, x, kernel_of_weight(node, x, weight))
    made = build.conv(
        x, weight, strides=window.strides, dilations=window.dilations, low=window.low, high=window.high,
        groups=node.integer("group", 1),
    )  # fmt: skip
    return with_bias(made, bias)


@onnx_op("ConvTranspose")
def conv_transpose(node: OnnxNode, x: Value, weight: Value, bias: Value | None) -> Value:
    """`output_shape` and SAME pads say how large the result is; pads follow from that."""
    rank = x.rank - 2
    kernel = kernel_of_weight(node, x, weight)
    strides, dilations = _numbers(node, "strides", rank), _numbers(node, "dilations", rank)
    extra = tuple(node.integers("output_padding", (0,) * rank))
    mode = node.text("auto_pad", "NOTSET")
    wanted = node.integers("output_shape", None)
    full = [
        dims.add(dims.mul(dims.add(d, -1), s), (k - 1) * g + 1 + e)
        for d, s, k, g, e in zip(x.shape[2:], strides, kernel, dilations, extra)
    ]
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [dims.mul(d, s) for d, s in zip(x.shape[2:], strides)]
    if wanted is not None:
        cut = [dims.add(f, dims.mul(w, -1)) for f, w in zip(full, wanted[-rank:])]
        less, more = [dims.floordiv(c, 2) for c in cut], [dims.ceildiv(c, 2) for c in cut]
        low, high = (less, more) if mode == "SAME_UPPER" else (more, less)
    else:
        pads = node.integers("pads", (0,) * (2 * rank)) if mode == "NOTSET" else (0,) * (2 * rank)
        low, high = list(pads[:rank]), list(pads[rank:])
    made = build.conv_transpose(
        x, weight, strides=strides, dilations=dilations, low=tuple(low), high=tuple(high), extra=extra,
        groups=node.integer("group", 1),
    )  # fmt: skip
    return with_bias(made, bias)


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
def max_pool(node: OnnxNode, x: Value) -> Value:
    if any(node.outputs[1:]):
        raise node.unsupported("indices of the greatest are not supported")
    node.integer("storage_order", 0)  # speaks of indices alone
    window = rounded_up(node, x, window_of(node, x, node.integers("kernel_shape")))
    return build.reduce_window(
        x, combine="max", window=window.kernel, strides=window.strides, dilations=window.dilations,
        low=window.low, high=window.high,
    )  # fmt: skip


@onnx_op("AveragePool")
def average_pool(node: OnnxNode, x: Value) -> Value:
    window = rounded_up(node, x, window_of(node, x, node.integers("kernel_shape")))
    return build.average_pool(
        x, window=window.kernel, strides=window.strides, dilations=window.dilations, low=window.low, high=window.high,
        count_pads=node.flag("count_include_pad"), beyond=window.beyond,
    )  # fmt: skip


@onnx_op("LpPool")
def lp_pool(node: OnnxNode, x: Value) -> Value:
    p = float(node.integer("p", 2))
    window = rounded_up(node, x, window_of(node, x, node.integers("kernel_shape")))
    powers = build.pow(abs(x), p) if p != 1 else abs(x)
    total = build.reduce_window(
        powers, combine="add", window=window.kernel, strides=window.strides, dilations=window.dilations,
        low=window.low, high=window.high,
    )  # fmt: skip
    return build.pow(total, 1.0 / p) if p != 1 else total
