"""CompiledGraph: a compiled program, its weights, and the way from a caller's arrays into it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlx import locks, mapped
from rlx.backends.executable import Bound, Capabilities, Executable, KernelTime
from rlx.errors import CapabilityError, InputError, OutOfMemory
from rlx.interrupt import deadline
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.type import TensorType
from rlx.passes.cut import ending_at
from rlx.runtime.broadcasting import check_dims, hand_over
from rlx.runtime.checked import Demands
from rlx.runtime.compiler import Compiler
from rlx.runtime.experts import Experts
from rlx.runtime.extent import ActiveBound, Extents, check_extent
from rlx.runtime.mode import PLAIN, Mode, check_feeds
from rlx.runtime.pipeline import Pending, Pipeline
from rlx.runtime.plans import Key, Plans
from rlx.runtime.signature import Signature, check_handle, check_param, names_of
from rlx.runtime.slots import check_slots

Inputs = Mapping[str, Any] | Sequence[Any]
NONE_ACTIVE: Extents = {}


class CompiledGraph:
    """A program compiled for one device. Every method may be called from many threads.

    A call that fails, in its checks or in the program, changes nothing: the next call works.

    attempts   devices of a chain that were tried before this one, and why each failed
    """

    def __init__(
        self,
        graph: Graph,
        device: str,
        executable: Executable,
        compiler: Compiler | None = None,
        take_data: bool = True,
    ) -> None:
        self.graph = graph
        self.device = device
        self.executable = executable
        self.compiler = compiler
        self.output_names: tuple[str, ...] = tuple(graph.outputs)
        self._signature = Signature(graph)
        self._output_types = {name: value.type for name, value in graph.outputs.items()}
        self._param_types: dict[str, TensorType] = {v.name: v.type for v in graph.params}
        self._params: dict[str, Array] = {}
        self._missing: frozenset[str] = frozenset(self._param_types)
        self._demands = Demands(graph)
        self._plans = Plans()
        self._lock = locks.rlock()
        self._mode = PLAIN
        self._turn = locks.rlock()  # of runs that feed, and of changes of the mode
        self._pipeline: Pipeline[list[Array]] = Pipeline()
        self._selected: dict[tuple[str, ...], CompiledGraph] = {}
        self._owner: CompiledGraph | None = None
        self._experts: Experts | None = None
        self.attempts: Mapping[str, str] = {}
        if take_data and graph.data:
            self.set_params(graph.data)

    @property
    def input_names(self) -> tuple[str, ...]:
        return self._signature.names

    @property
    def param_names(self) -> tuple[str, ...]:
        return tuple(self._param_types)

    @property
    def params(self) -> dict[str, Array]:
        """The arrays that weights were set to."""
        return dict(self._params)

    @property
    def capabilities(self) -> Capabilities:
        """What the program can do; methods that need what it cannot raise CapabilityError."""
        return self.executable.capabilities

    # weights

    def set_param(self, name: str, array: Any) -> None:
        """Gives a weight its array, which may be kept and read later: do not write to it. Raises InputError."""
        self.set_params({name: array})

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Gives several weights their arrays: all of them, or after an error none. Compiles nothing.

        Queued runs that came before see the old ones. Raises InputError for an unknown name, a wrong shape or dtype.
        """
        if self._owner is not None:
            return self._owner.set_params(params)
        unknown = [name for name in params if name not in self._param_types]
        if unknown:
            raise InputError(f"[set_param] expected names among {list(self._param_types)}, got {unknown}")
        made = {name: check_param(name, array, self._param_types[name]) for name, array in params.items()}
        held = {name: mapped.private(array) for name, array in made.items()}
        self._pipeline.drain()
        with self._lock:
            for program in (self, *self._selected.values()):
                program._take(made, held)
        return None

    def _take(self, made: Mapping[str, Array], held: Mapping[str, Array]) -> None:
        """The weights as they were given, and as the program gets them."""
        with self._lock:
            hand_over(self.executable, made, held)
            if any(not self._param_types[name].is_static for name in made):
                self._plans.clear()
            self._params = {**self._params, **made}
            self._missing = self._missing - made.keys()

    def seed(self, seed: int | None) -> None:
        """Random numbers of the runs from here on follow from this seed (0 to 2⁶⁴ - 1); None draws a new key.

        Numbers of nodes with a seed of their own are always the same. Raises InputError.
        """
        state = self._signature.random
        if state is not None:
            state.seed(seed)

    # runs

    def run(
        self, inputs: Inputs = (), outputs: Iterable[str] | None = None, timeout: float | None = None
    ) -> list[Array]:
        """Runs the program: inputs by name or by position, results in the order of `output_names` or of `outputs`.

        Inputs are NumPy arrays or anything that speaks DLPack (CPU tensors of other libraries, taken without a copy).
        Those with a handle may be left out. Results that feed a handle are read-only.

        timeout   seconds after which a run that is not done ends with RunTimeout. Loops look at it between trips, the
                  reference between nodes too; xla goes on behind, and what it gives is dropped. A run without loops
                  ends when it is done on the other devices, and Core ML never looks

        Raises InputError before anything runs if names, dtypes, ranks or dims do not fit, and behind the run if its
        data asked for an element that is not there.
        """
        if timeout is not None:
            with deadline(timeout):
                return self.run(inputs, outputs)
        try:
            if self._mode is PLAIN:
                bound, arrays = self._ready(inputs)
                results = bound(arrays)
            else:
                results = self._run_in_mode(inputs)
        except MemoryError as error:
            raise _out_of_memory(error, self.device) from None
        if outputs is None:
            return results
        return [results[i] for i in names_of(outputs, self.output_names)]

    def run_slots(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Array]:
        """Runs with inputs by position and puts each result into the array given for it; gives these back.

        The arrays have the dtypes and shapes of the results, are contiguous and writeable, and share no memory with
        each other or with inputs; anything else is an InputError before anything runs. Where capabilities have
        `zero_copy_outputs` nothing is copied. What they hold after a run that failed is not said.
        """
        return self._run_in_mode(inputs, outputs)

    def _run_in_mode(self, inputs: Inputs, given: Sequence[Array] | None = None) -> list[Array]:
        """A run with handles, feeds, active extents and given outputs, as far as there are any."""
        if not self._mode.feeds:
            return self._run_once(self._mode, inputs, given)
        with self._turn:
            mode = self._mode
            results = self._run_once(mode, inputs, given)
            handles = mode.fed(dict(zip(self.output_names, results)), copy=given is not None)
            self._mode = replace(mode, handles=handles)
            return results

    def _run_once(self, mode: Mode, inputs: Inputs, given: Sequence[Array] | None) -> list[Array]:
        if mode.experts is not None:
            return mode.experts.run(mode, inputs, given)
        if mode.handles:
            inputs = mode.merge(inputs, self.input_names)
        bound, arrays = self._ready(inputs, mode.extents)
        if given is None:
            return bound(arrays)
        return bound(arrays, check_slots(given, self._output_types, bound.shapes, arrays))

    def _ready(self, inputs: Inputs, extents: Extents = NONE_ACTIVE) -> tuple[Bound, list[Array]]:
        """Checked arrays with the plan for their sizes."""
        arrays = self._signature.quick(inputs)
        if arrays is None:
            arrays = self._signature.arrays(inputs)
        key: Key = tuple([array.shape for array in arrays])
        if extents:
            key = (key, tuple(sorted(extents.items())))
        bound = self._plans.get(key)
        if bound is None:
            bound = self._bind(arrays, extents)
            self._plans.put(key, bound)
        elif self._missing:
            self._refuse_missing()
        return bound, arrays

    def _bind(self, arrays: list[Array], extents: Extents) -> Bound:
        if self._missing:
            self._refuse_missing()
        binding = self._signature.binding(arrays, self._params)
        if check_dims(self.graph, binding):
            self._demands.check_at(binding)
        if not extents:
            return self.executable.bind(binding)
        active = self._signature.active(binding, extents)
        inner = self.executable.bind(active)
        types = list(self._signature.types.values()), list(self._output_types.values())
        return ActiveBound(inner, *types, binding, extents)

    def _refuse_missing(self) -> None:
        lacking = sorted(self._missing)
        raise InputError(f"[run] expected data of every param, got none for {lacking}: set_param gives it")

    def kernel_times(self, inputs: Inputs = ()) -> list[KernelTime]:
        """Runs, and tells how long each kernel took. Raises ProfileError unless it was compiled for that."""
        mode = self._mode
        bound, arrays = self._ready(mode.merge(inputs, self.input_names) if mode.handles else inputs, mode.extents)
        return bound.profile(arrays)

    # runs that are queued

    def run_pipelined(self, inputs: Inputs = ()) -> Pending[list[Array]]:
        """Queues a run, which starts by itself; `result()` of what this gives waits for it. Runs follow their order.

        While MOST_QUEUED runs wait, this waits. Inputs must stay as they are until the run is done. All errors, those
        of checks too, come with the result, and hinder no other run. Raises CapabilityError.
        """
        self.capabilities.require("pipelining", self.device)
        return self._pipeline.put(lambda: self.run(inputs))

    def commit(self) -> int:
        """Sees to it that queued runs start, without waiting; tells how many are not done."""
        return self._pipeline.unfinished

    def sync(self) -> None:
        """Waits for the runs that are queued by now. Raises the first error of theirs that no `result()` has raised."""
        self._pipeline.sync()

    # what stays between runs

    def _change(self, change: Callable[[Mode], Mode]) -> None:
        """Replaces the mode, after the runs that were queued before."""
        self._pipeline.drain()
        with self._turn:
            self._mode = change(self._mode) or PLAIN

    def bind_handle(self, name: str, array: Any) -> None:
        """Gives an input a value that stays: runs need not bring it any more; one that does uses what it brings.

        The array is copied. Raises InputError.
        """
        if name not in self.input_names:
            raise InputError(f"[bind_handle] expected an input among {list(self.input_names)}, got {name!r}")
        value = check_handle(name, array, self._signature.types[name])
        self._change(lambda mode: replace(mode, handles={**mode.handles, name: value}))

    def read_handle(self, name: str) -> Array:
        """The value of a handle, read-only; it stays as it is whatever runs come. Raises InputError."""
        self._pipeline.drain()
        handles = self._mode.handles
        if name not in handles:
            raise InputError(f"[read_handle] expected an input with a handle among {list(handles)}, got {name!r}")
        return handles[name]

    def unbind_handle(self, name: str) -> None:
        """The input has to be brought again. Raises InputError where it has no handle, or a feed."""

        def without(mode: Mode) -> Mode:
            if name not in mode.handles:
                wanted = f"an input with a handle among {list(mode.handles)}"
                raise InputError(f"[unbind_handle] expected {wanted}, got {name!r}")
            if name in mode.feeds.values():
                raise InputError(f"[unbind_handle] expected an input that no output feeds, got {name!r}")
            return replace(mode, handles={k: v for k, v in mode.handles.items() if k != name})

        self._change(without)

    def set_feeds(self, feeds: Mapping[str, str]) -> None:
        """After each successful run the value of an output becomes the handle of an input; replaces earlier feeds.

        feeds   output → input; the input has a handle with the first value

        The array of the result is the new handle, without a copy, and is read-only from then on. Runs of a program
        with feeds take turns. Raises InputError for types that do not go together.
        """
        given = dict(feeds)

        def with_feeds(mode: Mode) -> Mode:
            check_feeds(self.graph, given, mode.handles)
            return replace(mode, feeds=given)

        self._change(with_feeds)

    def set_active_extent(self, dim: str, extent: int | None) -> None:
        """From now on only the first `extent` entries along a dim count, whatever the inputs have; None ends that.

        Only these are computed: a result is that of a run on the entries in front, filled up with zeros to the shape
        that the inputs' sizes ask for. The dim must stand alone where inputs have it, in no param, and in no product
        with other dims where outputs have it. Raises InputError, CapabilityError.
        """
        if extent is None:
            self._change(lambda mode: replace(mode, extents={k: n for k, n in mode.extents.items() if k != dim}))
            return
        self.capabilities.require("active_extent", self.device)
        check_extent(self.graph, dim, extent)
        self._change(lambda mode: replace(mode, extents={**mode.extents, dim: extent}))

    @property
    def experts(self) -> Experts:
        """The experts that rows of products choose: what they chose, and whose weights should lie in memory."""
        with self._lock:
            if self._experts is None:
                self._experts = Experts(self, self._change)
            return self._experts

    # other programs of this one

    def clone(self) -> CompiledGraph:
        """A program with the same code and weights, which takes other weights without a change to this one, and with
        handles, feeds, extents and a queue of its own that start as they are here; nobody watches its experts.

        Raises CapabilityError.
        """
        self._pipeline.drain()
        with self._turn, self._lock:
            made = CompiledGraph(self.graph, self.device, self.executable.clone(), self.compiler, take_data=False)
            made._params, made._missing, made._mode = self._params, self._missing, self._mode.watched_by(None)
            return made

    def select(self, outputs: Iterable[str]) -> CompiledGraph:
        """The program of some outputs, in this order, without what only others need. Compiled once for each choice.

        It takes the same inputs, and always has this program's weights; handles, feeds and extents are its own.
        Raises InputError, CapabilityError, CompileError.
        """
        names = tuple(self.output_names[i] for i in names_of(outputs, self.output_names))
        if not names or len(set(names)) < len(names):
            raise InputError(f"[select] expected outputs, each once, got {list(names)}")
        if names == self.output_names:
            return self
        if self._owner is not None:
            return self._owner.select(names)
        with self._lock:
            return self._with_outputs(names, [self.graph.outputs[name] for name in names])

    def _with_outputs(self, names: tuple[str, ...], values: Sequence[Value]) -> CompiledGraph:
        """The program whose outputs are these values of the graph, with this program's weights; compiled once."""
        with self._lock:
            if names in self._selected:
                return self._selected[names]
            if self.compiler is None:
                raise CapabilityError("[select] expected a program that a session compiled, got one made by hand")
            part = ending_at(self.graph, values, names)
            part.data = {}
            made = CompiledGraph(part, self.device, self.compiler.compile(part), self.compiler)
            made._owner = self
            made._signature.random = self._signature.random  # one row of random numbers for all
            made._take(self._params, {name: mapped.private(array) for name, array in self._params.items()})
            self._selected[names] = made
            return made

    def read_output_row(self, name: str, row: int | tuple[int, ...], inputs: Inputs = ()) -> Array:
        """One row of one output: a copy of `output[row]`. Only what the output needs runs, nothing is fed.

        row   an index along the first axis, or several along the first axes: of logits [batch, seq, vocabulary] the
              row (0, -1) is the last token's

        Raises InputError as `run` does, and for a row outside of the output.
        """
        program = self.select([name])
        (whole,) = program._run_once(self._mode.watched_by(None), inputs, None)
        at = row if isinstance(row, tuple) else (row,)
        fits = len(at) <= whole.ndim and all(type(i) is int and -n <= i < n for i, n in zip(at, whole.shape))
        if not fits:
            raise InputError(f"[read_output_row] expected a row of {name!r} {list(whole.shape)}, got {row!r}")
        return np.array(whole[at])

    def save(self, path: str | os.PathLike[str], sizes: Mapping[str, int] | None = None) -> None:
        """Writes code, program and weights to one file, which `rlx.load_compiled` opens on machines like this one.

        A program for a runtime with models of its own (`capabilities.package`) is written as one of these, for
        programs without rlx; `sizes` are those of its dims, which are fixed there. `rlx.load_compiled` takes no such.

        Raises CapabilityError, InputError for sizes that are missing or not asked for, OSError.
        """
        if self.capabilities.package:
            self.executable.write_package(path, dict(sizes or {}))
            return
        from rlx.runtime.saved import save_compiled

        if sizes:
            raise InputError(f"[save] expected no sizes, as this program takes all of them, got {dict(sizes)}")
        save_compiled(self, path)

    def __call__(self, /, *positional: Any, **named: Any) -> dict[str, Array]:
        """`run` with inputs as arguments, and its `timeout` if no input is called that; gives the outputs by name."""
        timeout = None if "timeout" in self.input_names else named.pop("timeout", None)
        inputs: Inputs = named
        if positional:
            names = self.input_names
            if len(positional) > len(names) or any(name in named for name in names[: len(positional)]):
                got = f"{len(positional)} by position and {list(named)}"
                raise InputError(f"[run] expected each of the inputs {list(names)} once, got {got}")
            inputs = {**dict(zip(names, positional)), **named}
        return dict(zip(self.output_names, self.run(inputs, timeout=timeout)))

    @property
    def compile_count(self) -> int:
        """How many programs were compiled for this graph so far. New shapes only plan, unless a device compiles every
        size, or a dim is 1 against another for the first time."""
        return self.executable.compile_count

    @property
    def nbytes(self) -> int:
        """Bytes of code, packed weights and buffers. Arrays that weights were set to, and arenas, do not count."""
        return self.executable.nbytes + self.executable.weight_bytes + self._plans.nbytes

    def describe(self) -> dict[str, Any]:
        """What was compiled, for people and reports: types, bytes, times in ms, and what the backend tells."""
        params = self.graph.params
        return {
            "graph": self.graph.name,
            "device": self.device,
            "tried_before": dict(self.attempts),
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


def _out_of_memory(error: MemoryError, device: str) -> OutOfMemory:
    """Python's error as ours."""
    return error if isinstance(error, OutOfMemory) else OutOfMemory(f"[run] {error or 'no memory'}, on {device}")
