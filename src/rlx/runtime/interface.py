"""The interface of a program: names, types and dims of its inputs and outputs. A run needs nothing else of a graph.

`LateGraph` is a graph that is read when something needs it: a program from the cache on disk starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rlx import locks
from rlx.errors import InputError
from rlx.ir import expect
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.expect import Equality
from rlx.ir.type import TensorType
from rlx.records import dataclass

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Port:
    """An input or an output as callers see it. Its type is that of an array, or those of the elements of a sequence."""

    name: str
    type: TensorType | tuple[TensorType, ...]

    @property
    def dtype(self) -> DType:
        """Of an array. Raises InputError for a sequence."""
        return self._array.dtype

    @property
    def shape(self) -> Shape:
        """Of an array: ints, and dims with names. Raises InputError for a sequence."""
        return self._array.shape

    @property
    def _array(self) -> TensorType:
        if isinstance(self.type, tuple):
            raise InputError(f"[model] expected an array as {self.name!r}, got a sequence: .type has its elements")
        return self.type

    def __str__(self) -> str:
        of = f"[{', '.join(map(str, self.type))}]" if isinstance(self.type, tuple) else self.type
        return f"{self.name}: {of}"


@dataclass(frozen=True)
class Interface:
    """Of a graph, by the names of its properties.

    states      the inputs that the runtime brings; `following` tells of which outputs their next values are
    within      equalities of regions, and then the graph's own
    """

    name: str
    inputs: Mapping[str, TensorType]
    states: tuple[str, ...]
    following: Mapping[str, str]
    params: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    symbols: tuple[str, ...]
    measured: tuple[str, ...]
    bounds: Mapping[str, tuple[int, int | None]]
    equalities: tuple[Equality, ...]
    within: tuple[Equality, ...]
    assumes_equal: bool

    @staticmethod
    def of(graph: Graph) -> Interface:
        from rlx.ir.op import State

        return Interface(
            name=graph.name,
            inputs={v.name: v.type for v in graph.inputs},
            states=tuple(v.name for v in graph.inputs if isinstance(v.op, State)),
            following=dict(graph.states),
            params={v.name: v.type for v in graph.params},
            outputs={name: v.type for name, v in graph.outputs.items()},
            symbols=tuple(graph.symbols),
            measured=tuple(graph.measured),
            bounds=dict(graph.bounds),
            equalities=tuple(graph.equalities),
            within=tuple(graph.equalities_within()),
            assumes_equal=graph.assumes_equal,
        )

    @property
    def results(self) -> dict[str, TensorType]:
        """Outputs for callers: all that are not the next value of a state."""
        following = set(self.following.values())
        return {name: of for name, of in self.outputs.items() if name not in following}

    @property
    def may_broadcast(self) -> bool:
        """Whether dims may prove to be 1 against others."""
        return any(equality.spreads for equality in self.within)

    def bind(self, binding: Sizes) -> None:
        """As `Graph.bind`. Raises ShapeError."""
        expect.within_bounds(self.bounds, binding)
        expect.equal(self.equalities, self.measured, binding)

    def check_dims(self, binding: Sizes) -> bool:
        """As `bind`, but lets those that may be 1 be 1.

        Tells whether all dims that broadcast are equal, but for those that bodies alone speak of. Raises ShapeError
        that names both sides.
        """
        expect.within_bounds(self.bounds, binding)
        equal = True
        for equality in _known(self.equalities, binding):
            if equality.holds(binding):
                continue
            if equality.one(binding) is None:
                raise expect.UnequalDims(equality, binding)
            equal = False
            if self.assumes_equal:
                break  # what follows was computed with unequal dims; the graph that is imported again has its own
        return equal

    def first_one(self, binding: Sizes) -> tuple[Equality, Dim] | None:
        """The first dim that is 1 against another one, and where."""
        for equality in _known(self.within, binding):
            side = equality.one(binding)
            if side is not None:
                return equality, side
        return None


def _known(equalities: Iterable[Equality], binding: Sizes) -> Iterator[Equality]:
    """Equalities whose dims have values by now; others are looked at when a run has measured them."""
    for equality in equalities:
        if equality.symbols <= binding.keys():
            yield equality


class LateGraph:
    """A graph whose interface is known before it is read."""

    def __init__(self, interface: Interface, read: Callable[[], Graph]) -> None:
        self.interface = interface
        self._read: Callable[[], Graph] | None = read
        self._graph: Graph | None = None
        self._lock = locks.rlock()

    @staticmethod
    def of(graph: Graph) -> LateGraph:
        """A graph that is here."""
        late = LateGraph(Interface.of(graph), lambda: graph)
        late._graph, late._read = graph, None
        return late

    @property
    def is_here(self) -> bool:
        return self._graph is not None

    @property
    def graph(self) -> Graph:
        """The graph, read when it is first asked for. Raises what reading it raises."""
        if self._graph is None:
            with self._lock:
                if self._graph is None and self._read is not None:
                    self._graph, self._read = self._read(), None
        assert self._graph is not None
        return self._graph
