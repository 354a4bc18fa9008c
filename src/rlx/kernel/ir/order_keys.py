"""Orders of elements as orders of integers, and expressions read at another position."""

from __future__ import annotations

from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr, apply, bitcast, cast, const, select
from rlx.kernel.ir.index import Linear, linear, load, offset_of


def order_key(x: Expr, largest: bool = False) -> Expr:
    """A signed integer (i32, or i64 for dtypes of 64 bits) that is in the order of x, or in the opposite one if
    `largest`; NaN is the greatest element."""
    key = _ascending(x)
    return apply("not", key) if largest else key


def _ascending(x: Expr) -> Expr:
    if x.dtype.is_float:
        return _float_key(x if x.dtype is dtypes.f64 else cast(x, dtypes.f32))
    if x.dtype.bits < 32:
        return cast(x, dtypes.i32)
    if x.dtype.kind == "int":
        return x
    high = const(1 << (x.dtype.bits - 1), x.dtype)
    return bitcast(apply("xor", x, high), dtypes.i64 if x.dtype.bits == 64 else dtypes.i32)


def _float_key(x: Expr) -> Expr:
    whole: DType = dtypes.i64 if x.dtype is dtypes.f64 else dtypes.i32
    greatest = (1 << (whole.bits - 1)) - 1
    bits = bitcast(x, whole)
    # of negative numbers the greater magnitude is the lesser number; -0.0 is 0.0, which is asked of the bits, because
    # a comparison may take a subnormal number for 0
    turned = apply("xor", bits, apply("and", apply("shr", bits, whole.bits - 1), greatest))
    key = select(apply("eq", apply("and", bits, greatest), 0), const(0, whole), turned)
    return select(apply("ne", x, x), const(greatest, whole), key)


def line_at(line: Linear, number: int, position: Expr) -> Linear:
    """An offset with `position` in the place of an axis."""
    others = tuple((value_at(e, number, position), c) for e, c in line.others)
    return _along(Linear(line.const, line.axes, others), number, position)


def _along(line: Linear, number: int, position: Expr) -> Linear:
    """The offset with `position` in the place of an axis that it goes along itself; what else it hangs on stays."""
    rest = Linear(line.const, tuple((n, c) for n, c in line.axes if n != number), line.others)
    return rest.plus(linear(position).times(line.coefficient(number)))


def value_at(value: Expr, number: int, position: Expr) -> Expr:
    """An expression with `position` in the place of an axis."""

    def replaced(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind == "axis" and node.attr == number:
            return position
        if node.kind != "load":
            return None
        guard = args[0] if node.attr.guarded else None
        # the arguments have the position already, and it may hang on the very axis
        line = _along(offset_of(Expr("load", node.dtype, args, node.attr)), number, position)
        return load(node.attr.slot, line, node.dtype, guard)

    return ex.rewrite(value, replaced)
