"""Builds the MIL program of a graph at known dims."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.base import Unsupported
from rlx.backends.coreml import compressed, contractions, fused, indexing, scalar
from rlx.backends.coreml.indexing import element_of, put_at, row_of
from rlx.backends.coreml.library import (
    GREATEST,
    LEAST,
    NAMES,
    TARGET,
    Value,
    constant,
    fits,
    mb,
    mil_type,
    narrowed,
    tools,
)
from rlx.backends.coreml.scalar import broadcast
from rlx.backends.coreml.shapes import TABLE, joined, reshaped
from rlx.errors import InputError, UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.expr import Expr, const
from rlx.ir.graph import Graph, Node
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.ir.op import Constant, Elementwise, Input, Op, Param
from rlx.ir.type import TensorType
from rlx.ops.reduce import identity
from rlx.passes import prepare
from rlx.records import dataclass

FAMILIES = (compressed, fused, indexing, contractions)
"""What fills the table."""
CONTROL = frozenset({"if", "while", "scan"})
MOST_AXES = 5
UNROLLED = 64
"""Steps of a scan that are written out; longer ones are loops."""
RESERVED = frozenset((
    "any", "block", "bool", "dict", "false", "func", "list", "program", "state", "str", "string", "tensor", "true",
    "tuple", "unknown", "bf16", "fp16", "fp32", "fp64",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
))  # fmt: skip
"""Words of MIL, which cannot be names."""
Params = Mapping[str, Array]


# what cannot be said


def refused(graph: Graph) -> list[Unsupported]:
    """Nodes of a legalised graph that Core ML does not take, those of regions too."""
    unsupported = []
    empty_outputs = {id(v.node) for v in graph.outputs.values() if 0 in v.shape}
    for node in graph.nodes:
        reason = "Core ML has no arrays without elements" if id(node) in empty_outputs else _why_refused(node)
        if reason:
            unsupported.append(Unsupported(node, reason))
        for region in node.regions:
            unsupported.extend(refused(region))
    return unsupported


def prepared(graph: Graph) -> Graph:
    """A legalised graph without what params alone decide: that is worked out before the conversion."""
    return prepare.split(graph, compressed.STAYS)[1]


def worked_out(graph: Graph, params: Params) -> tuple[Graph, Params]:
    """The `prepared` graph, and its params by the references of the ops left out."""
    parts, rest = prepare.split(graph, compressed.STAYS)
    values = dict(params)
    with np.errstate(all="ignore"):
        for part in parts:
            values |= zip(part.outputs, evaluate(part, {}, values, {}))
    return rest, values


def _why_refused(node: Node) -> str:
    for of in (*(v.type for v in node.inputs), *node.types):
        if of.dtype not in NAMES:
            return f"Core ML has no {of.dtype}"
        if of.rank > MOST_AXES:
            return f"Core ML's arrays have {MOST_AXES} axes at most"
    op: Any = node.op
    if _nothing_here(node):
        return "Core ML has no arrays without elements"
    if any(0 in of.shape for of in node.types):
        return ""  # it is not computed
    if isinstance(op, Elementwise):
        return scalar.why_not(op.scalar(*_leaves(node)))
    if isinstance(op, Constant):
        return "" if fits(op.reference()) else "Core ML's integers have 32 bits, a constant needs more"
    if not _supported(op):
        return f"no lowering for {op.name}"
    dtype = node.types[0].dtype
    if op.name in ("cummax", "cummin", "reduce_window") and dtype.is_integer and dtype.bits < 32:
        return f"Core ML has no {op.name} of {dtype}"  # what they begin with lies outside of it
    return ""


@dataclass(frozen=True)
class Nothing:
    """An array without elements: Core ML has none, so nobody gets one."""

    shape: tuple[int, ...]


def _nothing_here(node: Node) -> bool:
    """Whether a node needs arrays without elements, as more than parts that can be left out."""
    if any(0 in of.shape for of in node.types):
        return isinstance(node.op, (Input, Param)) or bool(node.regions)
    empty = any(0 in v.shape for v in node.inputs)
    return empty and node.op.name not in WITHOUT


def _without(op: Any, node: Node, operands: list[Any]) -> Value:
    """What ops give of arrays without elements where they give something."""
    of = node.types[0]
    shape = tuple(dims.evaluate(d, {}) for d in of.shape)
    match op.name:
        case "concat":
            return joined([v for v in operands if not isinstance(v, Nothing)], op.axis % len(shape))
        case "scatter_elements" | "scatter_nd":
            return operands[0]
    fill = op.value if op.name == "pad" else 0 if op.name == "dot_general" else identity(op.combine, of.dtype.numpy)
    array = np.full(shape, np.asarray(fill).astype(of.dtype.numpy))
    return constant(np.clip(array, LEAST, GREATEST) if of.dtype is dtypes.i64 else array)


WITHOUT = frozenset((
    "concat", "scatter_elements", "scatter_nd", "pad", "dot_general", "reduce_sum", "reduce_prod", "reduce_max",
    "reduce_min",
))  # fmt: skip


def _supported(op: Op) -> bool:
    return isinstance(op, (Input, Param)) or op.name in TABLE or op.name in CONTROL


def _leaves(node: Node) -> list[Expr]:
    """The operands of an elementwise node; numbers that are known are known in the expression too."""
    return [_number_of(v) or Expr("operand", v.dtype, (), i) for i, v in enumerate(node.inputs)]


def _number_of(value: Any) -> Expr | None:
    op = value.node.op
    if not isinstance(op, Constant) or value.type.size != 1 or value.dtype not in NAMES:
        return None
    return const(op.reference().reshape(())[()], value.dtype)


def listed(unsupported: Iterable[Unsupported]) -> str:
    """Refusals as the text of an error."""
    return "; ".join(f"[{u.node.op.name}] at node {u.node.source or u.node.name!r}: {u.reason}" for u in unsupported)


# what can


@dataclass(frozen=True)
class Port:
    """An input or output of a model: its name there, and what it is in the graph. A scalar has one axis there, a bool
    is an i32."""

    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(dims.evaluate(d, {}) for d in self.type.shape) or (1,)

    @property
    def mil(self) -> str:
        """The dtype in the model."""
        return "int32" if self.type.dtype is dtypes.bool_ else NAMES[self.type.dtype]


def ports(named: Sequence[tuple[str, TensorType]], names: set[str]) -> list[Port]:
    """Names as Core ML takes them: letters, digits and underscores, each once."""
    port_list = []
    for name, of in named:
        stem = re.sub(r"\W", "_", name, flags=re.ASCII) or "value"
        stem = f"_{stem}" if stem[0].isdigit() else f"{stem}_" if stem in RESERVED else stem
        unique, count = stem, 1
        while unique in names:
            count += 1
            unique = f"{stem}_{count}"
        names.add(unique)
        port_list.append(Port(unique, of))
    return port_list


@dataclass(frozen=True)
class Built:
    """A program of MIL with what goes in and comes out, in the order of the graph's."""

    program: Any
    inputs: list[Port]
    outputs: list[Port]


def build(graph: Graph, params: Params) -> Built:
    """The program of a legalised graph without dims that are open. Raises UnsupportedOp, InputError."""
    unsupported = refused(graph)
    if unsupported:
        raise UnsupportedOp(f"[coreml] {listed(unsupported)}")
    tools()
    from coremltools.converters.mil.mil import Function, Program

    names: set[str] = set()
    inputs = ports([(v.name, v.type) for v in graph.inputs], names)
    outputs = ports([(name, v.type) for name, v in graph.outputs.items()], names)
    placeholders = {p.name: mb.placeholder(shape=p.shape, dtype=_placed(p)) for p in inputs}
    program = Program()
    with Function(placeholders, opset_version=getattr(tools().target, TARGET)) as function, np.errstate(all="ignore"):
        values = {v.name: _entered(function.inputs[p.name], p) for v, p in zip(graph.inputs, inputs)}
        results = Walk(params).run(graph, values)
        function.set_outputs([_left(value, port) for value, port in zip(results, outputs)])
    program.add_function("main", function)
    return Built(program, inputs, outputs)


def _placed(port: Port) -> Any:
    return mil_type(dtypes.i32 if port.type.dtype is dtypes.bool_ else port.type.dtype)


def _entered(value: Value, port: Port) -> Value:
    if port.type.dtype is dtypes.bool_:
        value = mb.not_equal(x=value, y=np.int32(0))
    return value if port.type.rank else reshaped(value, ())


def _left(value: Value, port: Port) -> Value:
    if port.type.dtype is dtypes.bool_:
        value = mb.cast(x=value, dtype="int32")
    return mb.identity(x=value if port.type.rank else reshaped(value, (1,)), name=port.name)


class Walk:
    """Writes the nodes of graphs into the program that is open."""

    def __init__(self, params: Params) -> None:
        self.params = params

    def run(self, graph: Graph, inputs: Mapping[str, Value]) -> list[Value]:
        """The outputs of a graph."""
        values: dict[tuple[int, int], Value] = {}
        for node in graph.nodes:
            results = self._node(node, [values[id(v.node), v.index] for v in node.inputs], inputs)
            for i, value in enumerate(results if isinstance(results, (list, tuple)) else (results,)):
                values[id(node), i] = value
        return [values[id(v.node), v.index] for v in graph.outputs.values()]

    def _node(self, node: Node, operands: list[Value], inputs: Mapping[str, Value]) -> Any:
        op: Any = node.op
        empty = [tuple(dims.evaluate(d, {}) for d in of.shape) for of in node.types if 0 in of.shape]
        if empty:
            return [Nothing(shape) for shape in empty]
        if any(isinstance(value, Nothing) for value in operands):
            return _without(op, node, operands)
        if isinstance(op, Input):
            return inputs[node.name]
        if isinstance(op, Param):
            return self._weight(node.name)
        if isinstance(op, Constant):
            return constant(op.reference())
        if isinstance(op, Elementwise):
            result = scalar.evaluate(op.scalar(*_leaves(node)), operands)
            return broadcast(result, tuple(dims.evaluate(d, {}) for d in node.types[0].shape))
        if op.name in CONTROL:
            return {"if": self._if, "while": self._while, "scan": self._scan}[op.name](op, node, operands)
        result = TABLE[op.name](op, *operands)
        sums = op.name in ("dot_general", "conv") or getattr(op, "combine", None) in ("add", "mul")
        grows = sums or op.is_composite or op.name == "pad"
        return scalar.wrapped(result, node.types[0].dtype) if grows else result

    def _weight(self, name: str) -> Value:
        """A weight as a constant; the conversion makes one of equal ones."""
        array = self.params[name]
        if not fits(array):
            raise InputError(f"[coreml] expected weights whose integers have 32 bits, got others for {name!r}")
        return constant(narrowed(array))

    def _region(self, graph: Graph, operands: Sequence[Value]) -> tuple[Value, ...]:
        values = self.run(graph, dict(zip((v.name for v in graph.inputs), operands)))
        return tuple(mb.identity(x=value) for value in values)  # blocks give what they made themselves

    def _if(self, op: Any, node: Node, operands: list[Value]) -> Any:
        yes, no = node.regions
        return mb.cond(
            pred=operands[0],
            _true_fn=lambda: self._region(yes, operands[1:]),
            _false_fn=lambda: self._region(no, operands[1:]),
        )

    def _while(self, op: Any, node: Node, operands: list[Value]) -> Any:
        test, body = node.regions
        rest = operands[op.carried :]

        def goes_on(trip: Value, *carried: Value) -> Value:
            more = self._region(test, [*carried, *rest])[0]
            return more if op.limit is None else mb.logical_and(x=more, y=mb.less(x=trip, y=np.int32(op.limit)))

        def step(trip: Value, *carried: Value) -> tuple[Value, ...]:
            return (mb.add(x=trip, y=np.int32(1)), *self._region(body, [*carried, *rest]))

        results = mb.while_loop(_cond=goes_on, _body=step, loop_vars=(constant(np.int32(0)), *operands[: op.carried]))
        return results[1:]

    def _scan(self, op: Any, node: Node, operands: list[Value]) -> list[Value]:
        length = dims.evaluate(op.length, {})
        return (self._unrolled if length <= UNROLLED else self._looped)(op, node.regions[0], operands, length)

    def _unrolled(self, op: Any, body: Graph, operands: list[Value], length: int) -> list[Value]:
        first, behind = op.carried, op.carried + op.sequences
        carried, rows = operands[:first], []
        for trip in range(length)[:: -1 if op.reverse else 1]:
            results = self._region(
                body, [*carried, *(row_of(s, trip) for s in operands[first:behind]), *operands[behind:]]
            )
            carried = list(results[:first])
            rows.append([mb.expand_dims(x=value, axes=[0]) for value in results[first:]])
        if op.reverse:
            rows.reverse()
        return [*carried, *(joined(column, 0) for column in zip(*rows))]

    def _looped(self, op: Any, body: Graph, operands: list[Value], length: int) -> list[Value]:
        """Step results are put into arrays that the loop carries."""
        first, behind = op.carried, op.carried + op.sequences
        kinds = [v.type for v in list(body.outputs.values())[first:]]
        space = [
            constant(np.zeros((length, *(dims.evaluate(d, {}) for d in of.shape)), of.dtype.numpy)) for of in kinds
        ]

        def step(trip: Value, *state: Value) -> tuple[Value, ...]:
            place = mb.sub(x=np.int32(length - 1), y=trip) if op.reverse else trip
            at = mb.expand_dims(x=place, axes=[0])
            elements = [element_of(s, at) for s in operands[first:behind]]
            results = self._region(body, [*state[:first], *elements, *operands[behind:]])
            rows = [put_at(all_, at, value) for all_, value in zip(state[first:], results[first:])]
            return (mb.add(x=trip, y=np.int32(1)), *results[:first], *rows)

        start = (constant(np.int32(0)), *operands[:first], *space)
        results = mb.while_loop(
            _cond=lambda trip, *state: mb.less(x=trip, y=np.int32(length)), _body=step, loop_vars=start
        )
        return list(results[1:])
