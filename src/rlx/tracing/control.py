"""Control flow of Python functions: `cond`, `while_loop`, `scan`. Each function is traced once, as a region of the op.

Functions may use values from outside; these become operands. They may carry and return nested tuples, lists and dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any

import numpy as np

from rlx import ops
from rlx.arguments import checked
from rlx.errors import GraphError, ShapeError, TracerError
from rlx.ir import dtype as dtypes
from rlx.ir.concrete import callers_line
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Value
from rlx.ir.type import TensorType
from rlx.ops.control import If, Scan, While
from rlx.passes.specialise import specialise
from rlx.records import dataclass
from rlx.tracing.dims import Answers, plain
from rlx.tracing.graphs import TracedGraph, is_weak
from rlx.tracing.tree import LEAF, Structure, flatten, rebuild, shown

MOST_TRIES = 4
"""How often the body of a loop is traced until numbers that it carries have the dtypes that it gives."""
_innermost_open: ContextVar[TracedGraph | None] = ContextVar("innermost_open", default=None)


@contextmanager
def open_graph(graph: TracedGraph) -> Iterator[None]:
    """The graph in which control flow is put while the block runs."""
    token = _innermost_open.set(graph)
    try:
        yield
    finally:
        _innermost_open.reset(token)


@dataclass
class _Body:
    """A function as a region under construction."""

    graph: TracedGraph
    formals: list[Value]
    structure: Structure = LEAF
    results: list[Any] = field(default_factory=list)


@checked
def cond(predicate: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], *operands: Any) -> Any:
    """What one of two functions gives of the operands: the first where the predicate holds when the program runs.

    predicate   bool []; a bool of Python's chooses at once
    if_true, if_false   both give the same structure of values, of the same shapes and dtypes
    """
    if not isinstance(predicate, Value):
        if getattr(predicate, "shape", ()) != ():
            raise ShapeError(f"[cond] expected a predicate of bool[], got one of shape {predicate.shape}")
        return (if_true if predicate else if_false)(*operands)
    if predicate.rank or predicate.dtype is not dtypes.bool_:
        raise ShapeError(f"[cond] expected a predicate of bool[], got {predicate!r}, at {callers_line()}")
    leaves: list[Any] = []
    flatten(operands, leaves)
    graph = _graph_of("cond", [predicate, *leaves])
    bodies = [_traced(graph, "cond", branch, [], operands, draws=True) for branch in (if_true, if_false)]
    first, second = bodies
    _same_structure("cond", first.structure, second.structure)
    pairs = list(zip(first.results, second.results))
    for body, other in ((first, 1), (second, 0)):
        body.results = [_value(body.graph, pair[1 - other], _dtype_beside(pair[other])) for pair in pairs]
    captured = _closed(bodies, graph)
    made = graph.add(If(), predicate, *captured, regions=_regions(bodies))
    return rebuild(first.structure, iter(made if isinstance(made, tuple) else (made,)))


@checked
def while_loop(
    condition: Callable[[Any], Any], body: Callable[[Any], Any], carried: Any, limit: int | None = None
) -> Any:
    """What the body makes of the carried values, again and again for as long as the condition holds of them.

    condition   carried values → bool []
    body        carried values → the next ones, of the same structure, shapes and dtypes
    carried     the first ones; Python's numbers take the dtype that the body gives
    limit       the most trips
    """
    leaves: list[Any] = []
    structure = flatten(carried, leaves)
    graph = _graph_of("while_loop", leaves)

    def trace(formals: list[tuple[TensorType, bool]]) -> list[_Body]:
        test = _traced(graph, "while_loop", condition, formals, structure)
        test.results = [_truth(test)]
        step = _traced(graph, "while_loop", body, formals, structure)
        _same_structure("while_loop", structure, step.structure)
        return [test, step]

    start, (test, step) = _settled("while_loop", graph, leaves, trace)
    captured = _closed([test, step], graph)
    op = While(carried=len(start), limit=limit)
    made = graph.add(op, *start, *captured, regions=_regions([test, step]))
    return rebuild(structure, iter(made if isinstance(made, tuple) else (made,)))


def scan(step: Any, *arguments: Any, **keywords: Any) -> Any:
    """What a function makes of every element along axis 0 of sequences, one after the other: the carried values after
    the last step, and what each step gave, stacked. `scan(step, carried, sequences, length=None, reverse=False)`.

    step        carried values, an element of each sequence → (the next carried values, what is stacked)
    carried     the first ones; Python's numbers take the dtype that the step gives
    sequences   arrays [length, …]; None with `length`
    reverse     goes from the last element to the first; results keep the order of the sequences

    With a value in place of the function it is the op `scan`, which takes regions.
    """
    if not callable(step):
        return ops.scan(step, *arguments, **keywords)
    return _scan(step, *arguments, **keywords)


def _scan(
    step: Callable[[Any, Any], Any],
    carried: Any,
    sequences: Any = None,
    length: Dim | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    leaves: list[Any] = []
    elements: list[Any] = []
    structure = flatten(carried, leaves)
    of_elements = flatten(sequences, elements)
    graph = _graph_of("scan", [*leaves, *elements])
    rows = [_value(graph, leaf, None) for leaf in elements]
    if any(not row.rank for row in rows) or (not rows and length is None):
        raise ShapeError(f"[scan] expected sequences of some rank, or a length, got {rows}, at {callers_line()}")
    extent = rows[0].type.shape[0] if length is None else plain(length)
    of_rows = [(row.type.with_shape(row.type.shape[1:]), False) for row in rows]
    both: Structure = ("tuple", tuple, None, (structure, of_elements))

    def trace(formals: list[tuple[TensorType, bool]]) -> list[_Body]:
        body = _traced(graph, "scan", step, [*formals, *of_rows], both, spread=True)
        if body.structure[0] != "tuple" or len(body.structure[3]) != 2:
            got = shown(body.structure)
            raise TracerError(f"[scan] expected a step that gives (carried, stacked), got {got}, at {callers_line()}")
        _same_structure("scan", structure, body.structure[3][0])
        return [body]

    start, (body,) = _settled("scan", graph, leaves, trace)
    captured = _closed([body], graph)
    op = Scan(carried=len(start), sequences=len(rows), length=extent, reverse=reverse)
    made = graph.add(op, *start, *rows, *captured, regions=_regions([body]))
    built = rebuild(body.structure, iter(made if isinstance(made, tuple) else (made,)))
    return built[0], built[1]


def _graph_of(name: str, leaves: Sequence[Any]) -> Graph:
    """The graph that control flow belongs to: the innermost that is traced, else that of the first value."""
    graph = _innermost_open.get() or next((leaf.graph for leaf in leaves if isinstance(leaf, Value)), None)
    if graph is None:
        raise GraphError(f"[{name}] expected a value of a graph, got none: call it within a function of rlx.jit")
    return graph


@dataclass(frozen=True)
class _Start:
    """What a loop starts from; a number of Python's takes the dtype that the body gives."""

    value: Value
    is_number: bool

    @staticmethod
    def of(graph: Graph, leaf: Any) -> _Start:
        value = _value(graph, leaf, None)
        return _Start(value, _is_number(leaf) or is_weak(value))

    def taking(self, dtype: DType) -> _Start:
        return self if self.value.dtype is dtype else _Start(self.value.cast(dtype), False)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic)


def _value(graph: Graph, leaf: Any, dtype: DType | None) -> Value:
    """A result or an operand as a value: Python's numbers in this dtype, if there is one."""
    if isinstance(leaf, Value):
        return leaf.cast(dtype) if dtype is not None and is_weak(leaf) else leaf
    return graph.constant(leaf, dtype if _is_number(leaf) else None)


def _dtype_beside(leaf: Any) -> DType | None:
    """The dtype that numbers in the other branch take; None if this is a number too."""
    if isinstance(leaf, Value):
        return None if is_weak(leaf) else leaf.dtype
    return dtypes.of(leaf.dtype) if hasattr(leaf, "dtype") else None


def _traced(
    graph: Graph,
    name: str,
    function: Callable[..., Any],
    formals: Sequence[tuple[TensorType, bool]],
    given: Any,
    draws: bool = False,
    spread: bool = False,
) -> _Body:
    """The function as a region of the graph: of arguments that it uses as outer values, or, where there are formals, of
    these in the structure `given`, which are several arguments if they are `spread`."""
    answers = graph.answers if isinstance(graph, TracedGraph) else Answers({})
    inner = TracedGraph(name, answers, graph)
    inner.draws = draws
    inputs: list[Value] = []
    for number, (of, weak) in enumerate(formals):
        value = inner.input(f"arg.{number}", of.shape, of.dtype)
        inputs.append(value)
        if weak:
            inner.weak.add(id(value.node))
    with open_graph(inner):
        if draws:
            result = function(*given)
        else:
            arguments = rebuild(given, iter(inputs))
            result = function(*arguments) if spread else function(arguments)
    body = _Body(inner, inputs)
    body.structure = flatten(result, body.results)
    return body


def _truth(test: _Body) -> Value:
    """The result of a condition. Raises ShapeError if it is no bool []."""
    if test.structure == LEAF:
        value = _value(test.graph, test.results[0], None)
        if not value.rank and value.dtype is dtypes.bool_:
            return value
    got = repr(test.results[0]) if test.structure == LEAF else shown(test.structure)
    raise ShapeError(f"[while_loop] expected a condition that gives bool[], got {got}, at {callers_line()}")


def _same_structure(name: str, expected: Structure, got: Structure) -> None:
    if expected != got:
        raise TracerError(f"[{name}] expected results as {shown(expected)}, got {shown(got)}, at {callers_line()}")


def _settled(
    name: str,
    graph: Graph,
    leaves: Sequence[Any],
    trace: Callable[[list[tuple[TensorType, bool]]], list[_Body]],
) -> tuple[list[Value], list[_Body]]:
    """Bodies whose carried results have the dtypes of what they start from: numbers among that take the body's. The
    last of the bodies is the one that gives them."""
    starts = [_Start.of(graph, leaf) for leaf in leaves]
    for _ in range(MOST_TRIES):
        bodies = trace([(start.value.type, start.is_number) for start in starts])
        step = bodies[-1]
        like = [start.value.dtype for start in starts] + [None] * (len(step.results) - len(starts))
        step.results = [_value(step.graph, result, dtype) for result, dtype in zip(step.results, like)]
        given = [result.dtype for result in step.results]
        following = [start.taking(dtype) if start.is_number else start for start, dtype in zip(starts, given)]
        if all(a is b for a, b in zip(starts, following)):
            return [start.value for start in starts], bodies
        for body in bodies:
            body.graph.is_open = False
        starts = following
    types = ", ".join(str(start.value.type) for start in starts)
    raise TracerError(f"[{name}] expected a body that keeps dtypes, got another each time from {types}")


def _closed(bodies: Sequence[_Body], graph: Graph) -> list[Value]:
    """Gives bodies their outputs and the same inputs: their own, then all that any of them takes from outside. The
    values taken, in that order."""
    for body in bodies:
        for number, value in enumerate(body.results):
            body.graph.output(value, name=f"out.{number}")
    shared = list(dict.fromkeys(value for body in bodies for value in body.graph.captured))
    for body in bodies:
        ordered = [*body.formals, *(body.graph.here(value) for value in shared)]
        first = {id(value.node) for value in ordered}
        nodes = body.graph.nodes
        body.graph.is_open = False
        body.graph.nodes[:] = [*(v.node for v in ordered), *(n for n in nodes if id(n) not in first)]
    return [graph.here(value) if isinstance(graph, TracedGraph) else value for value in shared]


def _regions(bodies: Sequence[_Body]) -> list[Graph]:
    return [specialise(body.graph, {}) for body in bodies]
