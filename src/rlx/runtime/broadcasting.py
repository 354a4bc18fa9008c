"""Runs whose open dims turn out to be 1 against others: they get programs of their own.

Passes assume that dims are equal wherever they broadcast (`passes.specialise.assume_equal`). A run in which one of them
is 1 and the other is not gets a program in which it is known to be 1, compiled once for all sizes of the others. If
types say what dims broadcast to, that is the same graph with this size substituted. A graph that was imported is
imported again, because importers compute with dims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlx import locks, mapped
from rlx.backends.executable import Bound, Capabilities, Executable
from rlx.backends.memory import DeviceArray
from rlx.backends.stored_weights import LateWeights, Source
from rlx.errors import CompileError, InputError, RlxError, ShapeError
from rlx.ir import dim as dims
from rlx.ir.check import Check
from rlx.ir.dim import Dim
from rlx.ir.expect import Equality, UnequalDims
from rlx.ir.literal import Array
from rlx.runtime.demands import Demands
from rlx.runtime.interface import Interface, LateGraph, Sizes
from rlx.runtime.misfit import origins_of, told

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

Key = tuple[tuple[str, int], ...]


class Broadcasting:
    """The graphs of one graph by the dims that are known to be 1. They are the same whatever the weights."""

    def __init__(self, late: LateGraph) -> None:
        self._late = late
        self._lock = locks.rlock()
        self._made: dict[Key, Graph] = {}

    @property
    def interface(self) -> Interface:
        return self._late.interface

    @property
    def graph(self) -> Graph:
        """The graph itself."""
        return self._late.graph

    def at(self, binding: Sizes) -> tuple[Key, Graph | None]:
        """The graph in which all dims that broadcast are equal at these sizes, and the sizes that were put into it;
        None for the graph itself.

        Raises InputError for dims that do not broadcast, and where the graph cannot be made.
        """
        fixed: dict[str, int] = {}
        graph, interface = None, self.interface
        while True:
            try:
                equal = interface.check_dims(binding)
            except UnequalDims as error:
                origins = origins_of(self.interface.inputs, binding)
                raise InputError(f"[run] {told(error.equality, binding, origins, lambda: self.graph)}") from None
            first = interface.first_one(binding)
            if first is None:
                return _key(fixed), graph
            try:
                graph, fixed = self._with_one(fixed, *first, binding)
                interface = Interface.of(graph)
            except RlxError:
                if not equal:
                    raise
                # a branch assumes that they are equal, and reports it if it runs and they are not
                return _key(fixed), graph

    def _with_one(self, fixed: Sizes, equality: Equality, side: Dim, binding: Sizes) -> tuple[Graph, dict[str, int]]:
        """The graph in which also the dims of a side that is 1 are known."""
        more = {name: binding[name] for name in dims.symbols(side) - fixed.keys()}
        if not more:  # a size that was put into a graph which was made for equal dims
            raise InputError(self._refusal(equality, binding))
        sizes = {**fixed, **more}
        return self._graph(sizes, equality, binding), sizes

    def _graph(self, fixed: Sizes, equality: Equality, binding: Sizes) -> Graph:
        key = _key(fixed)
        with self._lock:
            if key not in self._made:
                self._made[key] = self._with_sizes(fixed, equality, binding)
            return self._made[key]

    def _with_sizes(self, fixed: Sizes, equality: Equality, binding: Sizes) -> Graph:
        graph = self.graph
        if not graph.assumes_equal:
            from rlx.passes.specialise import specialise

            try:
                return specialise(graph, fixed)
            except ShapeError as error:
                raise InputError(f"[run] {error}; {self._origins(binding)}") from None
        if graph.anew is None:
            raise InputError(self._refusal(equality, binding))
        sized = graph.anew(fixed)
        if _ends(sized) != _ends(graph):
            raise CompileError(
                f"[run] expected the inputs and outputs of {graph!r} at the sizes {fixed}, got {sized!r}"
            )
        return sized

    def _origins(self, binding: Sizes) -> str:
        """Which input each dim is of."""
        return ", ".join(origins_of(self.interface.inputs, binding).values())

    def _refusal(self, equality: Equality, binding: Sizes) -> str:
        reason = f"[run] {told(equality, binding, origins_of(self.interface.inputs, binding))}"
        why = "this program was made for equal dims, and the model that it was made of is not at hand"
        return f"{reason}; {why}: load that, or bring arrays of one size"


def _ends(graph: Graph) -> tuple[list[str], list[str]]:
    """Names of inputs and outputs."""
    return [value.name for value in graph.inputs], list(graph.outputs)


def _key(sizes: Sizes) -> Key:
    return tuple(sorted(sizes.items()))


class BroadcastExecutable(Executable):
    """The program of equal dims, and those in which some are known to be 1, compiled when a run first wants them.

    build   compiles a graph for dims that are equal wherever they broadcast, with all that is around it
    """

    def __init__(self, graphs: Broadcasting, equal: Executable, build: Callable[[Graph], Executable]) -> None:
        self.graphs = graphs
        self.equal = equal
        self.build = build
        self.compile_ns = equal.compile_ns
        self.from_cache = equal.from_cache
        self._given: Mapping[str, Array] = {}  # read again for each program: copies would stay in memory
        self._programs: dict[Key, tuple[Graph, Demands, Executable]] = {}
        self._lock = locks.rlock()

    def set_params(self, params: Mapping[str, Array]) -> None:
        self.take(params, params)

    def take(self, params: Mapping[str, Array], private: Mapping[str, Array]) -> None:
        """Weights as they were given, which may lie in files, and the arrays that programs may keep."""
        with self._lock:
            self.equal.set_params(private)
            self._given = {**self._given, **params}
            for graph, _, program in self._programs.values():
                program.set_params(_of(graph, private))

    def take_stored(self, weights: LateWeights) -> bool:
        with self._lock:
            if self._programs or not self.equal.take_stored(weights):
                return False
            self._given = weights
            return True

    def keep_packed(self, source: Source) -> None:
        self.equal.keep_packed(source)

    def bind(self, binding: Mapping[str, int]) -> Bound:
        key, graph = self.graphs.at(binding)
        if graph is None:
            return self.equal.bind(binding)
        demands, program = self._program(key, graph)
        known = {name: binding[name] for name in graph.symbols}
        demands.check_at(known)
        return program.bind(known)

    def _program(self, key: Key, graph: Graph) -> tuple[Demands, Executable]:
        with self._lock:
            if key not in self._programs:
                program = self.build(graph)
                weights = {**graph.data, **_of(graph, self._given)}
                program.set_params({name: mapped.private(array) for name, array in weights.items()})
                self._programs[key] = (graph, Demands.of(graph), program)
            return self._programs[key][1:]

    @property
    def _all(self) -> list[Executable]:
        with self._lock:
            return [self.equal, *(program for *_, program in self._programs.values())]

    @property
    def compile_count(self) -> int:  # type: ignore[override]  # it grows with every program
        return sum(program.compile_count for program in self._all)

    @property
    def capabilities(self) -> Capabilities:
        return self.equal.capabilities

    @property
    def place(self) -> object:
        return self.equal.place

    @property
    def writes_states(self) -> bool:
        return self.equal.writes_states

    def put(self, name: str, array: Array) -> Array | DeviceArray:
        return self.equal.put(name, array)

    @property
    def nbytes(self) -> int:
        return sum(program.nbytes for program in self._all)

    @property
    def weight_bytes(self) -> int:
        return sum(program.weight_bytes for program in self._all)

    def prefer_experts(self, masks: Mapping[str, Array]) -> None:
        for program in self._all:
            program.prefer_experts(masks)

    def give_back(self) -> None:
        for program in self._all:
            program.give_back()

    @property
    def stored(self) -> tuple[str, dict[str, Any], Sequence[Check]] | None:
        return self.equal.stored

    @property
    def is_pending(self) -> bool:
        return self.equal.is_pending

    def finish(self) -> None:
        for program in self._all:
            program.finish()

    def clone(self, weights: bool = True) -> BroadcastExecutable:
        with self._lock:
            copy = BroadcastExecutable(self.graphs, self.equal.clone(weights), self.build)
            for key, (graph, demands, program) in self._programs.items():
                copy._programs[key] = (graph, demands, program.clone(weights))
            copy._given = self._given if weights else {}
            return copy

    def code(self) -> bytes:
        """Of the program of equal dims; the others are compiled again where they are wanted."""
        return self.equal.code()

    def write_package(self, path: Any, binding: Mapping[str, int]) -> Any:
        if binding.keys() < set(self.graphs.interface.symbols):
            return self.equal.write_package(path, binding)  # which says what is missing
        key, graph = self.graphs.at(binding)
        if graph is None:
            return self.equal.write_package(path, binding)
        return self._program(key, graph)[1].write_package(path, {name: binding[name] for name in graph.symbols})

    def describe(self) -> dict[str, Any]:
        ones = [dict(key) for key in self._programs]
        return {**self.equal.describe(), **({"programs_of_broadcasts": ones} if ones else {})}


def _of(graph: Graph, params: Mapping[str, Array]) -> dict[str, Array]:
    """Those that the graph takes."""
    names = {value.name for value in graph.params}
    return {name: array for name, array in params.items() if name in names}


def around(late: LateGraph, equal: Executable, build: Callable[[Graph], Executable]) -> Executable:
    """The executable of a graph, of that of the graph with equal dims."""
    return BroadcastExecutable(Broadcasting(late), equal, build) if late.interface.may_broadcast else equal
