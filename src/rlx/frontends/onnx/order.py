"""Importer functions: order along an axis, running sums and products."""

from __future__ import annotations

from collections.abc import Sequence

from rlx import ops
from rlx.frontends.onnx.measuring import extents, measure
from rlx.frontends.onnx.table import OnnxNode, Operand, onnx_op
from rlx.ir.dim import Dim
from rlx.ir.graph import Value
from rlx.ops import build


@onnx_op("TopK", until=9)
def top_k_by_attribute(node: OnnxNode, x: Value) -> Sequence[Value]:
    return _top_k(node, x, node.integer("k"))


@onnx_op("TopK", since=10)
def top_k(node: OnnxNode, x: Value, k: Operand) -> Sequence[Value]:
    """Results come in order even where any order would do."""
    node.flag("sorted", True)
    if k.known is not None:
        return _top_k(node, x, k.known.reshape(-1)[0])
    return _top_k(node, x, measure(node, k.value, x.shape[node.axis(x.rank, -1)]))


def _top_k(node: OnnxNode, x: Value, k: Dim) -> Sequence[Value]:
    axis = node.axis(x.rank, -1)
    results: tuple[Value, Value] = ops.top_k(x, axis=axis, k=k, largest=node.flag("largest", True))
    return results


@onnx_op("CumSum")
def running_sum(node: OnnxNode, x: Value, axis: Operand) -> Value:
    return _running(node, "cumsum", x, axis)


@onnx_op("CumProd")
def running_product(node: OnnxNode, x: Value, axis: Operand) -> Value:
    return _running(node, "cumprod", x, axis)


def _running(node: OnnxNode, ours: str, x: Value, axis: Operand) -> Value:
    """The axis of a vector needs no look; others that only a run knows cut x into what lies before, along, behind."""
    run = build.op(ours)
    if axis.known is not None:
        return run(x, axis=node.normal_axis(axis.known.reshape(-1)[0], x.rank), **_direction(node))
    if x.rank == 1:
        return run(x, axis=0, **_direction(node))
    at = axis.value.cast("i64").reshape(())
    x = node.require(x, at, -x.rank, x.rank, "an axis")
    at = build.select(at < 0, at + x.rank, at)
    line, shape = build.iota(node.graph, shape=(x.rank,), dtype="i64"), extents(node, x.shape)
    parts = [build.select(where, shape, 1) for where in (line < at, build.eq(line, at), line > at)]
    cut = [measure(node, build.reduce_prod(part, axes=(0,))) for part in parts]
    return run(x.reshape(tuple(cut)), axis=1, **_direction(node)).reshape(x.shape)


def _direction(node: OnnxNode) -> dict[str, bool]:
    return {"exclusive": node.flag("exclusive"), "reverse": node.flag("reverse")}
