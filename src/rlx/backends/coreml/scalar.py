"""The instructions of scalar expressions in MIL: one table serves every elementwise op."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.backends.coreml import integer_bits
from rlx.backends.coreml.bf16 import rounded
from rlx.backends.coreml.library import GREATEST, LEAST, NAMES, Value, constant, mb, number, shape_of
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr, apply, const, select

DIRECT = {
    "add": "add", "sub": "sub", "mul": "mul", "abs": "abs", "min": "minimum", "max": "maximum", "sqrt": "sqrt",
    "floor": "floor", "ceil": "ceil", "round": "round", "eq": "equal", "ne": "not_equal", "lt": "less",
    "le": "less_equal", "exp": "exp", "exp2": "exp2", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin",
    "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "atanh": "atanh", "pow": "pow",
    "erf": "erf",
}  # fmt: skip
"""By instruction, the op of MIL that is the same."""
LOGICAL = {
    "and": "logical_and", "or": "logical_or", "xor": "logical_xor", "ne": "logical_xor", "min": "logical_and",
    "max": "logical_or",
}  # fmt: skip
"""The same for bools."""
MADE = ("fma", "neg", "div", "rem", "not", "log", "select", "cast")
"""Instructions that `_made` puts together."""
BITS = {
    "and": integer_bits.both,
    "or": integer_bits.either,
    "xor": integer_bits.one_of,
    "shl": integer_bits.left,
    "shr": integer_bits.right,
}
"""Instructions on the bits of integers."""
WHOLE = frozenset(
    (
        "add",
        "sub",
        "mul",
        "abs",
        "min",
        "max",
        "neg",
        "div",
        "rem",
        "not",
        "cast",
        "select",
        "eq",
        "ne",
        "lt",
        "le",
        *BITS,
    )
)
"""Instructions that take integers."""
GROWING = frozenset(("add", "sub", "mul", "neg", "abs", "div", "not", "shl"))
"""Instructions that may leave the range of a narrow integer."""
EXACT = frozenset(("abs", "min", "max", "neg", "select", "floor", "ceil", "round", "eq", "ne", "lt", "le"))
"""Instructions that give numbers of bf16 of such numbers, or bools."""
TRUTH = frozenset((*LOGICAL, "not", "eq", "lt", "le", "select", "cast"))
"""Instructions that take bools."""


def rewritten(body: Expr) -> Expr:
    """The expression with what MIL lacks said by what it has."""

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        replaced = REPLACED.get(node.kind)
        of = args[0].dtype if args else node.dtype
        if replaced is None or not of.is_float:
            return None
        if of in (dtypes.f16, dtypes.bf16):  # the sums inside need more digits than it has
            return ex.cast(replaced(*(ex.cast(a, dtypes.f32) for a in args)), of)
        return replaced(*args)

    return ex.rewrite(body, rule)


def _flips_sign(node: Expr) -> bool:
    """Whether it turns the highest bit of narrow integers around, as products of bytes with signs do: that is a sum."""
    width = node.dtype.bits
    if node.kind != "xor" or not node.dtype.is_integer or width >= 32 or node.args[1].kind != "const":
        return False
    return int(ex.value_of(node.args[1])) % (1 << width) == 1 << (width - 1)


def _renames(node: Expr) -> bool:
    """Whether it takes integers for others of their width, with or without a sign."""
    of = node.args[0].dtype if node.args else node.dtype
    return node.kind == "bitcast" and of.is_integer and node.dtype.is_integer and node.dtype.bits < 32


def why_not(body: Expr) -> str:
    """Why an expression cannot be said in MIL; empty if it can."""
    for node in ex.walk([rewritten(body)]):
        if node.dtype not in NAMES:
            return f"Core ML has no {node.dtype}"
        if node.kind == "operand":
            continue
        if node.kind == "const":
            if node.dtype.is_integer and not LEAST <= int(ex.value_of(node)) <= GREATEST:
                return "Core ML's integers have 32 bits, a constant needs more"
            continue
        of = node.args[-1].dtype
        if of not in NAMES:
            return f"Core ML has no {of}"
        known = TRUTH if of is dtypes.bool_ else WHOLE if of.is_integer else {*DIRECT, *MADE} - {"not"}
        if node.kind not in known and not _flips_sign(node) and not _renames(node):
            return f"Core ML has no {node.kind} of {of}"
    return ""


def evaluate(body: Expr, operands: Sequence[Value]) -> Value:
    """The expression with its leaves `operand` replaced by variables; these broadcast."""
    values: dict[Expr, Any] = {}
    order = ex.walk([rewritten(body)])
    for node in order:
        if node.kind == "operand":
            values[node] = operands[node.attr]
        elif node.kind == "const":
            values[node] = constant(np.array(ex.value_of(node), node.dtype.numpy))
        elif node.kind == "cast" or _renames(node):
            values[node] = cast(values[node.args[0]], node.args[0].dtype, node.dtype)
        elif _flips_sign(node):
            values[node] = wrapped(mb.add(x=values[node.args[0]], y=values[node.args[1]]), node.dtype)
        else:
            values[node] = _instruction(node.kind, node.args[-1].dtype, [values[a] for a in node.args])
    return values[order[-1]]


def _instruction(kind: str, of: DType, args: list[Value]) -> Value:
    if of is dtypes.bool_ and kind != "select":
        return _logical(kind, args)
    if kind in BITS:
        y = BITS[kind](args[0], args[1], of)
    elif kind not in DIRECT:
        y = _made(kind, of, args)
    elif len(args) == 1:
        y = getattr(mb, DIRECT[kind])(x=args[0])
    else:
        y = getattr(mb, DIRECT[kind])(x=args[0], y=args[1])
    grows = kind not in EXACT if of is dtypes.bf16 else kind in GROWING
    return wrapped(y, of) if grows else y


def wrapped(x: Value, of: DType) -> Value:
    """Integers of 32 bits as the narrower ones that they stand for, f32s as the bf16s; others as they are."""
    if of is dtypes.bf16:
        return rounded(x)
    if not of.is_integer or of.bits >= 32:
        return x
    count = np.int32(1 << of.bits)
    if of.kind == "uint":
        return mb.mod(x=x, y=count)
    half = np.int32(1 << (of.bits - 1))
    return mb.sub(x=mb.mod(x=mb.add(x=x, y=half), y=count), y=half)


def _logical(kind: str, args: list[Value]) -> Value:
    if kind in LOGICAL:
        return getattr(mb, LOGICAL[kind])(x=args[0], y=args[1])
    if kind == "not":
        return mb.logical_not(x=args[0])
    if kind == "eq":
        return mb.logical_not(x=mb.logical_xor(x=args[0], y=args[1]))
    over = mb.logical_not(x=args[0])  # false is below true
    return mb.logical_and(x=over, y=args[1]) if kind == "lt" else mb.logical_or(x=over, y=args[1])


def _made(kind: str, of: DType, args: list[Value]) -> Value:
    """Instructions of which MIL has the parts."""
    x = args[0]
    match kind:
        case "fma":
            return mb.add(x=mb.mul(x=x, y=args[1]), y=args[2])
        case "neg":
            return mb.mul(x=x, y=number(of, -1))
        case "select":
            return choose(*args)
        case "log":
            return mb.log(x=x, epsilon=number(of, 0))
        case "not":
            return mb.sub(x=np.int32(-1), y=x)
        case "div":
            return mb.real_div(x=x, y=args[1]) if of.is_float else _quotient(x, args[1])
    if of.is_float:
        return _remainder(of, x, args[1])
    rest = mb.sub(x=x, y=mb.mul(x=_quotient(x, args[1]), y=args[1]))
    return choose(mb.equal(x=args[1], y=np.int32(0)), np.int32(0), rest)


def _remainder(of: DType, x: Value, y: Value) -> Value:
    """Of floats, with the sign of x: MIL's has that of y."""
    size = mb.mod(x=mb.abs(x=x), y=mb.abs(x=y))
    negative = mb.logical_or(
        x=mb.less(x=x, y=number(of, 0)), y=mb.less(x=mb.real_div(x=number(of, 1), y=x), y=number(of, 0))
    )
    return choose(negative, mb.mul(x=size, y=number(of, -1)), size)


def choose(condition: Value, yes: Any, no: Any) -> Value:
    """`yes` where the condition holds, else `no`. MIL's result has the shape of these two, whatever the condition's."""
    sides = [value if hasattr(value, "shape") and not isinstance(value, np.generic) else None for value in (yes, no)]
    shape = np.broadcast_shapes(*(shape_of(v) for v in sides if v is not None))
    whole = np.broadcast_shapes(shape, shape_of(condition))
    if whole != shape:
        yes = broadcast(constant(yes) if sides[0] is None else yes, whole)
    return mb.select(cond=condition, a=yes, b=no)


def broadcast(x: Value, shape: Sequence[int]) -> Value:
    """NumPy's broadcast."""
    have = shape_of(x)
    if have == tuple(shape):
        return x
    if not have:
        x, have = mb.expand_dims(x=x, axes=[0]), (1,)
    spread = (*([1] * (len(shape) - len(have))), *have)
    if spread != have:
        x = mb.reshape(x=x, shape=np.array(spread, np.int32))
    reps = [1 if a == b else b for a, b in zip(spread, shape)]
    return mb.tile(x=x, reps=np.array(reps, np.int32)) if any(n != 1 for n in reps) else x


def _quotient(x: Value, y: Value) -> Value:
    """Of integers, towards zero; by zero it is 0, and the least integer by -1 is itself."""
    zero, one, back = np.int32(0), np.int32(1), np.int32(-1)
    special = mb.logical_and(x=mb.less_equal(x=back, y=y), y=mb.less_equal(x=y, y=one))  # there it is x·y
    over = choose(special, one, y)
    floor = mb.floor_div(x=x, y=over)
    rest = mb.not_equal(x=mb.mul(x=floor, y=over), y=x)
    below = mb.logical_xor(x=mb.less(x=x, y=zero), y=mb.less(x=over, y=zero))
    towards = mb.add(x=floor, y=mb.cast(x=mb.logical_and(x=rest, y=below), dtype="int32"))
    return choose(special, mb.mul(x=x, y=y), towards)


def cast(x: Value, source: DType, to: DType) -> Value:
    """As `ir.expr` defines it: floats to integers truncate, saturate, and take NaN to 0."""
    if NAMES[source] == NAMES[to]:
        return wrapped(x, to)
    if to is dtypes.bool_:
        return mb.not_equal(x=x, y=number(source, 0))
    if not (to.is_integer and source.is_float):
        return wrapped(mb.cast(x=x, dtype=NAMES[to]), to)
    if source is dtypes.f16:
        x = mb.cast(x=x, dtype="fp32")
    least, greatest = _range(to)
    low = mb.less_equal(x=x, y=np.float32(least))
    high = mb.less_equal(x=np.float32(greatest), y=x)  # 2³¹ in f32 for integers of 32 bits, which have one less
    inside = mb.logical_and(x=mb.logical_not(x=mb.logical_or(x=low, y=high)), y=mb.equal(x=x, y=x))
    whole = mb.cast(x=choose(inside, x, np.float32(0)), dtype="int32")
    return choose(high, np.int32(greatest), choose(low, np.int32(least), whole))


def _range(of: DType) -> tuple[int, int]:
    """Least and greatest of what stands for an integer dtype."""
    if of.bits >= 32:
        return LEAST, GREATEST
    return (0, (1 << of.bits) - 1) if of.kind == "uint" else (-(1 << (of.bits - 1)), (1 << (of.bits - 1)) - 1)


# what MIL lacks, in other instructions


def _trunc(x: Expr) -> Expr:
    return select(apply("lt", x, 0.0), apply("ceil", x), apply("floor", x))


def _copysign(size: Expr, sign: Expr) -> Expr:
    """The sign of a zero shows in its reciprocal."""
    negative = apply("or", apply("lt", sign, 0.0), apply("lt", 1.0 / sign, 0.0))
    whole = apply("abs", size)
    return select(negative, -whole, whole)


def _log1p(x: Expr) -> Expr:
    """log(u)·x/(u-1) with u = 1+x takes back what rounding u lost. Source: Higham 2002, p. 29, after Kahan."""
    u = x + 1.0
    less = u - 1.0
    exact, infinite = apply("eq", less, 0.0), apply("eq", x, math.inf)
    ratio = apply("log", u) * (x / select(exact, const(1.0, x.dtype), less))
    return select(exact, x, select(infinite, x, ratio))


def _expm1(x: Expr) -> Expr:
    """(u-1)·x/log(u) with u = eˣ near zero, by the same argument."""
    u = apply("exp", x)
    less = u - 1.0
    near, exact = apply("lt", apply("abs", x), 0.5), apply("eq", u, 1.0)
    safe = select(apply("and", near, apply("ne", u, 1.0)), u, const(2.0, x.dtype))
    return select(exact, x, select(near, less * x / apply("log", safe), less))


def _log2(x: Expr) -> Expr:
    return apply("log", x) * (1 / math.log(2))


LARGE = 1e9
"""From where on x² ± 1 is x²."""


def _asinh(x: Expr) -> Expr:
    size = apply("abs", x)
    square = size * size
    near = _log1p(size + square / (apply("sqrt", square + 1.0) + 1.0))
    y = select(apply("lt", size, LARGE), near, apply("log", size) + math.log(2))
    return _copysign(y, x)


def _acosh(x: Expr) -> Expr:
    over = x - 1.0
    near = _log1p(over + apply("sqrt", over * (x + 1.0)))
    return select(apply("lt", x, LARGE), near, apply("log", x) + math.log(2))


def _atan2(y: Expr, x: Expr) -> Expr:
    """The arc of the smaller over the greater, turned to its octant; C99's signs, two infinities make 45 degrees."""
    over, under = apply("abs", y), apply("abs", x)
    steep = apply("lt", under, over)
    small, great = select(steep, under, over), select(steep, over, under)
    alike = apply("eq", small, great)
    ratio = select(alike, select(apply("eq", great, 0.0), great, const(1.0, x.dtype)), small / great)
    arc = apply("atan", ratio)
    octant = select(steep, math.pi / 2 - arc, arc)
    leftwards = apply("or", apply("lt", x, 0.0), apply("lt", 1.0 / x, 0.0))
    signed = _copysign(select(leftwards, math.pi - octant, octant), y)
    wrong = apply("or", apply("ne", x, x), apply("ne", y, y))
    return select(wrong, x + y, signed)


REPLACED: dict[str, Callable[..., Expr]] = {
    "trunc": _trunc, "copysign": _copysign, "log1p": _log1p, "expm1": _expm1, "log2": _log2,
    "asinh": _asinh, "acosh": _acosh, "atan2": _atan2,
}  # fmt: skip
