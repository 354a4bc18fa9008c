"""Ops that replace a part of an array. On the value of a state, they are all that a run writes."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import expect
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Composite, Cost, Range, State, op
from rlx.ir.padding import Padded, Padding
from rlx.ir.type import TensorType
from rlx.ops import build
from rlx.ops.index import ScatterElements, ScatterNd

Array = np.ndarray[Any, Any]


@op
class UpdateSlice(Composite):
    """x with `rows` in the place of its own, from position `start` along `axis` on.

    x      [..., n, ...]
    rows   like x, but for the extent along `axis`
    start  int [], with 0 ≤ start ≤ n - extent of rows; without checks x stays as it is where that does not hold
    """

    axis: int = 0

    def infer(self, x: TensorType, rows: TensorType, start: TensorType) -> TensorType:
        expect.same_dtype(x, rows)
        expect.rank(x, 1)
        expect.rank(rows, x.rank, "rows", at_most=x.rank)
        expect.integer(start, "start")
        expect.rank(start, 0, "start", at_most=0)
        at = expect.axis(self.axis, x.rank)
        for i, (whole, part) in enumerate(zip(x.shape, rows.shape)):
            if i != at:
                expect.same_dim(part, whole, f"expected rows like x but for axis {at}, got {rows} and {x}")
        room = dims.bounds(dims.add(x.shape[at], dims.mul(rows.shape[at], -1)), {})[1]
        if room is not None and room < 0:
            raise ShapeError(f"expected rows that x has room for along axis {at}, got {rows} and {x}")
        return x

    def ranges(self, x: TensorType, rows: TensorType, start: TensorType) -> tuple[Range, ...]:
        return (Range(2, 0, dims.add(self._room(x, rows), 1), "starts"),)

    def _room(self, x: TensorType, rows: TensorType) -> dims.Dim:
        """The last start that there is room for."""
        return dims.add(x.shape[self.axis], dims.mul(rows.shape[self.axis], -1))

    def reference(self, x: Array, rows: Array, start: Array) -> Array:
        out = np.array(x)
        first, count = int(start), rows.shape[self.axis]
        if 0 <= first <= x.shape[self.axis] - count:
            np.moveaxis(out, self.axis, 0)[first : first + count] = np.moveaxis(rows, self.axis, 0)
        return out

    def padded(self, padding: Padding, x: Padded, rows: Padded, start: Padded) -> Padded | None:
        """Where there is no room for the rows in what counts, they do not count."""
        at = self.axis % len(x.axes)
        x = padding.in_front(x, at)
        extent, count = x.shape[at], rows.shape[at]
        if padding.is_open(count):
            return None  # all rows would be written
        axes = [padding.same(mine, whole) for mine, whole in zip(rows.axes, x.axes)]
        axes[at] = (extent,)
        first = start.value.cast("i64")
        if padding.is_open(extent):
            room = padding.size(dims.add(extent, dims.mul(count, -1)))
            first = build.select(build.le(first, room), first, -1)
        return Padded(padding.build(self, x.value, rows.value, first), tuple(axes))

    def decompose(self, x: Value, rows: Value, start: Value) -> Value:
        """A scatter whose places lie outside, which drops them, where there is no room."""
        graph, at = x.graph, self.axis % x.rank
        room = build.dims_tensor(graph, values=(self._room(x.type, rows.type),)).reshape(())
        first = start.cast("i64")
        fits = build.bitwise_and(build.le(0, first), build.le(first, room))
        outside = build.dims_tensor(graph, values=(x.shape[at],)).reshape(())
        count = build.iota(graph, shape=(rows.shape[at],), dtype="i64", axis=0)
        shape = tuple(d if i == at else 1 for i, d in enumerate(rows.shape))
        places = (build.select(fits, first, outside) + count).reshape(shape)
        return build.scatter_elements(x, build.broadcast_to(places, shape=rows.shape), rows, axis=at, distinct=True)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        whole, rows = (dims.mul(of.size, 2 * of.dtype.itemsize) for of in inputs[:2])
        return Cost(bytes=dims.add(whole, rows))


UPDATES = (UpdateSlice, ScatterElements, ScatterNd)
"""Ops whose result is their first operand but for a part."""


def written_in_place(graph: Graph) -> dict[str, list[Node]]:
    """Of the states that become themselves with parts written anew: the nodes that write, in order.

    Only those of which nothing else takes what is written over, so that no reader can come too late.
    """
    writers_of: dict[str, list[Node]] = {}
    for name, output in graph.states.items():
        value, writers = graph.outputs[output], list[Node]()
        while isinstance(value.op, UPDATES):
            writers.insert(0, value.node)
            value = value.node.inputs[0]
        is_own = isinstance(value.op, State) and value.name == name
        if is_own and all(graph.use_count(node.inputs[0]) == 1 for node in writers):
            writers_of[name] = writers
    return writers_of
