"""Dead code elimination: removes nodes that no output needs. Inputs and params stay, since a run may still bring
them."""

from __future__ import annotations

from rlx.ir.graph import Graph
from rlx.passes.driver import Context, Pass, Rebuild


class Dce(Pass):
    """Drops what nothing needs. The rebuilding passes do so as they go; this one is for graphs as they come."""

    name = "dce"

    def run(self, graph: Graph, context: Context) -> Graph:
        needed = graph.needed()
        dead = [node for node in graph.nodes if id(node) not in needed]
        if not dead or not context.spend(self.name, "drop", dead[0]):
            return graph
        return Rebuild(graph).finish()
