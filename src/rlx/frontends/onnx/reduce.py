"""Importer functions: reductions and extrema."""

from __future__ import annotations

from rlx.frontends.onnx.measuring import extents, length, measure_all, split_axes, unmarked_first, vector
from rlx.frontends.onnx.table import OnnxNode, Operand, onnx_op
from rlx.ir.graph import Value
from rlx.ops import build, shorthand

_REDUCTIONS = {
    "ReduceSum": "reduce_sum", "ReduceMean": "reduce_mean", "ReduceMax": "reduce_max", "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod", "ReduceL1": "reduce_l1", "ReduceL2": "reduce_l2", "ReduceLogSum": "reduce_log_sum",
    "ReduceLogSumExp": "reduce_log_sum_exp", "ReduceSumSquare": "reduce_sum_square",
}  # fmt: skip


def _register(name: str, ours: str) -> None:
    by_input = 13 if name == "ReduceSum" else 18

    @onnx_op(name, since=by_input)
    def axes_by_input(node: OnnxNode, x: Value, axes: Operand | None) -> Value:
        """No axes mean all, or none at all if the node says so."""
        keeps = node.flag("noop_with_empty_axes")
        if axes is None or axes.shape == (0,):
            return x if keeps else _reduce(node, ours, x, tuple(range(x.rank)))
        if axes.known is None:
            return _reduce_at_run_time(node, ours, x, vector(axes))
        return _reduce(node, ours, x, node.axes(axes.known, x.rank))

    @onnx_op(name, until=by_input - 1)
    def axes_by_attribute(node: OnnxNode, x: Value) -> Value:
        listed = node.integers("axes", None)
        return _reduce(node, ours, x, tuple(range(x.rank)) if not listed else node.axes(listed, x.rank))


def _reduce(node: OnnxNode, ours: str, x: Value, axes: tuple[int, ...]) -> Value:
    reduced = build.op(ours)(x, axes=axes, keepdims=node.flag("keepdims", True))
    return reduced.cast(x.dtype)


def _reduce_at_run_time(node: OnnxNode, ours: str, x: Value, axes: Value) -> Value:
    """Along axes that only a run knows; how many there are is known, and so the rank of the result."""
    rows, mask = split_axes(node, x, axes)
    reduced = build.op(ours)(rows, axes=(1,)).cast(x.dtype)
    shape = extents(node, x.shape)
    if node.flag("keepdims", True):
        target = build.select(mask, 1, shape)
    else:
        target = build.gather(shape, unmarked_first(node, mask, x.rank - length(node, axes)), axis=0)
    return reduced.reshape(tuple(measure_all(node, target)))


for _name, _ours in _REDUCTIONS.items():
    _register(_name, _ours)


@onnx_op("ArgMax")
def argmax(node: OnnxNode, x: Value) -> Value:
    return build.argmax(
        x, axis=node.axis(x.rank, 0), keepdims=node.flag("keepdims", True), last=node.flag("select_last_index")
    )


@onnx_op("ArgMin")
def argmin(node: OnnxNode, x: Value) -> Value:
    return build.argmin(
        x, axis=node.axis(x.rank, 0), keepdims=node.flag("keepdims", True), last=node.flag("select_last_index")
    )


@onnx_op("Hardmax", since=13)
def hardmax(node: OnnxNode, x: Value) -> Value:
    """1 at the first of the greatest along an axis, 0 elsewhere."""
    axis = node.axis(x.rank, -1)
    return _hardmax(x, axis)


@onnx_op("Hardmax", until=12)
def hardmax_flattened(node: OnnxNode, x: Value) -> Value:
    flat = shorthand.flatten(x, node.integer("axis", 1))
    return _hardmax(flat, 1).reshape(x.shape)


def _hardmax(x: Value, axis: int) -> Value:
    first = build.argmax(x, axis=axis)
    return shorthand.one_hot(first, x.shape[axis], 1.0, 0.0, axis).cast(x.dtype)
