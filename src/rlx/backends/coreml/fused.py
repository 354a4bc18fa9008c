"""Composites that MIL has ops for: when they apply, and how they are called."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.backends.coreml import compressed
from rlx.backends.coreml.library import Value, constant, known, mb, number, rounded_as, shape_of, widened
from rlx.backends.coreml.scalar import broadcast, choose
from rlx.backends.coreml.shapes import lowers, reshaped
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Node
from rlx.ir.literal import Array
from rlx.ir.op import Constant, Param
from rlx.ops.activation import Gelu
from rlx.ops.norm import LayerNorm, Softmax
from rlx.ops.packed import PackedMatmul
from rlx.ops.quant import Dequantize
from rlx.ops.transformer import Attention


def claim(node: Node) -> str | None:
    """None for what MIL has no op for, "" for what it takes as it is, else why not."""
    why_refused = _CLAIMS.get(type(node.op))
    if why_refused is None:
        return None
    if node.types[0].dtype not in (dtypes.f32, dtypes.f16, dtypes.bf16):
        return f"{node.types[0].dtype}"
    return why_refused(node)


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
    size = node.inputs[0].type.shape[3]
    if op.softcap is not None:
        return "a soft cap"
    if op.fill != float("-inf"):
        return f"forbidden scores of {op.fill}"
    return "" if isinstance(size, int) and size else "a head size that is not known"


_CLAIMS: dict[type, Callable[[Node], str]] = {
    Softmax: _rows, Gelu: _rows, LayerNorm: _norm, Attention: _attention,
    Dequantize: compressed.claim_weight, PackedMatmul: compressed.claim_product,
}  # fmt: skip


@lowers("softmax")
def _softmax(op: Any, x: Value) -> Value:
    return rounded_as(x, mb.softmax(x=widened(x), axis=op.axis))


@lowers("gelu")
def _gelu(op: Any, x: Value) -> Value:
    return rounded_as(x, mb.gelu(x=widened(x), mode="TANH_APPROXIMATION" if op.approximate else "EXACT"))


@lowers("layer_norm")
def _layer_norm(op: Any, x: Value, scale: Value | None = None, bias: Value | None = None) -> Value:
    parameters = {name: value for name, value in (("gamma", scale), ("beta", bias)) if value is not None}
    axes = sorted(a % x.rank for a in op.axes)
    return mb.layer_norm(x=x, axes=axes, epsilon=number(known(x), op.epsilon), **parameters)


@lowers("attention")
def _attention_of_wide(op: Any, q: Value, k: Value, v: Value, mask: Value | None = None) -> Value:
    mask = None if mask is None else widened(mask)
    return rounded_as(q, _attend(op, widened(q), widened(k), widened(v), mask))


def _attend(op: Any, q: Value, k: Value, v: Value, mask: Value | None = None) -> Value:
    """MIL's op scales by the root of the head size, wants as many heads of keys as of queries, and gives NaN to queries
    that may attend to no key."""
    heads, queries, size = shape_of(q)[1:]
    keys = shape_of(k)[2]
    k, v = (_for_each_head(part, heads) for part in (k, v))
    ratio = op.factor(size) * math.sqrt(size)
    if abs(ratio - 1) > 1e-7:
        q = mb.mul(x=q, y=number(known(q), ratio))
    if mask is not None:
        mask = reshaped(mask, (*([1] * (4 - mask.rank)), *shape_of(mask)))
        mask = broadcast(mask, (*shape_of(mask)[:3], keys))
    near = _near(op, queries, keys)
    mask = mask if near is None else _with_near(mask, near)
    if mask is None:
        return mb.scaled_dot_product_attention(query=q, key=k, value=v)
    attended = mb.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=mask)
    if near is not None and near.any(-1).all() and mask.val is not None:
        return attended  # every query has a key
    admitted = mask if known(mask) is dtypes.bool_ else mb.not_equal(x=mask, y=number(known(mask), -math.inf))
    some = mb.reduce_max(x=mb.cast(x=admitted, dtype="int32"), axes=[-1], keep_dims=True)
    empty = number(known(q), 0 if op.empty == "zero" else math.nan)
    return choose(broadcast(mb.not_equal(x=some, y=np.int32(0)), (*shape_of(attended)[:3], 1)), attended, empty)


def _for_each_head(x: Value, heads: int) -> Value:
    """Keys or values once for each head of the queries that share them."""
    batch, shared, length, size = shape_of(x)
    if heads == shared:
        return x
    spread = broadcast(reshaped(x, (batch, shared, 1, length, size)), (batch, shared, heads // shared, length, size))
    return reshaped(spread, (batch, heads, length, size))


def _near(op: Any, queries: int, keys: int) -> Array | None:
    """What `causal` and `window` admit, bool [1, 1, queries, keys]; None if that is all."""
    if not op.causal and op.window is None:
        return None
    at, key = np.arange(queries)[:, None] + op.offset, np.arange(keys)
    admitted = key <= at if op.causal else np.ones((queries, keys), np.bool_)
    admitted = admitted if op.window is None else admitted & (np.abs(at - key) < op.window)
    return None if admitted.all() else admitted[None, None]


def _with_near(mask: Value | None, near: Array) -> Value:
    """Both masks as one, bool or added."""
    if mask is None:
        return constant(near)
    if known(mask) is dtypes.bool_:
        return mb.logical_and(x=mask, y=constant(near))
    return choose(constant(near), mask, number(known(mask), -math.inf))
