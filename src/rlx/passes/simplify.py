"""Identities that hold for every value, NaN, infinities and -0.0 included.

What is not here on purpose: x·0 → 0 (NaN, inf), x + 0.0 → x (-0.0), x - x → 0, x / x → 1, pow(x, 0.5) → sqrt where x
may be negative (pow(-inf, 0.5) is inf, sqrt(-inf) is NaN), division by constants that are no powers of two.
"""

from __future__ import annotations

import numpy as np

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.op import LEAVES, Elementwise
from rlx.ops import build
from rlx.ops.elementwise import Abs, Add, BitwiseNot, Cast, Div, Mul, Neg, Reciprocal, Select, Sqrt, Square, Sub
from rlx.ops.index import Gather
from rlx.ops.shape import BroadcastTo, Concat, DimsTensor, Pad, Reshape, Slice, Transpose
from rlx.ops.transcendental import Exp, Pow
from rlx.passes.driver import Rules
from rlx.passes.pattern import Const, Found, Is, Var, Where

MOVES = (Transpose, Reshape, Slice)
"""Ops that change no element."""
rules = Rules("simplify")
x, y, c = Var("x"), Var("y"), Var("c")


def _same_type(x: Value, root: Value) -> bool:
    return x.type == root.type


def _keep(x: Value) -> Value:
    return x


# conversion


def holds_exactly(narrow: DType, wide: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if narrow is wide or narrow.kind == "bool":
        return True
    if narrow.is_integer and wide.is_integer:
        if narrow.kind == wide.kind:
            return narrow.bits <= wide.bits
        return narrow.kind == "uint" and narrow.bits < wide.bits
    if narrow.is_float and wide.is_float:
        return narrow.bits < wide.bits and wide.bits >= 16 and not (narrow is dtypes.f8e8m0 and wide is dtypes.f16)
    return False


rules.add("cast-to-same", Is(Cast, x), _keep, when=lambda x, root: x.dtype is root.dtype)
rules.add(
    "cast-of-exact-cast",
    Is(Cast, Is(Cast, x, name="inner")),
    lambda x, root: x.cast(root.dtype),
    when=lambda x, inner: holds_exactly(x.dtype, inner.dtype) and x.dtype.kind == inner.dtype.kind,
)


def _is_cast_to(value: Value, dtype: DType) -> bool:
    """Whether all that reads a value is its cast to a dtype, or moves it and then that is."""
    outputs = set(value.graph.outputs.values())
    moved = [value]
    while moved:
        each = moved.pop()
        if each in outputs:
            return False
        for user in each.graph.uses(each):
            if isinstance(user.op, MOVES):
                moved.append(Value(user, 0))
            elif not (isinstance(user.op, Cast) and user.types[0].dtype is dtype):
                return False
    return True


@rules.rule("narrow-before-moves", Is(Cast, Is(MOVES, x, name="moved")),
            when=lambda x, root: x.dtype.is_float and root.dtype.is_float and root.dtype.bits < x.dtype.bits
            and _is_cast_to(x, root.dtype))  # fmt: skip
def narrow_first(x: Value, moved: Value, root: Value, graph: Graph) -> Value:
    """Fewer bytes move, and what makes the elements can write them as they are wanted."""
    result = graph.add(moved.op, x.cast(root.dtype))
    assert isinstance(result, Value)
    return result


@rules.rule("widen-behind-moves", Is(MOVES, Is(Cast, x, name="wide", once=True)),
            when=lambda x, wide: x.dtype.is_float and wide.dtype.is_float and holds_exactly(x.dtype, wide.dtype)
            and not isinstance(x.op, LEAVES))  # fmt: skip
def widen_last(x: Value, wide: Value, root: Value, graph: Graph) -> Value:
    """What a run makes is moved in fewer bytes, and what reads the elements can widen them. Weights are kept as they
    were found: they move once."""
    result = graph.add(root.op, x)
    assert isinstance(result, Value)
    return result.cast(wide.dtype)


# arithmetic


rules.add("multiply-by-one", Is(Mul, x, Const(1)), _keep, when=_same_type)
rules.add("divide-by-one", Is(Div, x, Const(1)), _keep, when=_same_type)
rules.add("add-negative-zero", Is(Add, x, Const(-0.0)), _keep, when=_same_type)  # integers have one zero
rules.add("subtract-zero", Is(Sub, x, Const(0)), _keep, when=_same_type)
rules.add("double-negation", Is(Neg, Is(Neg, x)), _keep)
rules.add("double-not", Is(BitwiseNot, Is(BitwiseNot, x)), _keep)
rules.add("absolute-of-absolute", Is(Abs, Is(Abs, x, name="inner")), lambda inner: inner)
rules.add("absolute-of-negation", Is(Abs, Is(Neg, x)), lambda x: abs(x), when=lambda x: x.dtype.is_float)
rules.add("reciprocal-of-sqrt", Is(Reciprocal, Is(Sqrt, x)), lambda x: build.rsqrt(x))
rules.add(
    "one-by-sqrt", Is(Div, Const(1), Is(Sqrt, x)), lambda x: build.rsqrt(x), when=lambda x, root: x.type == root.type
)


def _power_of_two(array: Array) -> bool:
    """Whether all are ±2^k whose reciprocal is a normal number: then x / c and x · (1/c) round alike."""
    if array.dtype.kind not in "f":
        return False
    mantissa, exponent = np.frexp(array)
    low, high = np.finfo(array.dtype).minexp, np.finfo(array.dtype).maxexp
    return bool(np.all((np.abs(mantissa) == 0.5) & (1 - exponent > low) & (1 - exponent < high)))


@rules.rule("divide-by-power-of-two", Is(Div, x, Const(name="c", where=_power_of_two)))
def multiply_by_reciprocal(x: Value, c: Value) -> Value:
    assert c.constant is not None
    return x * x.graph.constant(1 / c.constant, c.dtype)


# powers


def never_negative(value: Value, depth: int = 8) -> bool:
    """Whether no element is below zero or -0.0 (NaN may be), as far as the ops above it tell."""
    if value.constant is not None and value.dtype.is_float:
        return not bool(np.any(np.signbit(value.constant.astype(np.float64))))
    if depth == 0 or not value.dtype.is_float:
        return False
    inputs = value.node.inputs
    match value.op:
        case Abs() | Exp() | Square():
            return True
        case Mul() if inputs[0] == inputs[1]:
            return True
        case Add() | Mul() | Div():
            return all(never_negative(v, depth - 1) for v in inputs)
        case Sqrt() | Cast() | Reshape() | Transpose() | BroadcastTo():
            return never_negative(inputs[0], depth - 1)
    return value.op.name in ("reduce_sum", "reduce_mean", "reduce_max") and never_negative(inputs[0], depth - 1)


rules.add("power-of-one", Is(Pow, x, Const(1)), _keep, when=_same_type)
rules.add("power-of-two", Is(Pow, x, Const(2)), lambda x: build.square(x), when=_same_type)
rules.add("power-of-minus-one", Is(Pow, x, Const(-1)), lambda x: build.reciprocal(x),
          when=lambda x, root: x.type == root.type and x.dtype.is_float)  # fmt: skip
rules.add("power-of-half", Is(Pow, x, Const(0.5)), lambda x: build.sqrt(x),
          when=lambda x, root: x.type == root.type and never_negative(x))  # fmt: skip
rules.add("power-of-minus-half", Is(Pow, x, Const(-0.5)), lambda x: build.rsqrt(x),
          when=lambda x, root: x.type == root.type and never_negative(x))  # fmt: skip
rules.add(
    "multiply-by-itself",
    Is(Mul, x, x),
    lambda x: build.square(x),
    when=lambda x: x.dtype.is_inexact or x.dtype.is_integer,
)


@rules.rule("power-of-three", Is(Pow, x, Const(3)), when=_same_type)
def cube(x: Value) -> Value:
    return build.square(x) * x


# choice


def _broadcast(x: Value, root: Value) -> Value:
    return x if x.shape == root.shape else build.broadcast_to(x, shape=root.shape)


rules.add("select-of-true", Is(Select, Const(True), x, y), lambda x, root: _broadcast(x, root))
rules.add("select-of-false", Is(Select, Const(False), x, y), lambda y, root: _broadcast(y, root))
rules.add("select-of-equals", Is(Select, c, x, x), lambda x, root: _broadcast(x, root))
rules.add("select-of-not", Is(Select, Is(BitwiseNot, c), x, y), lambda c, x, y: build.select(c, y, x))

# movement

p, q = Var("p"), Var("q")


def _moves_only_ones(x: Value, p: tuple[int, ...]) -> bool:
    """Whether a permutation keeps the order of all axes that are not 1."""
    order = [i for i in p if x.shape[i] != 1]
    return order == sorted(order)


rules.add("identity-reshape", Is(Reshape, x), _keep, when=_same_type)
rules.add("double-reshape", Is(Reshape, Is(Reshape, x)), lambda x, root: x.reshape(root.shape))
rules.add("double-transpose", Is(Transpose, Is(Transpose, x, permutation=p), permutation=q),
          lambda x, p, q: x.transpose(*(p[i] for i in q)))  # fmt: skip
rules.add("transpose-of-ones", Is(Transpose, x, permutation=p), lambda x, root: x.reshape(root.shape),
          when=_moves_only_ones)  # fmt: skip


def _split_lead(x: Value, inner: Value, p: tuple[int, ...], root: Value) -> tuple[int, ...] | None:
    """The permutation of x's own axes, where `inner` only merged its leading axes and `root` only splits them again."""
    lead = x.rank - inner.rank + 1
    if lead < 2 or p[0] != 0 or inner.shape[1:] != x.shape[lead:]:
        return None
    order = (*range(lead), *(lead - 1 + i for i in p[1:]))
    return order if root.shape == tuple(x.shape[i] for i in order) else None


rules.add(
    "transpose-behind-merged-axes",
    Is(Reshape, Is(Transpose, Is(Reshape, x, name="inner"), permutation=p)),
    lambda x, inner, p, root: x.transpose(*(_split_lead(x, inner, p, root) or ())),
    when=lambda x, inner, p, root: _split_lead(x, inner, p, root) is not None,
)
rules.add("identity-broadcast", Is(BroadcastTo, x), _keep, when=_same_type)
rules.add("double-broadcast", Is(BroadcastTo, Is(BroadcastTo, x)), _broadcast)
rules.add("identity-slice", Is(Slice, x), _keep, when=lambda x, root: _takes_all(x, root.op))
rules.add("identity-pad", Is(Pad, x), _keep,
          when=lambda root: not any(root.op.low) and not any(root.op.high))  # fmt: skip
rules.add("concat-of-one", Is(Concat, x), _keep)


def _takes_all(x: Value, op: Slice) -> bool:
    return all(s == 0 and e == d and t == 1 for s, e, t, d in zip(op.starts, op.stops, op.steps, x.shape))


@rules.rule("slice-of-slice", Is(Slice, Is(Slice, x, name="inner")),
            when=lambda root, inner: all(t == 1 for t in (*root.op.steps, *inner.op.steps)))  # fmt: skip
def joined_slice(x: Value, inner: Value, root: Value) -> Value:
    assert isinstance(root.op, Slice)
    base = inner.op
    assert isinstance(base, Slice)
    starts = tuple(dims.add(a, b) for a, b in zip(base.starts, root.op.starts))
    stops = tuple(dims.add(a, b) for a, b in zip(base.starts, root.op.stops))
    return build.slice(x, starts=starts, stops=stops, steps=root.op.steps)


def _flat_parts(root: Value) -> Found | None:
    """The operands of a concat with those of concats along the same axis in their places."""
    assert isinstance(root.op, Concat)
    axis = root.op.axis % root.rank
    parts: list[Value] = []
    for part in root.node.inputs:
        same = isinstance(part.op, Concat) and part.op.axis % part.rank == axis
        parts.extend(part.node.inputs if same and part.graph.use_count(part) == 1 else (part,))
    return None if len(parts) == len(root.node.inputs) else {"parts": tuple(parts)}


rules.add("concat-of-concat", Where(Concat, _flat_parts),
          lambda parts, root: build.concat(*parts, axis=root.op.axis))  # fmt: skip


# broadcasts that the op would do by itself


def _spread_operand(root: Value) -> Found | None:
    """An operand that is broadcast for nothing: the other operands give the shape, or the op's own rule does."""
    inputs = root.node.inputs
    for i, operand in enumerate(inputs):
        if not isinstance(operand.op, BroadcastTo):
            continue
        source = operand.node.inputs[0]
        others = [v.shape for j, v in enumerate(inputs) if j != i]
        if others and _joined([source.shape, *others]) == root.shape:
            return {"operands": (*inputs[:i], source, *inputs[i + 1 :])}
    return None


def _joined(shapes: list[tuple[Dim, ...]]) -> tuple[Dim, ...] | None:
    """The shapes broadcast, if that needs no dims to be equal that are written differently."""
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    shape: list[Dim] = []
    for column in zip(*padded):
        wide = {d for d in column if d != 1}
        if len(wide) > 1:
            return None
        shape.append(wide.pop() if wide else 1)
    return tuple(shape)


@rules.rule("operand-broadcasts-by-itself", Where(Elementwise, _spread_operand, operand=BroadcastTo))
def bare_operand(operands: tuple[Value, ...], root: Value, graph: Graph) -> Value:
    result = graph.add(root.op, *operands)
    assert isinstance(result, Value)
    return result


# numbers from dims


def _whole(array: Array) -> bool:
    return array.dtype.kind in "iu" and array.ndim <= 1


def _pick(root: Value, inner: Value, c: Value, graph: Graph) -> Value | None:
    """Elements of a dims tensor at constant places."""
    assert isinstance(inner.op, DimsTensor) and c.constant is not None
    size = len(inner.op.values)
    at = [int(i) for i in c.constant.reshape(-1)]
    if any(not -size <= i < size for i in at):
        return None
    picked = build.dims_tensor(graph, values=tuple(inner.op.values[i] for i in at), dtype=inner.dtype)
    return picked.reshape(c.shape)


rules.add("gather-of-dims", Is(Gather, Is(DimsTensor, name="inner"), Const(name="c", where=_whole)), _pick)


@rules.rule("slice-of-dims", Is(Slice, Is(DimsTensor, name="inner")),
            when=lambda root: all(isinstance(d, int) for d in (*root.op.starts, *root.op.stops)))  # fmt: skip
def part_of_dims(root: Value, inner: Value, graph: Graph) -> Value:
    assert isinstance(root.op, Slice) and isinstance(inner.op, DimsTensor)
    (start,), (stop,), (step,) = root.op.starts, root.op.stops, root.op.steps
    assert isinstance(start, int) and isinstance(stop, int)
    values = inner.op.values[start : None if step < 0 and stop < 0 else stop : step]
    return build.dims_tensor(graph, values=values, dtype=inner.dtype)


@rules.rule("cast-of-dims", Is(Cast, Is(DimsTensor, name="inner")),
            when=lambda root: root.dtype.name in ("i32", "i64", "f32", "f64"))  # fmt: skip
def cast_dims(root: Value, inner: Value, graph: Graph) -> Value:
    assert isinstance(inner.op, DimsTensor)
    return build.dims_tensor(graph, values=inner.op.values, dtype=root.dtype)
