"""Padded execution: one program for all sizes up to its own, whatever lies behind what a run brings.

`padded` makes of a graph one whose dims are sizes of arrays, with the sizes of the run as inputs (`ir.padding`). What
counts of its results is what the graph gives at the sizes of the run. Each op's rule is its own (`Op.padded`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from rlx.errors import ShapeError
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Constant, Input, Op, Param
from rlx.ir.padding import Axes, Body, NotPadded, Padded, Padding, grows
from rlx.ir.symbols import symbols_of
from rlx.passes.driver import Rebuild
from rlx.records import dataclass

Known = dict[Value, Padded]


@dataclass(frozen=True)
class PaddedGraph:
    """A graph that may run at larger sizes than its inputs have.

    graph     has the inputs of the original, with padding behind them, and then an i64 [] for each of `sizes`
    symbols   dims that may be larger; `reasons` tells of the others why not
    sizes     what the numbers are, in the order of their inputs: dims of the run
    axes      of each output: where along its axes is what counts
    """

    graph: Graph
    symbols: frozenset[str]
    sizes: tuple[Dim, ...]
    axes: tuple[Axes, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)


def padded(graph: Graph, symbols: Iterable[str]) -> PaddedGraph | None:
    """The graph with arrays that may be larger along these dims, or along as many of them as its nodes admit; None if
    that is none. `reasons_of` tells why."""
    return _tried(graph, symbols)[0]


def reasons_of(graph: Graph, symbols: Iterable[str]) -> dict[str, str]:
    """Of these dims those that a program must know, with the node for which that is so."""
    return _tried(graph, symbols)[1]


def _tried(graph: Graph, symbols: Iterable[str]) -> tuple[PaddedGraph | None, dict[str, str]]:
    reasons: dict[str, str] = {}
    left = frozenset(symbols)
    while left:
        try:
            body = _Builder(graph, left).run()
            return PaddedGraph(body.graph, left, body.sizes, tuple(x.axes for x in body.results), reasons), reasons
        except NotPadded as refusal:
            reasons.update(dict.fromkeys(left & refusal.symbols, str(refusal)))
            left -= refusal.symbols
    return None, reasons


def _body(region: Graph, symbols: frozenset[str], inputs: Sequence[Axes], sizes: Sequence[Dim]) -> Body:
    builder = _Builder(region, symbols, inputs)
    for dim in sizes:
        builder.padding.size(dim)
    return builder.run()


class _Builder:
    """One attempt for some dims.

    inputs   axes of the inputs, of a region; those of a graph have their padding behind what counts
    """

    def __init__(self, graph: Graph, symbols: frozenset[str], inputs: Sequence[Axes] = ()) -> None:
        self.graph = graph
        self.rebuild = Rebuild(graph)
        self.padding = Padding(self.rebuild.new, symbols, _body)
        self.inputs = dict(zip(graph.inputs, inputs))

    def run(self) -> Body:
        """The whole graph. Raises NotPadded."""
        known: Known = {}
        for node in self.graph.nodes:
            first = len(self.rebuild.new.nodes)
            if isinstance(node.op, (Input, Param, Constant)):
                results = self._leaf(node)
            elif not self.padding.is_open(*(d for v in node.inputs for d in v.shape)) and not self._speaks(node):
                self.rebuild.keep(node)
                results = tuple(self.padding.of(self.rebuild[v]) for v in node.outputs)
                known.update(zip(node.outputs, results))
                continue
            else:
                results = self._node(node, [known[v] for v in node.inputs])
                self.rebuild.replace(node, *(x.value for x in results), first=first)
            known.update(zip(node.outputs, results))
        results = tuple(known[value] for value in self.graph.outputs.values())
        return Body(self.rebuild.finish(), results, tuple(self.padding.sizes.values()))

    def _speaks(self, node: Node) -> bool:
        return bool(symbols_of(node) & self.padding.symbols)

    def _leaf(self, node: Node) -> tuple[Padded, ...]:
        self.padding.node = node
        leaf = self.padding.of(self.rebuild[Value(node, 0)])
        leaf = Padded(leaf.value, self.inputs.get(Value(node, 0), leaf.axes))
        if self.padding.is_open(*leaf.shape):
            if not isinstance(node.op, Input):
                self.padding.refuse(f"a {node.op.name} of {node.types[0]}", *leaf.shape)
            if node.name in self.graph.states:
                self.padding.refuse(f"a state of {node.types[0]} that is written in its place", *leaf.shape)
            self._check_grows(leaf)
        return (leaf,)

    def _node(self, node: Node, operands: list[Padded]) -> tuple[Padded, ...]:
        """The results of a node's rule, or of those of the nodes that it is defined by."""
        self.padding.node = node
        rule = node.op.padded
        try:
            found = rule(self.padding, *operands) if rule is not None else None
            if found is None:
                found = self._apart(node, operands)
        except ShapeError as error:
            self.padding.refuse(f"its padded form does not fit: {error}")
        results: tuple[Padded, ...] = found if isinstance(found, tuple) else (found,)
        self.padding.node = node
        for x, of in zip(results, node.types, strict=True):
            if x.value.type != of:
                self.padding.refuse(f"its padded form is {x.value.type}, not {of}")
            self._check_grows(x)
        return results

    def _apart(self, node: Node, operands: list[Padded]) -> tuple[Padded, ...]:
        op: Op = node.op
        if not op.is_composite:
            self.padding.refuse("no rule for padding")
        inner = Graph(node.name, True)
        leaves = [inner.input(f"operand.{i}", v.shape, v.dtype) for i, v in enumerate(node.inputs)]
        found = op.decompose(*leaves)  # type: ignore[attr-defined]  # a composite
        known: Known = dict(zip(leaves, operands))
        for each in inner.nodes[len(leaves) :]:
            each.source = node.source or node.name
            if isinstance(each.op, Constant):
                known[Value(each, 0)] = self.padding.of(self.rebuild.new.constant(each.op.value.array))
            else:
                known.update(zip(each.outputs, self._node(each, [known[v] for v in each.inputs])))
        return tuple(known[v] for v in (found if isinstance(found, tuple) else (found,)))

    def _check_grows(self, x: Padded) -> None:
        """Raises NotPadded for an axis that need not be longer where its dims are larger."""
        for parts in x.axes:
            for dim in parts:
                if self.padding.is_open(dim) and not grows(dim, self.padding.symbols):
                    self.padding.refuse(f"an axis of {dim}, which may shrink where its dims grow", dim)
