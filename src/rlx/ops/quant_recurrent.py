"""The LSTM with byte weights, which quantises x and h before their products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.graph import Value, call
from rlx.ir.op import op
from rlx.ir.type import TensorType
from rlx.ops import build
from rlx.ops.quant import DynamicQuantize
from rlx.ops.recurrent import Lstm, Weights

Array = np.ndarray[Any, Any]


@op
class DynamicQuantizeLstm(Lstm):
    """`lstm` on quantised products: all of x with w, and in every step all of h with r, by `dynamic_quantize`.

    x, b, h, c, p, lengths   as for lstm; x is f32
    w                        u8 or i8 [D, I, 4·H]
    r                        like w, [D, H, 4·H]
    w_scale, w_zero          f32, and like w in dtype, [D, 1] or [D, 4·H]; r_scale and r_zero alike for r
    results                  y [T, D, B, H], the last h and c [D, B, H]
    Attributes are those of lstm. A rounding that falls the other way moves a gate by a step of the quantised h.
    """

    def infer(
        self, x: TensorType, w: TensorType, r: TensorType, b: TensorType, h: TensorType, c: TensorType,
        w_scale: TensorType, w_zero: TensorType, r_scale: TensorType, r_zero: TensorType,
        p: TensorType | None = None, lengths: TensorType | None = None,
    ) -> tuple[TensorType, ...]:  # fmt: skip
        for of, scale, zero, name in ((w, w_scale, w_zero, "w"), (r, r_scale, r_zero, "r")):
            expect.rank(of, 3, name, at_most=3)
            expect.integer(of, name)
            expect.same_dtype(of, zero)
            expect.same_dtype(x, scale)
            for parameter in (scale, zero):
                expect.rank(parameter, 2, f"{name}'s scale and zero point", at_most=2)
                shape = (of.shape[0], 1 if parameter.shape[1] == 1 else of.shape[2])
                for have, expected in zip(parameter.shape, shape):
                    expect.same_dim(have, expected, f"expected a scale and zero point for {name} {of}, got {parameter}")
        w_, r_ = (TensorType((of.shape[0], of.shape[2], of.shape[1]), x.dtype) for of in (w, r))
        return super().infer(x, w_, r_, b, h, c, p, lengths)

    def reference(
        self, x: Array, w: Array, r: Array, b: Array, h: Array, c: Array, w_scale: Array, w_zero: Array,
        r_scale: Array, r_zero: Array, p: Array | None = None, lengths: Array | None = None,
    ) -> tuple[Array, ...]:  # fmt: skip
        steps, batch = x.shape[:2]
        y = np.zeros((steps, self.directions, *h.shape[1:]))
        last = [np.zeros(h.shape), np.zeros(c.shape)]
        for d in range(self.directions):
            now = (h[d].astype(np.float64), c[d].astype(np.float64))
            projected = _product(x, _parts(w[d], w_zero[d]), w_scale[d])
            recurrent = _parts(r[d], r_zero[d])
            bias, peep = b[d].reshape(2, -1).astype(np.float64), None if p is None else p[d].astype(np.float64)
            none = np.zeros((4 * h.shape[2], 0))  # the product with h comes with `both`
            for t in reversed(range(steps)) if self.backwards(d) else range(steps):
                both = projected[t] + _product(now[0].astype(x.dtype), recurrent, r_scale[d])
                step = self.cell(d, both, none, bias, (now[0][:, :0], now[1]), peep)
                live = np.ones((batch, 1), bool) if lengths is None else (t < lengths)[:, None]
                y[t, d] = np.where(live, step[0], 0)
                now = (np.where(live, step[0], now[0]), np.where(live, step[1], now[1]))
            last[0][d], last[1][d] = now
        return tuple(a.astype(x.dtype) for a in (y, *last))

    def decompose(
        self, x: Value, w: Value, r: Value, b: Value, h: Value, c: Value, w_scale: Value, w_zero: Value,
        r_scale: Value, r_zero: Value, p: Value | None = None, lengths: Value | None = None,
    ) -> tuple[Value, ...]:  # fmt: skip
        return self._decompose(x, (w, w_scale, w_zero), (r, r_scale, r_zero), b, (h, c), p, lengths)

    def product(self, x: Value, w: Weights) -> Value:
        """x [..., n] quantised, times bytes [n, g] and what they mean."""
        results = call("dynamic_quantize", x)
        assert isinstance(results, tuple)
        quantised, scale, zero = results
        weight, step, zero_point = (of.reshape() if of.shape == (1,) else of for of in w)
        total = build.integer_matmul(quantised, weight, zero, zero_point)
        return total.cast(dtypes.f32) * (scale * step)


def _parts(w: Array, zero: Array) -> Array:
    """Bytes [n, g] without their zero point, f32 [parts, rows, g]. A part has so few rows that float32 holds every sum
    of its products with bytes exactly; zeros fill the last one."""
    wide = w.astype(np.float32) - zero.astype(np.float32)
    most = (1 << 24) // (255 * max(1, int(np.abs(wide).max(initial=0))))
    count = max(1, -(-len(wide) // most))
    rows = -(-len(wide) // count)
    return np.pad(wide, ((0, count * rows - len(wide)), (0, 0))).reshape(count, rows, w.shape[1])


def _product(x: Array, w: Array, scale: Array) -> Array:
    """x [..., n], quantised, times the parts of w [n, g]."""
    quantised, step, zero_point = DynamicQuantize().reference(x)
    count, rows, columns = w.shape
    flat = (quantised.astype(np.float32) - zero_point.astype(np.float32)).reshape(math.prod(x.shape[:-1]), x.shape[-1])
    split = np.pad(flat, ((0, 0), (0, count * rows - flat.shape[1]))).reshape(len(flat), count, rows).transpose(1, 0, 2)
    total = np.matmul(split, w).sum(0, dtype=np.float64).reshape(*x.shape[:-1], columns)
    return np.asarray(total.astype(np.float32) * (step * scale)).astype(np.float64)
