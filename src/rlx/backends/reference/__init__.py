"""The NumPy backend: runs every op by its `reference`, slowly, and is the oracle of all others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends import interrupt
from rlx.backends.base import (
    Backend,
    Bound,
    Capabilities,
    Executable,
    KernelTime,
    Options,
    Probe,
    Unsupported,
    deliver,
    shapes_at,
)
from rlx.errors import GraphError
from rlx.ir import dim as dims
from rlx.ir.graph import Graph, Node
from rlx.ir.literal import Array
from rlx.ir.op import LEAVES, Input, Measured, Op, Param
from rlx.ir.substitute import type_with_dims, with_dims
from rlx.ir.type import TensorType

Watch = Callable[[Node, tuple[Array, ...]], None]


def bind_op(op: Op, binding: Mapping[str, int]) -> Op:
    """The op with the dims in its attributes replaced by numbers."""
    return with_dims(op, lambda d: dims.evaluate(d, binding))


def _bind_type(of: TensorType, binding: Mapping[str, int]) -> TensorType:
    return type_with_dims(of, lambda d: dims.evaluate(d, binding))


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    params: Mapping[str, Array],
    binding: Mapping[str, int],
    watch: Watch | None = None,
) -> list[Array]:
    """Runs the graph node by node and returns its outputs; `watch` sees every node's results.

    Dims that the graph measures are bound as their nodes come. Raises InputError where one is out of bounds.
    """
    values: dict[tuple[int, int], Array] = {}
    for node in graph.nodes:
        interrupt.check()
        operands = [values[(id(v.node), v.index)] for v in node.inputs]
        results = _run_node(node, operands, inputs, params, binding)
        if isinstance(node.op, Measured):
            node.op.check(int(results[0]), binding, node.source or node.name)
            binding = {**binding, node.op.symbol: int(results[0])}
        for i, result in enumerate(results):
            values[(id(node), i)] = result
        if watch is not None:
            watch(node, results)
    return [values[(id(v.node), v.index)] for v in graph.outputs.values()]


def _run_node(
    node: Node,
    operands: Sequence[Array],
    inputs: Mapping[str, Array],
    params: Mapping[str, Array],
    binding: Mapping[str, int],
) -> tuple[Array, ...]:
    if isinstance(node.op, Input):
        return (inputs[node.name],)
    if isinstance(node.op, Param):
        if node.name not in params:
            raise GraphError(f"[param] expected data for {node.name!r}: set_param gives it")
        return (params[node.name],)
    made = bind_op(node.op, binding)
    keywords: dict[str, Any] = {}
    if node.regions:
        keywords["regions"] = tuple(_Region(g, params, binding) for g in node.regions)
    result = made.reference(*operands, **keywords)
    results = result if isinstance(result, tuple) else (result,)
    return tuple(np.asarray(r, dtype=t.dtype.numpy) for r, t in zip(results, node.types))


class _Region:
    """A sub-graph that a control op can call."""

    def __init__(self, graph: Graph, params: Mapping[str, Array], binding: Mapping[str, int]) -> None:
        self.graph = graph
        self.params = params
        self.binding = binding
        self.outputs = tuple(_bind_type(v.type, binding) for v in graph.outputs.values())

    def __call__(self, *operands: Array) -> list[Array]:
        self.graph.bind(self.binding)
        names = [v.name for v in self.graph.inputs]
        return evaluate(self.graph, dict(zip(names, operands)), self.params, self.binding)


class _ReferenceBound(Bound):
    def __init__(self, executable: ReferenceExecutable, binding: Mapping[str, int]) -> None:
        self.executable = executable
        self.binding = dict(binding)
        self.shapes = shapes_at((v.type for v in executable.graph.outputs.values()), binding)

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array] | None = None) -> list[Array]:
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
        made = ReferenceExecutable(self.graph)
        made.params = self.params if weights else {}
        return made


class ReferenceBackend(Backend):
    """Always there; takes every op."""

    name = "reference"

    def probe(self) -> Probe:
        return Probe(devices=(f"NumPy {np.__version__}",))

    def legalise(self, graph: Graph, options: Options) -> Graph:
        return graph

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        return []

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        return ReferenceExecutable(graph)


BACKEND = ReferenceBackend
