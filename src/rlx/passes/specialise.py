"""Graphs with other dims. One is the graph at given sizes, for devices that compile each size. The other assumes that
open dims are equal wherever they broadcast; all other passes and backends get that one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from rlx.errors import GraphError, ShapeError
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.expect import Equality
from rlx.ir.graph import Graph, Value
from rlx.ir.substitute import with_dims


def specialise(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with these dims replaced by their sizes, in its regions too; other dims stay. Weights are shared.

    Raises GraphError for a dim that the graph measures, ShapeError for sizes outside of bounds, or that contradict an
    equality of the graph.
    """
    measured = graph.measured.keys() & sizes.keys()
    if measured:
        raise GraphError(f"[specialise] expected dims that inputs bring, got {sorted(measured)}, which a run measures")
    for name, (low, high) in graph.bounds.items():
        if name in sizes and (sizes[name] < low or (high is not None and sizes[name] > high)):
            limits = f"[{low}, {'inf' if high is None else high}]"
            raise ShapeError(f"[specialise] expected the dim {name!r} in {limits}, got {sizes[name]}")
    specialised = _changed(graph, lambda dim: dims.substitute(dim, sizes), graph.assumes_equal)
    anew = graph.anew
    if anew is not None:
        specialised.anew = partial(_anew_at, anew, dict(sizes))
    for inner in _within(specialised):
        inner.bounds = {name: pair for name, pair in inner.bounds.items() if name not in sizes}
        inner.given = tuple(name for name in inner.given if name not in sizes)
    return specialised


def _anew_at(anew: Callable[[Mapping[str, int]], Graph], sizes: Mapping[str, int], more: Mapping[str, int]) -> Graph:
    return anew({**sizes, **more})


def assume_equal(graph: Graph) -> Graph:
    """The graph for runs in which dims that broadcast are equal, or known to be 1; no `broadcast` of dims is left."""
    return graph if graph.assumes_equal else _changed(graph, dims.taken_as_equal, True)


def _changed(graph: Graph, change: Callable[[Dim], Dim], assumes_equal: bool) -> Graph:
    """The graph with `change` applied to its dims; types are worked out anew."""
    changed = Graph(graph.name, assumes_equal)
    changed.bounds, changed.given, changed.data = dict(graph.bounds), graph.given, dict(graph.data)
    map_: dict[Value, Value] = {}
    for node in graph.nodes:
        regions = [_changed(region, change, assumes_equal) for region in node.regions]
        changed.add(
            with_dims(node.op, change), *(map_[v] for v in node.inputs),
            name=node.name, source=node.source, regions=regions,
        )  # fmt: skip
        map_.update(zip(node.outputs, changed.nodes[-1].outputs))
    changed.states = dict(graph.states)
    changed.outputs = {name: map_[value] for name, value in graph.outputs.items()}
    equalities = [Equality(change(e.left), change(e.right), e.reason, e.spreads) for e in graph.equalities]
    changed.equalities = [e for e in dict.fromkeys([*equalities, *changed.equalities]) if _is_open(e, assumes_equal)]
    return changed


def _is_open(equality: Equality, assumes_equal: bool) -> bool:
    """Whether a run has to check it. Raises ShapeError where it does not hold."""
    left, right = equality.left, equality.right
    if equality.spreads and not assumes_equal and (left == 1 or (right == 1 and equality.spreads == "either")):
        return False  # a type that was worked out anew says so
    if isinstance(left, int) and isinstance(right, int) and left != right:
        raise ShapeError(f"[specialise] {equality.reason}: {left} against {right}")
    return left != right


def _within(graph: Graph) -> list[Graph]:
    """The graph and all of its regions."""
    return [graph, *(inner for node in graph.nodes for region in node.regions for inner in _within(region))]
