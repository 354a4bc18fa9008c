"""Non-maximum suppression of boxes, by ops of known shape: candidates in order of their scores; a loop that keeps the
best remaining candidate of every class at once and drops those that overlap it; and the positions of those that were
kept."""

from __future__ import annotations

import math

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import expect
from rlx.ir.graph import Graph, Value, call
from rlx.ops import build
from rlx.ops.selection import nonzero
from rlx.ops.shorthand import measure

__all__ = ["non_max_suppression"]

Number = Value | int | float
FAR = (1 << 31) - 1
"""A place behind all candidates."""


def non_max_suppression(
    boxes: Value,
    scores: Value,
    most: Number | None = None,
    overlap: Number = 0.0,
    threshold: Number | None = None,
    centered: bool = False,
) -> Value:
    """Boxes that no better box of their class covers: i64 [kept, 3] of batch, class and box.

    boxes      float [batch, n, 4]: y, x of two corners that lie across, or x, y of the middle, width, height (centered)
    scores     like boxes [batch, classes, n]
    most       how many are kept of a batch element and class; None keeps all. Numbers may be values of one element
    overlap    a box goes if its intersection with a kept one over their union is greater
    threshold  only boxes with a greater score count; None counts all
    Rows come by batch, class and score, of equal scores the first box first; how many there are is a dim that a run
    tells. Work: a pass over the candidates for every box that is kept of the class that keeps most.
    Raises ShapeError, DTypeError.
    """
    expect.floating(boxes.type, "boxes")
    expect.same_dtype(boxes.type, scores.type)
    if boxes.rank != 3 or scores.rank != 3 or boxes.shape[2] != 4:
        actual = f"{boxes.type} and {scores.type}"
        raise ShapeError(f"[nms] expected boxes [batch, n, 4] and scores [batch, classes, n], got {actual}")
    for at, other in ((0, 0), (1, 2)):
        what = f"expected scores of the boxes {boxes.type}, got {scores.type}"
        boxes.graph.equal(boxes.shape[at], scores.shape[other], f"[nms] {what}")
    order, alive = _candidates(scores, threshold)
    low_high = [_of_boxes(side, order) for side in _sides(boxes, centered)]
    limit = scores.shape[2] if most is None else most
    count = build.dims_tensor(scores.graph, values=(limit,)) if not isinstance(limit, (Value, float)) else limit
    kept = _loop(alive, low_high, _scalar(scores, count, "i64"), _scalar(scores, overlap, scores.dtype))
    rows = nonzero(kept, name="kept").T
    return build.concat(rows[:, :2], build.gather_nd(order, rows).reshape(-1, 1), axis=1)


def _scalar(like: Value, number: Number, dtype: object) -> Value:
    value = number if isinstance(number, Value) else like.graph.constant(number)
    return value.cast(dtype).reshape(())


def _candidates(scores: Value, threshold: Number | None) -> tuple[Value, Value]:
    """Boxes in order of their scores, i64 [batch, classes, k], and whether each counts."""
    extent = scores.shape[2]
    if threshold is None:
        order = build.argsort(scores, axis=2, descending=True)
        return order, build.broadcast_to(scores.graph.constant(True), shape=order.shape)
    counts = scores > _scalar(scores, threshold, scores.dtype)
    by_class = build.reduce_sum(counts.cast("i64"), axes=(2,)).reshape(-1)
    first = build.concat(by_class, scores.graph.constant([0], "i64"), axis=0)  # there may be no class at all
    k = measure(build.reduce_max(first, axes=(0,)), upper=extent, name="candidates")
    results = call("top_k", build.select(counts, scores, -math.inf), axis=2, k=k)
    assert isinstance(results, tuple)  # the op has two results
    return results[1], build.gather_elements(counts, results[1], axis=2)


def _sides(boxes: Value, centered: bool) -> list[Value]:
    """Least y, least x, greatest y, greatest x: [batch, n] each."""
    a, b, c, d = (boxes[:, :, i] for i in range(4))
    if centered:
        return [b - d / 2, a - c / 2, b + d / 2, a + c / 2]
    return [build.minimum(a, c), build.minimum(b, d), build.maximum(a, c), build.maximum(b, d)]


def _of_boxes(side: Value, order: Value) -> Value:
    """A number of every box [batch, n] for the boxes that candidates are [batch, classes, k]."""
    flat = order.reshape(order.shape[0], dims.mul(order.shape[1], order.shape[2]))
    return build.gather_elements(side, flat, axis=1).reshape(order.shape)


def _loop(alive: Value, sides: list[Value], most: Value, overlap: Value) -> Value:
    """Which candidates are kept: in every trip the first that is left of each class, and what it covers goes."""
    graph = alive.graph
    none = build.broadcast_to(graph.constant(False), shape=alive.shape)
    operands = [graph.constant(0, "i64"), alive, none, *sides, most, overlap]
    test, body = (Graph(name, graph.assumes_equal) for name in ("any_left", "keep"))
    trip, left, _, *_, limit, _ = (test.input(f"arg.{i}", v.shape, v.dtype) for i, v in enumerate(operands))
    test.output(build.bitwise_and(trip < limit, build.reduce_any(left, axes=(0, 1, 2))))
    trip, left, kept, *around, limit, ratio = (body.input(f"arg.{i}", v.shape, v.dtype) for i, v in enumerate(operands))
    place = build.iota(body, shape=left.shape, dtype="i32", axis=2)
    # no argmax: there may be no candidates, and then the loop makes no trip
    first = build.reduce_min(build.select(left, place, FAR), axes=(2,), keepdims=True)
    here = build.bitwise_and(build.eq(place, first), left)
    last = build.dims_tensor(body, values=(dims.add(left.shape[2], -1),), dtype="i32").reshape(())
    at = build.minimum(first, last)  # a class without candidates covers nothing, whatever the values are
    best = [build.gather_elements(side, at, axis=2) for side in around]
    left = build.bitwise_and(left, build.bitwise_not(build.bitwise_or(here, _covers(best, around, ratio))))
    body.output(trip + 1, left, build.bitwise_or(kept, here))
    results = call("while", *operands, regions=(test, body), carried=3)
    assert isinstance(results, tuple)  # as many results as are carried
    return results[2]


def _covers(best: list[Value], others: list[Value], ratio: Value) -> Value:
    """Whether the intersection over the union is greater than the ratio; boxes without area cover nothing."""
    height = build.minimum(best[2], others[2]) - build.maximum(best[0], others[0])
    width = build.minimum(best[3], others[3]) - build.maximum(best[1], others[1])
    common = build.maximum(height, 0) * build.maximum(width, 0)
    union = _area(best) + _area(others) - common
    meets = build.bitwise_and(common > 0, union > 0)
    return build.bitwise_and(meets, common / build.select(meets, union, 1) > ratio)


def _area(sides: list[Value]) -> Value:
    return (sides[2] - sides[0]) * (sides[3] - sides[1])
