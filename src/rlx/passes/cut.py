"""Parts of graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

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
    told = {value: name for name, value in graph.outputs.items()}
    anew = graph.anew
    if anew is not None and all(value in told for value in values):
        rebuild.new.anew = partial(_outputs_anew, anew, [told[value] for value in values], tuple(names))
    return rebuild.new


def _outputs_anew(
    anew: Callable[[Mapping[str, int]], Graph], wanted: Sequence[str], names: Sequence[str], sizes: Mapping[str, int]
) -> Graph:
    graph = anew(sizes)
    return ending_at(graph, [graph.outputs[name] for name in wanted], names)
