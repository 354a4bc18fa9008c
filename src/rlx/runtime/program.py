"""Program: the code of a graph on a device with its weights, bound to sizes as they come. It keeps nothing of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from rlx import locks, mapped
from rlx.backends.executable import Bound, Executable
from rlx.backends.failures import Step, reraise, structured, translated
from rlx.backends.stored_weights import LateWeights, Source
from rlx.errors import CapabilityError, ClosedError, InputError, OutOfMemory, did_you_mean
from rlx.ir.expect import UnequalDims
from rlx.ir.literal import Array
from rlx.ir.type import TensorType
from rlx.runtime.bind_cache import BindCache, Key
from rlx.runtime.demands import Demands
from rlx.runtime.extent import ActiveBound, Extents
from rlx.runtime.interface import Interface, LateGraph
from rlx.runtime.misfit import origins_of, told
from rlx.runtime.signature import Signature, check_param

if TYPE_CHECKING:
    from rlx.ir.graph import Graph, Value
    from rlx.passes.held_experts import Budget
    from rlx.runtime.compiler import Compiler

Inputs = Mapping[str, Any] | Sequence[Any]
NONE_ACTIVE: Extents = {}
NO_STATES: Mapping[str, Any] = {}


class Program:
    """Every method may be called from many threads.

    signature   of its inputs
    place       the memory of a device in which arrays may stay; None where that is the host's
    output_at   numbers of the outputs for callers among all outputs; `next_at` those of the next values of states
    params      the arrays that weights were set to, at first those that it is made with; replaced as a whole
    """

    def __init__(
        self,
        graph: Graph | LateGraph,
        device: str,
        executable: Executable,
        compiler: Compiler | Callable[[], Compiler] | None = None,
        params: Mapping[str, Any] | None = None,
        demands: Demands | None = None,
    ) -> None:
        late = self._late = graph if isinstance(graph, LateGraph) else LateGraph.of(graph)
        interface = late.interface
        self.device = device
        self.executable = executable
        self._compiler = compiler
        self.output_types = interface.results
        self.output_names: tuple[str, ...] = tuple(self.output_types)
        numbers = {name: number for number, name in enumerate(interface.outputs)}
        self.output_at = [numbers[name] for name in self.output_names]
        self.next_at = [(state, numbers[output]) for state, output in interface.following.items()]
        self.param_types: dict[str, TensorType] = dict(interface.params)
        self.params: Mapping[str, Array] = {}
        self._has_first_weights = True
        self.place = executable.place
        self.writes_states = executable.writes_states
        self.signature = Signature(interface, self.place, lambda: late.graph)
        self._lock = locks.rlock()
        self._missing: frozenset[str] = frozenset(self.param_types)
        self._demands = Demands.of(self.graph) if demands is None else demands
        self._plans = BindCache()
        self._parts: dict[tuple[bool, tuple[str, ...], Budget | None], Program] = {}
        if isinstance(params, LateWeights) and executable.take_stored(params):
            self.params, self._missing = params, frozenset()
        elif params:
            self.set_params(self.checked(params))
            self._has_first_weights = True

    @property
    def graph(self) -> Graph:
        """The graph that it was compiled from, read when first asked for where the code is from the cache on disk."""
        return self._late.graph

    @property
    def interface(self) -> Interface:
        return self._late.interface

    @property
    def name(self) -> str:
        """Of the graph."""
        return self._late.interface.name

    @property
    def compiler(self) -> Compiler | None:
        """What compiles parts of the graph; None for a program that was made by hand."""
        if callable(self._compiler):
            self._compiler = self._compiler()
        return self._compiler

    # weights

    def checked(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """Weights as arrays. Raises InputError for an unknown name, a wrong shape or dtype."""
        unknown = [name for name in params if name not in self.param_types]
        if unknown:
            near = did_you_mean(str(unknown[0]), self.param_types)
            raise InputError(f"[set_param] expected names among {list(self.param_types)}, got {unknown}{near}")
        return {name: check_param(name, array, self.param_types[name]) for name, array in params.items()}

    def set_params(self, params: Mapping[str, Array]) -> None:
        """Gives weights arrays that were `checked`, here and in all parts: all of them, or after an error none."""
        private = {name: mapped.private(array) for name, array in params.items()}
        self._take(params, private)

    def _take(self, params: Mapping[str, Array], private: Mapping[str, Array]) -> None:
        """The weights as they were given, and as the program gets them."""
        with self._lock:
            with translated("weights", self.device):
                self.executable.take(params, private)
            if any(not self.param_types[name].is_static for name in params):
                self._plans.clear()
            self.params = {**self.params, **params}
            self._has_first_weights = False
            self._missing = self._missing - params.keys()
            for part in self._parts.values():
                part._take(params, private)

    def keep_packed(self, source: Source) -> None:
        """Has the executable keep weights on disk as it reads them, if they are still those that it was made with:
        those in `source`."""
        with self._lock:
            if self._has_first_weights:
                self.executable.keep_packed(source)

    # runs

    def ready(
        self, inputs: Inputs, extents: Extents = NONE_ACTIVE, states: Mapping[str, Any] = NO_STATES
    ) -> tuple[Bound, list[Array]]:
        """Checked arrays with the plan for their sizes. Raises InputError."""
        arrays = self.signature.quick(inputs)
        if arrays is None:
            arrays = self.signature.arrays(inputs)
        if self.signature.states:
            try:
                self.signature.with_states(arrays, states)
            except InputError:
                self.signature.take_back(arrays)
                raise
        key: Key = tuple([array.shape for array in arrays])
        if extents:
            key = (key, tuple(sorted(extents.items())))
        bound = self._plans.get(key)
        if bound is None or self._missing:
            try:
                bound = self._bind(arrays, extents)
            except BaseException:
                self.signature.take_back(arrays)
                raise
            self._plans.put(key, bound)
        return bound, arrays

    def _bind(self, arrays: list[Array], extents: Extents) -> Bound:
        if self._missing:
            self._refuse_missing()
        binding = self.signature.binding(arrays, self.params)
        if self.interface.check_dims(binding):
            self._demands.check_at(binding)
        if not extents:
            return self._bind_at(binding)
        active = self.signature.active(binding, extents)
        inner = self._bind_at(active)
        types = list(self.signature.types.values()), list(self.interface.outputs.values())
        return ActiveBound(inner, *types, binding, extents, partial(self.executable.put, ""))

    def _bind_at(self, binding: Mapping[str, int]) -> Bound:
        try:
            return self.executable.bind(binding)
        except Exception as error:
            self._fail(error, "bind", binding)

    def failed(self, error: Exception, arrays: Sequence[Array]) -> NoReturn:
        """Raises what a run failed with, as an error of rlx. The random numbers that it had are the next run's."""
        self.signature.take_back(arrays)
        self._fail(error, "run", self.signature.binding(arrays, self.params))

    def _fail(self, error: Exception, step: Step, binding: Mapping[str, int]) -> NoReturn:
        """Where memory ran out and no node is named, that of the largest value is; sizes that do not go together are
        told with the inputs that they come from."""
        if isinstance(error, UnequalDims):
            origins = origins_of(self.interface.inputs, binding)
            raise InputError(f"[run] {told(error.equality, binding, origins, lambda: self.graph)}") from None
        ours = structured(error, step, self.device)
        if isinstance(ours, OutOfMemory) and "at node" not in str(ours):
            largest = self._demands.largest(binding)
            raise OutOfMemory(f"{ours}; {largest}") from (None if ours is error else error)
        reraise(error, step, self.device)

    def _refuse_missing(self) -> None:
        lacking = sorted(self._missing)
        raise InputError(f"[run] expected data of every param, got none for {lacking}: set_param gives it")

    # other programs of this one

    def part(
        self, names: tuple[str, ...], values: Sequence[Value], advances: bool = False, budget: Budget | None = None
    ) -> Program:
        """The program whose outputs are these values of the graph, always with this program's weights and random
        numbers; compiled once for each choice. It changes states as this one does if it `advances`, else not at all.

        budget   how many experts of its weights are on the device, if it can hold some only; a part with another budget
                 is dropped

        Raises CapabilityError, CompileError.
        """
        key = (advances and bool(self.next_at), names, budget)
        with self._lock:
            if key in self._parts:
                return self._parts[key]
            for other in [k for k in self._parts if k[:2] == key[:2]]:
                del self._parts[other]
            if self.compiler is None:
                raise CapabilityError("[select] expected a program that a session compiled, got one made by hand")
            from rlx.passes.cut import ending_at

            graph = ending_at(self.graph, values, names, advances)
            graph.data = {}
            compiler = self.compiler if budget is None else self.compiler.with_budget(budget)
            part = Program(graph, self.device, compiler.compile(graph), compiler)
            part.signature.random = self.signature.random
            part._take(self.params, {name: mapped.private(array) for name, array in self.params.items()})
            self._parts[key] = part
            return part

    def rest(self) -> None:
        """Gives back what it has on its device, as other programs run in its place; a run brings it again."""
        with self._lock:
            self._plans.clear()
            self.executable.give_back()

    def clone(self) -> Program:
        """A program with the same code and weights, which takes other weights without a change to this one; random
        numbers go on from the same place if they have a seed. Raises CapabilityError."""
        with self._lock:
            clone = Program(self._late, self.device, self.executable.clone(), self._compiler, None, self._demands)
            clone.params, clone._missing = self.params, self._missing
            clone._has_first_weights = self._has_first_weights
            if self.signature.random is not None and clone.signature.random is not None:
                clone.signature.random.place = self.signature.random.place
            return clone

    # what it is

    @property
    def nbytes(self) -> int:
        """Bytes of code, packed weights and buffers. Arrays that weights were set to, and arenas, do not count."""
        return self.executable.nbytes + self.executable.weight_bytes + self._plans.nbytes

    def describe(self) -> dict[str, Any]:
        """What was compiled, for people and reports: types, bytes, times in ms, and what the backend tells."""
        params = self.interface.params.values()
        return {
            "graph": self.interface.name,
            "device": self.device,
            "inputs": {n: str(of) for n, of in self.signature.types.items() if n not in self.signature.states},
            "outputs": {name: str(of) for name, of in self.output_types.items()},
            "states": {name: str(of) for name, of in self.signature.states.items()},
            "nodes": len(self.graph.nodes),
            "params": len(params),
            "param_bytes": sum(of.nbytes() for of in params if of.is_static),
            "compile_ms": self.executable.compile_ns / 1e6,
            "compile_count": self.executable.compile_count,
            "from_cache": self.executable.from_cache,
            "bindings": len(self._plans),
            "plan_bytes": self._plans.nbytes,
            **self.executable.describe(),
        }


class ClosedProgram:
    """What is left of a program that was closed: what it was. Whatever else it is asked for raises ClosedError."""

    def __init__(self, program: Program) -> None:
        self.name = program.name
        self.device = program.device

    @property
    def graph(self) -> Graph:
        """An empty one of its name."""
        from rlx.ir.graph import Graph

        return Graph(self.name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ClosedError(f"[run] expected a program that is open, got {self.name!r}, which was closed")
