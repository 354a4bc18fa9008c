"""Checks on the data of a run, as one more output of the graph: numbers that the runtime inspects after the run.

An op declares the range [low, high) of its indices, lengths and so on (`Op.ranges`). If intervals do not prove that
they lie in it, ordinary ops that every backend has compute the maximum of n - low over all numbers n, as an unsigned
number. It is below high - low if all are in range, and otherwise identifies one that is not. Bodies of loops and
conditionals are checked too: a loop carries the maximum of all trips, and a branch that is not taken gives 0.
Data-dependent loops count their trips, those of a whole run together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.errors import GraphError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.check import Check, Violation
from rlx.ir.dim import Bounds, Dim
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Input, Range
from rlx.ir.type import TensorType
from rlx.ops import build
from rlx.ops.control import If, Scan, While
from rlx.ops.precondition import Require
from rlx.ops.shape import BroadcastTo, DimsTensor, Reshape
from rlx.passes.driver import Rebuild
from rlx.passes.intervals import NOTHING, Interval, Intervals, with_elements
from rlx.records import dataclass

OUTPUT = "rlx.checks"
TRIPS = TensorType((), dtypes.i64)
NAMED = 4  # loops that an error lists


@dataclass(frozen=True)
class Checked:
    """A graph whose last output, u64, has a number for each check; the graph as it was where there is none.

    pieces   values of one axis that are that output one behind the other
    """

    graph: Graph
    checks: tuple[Check, ...]
    pieces: tuple[Value, ...] = ()


def add_checks(graph: Graph, indices: bool, most_trips: int) -> Checked:
    """The graph with the output that its checks need, and without `require`.

    indices     whether indices are looked at; if not, only what `require` says, and trips
    most_trips  that loops may take which data end

    Raises GraphError for a constant index that is out of range wherever the graph runs.
    """
    if not any(_concerned(node, indices) for node in graph.nodes):
        return Checked(graph, ())
    body = _Body(graph, Intervals(graph.bounds), indices, most_trips)
    body.run()
    names = [_source(node) for node in _loops(graph)]
    if body.trips is not None:
        loop_names = " or ".join(names[:NAMED]) + (" or another" if len(names) > NAMED else "")
        words = Violation("while", "trips (RLX_LOOP_TRIPS)", loop_names)
        body.add(Check(0, most_trips + 1, words), body.trips)
    return body.finish()


def _source(node: Node) -> str:
    return node.source or node.name


def _concerned(node: Node, indices: bool) -> bool:
    if isinstance(node.op, Require) or _is_counted(node):
        return True
    if indices and node.op.ranges(*(v.type for v in node.inputs)):
        return True
    return any(_concerned(inner, indices) for region in node.regions for inner in region.nodes)


def _is_counted(node: Node) -> bool:
    return isinstance(node.op, While) and node.op.limit is None


def _loops(graph: Graph) -> Iterable[Node]:
    """Loops that data end, at any depth."""
    for node in graph.nodes:
        if _is_counted(node):
            yield node
        for region in node.regions:
            yield from _loops(region)


class _Body:
    """The graph, or one of a region, as it gets checks.

    owner    the source of the node whose region it is; empty for the whole graph
    pieces   values of the new graph, u64 of one axis, that together are its vector of numbers
    trips    trips that loops took so far, i64 []; None while there are none
    """

    def __init__(self, graph: Graph, intervals: Intervals, indices: bool, most_trips: int, owner: str = "") -> None:
        self.graph = graph
        self.intervals = intervals
        self.indices = indices
        self.most_trips = most_trips
        self.owner = owner
        self.rebuild = Rebuild(graph)
        self.new = self.rebuild.new
        self.checks: list[Check] = []
        self.pieces: list[Value] = []
        self.trips: Value | None = None
        self.extra: list[Value] = []
        self.looked: set[tuple[object, Range]] = set()

    def run(self) -> None:
        for node in self.graph.nodes:
            if self.indices or isinstance(node.op, Require):
                for limit in node.op.ranges(*(v.type for v in node.inputs)):
                    self._look(node, limit)
            if isinstance(node.op, Require):
                self.rebuild.replace(node, self.rebuild[node.inputs[0]], first=len(self.new.nodes))
            elif node.regions:
                self._control(node)
            else:
                self.rebuild.keep(node)

    def finish(self) -> Checked:
        """The new graph, with the numbers behind its outputs."""
        finished = self.rebuild.finish() if not self.checks else self._with_outputs([self.vector()])
        return Checked(finished, tuple(self.checks), tuple(self.pieces))

    def _with_outputs(self, more: Sequence[Value], at: int | None = None) -> Graph:
        """The new graph with more outputs: behind its own, or from number `at` on."""
        own = [(name, self.rebuild[value]) for name, value in self.graph.outputs.items()]
        position = len(own) if at is None else at
        used = set(self.graph.outputs)
        extra_outputs = []
        for i, value in enumerate(more):
            name = f"{OUTPUT}.{i}"
            while name in used:
                name += "_"
            extra_outputs.append((name, value))
        self.new.outputs = dict([*own[:position], *extra_outputs, *own[position:]])
        self.new.prune()
        copied = {id(v.node) for v in self.rebuild.values}
        for node in self.new.nodes:
            if id(node) not in copied and node.source is None:
                node.source = self.owner or self.checks[-1].words.source
        return self.new

    # numbers

    def add(self, check: Check, number: Value) -> None:
        """A check of one number of the new graph."""
        self.checks.append(check)
        self.pieces.append(number.reshape((1,)).cast("u64"))

    def vector(self, before: int = 0, behind: int = 0) -> Value:
        """All numbers so far, u64 [checks], with zeros for checks of others before and behind them."""
        parts = [*[self.nothing(before)] * bool(before), *self.pieces, *[self.nothing(behind)] * bool(behind)]
        return parts[0] if len(parts) == 1 else build.concat(*parts, axis=0)

    def nothing(self, count: int) -> Value:
        return self.new.constant(np.zeros(count, np.uint64))

    def _look(self, node: Node, limit: Range) -> None:
        """A check of an operand's numbers, unless they are known to be in range."""
        value = node.inputs[limit.operand]
        same = (_said(value), dataclasses.replace(limit, operand=0, what=""))
        if same in self.looked or self._is_inside(value, limit):
            return
        self.looked.add(same)
        label = node.op.label if isinstance(node.op, Require) else node.op.name
        check = Check(limit.low, limit.high, Violation(label, limit.what, _source(node)))
        if not self.owner:
            check = dataclasses.replace(check, count=value.type.size)
        self._refuse_constant(value, limit, check)
        first = len(self.new.nodes)
        numbers = self.rebuild[value]
        if limit.component is not None:
            numbers = numbers[..., limit.component]
        if numbers.dtype is dtypes.u64:  # its upper half would be negative
            numbers = build.minimum(numbers, self.new.constant(np.uint64(np.iinfo(np.int64).max)))
        flat = self._shifted(numbers.reshape((numbers.type.size,)).cast("i64"), limit.low).cast("u64")
        self.checks.append(check)
        self.pieces.append(flat if flat.shape == (1,) else build.reduce_max(flat, axes=(0,), keepdims=True))
        for added in self.new.nodes[first:]:
            added.source = _source(node)

    def _shifted(self, numbers: Value, low: Dim) -> Value:
        """n - low, which may wrap."""
        if low == 0:
            return numbers
        if isinstance(low, int):
            return build.sub(numbers, low)
        return numbers + build.dims_tensor(self.new, values=(dims.mul(low, -1),), dtype="i64")

    def _is_inside(self, value: Value, limit: Range) -> bool:
        if value.type.size == 0:
            return True
        intervals, place = self.intervals, limit.component
        known = intervals.of(value) if place is None else intervals.of_component(value, place)
        return known.inside(limit.low, limit.high, with_elements(value, intervals.bounds))

    def _refuse_constant(self, value: Value, limit: Range, check: Check) -> None:
        """Raises GraphError for what the model itself gets wrong, where it surely runs."""
        array = value.constant
        if array is None or self.owner or not (isinstance(limit.low, int) and isinstance(limit.high, int)):
            return
        part = array if limit.component is None else array[..., limit.component]
        for number in (int(part.max()), int(part.min())):
            if not limit.low <= number < limit.high:
                raise GraphError(str(check.words.error(limit.low, limit.high, number)))

    # control flow

    def _control(self, node: Node) -> None:
        counts = any(True for region in node.regions for _ in _loops(region)) or _is_counted(node)
        if counts and self.trips is None:
            self.trips = self.new.constant(np.int64(0))
        bodies = [self._region(node, region, counts) for region in node.regions]
        match node.op:
            case If():
                extended = self._if(node, bodies)
            case Scan():
                extended = self._scan(node, node.op, bodies[0])
            case While():
                extended = self._while(node, node.op, *bodies)
            case _:
                raise GraphError(f"[{node.op.name}] expected if, scan or while, at node {_source(node)!r}")
        if extended is None:
            self.rebuild.keep(node, tuple(body.rebuild.finish() for body in bodies))

    def _region(self, node: Node, region: Graph, counts: bool) -> _Body:
        body = _Body(region, Intervals(_joined(self.intervals.bounds, region.bounds), self._known(node, region)),
                     self.indices, self.most_trips, _source(node))  # fmt: skip
        if counts:
            body.trips = body.input("rlx.trips", TRIPS)
        body.run()
        return body

    def _known(self, node: Node, region: Graph) -> dict[Value, Interval]:
        """What is known of a region's inputs: what is of operands that do not change, and of sequences."""
        op: Any = node.op
        operands = node.inputs[1:] if isinstance(op, If) else node.inputs
        fixed = 0 if isinstance(op, If) else op.carried
        return {
            inner: self.intervals.of(outer) if i >= fixed and _is_integer(outer) else NOTHING
            for i, (inner, outer) in enumerate(zip(region.inputs, operands))
        }

    def input(self, name: str, of: TensorType) -> Value:
        """One more input, under a name that is free. `order` puts it where it belongs."""
        value = self.new.add(Input(of), name=name)
        assert isinstance(value, Value)  # an input has one result
        self.extra.append(value)
        return value

    def order(self, at: int) -> None:
        """Puts inputs that were added before number `at` of those that there were."""
        extra_ids = {id(v.node) for v in self.extra}
        own = [v for v in self.new.inputs if id(v.node) not in extra_ids]
        ordered = [v.node for v in (*own[:at], *self.extra, *own[at:])]
        first = {id(n) for n in ordered}
        self.new.nodes[:] = [*ordered, *(n for n in self.new.nodes if id(n) not in first)]

    def _if(self, node: Node, bodies: list[_Body]) -> bool | None:
        yes, no = bodies
        count = len(yes.checks) + len(no.checks)
        if not count and yes.trips is None:
            return None
        regions = []
        for body in bodies:
            more: list[Value] = []
            if count:
                before, behind = (0, len(no.checks)) if body is yes else (len(yes.checks), 0)
                more.append(body.vector(before, behind))
            if body.trips is not None:
                more.append(body.trips)
            body.order(len(body.graph.inputs))
            regions.append(body._with_outputs(more))
        self._put(node, node.op, [self.rebuild[v] for v in node.inputs], regions, len(node.inputs), len(node.types),
                  [*yes.checks, *no.checks], trips=yes.trips is not None, vector=None)  # fmt: skip
        return True

    def _scan(self, node: Node, op: Scan, body: _Body) -> bool | None:
        if not body.checks and body.trips is None:
            return None
        self._loop(node, op, [body.carry(op.carried)], body)
        return True

    def _loop(self, node: Node, op: Scan | While, regions: Sequence[Graph], body: _Body) -> None:
        """The loop with more carried values."""
        carried = op.carried + bool(body.checks) + (body.trips is not None)
        extended = dataclasses.replace(op, carried=carried)
        operands = [self.rebuild[v] for v in node.inputs]
        vector = self.nothing(len(body.checks))
        self._put(
            node, extended, operands, regions, op.carried, op.carried, body.checks, body.trips is not None, vector
        )

    def _while(self, node: Node, op: While, test: _Body, body: _Body) -> bool | None:
        """The condition is asked before every trip, and whether trips are left."""
        if not body.checks and body.trips is None:
            return None
        if body.trips is not None and _is_counted(node):
            body.trips = body.trips + 1
        extended = body.carry(op.carried)
        if test.trips is not None:
            within_limit = build.le(test.trips, self.most_trips)
            (going,) = test.graph.outputs.values()
            both = build.bitwise_and(test.rebuild[going], within_limit)
            both.node.source = _source(node)
            test.rebuild.put(going, both)
        if body.checks:
            test.input("rlx.checks", TensorType((len(body.checks),), dtypes.u64))
            test.extra.insert(0, test.extra.pop())
        test.order(op.carried)
        self._loop(node, op, [test._with_outputs([]), extended], body)
        return True

    def carry(self, at: int) -> Graph:
        """The body of a loop that carries on the greatest numbers, and trips, behind `at` values of its own."""
        more: list[Value] = []
        if self.checks:
            vector = self.vector()
            before = self.input("rlx.checks", vector.type)
            self.extra.insert(0, self.extra.pop())
            more.append(build.maximum(before, vector))
        if self.trips is not None:
            more.append(self.trips)
        self.order(at)
        return self._with_outputs(more, at)

    def _put(
        self, node: Node, op: Any, operands: list[Value], regions: Sequence[Graph], operand_at: int, result_at: int,
        checks: Sequence[Check], trips: bool, vector: Value | None,
    ) -> None:  # fmt: skip
        """The node with more operands and results: the vector of its checks, and trips, if it has any."""
        more = [vector] if vector is not None and checks else []
        if trips:
            assert self.trips is not None  # `_control` has made it
            more.append(self.trips)
        operands = [*operands[:operand_at], *more, *operands[operand_at:]]
        first = len(self.new.nodes)
        outputs = self.new.add(op, *operands, source=node.source, regions=regions)
        results = list(outputs) if isinstance(outputs, tuple) else [outputs]
        count = bool(checks) + trips
        extra = results[result_at : result_at + count]
        del results[result_at : result_at + count]
        if results:
            self.rebuild.replace(node, *results, first=first)
        if checks:
            self.checks += checks
            self.pieces.append(extra.pop(0))
        if trips:
            self.trips = extra.pop(0)


def _said(value: Value) -> object:
    """What is the same of values that surely are: where a decoder writes to its caches, each layer says anew."""
    while isinstance(value.op, (Reshape, BroadcastTo)):
        value = value.node.inputs[0]
    return (value.op, value.type) if isinstance(value.op, DimsTensor) else (id(value.node), value.index)


def _is_integer(value: Value) -> bool:
    return value.dtype.kind in ("int", "uint", "bool")


def _joined(a: Bounds, b: Bounds) -> Bounds:
    bounds: Mapping[str, tuple[int, int | None]] = {**a, **b}
    return bounds
