"""The parts of transformers: attention in all its forms, and rotary positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.dtype import accumulator
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Tolerance, op
from rlx.ir.padding import Padded, Padding
from rlx.ir.type import TensorType
from rlx.ops.build import (
    concat,
    dims_tensor,
    dot_general,
    eq,
    exp,
    iota,
    reduce_max,
    reduce_sum,
    select,
    softmax,
    tanh,
    transpose,
)  # fmt: skip

Array = np.ndarray[Any, Any]


@op
class Attention(Composite):
    """softmax(scale · q kᵀ, masked) v for every head; a key-value head serves H / Hkv query heads in a row.

    q      float [B, H, Sq, D]
    k      like q, [B, Hkv, Sk, D]
    v      like q, [B, Hkv, Sk, Dv]
    mask   bool (true: attend) or like q (added to the scores), broadcastable to [B, H, Sq, Sk]
    result like q, [B, H, Sq, Dv]

    scale    factor of the scores; None is 1/√D
    causal   query i attends to keys up to i + offset
    window   query i attends to keys less than this far from i + offset
    offset   position of the first query among the keys: the length of what a cache holds
    softcap  scores become softcap · tanh(scores / softcap), before any mask
    fill     what takes the place of scores that a bool mask, causal or window forbid
    empty    what a query gets whose every score is -inf: "zero", or "nan" as a bare softmax gives
    Sources: Vaswani et al. 2017, arXiv:1706.03762; grouped heads: Ainslie et al. 2023, arXiv:2305.13245.
    """

    scale: float | None = None
    causal: bool = False
    window: int | None = None
    offset: Dim = 0
    softcap: float | None = None
    fill: float = -math.inf
    empty: str = "zero"
    tolerance = Tolerance(64, scale=1)

    def infer(self, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None = None) -> TensorType:
        expect.floating(q, "q")
        expect.same_dtype(q, k, v)
        for of, name in ((q, "q"), (k, "k"), (v, "v")):
            expect.rank(of, 4, name, at_most=4)
        batch = expect.same_dim(q.shape[0], k.shape[0], f"batch dims differ: q is {q}, k is {k}")
        expect.same_dim(batch, v.shape[0], f"batch dims differ: q is {q}, v is {v}")
        expect.same_dim(k.shape[1], v.shape[1], f"heads differ: k is {k}, v is {v}")
        expect.same_dim(k.shape[2], v.shape[2], f"lengths differ: k is {k}, v is {v}")
        expect.same_dim(q.shape[3], k.shape[3], f"head sizes differ: q is {q}, k is {k}")
        if dims.exact_div(q.shape[1], k.shape[1]) is None:
            raise ShapeError(f"expected the heads of q to be a multiple of those of k, got {q} and {k}")
        self.factor(q.shape[3])
        if self.empty not in ("zero", "nan"):
            raise ShapeError(f"expected empty to be 'zero' or 'nan', got {self.empty!r}")
        if mask is not None:
            if mask.dtype.kind != "bool":
                expect.same_dtype(q, mask)
            expect.broadcastable(mask, (*q.shape[:3], k.shape[2]), "mask")
        return q.with_shape((*q.shape[:3], v.shape[3]))

    def factor(self, head_size: Dim) -> float:
        """The scale as a number. Raises ShapeError if it hangs on a head size that is not known."""
        if self.scale is not None:
            return self.scale
        if not isinstance(head_size, int):
            raise ShapeError(f"expected a known head size or a scale, got {head_size}")
        return 1.0 / math.sqrt(head_size) if head_size else 1.0

    def reference(self, q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
        group = q.shape[1] // k.shape[1]
        keys, values = (np.repeat(part.astype(np.float64), group, axis=1) for part in (k, v))
        with np.errstate(all="ignore"):
            scores = np.matmul(q.astype(np.float64), keys.swapaxes(2, 3)) * self.factor(q.shape[3])
            if self.softcap is not None:
                scores = self.softcap * np.tanh(scores / self.softcap)
            if mask is not None and mask.dtype != np.bool_:
                scores = scores + mask.astype(np.float64)
            scores = np.where(self._kept(q.shape[2], k.shape[2], mask), scores, self.fill)
            top = scores.max(-1, keepdims=True, initial=-np.inf)
            weights = np.exp(scores - top)
            weights = weights / weights.sum(-1, keepdims=True)
            if self.empty == "zero":
                weights = np.where(top == -np.inf, 0.0, weights)
            return np.asarray(np.matmul(weights, values)).astype(q.dtype)

    def _kept(self, queries: int, keys: int, mask: Array | None) -> Array:
        at = np.arange(queries)[:, None] + dims.evaluate(self.offset, {})
        key = np.arange(keys)[None, :]
        admitted = np.ones((queries, keys), np.bool_)
        if self.causal:
            admitted = key <= at
        if self.window is not None:
            admitted = admitted & (np.abs(at - key) < self.window)
        return admitted & mask if mask is not None and mask.dtype == np.bool_ else admitted

    def padded(self, padding: Padding, q: Padded, k: Padded, v: Padded, mask: Padded | None = None) -> Padded | None:
        """Keys that do not count are forbidden by the mask; where that is no -inf they would have their share."""
        if padding.is_open(q.shape[1], k.shape[1], q.shape[3], v.shape[3], self.offset):
            return None
        batch = padding.same_of([q.axes[0], k.axes[0], v.axes[0]])
        keys = padding.same(k.axes[2], v.axes[2])
        if mask is not None:
            padding.joined((*q.shape[:3], k.shape[2]), (mask, Padded(q.value, (batch, q.axes[1], q.axes[2], keys))))
        if padding.is_open(k.shape[2]):
            if self.fill != -math.inf:
                return None
            k, v = (padding.filled(x.along(2, keys), (2,), 0) for x in (k, v))
            mask = self._mask_padded(padding, k, mask)
        masks = () if mask is None else (mask.value,)
        result = padding.build(self, q.value, k.value, v.value, *masks)
        return Padded(result, (batch, q.axes[1], q.axes[2], v.axes[3]))

    def _mask_padded(self, padding: Padding, k: Padded, mask: Padded | None) -> Padded:
        """The mask, and false or -inf for keys that do not count."""
        counts = transpose(padding.counts(k, 2), permutation=(0, 1, 3, 2))
        if mask is None:
            return padding.of(counts)
        if mask.value.dtype.kind == "bool":
            return padding.of(mask.value & counts)
        forbidden = padding.graph.constant(np.asarray(-np.inf).astype(mask.value.dtype.numpy))
        return padding.of(select(counts, mask.value, forbidden))

    def decompose(self, q: Value, k: Value, v: Value, mask: Value | None = None) -> Value:
        wide = accumulator(q.dtype)
        heads, shared = q.shape[1], k.shape[1]
        # Query heads that share a key head make an axis of their own; there is none if each has its own.
        grouped = q.shape[:2] if heads == shared else (q.shape[0], shared, dims.floordiv(heads, shared))
        queries = (q.cast(wide) * self.factor(q.shape[3])).reshape(*grouped, *q.shape[2:])
        last = queries.rank - 1
        pairs = {"lhs_batch": (0, 1), "rhs_batch": (0, 1)}
        scores = dot_general(queries, k.cast(wide), lhs_contract=(last,), rhs_contract=(3,), **pairs)
        scores = self._masked(scores.reshape(*q.shape[:3], k.shape[2]), mask)
        weights = self._weights(scores).reshape(*grouped, q.shape[2], k.shape[2])
        mixed = dot_general(weights, v.cast(wide), lhs_contract=(last,), rhs_contract=(2,), **pairs)
        return mixed.reshape(*q.shape[:3], v.shape[3]).cast(q.dtype)

    def _masked(self, scores: Value, mask: Value | None) -> Value:
        if self.softcap is not None:
            scores = tanh(scores / self.softcap) * self.softcap
        admitted = mask if mask is not None and mask.dtype.kind == "bool" else None
        if mask is not None and admitted is None:
            scores = scores + mask.cast(scores.dtype)
        near = self._near(scores)
        if near is not None:
            admitted = near if admitted is None else admitted & near
        return scores if admitted is None else select(admitted, scores, self.fill)

    def _near(self, scores: Value) -> Value | None:
        """What `causal` and `window` admit, bool [Sq, Sk]; None if that is all."""
        if not self.causal and self.window is None:
            return None
        graph, shape = scores.graph, scores.shape[2:]
        key = iota(graph, shape=shape, dtype="i32", axis=1)
        at = iota(graph, shape=shape, dtype="i32", axis=0)
        if self.offset != 0:
            at = at + dims_tensor(graph, values=(self.offset,), dtype="i32").reshape()
        admitted = key <= at if self.causal else None
        if self.window is None:
            return admitted
        near = abs(at - key) < self.window
        return near if admitted is None else admitted & near

    def _weights(self, scores: Value) -> Value:
        if self.empty == "nan":
            return softmax(scores, axis=-1)
        # exp(-inf - 0) is 0 where exp(-inf - -inf) is NaN, and a sum of 0 divides as 1.
        top = reduce_max(scores, axes=(3,), keepdims=True)
        powers = exp(scores - select(eq(top, -math.inf), 0, top))
        total = reduce_sum(powers, axes=(3,), keepdims=True)
        return powers / select(eq(total, 0), 1, total)


@op
class RotaryEmbedding(Composite):
    """Turns pairs of elements by the angles of their position; elements past the pairs stay.

    x         float [B, H, S, D]
    cos, sin  like x, broadcastable to [B, H, S, R/2], R ≤ D the number of elements that turn

    interleaved  pairs are neighbours (2i, 2i+1); else element i goes with i + R/2
    Source: Su et al. 2021, arXiv:2104.09864, eq. 34.
    """

    interleaved: bool = False
    tolerance = Tolerance(4, scale=4)

    def infer(self, x: TensorType, cos: TensorType, sin: TensorType) -> TensorType:
        expect.floating(x)
        expect.rank(x, 2)
        expect.same_dtype(x, cos, sin)
        expect.rank(cos, 1, "cos")
        half, size = cos.shape[-1], x.shape[-1]
        if not isinstance(half, int) or not isinstance(size, int) or 2 * half > size:
            raise ShapeError(f"expected cos to hold at most half of the elements of {x}, got {cos}")
        for table, name in ((cos, "cos"), (sin, "sin")):
            expect.broadcastable(table, (*x.shape[:-1], half), name)
        return x

    def reference(self, x: Array, cos: Array, sin: Array) -> Array:
        half = cos.shape[-1]
        wide, c, s = (part.astype(np.float64) for part in (x, cos, sin))
        rotated, rest = wide[..., : 2 * half], wide[..., 2 * half :]
        if self.interleaved:
            a, b = rotated[..., 0::2], rotated[..., 1::2]
            out = np.stack([a * c - b * s, a * s + b * c], axis=-1).reshape(rotated.shape)
        else:
            a, b = rotated[..., :half], rotated[..., half:]
            out = np.concatenate([a * c - b * s, a * s + b * c], axis=-1)
        return np.concatenate([out, rest], axis=-1).astype(x.dtype)

    def decompose(self, x: Value, cos: Value, sin: Value) -> Value:
        wide, c, s = (part.cast(accumulator(x.dtype)) for part in (x, cos, sin))
        half = cos.shape[-1]
        assert isinstance(half, int)  # the type rule asks for it
        a = wide[..., : 2 * half : 2] if self.interleaved else wide[..., :half]
        b = wide[..., 1 : 2 * half : 2] if self.interleaved else wide[..., half : 2 * half]
        first, second = a * c - b * s, a * s + b * c
        if self.interleaved:
            pair = concat(first[..., None], second[..., None], axis=-1)
            out = pair.reshape(*x.shape[:-1], 2 * half)
        else:
            out = concat(first, second, axis=-1)
        return (out if 2 * half == x.shape[-1] else concat(out, wide[..., 2 * half :], axis=-1)).cast(x.dtype)
