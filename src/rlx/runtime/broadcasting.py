"""Dims that broadcast and prove to be 1 against others: programs beside the one that takes such dims to be equal.

Passes take dims to be equal wherever they broadcast (`passes.specialise.assume_equal`). A run in which
one of them is 1 and the other is not gets a program in which it is known to be 1, compiled once for all sizes of the
others. Where types say what dims broadcast to, that is the same graph with this size in it; a graph that was imported
is made anew, as importers reckon with dims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rlx import locks, mapped
from rlx.backends.executable import Bound, Capabilities, Executable
from rlx.backends.memory import DeviceArray
from rlx.errors import CompileError, InputError, RlxError, ShapeError
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.expect import Equality
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.passes.specialise import specialise
from rlx.runtime.checked import Demands

Sizes = Mapping[str, int]
Key = tuple[tuple[str, int], ...]


def may_broadcast(graph: Graph) -> bool:
    """Whether dims of the graph may prove to be 1 against others."""
    return any(equality.spreads for equality in graph.equalities_within())


def check_dims(graph: Graph, binding: Sizes) -> bool:
    """Checks dims against bounds and equalities, as `Graph.bind`, but lets those that may be 1 be 1.

    Tells whether all dims that broadcast are equal, but for those that bodies alone speak of. Raises ShapeError that
    names both sides.
    """
    graph.check_bounds(binding)
    equal = True
    for equality in _known(graph.equalities, binding):
        if equality.holds(binding):
            continue
        if equality.one(binding) is None:
            raise ShapeError(equality.told(binding))
        equal = False
        if graph.assumes_equal:
            break  # what follows was reckoned with dims that are not equal; the graph made anew has its own
    return equal


def _first_one(graph: Graph, binding: Sizes) -> tuple[Equality, Dim] | None:
    """The first dim that is 1 against another one, and where."""
    for equality in _known(graph.equalities_within(), binding):
        side = equality.one(binding)
        if side is not None:
            return equality, side
    return None


def _known(equalities: Iterable[Equality], binding: Sizes) -> Iterator[Equality]:
    """Equalities whose dims have values by now; others are looked at when a run has measured them."""
    for equality in equalities:
        if equality.symbols <= binding.keys():
            yield equality


class Broadcasting:
    """The graphs of one graph by the dims that are known to be 1. They are the same whatever the weights."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._lock = locks.rlock()
        self._made: dict[Key, Graph] = {}

    def at(self, binding: Sizes) -> tuple[Key, Graph]:
        """The graph in which all dims that broadcast are equal at these sizes, and the sizes that were put into it.

        Raises InputError for dims that do not broadcast, and where the graph cannot be made.
        """
        fixed: dict[str, int] = {}
        graph = self.graph
        while True:
            try:
                equal = check_dims(graph, binding)
            except ShapeError as error:
                raise InputError(f"[run] {error}; {_origins(self.graph, binding)}") from None
            first = _first_one(graph, binding)
            if first is None:
                return _key(fixed), graph
            try:
                graph, fixed = self._with_one(fixed, *first, binding)
            except RlxError:
                if not equal:
                    raise
                return _key(fixed), graph  # a branch takes them to be equal, and says so if it is the one that runs

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
            try:
                return specialise(graph, fixed)
            except ShapeError as error:
                raise InputError(f"[run] {error}; {_origins(graph, binding)}") from None
        if graph.anew is None:
            raise InputError(self._refusal(equality, binding))
        sized = graph.anew(fixed)
        if _ends(sized) != _ends(graph):
            raise CompileError(
                f"[run] expected the inputs and outputs of {graph!r} at the sizes {fixed}, got {sized!r}"
            )
        return sized

    def _refusal(self, equality: Equality, binding: Sizes) -> str:
        reason = f"[run] {equality.told(binding)}; {_origins(self.graph, binding)}"
        why = "this program was made for equal dims, and the model that it was made of is not at hand"
        return f"{reason}; {why}: load that, or bring arrays of one size"


def _ends(graph: Graph) -> tuple[list[str], list[str]]:
    """Names of inputs and outputs."""
    return [value.name for value in graph.inputs], list(graph.outputs)


def _key(sizes: Sizes) -> Key:
    return tuple(sorted(sizes.items()))


def _origins(graph: Graph, binding: Sizes) -> str:
    """Which input each dim is of."""
    origins: dict[str, str] = {}
    for value in graph.inputs:
        for axis, dim in enumerate(value.shape):
            if str(dim) in binding:
                origins.setdefault(str(dim), f"{dim} = {binding[str(dim)]} by input {value.name!r} axis {axis}")
    return ", ".join(origins.values())


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
        self._given: dict[str, Array] = {}  # read again for each program: copies would stay in memory
        self._programs: dict[Key, tuple[Graph, Demands, Executable]] = {}
        self._lock = locks.rlock()

    def set_params(self, params: Mapping[str, Array]) -> None:
        self.take(params, params)

    def take(self, given: Mapping[str, Array], private: Mapping[str, Array]) -> None:
        """Weights as they were given, which may lie in files, and the arrays that programs may keep."""
        with self._lock:
            self.equal.set_params(private)
            self._given.update(given)
            for graph, _, program in self._programs.values():
                program.set_params(_of(graph, private))

    def bind(self, binding: Mapping[str, int]) -> Bound:
        key, graph = self.graphs.at(binding)
        if not key:
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
                self._programs[key] = (graph, Demands(graph), program)
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

    def finish(self) -> None:
        for program in self._all:
            program.finish()

    def clone(self, weights: bool = True) -> BroadcastExecutable:
        with self._lock:
            copy = BroadcastExecutable(self.graphs, self.equal.clone(weights), self.build)
            for key, (graph, demands, program) in self._programs.items():
                copy._programs[key] = (graph, demands, program.clone(weights))
            copy._given = dict(self._given) if weights else {}
            return copy

    def code(self) -> bytes:
        """Of the program of equal dims; the others are compiled again where they are wanted."""
        return self.equal.code()

    def write_package(self, path: Any, binding: Mapping[str, int]) -> Any:
        if binding.keys() < set(self.graphs.graph.symbols):
            return self.equal.write_package(path, binding)  # which says what is missing
        key, graph = self.graphs.at(binding)
        if not key:
            return self.equal.write_package(path, binding)
        return self._program(key, graph)[1].write_package(path, {name: binding[name] for name in graph.symbols})

    def describe(self) -> dict[str, Any]:
        ones = [dict(key) for key in self._programs]
        return {**self.equal.describe(), **({"programs_of_broadcasts": ones} if ones else {})}


def _of(graph: Graph, params: Mapping[str, Array]) -> dict[str, Array]:
    """Those that the graph takes."""
    names = {value.name for value in graph.params}
    return {name: array for name, array in params.items() if name in names}


def hand_over(executable: Executable, given: Mapping[str, Array], private: Mapping[str, Array]) -> None:
    """Sets weights: `private` are arrays that a program may keep, `given` those that they were made of."""
    if isinstance(executable, BroadcastExecutable):
        executable.take(given, private)
    else:
        executable.set_params(private)


def around(graph: Graph, equal: Executable, build: Callable[[Graph], Executable]) -> Executable:
    """The executable of a graph, of that of the graph with equal dims."""
    return BroadcastExecutable(Broadcasting(graph), equal, build) if may_broadcast(graph) else equal
