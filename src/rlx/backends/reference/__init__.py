"""The NumPy backend: runs every op by its `reference`, slowly, and is the oracle of all others."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from rlx.backends.base import Backend, Launches, Options, Probe, Unsupported
from rlx.backends.executable import Bound, Capabilities, Executable, KernelTime, deliver, shapes_at
from rlx.ir.graph import Graph, Node
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.ir.op import LEAVES


class _ReferenceBound(Bound):
    def __init__(self, executable: ReferenceExecutable, binding: Mapping[str, int]) -> None:
        self.executable = executable
        self.binding = dict(binding)
        self.shapes = shapes_at((v.type for v in executable.graph.outputs.values()), binding)

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        graph = self.executable.graph
        named = dict(zip((v.name for v in graph.inputs), inputs))
        return deliver([np.array(a) for a in evaluate(graph, named, self.executable.params, self.binding)], out)

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        """A kernel is a node here."""
        graph = self.executable.graph
        named = dict(zip((v.name for v in graph.inputs), inputs))
        start = last = time.perf_counter_ns()
        times: list[KernelTime] = []

        def watch(node: Node, results: tuple[Array, ...]) -> None:
            nonlocal last
            now = time.perf_counter_ns()
            if not isinstance(node.op, LEAVES):
                times.append(KernelTime(node.op.name, (node.source or node.name,), 1, now - last, last - start))
            last = now

        evaluate(graph, named, self.executable.params, self.binding, watch)
        return times


class ReferenceExecutable(Executable):
    """A graph and its weights; nothing is compiled."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.params: dict[str, Array] = {}

    def set_params(self, params: Mapping[str, Array]) -> None:
        self.params = {**self.params, **params}

    def bind(self, binding: Mapping[str, int]) -> Bound:
        return _ReferenceBound(self, binding)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(profiling=True, shared_code=True)

    def clone(self, weights: bool = True) -> ReferenceExecutable:
        clone = ReferenceExecutable(self.graph)
        clone.params = self.params if weights else {}
        return clone


class ReferenceBackend(Backend):
    """Always there; takes every op."""

    name = "reference"

    def on_processor(self, ordinal: int = 0) -> bool:
        return True

    def probe(self) -> Probe:
        return Probe(devices=(f"NumPy {np.__version__}",))

    def legalise(self, graph: Graph, options: Options) -> Graph:
        return graph

    def launches(self, graph: Graph, options: Options, binding: Mapping[str, int]) -> Launches:
        from rlx.backends.op_by_op import calls

        return Launches(calls(graph, binding))

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        return []

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        return ReferenceExecutable(graph)


BACKEND = ReferenceBackend
