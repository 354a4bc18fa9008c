"""A function at some arguments as a program, and the calls that it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import locks
from rlx.ir.dim import Dim, Shape
from rlx.ir.graph import Graph
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.session import Session
from rlx.tracing import tree
from rlx.tracing.arguments import NUMBERS, as_array, given_back, library_of
from rlx.tracing.dims import Answer, Answers
from rlx.tracing.sizes import Shapes, fits

Run = Callable[[Any], Any]


class Lowered:
    """A function at some arguments as a program: the graph, which `compile` compiles once."""

    def __init__(
        self, graph: Graph, declared: list[Shape], answers: Answers, structure: tree.Structure, session: Session
    ) -> None:
        self.graph = graph
        self._declared = declared
        self._answers = tuple(answers.given)
        self._structure = structure
        self._session = session
        self._compiled: CompiledGraph | None = None
        self._lock = locks.rlock()

    def fits(self, shapes: Shapes) -> bool:
        """Whether it is the program of a call of these shapes."""
        sizes = fits(self._declared, shapes)
        return sizes is not None and all(answer.holds(sizes) for answer in self._answers)

    def refusals(self, shapes: Shapes) -> list[Answer]:
        """What the function was told of dims, and is not true of these shapes."""
        sizes = fits(self._declared, shapes)
        return [] if sizes is None else [answer for answer in self._answers if not answer.holds(sizes)]

    def compile(self, inputs: list[Any] | None = None) -> CompiledGraph:
        """The compiled program: its inputs are the leaves of arguments, its outputs those of the result."""
        if self._compiled is None:
            with self._lock:
                if self._compiled is None:
                    self._compiled = self._session.compile(self.graph, inputs)
        return self._compiled

    def runner(self, arrays: list[Any], leaves: list[Any]) -> Run:
        """What runs the program on leaves of these kinds and gives the function's result; it compiles for the arrays
        that they are."""
        build = tree.builder(self._structure)
        if not self.graph.outputs:
            return lambda leaves: build([])
        run = self.compile(arrays).run
        names = [value.name for value in self.graph.brought]
        library = library_of(leaves)
        finish = build if library is None else _then(given_back(library), build)
        if not all(array is leaf or type(leaf) in NUMBERS for array, leaf in zip(arrays, leaves)):
            return lambda leaves: finish(run([as_array(name, leaf)[0] for name, leaf in zip(names, leaves)]))
        numbers = [(i, NUMBERS[type(leaf)]) for i, leaf in enumerate(leaves) if type(leaf) in NUMBERS]
        if numbers:
            return lambda leaves: finish(run(_with_numbers(leaves, numbers, names)))
        if self._structure == tree.LEAF:
            return lambda leaves: run(leaves)[0]
        return lambda leaves: build(run(leaves))

    def covers(self, other: Lowered) -> bool:
        """Whether it serves all calls that another one is for."""
        named: dict[Dim, Dim] = {}
        for own, of in zip(self._declared, other._declared):
            for dim, known in zip(own, of):
                if dim != known if isinstance(dim, int) else known == 1 or named.setdefault(dim, known) != known:
                    return False
        return not self._answers

    @property
    def signature(self) -> str:
        """Types of its inputs and outputs."""
        inputs = ", ".join(f"{value.name}: {value.type}" for value in self.graph.brought)
        outputs = ", ".join(str(value.type) for value in self.graph.results.values())
        return f"({inputs}) → ({outputs})"

    def text(self) -> str:
        """The graph as text."""
        return str(self.graph)

    __str__ = text

    def __repr__(self) -> str:
        return f"<Lowered {self.graph.name!r}: {self.signature}>"


def _with_numbers(leaves: list[Any], numbers: list[tuple[int, Any]], names: list[str]) -> list[Any]:
    """The leaves with arrays for Python's numbers. Raises InputError for one that is too large."""
    arrays = list(leaves)
    for i, dtype in numbers:
        try:
            arrays[i] = np.asarray(arrays[i], dtype)
        except OverflowError:
            arrays[i], _ = as_array(names[i], arrays[i])
    return arrays


def _then(first: Callable[[list[Any]], list[Any]], second: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    return lambda arrays: second(first(arrays))
