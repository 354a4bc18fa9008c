"""Importer functions: reductions and extrema."""

from __future__ import annotations

from rlx.frontends.onnx.table import Known, OnnxNode, onnx_op
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
    def axes_by_input(node: OnnxNode, x: Value, axes: Known | None) -> Value:
        """No axes mean all, or none at all if the node says so."""
        keeps = node.flag("noop_with_empty_axes")
        if axes is None or axes.size == 0:
            return x if keeps else _reduce(node, ours, x, tuple(range(x.rank)))
        return _reduce(node, ours, x, node.axes(axes, x.rank))

    @onnx_op(name, until=by_input - 1)
    def axes_by_attribute(node: OnnxNode, x: Value) -> Value:
        listed = node.integers("axes", None)
        return _reduce(node, ours, x, tuple(range(x.rank)) if not listed else node.axes(listed, x.rank))


def _reduce(node: OnnxNode, ours: str, x: Value, axes: tuple[int, ...]) -> Value:
    made = build.__getattr__(ours)(x, axes=axes, keepdims=node.flag("keepdims", True))
    return made.cast(x.dtype)


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
