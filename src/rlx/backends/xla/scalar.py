"""The instructions of scalar expressions in jax: one table serves every elementwise op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.backends.xla.exact_rounding import separately_rounded
from rlx.codegen.scalar import emulation as emulation
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr

Made = Callable[..., Any]


def evaluate(body: Expr, operands: Sequence[Any], exact: bool = False) -> Any:
    """The expression with its leaves `operand` replaced by jax values, in their carriers; these broadcast. With `exact`
    products are rounded by themselves."""
    import jax.numpy as jnp

    table, body = instructions(), emulation.carried(body)
    values: dict[Expr, Any] = {}
    for node in ex.walk([body]):
        if node.kind == "operand":
            values[node] = operands[node.attr]
        elif node.kind == "const":
            values[node] = constant(node)
        elif node.kind in ("cast", "bitcast"):
            values[node] = table[node.kind](values[node.args[0]], node.args[0].dtype, node.dtype)
        elif ex.INSTRUCTIONS[node.kind].transcendental and node.dtype.bits < 32:  # jax would round halfway
            wide = (values[a].astype(jnp.float32) for a in node.args)
            values[node] = table[node.kind](*wide).astype(node.dtype.numpy)
        else:
            made = table[node.kind](*(values[a] for a in node.args))
            values[node] = separately_rounded(made) if exact and node.kind == "mul" and node.dtype.is_float else made
    return values[body]


def loaded(x: Any, dtype: DType) -> Any:
    """What is stored for a dtype in that dtype's carrier."""
    return _through(emulation.loaded, x, emulation.stored(dtype), dtype)


def to_store(x: Any, dtype: DType) -> Any:
    """A carrier's numbers as they are stored."""
    return _through(emulation.to_store, x, emulation.carrier(dtype), dtype)


def fitted(x: Any, dtype: DType) -> Any:
    """Any numbers of a carrier as those that the dtype has for them."""
    return _through(emulation.fitted, x, emulation.carrier(dtype), dtype)


def _through(make: Callable[[Expr, DType], Expr], x: Any, source: DType, dtype: DType) -> Any:
    return evaluate(make(Expr("operand", source, (), 0), dtype), [x]) if emulation.is_emulated(dtype) else x


def constant(node: Expr) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(np.array(ex.value_of(node), node.dtype.numpy))


def instructions() -> dict[str, Made]:
    """What each instruction is. Integers divide towards zero, by zero to 0; shifts over the width are defined."""
    global _table
    if _table is None:
        _table = _made()
    return _table


_table: dict[str, Made] | None = None


def _made() -> dict[str, Made]:
    import jax.numpy as jnp
    from jax import lax
    from jax.scipy.special import erf

    def divide(a: Any, b: Any) -> Any:
        if jnp.issubdtype(a.dtype, jnp.complexfloating):
            return complex_quotient(a, b)
        if jnp.issubdtype(a.dtype, jnp.inexact):
            return a / b
        return jnp.where(b == 0, jnp.zeros_like(a), lax.div(*_alike(a, jnp.where(b == 0, jnp.ones_like(b), b))))

    def remainder(a: Any, b: Any) -> Any:
        if jnp.issubdtype(a.dtype, jnp.inexact):
            return lax.rem(*_alike(a, b))
        return jnp.where(b == 0, jnp.zeros_like(a), lax.rem(*_alike(a, jnp.where(b == 0, jnp.ones_like(b), b))))

    def left(a: Any, b: Any) -> Any:
        over = (b < 0) | (b >= a.dtype.itemsize * 8)
        return jnp.where(over, jnp.zeros_like(a), lax.shift_left(*_alike(a, jnp.where(over, jnp.zeros_like(b), b))))

    def right(a: Any, b: Any) -> Any:
        over = (b < 0) | (b >= a.dtype.itemsize * 8)
        signed = jnp.issubdtype(a.dtype, jnp.signedinteger)
        shift = lax.shift_right_arithmetic if signed else lax.shift_right_logical
        fill = jnp.where(a < 0, -1, 0).astype(a.dtype) if signed else jnp.zeros_like(a)
        return jnp.where(over, fill, shift(*_alike(a, jnp.where(over, jnp.zeros_like(b), b))))

    def arctangent(a: Any, b: Any) -> Any:
        # XLA divides subnormal numbers as zeros, after it found that they are none: NaN
        tiny = jnp.finfo(a.dtype).tiny
        return jnp.arctan2(*(jnp.where(jnp.abs(x) < tiny, jnp.copysign(jnp.zeros_like(x), x), x) for x in (a, b)))

    def size(a: Any) -> Any:
        # XLA takes the size of an integer to be positive, which that of the least is not
        return jnp.where(a < 0, -a, a) if jnp.issubdtype(a.dtype, jnp.signedinteger) else jnp.abs(a)

    simple: dict[str, Made] = {
        "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "neg": jnp.negative, "abs": size,
        "min": jnp.minimum, "max": jnp.maximum, "sqrt": jnp.sqrt, "floor": jnp.floor, "ceil": jnp.ceil,
        "trunc": jnp.trunc, "round": jnp.round, "copysign": jnp.copysign, "and": jnp.bitwise_and, "or": jnp.bitwise_or,
        "xor": jnp.bitwise_xor, "not": jnp.bitwise_not, "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less,
        "le": jnp.less_equal, "select": jnp.where, "exp": jnp.exp, "exp2": jnp.exp2, "expm1": jnp.expm1,
        "log": jnp.log, "log2": jnp.log2, "log1p": jnp.log1p, "sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan,
        "asin": jnp.arcsin, "acos": jnp.arccos, "atan": jnp.arctan, "sinh": jnp.sinh, "cosh": jnp.cosh,
        "tanh": jnp.tanh, "asinh": jnp.arcsinh, "acosh": jnp.arccosh, "atanh": jnp.arctanh, "pow": jnp.power,
        "atan2": arctangent, "erf": erf,
    }  # fmt: skip
    return simple | {
        "fma": lambda a, b, c: a * b + c, "div": divide, "rem": remainder, "shl": left, "shr": right,
        "cast": cast, "bitcast": lambda a, source, to: lax.bitcast_convert_type(a, to.numpy),
    }  # fmt: skip


def _alike(a: Any, b: Any) -> tuple[Any, Any]:
    import jax.numpy as jnp

    shape = jnp.broadcast_shapes(a.shape, b.shape)
    return jnp.broadcast_to(a, shape), jnp.broadcast_to(b, shape).astype(a.dtype)


def cast(a: Any, source: DType, to: DType) -> Any:
    """As `ir.expr` defines it: floats to integers truncate, saturate, and take NaN to 0; integers wrap."""
    import jax.numpy as jnp

    if to is dtypes.bool_:
        return a != 0
    if to.is_integer and source.is_float:
        low, high = (0, (1 << to.bits) - 1) if to.kind == "uint" else (-(1 << (to.bits - 1)), (1 << (to.bits - 1)) - 1)
        wide = jnp.trunc(a.astype(jnp.float64))
        inside = jnp.where(jnp.isnan(wide) | (wide <= low) | (wide >= high), 0.0, wide).astype(to.numpy)
        least, greatest = jnp.asarray(low, to.numpy), jnp.asarray(high, to.numpy)
        edged = jnp.where(wide >= high, greatest, jnp.where(wide <= low, least, inside))
        return jnp.where(jnp.isnan(wide), jnp.zeros_like(edged), edged)
    if source.is_complex and not to.is_complex:
        a = jnp.real(a)
    if to.is_float and to.bits < 32 and a.dtype == np.float64:
        a = a.astype(jnp.float32)
    return a.astype(to.numpy)


def complex_quotient(a: Any, b: Any) -> Any:
    """Of complex numbers, by the larger part of the divisor (Smith 1962). Infinities and NaN are NumPy's."""
    import jax.numpy as jnp
    from jax import lax

    swap = jnp.abs(b.real) < jnp.abs(b.imag)
    large, small = jnp.where(swap, b.imag, b.real), jnp.where(swap, b.real, b.imag)
    ratio = small / large
    scale = 1 / (large + small * ratio)
    first, second = jnp.where(swap, a.imag, a.real), jnp.where(swap, a.real, a.imag)
    across = jnp.where(swap, a.imag * ratio - a.real, a.imag - a.real * ratio)
    none = (b.real == 0) & (b.imag == 0)
    return lax.complex(
        jnp.where(none, a.real / jnp.abs(b.real), (first + second * ratio) * scale),
        jnp.where(none, a.imag / jnp.abs(b.real), across * scale),
    )
