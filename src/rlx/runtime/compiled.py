"""CompiledGraph: a compiled program, its weights, and the way from a caller's arrays into it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlx.backends.base import Bound, Executable, KernelTime
from rlx.errors import InputError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.type import TensorType
from rlx.runtime.plans import Plans
from rlx.runtime.signature import Signature, check_param, names_of

Inputs = Mapping[str, Any] | Sequence[Any]


class CompiledGraph:
    """A program compiled for one device. Every method may be called from many threads.

    A call that fails, in its checks or in the program, changes nothing: the next call works.
    """

    def __init__(self, graph: Graph, device: str, executable: Executable) -> None:
        self.graph = graph
        self.device = device
        self.executable = executable
        self.output_names: tuple[str, ...] = tuple(graph.outputs)
        self._signature = Signature(graph)
        self._param_types: dict[str, TensorType] = {v.name: v.type for v in graph.params}
        self._params: dict[str, Array] = {}
        self._missing: frozenset[str] = frozenset(self._param_types)
        self._plans = Plans()
        self._lock = threading.Lock()
        if graph.data:
            self.set_params(graph.data)

    @property
    def input_names(self) -> tuple[str, ...]:
        return self._signature.names

    @property
    def param_names(self) -> tuple[str, ...]:
        return tuple(self._param_types)

    def set_param(self, name: str, array: Any) -> None:
        """Gives a weight its array, which may be kept and read later: do not write to it. Raises InputError."""
        self.set_params({name: array})

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Gives several weights their arrays: all of them, or after an error none. Compiles nothing.

        Raises InputError for an unknown name, a wrong shape or a wrong dtype.
        """
        unknown = [name for name in params if name not in self._param_types]
        if unknown:
            raise InputError(f"[set_param] expected names among {list(self._param_types)}, got {unknown}")
        made = {name: check_param(name, array, self._param_types[name]) for name, array in params.items()}
        with self._lock:
            self.executable.set_params(made)
            if any(not self._param_types[name].is_static for name in made):
                self._plans.clear()
            symbolic = {name: array for name, array in made.items() if not self._param_types[name].is_static}
            self._params = {**self._params, **symbolic}
            self._missing = self._missing - made.keys()

    def seed(self, seed: int | None) -> None:
        """Random numbers of the runs from here on follow from this seed (0 to 2⁶⁴ - 1); None draws a new key.

        Numbers of nodes with a seed of their own are always the same. Raises InputError.
        """
        state = self._signature.random
        if state is not None:
            state.seed(seed)

    def run(self, inputs: Inputs = (), outputs: Iterable[str] | None = None) -> list[Array]:
        """Runs the program: inputs by name or by position, results in the order of `output_names` or of `outputs`.

        Inputs are NumPy arrays or anything that speaks DLPack (CPU tensors of other libraries, taken without a copy).
        Raises InputError before anything runs if names, dtypes, ranks or dims do not fit.
        """
        arrays = self._signature.quick(inputs)
        if arrays is None:
            arrays = self._signature.arrays(inputs)
        bound = self._plans.get(tuple([array.shape for array in arrays]))
        if bound is None:
            bound = self._bind(arrays)
        elif self._missing:
            self._refuse_missing()
        results = bound(arrays)
        if outputs is None:
            return results
        return [results[i] for i in names_of(outputs, self.output_names)]

    def kernel_times(self, inputs: Inputs = ()) -> list[KernelTime]:
        """Runs, and tells how long each kernel took. Raises ProfileError unless it was compiled for that."""
        arrays = self._signature.arrays(inputs)
        bound = self._plans.get(tuple([array.shape for array in arrays])) or self._bind(arrays)
        return bound.profile(arrays)

    def __call__(self, /, *positional: Any, **named: Any) -> dict[str, Array]:
        """`run` with inputs as arguments; gives the outputs by name."""
        inputs: Inputs = named
        if positional:
            names = self.input_names
            if len(positional) > len(names) or any(name in named for name in names[: len(positional)]):
                got = f"{len(positional)} by position and {list(named)}"
                raise InputError(f"[run] expected each of the inputs {list(names)} once, got {got}")
            inputs = {**dict(zip(names, positional)), **named}
        return dict(zip(self.output_names, self.run(inputs)))

    def _bind(self, arrays: list[Array]) -> Bound:
        if self._missing:
            self._refuse_missing()
        binding = self._signature.binding(arrays, self._params)
        bound = self.executable.bind(binding)
        self._plans.put(tuple([array.shape for array in arrays]), bound)
        return bound

    def _refuse_missing(self) -> None:
        lacking = sorted(self._missing)
        raise InputError(f"[run] expected data of every param, got none for {lacking}: set_param gives it")

    @property
    def compile_count(self) -> int:
        """How many programs were compiled for this graph so far; new shapes do not raise it, new shapes only plan."""
        return self.executable.compile_count

    def describe(self) -> dict[str, Any]:
        """What was compiled, for people and reports: types, bytes, times in ms, and what the backend tells."""
        params = self.graph.params
        return {
            "graph": self.graph.name,
            "device": self.device,
            "inputs": {name: str(of) for name, of in self._signature.types.items()},
            "outputs": {name: str(value.type) for name, value in self.graph.outputs.items()},
            "nodes": len(self.graph.nodes),
            "params": len(params),
            "param_bytes": sum(v.type.nbytes() for v in params if v.type.is_static),
            "compile_ms": self.executable.compile_ns / 1e6,
            "compile_count": self.compile_count,
            "from_cache": self.executable.from_cache,
            "plans": len(self._plans),
            "plan_bytes": self._plans.nbytes,
            **self.executable.describe(),
        }

    def __repr__(self) -> str:
        takes = ", ".join(f"{name}: {of}" for name, of in self._signature.types.items())
        gives = ", ".join(f"{name}: {value.type}" for name, value in self.graph.outputs.items())
        return f"<CompiledGraph {self.graph.name!r} on {self.device}: ({takes}) → ({gives})>"
