"""Parts of graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rlx.ir.graph import Graph, Value
from rlx.passes.driver import Rebuild


def ending_at(graph: Graph, values: Sequence[Value], names: Sequence[str] = (), advances: bool = False) -> Graph:
    """A graph whose outputs, named "0", "1", … or by `names`, are these values of `graph`; inputs and params are all
    kept. States become what they become in `graph` if it `advances`, else they stay."""
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        rebuild.keep(node)
    rebuild.new.outputs = {name: rebuild[v] for name, v in zip(names or map(str, range(len(values))), values)}
    rebuild.new.states = {}
    for state, output in graph.states.items() if advances else ():
        name = output
        while name in rebuild.new.outputs:
            name += "_"
        rebuild.new.outputs[name] = rebuild[graph.outputs[output]]
        rebuild.new.states[state] = name
    rebuild.new.prune()
    name_of = {value: name for name, value in graph.outputs.items()}
    anew = graph.anew
    if anew is not None and all(value in name_of for value in values):
        outputs = [name_of[value] for value in values]
        rebuild.new.anew = partial(_outputs_anew, anew, outputs, tuple(names), advances)
    return rebuild.new


def _outputs_anew(
    anew: Callable[[Mapping[str, int]], Graph],
    outputs: Sequence[str],
    names: Sequence[str],
    advances: bool,
    sizes: Mapping[str, int],
) -> Graph:
    graph = anew(sizes)
    return ending_at(graph, [graph.outputs[name] for name in outputs], names, advances)
