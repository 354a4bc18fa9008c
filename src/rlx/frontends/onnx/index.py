"""Importer functions: gathers and scatters."""

from __future__ import annotations

from rlx.frontends.onnx.table import Item, OnnxNode, onnx_op
from rlx.ir.dim import Dim, Poly
from rlx.ir.graph import Value
from rlx.ops import build, shorthand

_COMBINE = {"none": None, "add": "add", "mul": "mul", "max": "max", "min": "min"}


@onnx_op("Gather")
def gather(node: OnnxNode, x: Value, indices: Value) -> Value:
    return build.gather(x, indices, axis=node.axis(x.rank, 0))


@onnx_op("GatherElements")
def gather_elements(node: OnnxNode, x: Value, indices: Value) -> Value:
    return build.gather_elements(x, indices, axis=node.axis(x.rank, 0))


@onnx_op("GatherND")
def gather_nd(node: OnnxNode, x: Value, indices: Value) -> Value:
    return build.gather_nd(x, indices, batch_dims=node.integer("batch_dims", 0))


@onnx_op("ScatterElements", "Scatter")
def scatter_elements(node: OnnxNode, x: Value, indices: Value, updates: Value) -> Value:
    return build.scatter_elements(x, indices, updates, axis=node.axis(x.rank, 0), combine=_combine(node))


@onnx_op("ScatterND")
def scatter_nd(node: OnnxNode, x: Value, indices: Value, updates: Value) -> Value:
    return build.scatter_nd(x, indices, updates, combine=_combine(node))


def _combine(node: OnnxNode) -> str | None:
    reduction = node.text("reduction", "none")
    if reduction not in _COMBINE:
        raise node.wrong(f"expected a reduction among {list(_COMBINE)}, got {reduction!r}")
    return _COMBINE[reduction]


@onnx_op("OneHot")
def one_hot(node: OnnxNode, indices: Value, depth: Item, values: Value) -> Value:
    """`values` holds what stands for off and for on; the depth may be a float."""
    array = depth.known if depth.known is not None else depth.value.constant
    if array is None:
        raise node.unsupported("its depth is known only when the graph runs")
    number = array.reshape(-1)[0]
    count: Dim = number if isinstance(number, (int, Poly)) else int(number)
    whole = indices if indices.dtype.is_integer else indices.cast("i64")
    axis = node.axis(indices.rank + 1, -1)
    return shorthand.one_hot(whole, count, values[1], values[0], axis)
