"""Importer functions for the fused ops that onnxruntime's optimiser writes into models (domain com.microsoft)."""

from __future__ import annotations

from rlx.frontends.onnx.table import OnnxNode, onnx_op
from rlx.ir.dtype import accumulator
from rlx.ir.graph import Value
from rlx.ops import build

DOMAIN = "com.microsoft"


@onnx_op("Gelu", domain=DOMAIN)
def gelu(node: OnnxNode, x: Value) -> Value:
    return build.gelu(x)


@onnx_op("BiasGelu", domain=DOMAIN)
def bias_gelu(node: OnnxNode, x: Value, bias: Value) -> Value:
    return build.gelu(x + bias)


@onnx_op("FastGelu", domain=DOMAIN)
def fast_gelu(node: OnnxNode, x: Value, bias: Value | None) -> Value:
    return build.gelu(x if bias is None else x + bias, approximate=True)


@onnx_op("QuickGelu", domain=DOMAIN)
def quick_gelu(node: OnnxNode, x: Value) -> Value:
    return x * build.sigmoid(x * node.real("alpha", 1.702))


@onnx_op("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_norm(
    node: OnnxNode, x: Value, skip: Value, scale: Value, shift: Value | None, bias: Value | None
) -> list[Value]:
    """Layer norm of x + skip + bias; the outputs are the norm, its mean, 1 / standard deviation, and the sum."""
    total = x + skip if bias is None else x + skip + bias
    epsilon = node.real("epsilon", 1e-12)
    results = [build.layer_norm(total, scale, shift, axes=(-1,), epsilon=epsilon)]
    if any(node.outputs[1:3]):
        wide = total.cast(accumulator(x.dtype))
        variance = build.reduce_variance(wide, axes=(-1,), keepdims=True)
        return [*results, build.reduce_mean(wide, axes=(-1,), keepdims=True), build.rsqrt(variance + epsilon), total]
    return [*results, total, total, total] if len(node.outputs) > 3 else results


@onnx_op("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_rms_norm(node: OnnxNode, x: Value, skip: Value, scale: Value, bias: Value | None) -> list[Value]:
    total = x + skip if bias is None else x + skip + bias
    if any(node.outputs[1:3]):
        raise node.unsupported("its statistics as outputs are not supported")
    normed = build.rms_norm(total, scale, axes=(-1,), epsilon=node.real("epsilon", 1e-12))
    return [normed, total, total, total] if len(node.outputs) > 3 else [normed]
