"""Finds activations that a model spells in primitives: gelu in both forms, silu, mish."""

from __future__ import annotations

import math

import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Value
from rlx.ir.literal import Array
from rlx.ops import build
from rlx.ops.activation import Sigmoid, Softplus
from rlx.ops.elementwise import Add, Div, Mul, Square
from rlx.ops.transcendental import Erf, Pow, Tanh
from rlx.passes.driver import Rules
from rlx.passes.pattern import Const, Either, Is, Pattern, Var

rules = Rules("raise-activation")
x = Var("x")


def epsilon(dtype: DType) -> float:
    """Distance from 1 to the next number of a float dtype."""
    if dtype in (dtypes.f32, dtypes.f64, dtypes.f16):
        return float(np.finfo(dtype.numpy).eps)
    return 2.0**-7  # bf16 and narrower


def near(number: float) -> Const:
    """A constant that is this number, as models write it: rounded to its dtype, or to the digits of a paper."""

    def matches(array: Array) -> bool:
        dtype = dtypes.of(array.dtype)
        if not dtype.is_float:
            return False
        slack = max(1e-5, 2 * epsilon(dtype)) * abs(number)
        return bool(np.all(np.abs(array.astype(np.float64) - number) <= slack))

    return Const(where=matches)


def _product(a: Pattern, b: Pattern, c: Pattern) -> Pattern:
    """a · b · c, multiplied in any order."""
    pairs = ((a, b, c), (a, c, b), (b, c, a))
    return Either(*(Is(Mul, Is(Mul, first, second, once=True), third) for first, second, third in pairs))


def _same_shape(x: Value, root: Value) -> bool:
    return x.type == root.type


_scaled = Either(Is(Div, x, near(math.sqrt(2)), once=True), Is(Mul, x, near(math.sqrt(0.5)), once=True))
_normal = Is(Add, Is(Erf, _scaled, once=True), near(1), once=True)
rules.add("gelu", _product(x, near(0.5), _normal), lambda x: build.gelu(x), when=_same_shape)

_cube = Either(Is(Pow, x, near(3)), Is(Mul, Is(Square, x), x), Is(Mul, Is(Mul, x, x), x))
_sum = Is(Add, x, Is(Mul, _cube, near(0.044715), once=True), once=True)
_inner = Is(Mul, _sum, near(math.sqrt(2 / math.pi)), once=True)
# The factored form: √(2/π) · x · (1 + 0.044715 · x · x)
_factor = Either(
    Is(Add, Is(Mul, Is(Mul, x, near(0.044715), once=True), x, once=True), near(1), once=True),
    Is(Add, Is(Mul, Is(Square, x), near(0.044715), once=True), near(1), once=True),
)
_tanh = Is(Tanh, Either(_inner, _product(x, near(math.sqrt(2 / math.pi)), _factor)), once=True)
_bell = Is(Add, _tanh, near(1), once=True)
rules.add("gelu-tanh", _product(x, near(0.5), _bell), lambda x: build.gelu(x, approximate=True), when=_same_shape)

rules.add("silu", Is(Mul, x, Is(Sigmoid, x, once=True)), lambda x: build.silu(x))
rules.add("mish", Is(Mul, x, Is(Tanh, Is(Softplus, x, once=True), once=True)), lambda x: build.mish(x))
