"""Runs graphs node by node, each op by its `reference`: the oracle for all compiled programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx import interrupt
from rlx.errors import GraphError
from rlx.ir import dim as dims
from rlx.ir.graph import Graph, Node
from rlx.ir.literal import Array
from rlx.ir.op import Input, Measured, Op, Param
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
    op = bind_op(node.op, binding)
    keywords: dict[str, Any] = {}
    if node.regions:
        keywords["regions"] = tuple(_Region(g, params, binding) for g in node.regions)
    result = op.reference(*operands, **keywords)
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
