"""The instructions of scalar expressions in mlx: one table serves every elementwise op."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from rlx.backends.mlx.library import Value, dtype_of, known, mx, put
from rlx.codegen.scalar import emulation as emulation
from rlx.codegen.scalar import maths
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr

Made = Callable[..., Value]
INEXACT = frozenset({"erf"})
"""Instructions whose errors mlx bounds by their size near 1: small results have few right digits. `scalar.maths` has
better ones of f32; of f64 there are none."""


def compiled(body: Expr) -> Callable[[Sequence[Value]], Value]:
    """A function of the operands, in their carriers, that does what the expression says; they broadcast."""
    body = maths.legalise(emulation.carried(body), functions().keys() - INEXACT)
    order = ex.walk([body])
    places = {node: i for i, node in enumerate(order)}
    steps: list[tuple[Made | None, tuple[int, ...], Any]] = []
    for node in order:
        if node.kind == "operand":
            steps.append((None, (), node.attr))
        elif node.kind == "const":
            steps.append((_held(put(np.array(ex.value_of(node), node.dtype.numpy))), (), None))
        else:
            steps.append((_instruction(node), tuple(places[a] for a in node.args), None))

    def run(operands: Sequence[Value]) -> Value:
        values: list[Value] = []
        for function, at, operand in steps:
            values.append(operands[operand] if function is None else function(*(values[i] for i in at)))
        return values[-1]

    return run


@cache
def loaded(dtype: DType) -> Callable[[Sequence[Value]], Value]:
    """A function of what is stored for a dtype, that gives it in its carrier."""
    return compiled(emulation.loaded(Expr("operand", emulation.stored(dtype), (), 0), dtype))


@cache
def to_store(dtype: DType) -> Callable[[Sequence[Value]], Value]:
    """A function of a carrier's numbers, that gives what is stored for them."""
    return compiled(emulation.to_store(Expr("operand", emulation.carrier(dtype), (), 0), dtype))


@cache
def fitted(dtype: DType) -> Callable[[Sequence[Value]], Value]:
    """A function of any numbers of a carrier, that gives those that the dtype has for them."""
    return compiled(emulation.fitted(Expr("operand", emulation.carrier(dtype), (), 0), dtype))


def _held(value: Value) -> Made:
    return lambda: value


def _instruction(node: Expr) -> Made:
    """The function of an instruction; what is hard or delicate in narrow floats is done in f32, and rounded once."""
    if node.kind == "cast":
        source, to = node.args[0].dtype, node.dtype
        return lambda a: cast(a, source, to)
    if node.kind == "bitcast":
        target = dtype_of(node.dtype)
        return lambda a: a.view(target)
    table, of = functions(), node.args[-1].dtype
    if of is dtypes.f64 and node.kind in EXACT_F64:
        return EXACT_F64[node.kind]
    function = table[node.kind]
    if of.is_float and of.bits < 32 and (ex.INSTRUCTIONS[node.kind].transcendental or node.kind in ("rem", "fma")):
        narrow = dtype_of(of)
        return lambda *args: function(*(a.astype(mx.float32) for a in args)).astype(narrow)
    return function


def divide(a: Value, b: Value) -> Value:
    """Integers towards zero, by zero to 0; the least by -1 is itself. mlx's own division would end the process."""
    of = known(a)
    if of.is_complex:
        return complex_quotient(a, b)
    if of.is_float:
        return mx.divide(a, b)
    zero = mx.equal(b, 0)
    if of.kind == "uint":
        return mx.where(zero, mx.zeros_like(a), mx.floor_divide(a, mx.where(zero, mx.ones_like(b), b)))
    minus = mx.equal(b, -1)
    safe = mx.where(mx.logical_or(zero, minus), mx.ones_like(b), b)
    quotient = mx.floor_divide(a, safe)
    below = mx.logical_and(mx.less(quotient, 0), mx.not_equal(quotient * safe, a))
    quotient = quotient + below.astype(quotient.dtype)
    return mx.where(zero, mx.zeros_like(a), mx.where(minus, mx.zeros_like(a) - a, quotient))


def complex_quotient(a: Value, b: Value) -> Value:
    """Of complex numbers, by the larger part of the divisor (Smith 1962). Infinities and NaN are NumPy's."""
    re_a, im_a, re_b, im_b = mx.real(a), mx.imag(a), mx.real(b), mx.imag(b)
    swap = mx.less(mx.abs(re_b), mx.abs(im_b))
    ratio = mx.where(swap, re_b, im_b) / mx.where(swap, im_b, re_b)
    scale = 1 / mx.where(swap, im_b + re_b * ratio, re_b + im_b * ratio)
    real = mx.where(swap, re_a * ratio + im_a, re_a + im_a * ratio) * scale
    imaginary = mx.where(swap, im_a * ratio - re_a, im_a - re_a * ratio) * scale
    none = mx.logical_and(mx.equal(re_b, 0), mx.equal(im_b, 0))
    positive = mx.abs(re_b)
    return joined(mx.where(none, re_a / positive, real), mx.where(none, im_a / positive, imaginary))


def joined(real: Value, imaginary: Value) -> Value:
    """The parts side by side, seen as complex numbers: a sum with i times infinity would give NaN."""
    return mx.squeeze(mx.stack([real, imaginary], -1).view(mx.complex64), -1)


def remainder(a: Value, b: Value) -> Value:
    if known(a).is_float:  # of numbers that are not negative, the remainder's sign is no question
        return copysign(mx.remainder(mx.abs(a), mx.abs(b)), a)
    return mx.where(mx.equal(b, 0), mx.zeros_like(a), a - divide(a, b) * b)


def _over(a: Value, b: Value) -> tuple[Value, Value]:
    over = mx.greater_equal(b, known(a).bits)
    if known(b).kind == "int":
        over = mx.logical_or(over, mx.less(b, 0))
    return over, mx.where(over, mx.zeros_like(b), b)


def left(a: Value, b: Value) -> Value:
    over, by = _over(a, b)
    return mx.where(over, mx.zeros_like(a), mx.left_shift(a, by))


def right(a: Value, b: Value) -> Value:
    over, by = _over(a, b)
    fill = mx.zeros_like(a)
    if known(a).kind == "int":
        fill = mx.where(mx.less(a, 0), mx.full(a.shape, -1, a.dtype), fill)
    return mx.where(over, fill, mx.right_shift(a, by))


def copysign(a: Value, b: Value) -> Value:
    of = known(a)
    whole = {16: dtypes.u16, 32: dtypes.u32, 64: dtypes.u64}[of.bits]
    words, top = dtype_of(whole), 1 << (of.bits - 1)
    sign, rest = (put(np.array(bits, whole.numpy)) for bits in (top, top - 1))
    made = mx.bitwise_or(mx.bitwise_and(a.view(words), rest), mx.bitwise_and(b.view(words), sign))
    return made.view(a.dtype)


def _exp(a: Value) -> Value:
    """In f64: mlx's own exp is as exact as in f32, its expm1 is not."""
    grown = mx.expm1(mx.abs(a)) + 1
    return mx.where(mx.less(a, 0), 1 / grown, grown)


def _sin(a: Value) -> Value:
    """In f64, by the tangent of the half, which mlx computes exactly."""
    t = mx.tan(a / 2)
    return 2 * t / (1 + t * t)


def _cos(a: Value) -> Value:
    size = 1 / mx.sqrt(1 + mx.square(mx.tan(a)))
    return mx.where(mx.less_equal(mx.abs(mx.tan(a / 2)), 1), size, -size)


EXACT_F64: dict[str, Made] = {
    "exp": _exp, "sin": _sin, "cos": _cos,
    "exp2": lambda a: mx.power(mx.array(2.0, mx.float64), a),
}  # fmt: skip


@cache
def functions() -> dict[str, Made]:
    """By instruction. Integers divide towards zero, by zero to 0; shifts over the width are defined."""

    def logical(whole: Made, truth: Made) -> Made:
        return lambda *a: (truth if known(a[0]) is dtypes.bool_ else whole)(*a)

    return {
        "add": mx.add, "sub": mx.subtract, "mul": mx.multiply, "neg": mx.negative, "abs": mx.abs,
        "min": mx.minimum, "max": mx.maximum, "sqrt": mx.sqrt, "floor": mx.floor, "ceil": mx.ceil,
        "trunc": mx.trunc, "round": mx.round, "copysign": copysign, "eq": mx.equal, "ne": mx.not_equal,
        "lt": mx.less, "le": mx.less_equal, "select": mx.where, "exp": mx.exp, "expm1": mx.expm1, "log": mx.log,
        "log2": mx.log2, "log1p": mx.log1p, "sin": mx.sin, "cos": mx.cos, "tan": mx.tan, "asin": mx.arcsin,
        "acos": mx.arccos, "atan": mx.arctan, "sinh": mx.sinh, "cosh": mx.cosh, "tanh": mx.tanh,
        "asinh": mx.arcsinh, "acosh": mx.arccosh, "atanh": mx.arctanh, "pow": mx.power, "atan2": mx.arctan2,
        "div": divide, "rem": remainder, "shl": left, "shr": right,
        "exp2": lambda a: mx.exp(a * math.log(2)), "fma": lambda a, b, c: a * b + c,
        "and": logical(mx.bitwise_and, mx.logical_and), "or": logical(mx.bitwise_or, mx.logical_or),
        "xor": logical(mx.bitwise_xor, mx.not_equal), "not": logical(mx.bitwise_invert, mx.logical_not),
    }  # fmt: skip


def cast(a: Value, source: DType, to: DType) -> Value:
    """As `ir.expr` defines it: floats to integers truncate, saturate, and take NaN to 0; integers wrap."""
    if to is dtypes.bool_:
        return mx.not_equal(a, mx.zeros_like(a))
    target = dtype_of(to)
    if source.is_complex and not to.is_complex:
        a, source = mx.real(a), dtypes.f32
    if to.is_integer and source.is_float:
        wide = mx.trunc(a.astype(mx.float32) if source.bits < 32 else a)
        bits = to.bits if to.kind == "uint" else to.bits - 1
        least, greatest = (0, (1 << bits) - 1) if to.kind == "uint" else (-(1 << bits), (1 << bits) - 1)
        high = mx.greater_equal(wide, float(1 << bits))  # powers of two, which every float holds
        low = mx.less_equal(wide, float(least))
        outside = mx.logical_or(mx.logical_or(high, low), mx.isnan(wide))
        inside = mx.where(outside, mx.zeros_like(wide), wide).astype(target)
        ends = mx.where(high, put(np.array(greatest, to.numpy)), put(np.array(least, to.numpy)))
        edged = mx.where(mx.logical_or(high, low), ends, inside)
        return mx.where(mx.isnan(wide), mx.zeros_like(edged), edged)
    if to.is_float and to.bits < 32 and source is dtypes.f64:
        a = a.astype(mx.float32)
    return a.astype(target)
