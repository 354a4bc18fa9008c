"""Activation functions. All are composites of one float operand, computed in float32 or wider and cast back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.ir import expect
from rlx.ir.dtype import accumulator
from rlx.ir.expr import INSTRUCTIONS
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Tolerance, op
from rlx.ir.type import TensorType
from rlx.ops.build import clamp, erf, exp, expm1, log1p, maximum, minimum, select, tanh

Array = np.ndarray[Any, Any]

# Where an exponential leaves the normal range a result may flush to zero: far below any tolerance that matters.
_TINY = 1e-30


class Activation(Composite):
    """f(x), element by element: `exact` says f in NumPy on float64, `formula` in values of float32 or wider.

    x   float [...]
    """

    tolerance = Tolerance(8, scale=_TINY)

    def infer(self, x: TensorType) -> TensorType:
        expect.floating(x)
        return x

    def exact(self, x: Array) -> Array:
        raise NotImplementedError

    def formula(self, x: Value) -> Value:
        raise NotImplementedError

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(self.exact(x.astype(np.float64))).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        return self.formula(x.cast(accumulator(x.dtype))).cast(x.dtype)


@op
class Relu(Composite):
    """max(x, 0); NaN stays.

    x   int or float [...]
    """

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, "int", "uint", "float")
        return x

    def reference(self, x: Array) -> Array:
        return np.asarray(np.maximum(x, np.zeros((), x.dtype))).astype(x.dtype, copy=False)

    def decompose(self, x: Value) -> Value:
        return maximum(x, 0)


@op
class LeakyRelu(Activation):
    """x above zero, alpha · x below."""

    alpha: float = 0.01

    def exact(self, x: Array) -> Array:
        return np.where(x < 0, self.alpha * x, x)

    def formula(self, x: Value) -> Value:
        return select(x < 0, x * self.alpha, x)


@op
class ThresholdedRelu(Activation):
    """x above alpha, else 0 (NaN too)."""

    alpha: float = 1.0

    def exact(self, x: Array) -> Array:
        return np.where(x > self.alpha, x, 0)

    def formula(self, x: Value) -> Value:
        return select(x > self.alpha, x, 0)


@op
class Prelu(Composite):
    """x from zero up, slope · x below.

    x       int or float [...]
    slope   like x, broadcastable to its shape
    """

    tolerance = Tolerance(1)

    def infer(self, x: TensorType, slope: TensorType) -> TensorType:
        expect.kind(x, "int", "uint", "float")
        expect.same_dtype(x, slope)
        expect.broadcastable(slope, x.shape, "slope")
        return x

    def reference(self, x: Array, slope: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.where(x < np.zeros((), x.dtype), x * slope, x).astype(x.dtype)

    def decompose(self, x: Value, slope: Value) -> Value:
        return select(x < 0, x * slope, x)


@op
class Elu(Activation):
    """x above zero, alpha · (eˣ - 1) below."""

    alpha: float = 1.0
    tolerance = Tolerance(16, scale=_TINY)

    def exact(self, x: Array) -> Array:
        return np.where(x > 0, x, self.alpha * np.expm1(x))

    def formula(self, x: Value) -> Value:
        return select(x > 0, x, expm1(x) * self.alpha)


@op
class Selu(Activation):
    """gamma · elu(x, alpha), with the constants that keep mean 0 and variance 1 (Klambauer et al. 2017)."""

    alpha: float = 1.67326319217681884765625
    gamma: float = 1.05070102214813232421875
    tolerance = Tolerance(16, scale=_TINY)

    def exact(self, x: Array) -> Array:
        return self.gamma * np.where(x > 0, x, self.alpha * np.expm1(x))

    def formula(self, x: Value) -> Value:
        return select(x > 0, x * self.gamma, expm1(x) * (self.alpha * self.gamma))


@op
class Celu(Activation):
    """max(x, 0) + min(0, alpha · (e^(x/alpha) - 1))."""

    alpha: float = 1.0
    tolerance = Tolerance(16, scale=_TINY)

    def exact(self, x: Array) -> Array:
        return np.maximum(x, 0) + np.minimum(0, self.alpha * np.expm1(x / self.alpha))

    def formula(self, x: Value) -> Value:
        return maximum(x, 0) + minimum(expm1(x / self.alpha) * self.alpha, 0)


@op
class Sigmoid(Activation):
    """1 / (1 + e⁻ˣ)."""

    def exact(self, x: Array) -> Array:
        return 1 / (1 + np.exp(-x))

    def formula(self, x: Value) -> Value:
        return 1 / (exp(-x) + 1)


@op
class HardSigmoid(Activation):
    """alpha · x + beta, kept in [0, 1]."""

    alpha: float = 0.2
    beta: float = 0.5
    tolerance = Tolerance(4, scale=1)

    def exact(self, x: Array) -> Array:
        return np.clip(self.alpha * x + self.beta, 0, 1)

    def formula(self, x: Value) -> Value:
        return clamp(x * self.alpha + self.beta, 0, 1)


@op
class HardSwish(Activation):
    """x · hard_sigmoid(x, 1/6, 1/2)."""

    tolerance = Tolerance(4, scale=4)

    def exact(self, x: Array) -> Array:
        return x * np.clip(x / 6 + 0.5, 0, 1)

    def formula(self, x: Value) -> Value:
        return x * clamp(x * (1 / 6) + 0.5, 0, 1)


@op
class Silu(Activation):
    """x · sigmoid(x), also called swish."""

    def exact(self, x: Array) -> Array:
        return np.asarray(x / (1 + np.exp(-x)))

    def formula(self, x: Value) -> Value:
        return x / (exp(-x) + 1)


@op
class Softplus(Activation):
    """log(1 + eˣ)."""

    tolerance = Tolerance(16, scale=_TINY)

    def exact(self, x: Array) -> Array:
        return np.logaddexp(x, 0)

    def formula(self, x: Value) -> Value:
        return maximum(x, 0) + log1p(exp(-abs(x)))


@op
class Softsign(Activation):
    """x / (1 + |x|)."""

    def exact(self, x: Array) -> Array:
        return np.asarray(x / (1 + np.abs(x)))

    def formula(self, x: Value) -> Value:
        return x / (abs(x) + 1)


@op
class Mish(Activation):
    """x · tanh(softplus(x))."""

    tolerance = Tolerance(32, scale=_TINY)

    def exact(self, x: Array) -> Array:
        return x * np.tanh(np.logaddexp(x, 0))

    def formula(self, x: Value) -> Value:
        return x * tanh(maximum(x, 0) + log1p(exp(-abs(x))))


@op
class Gelu(Activation):
    """x · Φ(x), Φ the normal distribution; `approximate` takes the tanh form (Hendrycks & Gimpel 2016)."""

    approximate: bool = False
    tolerance = Tolerance(8, scale=1)

    def exact(self, x: Array) -> Array:
        if self.approximate:
            return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
        return np.asarray(0.5 * x * (1 + INSTRUCTIONS["erf"].numpy(x / math.sqrt(2))))

    def formula(self, x: Value) -> Value:
        if self.approximate:
            return x * 0.5 * (tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1)
        return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1)


@op
class Shrink(Activation):
    """x moved towards zero by bias beyond ±lambd, 0 between."""

    lambd: float = 0.5
    bias: float = 0.0
    tolerance = Tolerance(1, scale=1)

    def exact(self, x: Array) -> Array:
        return np.where(x < -self.lambd, x + self.bias, np.where(x > self.lambd, x - self.bias, 0))

    def formula(self, x: Value) -> Value:
        return select(x < -self.lambd, x + self.bias, select(x > self.lambd, x - self.bias, 0))
