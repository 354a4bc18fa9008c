"""What lowering asks of a graph: its live nodes in order, which of them weights alone decide, who uses a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import LEAVES, Constant, Param
from rlx.kernel.lower.index import Key, key_of
from rlx.ops.shape import Reshape
from rlx.ops.writing import written_in_place


@dataclass(frozen=True)
class Facts:
    """A graph, and what to leave out of its fusion.

    position   of each live node in their order, by id
    static     ids of nodes that params and constants alone decide
    outputs    the values whose memory the graph's outputs are, and their keys as `results`
    writers    of each state that is written in place: the nodes that do it; their results lie in its memory
    indirect   whether products may read matrices of a weight that data choose where they lie
    bounded    whether windows of products may reach beyond their operands
    """

    graph: Graph
    nodes: list[Node]
    position: dict[int, int]
    static: set[int]
    outputs: dict[str, Value]
    results: set[Key]
    writers: dict[str, list[Node]]
    disable: frozenset[str] = frozenset()
    indirect: bool = False
    bounded: bool = False
    _uses: dict[Key, list[Node]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, graph: Graph, disable: frozenset[str] = frozenset(), fixed: Sequence[Value] = (), indirect: bool = False,
        bounded: bool = False,
    ) -> Facts:  # fmt: skip
        """`fixed` are inputs that params alone decide, as those of a region may be."""
        nodes = live(graph)
        static = {id(v.node) for v in fixed}
        for node in nodes:
            above = bool(node.inputs) and not node.regions and all(id(v.node) in static for v in node.inputs)
            if above or isinstance(node.op, (Param, Constant)):
                static.add(id(node))
        stay = graph.states.values()
        outputs = {name: v if name in stay else handed_out(v) for name, v in graph.outputs.items()}
        results = {key_of(v) for v in outputs.values()}
        positions = {id(n): i for i, n in enumerate(nodes)}
        written = written_in_place(graph)
        return cls(graph, nodes, positions, static, outputs, results, written, disable, indirect, bounded)

    def is_in_place(self, node: Node) -> bool:
        """Whether the node's result lies in the memory of its first operand, which is that of a state."""
        return any(node in nodes for nodes in self.writers.values())

    def uses(self, value: Value) -> list[Node]:
        """Live nodes that take the value."""
        key = key_of(value)
        if key not in self._uses:
            self._uses[key] = [n for n in self.graph.uses(value) if id(n) in self.position]
        return self._uses[key]


def handed_out(value: Value) -> Value:
    """The value whose memory an output is: of a reshaped value the one that was reshaped."""
    while isinstance(value.node.op, Reshape) and not isinstance(value.node.inputs[0].node.op, LEAVES):
        value = value.node.inputs[0]
    return value


def live(graph: Graph) -> list[Node]:
    """Nodes that outputs need, and the inputs and params, in order."""
    needed: set[int] = set()
    stack = [v.node for v in graph.outputs.values()]
    while stack:
        node = stack.pop()
        if id(node) not in needed:
            needed.add(id(node))
            stack.extend(v.node for v in node.inputs)
    return [n for n in graph.nodes if id(n) in needed]
