"""A device for rlx from another package: whole numbers only, counted with NumPy.

A backend says what it finds (`probe`), what it cannot take and why (`unsupported`), and makes executables (`compile`).
This one builds on the reference backend, which runs every op, and takes graphs of integers and truth values alone.
"""

from __future__ import annotations

from rlx.backends.base import Options, Probe, Unsupported
from rlx.backends.executable import Executable
from rlx.backends.reference import ReferenceBackend
from rlx.ir.graph import Graph


class AbacusBackend(ReferenceBackend):
    """Runs integer graphs."""

    name = "abacus"

    def probe(self) -> Probe:
        return Probe(devices=("ten rods of ten beads",))

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        return [
            Unsupported(node, f"an abacus has no {dtype}")
            for node in graph.nodes
            for dtype in dict.fromkeys(of.dtype for of in node.types)
            if dtype.is_inexact
        ]

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        return super().compile(graph, options, ordinal)
