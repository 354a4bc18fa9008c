"""Splits off the part of a graph that depends on weights alone: it is computed once, not in every run."""

from __future__ import annotations

from collections.abc import Collection

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Constant, Input, Op, Param
from rlx.ir.symbols import symbols_of
from rlx.passes.cut import ending_at
from rlx.passes.driver import Rebuild

PREFIX = "prepared."
MOST_GROWTH = 2
"""How many times the bytes of the params behind it a value may have that is kept in their place."""
SMALL_BYTES = 1 << 16
"""What may be kept however much it grew."""


def split(graph: Graph, stays: tuple[type[Op], ...] = ()) -> tuple[tuple[Graph, ...], Graph]:
    """Graphs of params only, for the graph and for bodies in it, and what is left: the outputs of the former are params
    of the latter, by their names there. It has those params of the graph that it still takes.

    stays   ops that are not worked out; what they take is, however large it is
    """
    parts: list[Graph] = []
    rest = _split(graph, parts, stays)
    if not parts:
        return (), graph
    # bodies take params by their names alone, which the graph around them has
    rebuild = Rebuild(rest)
    there = {v.name for v in rest.params}
    for first in parts:
        for name, value in first.outputs.items():
            if name not in there:
                rebuild.new.param(name, value.shape, value.dtype)
    return tuple(parts), _without_idle_params(rebuild.finish())


def behind(graph: Graph, params: Collection[str]) -> Graph | None:
    """The part of a graph of params whose outputs hang on some of them, named as there; None if none do."""
    dirty: set[int] = set()
    for node in graph.nodes:
        named = isinstance(node.op, Param) and node.name in params
        inside = bool(node.regions) and any(not _params_within(region).isdisjoint(params) for region in node.regions)
        if named or inside or any(id(value.node) in dirty for value in node.inputs):
            dirty.add(id(node))
    results = {name: value for name, value in graph.outputs.items() if id(value.node) in dirty}
    return _without_idle_params(ending_at(graph, list(results.values()), list(results))) if results else None


def _split(graph: Graph, split_off: list[Graph], stays: tuple[type[Op], ...]) -> Graph:
    """The graph without what params decide, in it and in its bodies; adds graphs that work these out."""
    frontier = _frontier(graph, stays)
    bodies = {
        node: tuple(_split(region, split_off, stays) for region in node.regions) for node in graph.nodes if node.regions
    }
    if not frontier and all(new is old for node, parts in bodies.items() for new, old in zip(parts, node.regions)):
        return graph
    rebuild = Rebuild(graph)
    if frontier:
        begin = sum(len(first.outputs) for first in split_off)
        names = [f"{PREFIX}{begin + number}" for number in range(len(frontier))]
        first = ending_at(graph, frontier, names)
        first.nodes = [node for node in first.nodes if not isinstance(node.op, Input)]
        split_off.append(_without_idle_params(first))
        param_of = {value: rebuild.new.param(name, value.shape, value.dtype) for name, value in zip(names, frontier)}
        for node in dict.fromkeys(value.node for value in frontier):
            rebuild.replace(node, *(param_of[value] for value in node.outputs), first=len(rebuild.new.nodes))
    for node, parts in bodies.items():
        rebuild.keep(node, parts)
    return _without_idle_params(rebuild.finish())


def _frontier(graph: Graph, stays: tuple[type[Op], ...]) -> list[Value]:
    """Results of nodes that params decide, of which others than such nodes take some. What lies between params and
    these may be larger than they are, it is not kept."""
    behind = _behind(graph, stays)
    staying = {id(v.node) for node in graph.nodes if isinstance(node.op, stays) for v in node.inputs}
    while True:
        operands = [v for node in graph.nodes if not behind.get(id(node)) for v in node.inputs]
        nodes = dict.fromkeys(v.node for v in (*operands, *graph.outputs.values()) if behind.get(id(v.node)))
        large = [node for node in nodes if id(node) not in staying and not _fits(node, behind[id(node)])]
        if not large:
            return [value for node in nodes for value in node.outputs]
        for node in large:
            _drop(graph, node, behind)


def _behind(graph: Graph, stays: tuple[type[Op], ...]) -> dict[int, frozenset[Node]]:
    """For nodes that params and constants alone decide, at no size in particular, the params behind them. There are
    none behind constants, and params themselves are left out."""
    fixed: dict[int, frozenset[Node]] = {}
    for node in graph.nodes:
        if isinstance(node.op, Param):
            fixed[id(node)] = frozenset((node,))
        elif isinstance(node.op, Constant):
            fixed[id(node)] = frozenset()
        elif isinstance(node.op, stays):
            continue
        elif node.inputs and all(id(v.node) in fixed for v in node.inputs) and _is_static(node):
            fixed[id(node)] = frozenset().union(*(fixed[id(v.node)] for v in node.inputs))
    return {id(node): fixed[id(node)] for node in graph.nodes if id(node) in fixed and not isinstance(node.op, Param)}


def _drop(graph: Graph, node: Node, behind: dict[int, frozenset[Node]]) -> None:
    """Leaves a node, and all that take its results, to every run."""
    dropped = {id(node)}
    for each in graph.nodes:
        if id(each) in dropped or any(id(v.node) in dropped for v in each.inputs):
            dropped.add(id(each))
            behind.pop(id(each), None)


def _is_static(node: Node) -> bool:
    return not node.regions and not symbols_of(node) and all(t.is_static for t in node.types)


def _fits(node: Node, params: frozenset[Node]) -> bool:
    """Whether what a node makes may be kept: not much more than the params behind it."""
    result_bytes = sum(v.type.nbytes() for v in node.outputs)
    param_bytes = sum(p.types[0].nbytes() for p in params if p.types[0].is_static)
    return result_bytes <= max(SMALL_BYTES, MOST_GROWTH * param_bytes)


def _without_idle_params(graph: Graph) -> Graph:
    """Without params that nothing takes, by a value or, in the body of a region, by name."""
    used = _params_of_regions(graph)
    graph.drop_leaves({v.name for v in graph.params if not graph.use_count(v) and v.name not in used})
    return graph


def _params_of_regions(graph: Graph) -> set[str]:
    return {name for node in graph.nodes for region in node.regions for name in _params_within(region)}


def _params_within(graph: Graph) -> set[str]:
    return {v.name for v in graph.params} | _params_of_regions(graph)
