"""Control flow. A region is a graph of its own: its inputs take the operands by position, its outputs are results.

A region sees nothing of the enclosing graph except the operands that it is given, and params by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlx.errors import GraphError, ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.op import Cost, Primitive, op
from rlx.ir.padding import Axes, Body, Padded, Padding
from rlx.ir.type import TensorType
from rlx.ops import build

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

Array = np.ndarray[Any, Any]
Regions = tuple["Graph", ...]


class Run(Protocol):
    """A region as `reference` gets it: a call runs it; `outputs` are the types of what it gives."""

    outputs: tuple[TensorType, ...]

    def __call__(self, *operands: Array) -> list[Array]: ...


def _types(values: Any) -> tuple[TensorType, ...]:
    return tuple(v.type for v in values)


def _same_types(have: tuple[TensorType, ...], expected: tuple[TensorType, ...], what: str) -> None:
    """Types must be equal but for dims that may prove equal at run time. Raises ShapeError, DTypeError."""
    if len(have) != len(expected):
        raise GraphError(f"expected {len(expected)} {what}, got {len(have)}")
    for i, (a, b) in enumerate(zip(have, expected)):
        expect.same_dtype(a, b)
        if a.rank != b.rank:
            raise ShapeError(f"expected {what} {i} to be {b}, got {a}")
        for left, right in zip(a.shape, b.shape):
            expect.same_dim(left, right, f"expected {what} {i} to be {b}, got {a}")


def _known(of: TensorType) -> tuple[int, ...]:
    return tuple(dims.evaluate(d, {}) for d in of.shape)


class Control(Primitive):
    """An op with regions. Its cost is that of one pass through each of them."""

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        nbytes = sum((dims.mul(t.size, t.dtype.itemsize) for t in (*inputs, *outputs)), start=0)
        return Cost(bytes=nbytes)


@op
class If(Control):
    """The results of the first region where the predicate holds, else those of the second.

    predicate  bool []
    operands   what both regions take, in order

    Dims that a region took to be equal are checked when it is the one that runs.
    """

    regions = 2
    may_skip_regions = True

    def infer(self, predicate: TensorType, *operands: TensorType, regions: Regions) -> tuple[TensorType, ...]:
        expect.kind(predicate, "bool", name="predicate")
        expect.rank(predicate, 0, "predicate", at_most=0)
        for region in regions:
            _same_types(_types(region.inputs), operands, "inputs of a region")
        yes, no = (_types(region.outputs.values()) for region in regions)
        _same_types(no, yes, "outputs of the second region")
        return yes

    def reference(self, predicate: Array, *operands: Array, regions: tuple[Run, ...]) -> tuple[Array, ...]:
        return tuple(regions[0 if predicate else 1](*operands))

    def padded(self, padding: Padding, predicate: Padded, *operands: Padded) -> tuple[Padded, ...]:
        bodies = padding.bodies([x.axes for x in operands])
        axes = [tuple(map(padding.same, a.axes, b.axes)) for a, b in zip(*(body.results for body in bodies))]
        return _built(padding, self, [predicate, *operands], bodies, axes)


@op
class While(Control):
    """Runs the second region on the carried values for as long as the first says so; at most `limit` times.

    operands   the `carried` first ones change from trip to trip, the rest stay
    regions    condition: all operands → bool []; body: all operands → the carried values
    results    the carried values after the last trip
    """

    carried: int
    limit: int | None = None
    regions = 2

    def infer(self, *operands: TensorType, regions: Regions) -> tuple[TensorType, ...]:
        if not 0 <= self.carried <= len(operands):
            raise GraphError(f"expected carried in [0, {len(operands)}], got {self.carried}")
        for region in regions:
            _same_types(_types(region.inputs), operands, "inputs of a region")
        condition, body = (_types(region.outputs.values()) for region in regions)
        _same_types(condition, (TensorType((), dtypes.bool_),), "outputs of the condition")
        _same_types(body, operands[: self.carried], "outputs of the body")
        return operands[: self.carried]

    def reference(self, *operands: Array, regions: tuple[Run, ...]) -> tuple[Array, ...]:
        state, rest = list(operands[: self.carried]), operands[self.carried :]
        trips = 0
        while (self.limit is None or trips < self.limit) and regions[0](*state, *rest)[0]:
            state = regions[1](*state, *rest)
            trips += 1
        return tuple(state)

    def padded(self, padding: Padding, *operands: Padded) -> tuple[Padded, ...]:
        carried, rest = operands[: self.carried], operands[self.carried :]
        bodies = padding.settled(carried, [x.axes for x in rest], 1)
        return _built(padding, self, operands, bodies, [x.axes for x in bodies[1].results])


@op
class Scan(Control):
    """Runs its region once for every element along axis 0 of the sequences, carrying values on.

    operands   `carried` values, then `sequences` arrays [length, ...], then values that stay
    region     carried values, one element of each sequence, the values that stay → carried values, step results
    results    the carried values after the last step, then every step result stacked, [length, ...]

    reverse    goes from the last element to the first; stacked results keep the order of the sequences
    """

    carried: int
    sequences: int
    length: Dim
    reverse: bool = False
    regions = 1

    def infer(self, *operands: TensorType, regions: Regions) -> tuple[TensorType, ...]:
        first, last = self.carried, self.carried + self.sequences
        if min(self.carried, self.sequences) < 0 or last > len(operands):
            raise GraphError(f"expected at least {last} operands, got {len(operands)}")
        for of in operands[first:last]:
            expect.rank(of, 1, "a sequence")
            expect.same_dim(of.shape[0], self.length, f"expected a sequence of {self.length}, got {of}")
        steps = tuple(of.with_shape(of.shape[1:]) for of in operands[first:last])
        _same_types(_types(regions[0].inputs), (*operands[:first], *steps, *operands[last:]), "inputs of the region")
        results = _types(regions[0].outputs.values())
        if len(results) < self.carried:
            raise GraphError(f"expected the region to give {self.carried} carried values, got {len(results)}")
        _same_types(results[:first], operands[:first], "carried outputs")
        return (*operands[:first], *(of.with_shape((self.length, *of.shape)) for of in results[first:]))

    def reference(self, *operands: Array, regions: tuple[Run, ...]) -> tuple[Array, ...]:
        first, last = self.carried, self.carried + self.sequences
        state, stacked = list(operands[:first]), list[list[Array]]()
        length = dims.evaluate(self.length, {})
        for step in range(length)[:: -1 if self.reverse else 1]:
            results = regions[0](*state, *(of[step] for of in operands[first:last]), *operands[last:])
            state = results[:first]
            stacked.append(results[first:])
        if self.reverse:
            stacked.reverse()
        if not stacked:
            nothing = [np.zeros((0, *_known(of)), of.dtype.numpy) for of in regions[0].outputs[first:]]
            return (*state, *nothing)
        return (*state, *(np.stack(parts) for parts in zip(*stacked)))

    def padded(self, padding: Padding, *operands: Padded) -> tuple[Padded, ...]:
        """Trips that do not count leave carried values as they are."""
        first, last = self.carried, self.carried + self.sequences
        carried, rest = operands[:first], operands[last:]
        sequences = [padding.in_front(x, 0) for x in operands[first:last]]
        others = [*(x.axes[1:] for x in sequences), *(x.axes for x in rest)]
        (body,) = padding.settled(carried, others, 0, self.length)
        axes = [x.axes if i < first else ((self.length,), *x.axes) for i, x in enumerate(body.results)]
        if not padding.is_open(self.length):
            return _built(padding, self, [*carried, *sequences, *rest], [body], axes)
        trips = build.iota(padding.graph, shape=(self.length,), dtype="i64")
        _keep_idle(body, self, last)
        given = [*carried, *sequences, padding.of(trips), *rest]
        return _built(padding, dataclasses.replace(self, sequences=self.sequences + 1), given, [body], axes)


def _keep_idle(body: Body, scan: Scan, at: int) -> None:
    """Lets the body take the number of its trip as input `at`, and keep what is carried in trips that do not count."""
    graph = body.graph
    before = graph.inputs
    trip = graph.input("rlx.trip", (), "i64")
    counts = build.lt(trip, before[len(before) - len(body.sizes) + body.sizes.index(scan.length)])
    for (name, value), old in zip(list(graph.outputs.items())[: scan.carried], before):
        graph.outputs[name] = build.select(counts, value, old)
    inputs = [value.node for value in (*before[:at], trip, *before[at:])]
    known = {id(node) for node in inputs}
    graph.nodes[:] = [*inputs, *(node for node in graph.nodes if id(node) not in known)]


def _built(
    padding: Padding, control: Control, operands: Sequence[Padded], bodies: Sequence[Body], axes: Sequence[Axes]
) -> tuple[Padded, ...]:
    """The node, whose regions take sizes behind their operands; `axes` of its results."""
    values = [*(x.value for x in operands), *(padding.size(d) for d in bodies[0].sizes)]
    results = padding.graph.add(control, *values, regions=[body.graph for body in bodies])
    assert isinstance(results, tuple)  # as those of all control flow
    return tuple(Padded(value, of) for value, of in zip(results, axes))
