"""Parts of graphs."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.graph import Graph, Value
from rlx.passes.driver import Rebuild


def ending_at(graph: Graph, values: Sequence[Value], names: Sequence[str] = ()) -> Graph:
    """A graph whose outputs, named "0", "1", … or by `names`, are these values of `graph`; inputs and params are all
    kept."""
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        rebuild.keep(node)
    rebuild.new.outputs = {name: rebuild[v] for name, v in zip(names or map(str, range(len(values))), values)}
    rebuild.new.prune()
    return rebuild.new
