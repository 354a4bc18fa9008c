"""Composites that mlx has functions for: what these take, and how they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.backends.mlx import packed
from rlx.backends.mlx.library import Value, mx
from rlx.backends.mlx.scalar import joined
from rlx.backends.mlx.shapes import lowers
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Node
from rlx.ops.fourier import Fft, Irfft, Rfft
from rlx.ops.norm import LayerNorm, RmsNorm
from rlx.ops.packed import PackedMatmul
from rlx.ops.transformer import Attention, RotaryEmbedding


def claim(node: Node) -> str | None:
    """None for what mlx has no function for, "" for what it takes as it is, else why not."""
    found = _CLAIMS.get(type(node.op))
    return None if found is None else found(node)


def _attention(node: Node) -> str:
    op: Any = node.op
    q = node.inputs[0].type
    if q.dtype is dtypes.f64:
        return "f64: softmax is computed in f32"
    if op.softcap is not None:
        return "a soft cap"
    if op.fill != float("-inf"):
        return f"forbidden scores of {op.fill}"
    if not isinstance(q.shape[3], int) or not q.shape[3]:
        return "a head size that is not known"
    return ""


def _norm(node: Node) -> str:
    op: Any = node.op
    x = node.inputs[0].type
    if x.dtype is dtypes.f64:
        return "f64: it is computed in f32"
    if tuple(a % x.rank for a in op.axes) != (x.rank - 1,):
        return "axes other than the last"
    if any(v.type.rank != 1 or v.shape[0] != x.shape[-1] for v in node.inputs[1:]):
        return "a scale or bias that is not a vector"
    if x.shape[-1] == 0:
        return "rows of no elements"
    return ""


def _rotary(node: Node) -> str:
    """mlx works out angles itself, as positions in a row times frequencies; the op has a cosine and a sine for every
    position, whose angles no arithmetic gives back to the last bit."""
    return "tables of cosines and sines: mlx takes frequencies"


def _fourier(node: Node) -> str:
    return "" if node.inputs[0].dtype is dtypes.f32 else "a dtype other than f32"


_CLAIMS: dict[type, Callable[[Node], str]] = {
    Attention: _attention, RotaryEmbedding: _rotary, LayerNorm: _norm, RmsNorm: _norm,
    Fft: _fourier, Rfft: _fourier, Irfft: _fourier, PackedMatmul: packed.claim,
}  # fmt: skip
CLAIMED = frozenset(cls.name for cls in _CLAIMS)  # type: ignore[attr-defined]  # they are ops


@lowers("attention")
def _attention_of_wide(op: Any, q: Value, k: Value, v: Value, mask: Value | None = None) -> Value:
    """On processors mlx keeps scores in the operands' dtype: a score of 64 in bf16 is off by a quarter."""
    if q.dtype not in (mx.float16, mx.bfloat16) or mx.default_device() != mx.Device(mx.cpu):
        return _attend(op, q, k, v, mask)
    if mask is not None and mask.dtype != mx.bool_:
        mask = mask.astype(mx.float32)
    wide = [part.astype(mx.float32) for part in (q, k, v)]
    return _attend(op, wide[0], wide[1], wide[2], mask).astype(q.dtype)


def _attend(op: Any, q: Value, k: Value, v: Value, mask: Value | None = None) -> Value:
    """Rows without a key are filled in here: mlx takes the mean of all values for them."""
    shape = (*q.shape[:3], v.shape[3])
    if 0 in shape or not k.shape[2]:
        return mx.zeros(shape, q.dtype)
    if mask is not None:
        mask = mx.reshape(mask, (*([1] * (4 - mask.ndim)), *mask.shape))
    queries, keys = q.shape[2], k.shape[2]
    ends_together = op.causal and op.window is None and op.offset == keys - queries >= 0
    if mask is None and ends_together:  # every query has a key, and mlx skips what lies behind it
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=op.factor(q.shape[3]), mask="causal")
    mask = _with_near(mask, _near(op, queries, keys))
    made = mx.fast.scaled_dot_product_attention(q, k, v, scale=op.factor(q.shape[3]), mask=mask)
    if mask is None:
        return made
    some = mask if mask.dtype == mx.bool_ else mx.not_equal(mask, float("-inf"))
    empty = mx.array(0.0 if op.empty == "zero" else float("nan"), made.dtype)
    return mx.where(mx.any(some, -1, keepdims=True), made, empty)


def _near(op: Any, queries: int, keys: int) -> Value | None:
    """What `causal` and `window` admit, bool [queries, keys]; None if that is all."""
    if not op.causal and op.window is None:
        return None
    at, key = (mx.arange(extent, dtype=mx.int64) for extent in (queries, keys))  # offsets may be far
    at = mx.expand_dims(at, 1) + mx.array(op.offset, mx.int64)
    kept = mx.less_equal(key, at) if op.causal else None
    if op.window is None:
        return kept
    near = mx.less(mx.abs(at - key), mx.array(op.window, mx.int64))
    return near if kept is None else mx.logical_and(kept, near)


def _with_near(mask: Value | None, near: Value | None) -> Value | None:
    """Both masks as one, bool or added."""
    if mask is None or near is None:
        return near if mask is None else mask
    if mask.dtype == mx.bool_:
        return mx.logical_and(mask, near)
    return mx.where(near, mask, mx.array(float("-inf"), mask.dtype))


@lowers("layer_norm")
def _layer_norm(op: Any, x: Value, scale: Value | None = None, bias: Value | None = None) -> Value:
    return x if x.size == 0 else mx.fast.layer_norm(x, scale, bias, op.epsilon)


@lowers("rms_norm")
def _rms_norm(op: Any, x: Value, scale: Value | None = None) -> Value:
    return x if x.size == 0 else mx.fast.rms_norm(x, scale, op.epsilon)


def _complex(real: Value, imaginary: Value | None) -> Value:
    return joined(real, mx.zeros_like(real) if imaginary is None else imaginary)


def _parts(made: Value, wrong: Value) -> tuple[Value, Value]:
    """Real and imaginary part. A NaN reaches every bin, also where an algorithm would pass it by."""
    nan = mx.array(float("nan"), mx.float32)
    return mx.where(wrong, nan, mx.real(made)), mx.where(wrong, nan, mx.imag(made))


@lowers("fft")
def _fft(op: Any, real: Value, imaginary: Value | None = None) -> tuple[Value, Value]:
    x = _complex(real, imaginary)
    length = x.shape[op.axis] if op.length is None else dims.evaluate(op.length, {})
    if x.size == 0:
        empty = mx.zeros([length if i == op.axis % x.ndim else n for i, n in enumerate(x.shape)], mx.float32)
        return empty, empty
    wrong = mx.isnan(real) if imaginary is None else mx.logical_or(mx.isnan(real), mx.isnan(imaginary))
    transform = mx.fft.ifft if op.inverse else mx.fft.fft
    return _parts(transform(x, length, op.axis), mx.any(wrong, op.axis, keepdims=True))


@lowers("rfft")
def _rfft(op: Any, x: Value) -> tuple[Value, Value]:
    length = x.shape[op.axis] if op.length is None else dims.evaluate(op.length, {})
    if x.size == 0:
        empty = mx.zeros([length // 2 + 1 if i == op.axis % x.ndim else n for i, n in enumerate(x.shape)], mx.float32)
        return empty, empty
    return _parts(mx.fft.rfft(x, length, op.axis), mx.any(mx.isnan(x), op.axis, keepdims=True))


@lowers("irfft")
def _irfft(op: Any, real: Value, imaginary: Value | None = None) -> Value:
    x = _complex(real, imaginary)
    length = 2 * (x.shape[op.axis] - 1) if op.length is None else dims.evaluate(op.length, {})
    if x.size == 0:
        return mx.zeros([length if i == op.axis % x.ndim else n for i, n in enumerate(x.shape)], real.dtype)
    return mx.fft.irfft(x, length, op.axis)
