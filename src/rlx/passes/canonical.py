"""One spelling for things that can be said in several ways, so that later passes and kernels meet only one.

reductions keep their axes (as 1) and a reshape drops them;  axes count from the front and ascend;
matmul by a matrix is a dot_general;  taking one element with a constant index is a slice.
"""

from __future__ import annotations

import dataclasses

from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.op import Op
from rlx.ops import build
from rlx.ops.index import Gather
from rlx.ops.linalg import Matmul
from rlx.ops.reduce import Argmax, Argmin, Reduction, Statistic
from rlx.passes.driver import Rules
from rlx.passes.pattern import Const, Found, Is, Var, Where

rules = Rules("canonical")
x, y = Var("x"), Var("y")


def _with(root: Value, graph: Graph, *operands: Value, **changes: object) -> Value:
    """The root's op with some attributes changed, on other operands."""
    op: Op = dataclasses.replace(root.op, **changes)  # type: ignore[type-var]  # every op is a dataclass
    result = graph.add(op, *operands)
    assert isinstance(result, Value)
    return result


def _negative_axis(root: Value) -> Found | None:
    axis = getattr(root.op, "axis")  # noqa: B009
    return {"inputs": root.node.inputs} if isinstance(axis, int) and axis < 0 and root.node.inputs else None


@rules.rule("axis-from-the-front", Where(Op, _negative_axis, attribute="axis"))
def axis_from_the_front(inputs: tuple[Value, ...], root: Value, graph: Graph) -> Value:
    return _with(root, graph, *inputs, axis=getattr(root.op, "axis") % root.node.inputs[0].rank)  # noqa: B009


def _unsorted_axes(root: Value) -> Found | None:
    axes = getattr(root.op, "axes")  # noqa: B009
    if not isinstance(axes, tuple) or not root.node.inputs:
        return None
    return {"inputs": root.node.inputs} if any(a < 0 for a in axes) or list(axes) != sorted(axes) else None


@rules.rule("axes-from-the-front", Where(Op, _unsorted_axes, attribute="axes"))
def axes_from_the_front(inputs: tuple[Value, ...], root: Value, graph: Graph) -> Value:
    axes = tuple(sorted(a % inputs[0].rank for a in getattr(root.op, "axes")))  # noqa: B009
    return _with(root, graph, *inputs, axes=axes)


@rules.rule("reduction-keeps-axes", Is((Reduction, Statistic, Argmax, Argmin), x, keepdims=False))
def reduction_keeps_axes(x: Value, root: Value, graph: Graph) -> Value:
    return _with(root, graph, x, keepdims=True).reshape(root.shape)


@rules.rule("matmul-by-matrix", Is(Matmul, x, y), when=lambda x, y: x.rank >= 2 and y.rank == 2)
def matmul_by_matrix(x: Value, y: Value) -> Value:
    return build.dot_general(x, y, lhs_contract=(x.rank - 1,), rhs_contract=(0,))


def _one_index(array: Array) -> bool:
    return array.size == 1 and array.dtype.kind in "iu"


def _inside(root: Value, x: Value, c: Value) -> bool:
    extent = x.shape[root.op.axis] if isinstance(root.op, Gather) else 0
    return isinstance(extent, int) and c.constant is not None and -extent <= int(c.constant.reshape(-1)[0]) < extent


@rules.rule("gather-of-one", Is(Gather, x, Const(name="c", where=_one_index)), when=_inside)
def gather_of_one(x: Value, c: Value, root: Value) -> Value:
    assert isinstance(root.op, Gather) and c.constant is not None
    axis = root.op.axis % x.rank
    at = int(c.constant.reshape(-1)[0])
    extent = x.shape[axis]
    assert isinstance(extent, int)
    key = (*([slice(None)] * axis), slice(at % extent, at % extent + 1))
    return x[key].reshape(root.shape)
