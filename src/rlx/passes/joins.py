"""Concatenations as choices: what follows one is then one kernel with it, and both parts are made by the same.

For targets on which every kernel has a price of its own, and a load behind a condition none: GPUs. On processors a
kernel for each part reads and writes whole vectors.
"""

from __future__ import annotations

from rlx.ir import dim as dims
from rlx.ir.graph import Value
from rlx.ir.op import Constant, Param
from rlx.ops import build
from rlx.ops.shape import Concat
from rlx.passes.driver import Rules
from rlx.passes.pattern import Found, Where

rules = Rules("joins")


def _two_parts(root: Value) -> Found | None:
    """Two parts of known extents, of which a run makes one: what is made of weights alone is made once."""
    assert isinstance(root.op, Concat)
    axis, parts = root.op.axis, root.node.inputs
    known = all(isinstance(part.shape[axis], int) for part in parts)
    return {"parts": parts} if len(parts) == 2 and known and not all(map(_is_of_weights, parts)) else None


def _is_of_weights(value: Value) -> bool:
    """Whether it is a weight, or one that was moved or cast."""
    while len(value.node.inputs) == 1:
        value = value.node.inputs[0]
    return isinstance(value.op, (Param, Constant))


@rules.rule("concat-as-choice", Where(Concat, _two_parts))
def chosen(parts: tuple[Value, Value], root: Value) -> Value:
    """The first part where the place along the axis is before its end, else the second: each as if there were nothing
    but padding beside it."""
    assert isinstance(root.op, Concat)
    first, second = parts
    axis = root.op.axis % root.rank
    before = first.shape[axis]

    def beside(part: Value, low: dims.Dim, high: dims.Dim) -> Value:
        lows, highs = ([d if i == axis else 0 for i in range(root.rank)] for d in (low, high))
        return build.pad(part, low=tuple(lows), high=tuple(highs))

    shape = tuple(d if i == axis else 1 for i, d in enumerate(root.shape))
    place = build.iota(first.graph, shape=shape, dtype="i64", axis=axis)
    inside = build.lt(place, before)
    return build.select(inside, beside(first, 0, second.shape[axis]), beside(second, before, 0))
