"""Importer functions: softmax, norms, pools over everything, attention."""

from __future__ import annotations

from typing import Any

from rlx.frontends.onnx.table import OnnxNode, Operand, onnx_op
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import accumulator
from rlx.ir.graph import Value
from rlx.ops import build, shorthand


@onnx_op("Softmax", since=13)
def softmax(node: OnnxNode, x: Value) -> Value:
    return build.softmax(x, axis=node.axis(x.rank, -1))


@onnx_op("LogSoftmax", since=13)
def log_softmax(node: OnnxNode, x: Value) -> Value:
    return build.log_softmax(x, axis=node.axis(x.rank, -1))


@onnx_op("Softmax", until=12)
def softmax_flattened(node: OnnxNode, x: Value) -> Value:
    """Before opset 13 the axis splits the shape into two and the softmax runs over the whole right part."""
    return build.softmax(shorthand.flatten(x, node.integer("axis", 1)), axis=1).reshape(x.shape)


@onnx_op("LogSoftmax", until=12)
def log_softmax_flattened(node: OnnxNode, x: Value) -> Value:
    return build.log_softmax(shorthand.flatten(x, node.integer("axis", 1)), axis=1).reshape(x.shape)


@onnx_op("LayerNormalization")
def layer_norm(node: OnnxNode, x: Value, scale: Value, bias: Value | None) -> list[Value]:
    """Over the axes from `axis` on. Further outputs are the mean and 1 / standard deviation."""
    axes = tuple(range(node.axis(x.rank, -1), x.rank))
    epsilon = node.real("epsilon", 1e-5)
    results = [build.layer_norm(x, scale, bias, axes=axes, epsilon=epsilon)]
    if any(node.outputs[1:]):
        wide = x.cast(accumulator(x.dtype))
        variance = build.reduce_variance(wide, axes=axes, keepdims=True)
        results += [build.reduce_mean(wide, axes=axes, keepdims=True), build.rsqrt(variance + epsilon)]
    return results


@onnx_op("RMSNormalization", "SimplifiedLayerNormalization")
def rms_norm(node: OnnxNode, x: Value, scale: Value) -> Value:
    axes = tuple(range(node.axis(x.rank, -1), x.rank))
    return build.rms_norm(x, scale, axes=axes, epsilon=node.real("epsilon", 1e-5))


@onnx_op("BatchNormalization")
def batch_norm(node: OnnxNode, x: Value, scale: Value, bias: Value, mean: Value, variance: Value) -> list[Value]:
    """Inference: the statistics are those that the model brings. In training they are those of the batch, and move."""
    momentum = node.real("momentum", 0.9)
    if not node.flag("spatial", True):
        raise node.unsupported("statistics for every element are not supported")
    wide = mean.dtype if mean.dtype.bits > x.dtype.bits else x.dtype
    x_, scale_, bias_, mean_, variance_ = (part.cast(wide) for part in (x, scale, bias, mean, variance))
    epsilon = node.real("epsilon", 1e-5)
    if not node.flag("training_mode"):
        return [build.batch_norm(x_, scale_, bias_, mean_, variance_, epsilon=epsilon).cast(x.dtype)]
    axes = tuple(i for i in range(x.rank) if i != 1)
    now = [build.reduce_mean(x_, axes=axes), build.reduce_variance(x_, axes=axes)]
    updated = [old * momentum + new * (1.0 - momentum) for old, new in zip((mean_, variance_), now)]
    y = build.batch_norm(x_, scale_, bias_, *now, epsilon=epsilon).cast(x.dtype)
    return [y, *(part.cast(old.dtype) for part, old in zip(updated, (mean, variance)))]


@onnx_op("InstanceNormalization")
def instance_norm(node: OnnxNode, x: Value, scale: Value, bias: Value) -> Value:
    return build.instance_norm(x, scale, bias, epsilon=node.real("epsilon", 1e-5))


@onnx_op("GroupNormalization", since=21)
def group_norm(node: OnnxNode, x: Value, scale: Value, bias: Value) -> Value:
    return build.group_norm(x, scale, bias, groups=node.integer("num_groups"), epsilon=node.real("epsilon", 1e-5))


@onnx_op("GroupNormalization", until=20)
def group_norm_by_group(node: OnnxNode, x: Value, scale: Value, bias: Value) -> Value:
    """Before opset 21 scale and bias go by group, not by channel."""
    groups = node.integer("num_groups")
    size = dims.floordiv(x.shape[1], groups)
    scale, bias = (
        build.broadcast_to(part.reshape(groups, 1), shape=(groups, size)).reshape(x.shape[1]) for part in (scale, bias)
    )
    return build.group_norm(x, scale, bias, groups=groups, epsilon=node.real("epsilon", 1e-5))


@onnx_op("LpNormalization")
def lp_norm(node: OnnxNode, x: Value) -> Value:
    """x by its 1- or 2-norm along an axis; a row of zeros stays zero."""
    axis, p = node.axis(x.rank, -1), node.integer("p", 2)
    if p not in (1, 2):
        raise node.wrong(f"expected p to be 1 or 2, got {p}")
    length = build.op("reduce_l1" if p == 1 else "reduce_l2")(x, axes=(axis,), keepdims=True)
    return build.select(build.eq(length, 0.0), 0.0, x / length)


@onnx_op("GlobalAveragePool")
def global_average_pool(node: OnnxNode, x: Value) -> Value:
    return build.reduce_mean(x, axes=tuple(range(2, x.rank)), keepdims=True)


@onnx_op("GlobalMaxPool")
def global_max_pool(node: OnnxNode, x: Value) -> Value:
    return build.reduce_max(x, axes=tuple(range(2, x.rank)), keepdims=True)


@onnx_op("Attention", since=23)
def attention(
    node: OnnxNode, q: Value, k: Value, v: Value, mask: Value | None, past_k: Operand | None, past_v: Operand | None,
    lengths: Operand | None,
) -> Any:  # fmt: skip
    """The plain form is our op; caches, soft caps and asked-for scores take the standard's own definition."""
    if any(part is not None for part in (past_k, past_v, lengths)) or any(node.outputs[1:]):
        return NotImplemented
    if node.real("softcap", 0.0) != 0.0 or (mask is not None and mask.dtype not in (q.dtype, dtypes.bool_)):
        return NotImplemented
    left, right = node.integer("left_window_size", -1), node.integer("right_window_size", -1)
    causal = node.flag("is_causal") or right == 0
    if not causal and left != right:
        return NotImplemented
    node.integer("softmax_precision", 0), node.integer("qk_matmul_output_mode", 0)  # the scores are f32 or wider anyway
    flat = q.rank == 3
    if flat:
        q, k, v = (
            _heads(node, part, node.integer(name))
            for part, name in ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads"))
        )
    scale = node.real("scale", None)
    window = None if left < 0 else left + 1
    mixed = build.attention(q, k, v, mask, scale=scale, causal=causal, window=window)
    if not flat:
        return mixed
    merged = dims.mul(mixed.shape[1], mixed.shape[3])
    return mixed.transpose(0, 2, 1, 3).reshape(mixed.shape[0], mixed.shape[2], merged)


def _heads(node: OnnxNode, x: Value, heads: int) -> Value:
    """[B, S, H·D] → [B, H, S, D]."""
    if heads < 1 or dims.exact_div(x.shape[2], heads) is None:
        raise node.wrong(f"expected {heads} heads to divide the last dim of {x.type}")
    size = dims.floordiv(x.shape[2], heads)
    return x.reshape(x.shape[0], x.shape[1], heads, size).transpose(0, 2, 1, 3)
