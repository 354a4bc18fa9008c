"""CompiledGraph: what users hold of a compiled program: its runs, its weights, and values that stay between runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlx import interrupt, locks
from rlx.arguments import checked, methods_checked
from rlx.backends.executable import Capabilities, Executable, KernelTime
from rlx.backends.memory import DeviceArray, Where
from rlx.errors import InputError
from rlx.interrupt import CancelToken, limited
from rlx.ir.literal import Array
from rlx.runtime.mode import PLAIN, Mode
from rlx.runtime.pipeline import Begun, Pending, Pipeline
from rlx.runtime.program import ClosedProgram, Inputs, Program
from rlx.runtime.run import run_once
from rlx.runtime.signature import destinations_of, names_of, where_wanted
from rlx.runtime.state import State, begun
from rlx.runtime.typed import Typed

if TYPE_CHECKING:
    from rlx.ir.graph import Graph
    from rlx.runtime.experts import Experts
    from rlx.runtime.pickled import Pickled
    from rlx.runtime.shared_state import SharedState

ON_DEVICE = "device"
"""What `outputs` of a run are where results stay on the device."""


@methods_checked(but=("run", "run_slots", "set_active_extent"))
class CompiledGraph:
    """A program compiled for one device. Every method may be called from many threads.

    A call that fails, in its checks or in the program, changes nothing: the next call works.

    program    the code and its weights
    attempts   devices of a chain that were tried before this one, and why each failed
    shared     what it keeps from run to run in common with programs on other devices (`GraphDevices`)
    """

    def __init__(self, program: Program, mode: Mode = PLAIN, shared: SharedState | None = None) -> None:
        self.program = program
        self.attempts: Mapping[str, str] = {}
        self._pipeline: Pipeline[list[Array]] = Pipeline()
        first_mode = begun(program, mode) if shared is None else mode
        self._state = State(program, self._pipeline.drain, first_mode, shared)
        if shared is not None:
            shared.join(self._state)
        self._lock = locks.rlock()
        self._selected: dict[tuple[str, ...], CompiledGraph] = {}
        self._owner: CompiledGraph | None = None
        self._experts: Experts | None = None

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def device(self) -> str:
        return self.program.device

    @property
    def executable(self) -> Executable:
        """The executable that the device's backend compiled."""
        return self.program.executable

    @property
    def input_names(self) -> tuple[str, ...]:
        return self.program.signature.names

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.program.output_names

    @property
    def param_names(self) -> tuple[str, ...]:
        return tuple(self.program.param_types)

    @property
    def params(self) -> dict[str, Array]:
        """The arrays that weights were set to."""
        return dict(self.program.params)

    @property
    def kept(self) -> State:
        """What stays between its runs, for code that takes it over."""
        return self._state

    @property
    def capabilities(self) -> Capabilities:
        """What the program can do; a method that needs anything else raises CapabilityError."""
        return self.executable.capabilities

    # weights

    def set_param(self, name: str, array: Any, dtype: Any = None) -> None:
        """Sets a weight. The array may be kept and read later: do not write to it. Raises InputError.

        dtype   the dtype of the data, which may then be bytes; it is widened if the weight is wider (`rlx.Typed`)
        """
        self.set_params({name: array if dtype is None else Typed(array, dtype)})

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Sets several weights: all of them, or none if one is invalid. Compiles nothing.

        Runs that were queued before see the old ones. Raises InputError for an unknown name, a wrong shape or dtype.
        """
        if self._owner is not None:
            return self._owner.set_params(params)
        arrays = self.program.checked(params)
        self._pipeline.drain()
        return self.program.set_params(arrays)

    def seed(self, seed: int | None) -> None:
        """Makes the random numbers of the following runs depend on this seed (0 to 2⁶⁴ - 1); None draws a new key.

        Nodes with a seed of their own always give the same numbers. Raises InputError.
        """
        state = self.program.signature.random
        if state is not None:
            state.seed(seed)

    # runs

    def run(
        self,
        inputs: Inputs = (),
        outputs: Iterable[str] | None = None,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> list[Array]:
        """Runs the program: inputs by name or by position, results in the order of `output_names` or of `outputs`.

        Inputs are NumPy arrays, arrays on the device, or anything that supports DLPack (CPU tensors of other libraries
        are used without a copy). Inputs with a handle may be left out. Results that feed a handle are read-only.

        outputs   names; no other output is brought to the host. "device" leaves all results on the device, as arrays
                  that runs accept without a copy (`backends.memory.DeviceArray`), unless an output has that name. On
                  GPUs such a run returns before it has ended: who first sees an array is told of checks that failed

        timeout   seconds after which an unfinished run ends with RunTimeout
        cancel    a token that ends the run with RunCancelled, from any thread

        A run then ends within some hundredths of a second. The CPU's code checks every few milliseconds, also within
        kernels, except in a kernel that works on a single row. The code of other devices cannot be interrupted: it
        continues in the background, and its results are dropped.

        Raises InputError before anything runs if names, dtypes, ranks or dims do not fit, and after the run if its data
        addressed an element that does not exist. Raises OutOfMemory, which names the largest value, DeviceLost, and
        DriverError for other errors of a driver. Values that stay between runs are then unchanged.
        """
        if timeout is not None or cancel is not None:
            with limited(timeout, cancel):
                return self._run_in_mode(inputs) if outputs is None else self._run_for(inputs, outputs)
        if outputs is not None:
            return self._run_for(inputs, outputs)
        if self._state.mode is not PLAIN:
            return self._run_in_mode(inputs)
        bound, arrays = self.program.ready(inputs)
        try:
            return bound(arrays)
        except Exception as error:
            self.program.failed(error, arrays)

    def _run_for(self, inputs: Inputs, outputs: Iterable[str]) -> list[Any]:
        """A run that returns only some outputs, or all on the device."""
        names, place = self.output_names, self.program.place
        if isinstance(outputs, str) and outputs == ON_DEVICE and ON_DEVICE not in names:
            results = self._run_in_mode(inputs, destinations=["unchecked"] * len(names) if place is not None else None)
            return [where_wanted(result, "device") for result in results]
        chosen = names_of(outputs, names)
        destinations: list[Where] | None = None
        if place is not None:
            destinations = ["host" if i in chosen else "nowhere" for i in range(len(names))]
        results = self._run_in_mode(inputs, destinations=destinations)
        return [results[i] for i in chosen]

    def run_to(self, inputs: Inputs, wanted: Mapping[str, Where]) -> dict[str, Any]:
        """A run whose outputs are wanted by name, each on the host or on the device, where they may be under way when
        this returns (`backends.memory.DeviceArray`); others are nowhere. Raises as `run` does."""
        chosen, destinations = destinations_of(wanted, self.output_names)
        results = self._run_in_mode(inputs, destinations=None if self.program.place is None else destinations)
        return {name: where_wanted(results[at], wanted[name]) for name, at in zip(wanted, chosen)}

    def run_slots(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Array],
        timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> list[Array]:
        """Runs with inputs by position and writes each result into the array given for it; returns these arrays.

        The arrays must have the dtypes and shapes of the results, be contiguous and writeable, and share no memory with
        each other or with inputs; otherwise InputError is raised before anything runs. Nothing is copied if
        capabilities have `zero_copy_outputs`. After a failed run their contents are undefined. `timeout` and `cancel`
        are those of `run`; nothing writes to the arrays after the call has returned.
        """
        if timeout is None and cancel is None:
            return self._run_in_mode(inputs, outputs)
        with limited(timeout, cancel):
            return self._run_in_mode(inputs, outputs)

    def _run_in_mode(
        self, inputs: Inputs, outputs: Sequence[Array] | None = None, destinations: Sequence[Where] | None = None
    ) -> list[Any]:
        """A run with the handles, feeds, active extents and observers of the mode. Results are written into `outputs`
        if given, and end up where `destinations` says."""
        return self._state.run(
            lambda mode, where: run_once(self.program, mode, inputs, outputs, where), outputs is not None, destinations
        )

    def rehearse(self, inputs: Inputs = ()) -> float:
        """A run that changes nothing that stays between runs, nor is seen by observers; returns its time in ns."""
        if self._state.mode is PLAIN:
            before = time.perf_counter_ns()
            self.run(inputs)
            return float(time.perf_counter_ns() - before)

        def timed(mode: Mode, where: Sequence[Where] | None) -> list[float]:
            before = time.perf_counter_ns()
            run_once(self.program, mode, inputs, where=where)
            return [float(time.perf_counter_ns() - before)]

        return float(self._state.rehearse(timed)[0])

    def kernel_times(self, inputs: Inputs = ()) -> list[KernelTime]:
        """Runs the program and returns the time of each kernel. Raises ProfileError unless it was compiled for
        profiling."""
        mode = self._state.now(copied=True)
        merged = mode.merge(inputs, self.input_names) if mode.handles else inputs
        bound, arrays = self.program.ready(merged, mode.extents, mode.states)
        try:
            return bound.profile(arrays)
        except Exception as error:
            self.program.failed(error, arrays)

    # runs that are queued

    def run_pipelined(
        self, inputs: Inputs = (), timeout: float | None = None, cancel: CancelToken | None = None
    ) -> Pending[list[Array]]:
        """Queues a run, which starts by itself; call `result()` on the returned object to wait for it. Runs keep their
        order.

        timeout, cancel   as in `run`; the time counts from the start of the run

        If MOST_QUEUED runs are waiting, this call waits. Inputs must not change until the run is done. All errors,
        those of checks included, come with the result, and do not affect other runs. Raises CapabilityError.
        """
        self.capabilities.require("pipelining", self.device)
        self._state.settle_others()
        if timeout is None and cancel is None:
            return self._pipeline.put(lambda: self._begin(inputs))
        return self._pipeline.put(lambda: self.run(inputs, None, timeout, cancel))

    def _begin(self, inputs: Inputs) -> list[Array] | Begun[list[Array]]:
        """A run, which may only have begun where it changes nothing for the next one."""
        signature = self.program.signature
        if self._state.mode is not PLAIN or signature.states or signature.random is not None:
            return self._run_in_mode(inputs)
        bound, arrays = self.program.ready(inputs)
        try:
            end = bound.begin(arrays)
            if end is None:
                return bound(arrays)
        except Exception as error:
            self.program.failed(error, arrays)

        def ended() -> list[Array]:
            try:
                return end()
            except Exception as error:
                self.program.failed(error, arrays)

        return Begun(ended)

    def commit(self) -> int:
        """Ensures that queued runs start, without waiting; returns how many are not done."""
        return self._pipeline.unfinished

    def sync(self) -> None:
        """Waits for all runs that are queued now. Raises the first of their errors that no `result()` has raised."""
        self._pipeline.sync()

    # what stays between runs

    def bind_handle(self, name: str, array: Any) -> None:
        """Gives an input a persistent value, or a state its value. Runs may then omit the input; a run that brings it
        uses what it brings.

        The array is copied. Raises InputError.
        """
        self._state.bind_handle(name, array)

    def read_handle(self, name: str) -> Array:
        """The value of a handle or of a state, read-only; later runs do not change it. Raises InputError."""
        return self._state.read_handle(name)

    def has_handle(self, name: str) -> bool:
        """Whether an input has a handle, or a state a value."""
        return name in self._state.handles()

    def handles(self) -> tuple[str, ...]:
        """Names of the inputs that have a handle, and of the states that have a value."""
        return self._state.handles()

    def unbind_handle(self, name: str) -> None:
        """Removes the handle: runs must bring the input again. Raises InputError if it has no handle, or has a feed."""
        self._state.unbind_handle(name)

    def set_feeds(self, feeds: Mapping[str, str]) -> None:
        """Makes the value of an output the handle of an input after each successful run; replaces earlier feeds.

        feeds   output → input; the input has a handle with the first value

        The array of the result is the new handle, without a copy, and is read-only from then on. Runs of a program with
        feeds are serialised. Raises InputError for types that do not match.
        """
        self._state.set_feeds(feeds)

    def set_active_extent(self, dim: str, extent: int | None) -> None:
        """From now on only the first `extent` entries along a dim count, whatever the sizes of inputs; None ends that.

        Only these entries are computed: a result is that of a run on the first entries, filled up with zeros to the
        shape that the sizes of the inputs imply. The dim must stand alone on axes of inputs, must not occur in params,
        and must not be multiplied by other dims in outputs. Raises InputError, CapabilityError.
        """
        self._state.set_active_extent(dim, extent)

    @property
    def experts(self) -> Experts:
        """The mixtures of experts in the program: which experts rows chose, and whose weights should be in memory."""
        with self._lock:
            if self._experts is None:
                from rlx.runtime.experts import Experts

                self._experts = Experts(self._state)
            return self._experts

    # other programs of this one

    def clone(self) -> CompiledGraph:
        """A program with the same code and weights. Setting weights of one does not affect the other. Handles, feeds,
        extents, states and the seed are copied; the clone has its own queue, and nobody observes its experts.

        Raises CapabilityError.
        """
        mode = self._state.now(copied=True).unobserved()
        return CompiledGraph(self.program.clone(), mode or PLAIN)

    def select(self, outputs: str | Iterable[str]) -> CompiledGraph:
        """The program of some outputs, in this order, without what only others need. Compiled once for each choice.

        It takes the same inputs and always has this program's weights; its handles, feeds and extents are its own.
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
            if names not in self._selected:
                part = self.program.part(names, [self.graph.outputs[name] for name in names], advances=True)
                self._selected[names] = selected = CompiledGraph(part)
                selected._owner = self
            return self._selected[names]

    def read_output_row(self, name: str, row: int | tuple[int, ...], inputs: Inputs = ()) -> Array:
        """One row of one output: a copy of `output[row]`. Only what the output needs runs, nothing is fed.

        row   an index along the first axis, or several along the first axes: of logits [batch, seq, vocabulary] the
              row (0, -1) is the last token's

        Raises InputError as `run` does, and for a row outside of the output.
        """
        if self.program.signature.states:  # which stay as they are
            (at_output,) = names_of([name], self.output_names)
            known = self.output_names[at_output]
            part = self.program.part((known,), [self.graph.outputs[known]])
        else:
            part = self.select([name]).program
        where: list[Where] | None = None if part.place is None else ["device"]
        if where is not None:
            where += ["nowhere"] * len(part.next_at)
        whole, *_ = self._state.look(lambda mode: run_once(part, mode.unobserved(), inputs, where=where))
        at = row if isinstance(row, tuple) else (row,)
        fits = len(at) <= whole.ndim and all(type(i) is int and -n <= i < n for i, n in zip(at, whole.shape))
        if not fits:
            raise InputError(f"[read_output_row] expected a row of {name!r} {list(whole.shape)}, got {row!r}")
        if isinstance(whole, DeviceArray):
            return whole.read(tuple(i % n for i, n in zip(at, whole.shape)))
        return np.array(whole[at])

    def save(self, path: str | os.PathLike[str], sizes: Mapping[str, int] | None = None) -> None:
        """Writes code, program and weights to one file, which `rlx.load_compiled` opens on machines like this one. The
        file also holds what stays between runs: handles, feeds, extents, states, and the position in the random numbers
        of a seed.

        If the runtime has its own model format (`capabilities.package`), the program is written in that format, for
        programs without rlx. `sizes` are the sizes of its dims, which are fixed there. `rlx.load_compiled` does not
        open such files.

        Raises CapabilityError, InputError for sizes that are missing or not requested, OSError.
        """
        if self.capabilities.package:
            self.executable.write_package(path, dict(sizes or {}))
            return
        if sizes:
            raise InputError(f"[save] expected no sizes, as this program takes all of them, got {dict(sizes)}")
        from rlx.runtime import saved

        saved.save(self.program, self._state.now(copied=True).unobserved(), path)

    def __call__(self, /, *positional: Any, **named: Any) -> dict[str, Array]:
        """Like `run`, with inputs as arguments, and `timeout` and `cancel` if no input has that name; returns outputs
        by name."""
        limits = interrupt.taken_from(named, self.input_names)
        inputs: Inputs = named
        if positional:
            names = self.input_names
            if len(positional) > len(names) or any(name in named for name in names[: len(positional)]):
                actual = f"{len(positional)} by position" + (f" and {list(named)} by name" if named else "")
                raise InputError(f"[run] expected each of the inputs {list(names)} once, got {actual}")
            inputs = {**dict(zip(names, positional)), **named}
        return dict(zip(self.output_names, self.run(inputs, **limits)))

    @property
    def compile_count(self) -> int:
        """How many programs were compiled for this graph so far. New shapes only bind, unless a device compiles every
        size, or a dim is 1 against another for the first time."""
        return self.executable.compile_count

    @property
    def nbytes(self) -> int:
        """Bytes of code, packed weights and buffers. Arrays that weights were set to, and arenas, do not count."""
        return self.program.nbytes

    def describe(self) -> dict[str, Any]:
        """What was compiled, for people and reports: types, bytes, times in ms, and facts from the backend."""
        return {"tried_before": dict(self.attempts), **self.program.describe()}

    # where it lives

    def finish(self) -> None:
        """Waits for better code that is still being compiled (`compile` of `Session`); until then quick code runs."""
        self.program.executable.finish()

    def close(self) -> None:
        """Waits for queued runs, and releases code, weights and memory, also those of selected programs. Runs in other
        threads finish; later calls raise ClosedError. Closing again does nothing."""
        self._pipeline.drain()
        self._state.leave()
        with self._lock:
            selected, self._selected = self._selected, {}
            self.program = cast(Program, ClosedProgram(self.program))
            self._state = State(self.program, self._pipeline.drain)
            self._experts = None
        for part in selected.values():
            part.close()

    @property
    def closed(self) -> bool:
        return type(self.program) is not Program

    def __enter__(self) -> CompiledGraph:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Programs can be pickled, with their weights and with what stays between runs."""
        from rlx.runtime.pickled import Pickled

        mode = self._state.now()
        handles = {name: self.read_handle(name) for name in (*mode.handles, *mode.states)}
        return _opened, (Pickled.of(self.program, mode, handles, self.attempts),)

    def __repr__(self) -> str:
        if self.closed:
            return f"<CompiledGraph {self.program.name!r} on {self.device}, closed>"
        signature = self.program.signature
        inputs = ", ".join(f"{name}: {of}" for name, of in signature.types.items() if name not in signature.states)
        outputs = ", ".join(f"{name}: {of}" for name, of in self.program.output_types.items())
        keeps = ", ".join(f"{name}: {of}" for name, of in signature.states.items())
        states = f", keeps {keeps}" if keeps else ""
        return f"<CompiledGraph {self.program.name!r} on {self.device}: ({inputs}) → ({outputs}){states}>"


def _opened(pickled: Pickled) -> CompiledGraph:
    return pickled.open(CompiledGraph)


@checked
def load_compiled(
    path: str | os.PathLike[str], recompile: bool = False, threads: int | None = None, mmap: bool = False
) -> CompiledGraph:
    """Opens a file that `CompiledGraph.save` wrote. Its code is executed: open only files that you trust.

    recompile   compile the graph in the file if its code does not fit this machine or version, or is damaged
    threads     as in `Session`
    mmap        leave weights in the file, for files that nobody writes to

    Raises ModelError with the reason for a file that does not fit and may not be recompiled, or is not a file of rlx,
    and DeviceUnavailable.
    """
    from rlx.runtime import saved

    return CompiledGraph(*saved.load(path, recompile, threads, mmap))
