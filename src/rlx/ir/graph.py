"""Graph: an SSA DAG of nodes in topological order, built through `add` with shape and dtype inference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.arguments import checked
from rlx.errors import GraphError, RlxError, ShapeError, did_you_mean
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim, Poly, Shape
from rlx.ir.expect import Equality
from rlx.ir.inference import known_types, types_of
from rlx.ir.literal import Array, Literal
from rlx.ir.op import ANY_NUMBER, LEAVES, RANDOM_STATE, Constant, Input, Measured, Op, Param, State, lookup
from rlx.ir.printing import print_graph, same_graph
from rlx.ir.symbols import symbols_of
from rlx.ir.type import TensorType
from rlx.ir.value import Node as Node
from rlx.ir.value import Value as Value

Scalar = bool | int | float | complex


class Graph:
    """A program. Inputs, params and outputs have names; nodes lie in topological order.

    bounds      least and greatest value of named dims, where known
    states      of each state that runs change, the output that it becomes
    given       dims that whoever runs the graph brings as numbers, beside those that shapes of inputs and params tell
    equalities  dims that type rules took to be equal; checked when the dims get values
    data        arrays of params that the model brought along (not part of the program)
    assumes_equal   types of what open dims broadcast to were made as if these were equal. Such a graph says nothing of
                runs where one of them is 1 and another is not
    anew        makes such a graph anew with some dims known, from what it was made of; None where that is not at hand
    enclosing   the graph whose values it takes in while a function builds it as a region; None for all others
    """

    enclosing: Graph | None = None

    def __init__(self, name: str = "graph", assumes_equal: bool = False) -> None:
        self.name = name
        self.assumes_equal = assumes_equal
        self.anew: Callable[[Mapping[str, int]], Graph] | None = None
        self.nodes: list[Node] = []
        self.outputs: dict[str, Value] = {}
        self.states: dict[str, str] = {}
        self.bounds: dict[str, tuple[int, int | None]] = {}
        self.given: tuple[str, ...] = ()
        self.equalities: list[Equality] = []
        self.data: dict[str, Array] = {}
        self._names: set[str] = set()
        self._noted: set[Equality] = set()
        self._uses: dict[object, list[Node]] | None = None
        self._counter = 0

    @property
    def inputs(self) -> list[Value]:
        """What a run gets: what callers bring, and states."""
        return [Value(n, 0) for n in self.nodes if isinstance(n.op, Input)]

    @property
    def brought(self) -> list[Value]:
        """The inputs that callers bring: all but states."""
        return [value for value in self.inputs if not isinstance(value.op, State)]

    @property
    def results(self) -> dict[str, Value]:
        """Outputs for callers: all that are not the next value of a state."""
        following = set(self.states.values())
        return {name: value for name, value in self.outputs.items() if name not in following}

    @property
    def params(self) -> list[Value]:
        return [Value(n, 0) for n in self.nodes if isinstance(n.op, Param)]

    @property
    def symbols(self) -> list[str]:
        """Names of the dims that are given, then those that inputs and params bring, in order of appearance."""
        names: dict[str, None] = dict.fromkeys(self.given)
        for value in (*self.inputs, *self.params):
            for dim in value.shape:
                names.update(dict.fromkeys(sorted(dims.symbols(dim))))
        return list(names)

    @property
    def measured(self) -> dict[str, Node]:
        """Names of the dims that get their value while the graph runs, with the node that gives it."""
        return {node.op.symbol: node for node in self.nodes if isinstance(node.op, Measured)}

    def uses(self, value: Value) -> list[Node]:
        """Nodes that use this value, one entry for each operand."""
        if self._uses is None:  # most graphs between two passes are never asked
            self._uses = {}
            for node in self.nodes:
                self._note_uses(self._uses, node)
        return self._uses.get(_place(value), [])

    @staticmethod
    def _note_uses(uses: dict[object, list[Node]], node: Node) -> None:
        for value in node.inputs:
            uses.setdefault(_place(value), []).append(node)

    def input(self, name: str, shape: Iterable[Any], dtype: Any = "f32") -> Value:
        """An input; entries of `shape` are ints or names of dims."""
        return self._leaf(Input(TensorType.of(shape, dtype)), name)

    def random_state(self) -> Value:
        """The state for ops that draw random numbers: an input that the runtime provides, new in each run."""
        known = next((value for value in self.inputs if value.name == RANDOM_STATE), None)
        return self.input(RANDOM_STATE, (4,), "u32") if known is None else known

    def state(self, name: str, shape: Iterable[Any], dtype: Any = "f32") -> Value:
        """The value of the state of this name when a run starts: zeros at first, if its dims are numbers. `set_next`
        sets its next value."""
        return self._leaf(State(TensorType.of(shape, dtype)), name)

    @checked
    def set_next(self, state: Value, value: Value) -> None:
        """Sets the value that a state has after a successful run: once for each state.

        If `value` is the state with parts replaced (`update_slice`, `scatter_nd`, `scatter_elements`, or several in a
        row), and nothing else reads what is overwritten, a run writes only these parts.
        """
        if not isinstance(state.op, State) or state.graph is not self:
            raise GraphError(f"[set_next] expected a state of the graph {self.name!r}, got {state!r}")
        if state.name in self.states:
            raise GraphError(f"[set_next] expected one next value of each state, got another of {state.name!r}")
        if value.graph is not self:
            raise GraphError(f"[set_next] expected a value of the graph {self.name!r}, got {value!r} of another")
        if not value.type.flows_into(state.type):
            raise ShapeError(f"[set_next] expected {state.type} for the state {state.name!r}, got {value.type}")
        name = f"{state.name}.next"
        while name in self.outputs:
            name += "_"
        self.outputs[name] = value
        self.states[state.name] = name

    def param(self, name: str, shape: Iterable[Any], dtype: Any = "f32", data: Array | None = None) -> Value:
        """A weight; `data` is kept beside the graph until a compiled graph takes it."""
        declared = TensorType.of(shape, dtype)
        if data is not None:
            if not (hasattr(data, "shape") and hasattr(data, "dtype")):
                wanted = f"np.asarray(…, {declared.dtype.numpy.name!r}) makes one"
                raise GraphError(
                    f"[param] expected an array as the data of {name!r}, got {type(data).__name__}: {wanted}"
                )
            if data.shape != declared.shape or dtypes.of(data.dtype) is not declared.dtype:
                actual = f"{dtypes.of(data.dtype)}{list(data.shape)}"
                raise ShapeError(f"[param] expected data of {declared}, got {actual}, at node {name!r}")
            self.data[name] = data
        return self._leaf(Param(declared), name)

    def _leaf(self, op: Op, name: str) -> Value:
        if not isinstance(name, str):
            raise GraphError(f"[{op.name}] expected a name as text, got {name!r}")
        if name in self._names:
            raise GraphError(f"[{op.name}] expected a new name, got {name!r} twice")
        value = self.add(op, name=name)
        assert isinstance(value, Value)
        return value

    def constant(self, array: Any, dtype: Any = None, name: str | None = None) -> Value:
        """A constant of the array's dtype, or of `dtype`."""
        try:
            read = np.asarray(array)
        except ValueError as error:
            raise GraphError(f"[constant] expected an array, or what NumPy makes one of: {error}") from None
        if dtype is not None:
            read = read.astype(dtypes.of(dtype).numpy)
        value = self.add(Constant(Literal(read)), name=name)
        assert isinstance(value, Value)
        return value

    def output(self, *values: Value, name: str | None = None, **named: Value) -> None:
        """Declares results, named by `name`, by keyword, or after their values."""
        pairs = [(name if name and len(values) == 1 else getattr(v, "name", ""), v) for v in values]
        pairs += named.items()
        for key, value in pairs:
            if not isinstance(value, Value):
                raise GraphError(f"[output] expected a value of the graph {self.name!r}, got {value!r}")
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
        _check_parts(op, inputs, name, source, regions)
        label = name if name is not None else source
        for value in inputs:
            if value.node.graph is not self:
                if value.node.graph.enclosing is not None:  # the body of a loop, which may take values of this graph
                    return value.node.graph.add(op, *inputs, name=name, source=source, regions=regions)
                raise GraphError(f"[{op.name}] expected values of the graph {self.name!r}, got {value!r} of another")
        least, most = op.arity
        if not least <= len(inputs) <= most:
            count = str(least) if least == most else f"{least} to {most}" if most < ANY_NUMBER else f"at least {least}"
            named = f" ({', '.join(op.operand_names)})" if op.operand_names else ""
            raise GraphError(f"[{op.name}] expected {count} operands{named}, got {len(inputs)}{_at(label, inputs)}")
        operand_types = tuple([v.node.types[v.index] for v in inputs])
        try:
            if inputs and not regions:
                types, noted = known_types(op, operand_types, self.assumes_equal)
            else:
                types, noted = types_of(op, operand_types, self.assumes_equal, tuple(regions))
        except RlxError as error:
            raise type(error)(f"[{op.name}] {error}{_at(label, inputs)}") from None
        inside = () if op.may_skip_regions else tuple(e for region in regions for e in region.equalities)
        self._note((*noted, *inside))
        several = types if isinstance(types, tuple) else (types,)
        node = Node(self, op, inputs, several, self._fresh(name or op.name, name), source, tuple(regions))
        self.nodes.append(node)
        if self._uses is not None:
            self._note_uses(self._uses, node)
        return Value(node, 0) if not isinstance(types, tuple) else node.outputs

    def build(self, name: str, *operands: Any, **attributes: Any) -> Value:
        """The function `build`, for operators of values: they reach it through their graph."""
        return build(name, *operands, **attributes)

    def number(self, model: Value, number: Scalar) -> Value:
        """A number of Python's beside the value `model`: it takes its dtype where that can hold it."""
        target = model.dtype
        if isinstance(number, float) and not model.dtype.is_inexact:
            target = dtypes.f32
        if isinstance(number, complex) and not model.dtype.is_complex:
            target = dtypes.c64
        return self.constant(np.asarray(number), target)

    def operand(self, model: Value, operand: Any) -> Value:
        """The function `as_value`, for methods of values."""
        return as_value(model, operand)

    def equalities_within(self) -> Iterator[Equality]:
        """Those of regions, and then its own; what a region that may not run takes to be equal is in no other list."""
        for node in self.nodes:
            for region in node.regions:
                yield from region.equalities_within()
        yield from self.equalities

    def equal(self, left: Dim, right: Dim, reason: str) -> Dim:
        """The simpler of two dims that must be equal; if this is not known yet, it is checked when the dims get their
        values. Raises ShapeError."""
        with expect.noting() as noted:
            simpler = expect.same_dim(left, right, reason)
        self._note(noted)
        return simpler

    def broadcast(self, *shapes: Shape) -> Shape:
        """What shapes broadcast to; what is not known yet is checked when dims get their values.

        Raises ShapeError.
        """
        with expect.noting(self.assumes_equal) as noted:
            shape = expect.broadcast(*shapes)
        self._note(noted)
        return shape

    def _note(self, equalities: Iterable[Equality]) -> None:
        for equality in equalities:
            if equality not in self._noted:
                self._noted.add(equality)
                self.equalities.append(equality)

    def like(self) -> Graph:
        """A graph without nodes that has all else of this one, and knows its names as taken: `adopt` brings them."""
        copy = Graph(self.name, self.assumes_equal)
        copy.bounds = dict(self.bounds)
        copy.states = dict(self.states)
        copy.given = self.given
        copy.equalities = list(dict.fromkeys(self.equalities))
        copy.data = dict(self.data)
        copy._noted = set(self.equalities)
        copy._names = set(self._names)
        copy._counter = self._counter
        return copy

    def adopt(self, node: Node, inputs: tuple[Value, ...], regions: tuple[Graph, ...] | None = None) -> Node:
        """A copy of a node of the graph that this is `like`, under its own name, on operands of this graph.

        Each node may come once. Types are worked out anew only where an operand's type changed.
        Raises ShapeError, DTypeError, GraphError.
        """
        inside = node.regions if regions is None else regions
        if inside is node.regions and _same_types(inputs, node.inputs):
            copy = Node(self, node.op, inputs, node.types, node.name, node.source, inside)
            self.nodes.append(copy)
            if self._uses is not None:
                self._note_uses(self._uses, copy)
            return copy
        self.add(node.op, *inputs, source=node.source, regions=inside)
        copy = self.nodes[-1]
        self._names.discard(copy.name)
        copy.name = node.name
        return copy

    def rename(self, node: Node, name: str) -> None:
        """Gives a node another name, made unique by a number if it is taken."""
        self._names.discard(node.name)
        node.name = self._fresh(name, name)

    def use_count(self, value: Value) -> int:
        """How often a value is used, by nodes and as an output."""
        return len(self.uses(value)) + sum(1 for v in self.outputs.values() if v == value)

    def needed(self) -> set[int]:
        """Ids of the nodes that outputs need, and of inputs and params."""
        ids = {id(v.node) for v in self.outputs.values()}
        measured = self.measured
        if measured:  # equalities are checked whether or not their dims are used
            spoken = [equality.symbols for equality in self.equalities]
            ids.update(id(measured[name]) for name in set().union(*spoken) & measured.keys())
        for node in reversed(self.nodes):
            if id(node) in ids or isinstance(node.op, (Input, Param)):
                ids.add(id(node))
                for value in node.inputs:
                    ids.add(id(value.node))
                if measured:  # dims depend on the nodes that give them their values
                    ids.update(id(measured[name]) for name in symbols_of(node) & measured.keys())
        return ids

    def prune(self) -> int:
        """Drops nodes that no output needs; inputs and params stay. Returns how many went."""
        needed = self.needed()
        needed_nodes = [node for node in self.nodes if id(node) in needed]
        dropped = len(self.nodes) - len(needed_nodes)
        if dropped:
            self.nodes = needed_nodes
            self._names = {node.name for node in needed_nodes}
            self._uses = None
        return dropped

    def drop_leaves(self, names: Collection[str]) -> None:
        """Removes leaves that nothing uses, with the data of params; their names are free again."""
        self.nodes = [node for node in self.nodes if node.name not in names or not isinstance(node.op, LEAVES)]
        self.data = {name: data for name, data in self.data.items() if name not in names}
        self._names.difference_update(names)

    def _fresh(self, stem: str, requested: str | None) -> str:
        name = stem
        if requested is None or name in self._names:
            while True:
                name = f"{stem}_{self._counter}"
                self._counter += 1
                if name not in self._names:
                    break
        self._names.add(name)
        return name

    def bind(self, value: Mapping[str, int]) -> None:
        """Checks dims against bounds and equalities, but for those that only a run measures.

        Raises ShapeError that names both sides.
        """
        expect.within_bounds(self.bounds, value)
        expect.equal(self.equalities, self.measured, value)

    @checked
    def same_as(self, other: Graph) -> bool:
        """Whether two graphs are equal in all but the data of their params."""
        return same_graph(self, other)

    def __str__(self) -> str:
        return print_graph(self)

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}: {len(self.nodes)} nodes>"

    def _repr_html_(self) -> str:
        """A picture, for notebooks."""
        from rlx.ir import picture  # programs that draw nothing need none

        return picture.in_a_frame(picture.page(self))


def _place(value: Value) -> object:
    """What tells values of a graph from each other: most are the first results of their nodes."""
    return id(value.node) if value.index == 0 else (id(value.node), value.index)


def _check_parts(op: object, inputs: Sequence[object], name: object, source: object, regions: object) -> None:
    """Raises GraphError for what no node is made of."""
    if not isinstance(op, Op):
        raise GraphError(
            f"[add] expected an op, got {op!r}: functions of rlx, such as rlx.add, make nodes by themselves"
        )
    for value in inputs:
        if not isinstance(value, Value):
            raise GraphError(f"[{op.name}] expected values of a graph, got {value!r}")
    for text in (name, source):
        if not (text is None or isinstance(text, str)):
            raise GraphError(f"[{op.name}] expected a name as text, got {text!r}")
    if not isinstance(regions, (tuple, list)) or not all(isinstance(region, Graph) for region in regions):
        raise GraphError(f"[{op.name}] expected a list of graphs as regions, got {regions!r}")


def _same_types(some: Sequence[Value], others: Sequence[Value]) -> bool:
    """Whether values have the types of others, one by one."""
    for a, b in zip(some, others):
        left, right = a.node.types[a.index], b.node.types[b.index]
        if left is not right and left != right:
            return False
    return True


def _at(label: str | None, inputs: Sequence[Value]) -> str:
    input_names = ", ".join(repr(v.name) for v in inputs)
    place = f", at node {label!r}" if label else ""
    return place + (f", inputs {input_names}" if input_names else "")


def build(name: str, *operands: Any, source: str | None = None, **attributes: Any) -> Value:
    """`call` for ops of one result."""
    value = call(name, *operands, source=source, **attributes)
    if not isinstance(value, Value):
        raise GraphError(f"[{name}] expected an op of one result, got {len(value)}")
    return value


def call(
    name: str, *operands: Any, source: str | None = None, regions: Sequence[Graph] = (), **attributes: Any
) -> Value | tuple[Value, ...]:
    """Builds a node by op name: its value, or the tuple of its values if the op has several.

    Python scalars take the dtype of the first Value; arrays become constants; trailing operands may be None (left
    out) or come by name. An op without operands gets the graph in their place.
    Raises GraphError if no operand is a Value, and what the op's type rule raises.
    """
    cls = lookup(name)
    names = cls.operand_names
    arguments = [*operands]
    if len(operands) < len(names):
        arguments += [attributes.pop(operand, None) for operand in names[len(operands) :]]
    while arguments and arguments[-1] is None:
        arguments.pop()
    for number, argument in enumerate(arguments):
        if argument is None:
            place = names[number] if names else f"operand {number}"
            raise GraphError(f"[{name}] expected a value as {place}, got None before other operands")
    try:
        op = cls(**attributes)
    except TypeError:
        raise GraphError(f"[{name}] {_wrong_attributes(cls, attributes)}") from None
    if len(arguments) == 1 and isinstance(arguments[0], Graph):
        return arguments[0].add(op, source=source, regions=regions)
    model = next((o for o in arguments if isinstance(o, Value)), None)
    if model is None:
        kinds = ", ".join(type(argument).__name__ for argument in arguments) or "none"
        needed = f" ({', '.join(names)})" if names else ""
        made = "graph.input and graph.constant make one, and rlx.jit compiles functions of arrays"
        raise GraphError(f"[{name}] expected a value of a graph among the operands{needed}, got {kinds}: {made}")
    if name == "select":
        model = next((o for o in arguments[1:] if isinstance(o, Value)), model)
    values = tuple([as_value(model, operand) for operand in arguments])
    return model.graph.add(op, *values, source=source, regions=regions)


def _wrong_attributes(cls: type[Op], attributes: Mapping[str, Any]) -> str:
    """What is said of attributes that are not all those of the op, or not its own."""
    accepted = (*cls.operand_names, *(name for name, _, _ in cls.fields))
    for name in attributes.keys() - cls.attribute_names:
        if name in cls.operand_names:
            return f"expected {name} once, got it by position and by name"
        names = f"the arguments {', '.join(accepted)}" if accepted else "no arguments by name"
        return f"expected {names}, got {name!r}{did_you_mean(name, accepted)}"
    needed = [name for name, _, _ in cls.fields if name not in cls.defaults()]
    missing = [name for name in needed if name not in attributes]
    given = [name for name, _, _ in cls.fields if name in attributes]
    return f"expected {' and '.join(missing)}, got {' and '.join(given) or 'no attributes'}"


def as_value(model: Value, operand: Any) -> Value:
    """A Value of an operand: scalars and dims are weak (they take `model`'s dtype where it can hold them)."""
    if isinstance(operand, Value):
        return operand
    if isinstance(operand, Poly):
        return model.graph.build("dims_tensor", model.graph, values=(operand,)).reshape(()).cast(model.dtype)
    if isinstance(operand, (bool, int, float, complex)) and not isinstance(operand, np.generic):
        return model.graph.number(model, operand)
    return model.graph.constant(operand)
