"""Finds attention that a model spells as softmax(scale · q kᵀ + mask) v and raises it to the op `Attention`.

The scale may lie on q, on k, on both, or on the scores; k may be transposed by a node or by the axes of the dot; keys
and values may be repeated for grouped heads; a mask may be added, or choose between the scores and a constant; a guard
may turn the NaN of rows that are masked whole into zeros. With the guard, NaN that comes from q or k stays NaN after
raising: the guard means empty rows.
"""

from __future__ import annotations

import numpy as np

from rlx.ir.graph import Value
from rlx.ops import build
from rlx.ops.elementwise import Add, BitwiseNot, Div, IsNan, Mul, Select
from rlx.ops.linalg import DotGeneral, Matmul
from rlx.ops.norm import Softmax
from rlx.ops.shape import BroadcastTo, Reshape, Transpose
from rlx.ops.transcendental import Tanh
from rlx.passes.driver import Rules
from rlx.passes.pattern import Found, Where, is_all
from rlx.records import dataclass

rules = Rules("raise-attention")


@dataclass(frozen=True)
class Side:
    """An operand of a product, as factor · transpose(value, permutation), its axes batch..., rows, contracted."""

    value: Value
    permutation: tuple[int, ...]
    factor: float = 1.0

    @property
    def shape(self) -> tuple[object, ...]:
        return tuple(self.value.shape[i] for i in self.permutation)


@dataclass(frozen=True)
class Scores:
    """What a softmax is taken of."""

    q: Side
    k: Side
    scale: float
    softcap: float | None = None
    mask: Value | None = None
    negated: bool = False
    fill: float = -np.inf


def once(value: Value) -> bool:
    """Whether one node alone takes the value."""
    return value.graph.use_count(value) == 1


def scalar(value: Value) -> float | None:
    """The number that every element of a constant is; None if there is none."""
    array = value.constant
    if array is None or array.size == 0 or array.dtype.kind in "biuc":
        return None
    return float(array.reshape(-1)[0]) if is_all(array, array.reshape(-1)[0]) else None


def scaled(value: Value) -> tuple[Value, float]:
    """The value below multiplications and divisions by constant numbers, and their product."""
    factor = 1.0
    while isinstance(value.op, (Mul, Div)):
        a, b = value.node.inputs
        number, inner = scalar(b), a
        if number is None and isinstance(value.op, Mul):
            number, inner = scalar(a), b
        if number is None or number == 0 or inner.shape != value.shape:
            break
        factor = factor * number if isinstance(value.op, Mul) else factor / number
        value = inner
    return value, factor


def sides(product: Value) -> tuple[Side, Side] | None:
    """The operands of a batched matrix product whose result is [batch..., rows of the left, rows of the right]."""
    if isinstance(product.op, Matmul):
        left, right = product.node.inputs
        rank = left.rank
        if rank != right.rank or rank < 2 or left.shape[:-2] != right.shape[:-2]:
            return None
        keep = tuple(range(rank))
        return Side(left, keep), Side(right, (*keep[:-2], rank - 1, rank - 2))
    if not isinstance(product.op, DotGeneral):
        return None
    op = product.op
    left, right = product.node.inputs
    if len(op.lhs_contract) != 1 or left.rank != right.rank or left.rank != len(op.lhs_batch) + 2:
        return None
    (row,) = set(range(left.rank)) - {*op.lhs_batch, *op.lhs_contract}
    (column,) = set(range(right.rank)) - {*op.rhs_batch, *op.rhs_contract}
    return Side(left, (*op.lhs_batch, row, *op.lhs_contract)), Side(right, (*op.rhs_batch, column, *op.rhs_contract))


def unwrapped(side: Side) -> Side:
    """The side below transposes and constant factors."""
    value, permutation, factor = side.value, side.permutation, side.factor
    while True:
        inner, number = scaled(value)
        factor *= number
        if isinstance(inner.op, Transpose):
            order = inner.op.permutation
            permutation = tuple(order[i] for i in permutation)
            value = inner.node.inputs[0]
        elif inner == value:
            return Side(value, permutation, factor)
        else:
            value = inner


def find_scores(value: Value) -> Scores | None:
    """Reads what a softmax is taken of, outermost first: mask, soft cap, scale, product."""
    if isinstance(value.op, Select) and once(value):
        return _selected(value)
    if isinstance(value.op, Add) and once(value):
        for inner, mask in (value.node.inputs, value.node.inputs[::-1]):
            plain = _capped(inner)
            if plain is not None and inner.shape == value.shape:
                return Scores(plain.q, plain.k, plain.scale, plain.softcap, mask)
        return None
    return _capped(value)


def _selected(value: Value) -> Scores | None:
    condition, a, b = value.node.inputs
    for inner, other, negated in ((a, b, False), (b, a, True)):
        fill, plain = scalar(other), _capped(inner)
        if fill is not None and plain is not None and inner.shape == value.shape:
            if isinstance(condition.op, BitwiseNot):
                condition, negated = condition.node.inputs[0], not negated
            return Scores(plain.q, plain.k, plain.scale, plain.softcap, condition, negated, fill)
    return None


def _capped(value: Value) -> Scores | None:
    if not once(value):
        return None
    inner, factor = scaled(value)
    if isinstance(inner.op, Tanh) and once(inner):
        plain = _product(inner.node.inputs[0])
        if plain is None or not factor > 0:
            return None
        # cap · tanh(s / cap): the scale below the tanh holds 1/cap
        return Scores(plain.q, plain.k, plain.scale * factor, factor)
    return _product(value)


def _swapped(rank: int) -> tuple[int, ...]:
    """The permutation of the last two axes."""
    return (*range(rank - 2), rank - 1, rank - 2)


def _product(value: Value) -> Scores | None:
    inner, factor = scaled(value)
    transposed = isinstance(inner.op, Transpose) and inner.op.permutation == _swapped(inner.rank) and once(inner)
    inner = inner.node.inputs[0] if transposed else inner
    operands = sides(inner) if once(inner) else None
    if operands is None:
        return None
    q, k = (unwrapped(side) for side in (reversed(operands) if transposed else operands))
    return Scores(q, k, factor * q.factor * k.factor)


def ungrouped(side: Side) -> Side:
    """The side before its heads were repeated: reshape of a broadcast [B, Hkv, G, S, D] of [B, Hkv, 1, S, D]."""
    value = side.value
    if not isinstance(value.op, Reshape) or value.rank != 4 or side.permutation[:2] != (0, 1):
        return side
    spread = value.node.inputs[0]
    if not isinstance(spread.op, BroadcastTo) or spread.rank != 5:
        return side
    source = spread.node.inputs[0]
    batch, shared, _, length, size = spread.shape
    repeats = source.rank == 5 and source.shape == (batch, shared, 1, length, size)
    same = (value.shape[0], *value.shape[2:]) == (batch, length, size)
    return Side(source, side.permutation, side.factor) if repeats and same else side


def search(root: Value) -> Found | None:
    """Attention whose last product is `root`, or its transpose, where the values stand on the left."""
    operands = sides(root)
    if operands is None or root.rank not in (2, 3, 4):
        return None
    (softmax, guarded), transposed = _weights(operands[0], root.rank), False
    if softmax is None:
        (softmax, guarded), transposed = _weights(operands[1], root.rank), True
    scores = None if softmax is None else find_scores(softmax.node.inputs[0])
    if scores is None:
        return None
    v = operands[0 if transposed else 1]
    values = unwrapped(v)
    if values.factor != 1:
        values = v
    if scores.q.value.rank != root.rank or not _fits(scores, values):
        return None
    keys, shared = ungrouped(scores.k).value, ungrouped(values).value
    if keys.shape[:2] != shared.shape[:2]:
        keys, shared = scores.k.value, values.value
    return {
        "q": scores.q.value,
        "k": keys,
        "v": shared,
        "operands": () if scores.mask is None else (_narrowed(scores.mask, root.rank),),
        "scores": scores,
        "v_order": values.permutation,
        "empty": "zero" if guarded else "nan",
        "transposed": transposed,
    }


def _weights(side: Side, rank: int) -> tuple[Value | None, bool]:
    """As `_unguarded`, of a side that lies as it is multiplied."""
    straight = side.permutation == tuple(range(rank)) and side.value.rank == rank
    return _unguarded(side.value) if straight else (None, False)


def _unguarded(weights: Value) -> tuple[Value | None, bool]:
    """The softmax below an optional select(isnan(p), 0, p), and whether that is there."""
    if isinstance(weights.op, Softmax):
        last = weights.op.axis % weights.rank == weights.rank - 1
        return (weights if last and once(weights) else None), False
    if not isinstance(weights.op, Select) or not once(weights):
        return None, False
    condition, zero, softmax = weights.node.inputs
    tests = isinstance(condition.op, IsNan) and condition.node.inputs[0] == softmax and once(condition)
    if not tests or scalar(zero) != 0 or not isinstance(softmax.op, Softmax):
        return None, False
    last = softmax.op.axis % softmax.rank == softmax.rank - 1
    return (softmax if last and softmax.graph.use_count(softmax) == 2 else None), True


def _fits(scores: Scores, values: Side) -> bool:
    """Whether batch dims, lengths and head sizes are the same on all sides, without any broadcast."""
    q, k, v = scores.q.shape, scores.k.shape, values.shape
    return q[:-2] == k[:-2] == v[:-2] and q[-1] == k[-1] and k[-2] == v[-1]


def _narrowed(mask: Value, rank: int) -> Value:
    """The mask before a broadcast that attention does by itself."""
    if isinstance(mask.op, BroadcastTo):
        source = mask.node.inputs[0]
        if source.rank == mask.rank == rank:
            return source
    return mask


@rules.rule("attention", Where((Matmul, DotGeneral), search))
def raise_attention(
    q: Value, k: Value, v: Value, operands: tuple[Value, ...], scores: Scores, v_order: tuple[int, ...], empty: str,
    transposed: bool, root: Value,
) -> Value:  # fmt: skip
    rank = root.rank
    # The right side of the last product is [batch, columns, keys] here; attention wants [batch, keys, columns].
    order_v = (*v_order[:-2], v_order[-1], v_order[-2])
    queries, keys = _four(q, scores.q.permutation), _four(k, scores.k.permutation)
    mask = None
    if operands:
        mask = build.bitwise_not(operands[0]) if scores.negated else operands[0]
        mask = _four_mask(mask, rank)
    attended = build.attention(
        queries, keys, _four(v, order_v), mask,
        scale=scores.scale, softcap=scores.softcap, fill=scores.fill, empty=empty,
    )  # fmt: skip
    if not transposed:
        return attended.reshape(root.shape)
    shape = (*root.shape[:-2], root.shape[-1], root.shape[-2])
    return attended.reshape(shape).transpose(*_swapped(rank))


def _four(x: Value, permutation: tuple[int, ...]) -> Value:
    """[B, H, S, D] of a side: one of rank 3 is a batch of single heads, one of rank 2 a single one."""
    if x.rank == 5:  # keys before they were repeated: [B, Hkv, 1, S, D]
        x = x.reshape(*x.shape[:2], *x.shape[3:])
    x4 = x if permutation == tuple(range(x.rank)) else x.transpose(*permutation)
    lead, rest = x4.shape[:-2], x4.shape[-2:]
    return x4 if x4.rank == 4 else x4.reshape(*(lead or (1,)), 1, *rest)


def _four_mask(mask: Value, rank: int) -> Value:
    """A mask of scores of this rank, for scores of rank 4."""
    if rank == 3 and mask.rank == 3:
        return mask.reshape(mask.shape[0], 1, *mask.shape[1:])
    return mask
