"""Simplifies masks and gathers that are computed from positions: exporters write them out, and most of them say little.

A mask that always holds is removed. A causal mask becomes an attribute of attention. An added mask of 0 and -inf
becomes a choice. A gather of everything in order is removed. What remains of a padding mask is [batch, 1, 1, keys].
"""

from __future__ import annotations

import dataclasses
import math

from rlx.ir import dim as dims
from rlx.ir.dim import Dim, Shape
from rlx.ir.graph import Graph, Value
from rlx.ops import build
from rlx.ops.elementwise import BitwiseAnd, BitwiseNot, Eq, Ge, Gt, Le, Lt, Ne, Select
from rlx.ops.index import Gather, GatherElements, GatherNd
from rlx.ops.shape import BroadcastTo, Concat, Reshape
from rlx.ops.transformer import Attention
from rlx.passes.affine import Affine, affine, not_negative
from rlx.passes.driver import Rules
from rlx.passes.pattern import Found, Is, Var, Where
from rlx.passes.raise_attention import scalar

rules = Rules("masks")
x, i = Var("x"), Var("i")

# Scores are far below this: adding such a number to one gives that number.
FORBIDDING = -1e30


def _constant(graph: Graph, flag: bool, shape: Shape) -> Value:
    constant = graph.constant(flag)
    return constant if shape == () else build.broadcast_to(constant, shape=shape)


# comparisons


def _decided(root: Value) -> Found | None:
    gap = not_negative(root)
    if gap is None:
        return None
    known = root.graph.bounds
    if gap.least(root.shape, known) >= 0:
        return {"holds": True}
    return {"holds": False} if (-gap + Affine(-1)).least(root.shape, known) >= 0 else None


rules.add("comparison-of-places", Where((Ge, Gt, Le, Lt), _decided),
          lambda holds, root, graph: _constant(graph, holds, root.shape))  # fmt: skip


def _compared_choice(root: Value) -> Found | None:
    """(p ? a : b) = c with constant numbers: p, or its contrary."""
    for choice, other in (root.node.inputs, root.node.inputs[::-1]):
        if not isinstance(choice.op, Select) or choice.shape != root.shape:
            continue
        p, a, b = choice.node.inputs
        numbers = [scalar(v) for v in (a, b, other)]
        if p.shape != root.shape or any(n is None or n != n for n in numbers):
            continue
        first, second = (numbers[0] == numbers[2]), (numbers[1] == numbers[2])
        if first != second:
            return {"p": p, "straight": first == isinstance(root.op, Eq)}
    return None


rules.add("comparison-of-a-choice", Where((Eq, Ne), _compared_choice),
          lambda p, straight: p if straight else build.bitwise_not(p))  # fmt: skip


def is_true(value: Value) -> bool:
    """Whether a bool value is known to hold everywhere."""
    if isinstance(value.op, BroadcastTo):
        return is_true(value.node.inputs[0])
    return value.constant is not None and value.dtype.kind == "bool" and bool(value.constant.all())


def _one_side(root: Value) -> Found | None:
    a, b = root.node.inputs
    for condition, other in ((a, b), (b, a)):
        if root.dtype.kind == "bool" and is_true(other):
            return {"kept": condition}
    return None


rules.add("and-of-true", Where(BitwiseAnd, _one_side), lambda kept, root: _spread(kept, root.shape))


def _spread(x: Value, shape: Shape) -> Value:
    return x if x.shape == shape else build.broadcast_to(x, shape=shape)


# gathers


def _identity(parts: list[Affine | None], extents: Shape, indices: Shape) -> list[int] | None:
    """The axes of the indices along which each part counts an extent from end to end, in ascending order."""
    axes: list[int] = []
    for part, extent in zip(parts, extents, strict=True):
        if part is None or part.constant != 0 or len(part.coefficients) != 1:
            return None
        ((axis, coefficient),) = part.coefficients.items()
        if coefficient != 1 or indices[axis] != extent:
            return None
        axes.append(axis)
    return axes if axes == sorted(set(axes)) else None


def _placed(x: Value, axes: list[int], lead: int, count: int, rest: int) -> Value:
    """x with its axes lead.. lead+count at these axes of `rank` index axes, the others 1."""
    shape: list[Dim] = [1] * rest
    for axis, extent in zip(axes, x.shape[lead : lead + count]):
        shape[axis] = extent
    return x.reshape(*x.shape[:lead], *shape, *x.shape[lead + count :])


def _whole_nd(root: Value) -> Found | None:
    data, indices = root.node.inputs
    op = root.op
    if not isinstance(op, GatherNd) or op.batch_dims:
        return None
    columns = indices.node.inputs if isinstance(indices.op, Concat) else (indices,)
    depth = indices.shape[-1]
    if not isinstance(depth, int) or len(columns) != depth or any(c.shape[-1] != 1 for c in columns):
        return None
    # The last axis holds the vector: an axis of the indices lies one further from the back than one of a column.
    parts = [_shifted(affine(c)) for c in columns]
    axes = _identity(parts, data.shape[:depth], indices.shape[:-1])
    return None if axes is None else {"x": data, "axes": axes, "rank": indices.rank - 1}


def _shifted(of: Affine | None) -> Affine | None:
    return None if of is None else Affine(of.constant, {a + 1: c for a, c in of.coefficients.items()})


@rules.rule("gather-of-all-points", Where(GatherNd, _whole_nd))
def gather_of_all_points(x: Value, axes: list[int], rank: int, root: Value) -> Value:
    return _spread(_placed(x, axes, 0, len(axes), rank), root.shape)


def _whole_flat(root: Value) -> Found | None:
    """A gather along a joined axis at row-major places of the axes that were joined."""
    joined, indices = root.node.inputs
    op = root.op
    if not isinstance(op, Gather) or op.axis % joined.rank != 0 or not isinstance(joined.op, Reshape):
        return None
    data, places = joined.node.inputs[0], affine(indices)
    if places is None or places.constant != 0:
        return None
    count = next((n for n in range(1, data.rank + 1) if dims.product(data.shape[:n]) == joined.shape[0]), None)
    if count is None or dims.product(data.shape[count:]) != dims.product(joined.shape[1:]):
        return None
    axes = sorted(places.coefficients)
    if len(axes) != count:
        return None
    for n, axis in enumerate(axes):
        stride = dims.product(data.shape[n + 1 : count])
        if places.coefficients[axis] != stride or indices.shape[axis] != data.shape[n]:
            return None
    return {"x": data, "axes": axes, "rank": indices.rank, "inner": joined}


@rules.rule("gather-of-all-places", Where(Gather, _whole_flat))
def gather_of_all_places(x: Value, axes: list[int], rank: int, inner: Value, root: Value) -> Value:
    count = len(axes)
    placed = _placed(x, axes, 0, count, rank)
    lead = placed.shape[:rank]
    return _spread(placed.reshape(*lead, *inner.shape[1:]), root.shape)


def _run(root: Value, x: Value, i: Value) -> bool:
    """Whether the indices are neighbours in order, known to lie inside."""
    places = affine(i)
    if places is None or not isinstance(root.op, Gather) or len(places.coefficients) != 1:
        return False
    ((axis, step),) = places.coefficients.items()
    extent = x.shape[root.op.axis]
    room = dims.add(dims.add(extent, dims.mul(places.constant, -1)), dims.mul(i.shape[axis], -1))
    known = root.graph.bounds
    inside = dims.bounds(places.constant, known)[0] >= 0 and dims.bounds(room, known)[0] >= 0
    return step == 1 and inside and all(d == 1 for a, d in enumerate(i.shape) if a - i.rank != axis)


@rules.rule("gather-of-a-run", Is(Gather, x, i), when=_run)
def gather_of_a_run(x: Value, i: Value, root: Value) -> Value:
    places = affine(i)
    assert places is not None and isinstance(root.op, Gather)
    ((at, _),) = places.coefficients.items()
    axis = root.op.axis % x.rank
    starts: list[Dim] = [0] * x.rank
    stops = list(x.shape)
    starts[axis] = places.constant
    stops[axis] = dims.add(places.constant, i.shape[at])
    part = build.slice(x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * x.rank)
    return part.reshape(*root.shape)


@rules.rule("gather-by-a-broadcast", Is(Gather, x, Is(BroadcastTo, i)), when=lambda root, x: root.op.axis % x.rank == 0)
def gather_by_a_broadcast(x: Value, i: Value, root: Value) -> Value:
    rank = root.rank - x.rank + 1
    wide = i.reshape(*([1] * (rank - i.rank)), *i.shape)
    return _spread(build.gather(x, wide, axis=0), root.shape)


def _one_number(root: Value) -> Found | None:
    array = root.node.inputs[0].constant
    if array is None or array.size == 0:
        return None
    return {"number": array.reshape(-1)[0]} if array.tobytes() == array.size * array.reshape(-1)[:1].tobytes() else None


@rules.rule("gather-of-one-number", Where((Gather, GatherElements, GatherNd), _one_number))
def gather_of_one_number(number: object, root: Value, graph: Graph) -> Value:
    return _spread(graph.constant(number, root.dtype), root.shape)


# attention


def _chosen(root: Value) -> Found | None:
    """An additive mask that is 0 or a number that forbids."""
    if len(root.node.inputs) != 4 or not isinstance(root.node.inputs[3].op, Select):
        return None
    condition, a, b = root.node.inputs[3].node.inputs
    first, second = scalar(a), scalar(b)
    plain = isinstance(root.op, Attention) and root.op.fill == -math.inf and not root.op.causal and not root.op.window
    if first is None or second is None or 0 not in (first, second) or not plain:
        return None
    fill = second if first == 0 else first
    if not fill <= FORBIDDING:
        return None
    return {"operands": root.node.inputs[:3], "condition": condition, "straight": first == 0, "fill": fill}


@rules.rule("attention-by-choice", Where(Attention, _chosen))
def attention_by_choice(
    operands: tuple[Value, ...], condition: Value, straight: bool, fill: float, root: Value, graph: Graph
) -> Value:
    mask = condition if straight else build.bitwise_not(condition)
    return _attention(root, graph, (*operands, mask), fill=fill)


def _attention(root: Value, graph: Graph, operands: tuple[Value, ...], **changes: object) -> Value:
    result = graph.add(dataclasses.replace(root.op, **changes), *operands)  # type: ignore[type-var]  # a dataclass
    assert isinstance(result, Value)
    return result


@rules.rule("attention-broadcasts-its-mask", Is(Attention, Var("q"), Var("k"), Var("v"), Is(BroadcastTo, x)))
def attention_broadcasts_its_mask(q: Value, k: Value, v: Value, x: Value, root: Value, graph: Graph) -> Value:
    return _attention(root, graph, (q, k, v, x))


def conditions(mask: Value) -> list[tuple[Value, bool]]:
    """The conditions that must all hold where a mask does, each with whether it is meant straight or negated."""
    op, inputs = mask.op, mask.node.inputs
    if is_true(mask):
        return []
    if isinstance(op, BitwiseAnd):
        return [c for v in inputs for c in conditions(v)]
    if isinstance(op, BroadcastTo) or (isinstance(op, Reshape) and _adds_leading_ones(inputs[0].shape, mask.shape)):
        return conditions(inputs[0])
    if isinstance(op, BitwiseNot):
        return [(inputs[0], False)]
    return [(mask, True)]


def _adds_leading_ones(old: Shape, new: Shape) -> bool:
    return len(new) > len(old) and new == (1,) * (len(new) - len(old)) + old


def _by_places(root: Value) -> Found | None:
    """Conditions of a mask that say: keys up to the query's place."""
    op = root.op
    if not isinstance(op, Attention) or len(root.node.inputs) != 4 or root.node.inputs[3].dtype.kind != "bool":
        return None
    all_of = conditions(root.node.inputs[3])
    causal, offset, rest = op.causal, op.offset, []
    for condition, straight in all_of:
        gap = not_negative(condition)
        gap = -gap + Affine(-1) if gap is not None and not straight else gap
        # row + offset - column ≥ 0
        if gap is not None and dict(gap.coefficients) == {-2: 1, -1: -1} and (not causal or gap.constant == offset):
            causal, offset = True, gap.constant
        else:
            rest.append((condition, straight))
    if (len(rest) == len(all_of) and all_of) or (op.window is not None and offset != op.offset):
        return None
    values = tuple(condition for condition, _ in rest)
    flags = tuple(straight for _, straight in rest)
    return {"operands": root.node.inputs[:3], "values": values, "flags": flags, "causal": causal, "offset": offset}


@rules.rule("causal-attention", Where(Attention, _by_places))
def causal_attention(
    operands: tuple[Value, ...], values: tuple[Value, ...], flags: tuple[bool, ...], causal: bool, offset: Dim,
    root: Value, graph: Graph,
) -> Value:  # fmt: skip
    mask: Value | None = None
    for value, straight in zip(values, flags):
        condition = value if straight else build.bitwise_not(value)
        mask = condition if mask is None else build.bitwise_and(mask, condition)
    masks = () if mask is None else (mask,)
    return _attention(root, graph, (*operands, *masks), causal=causal, offset=offset)
