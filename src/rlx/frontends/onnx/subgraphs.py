"""Sub-graphs of a model as regions: what they use of the enclosing graphs becomes operands, or is created again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Protocol

from rlx.frontends.onnx.operand import Alike, Growing, Many, Nothing, Operand
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Param
from rlx.ir.type import TensorType
from rlx.records import dataclass

MAX_CONSTANT_BYTES = 1 << 16  # of constants that a region gets as its own

Formal = TensorType | Operand
"""What an input of a body is: a value of this type, or an item that the import knows."""


class Frame:
    """A graph under import. `captured` are values of the parent that it takes, in the order of its last inputs."""

    def __init__(self, graph: Graph, parent: Frame | None = None) -> None:
        self.graph = graph
        self.parent = parent
        self.captured: dict[Value, Value] = {}
        self._own: dict[Value, Value] = {}

    def input(self, of: TensorType) -> Value:
        """A new input under a name that nothing has."""
        return self.graph.input(self._free(f"arg.{len(self.graph.inputs)}"), of.shape, of.dtype)

    def here(self, item: Operand) -> Operand:
        """The item as nodes of this graph can take it."""
        if item.graph is self.graph:
            return item
        if isinstance(item, Many):
            return Many(self.graph, [self.here(each) for each in item.items], item.dtype)
        if isinstance(item, Nothing):
            return Nothing(self.graph)
        if isinstance(item, Alike):
            return Alike(self.take(item.stacked))
        if isinstance(item, Growing):
            return item.with_parts(self.graph, map(self.take, item.parts))
        if item.known is not None:
            return Operand.knowing(self.graph, item.known, item.dtype)
        return Operand.of(self.take(item.value))

    def take(self, value: Value) -> Value:
        """A value of this graph that is `value` of a graph around it: params by name, small constants anew."""
        if value.graph is self.graph:
            return value
        inner = self.captured.get(value, self._own.get(value))
        return self._take(value) if inner is None else inner

    def _take(self, value: Value) -> Value:
        assert self.parent is not None  # values come from graphs around this one
        array = value.constant
        if array is not None and array.nbytes <= MAX_CONSTANT_BYTES:
            inner = self._own[value] = self.graph.constant(array)
            return inner
        if isinstance(value.node.op, Param) and self._free(value.node.name) == value.node.name:
            inner = self._own[value] = self.graph.param(value.node.name, value.shape, value.dtype)
            return inner
        return _taken(self, self.parent.take(value))

    def _free(self, name: str) -> str:
        names = {node.name for node in self.graph.nodes}
        while name in names:
            name += "_"
        return name


@dataclass
class Region:
    """An imported body: its graph with the inputs for the formals first, its results, and what it takes besides."""

    frame: Frame
    formals: list[Value]
    results: list[Operand] = field(default_factory=list)

    @property
    def graph(self) -> Graph:
        return self.frame.graph


class Subgraphs(Protocol):
    """What importer functions of nodes with sub-graphs do with them."""

    def inline(self, body: object, inputs: Sequence[Operand]) -> Sequence[Operand]:
        """The body in place of the node."""

    def region(self, body: object, formals: Sequence[Formal]) -> Region:
        """The body as a graph of its own."""

    def random_state(self) -> tuple[Value, int]:
        """The state that each run brings, and a stream that no other node has. Raises UnsupportedOp in a region."""

    def attempt(self) -> Attempt:
        """A mark to go back to where a way to import a body leads nowhere."""


class Attempt(Protocol):
    @property
    def failed(self) -> bool:
        """Whether nodes could not be imported since."""

    def undo(self) -> None:
        """Forgets those nodes."""


def close(regions: Sequence[Region], outputs: Sequence[Sequence[Value]]) -> list[Value]:
    """Gives regions their outputs and the same inputs: their formals, then all that any of them takes.

    The values that they take, in that order.
    """
    shared = list(dict.fromkeys(value for region in regions for value in region.frame.captured))
    for region, results in zip(regions, outputs):
        frame = region.frame
        ordered = [*region.formals, *(_taken(frame, value) for value in shared)]
        first = {id(v.node) for v in ordered}
        region.graph.nodes[:] = [
            *(v.node for v in ordered), *(n for n in region.graph.nodes if id(n) not in first)
        ]  # fmt: skip
        region.graph.output(*results)
    return shared


def _taken(frame: Frame, value: Value) -> Value:
    if value not in frame.captured:
        frame.captured[value] = frame.input(value.type)
    return frame.captured[value]
