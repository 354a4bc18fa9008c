"""Graph: an SSA DAG of nodes in topological order, built through `add` with shape and dtype inference."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from rlx.errors import GraphError, RlxError, ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.expect import Equality
from rlx.ir.literal import Array, Literal
from rlx.ir.op import REGISTRY, Constant, Input, Op, Param, Types, lookup
from rlx.ir.type import TensorType

Scalar = bool | int | float | complex
Operand = "Value | Scalar | Array"


class Value:
    """One result of a node. Operators build nodes: `x @ w + b`."""

    __slots__ = ("index", "node")
    __array_priority__ = 1000
    __array_ufunc__ = None  # so that `array + value` asks Value

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.index = index

    @property
    def graph(self) -> Graph:
        return self.node.graph

    @property
    def type(self) -> TensorType:
        return self.node.types[self.index]

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def name(self) -> str:
        return self.node.name if self.index == 0 else f"{self.node.name}.{self.index}"

    @property
    def op(self) -> Op:
        return self.node.op

    @property
    def constant(self) -> Array | None:
        """The array if this is a constant, else None."""
        return self.node.op.value.array if isinstance(self.node.op, Constant) else None

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"

    def cast(self, to: Any) -> Value:
        """This value in another dtype; itself if it has it."""
        target = dtypes.of(to)
        return self if target is self.dtype else call("cast", self, to=target)

    def reshape(self, *shape: Any) -> Value:
        """New shape of as many elements; one entry may be -1."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        target = resolve_reshape(self.shape, tuple(dims.of(d) for d in wanted))
        return self if target == self.shape else call("reshape", self, shape=target)

    def transpose(self, *permutation: int) -> Value:
        """Axes in this order; reversed if none are given."""
        order = permutation or tuple(reversed(range(self.rank)))
        return call("transpose", self, permutation=expect.axes(order, self.rank, "permutation"))

    @property
    def T(self) -> Value:
        return self.transpose()

    def __add__(self, other: Any) -> Value:
        return call("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return call("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return call("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return call("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return call("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return call("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return call("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return call("div", other, self)

    def __mod__(self, other: Any) -> Value:
        return call("mod", self, other)

    def __pow__(self, other: Any) -> Value:
        return call("pow", self, other)

    def __neg__(self) -> Value:
        return call("neg", self)

    def __abs__(self) -> Value:
        return call("abs", self)

    def __matmul__(self, other: Any) -> Value:
        return call("matmul", self, other)

    def __lt__(self, other: Any) -> Value:
        return call("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return call("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return call("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return call("ge", self, other)

    def __and__(self, other: Any) -> Value:
        return call("bitwise_and", self, other)

    def __or__(self, other: Any) -> Value:
        return call("bitwise_or", self, other)

    def __xor__(self, other: Any) -> Value:
        return call("bitwise_xor", self, other)

    def __invert__(self) -> Value:
        return call("bitwise_not", self)

    def __getitem__(self, key: Any) -> Value:
        """Ints, slices with int or dim ends, None and `...`, as in NumPy."""
        return index(self, key if isinstance(key, tuple) else (key,))

    def __iter__(self) -> Any:
        raise GraphError(f"[value] expected an index such as x[0], got iteration over {self!r}")

    def __bool__(self) -> bool:
        raise GraphError(f"[value] expected select(…), got the truth of {self!r}, known only when the graph runs")


class Node:
    """An op applied. `source` names what it came from (the node in a model file, the pass that made it)."""

    __slots__ = ("graph", "inputs", "name", "op", "regions", "source", "types")

    def __init__(
        self,
        graph: Graph,
        op: Op,
        inputs: tuple[Value, ...],
        types: tuple[TensorType, ...],
        name: str,
        source: str | None,
        regions: tuple[Graph, ...],
    ) -> None:
        self.graph = graph
        self.op = op
        self.inputs = inputs
        self.types = types
        self.name = name
        self.source = source
        self.regions = regions

    @property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(Value(self, i) for i in range(len(self.types)))

    def __repr__(self) -> str:
        inside = ", ".join(f"%{v.name}" for v in self.inputs)
        return f"%{self.name}: {', '.join(map(str, self.types))} = {self.op.name}({inside})"


class Graph:
    """A program. Inputs, params and outputs have names; nodes lie in topological order.

    bounds      least and greatest value of named dims, where known
    equalities  dims that type rules took to be equal; checked when the dims get values
    data        arrays of params that the model brought along (not part of the program)
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.outputs: dict[str, Value] = {}
        self.bounds: dict[str, tuple[int, int | None]] = {}
        self.equalities: list[Equality] = []
        self.data: dict[str, Array] = {}
        self._names: set[str] = set()
        self._uses: dict[tuple[int, int], list[Node]] = {}
        self._counter = 0

    @property
    def inputs(self) -> list[Value]:
        return [Value(n, 0) for n in self.nodes if isinstance(n.op, Input)]

    @property
    def params(self) -> list[Value]:
        return [Value(n, 0) for n in self.nodes if isinstance(n.op, Param)]

    @property
    def symbols(self) -> list[str]:
        """Names of the dims that inputs and params bring, in order of appearance."""
        found: dict[str, None] = {}
        for value in (*self.inputs, *self.params):
            for dim in value.shape:
                found.update(dict.fromkeys(sorted(dims.symbols(dim))))
        return list(found)

    def uses(self, value: Value) -> list[Node]:
        """Nodes that take this value, one entry for each operand that is it."""
        return self._uses.get((id(value.node), value.index), [])

    def input(self, name: str, shape: Iterable[Any], dtype: Any = "f32") -> Value:
        """An input; entries of `shape` are ints or names of dims."""
        return self._leaf(Input(TensorType.of(shape, dtype)), name)

    def param(self, name: str, shape: Iterable[Any], dtype: Any = "f32", data: Array | None = None) -> Value:
        """A weight; `data` is kept beside the graph until a compiled graph takes it."""
        declared = TensorType.of(shape, dtype)
        if data is not None:
            if data.shape != declared.shape or dtypes.of(data.dtype) is not declared.dtype:
                got = f"{dtypes.of(data.dtype)}{list(data.shape)}"
                raise ShapeError(f"[param] expected data of {declared}, got {got}, at node {name!r}")
            self.data[name] = data
        return self._leaf(Param(declared), name)

    def _leaf(self, op: Op, name: str) -> Value:
        if name in self._names:
            raise GraphError(f"[{op.name}] expected a new name, got {name!r} twice")
        value = self.add(op, name=name)
        assert isinstance(value, Value)
        return value

    def constant(self, array: Any, dtype: Any = None, name: str | None = None) -> Value:
        """A constant of the array's dtype, or of `dtype`."""
        read = np.asarray(array)
        if dtype is not None:
            read = read.astype(dtypes.of(dtype).numpy)
        value = self.add(Constant(Literal(read)), name=name)
        assert isinstance(value, Value)
        return value

    def output(self, *values: Value, name: str | None = None, **named: Value) -> None:
        """Declares results, named by `name`, by keyword, or after their values."""
        pairs = [(name if name and len(values) == 1 else v.name, v) for v in values] + list(named.items())
        for key, value in pairs:
            if value.graph is not self:
                raise GraphError(f"[output] expected a value of the graph {self.name!r}, got {value!r} of another")
            while key in self.outputs:
                key += "_"
            self.outputs[key] = value

    def add(
        self,
        op: Op,
        *inputs: Value,
        name: str | None = None,
        source: str | None = None,
        regions: Sequence[Graph] = (),
    ) -> Value | tuple[Value, ...]:
        """A node; its value, or the tuple of its values if the op has several.

        Raises ShapeError, DTypeError, GraphError.
        """
        label = name if name is not None else source
        for value in inputs:
            if value.node.graph is not self:
                raise GraphError(f"[{op.name}] expected values of the graph {self.name!r}, got {value!r} of another")
        least, most = op.arity
        if not least <= len(inputs) <= most:
            wanted = str(least) if least == most else f"{least} to {most}" if most < 1 << 30 else f"at least {least}"
            raise GraphError(f"[{op.name}] expected {wanted} operands, got {len(inputs)}{_at(label, inputs)}")
        with expect.noting() as noted:
            try:
                types = infer(op, tuple(v.type for v in inputs), tuple(regions))
            except RlxError as error:
                raise type(error)(f"[{op.name}] {error}{_at(label, inputs)}") from None
        self.equalities.extend(noted)
        several = types if isinstance(types, tuple) else (types,)
        node = Node(self, op, inputs, several, self._fresh(name or op.name, name), source, tuple(regions))
        self.nodes.append(node)
        for value in inputs:
            self._uses.setdefault((id(value.node), value.index), []).append(node)
        return Value(node, 0) if not isinstance(types, tuple) else node.outputs

    def _fresh(self, stem: str, wanted: str | None) -> str:
        name = stem
        if wanted is None or name in self._names:
            while True:
                name = f"{stem}_{self._counter}"
                self._counter += 1
                if name not in self._names:
                    break
        self._names.add(name)
        return name

    def bind(self, value: Mapping[str, int]) -> None:
        """Checks dims against bounds and equalities. Raises ShapeError that names both sides."""
        for name, (low, high) in self.bounds.items():
            if name in value and (value[name] < low or (high is not None and value[name] > high)):
                limits = f"[{low}, {high if high is not None else 'inf'}]"
                raise ShapeError(f"expected the dim {name!r} in {limits}, got {value[name]}")
        for equality in self.equalities:
            left, right = dims.evaluate(equality.left, value), dims.evaluate(equality.right, value)
            if left != right:
                raise ShapeError(f"{equality.reason}: {equality.left} = {left} against {equality.right} = {right}")

    def __str__(self) -> str:
        from rlx.ir.text import print_graph

        return print_graph(self)

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}: {len(self.nodes)} nodes>"


def infer(op: Op, types: tuple[TensorType, ...], regions: tuple[Graph, ...] = ()) -> Types:
    """The op's type rule on operand types."""
    if _takes_regions(type(op)):
        return type(op).infer(op, *types, regions=regions)
    return type(op).infer(op, *types)


@cache
def _takes_regions(cls: type[Op]) -> bool:
    return "regions" in inspect.signature(cls.infer).parameters


def _at(label: str | None, inputs: Sequence[Value]) -> str:
    named = ", ".join(repr(v.name) for v in inputs)
    place = f", at node {label!r}" if label else ""
    return place + (f", inputs {named}" if named else "")


def call(name: str, *operands: Any, source: str | None = None, **attributes: Any) -> Any:
    """Builds a node by op name. Python scalars take the dtype of the first Value; arrays become constants.

    Raises GraphError if no operand is a Value.
    """
    cls = lookup(name)
    while operands and operands[-1] is None:
        operands = operands[:-1]
    model = next((o for o in operands if isinstance(o, Value)), None)
    if model is None:
        raise GraphError(f"[{name}] expected a value of a graph among the operands, got {list(operands)}")
    if name == "select":
        model = next((o for o in operands[1:] if isinstance(o, Value)), model)
    values = tuple(as_value(model, operand) for operand in operands)
    try:
        made = cls(**attributes)
    except TypeError as error:
        raise GraphError(f"[{name}] {error}") from None
    return model.graph.add(made, *values, source=source)


def as_value(model: Value, operand: Any) -> Value:
    """A Value of an operand: scalars are weak (they take `model`'s dtype where it can hold them)."""
    if isinstance(operand, Value):
        return operand
    if isinstance(operand, (bool, int, float, complex)) and not isinstance(operand, np.generic):
        needed = dtypes.bool_ if isinstance(operand, bool) else None
        target = needed if needed is model.dtype else model.dtype
        if isinstance(operand, float) and not model.dtype.is_inexact:
            target = dtypes.f32
        if isinstance(operand, complex) and not model.dtype.is_complex:
            target = dtypes.c64
        return model.graph.constant(np.asarray(operand), target)
    return model.graph.constant(operand)


def resolve_reshape(shape: Shape, wanted: Shape) -> Shape:
    """`wanted` with its one -1 worked out. Raises ShapeError."""
    if wanted.count(-1) > 1:
        raise ShapeError(f"[reshape] expected at most one -1, got {list(wanted)}")
    total = dims.product(shape)
    if -1 in wanted:
        rest = dims.product(d for d in wanted if d != -1)
        found = dims.exact_div(total, rest) if rest != 0 else (0 if total == 0 else None)
        if found is None and isinstance(total, int) and isinstance(rest, int):
            raise ShapeError(f"[reshape] expected {list(wanted)} to divide {total} elements, got {list(shape)}")
        missing: Dim = found if found is not None else dims.floordiv(total, rest)
        return tuple(missing if d == -1 else d for d in wanted)
    return wanted


def index(x: Value, key: tuple[Any, ...]) -> Value:
    """Basic indexing, as slice, squeeze and unsqueeze nodes."""
    if sum(1 for k in key if k is Ellipsis) > 1:
        raise ShapeError("[index] expected at most one ellipsis")
    used = sum(1 for k in key if k is not None and k is not Ellipsis)
    if used > x.rank:
        raise ShapeError(f"[index] expected at most {x.rank} indices, got {used}")
    if Ellipsis not in key:
        key = (*key, Ellipsis)
    at = key.index(Ellipsis)
    full = (*key[:at], *([slice(None)] * (x.rank - used)), *key[at + 1 :])
    starts: list[Dim] = []
    stops: list[Dim] = []
    steps: list[int] = []
    shape: list[Dim] = []
    for k in full:
        if k is None:
            shape.append(1)
            continue
        extent = x.shape[len(starts)]
        start, stop, step = _slice_of(k, extent)
        starts.append(start)
        stops.append(stop)
        steps.append(step)
        if isinstance(k, slice):
            shape.append(slice_extent(start, stop, step))
    whole = all(s == 0 and e == d and t == 1 for s, e, d, t in zip(starts, stops, x.shape, steps))
    if not whole:
        x = call("slice", x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))
    return x if x.shape == tuple(shape) else call("reshape", x, shape=tuple(shape))


def slice_extent(start: Dim, stop: Dim, step: int) -> Dim:
    """Number of elements that start, start+step, … short of stop has."""
    span = dims.add(stop, dims.mul(start, -1)) if step > 0 else dims.add(start, dims.mul(stop, -1))
    count = dims.ceildiv(span, abs(step))
    return max(count, 0) if isinstance(count, int) else dims.maximum(0, count)


def _slice_of(key: Any, extent: Dim) -> tuple[Dim, Dim, int]:
    if not isinstance(key, slice):
        at = dims.of(key)
        if isinstance(at, int) and at < 0:
            at = dims.add(extent, at)
        if isinstance(at, int) and isinstance(extent, int) and not 0 <= at < extent:
            raise ShapeError(f"[index] expected an index in [{-extent}, {extent}), got {key}")
        return at, dims.add(at, 1), 1
    step = 1 if key.step is None else int(key.step)
    if step == 0:
        raise ShapeError("[index] expected a step that is not zero")
    return clamp_slice(key.start, key.stop, step, extent)


def clamp_slice(start: Any, stop: Any, step: int, extent: Dim) -> tuple[Dim, Dim, int]:
    """Python's slice rule on dims: missing ends, ends from the back, ends past the array."""
    lowest: Dim = 0 if step > 0 else -1
    highest: Dim = extent if step > 0 else dims.add(extent, -1)

    def clamp(end: Any, missing: Dim) -> Dim:
        if end is None:
            return missing
        read = dims.of(end)
        if isinstance(read, int) and read < 0:
            read = dims.add(extent, read)
        if isinstance(read, int) and isinstance(highest, int):
            return max(min(read, highest), lowest if isinstance(lowest, int) else 0)
        if read == extent and step > 0:
            return read
        if isinstance(read, int) and read <= 0:
            return max(read, lowest if isinstance(lowest, int) else 0)
        return dims.maximum(lowest, dims.minimum(read, highest))

    return clamp(start, lowest if step > 0 else highest), clamp(stop, highest if step > 0 else lowest), step


def op_names() -> list[str]:
    """Names of all registered ops."""
    return sorted(REGISTRY)
