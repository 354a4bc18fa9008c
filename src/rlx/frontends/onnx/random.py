"""Importer functions: random numbers, and dropout.

A node with a seed gives the same numbers in every run. Each of the others has a stream of the state that the runtime
provides, which is new in every run.
"""

from __future__ import annotations

import numpy as np

from rlx import ops
from rlx.frontends.onnx.model import dtype_of
from rlx.frontends.onnx.table import OnnxNode, Operand, as_int, onnx_op
from rlx.ir.dim import Shape
from rlx.ir.dtype import DType
from rlx.ir.graph import Value
from rlx.ops import build


def _state(node: OnnxNode, seed: float | int | None) -> tuple[Value, int]:
    """The state and the stream that the node draws from."""
    state, stream = node.subgraphs.random_state()
    if seed is None:
        return state, stream
    bits = np.float32(seed).view(np.uint32) if isinstance(seed, float) else np.uint64(seed & (1 << 64) - 1)
    words = np.array([int(bits) & 0xFFFFFFFF, int(bits) >> 32, 0, 0], np.uint32)
    return node.graph.constant(words), 0


def _shape(node: OnnxNode) -> Shape:
    shape: Shape = node.integers("shape")
    if any(not isinstance(d, int) or d < 0 for d in shape):
        raise node.wrong(f"expected a shape of dims of at least 0, got {list(shape)}")
    return shape


def _normal(node: OnnxNode, shape: Shape, dtype: DType) -> Value:
    state, stream = _state(node, node.real("seed", None))
    mean, deviation = node.real("mean", 0.0), node.real("scale", 1.0)
    return build.random_normal(state, shape=shape, mean=mean, deviation=deviation, stream=stream, dtype=dtype)


def _uniform(node: OnnxNode, shape: Shape, dtype: DType) -> Value:
    state, stream = _state(node, node.real("seed", None))
    low, high = node.real("low", 0.0), node.real("high", 1.0)
    return build.random_uniform(state, shape=shape, low=low, high=high, stream=stream, dtype=dtype)


def _dtype(node: OnnxNode, default: DType) -> DType:
    code = node.integer("dtype", None)
    return default if code is None else dtype_of(code)


@onnx_op("RandomNormal")
def random_normal(node: OnnxNode) -> Value:
    return _normal(node, _shape(node), dtype_of(node.integer("dtype", 1)))


@onnx_op("RandomUniform")
def random_uniform(node: OnnxNode) -> Value:
    return _uniform(node, _shape(node), dtype_of(node.integer("dtype", 1)))


@onnx_op("RandomNormalLike")
def random_normal_like(node: OnnxNode, like: Operand) -> Value:
    return _normal(node, like.shape, _dtype(node, like.dtype))


@onnx_op("RandomUniformLike")
def random_uniform_like(node: OnnxNode, like: Operand) -> Value:
    return _uniform(node, like.shape, _dtype(node, like.dtype))


@onnx_op("Bernoulli")
def bernoulli(node: OnnxNode, p: Value) -> Value:
    state, stream = _state(node, node.real("seed", None))
    return build.bernoulli(p, state, stream=stream).cast(_dtype(node, p.dtype))


@onnx_op("Multinomial")
def multinomial(node: OnnxNode, logits: Value) -> Value:
    """Inputs are logarithms of chances that need not add up to 1."""
    if logits.rank != 2:
        raise node.wrong(f"expected logarithms of chances [batch, classes], got {logits.type}")
    state, stream = _state(node, node.real("seed", None))
    samples = node.integer("sample_size", 1)
    return build.categorical(logits, state, samples=samples, stream=stream).cast(dtype_of(node.integer("dtype", 6)))


@onnx_op("Dropout", since=12)
def dropout(node: OnnxNode, x: Value, ratio: Operand | None, training: Operand | None) -> list[Value]:
    """Unless it trains, and with a ratio of 0, everything is kept."""
    seed = node.integer("seed", None)
    share = node.graph.constant(0.5, "f32") if ratio is None else ratio.value.reshape()
    if training is None or (share.constant is not None and share.constant == 0):
        return _kept(node, x)
    if training.known is None:
        share = build.select(training.value.reshape(), share, 0.0)
    elif not as_int(node, training.known.reshape(-1)[0], "whether it trains"):
        return _kept(node, x)
    state, stream = _state(node, seed)
    results: tuple[Value, Value] = ops.dropout(x, share, state, stream=stream)
    return list(results)


@onnx_op("Dropout", until=11)
def dropout_by_attribute(node: OnnxNode, x: Value) -> list[Value]:
    """Before opset 7 an attribute says that nothing is dropped; since then nothing ever is."""
    ratio, tests = node.real("ratio", 0.5), node.flag("is_test", node.opset >= 7)
    if not tests and ratio != 0.0:
        state, stream = _state(node, None)
        results: tuple[Value, Value] = ops.dropout(x, node.graph.constant(ratio, "f32"), state, stream=stream)
        return [results[0], results[1].cast(x.dtype)]
    return _kept(node, x)


def _kept(node: OnnxNode, x: Value) -> list[Value]:
    """x, and the mask of what was kept."""
    if len(node.outputs) < 2 or not node.outputs[1]:
        return [x]
    mask = build.broadcast_to(node.graph.constant(True), shape=x.shape)
    return [x, mask if node.opset >= 10 else mask.cast(x.dtype)]
