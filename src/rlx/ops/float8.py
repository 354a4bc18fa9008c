"""Products of floats of 8 bits with sums of 32: what matrix units of GPUs multiply, and others by way of f32."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import DTypeError
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Cost, Tolerance, op
from rlx.ir.type import TensorType
from rlx.ops.linalg import DotGeneral, matrices

Array = np.ndarray[Any, Any]
DTYPES = (dtypes.f8e4m3, dtypes.f8e5m2, dtypes.f8e4m3fnuz, dtypes.f8e5m2fnuz)


@op
class Float8Matmul(Composite):
    """x · y over the last two axes, leading axes broadcast; the result is f32.

    x  a float of 8 bits [..., m, k]
    y  the same dtype [..., k, n]

    Products are exact, as f32 holds them. Sums are of f32, or of what matrix units add up by themselves between sums of
    f32: these cut off what is some 2^-13 of the greatest term in an instruction, of 128 terms in a row at most
    (`docs/backends/cuda.md`). Formats: the OCP 8-bit floating point specification 1.0.
    """

    tolerance = Tolerance(1 << 15, scale=1)

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        for of, name in ((x, "x"), (y, "y")):
            if of.dtype not in DTYPES:
                raise DTypeError(f"expected {name} of a float of 8 bits, {', '.join(map(str, DTYPES))}, got {of.dtype}")
            expect.rank(of, 2, name)
        expect.same_dtype(x, y)
        expect.same_dim(x.shape[-1], y.shape[-2], f"contracting dims differ: x is {x}, y is {y}")
        lead = expect.broadcast(x.shape[:-2], y.shape[:-2])
        return TensorType((*lead, x.shape[-2], y.shape[-1]), dtypes.f32)

    def reference(self, x: Array, y: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(x.astype(np.float64), y.astype(np.float64))).astype(np.float32)

    def decompose(self, x: Value, y: Value) -> Value:
        return matrices(x.cast(dtypes.f32), y.cast(dtypes.f32))

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return DotGeneral((inputs[0].rank - 1,), (0,)).cost(inputs, outputs)
