"""Importer functions: gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence

from rlx import ops
from rlx.frontends.onnx.measuring import measure
from rlx.frontends.onnx.table import OnnxNode, Operand, onnx_op
from rlx.ir.dim import Poly
from rlx.ir.graph import Value
from rlx.ir.type import MAX_DIM
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
    """How long index vectors are decides the rank of the result; where a single length is possible it need not be
    known here."""
    batch = node.integer("batch_dims", 0)
    if indices.rank and not isinstance(indices.shape[-1], int) and x.rank - batch == 1:
        indices = build.reshape(indices, shape=(*indices.shape[:-1], 1))
    return build.gather_nd(x, indices, batch_dims=batch)


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
def one_hot(node: OnnxNode, indices: Value, depth: Operand, values: Value) -> Value:
    """`values` holds what stands for off and for on; the depth may be a float."""
    if values.rank != 1 or (isinstance(values.shape[0], int) and values.shape[0] != 2):
        raise node.wrong(f"expected the two values for off and on, got {values.type}")
    array = depth.known if depth.known is not None else depth.value.constant
    if array is None:
        count = measure(node, depth.value.cast("i64"))
    else:
        number = array.reshape(-1)[0]
        if array.size != 1 or (not isinstance(number, Poly) and not 0 <= number <= MAX_DIM):
            raise node.wrong(f"expected a depth that is not negative, got {array.reshape(-1)[:8].tolist()}")
        count = number if isinstance(number, (int, Poly)) else int(number)
    whole = indices if indices.dtype.is_integer else indices.cast("i64")
    axis = node.axis(indices.rank + 1, -1)
    return shorthand.one_hot(whole, count, values[1], values[0], axis)


@onnx_op("NonZero")
def nonzero(node: OnnxNode, x: Value) -> Value:
    """A scalar counts as a vector of one element."""
    node.measures("how many elements are not zero")
    indices: Value = ops.nonzero(x if x.rank else x.reshape(1))
    return indices


@onnx_op("Compress")
def compress(node: OnnxNode, x: Value, condition: Value) -> Value:
    node.measures("how many elements it takes")
    axis = node.integer("axis", None)
    compressed: Value = ops.compress(x, condition, None if axis is None else node.normal_axis(axis, x.rank))
    return compressed


@onnx_op("Unique")
def unique(node: OnnxNode, x: Value) -> Sequence[Value]:
    """Values, where each appears first, which of them each element is, how often each appears."""
    node.measures("how many distinct elements there are")
    axis = node.integer("axis", None)
    at = None if axis is None else node.normal_axis(axis, x.rank)
    results: tuple[Value, ...] = ops.unique(x, at, ordered=node.flag("sorted", True))
    return results


@onnx_op("NonMaxSuppression")
def non_max_suppression(
    node: OnnxNode, boxes: Value, scores: Value, most: Value | None, overlap: Value | None, threshold: Value | None
) -> Value:
    """Without a number of boxes none is taken."""
    node.measures("how many boxes are kept")
    selected: Value = ops.non_max_suppression(
        boxes, scores, 0 if most is None else most, 0.0 if overlap is None else overlap, threshold,
        centered=node.integer("center_point_box", 0) == 1,
    )  # fmt: skip
    return selected
