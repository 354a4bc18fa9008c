"""Importer functions: order along an axis, running sums and products."""

from __future__ import annotations

from collections.abc import Sequence

from rlx import ops
from rlx.frontends.onnx.table import Item, Known, OnnxNode, onnx_op
from rlx.ir.dim import Dim
from rlx.ir.graph import Value
from rlx.ops import build


@onnx_op("TopK", until=9)
def top_k_by_attribute(node: OnnxNode, x: Value) -> Sequence[Value]:
    return _top_k(node, x, node.integer("k"))


@onnx_op("TopK", since=10)
def top_k(node: OnnxNode, x: Value, k: Known) -> Sequence[Value]:
    """Results come in order even where any order would do."""
    node.flag("sorted", True)
    return _top_k(node, x, k.reshape(-1)[0])


def _top_k(node: OnnxNode, x: Value, k: Dim) -> Sequence[Value]:
    axis = node.axis(x.rank, -1)
    made: tuple[Value, Value] = ops.top_k(x, axis=axis, k=k, largest=node.flag("largest", True))
    return made


@onnx_op("CumSum")
def running_sum(node: OnnxNode, x: Value, axis: Item) -> Value:
    return build.cumsum(x, axis=_axis(node, x, axis), **_direction(node))


@onnx_op("CumProd")
def running_product(node: OnnxNode, x: Value, axis: Item) -> Value:
    return build.cumprod(x, axis=_axis(node, x, axis), **_direction(node))


def _axis(node: OnnxNode, x: Value, axis: Item) -> int:
    """The axis of a vector needs no look."""
    if axis.known is not None:
        return node.normal_axis(axis.known.reshape(-1)[0], x.rank)
    if x.rank == 1:
        return 0
    raise node.unsupported("its axis is known only when the graph runs")


def _direction(node: OnnxNode) -> dict[str, bool]:
    return {"exclusive": node.flag("exclusive"), "reverse": node.flag("reverse")}
