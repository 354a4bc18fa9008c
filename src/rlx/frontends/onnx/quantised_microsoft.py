"""Importer functions for quantised ops of the domain com.microsoft, which onnxruntime's tools write into models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.frontends.onnx.quantised import (
    MICROSOFT,
    dequantised,
    integer_product,
    one_number,
    requantised,
    rows_of,
)
from rlx.frontends.onnx.recurrent import Net, cell_attributes
from rlx.frontends.onnx.table import OnnxNode, onnx_op
from rlx.frontends.onnx.windows import average_pool
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Value, call
from rlx.ops import build, shorthand
from rlx.ops.packed import unpacked

# elementwise ops, pools: in floats, and back


def _quantised(result: Value, scale: Value, zero: Value | None, dtype: DType) -> Value:
    return build.quantize(result, one_number(scale), None if zero is None else one_number(zero), dtype=dtype)


@onnx_op("QLinearAdd", domain=MICROSOFT)
def qlinear_add(
    node: OnnxNode, a: Value, a_scale: Value, a_zero: Value | None, b: Value, b_scale: Value, b_zero: Value | None,
    scale: Value, zero: Value | None,
) -> Value:  # fmt: skip
    total = dequantised(a, a_scale, a_zero) + dequantised(b, b_scale, b_zero)
    return _quantised(total, scale, zero, a.dtype)


@onnx_op("QLinearMul", domain=MICROSOFT)
def qlinear_mul(
    node: OnnxNode, a: Value, a_scale: Value, a_zero: Value | None, b: Value, b_scale: Value, b_zero: Value | None,
    scale: Value, zero: Value | None,
) -> Value:  # fmt: skip
    product = dequantised(a, a_scale, a_zero) * dequantised(b, b_scale, b_zero)
    return _quantised(product, scale, zero, a.dtype)


@onnx_op("QLinearSigmoid", domain=MICROSOFT)
def qlinear_sigmoid(
    node: OnnxNode, x: Value, x_scale: Value, x_zero: Value | None, scale: Value, zero: Value | None
) -> Value:
    return _quantised(build.sigmoid(dequantised(x, x_scale, x_zero)), scale, zero, x.dtype)


@onnx_op("QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_leaky_relu(
    node: OnnxNode, x: Value, x_scale: Value, x_zero: Value | None, scale: Value, zero: Value | None
) -> Value:
    y = build.leaky_relu(dequantised(x, x_scale, x_zero), alpha=node.real("alpha", 0.01))
    return _quantised(y, scale, zero, x.dtype)


@onnx_op("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(node: OnnxNode, x: Value, x_scale: Value, x_zero: Value | None, scale: Value, zero: Value) -> Value:
    """Before opset 13, which an attribute tells, the softmax runs over all axes from `axis` on."""
    real, axis = dequantised(x, x_scale, x_zero), node.axis(x.rank, -1)
    if node.integer("opset") < 13:
        return _quantised(build.softmax(shorthand.flatten(real, axis), axis=1).reshape(x.shape), scale, zero, x.dtype)
    return _quantised(build.softmax(real, axis=axis), scale, zero, x.dtype)


@onnx_op("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(node: OnnxNode, scale: Value, zero: Value, *parts: Value) -> Value:
    """Parts come with a scale and a zero point each."""
    if not parts or len(parts) % 3:
        raise node.wrong(f"expected a scale and a zero point with each input, got {len(parts)} inputs in all")
    real = [dequantised(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return _quantised(build.concat(*real, axis=node.axis(real[0].rank)), scale, zero, zero.dtype)


def _channels_first(node: OnnxNode, x: Value, pool: Callable[[Value], Value]) -> Value:
    """A pool over channels-first x; the node may have them last."""
    if not node.flag("channels_last"):
        return pool(x)
    rank = x.rank
    pooled = pool(x.transpose(0, rank - 1, *range(1, rank - 1)))
    return pooled.transpose(0, *range(2, rank), 1)


@onnx_op("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(
    node: OnnxNode, x: Value, x_scale: Value, x_zero: Value, scale: Value, zero: Value
) -> Value:
    real = dequantised(x, x_scale, x_zero)
    axes = tuple(range(2, x.rank))
    pooled = _channels_first(node, real, lambda r: build.reduce_mean(r, axes=axes, keepdims=True))
    return _quantised(pooled, scale, zero, x.dtype)


@onnx_op("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(
    node: OnnxNode, x: Value, x_scale: Value, x_zero: Value | None, scale: Value, zero: Value | None
) -> Value:
    real = dequantised(x, x_scale, x_zero)
    return _quantised(_channels_first(node, real, lambda r: average_pool(node, r)), scale, zero, x.dtype)


# products


@onnx_op("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    node: OnnxNode, a: Value, b: Value, a_scale: Value, b_scale: Value, a_zero: Value | None, b_zero: Value | None,
    bias: Value | None,
) -> Value:  # fmt: skip
    total = integer_product(a, b, a_zero, b_zero).cast(a_scale.dtype)
    y = total * (rows_of(one_number(a_scale)) * one_number(b_scale))
    return y if bias is None else y + bias


@onnx_op("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    node: OnnxNode, a: Value, b: Value, b_scale: Value, b_zero: Value | None, bias: Value | None
) -> Value:
    quantised, scale, zero = _several("dynamic_quantize", a)
    y = integer_product(quantised, b, zero, b_zero).cast(dtypes.f32) * (scale * one_number(b_scale))
    return y if bias is None else y + bias


def _several(name: str, *operands: Value | None, **attributes: Any) -> tuple[Value, ...]:
    """The values of an op of several results."""
    results = call(name, *operands, **attributes)
    assert isinstance(results, tuple)
    return results


@onnx_op("QGemm", domain=MICROSOFT)
def qgemm(
    node: OnnxNode, a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value, c: Value | None,
    scale: Value | None, zero: Value | None,
) -> Value:  # fmt: skip
    """alpha · A B + C with C in units of a_scale · b_scale · alpha; floats where the result has no scale."""
    a = a.transpose(1, 0) if node.flag("transA") else a
    b = b.transpose(1, 0) if node.flag("transB") else b
    total = integer_product(a, b, a_zero, b_zero)
    total = total if c is None else total + c
    unit = one_number(a_scale) * one_number(b_scale)
    alpha = node.real("alpha", 1.0)
    unit = unit if alpha == 1.0 else unit * alpha
    if scale is None:
        return total.cast(dtypes.f32) * unit
    if zero is None:
        raise node.wrong("expected a zero point with the result's scale, got none")
    return requantised(total, unit / one_number(scale), one_number(zero), zero.dtype)


@onnx_op("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(
    node: OnnxNode, a: Value, b: Value, scales: Value, zeros: Value | None, g_idx: Value | None, bias: Value | None
) -> Value:
    """a times the transposed matrix [N, K] of small integers, packed low bits first, with a scale for each block.

    The accuracy level allows coarser arithmetic than floats, and asks for none.
    """
    bits, block = node.integer("bits", 4), node.integer("block_size")
    columns, depth = node.integer("N"), node.integer("K")
    node.integer("accuracy_level", 0)
    if g_idx is not None or node.flag("weight_prepacked"):
        raise node.unsupported("a weight in another order is not supported")
    if bits not in (2, 4, 8) or block < 16 or block & (block - 1) or columns < 1 or depth < 1:
        raise node.wrong(f"expected bits of 2, 4 or 8 and a block of a power of 2 from 16 on, got {bits} and {block}")
    blocks = -(-depth // block)
    zero = None
    if zeros is not None:
        whole = unpacked(zeros.reshape(columns, -1), bits)[:, :blocks] if zeros.dtype is dtypes.u8 else zeros
        zero = whole.reshape(columns, blocks).cast(scales.dtype)
    y = build.packed_matmul(
        a, b.reshape(columns, blocks * block * bits // 8), scales.reshape(columns, blocks), zero,
        depth=depth, bits=bits, block=block,
    )  # fmt: skip
    return y if bias is None else y + bias


# attention


@onnx_op("QAttention", domain=MICROSOFT)
def qattention(
    node: OnnxNode, x: Value, w: Value, bias: Value, x_scale: Value, w_scale: Value, mask: Value | None,
    x_zero: Value | None, w_zero: Value | None, past: Value | None,
) -> list[Value]:  # fmt: skip
    """One integer product gives queries, keys and values; the rest is attention in floats."""
    if node.flag("do_rotary") or node.flag("past_present_share_buffer"):
        raise node.unsupported("rotary embeddings and shared caches are not supported")
    heads = node.integer("num_heads")
    merged = dims.exact_div(bias.shape[0], 3)
    size = None if heads < 1 or merged is None else dims.exact_div(merged, heads)
    if merged is None or size is None:
        raise node.wrong(f"expected {heads} heads to divide a third of {bias.type}")
    unit = one_number(x_scale) * one_number(w_scale)
    projected = integer_product(x, w, x_zero, w_zero).cast(dtypes.f32) * unit + bias
    parts = [
        part.reshape(x.shape[0], x.shape[1], heads, size).transpose(0, 2, 1, 3)
        for part in shorthand.split(projected, (merged,) * 3, axis=2)
    ]
    q, k, v = parts
    before: Dim = 0
    if past is not None:
        before = past.shape[3]
        k, v = (build.concat(past[i], part, axis=2) for i, part in enumerate((k, v)))
    added = None if mask is None else _added_mask(node, mask, x, k.shape[2])
    mixed = build.attention(
        q, k, v, added, scale=node.real("scale", 0.0) or None, causal=node.flag("unidirectional"), offset=before
    )
    out = mixed.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[1], merged)
    return [out, shorthand.stack([k, v], axis=0)] if any(node.outputs[1:]) else [out]


def _added_mask(node: OnnxNode, mask: Value, x: Value, keys: Dim) -> Value:
    """What is added to the scores: lengths, or whether a key counts, by batch, query and key."""
    far = node.real("mask_filter_value", -10000.0)
    if mask.rank == 1:
        if mask.shape[0] != x.shape[0]:
            raise node.unsupported(f"a mask {mask.type} is not supported: a length for each of {x.type} is")
        place = build.iota(x.graph, shape=(1, 1, 1, keys), axis=3, dtype=mask.dtype)
        counts = build.lt(place, mask.reshape(mask.shape[0], 1, 1, 1))
    else:
        if not 2 <= mask.rank <= 3:
            raise node.unsupported(f"a mask {mask.type} is not supported")
        shape = (mask.shape[0], 1, *([1] * (3 - mask.rank)), *mask.shape[1:])
        counts = build.gt(mask.reshape(shape), 0)
    return build.select(counts, x.graph.constant(0.0, dtypes.f32), far)


# recurrent nets


@onnx_op("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(
    node: OnnxNode, x: Value, w: Value, r: Value, b: Value | None, lengths: Value | None, h: Value | None,
    c: Value | None, p: Value | None, w_scale: Value, w_zero: Value, r_scale: Value, r_zero: Value,
) -> list[Value]:  # fmt: skip
    """An LSTM whose weights are bytes, [D, I, 4·H] and [D, H, 4·H]; x and h are quantised where they meet them."""
    net = Net(node, x, w, r, 4, hidden_axis=1)
    if p is None and lengths is not None:
        p = net.zeros((net.directions, dims.mul(net.hidden, 3)))
    operands = [
        net.x, w, r, net.bias(b), net.state(h), net.state(c),
        *(part.reshape(part.shape[0], -1) for part in (w_scale, w_zero, r_scale, r_zero)), p, lengths,
    ]  # fmt: skip
    attributes = cell_attributes(node, ("sigmoid", "tanh", "tanh"))
    results = _several("dynamic_quantize_lstm", *operands, **attributes, input_forget=node.flag("input_forget"))
    return net.results(results)
