"""Non-maximum suppression of boxes.

`SuppressOverlaps` is the op: it keeps boxes of every class in places of known number, and says how many it kept. Its
definition has candidates in order of their scores, and a loop that keeps the best remaining one of every class at once
and drops those that overlap it. The builder makes rows of what was kept.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim, Poly
from rlx.ir.graph import Graph, Value, call
from rlx.ir.op import Composite, Cost, op
from rlx.ir.type import TensorType
from rlx.ops import build
from rlx.ops.ordering import order_of
from rlx.ops.shorthand import measure

__all__ = ["non_max_suppression"]

Array = np.ndarray[Any, Any]
Number = Value | int | float
FAR = (1 << 31) - 1
"""A place behind all candidates."""


@op
class SuppressOverlaps(Composite):
    """Of every class the boxes that no better box of it covers, the best first.

    boxes       float [batch, n, 4]: y, x of two corners that lie across, or x, y of the middle, width and height
                (centered)
    scores      like boxes [batch, classes, n]
    most        integer []: how many are kept of a class
    overlap     like boxes []: a box goes if its intersection with a kept one over their union is greater
    threshold   like boxes []: only boxes with a greater score count; without it all count
    results     boxes by score, of equal scores the first box first, -1 behind the last: i32 [batch, classes, limit];
                how many they are, i64 [batch, classes]
    limit       how many are kept of a class whatever `most` says
    candidates  no fewer than count of any class, and at most n: the definition puts so many in order

    A score that is NaN is greater than all others, and not greater than a threshold. A box whose sides have a NaN
    covers none, and none covers it; nor does one without area.
    """

    limit: Dim
    candidates: Dim
    centered: bool = False

    def infer(
        self,
        boxes: TensorType,
        scores: TensorType,
        most: TensorType,
        overlap: TensorType,
        threshold: TensorType | None = None,
    ) -> tuple[TensorType, TensorType]:
        expect.floating(boxes, "boxes")
        for other in (scores, overlap, *([] if threshold is None else [threshold])):
            expect.same_dtype(boxes, other)
        expect.integer(most, "most")
        if boxes.rank != 3 or scores.rank != 3 or boxes.shape[2] != 4:
            raise ShapeError(f"expected boxes [batch, n, 4] and scores [batch, classes, n], got {boxes} and {scores}")
        for name, number in (("most", most), ("overlap", overlap), ("threshold", threshold)):
            if number is not None:
                expect.rank(number, 0, name)
        for at, side in ((0, 0), (1, 2)):
            expect.same_dim(boxes.shape[at], scores.shape[side], f"expected scores of the boxes {boxes}, got {scores}")
        n = scores.shape[2]
        if isinstance(n, int) and isinstance(self.candidates, int) and self.candidates > n:
            raise ShapeError(f"expected candidates of at most {n}, got {self.candidates}")
        kept = (scores.shape[0], scores.shape[1])
        return TensorType((*kept, self.limit), dtypes.i32), TensorType(kept, dtypes.i64)

    def reference(
        self, boxes: Array, scores: Array, most: Array, overlap: Array, threshold: Array | None = None
    ) -> tuple[Array, Array]:
        """Class by class: candidates that are in the way of none that was kept before."""
        limit = dims.evaluate(self.limit, {})
        picked = np.full((*scores.shape[:2], limit), -1, np.int32)
        counts = np.zeros(scores.shape[:2], np.int64)
        order = order_of(scores, 2, largest=True)
        with np.errstate(all="ignore"):
            sides = _sides_of(boxes, self.centered)
            for batch, kind in np.ndindex(counts.shape):
                kept: list[int] = []
                for at in order[batch, kind]:
                    if len(kept) >= min(limit, int(most)):
                        break
                    fine = threshold is None or scores[batch, kind, at] > threshold
                    others = [side[batch, kept] for side in sides]
                    if fine and not _are_covered([side[batch, at] for side in sides], others, overlap).any():
                        kept.append(int(at))
                picked[batch, kind, : len(kept)] = kept
                counts[batch, kind] = len(kept)
        return picked, counts

    def decompose(
        self, boxes: Value, scores: Value, most: Value, overlap: Value, threshold: Value | None = None
    ) -> tuple[Value, Value]:
        order, alive = _candidates(scores, threshold, self.candidates)
        low_high = [_of_boxes(side, order) for side in _sides(boxes, self.centered)]
        limit = _dim(scores.graph, self.limit)
        kept = _loop(alive, low_high, build.minimum(most.cast("i64"), limit), overlap)
        numbers = kept.cast("i64")
        place = build.select(kept, build.cumsum(numbers, axis=2, exclusive=True), limit)  # behind the end: dropped
        shape = (*scores.shape[:2], self.limit)
        none = build.broadcast_to(scores.graph.constant(-1, "i32"), shape=shape)
        picked = build.scatter_elements(none, place, order.cast("i32"), axis=2, distinct=True)
        return picked, build.reduce_sum(numbers, axes=(2,))

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        """A comparison for every score, and an intersection with some of what was kept for every candidate."""
        return Cost(dims.mul(20, inputs[1].size), 0, super().cost(inputs, outputs).bytes)

    def with_all_candidates(self, scores: TensorType) -> SuppressOverlaps:
        """The op for those who need not know how many candidates there are."""
        return replace(self, candidates=scores.shape[2])


def _sides_of(boxes: Array, centered: bool) -> list[Array]:
    """Least y, least x, greatest y, greatest x: [batch, n] each."""
    a, b, c, d = np.moveaxis(boxes, -1, 0)
    if centered:
        return [b - d / 2, a - c / 2, b + d / 2, a + c / 2]
    return [np.minimum(a, c), np.minimum(b, d), np.maximum(a, c), np.maximum(b, d)]


def _are_covered(box: list[Array], others: list[Array], overlap: Array) -> Array:
    """Of each of the others whether it and the box are the same place, as far as `overlap` allows."""
    height = np.minimum(box[2], others[2]) - np.maximum(box[0], others[0])
    width = np.minimum(box[3], others[3]) - np.maximum(box[1], others[1])
    common = np.maximum(height, 0) * np.maximum(width, 0)
    areas = [(of[2] - of[0]) * (of[3] - of[1]) for of in (box, others)]
    union = areas[0] + areas[1] - common
    return np.asarray((common > 0) & (union > 0) & (common / union > overlap))


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
    extent = scores.shape[2]
    limit = extent if most is None else most
    count = _dim(scores.graph, limit) if not isinstance(limit, (Value, float)) else limit
    numbers = [_scalar(scores, count, "i64"), _scalar(scores, overlap, scores.dtype)]
    candidates = extent
    if threshold is not None:
        numbers.append(_scalar(scores, threshold, scores.dtype))
        candidates = _how_many_count(scores, numbers[2])
    results = call(
        "suppress_overlaps",
        boxes,
        scores,
        *numbers,
        limit=_limit(extent, limit),
        candidates=candidates,
        centered=centered,
    )
    assert isinstance(results, tuple)  # the op has two results
    return _rows(*results)


def _limit(extent: Dim, most: Number | Dim) -> Dim:
    """No more than so many are kept of a class, whatever a run brings."""
    known = most.constant if isinstance(most, Value) else most
    if known is None or isinstance(known, Poly):
        return extent
    return dims.minimum(extent, max(int(np.asarray(known).reshape(())), 0))


def _how_many_count(scores: Value, threshold: Value) -> Dim:
    """The greatest number of candidates of a class."""
    by_class = build.reduce_sum((scores > threshold).cast("i64"), axes=(2,)).reshape(-1)
    first = build.concat(by_class, scores.graph.constant([0], "i64"), axis=0)  # there may be no class at all
    return measure(build.reduce_max(first, axes=(0,)), upper=scores.shape[2], name="candidates")


def _rows(picked: Value, counts: Value) -> Value:
    """Batch, class and box of what was kept, i64 [kept, 3]."""
    graph = picked.graph
    batch, classes, limit = picked.shape
    lists = dims.mul(batch, classes)
    by_list = counts.reshape(lists)
    total = measure(build.reduce_sum(by_list, axes=(0,)), upper=picked.type.size, name="kept")
    begins = build.cumsum(by_list, axis=0, exclusive=True)
    # a list begins where a running sum of ones grows; those that begin behind the last row are empty
    none = build.broadcast_to(graph.constant(0, "i64"), shape=(dims.add(total, 1),))
    ones = build.broadcast_to(graph.constant(1, "i64"), shape=(lists,))
    marks = build.scatter_nd(none, begins.reshape(-1, 1), ones, combine="add")
    last = build.maximum(_dim(graph, lists) - 1, 0)
    of = build.minimum(build.maximum(build.cumsum(marks, axis=0)[:total] - 1, 0), last)
    within = build.iota(graph, shape=(total,), dtype="i64") - build.gather(begins, of, axis=0)
    size = _dim(graph, picked.type.size)
    flat = build.minimum(build.maximum(of * _dim(graph, limit) + within, 0), build.maximum(size - 1, 0))
    box = build.gather(picked.reshape(picked.type.size), flat, axis=0).cast("i64")
    step = build.maximum(_dim(graph, classes), 1)
    return build.concat(*(column.reshape(-1, 1) for column in (build.div(of, step), build.mod(of, step), box)), axis=1)


def _dim(graph: Graph, dim: Dim) -> Value:
    """A dim as an i64 scalar."""
    if isinstance(dim, int):
        return graph.constant(np.int64(dim))
    return build.dims_tensor(graph, values=(dim,)).reshape(())


def _scalar(like: Value, number: Number, dtype: object) -> Value:
    value = number if isinstance(number, Value) else like.graph.constant(number)
    return value.cast(dtype).reshape(())


def _candidates(scores: Value, threshold: Value | None, k: Dim) -> tuple[Value, Value]:
    """Boxes in order of their scores, i64 [batch, classes, k], and whether each counts."""
    if threshold is None:
        results = call("top_k", scores, axis=2, k=k)
        assert isinstance(results, tuple)  # the op has two results
        return results[1], build.broadcast_to(scores.graph.constant(True), shape=results[1].shape)
    counts = scores > threshold
    results = call("top_k", build.select(counts, scores, -math.inf), axis=2, k=k)
    assert isinstance(results, tuple)
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
