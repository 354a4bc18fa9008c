"""Graphs at given sizes: dims become numbers, for devices that compile each size on its own."""

from __future__ import annotations

from collections.abc import Mapping

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

    def change(dim: Dim) -> Dim:
        return dims.substitute(dim, sizes)

    made = Graph(graph.name)
    made.bounds = {name: pair for name, pair in graph.bounds.items() if name not in sizes}
    made.given = tuple(name for name in graph.given if name not in sizes)
    made.data = dict(graph.data)
    map_: dict[Value, Value] = {}
    for node in graph.nodes:
        regions = [specialise(region, sizes) for region in node.regions]
        made.add(
            with_dims(node.op, change), *(map_[v] for v in node.inputs),
            name=node.name, source=node.source, regions=regions,
        )  # fmt: skip
        map_.update(zip(node.outputs, made.nodes[-1].outputs))
    made.outputs = {name: map_[value] for name, value in graph.outputs.items()}
    equalities = [Equality(change(e.left), change(e.right), e.reason) for e in graph.equalities]
    made.equalities = [e for e in dict.fromkeys([*made.equalities, *equalities]) if _is_open(e)]
    return made


def _is_open(equality: Equality) -> bool:
    """Whether a run has to check it. Raises ShapeError where it does not hold."""
    left, right = equality.left, equality.right
    if isinstance(left, int) and isinstance(right, int) and left != right:
        raise ShapeError(f"[specialise] {equality.reason}: {left} against {right}")
    return left != right
