"""Graphs that functions build while they are traced: what they make of outer values, of large arrays, of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.errors import TracerError
from rlx.ir import dtype as dtypes
from rlx.ir.concrete import asked_by_rlx, callers_line
from rlx.ir.dim import Dim, Poly, Shape
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Elementwise, Op
from rlx.ir.substitute import with_dims
from rlx.runtime.dlpack import array_of
from rlx.tracing.dims import Answers, plain, traced

MAX_CONSTANT_BYTES = 1 << 10
"""Of arrays that the program has in its text; larger ones are weights."""
_RANKS = ("bool", "int", "float", "complex")
_WIDEST: dict[str, DType] = {"bool": dtypes.bool_, "int": dtypes.i64, "float": dtypes.f64, "complex": dtypes.c128}


class TracedValue(Value):
    """A value while a function is traced: `==` and `!=` compare elements, as of arrays."""

    __slots__ = ()
    __hash__ = Value.__hash__

    def __eq__(self, other: object) -> Any:
        if asked_by_rlx() or not _is_operand(other):
            return super().__eq__(other)
        return self.graph.build("eq", self, other)

    def __ne__(self, other: object) -> Any:
        if asked_by_rlx() or not _is_operand(other):
            return not super().__eq__(other)
        return self.graph.build("ne", self, other)

    @property
    def shape(self) -> Shape:
        return tuple([traced(dim, _answers_of(self)) for dim in self.type.shape])

    @property
    def size(self) -> Dim:
        """The number of elements."""
        return traced(self.type.size, _answers_of(self))


def _answers_of(value: Value) -> Answers:
    assert isinstance(value.graph, TracedGraph)  # which alone makes traced values
    return value.graph.answers


def _is_operand(other: object) -> bool:
    return isinstance(other, (Value, np.ndarray, np.generic, bool, int, float, complex, Poly))


class TracedGraph(Graph):
    """A graph under construction by a function. Its values are traced; `specialise` makes a plain graph of it.

    answers    what the function is told of dims
    enclosing  the graph whose values it may use: they become inputs, `captured` in their order
    weak       values that are Python's numbers, by node: they take the dtype of what they meet
    """

    def __init__(self, name: str, answers: Answers, enclosing: Graph | None = None) -> None:
        super().__init__(name)
        self.enclosing = enclosing
        self.answers = answers
        self.captured: dict[Value, Value] = {}
        self.weak: set[int] = set()
        self.draws = enclosing is None
        self.is_open = True
        self._arrays: dict[int, tuple[Any, Value]] = {}

    @property
    def depth(self) -> int:
        return 1 + self.enclosing.depth if isinstance(self.enclosing, TracedGraph) else 1

    def add(
        self,
        op: Op,
        *inputs: Value,
        name: str | None = None,
        source: str | None = None,
        regions: Sequence[Graph] = (),
    ) -> Value | tuple[Value, ...]:
        """As `Graph.add`, in the innermost of the graphs that the operands are of."""
        inner = innermost(self, inputs)
        if inner is not self:
            return inner.add(op, *inputs, name=name, source=source, regions=regions)
        if not self.is_open:
            raise _ended(f"a value of {self.name!r}")
        own = [self.here(value) for value in inputs]
        is_weak = False
        if self.weak and own and op.name != "cast":
            is_weak = all(id(value.node) in self.weak for value in own)
            if isinstance(op, Elementwise) or op.name == "select":
                own = self._settled(op, own)
        made = super().add(with_dims(op, plain), *own, name=name, source=source, regions=regions)
        if is_weak:
            self.weak.add(id(self.nodes[-1]))
        if isinstance(made, Value):
            return TracedValue(made.node, made.index)
        return tuple(TracedValue(each.node, each.index) for each in made)

    def output(self, *values: Value, name: str | None = None, **named: Value) -> None:
        """As `Graph.output`; outer values may be results too."""
        super().output(
            *(self.here(value) for value in values), name=name, **{key: self.here(v) for key, v in named.items()}
        )

    def equal(self, left: Dim, right: Dim, reason: str) -> Dim:
        return super().equal(plain(left), plain(right), reason)

    def broadcast(self, *shapes: Shape) -> Shape:
        return super().broadcast(*(tuple(map(plain, shape)) for shape in shapes))

    def here(self, value: Value) -> Value:
        """A value as nodes of this graph can take it. Raises TracerError for one of a trace that has ended."""
        own = Value(value.node, value.index)
        if own.graph is self:
            return own
        if own not in self.captured:
            outer = self._outer(own)
            taken = super().input(f"outer.{len(self.captured)}", outer.type.shape, outer.type.dtype)
            if is_weak(outer):
                self.weak.add(id(taken.node))
            self.captured[own] = Value(taken.node, 0)
        return self.captured[own]

    def _outer(self, value: Value) -> Value:
        """A value of the enclosing graph that is a value of one further out, or itself."""
        if value.graph is self.enclosing:
            return value
        if isinstance(self.enclosing, TracedGraph):
            return self.enclosing.here(value)
        raise _ended(repr(value))

    def random_state(self) -> Value:
        """As `Graph.random_state`. Raises TracerError in the body of a loop, where each trip would draw the same."""
        if self.enclosing is None:
            return super().random_state()
        if not self.draws:
            place = callers_line()
            raise TracerError(f"[jit] expected random numbers from outside of the loop, got a draw in it, at {place}")
        return self.enclosing.random_state()

    def constant(self, array: Any, dtype: Any = None, name: str | None = None) -> Value:
        """As `Graph.constant`; arrays of some size become weights, one for each array, without a copy."""
        if not isinstance(array, (np.ndarray, np.generic)) and hasattr(array, "__dlpack__"):
            array = array_of(array)
        if dtype is not None or not isinstance(array, np.ndarray) or array.nbytes <= MAX_CONSTANT_BYTES:
            return super().constant(array, dtype, name)
        if isinstance(self.enclosing, TracedGraph):
            return self.enclosing.constant(array, dtype, name)
        if self.enclosing is not None:
            return super().constant(array, dtype, name)
        if id(array) not in self._arrays:
            param = self.param(f"array_{len(self._arrays)}", array.shape, array.dtype, array)
            self._arrays[id(array)] = (array, param)
        return self._arrays[id(array)][1]

    def number(self, model: Value, number: bool | int | float | complex) -> Value:
        """As `Graph.number`; among Python's numbers it stays one of them."""
        if not is_weak(model):
            return super().number(model, number)
        own = super().constant(np.asarray(number), _WIDEST[_kind_of(number)])
        self.weak.add(id(own.node))
        return own

    def _settled(self, op: Op, operands: list[Value]) -> list[Value]:
        """Operands of one dtype, where some are Python's numbers: those of what they meet, or the widest of them."""
        first = 1 if op.name == "select" else 0
        met = operands[first:]
        weak = [id(value.node) in self.weak for value in met]
        kinds = [_RANKS.index(value.dtype.kind) for value, of in zip(met, weak) if of]
        if not kinds:
            return operands
        kind = _RANKS[max(kinds)]
        strong = next((value.dtype for value, of in zip(met, weak) if not of), None)
        target = _WIDEST[kind] if strong is None else _taken_by(strong, kind)
        cast = [value if not of or value.dtype is target else self._cast(value, target) for value, of in zip(met, weak)]
        return [*operands[:first], *cast]

    def _cast(self, value: Value, target: DType) -> Value:
        made = self.build("cast", value, to=target)
        return Value(made.node, made.index)


def is_weak(value: Value) -> bool:
    """Whether a value is a number of Python's."""
    return isinstance(value.graph, TracedGraph) and id(value.node) in value.graph.weak


def innermost(graph: Graph, values: Sequence[Value]) -> Graph:
    """The graph of the innermost body among those of the values. Raises TracerError for a body that has ended."""
    inner = graph
    for value in values:
        of = value.graph
        if of is not inner and isinstance(of, TracedGraph) and of.enclosing is not None:
            if not of.is_open:
                raise _ended(repr(value))
            if not isinstance(inner, TracedGraph) or of.depth > inner.depth:
                inner = of
    return inner


def _ended(value: str) -> TracerError:
    return TracerError(
        f"[jit] expected values of this call, got {value} of a trace that has ended, at {callers_line()}: "
        f"return values from the function instead of keeping them"
    )


def _kind_of(number: bool | int | float | complex) -> str:
    return "bool" if isinstance(number, bool) else type(number).__name__


def _taken_by(strong: DType, kind: str) -> DType:
    """The dtype of a number of this kind beside a value: the value's, where it has such numbers."""
    if kind == "complex" and not strong.is_complex:
        return dtypes.c64
    if kind == "float" and not strong.is_inexact:
        return dtypes.f32
    return strong
