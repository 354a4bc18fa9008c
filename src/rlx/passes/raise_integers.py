"""Products of bytes that are written as products of integers: both sides are bytes, widened to i32.

For targets that multiply bytes faster than the i32 that they become; the sum is the same, as both wrap.
"""

from __future__ import annotations

from rlx.ir import dtype as dtypes
from rlx.ir.graph import Value
from rlx.ops import build
from rlx.ops.elementwise import Cast
from rlx.ops.linalg import Matmul
from rlx.ops.shape import Transpose
from rlx.passes.driver import Rules
from rlx.passes.pattern import Is, Var

rules = Rules("raise-integers")


def _are_bytes(left: Value, right: Value) -> bool:
    return all(_is_widened(side) for side in (left, right))


def _is_widened(value: Value) -> bool:
    while isinstance(value.op, Transpose):
        value = value.node.inputs[0]
    wide = isinstance(value.op, Cast) and value.dtype is dtypes.i32 and value.rank > 1
    return wide and value.node.inputs[0].dtype in (dtypes.u8, dtypes.i8)


@rules.rule("matmul", Is(Matmul, Var("left"), Var("right")), when=_are_bytes)
def matmul(left: Value, right: Value) -> Value:
    a, b = _narrow(left), _narrow(right)
    return build.integer_matmul(a, b, a.graph.constant(0, a.dtype), b.graph.constant(0, b.dtype))


def _narrow(value: Value) -> Value:
    """The bytes of a matrix that was widened before or behind transposes."""
    source = value.node.inputs[0]
    return _narrow(source).transpose(*value.op.permutation) if isinstance(value.op, Transpose) else source
