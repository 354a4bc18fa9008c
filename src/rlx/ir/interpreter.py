"""Runs graphs node by node, each op by its `reference`: the oracle for all compiled programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx import interrupt
from rlx.errors import GraphError, RlxError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Node
from rlx.ir.inference import infer
from rlx.ir.literal import Array
from rlx.ir.op import Input, Measured, Op, Param
from rlx.ir.substitute import type_with_dims, with_dims
from rlx.ir.type import TensorType

Watch = Callable[[Node, tuple[Array, ...]], None]
Kernels = Mapping[type[Op], Callable[..., Any]]
"""Quicker ways to compute ops than their `reference`: of the op with numbers for its dims, and of its operands. They
give `NotImplemented` for operands that they do not take."""


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
    kernels: Kernels | None = None,
    between: Callable[[], None] | None = None,
    doubles: bool = False,
) -> list[Array]:
    """Runs the graph node by node and returns its outputs; `watch` sees every node's results, and `between` is called
    before every node, also of conditionals and loops. With `doubles` all that is f32 is computed and kept in f64, where
    an op takes that: results are of what the graph means, without its rounding.

    Dims that the graph measures are bound as their nodes come. Raises InputError where one is out of bounds.
    """
    run = _Run(inputs, params, binding, kernels or {}, between, doubles)
    return run.outputs(graph, _last_uses(graph), watch)


LastUses = dict[int, list[tuple[int, int]]]


def _last_uses(graph: Graph) -> LastUses:
    """By the id of a node: the values that no later node reads, nor the caller."""
    kept = {(id(v.node), v.index) for v in graph.outputs.values()}
    last: dict[tuple[int, int], int] = {}
    for node in graph.nodes:
        last.update({(id(node), i): id(node) for i in range(len(node.types))})
        last.update({(id(v.node), v.index): id(node) for v in node.inputs})
    uses: LastUses = {}
    for value, at in last.items():
        if value not in kept:
            uses.setdefault(at, []).append(value)
    return uses


class _Run:
    """What all nodes of a run are computed with."""

    def __init__(
        self, inputs: Mapping[str, Array], params: Mapping[str, Array], binding: Mapping[str, int], kernels: Kernels,
        between: Callable[[], None] | None, doubles: bool,
    ) -> None:  # fmt: skip
        self.inputs, self.params, self.binding, self.kernels = inputs, params, binding, kernels
        self.between, self.doubles = between, doubles

    def outputs(self, graph: Graph, last_uses: LastUses, watch: Watch | None = None) -> list[Array]:
        """The outputs of a graph. Values are dropped behind their last use."""
        values: dict[tuple[int, int], Array] = {}
        for node in graph.nodes:
            interrupt.check()
            if self.between is not None:
                self.between()
            operands = [values[(id(v.node), v.index)] for v in node.inputs]
            results = self._node(node, operands)
            if isinstance(node.op, Measured):
                node.op.check(int(results[0]), self.binding, node.source or node.name)
                self.binding = {**self.binding, node.op.symbol: int(results[0])}
            for i, result in enumerate(results):
                values[(id(node), i)] = result
            if watch is not None:
                watch(node, results)
            for value in last_uses.get(id(node), ()):
                del values[value]
        return [values[(id(v.node), v.index)] for v in graph.outputs.values()]

    def _node(self, node: Node, operands: Sequence[Array]) -> tuple[Array, ...]:
        if isinstance(node.op, Input):
            return (self._kept(self.inputs[node.name], node.types[0]),)
        if isinstance(node.op, Param):
            if node.name not in self.params:
                raise GraphError(f"[param] expected data for {node.name!r}: set_param gives it")
            return (self._kept(self.params[node.name], node.types[0]),)
        op = bind_op(node.op, self.binding)
        if self.doubles and not node.regions:
            op, operands = _in_doubles(node, op, operands)
        kernel = self.kernels.get(type(op))
        result = NotImplemented
        if kernel is not None:
            with np.errstate(all="ignore"):
                result = kernel(op, *operands)
        if result is NotImplemented:
            keywords: dict[str, Any] = {}
            if node.regions:
                keywords["regions"] = tuple(_Region(g, self) for g in node.regions)
            result = op.reference(*operands, **keywords)
        results = result if isinstance(result, tuple) else (result,)
        return tuple(np.asarray(r, dtype=t.dtype.numpy) for r, t in zip(results, map(self._kept_type, node.types)))

    def _kept(self, array: Array, of: TensorType) -> Array:
        return np.asarray(array, self._kept_type(of).dtype.numpy) if self.doubles else array

    def _kept_type(self, of: TensorType) -> TensorType:
        """The type that a value of this one has in the run."""
        return of.with_dtype(dtypes.f64) if self.doubles and of.dtype is dtypes.f32 else of


def _in_doubles(node: Node, op: Op, operands: Sequence[Array]) -> tuple[Op, Sequence[Array]]:
    """An op on operands in f64 that also gives f64; it, and operands as the graph has them, where it does not take
    these."""
    attributes = {name: dtypes.f64 for name, value in op.attributes().items() if value is dtypes.f32}
    wide = dataclasses.replace(op, **attributes) if attributes else op  # type: ignore[type-var]  # all are dataclasses
    expected = [dtypes.f64 if t.dtype is dtypes.f32 else t.dtype for t in node.types]
    try:
        types = infer(wide, tuple(TensorType(a.shape, dtypes.of(a.dtype)) for a in operands))
        if [t.dtype for t in (types if isinstance(types, tuple) else (types,))] == expected:
            return wide, operands
    except RlxError:
        pass  # it takes f32 alone
    return op, [np.asarray(a, value.dtype.numpy) for a, value in zip(operands, node.inputs)]


class _Region:
    """A sub-graph that a control op can call."""

    def __init__(self, graph: Graph, run: _Run) -> None:
        self.graph = graph
        self._run = run
        self._last_uses = _last_uses(graph)
        self.outputs = tuple(run._kept_type(_bind_type(v.type, run.binding)) for v in graph.outputs.values())

    def __call__(self, *operands: Array) -> list[Array]:
        run = self._run
        self.graph.bind(run.binding)
        names = [v.name for v in self.graph.inputs]
        inner = _Run(dict(zip(names, operands)), run.params, run.binding, run.kernels, run.between, run.doubles)
        return inner.outputs(self.graph, self._last_uses)
