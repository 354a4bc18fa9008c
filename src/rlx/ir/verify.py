"""The rules of the IR, as code: `verify` raises GraphError that names the node which breaks one.

1. Every operand is a result of an earlier node of the same graph.
2. Names are unique; inputs and params have names, so has every output.
3. The number of operands, results and regions is what the op takes.
4. A node's types are what its op's type rule gives for its operands' types.
5. Regions are graphs that keep these rules themselves.
6. Outputs are results of nodes of this graph.
7. The use lists name every node that takes a value, once for each operand.
8. Data belongs to a param and has its type.
9. States have at most one next value each, an output of their type; regions have no states.
10. A dim that is measured has one node that measures it, and only later nodes speak of it.
"""

from __future__ import annotations

from collections import Counter

from rlx.errors import GraphError, RlxError
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.inference import infer
from rlx.ir.op import Measured, Param, State
from rlx.ir.symbols import symbols_of
from rlx.ir.type import TensorType


def verify(graph: Graph) -> None:
    """Checks every rule. Raises GraphError."""
    seen: set[int] = set()
    names: set[str] = set()
    uses: Counter[tuple[Value, int]] = Counter()
    for node in graph.nodes:
        _verify_place(graph, node, seen, names)
        _verify_types(node)
        for region in node.regions:
            verify(region)
        uses.update((value, id(node)) for value in node.inputs)
        seen.add(id(node))
        names.add(node.name)
    for name, value in graph.outputs.items():
        if id(value.node) not in seen or not 0 <= value.index < len(value.node.types):
            raise GraphError(f"output {name!r} is {value!r}, which is no result of a node of graph {graph.name!r}")
    _verify_uses(graph, uses)
    _verify_data(graph)
    check_states(graph)
    _verify_measured(graph)


def _fail(node: Node, what: str) -> GraphError:
    origin = f" (from {node.source})" if node.source else ""
    return GraphError(f"[{node.op.name}] {what}, at node {node.name!r}{origin}")


def _verify_place(graph: Graph, node: Node, seen: set[int], names: set[str]) -> None:
    if node.graph is not graph:
        raise _fail(node, f"expected a node of graph {graph.name!r}, got one of {node.graph.name!r}")
    if not node.name or node.name in names:
        raise _fail(node, "expected a name of its own, got one that is taken")
    least, most = node.op.arity
    if not least <= len(node.inputs) <= most:
        raise _fail(node, f"expected {least} to {most} operands, got {len(node.inputs)}")
    if len(node.regions) != node.op.regions:
        raise _fail(node, f"expected {node.op.regions} regions, got {len(node.regions)}")
    for value in node.inputs:
        if id(value.node) not in seen:
            raise _fail(node, f"expected operands of earlier nodes of the graph, got {value!r}")
        if not 0 <= value.index < len(value.node.types):
            raise _fail(node, f"expected an operand among {len(value.node.types)} results, got {value.index}")


def _verify_types(node: Node) -> None:
    try:
        with expect.noting(node.graph.assumes_equal):
            types = infer(node.op, tuple(v.type for v in node.inputs), node.regions)
    except RlxError as error:
        raise _fail(node, f"its type rule refuses it: {error}") from None
    several = types if isinstance(types, tuple) else (types,)
    if several != node.types:
        expected, actual = (", ".join(map(str, t)) for t in (several, node.types))
        raise _fail(node, f"expected results of {expected}, got {actual}")


def _verify_uses(graph: Graph, uses: Counter[tuple[Value, int]]) -> None:
    for node in graph.nodes:
        for value in node.outputs:
            for user, times in Counter(id(u) for u in graph.uses(value)).items():
                if uses[value, user] != times:
                    raise _fail(node, f"the use list of {value!r} has {times} of a node that takes it differently")
                del uses[value, user]
    for value, _ in uses:
        raise _fail(value.node, f"the use list of {value!r} lacks a node that takes it")


def _verify_data(graph: Graph) -> None:
    params = {n.name: n.types[0] for n in graph.nodes if isinstance(n.op, Param)}
    for name, array in graph.data.items():
        if name not in params:
            raise GraphError(f"data {name!r} belongs to no param of graph {graph.name!r}")
        actual = TensorType.of(array.shape, dtypes.of(array.dtype))
        if actual != params[name]:
            raise GraphError(f"[param] expected data of {params[name]}, got {actual}, at node {name!r}")


def check_states(graph: Graph) -> None:
    """Whether the next values of states are outputs, of types that go with them. Raises GraphError."""
    known = {node.name: node for node in graph.nodes if isinstance(node.op, State)}
    for node in graph.nodes:
        if any(map(_has_states, node.regions)):
            raise _fail(node, "expected states in the outermost graph alone, got one in a region")
    for name, output in graph.states.items():
        if name not in known:
            raise GraphError(f"[set_next] expected states among {list(known)}, got {name!r}")
        if output not in graph.outputs or list(graph.states.values()).count(output) > 1:
            expected = f"an output of its own among {list(graph.outputs)} as the next value of the state {name!r}"
            raise GraphError(f"[set_next] expected {expected}, got {output!r}")
        value = graph.outputs[output]
        if not value.type.flows_into(known[name].types[0]):
            raise _fail(known[name], f"expected a next value of {known[name].types[0]}, got {value!r}")


def _has_states(graph: Graph) -> bool:
    own = bool(graph.states) or any(isinstance(node.op, State) for node in graph.nodes)
    return own or any(_has_states(region) for node in graph.nodes for region in node.regions)


def _verify_measured(graph: Graph) -> None:
    coming = set(graph.measured)
    symbols = set(graph.symbols)
    if not coming:
        return
    for node in graph.nodes:
        early = symbols_of(node) & coming
        if early:
            raise _fail(node, f"expected dims that earlier nodes measure, got {', '.join(sorted(early))}")
        if isinstance(node.op, Measured):
            if node.op.symbol in symbols:
                raise _fail(node, f"expected a dim of its own, got {node.op.symbol!r}, which is taken")
            symbols.add(node.op.symbol)
            coming.discard(node.op.symbol)
