"""Composites that MIL has ops for: what these take, and how they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.backends.coreml.library import Value, known, mb, number, shape_of
from rlx.backends.coreml.scalar import broadcast, choose
from rlx.backends.coreml.shapes import lowers, reshaped
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Node
from rlx.ir.op import Constant, Param
from rlx.ops.activation import Gelu
from rlx.ops.norm import LayerNorm, Softmax
from rlx.ops.transformer import Attention


def claim(node: Node) -> str | None:
    """None for what MIL has no op for, "" for what it takes as it is, else why not."""
    found = _CLAIMS.get(type(node.op))
    if found is None:
        return None
    if node.inputs[0].dtype not in (dtypes.f32, dtypes.f16):
        return f"{node.inputs[0].dtype}"
    return found(node)


def _rows(node: Node) -> str:
    return "" if node.inputs[0].type.rank <= 5 else "more than five axes"


def _norm(node: Node) -> str:
    op: Any = node.op
    x = node.inputs[0].type
    axes = sorted(a % x.rank for a in op.axes)
    if axes != list(range(x.rank - len(axes), x.rank)):
        return "axes that are not the last"
    for value in node.inputs[1:]:
        if not isinstance(value.node.op, (Param, Constant)):
            return "a scale or bias that is no weight"
        if value.shape != x.shape[axes[0] :]:
            return "a scale or bias of another shape"
    return ""


def _attention(node: Node) -> str:
    op: Any = node.op
    q, k, v = (value.type for value in node.inputs[:3])
    if op.window is not None or op.softcap is not None or op.causal:
        return "a sliding window, a soft cap, or a causal mask"
    if op.fill != float("-inf") or op.empty != "zero":
        return "what forbidden scores or empty rows give"
    if not isinstance(q.shape[3], int) or not q.shape[3] or op.factor(q.shape[3]) != op.__class__().factor(q.shape[3]):
        return "a scale of its own, or a head size that is not known"
    if q.shape[1] != k.shape[1] or v.shape[1] != k.shape[1]:
        return "heads that share keys"
    if len(node.inputs) > 3 and node.inputs[3].dtype.kind != "bool":
        return "a mask that is added: rows without a key are not told"
    return ""


_CLAIMS: dict[type, Callable[[Node], str]] = {
    Softmax: _rows, Gelu: _rows, LayerNorm: _norm, Attention: _attention,
}  # fmt: skip


@lowers("softmax")
def _softmax(op: Any, x: Value) -> Value:
    return mb.softmax(x=x, axis=op.axis)


@lowers("gelu")
def _gelu(op: Any, x: Value) -> Value:
    return mb.gelu(x=x, mode="TANH_APPROXIMATION" if op.approximate else "EXACT")


@lowers("layer_norm")
def _layer_norm(op: Any, x: Value, scale: Value | None = None, bias: Value | None = None) -> Value:
    given = {name: value for name, value in (("gamma", scale), ("beta", bias)) if value is not None}
    axes = sorted(a % x.rank for a in op.axes)
    return mb.layer_norm(x=x, axes=axes, epsilon=number(known(x), op.epsilon), **given)


@lowers("attention")
def _attend(op: Any, q: Value, k: Value, v: Value, mask: Value | None = None) -> Value:
    """A query that may attend to no key gets zeros, where MIL's op gives NaN."""
    if mask is None:
        return mb.scaled_dot_product_attention(query=q, key=k, value=v)
    mask = reshaped(mask, (*([1] * (4 - mask.rank)), *shape_of(mask)))
    mask = broadcast(mask, (*shape_of(mask)[:3], shape_of(k)[2]))
    made = mb.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=mask)
    some = mb.reduce_max(x=mb.cast(x=mask, dtype="int32"), axes=[-1], keep_dims=True)
    zero = number(known(q), 0)
    return choose(broadcast(mb.not_equal(x=some, y=np.int32(0)), (*shape_of(made)[:3], 1)), made, zero)
