"""Cuts a graph with measured dims into stages: graphs without such nodes, which run one after the other.

A stage knows the dims that earlier ones measured. What depends on no measured dim is the first stage, what depends on
dims of the first is the second, and so on. The number of stages is the length of the longest chain of such dims, not
their number. Products by experts that a device holds in part are cut out in the same way: a stage gives their operands,
and the next one knows their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from rlx.errors import UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir.dim import Dim, Poly
from rlx.ir.expect import Equality
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import LEAVES, Constant, Elementwise, Input, Measured, Param
from rlx.ir.symbols import has_measured, symbols_of, symbols_within
from rlx.ops import build
from rlx.ops.shape import BroadcastTo, Reshape, Slice, Transpose
from rlx.passes.held_experts import is_held
from rlx.records import dataclass


@dataclass
class Stage:
    """A part of the graph, as a graph of its own.

    takes      the values of the whole graph that its inputs are, in their order
    gives      those that its outputs are
    measures   nodes whose numbers are known when it has run
    products   nodes of held experts whose operands are known then; they run before the next stage
    checks     equalities of dims that must hold before it runs
    drops      values that no later stage takes
    """

    graph: Graph
    takes: list[Value] = field(default_factory=list)
    gives: list[Value] = field(default_factory=list)
    measures: list[Node] = field(default_factory=list)
    products: list[Node] = field(default_factory=list)
    checks: list[Equality] = field(default_factory=list)
    drops: list[Value] = field(default_factory=list)


def cut(graph: Graph, held: Mapping[str, int] | None = None) -> list[Stage]:
    """The stages of a graph, in order, with products by weights that are `held` between them. Raises UnsupportedOp for
    dims that a conditional or a loop measures."""
    for node in graph.nodes:
        if any(map(has_measured, node.regions)):
            name = node.source or node.name
            raise UnsupportedOp(f"[measured] expected dims measured outside of {node.op.name}, got some at {name!r}")
    return _Cutter(graph, held or {}).run()


class _Cutter:
    def __init__(self, graph: Graph, held: Mapping[str, int]) -> None:
        self.graph = graph
        self.products = {id(node) for node in graph.nodes if is_held(node, held)}
        self.free: set[int] = set()  # nodes that hang on constants, params and dims alone: each stage has its own
        self.level: dict[int, int] = {}
        self.level_of_symbol: dict[str, int] = {}

    def run(self) -> list[Stage]:
        needed = self.graph.needed()
        nodes = [node for node in self.graph.nodes if id(node) in needed]
        for node in nodes:
            self._place(node)
        self._sink(nodes)
        count = 1 + max([0, *self.level.values(), *self.level_of_symbol.values()])
        builders = [_Builder(self, number) for number in range(count)]
        for node in nodes:
            runs = id(node) not in self.free and id(node) not in self.products
            if runs and not isinstance(node.op, (*LEAVES, Measured)):
                builders[self.level[id(node)]].value(Value(node, 0))
        self._finish(builders, nodes)
        return [builder.stage for builder in builders]

    def _place(self, node: Node) -> None:
        symbols = [self.level_of_symbol.get(name, 0) for name in symbols_of(node) - _own(node)]
        self.level[id(node)] = max([0, *symbols, *(self.level_of(v) for v in node.inputs)])
        if isinstance(node.op, Measured):
            self.level_of_symbol[node.op.symbol] = self.level[id(node)] + 1
        elif isinstance(node.op, (Param, Constant)) or (
            not isinstance(node.op, Input)
            and id(node) not in self.products
            and all(id(v.node) in self.free for v in node.inputs)
        ):
            self.free.add(id(node))

    def level_of(self, value: Value) -> int:
        """The first stage that can have the value."""
        return self.level[id(value.node)] + (isinstance(value.op, Measured) or id(value.node) in self.products)

    def _sink(self, nodes: list[Node]) -> None:
        """What is light and hangs on inputs alone moves to its users where all of them come later: a stage can then
        do both in one kernel, and nothing is handed over but what the caller brought."""
        light: set[int] = set()
        for node in nodes:
            inputs = [v for v in node.inputs if id(v.node) not in self.free]
            if len(inputs) != 1 or not isinstance(node.op, (Elementwise, BroadcastTo, Reshape, Slice, Transpose)):
                continue
            if isinstance(inputs[0].op, Input) or id(inputs[0].node) in light:
                light.add(id(node))
        outputs = {id(v.node) for v in self.graph.outputs.values()}
        for node in reversed(nodes):
            uses = [user for value in node.outputs for user in self.graph.uses(value)]
            users = [self.level[id(user)] for user in uses if id(user) in self.level]  # others no output needs
            if id(node) in light and id(node) not in outputs and users:
                self.level[id(node)] = max(self.level[id(node)], min(users))

    def _finish(self, builders: list[_Builder], nodes: list[Node]) -> None:
        """Numbers that are measured, outputs, and what crosses from stage to stage."""
        for node in nodes:
            if isinstance(node.op, Measured):
                stage = builders[self.level[id(node)]]
                stage.value(node.inputs[0])
                stage.stage.measures.append(node)
        last: dict[Value, int] = {}
        for node in nodes:
            if id(node) in self.products:
                number = self.level[id(node)]
                builders[number].stage.products.append(node)
                for value in (node.inputs[0], node.inputs[2]):
                    last[value] = max(number, last.get(value, 0))
                    if not isinstance(value.op, Input):
                        self._give(builders, value)
        for value in self.graph.outputs.values():
            self._give(builders, value)
            last[value] = len(builders)
        for number, builder in enumerate(builders):
            for node in builder.stage.measures:
                builder.give(node.inputs[0])
            for value in builder.stage.takes:
                last[value] = max(number, last.get(value, 0))
                if not isinstance(value.op, Input):
                    self._give(builders, value)
        for value, number in last.items():
            if number < len(builders):
                builders[number].stage.drops.append(value)
        for builder in builders:
            builder.finish()

    def _give(self, builders: list[_Builder], value: Value) -> None:
        """Has the first stage with the value give it; what products give is nobody else's."""
        if id(value.node) not in self.products:
            builders[self.level_of(value)].give(value)


def _own(node: Node) -> set[str]:
    return {node.op.symbol} if isinstance(node.op, Measured) else set()


class _Builder:
    """The graph of one stage as it grows."""

    def __init__(self, cutter: _Cutter, number: int) -> None:
        self.cutter = cutter
        self.number = number
        self.graph = cutter.graph.like()
        self.graph.name = f"{cutter.graph.name}.{number}"
        self.graph.states = {}  # they become outputs of some stage, which the runtime takes
        self.graph.data = {}
        self.stage = Stage(self.graph)
        self.map: dict[Value, Value] = {}

    def value(self, value: Value) -> Value:
        """The value here: computed in this stage, or handed over by what ran earlier."""
        stack = [value]
        while stack:
            top = stack[-1]
            if top in self.map:
                stack.pop()
            elif isinstance(top.op, Measured):
                tensor = build.dims_tensor(self.graph, values=(dims.symbol(top.op.symbol),))
                self.map[top] = tensor.reshape(())
            elif isinstance(top.op, Input) or (id(top.node) not in self.cutter.free and self._is_earlier(top)):
                self.map[top] = self._taken(top)
                self.stage.takes.append(top)
            else:
                missing = [v for v in top.node.inputs if v not in self.map]
                stack.extend(missing)
                if not missing:
                    node = self.graph.adopt(top.node, tuple(self.map[v] for v in top.node.inputs))
                    self.map.update((old, Value(node, old.index)) for old in top.node.outputs)
        return self.map[value]

    def _is_earlier(self, value: Value) -> bool:
        return self.cutter.level[id(value.node)] < self.number

    def _taken(self, value: Value) -> Value:
        if isinstance(value.op, Input):
            return Value(self.graph.adopt(value.node, ()), 0)
        symbol = self.graph.add(Input(value.type), name=value.name)
        assert isinstance(symbol, Value)  # an input has one result
        return symbol

    def give(self, value: Value) -> None:
        if value not in self.stage.gives:
            self.graph.output(self.value(value), name=f"{value.name}.{len(self.stage.gives)}")
            self.stage.gives.append(value)

    def finish(self) -> None:
        """Bounds, dims and equalities: those that are known by now."""
        graph, cutter = self.graph, self.cutter
        known = {name for name, level in cutter.level_of_symbol.items() if level <= self.number}
        for name in known:
            op = cutter.graph.measured[name].op
            assert isinstance(op, Measured)
            low, high = dims.bounds(op.lower, graph.bounds)[0], None
            if op.upper is not None:
                high = dims.bounds(op.upper, graph.bounds)[1]
            graph.bounds[name] = (max(low, 0), high)
        unknown = cutter.level_of_symbol.keys() - known
        graph.equalities = [e for e in graph.equalities if not e.symbols & unknown]
        own_symbols = {name for name, level in cutter.level_of_symbol.items() if level == self.number}
        self.stage.checks = [e for e in graph.equalities if e.symbols & own_symbols]
        used = symbols_within(graph.nodes).union(*(e.symbols for e in graph.equalities))
        graph.given = tuple(sorted(used - set(graph.symbols)))


def sizes(nodes: Iterable[Node], measured: set[str]) -> dict[tuple[Dim, ...], tuple[int, Node]]:
    """Shapes that hang on measured dims, each with the bytes of its widest element and a node that makes it."""
    widest: dict[tuple[Dim, ...], tuple[int, Node]] = {}
    for node in nodes:
        for of in node.types:
            hangs = any(isinstance(d, Poly) and dims.symbols(d) & measured for d in of.shape)
            if hangs and of.dtype.itemsize > widest.get(of.shape, (0, node))[0]:
                widest[of.shape] = (of.dtype.itemsize, node)
    return widest
