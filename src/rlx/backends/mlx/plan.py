"""A graph at known dims as a row of calls: what can be worked out once is worked out here, not in every run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx import interrupt
from rlx.backends.failures import memory_bytes
from rlx.backends.mlx import contractions, fused, indexing, scalar
from rlx.backends.mlx.library import Value, held, mx
from rlx.backends.mlx.shapes import TABLE
from rlx.backends.mlx.timers import Call, KernelTimer
from rlx.codegen.scalar import emulation as emulation
from rlx.errors import OutOfMemory, UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr, walk
from rlx.ir.graph import Graph, Node
from rlx.ir.interpreter import bind_op
from rlx.ir.op import LEAVES, Constant, Elementwise, Input, Op, Param
from rlx.ops.reduce import identity
from rlx.ops.shape import Movement
from rlx.records import dataclass

FAMILIES = (fused, indexing, contractions)
"""What fills the table."""
UNEVALUATED = 64
"""Trips of a loop whose work may wait: mlx keeps a record of all that it has not computed."""
CONTROL = frozenset({"if", "while", "scan"})
Weights = Mapping[str, Value]


def supported(op: Op) -> bool:
    return isinstance(op, (Elementwise, Input, Param, Constant)) or op.name in TABLE or op.name in CONTROL


def inexact(node: Node) -> str:
    """Why mlx is not as exact as a node's f64 asks for; empty if it is."""
    if not isinstance(node.op, Elementwise):
        return ""
    body = node.op.scalar(*(Expr("operand", v.dtype, (), i) for i, v in enumerate(node.inputs)))
    found = sorted({e.kind for e in walk([body])} & scalar.INEXACT)
    return f"MLX computes {found[0]} of f64 as of f32" if found else ""


@dataclass(frozen=True)
class Step:
    """A call: where its operands lie, where its results go, and which values nobody needs after it."""

    run: Call
    operands: tuple[int, ...]
    results: tuple[int, ...]
    last: tuple[int, ...]


class Plan:
    """The steps of a graph at a binding of its dims.

    watch    takes the time of every step, if there is one
    traced   whether mlx may trace it: nothing in it hangs on numbers that only a run tells, and no loop is unrolled
    """

    def __init__(self, graph: Graph, binding: Mapping[str, int], watch: KernelTimer | None = None) -> None:
        slots: dict[tuple[int, int], int] = {}
        rows: list[tuple[Call, tuple[int, ...], tuple[int, ...]]] = []
        self.inputs: list[int] = []
        self.params: list[tuple[str, int]] = []
        self.constants: list[tuple[int, Value]] = []
        self.traced = not any(node.op.name in CONTROL for node in graph.nodes)
        for node in graph.nodes:
            made = tuple(slots.setdefault((id(node), i), len(slots)) for i in range(len(node.types)))
            operands = tuple(slots[id(v.node), v.index] for v in node.inputs)
            if isinstance(node.op, Param):
                self.params.append((node.name, made[0]))
            elif isinstance(node.op, Constant):
                self.constants.append((made[0], held(bind_op(node.op, binding).reference())))
            elif not isinstance(node.op, Input):
                rows.append((_call(node, binding, watch), operands, made))
        self.inputs = [slots[id(v.node), v.index] for v in graph.inputs]
        self.outputs = [slots[id(v.node), v.index] for v in graph.outputs.values()]
        self.size = len(slots)
        self.steps = _with_last_uses(rows, self.outputs)

    def __call__(self, inputs: Sequence[Value], weights: Weights) -> list[Value]:
        values: list[Value] = [None] * self.size
        for slot, value in zip(self.inputs, inputs):
            values[slot] = value
        for name, slot in self.params:
            values[slot] = weights[name]
        for slot, value in self.constants:
            values[slot] = value
        for step in self.steps:
            made = step.run([values[i] for i in step.operands], weights)
            for slot, value in zip(step.results, made):
                values[slot] = value
            for slot in step.last:
                values[slot] = None
        return [values[slot] for slot in self.outputs]


def _with_last_uses(rows: list[tuple[Call, tuple[int, ...], tuple[int, ...]]], outputs: Sequence[int]) -> list[Step]:
    """mlx keeps what Python names: a value goes when its last user has it."""
    kept, steps = set(outputs), []
    for call, operands, results in reversed(rows):
        last = tuple(slot for slot in {*operands, *results} if slot not in kept)
        kept.update(last)
        steps.append(Step(call, operands, results, last))
    return steps[::-1]


def _check_memory(node: Node, binding: Mapping[str, int]) -> None:
    """Raises OutOfMemory for results that the machine's memory cannot hold: on processors mlx writes to memory that it
    was not given, which ends the process. What only moves elements may be a view."""
    if isinstance(node.op, (Movement, *LEAVES)):
        return
    for of in node.types:
        if dims.symbols(of.size) - binding.keys():
            continue
        nbytes = dims.evaluate(of.size, binding) * of.dtype.itemsize
        if nbytes > memory_bytes():
            raise OutOfMemory(
                f"[{node.op.name}] expected a value that memory holds, got {nbytes} bytes of {of}, "
                f"at node {(node.source or node.name)!r}"
            )


def _call(node: Node, binding: Mapping[str, int], watch: KernelTimer | None) -> Call:
    _check_memory(node, binding)
    if watch is None:
        return _untimed(node, binding, None)
    return watch.timed(node, lambda: _untimed(node, binding, watch))


def _untimed(node: Node, binding: Mapping[str, int], watch: KernelTimer | None) -> Call:
    op: Any = bind_op(node.op, binding)
    if isinstance(op, Elementwise):
        return _elementwise(op, node)
    if op.name in CONTROL:
        bodies = [Plan(region, binding, watch) for region in node.regions]
        made: Call = {"if": _if, "while": _while, "scan": _scan}[op.name](op, node, bodies, binding)
        return made
    lower = TABLE.get(op.name)
    if lower is None:
        raise UnsupportedOp(f"[{op.name}] MLX has no lowering for it, at node {node.source or node.name!r}")

    fit = _fit(op, node)

    def run(operands: Sequence[Value], weights: Weights) -> Sequence[Value]:
        results = lower(op, *operands)
        return fit(results if isinstance(results, tuple) else (results,))

    return run


def _fit(op: Any, node: Node) -> Callable[[Sequence[Value]], Sequence[Value]]:
    """A function of an op's results in their carriers, that gives what their dtypes have for them. Of nothing, extremes
    are those of the dtype."""
    carried = {i: of.dtype for i, of in enumerate(node.types) if emulation.is_emulated(of.dtype)}
    combine = getattr(op, "combine", None) or ""
    join = {"max": mx.maximum, "min": mx.minimum}.get(combine) if carried else None

    def one(value: Value, dtype: DType) -> Value:
        if join is not None:
            value = join(value, held(np.asarray(identity(combine, dtype.numpy))))
        return scalar.fitted(dtype)([value])

    def run(results: Sequence[Value]) -> Sequence[Value]:
        return [one(value, carried[i]) if i in carried else value for i, value in enumerate(results)]

    return run if carried else lambda results: results


def _elementwise(op: Elementwise, node: Node) -> Call:
    body = scalar.compiled(op.scalar(*(Expr("operand", v.dtype, (), i) for i, v in enumerate(node.inputs))))

    def run(operands: Sequence[Value], weights: Weights) -> Sequence[Value]:
        made = body(operands)
        shape = np.broadcast_shapes(*(tuple(a.shape) for a in operands))
        return (made if tuple(made.shape) == shape else mx.broadcast_to(made, shape),)

    return run


def _if(op: Any, node: Node, bodies: list[Plan], binding: Mapping[str, int]) -> Call:
    def run(operands: Sequence[Value], weights: Weights) -> Sequence[Value]:
        taken = 0 if operands[0].item() else 1
        node.regions[taken].bind(binding)  # dims that this side took to be equal
        return bodies[taken](operands[1:], weights)

    return run


def _while(op: Any, node: Node, bodies: list[Plan], binding: Mapping[str, int]) -> Call:
    test, body = bodies
    limit = math.inf if op.limit is None else op.limit

    def run(operands: Sequence[Value], weights: Weights) -> Sequence[Value]:
        carried, rest = list(operands[: op.carried]), list(operands[op.carried :])
        trip = 0
        while trip < limit and test([*carried, *rest], weights)[0].item():
            interrupt.check()
            carried = list(body([*carried, *rest], weights))
            trip += 1
            if trip % UNEVALUATED == 0:  # the test may hang on none of them
                mx.eval(carried)
        return carried

    return run


def _scan(op: Any, node: Node, bodies: list[Plan], binding: Mapping[str, int]) -> Call:
    first, behind = op.carried, op.carried + op.sequences
    length = dims.evaluate(op.length, binding)
    types = [_shape_and_dtype(v, binding) for v in list(node.regions[0].outputs.values())[first:]]

    def run(operands: Sequence[Value], weights: Weights) -> Sequence[Value]:
        carried, rest = list(operands[:first]), list(operands[behind:])
        rows: list[Sequence[Value]] = []
        for trip in range(length - 1, -1, -1) if op.reverse else range(length):
            interrupt.check()
            made = bodies[0]([*carried, *(s[trip] for s in operands[first:behind]), *rest], weights)
            carried = list(made[:first])
            rows.append(made[first:])
            if len(rows) % UNEVALUATED == 0:
                mx.eval(carried, rows[-UNEVALUATED:])
        if op.reverse:
            rows.reverse()
        if not rows:
            return [*carried, *(held(np.zeros((0, *shape), dtype)) for shape, dtype in types)]
        return [*carried, *(mx.stack(list(column), 0) for column in zip(*rows))]

    return run


def _shape_and_dtype(value: Any, binding: Mapping[str, int]) -> tuple[tuple[int, ...], Any]:
    """Shape and NumPy dtype of a value at these dims."""
    return tuple(dims.evaluate(d, binding) for d in value.shape), value.dtype.numpy
