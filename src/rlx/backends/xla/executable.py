"""A graph that jax compiles at every new size, its weights on the device. What was compiled is kept on disk."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from rlx import locks
from rlx.backends.executable import Bound, Capabilities, KernelTime, deliver, shapes_at
from rlx.backends.failures import translated
from rlx.backends.memory import Where, on_host, plain
from rlx.backends.op_by_op import Shared, WeightsAsArguments, written_outputs
from rlx.backends.xla import compile_cache, lowering, named_scopes, scalar, timers
from rlx.backends.xla.arrays import XlaArray
from rlx.codegen.scalar import emulation as emulation
from rlx.errors import ShapeError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.literal import Array


@cache
def processor() -> Any:
    """The processor as a device of a client that runs programs in the thread which calls.

    jax's own hands them to another thread, which is 60 µs later. Making clients is not in jax's public interface: where
    it is gone or changed, jax's own has to do.
    """
    import jax

    try:
        clients: Any = importlib.import_module("jax._src.lib").xla_client
        return clients.make_cpu_client(asynchronous=False).devices()[0]
    except (ImportError, AttributeError, TypeError):
        return jax.devices("cpu")[0]


@cache
def _part_writer() -> Any:
    """Writes an element of an array, which is given away, along its first axis."""
    import jax

    return jax.jit(lambda whole, part, at: whole.at[at].set(part), donate_argnums=0)


class XlaExecutable(WeightsAsArguments):
    """jax is asked for 64-bit numbers only while it works for rlx: its switches stay as their owner set them.

    key       what programs on disk are named by, beside their sizes; empty to keep none
    profile   whether its bounds tell the times of kernels
    """

    def __init__(self, graph: Graph, platform: str, key: str = "", profile: bool = False) -> None:
        import jax

        super().__init__(graph, in_buckets=True)
        self.key = key
        self.timed = profile
        self.device = processor() if platform == "cpu" else jax.devices(platform)[0]

    def upload(self, params: Mapping[str, Array]) -> dict[str, Any]:
        import jax

        with jax.enable_x64(True):
            held = {name: emulation.to_stored(np.asarray(a)) for name, a in params.items()}
            return {name: jax.device_put(a, self.device) for name, a in held.items()}

    def compute(self, graph: Graph, weights: Mapping[str, Any]) -> Sequence[Any]:
        import jax

        taken = [weights[v.name] for v in graph.params]
        with jax.enable_x64(True):
            return jax.jit(traced(graph, {}))(*taken)  # type: ignore[no-any-return]

    def with_part(self, whole: Any, part: Any, at: int) -> Any:
        import jax

        with jax.enable_x64(True):
            return _part_writer()(whole, part, np.int64(at))

    def bound(self, graph: Graph, binding: Mapping[str, int], padded: tuple[str, ...] = ()) -> Bound:
        return XlaBound(self, graph, dict(binding), padded)

    @property
    def place(self) -> object:
        return self.device

    def put(self, name: str, array: Array) -> XlaArray:
        return XlaArray.of_host(array, self.device)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, profiling=self.timed)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "platform": str(self.device), "programs": self.compile_count}


def traced(graph: Graph, binding: Mapping[str, int], marked: bool = False) -> Callable[..., tuple[Any, ...]]:
    """The graph at these dims as a function of its weights and its inputs, both in order, for jax to trace. It gives
    outputs, and a flag for each of `lowering.shape_errors`. Arrays are in the dtypes that theirs are stored in. If it
    is `marked`, its instructions tell which nodes they are of."""
    params, names = ([value.name for value in values] for values in (graph.params, graph.inputs))
    dtypes = [value.dtype for value in (*graph.params, *graph.inputs)]
    results = [value.dtype for value in graph.outputs.values()]

    def program(*arguments: Any) -> tuple[Any, ...]:
        flags: list[Any] = []
        loaded = [scalar.loaded(a, dtype) for a, dtype in zip(arguments, dtypes)]
        weights, inputs = dict(zip(params, loaded)), dict(zip(names, loaded[len(params) :]))
        with named_scopes.marking(marked):
            made = lowering.run(graph, inputs, weights, dict(binding), flags)
        return (*(scalar.to_store(a, dtype) for a, dtype in zip(made, results)), *flags)

    return program


class XlaBound(Bound):
    """The executable's graph, or that in which some dims are padded, at one size, compiled at its first call."""

    def __init__(
        self, executable: XlaExecutable, graph: Graph, binding: dict[str, int], padded: tuple[str, ...] = ()
    ) -> None:
        self.executable = executable
        self.graph = graph
        self.binding = binding
        self.padded = padded
        self.written = executable.written if graph is executable.graph else written_outputs(graph)
        self.shapes = shapes_at((v.type for v in graph.outputs.values()), binding)
        self.dtypes = [v.dtype for v in graph.outputs.values()]
        self.shape_errors = lowering.shape_errors(graph, binding)
        self._lock = locks.lock()
        self._shared: Shared | None = None
        self._compiled: Any = None

    def _program(self, weights: Iterable[Any], inputs: Sequence[Array]) -> Any:
        with self._lock:
            if self._compiled is None:
                size, programs = (self.padded, tuple(sorted(self.binding.items()))), self.executable.programs
                self._shared = programs.get(size) or Shared(self._made(weights, inputs))
                programs[size] = self._shared
                self._compiled = self._shared.program
            return self._compiled

    def _made(self, weights: Iterable[Any], inputs: Sequence[Array]) -> Any:
        """What an earlier process kept, or compiled now."""
        key = self._key(inputs) if self.executable.key else ""
        results = len(self.dtypes) + len(self.shape_errors)
        found = compile_cache.read(key, (*weights, *inputs), results, self.executable.device)
        if found is None:
            with translated("compile", "xla"):
                found = self._jitted().lower(*weights, *self._described(inputs)).compile()
            self.executable.compile_count += 1
            compile_cache.write(key, found)
        return found

    def _jitted(self) -> Any:
        """The graph for jax; states that are written in place are given away."""
        import jax

        first = len(self.graph.params)
        donated = tuple(first + at for at in self.written.values())
        return jax.jit(traced(self.graph, self.binding, self.executable.timed), donate_argnums=donated)

    def _described(self, inputs: Sequence[Array]) -> list[Any]:
        """Inputs by their types, on the device: a program without weights is for that too."""
        import jax

        placed = jax.sharding.SingleDeviceSharding(self.executable.device)
        return [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=placed) for a in inputs]

    def _key(self, inputs: Sequence[Array]) -> str:
        """All dims are named, since a measured one stands in no shape of an input."""
        shapes = [f"{a.dtype}{list(a.shape)}" for a in inputs]
        params = [f"{name!r}{a.dtype}{list(a.shape)}" for name, a in self.executable.params().items()]
        sizes = [repr(sorted(self.binding.items())), f"padded {self.padded}"]
        whole = "\0".join([self.executable.key, *sizes, *shapes, *params])
        return hashlib.blake2b(whole.encode(), digest_size=20).hexdigest()

    def __call__(self, inputs: Sequence[Any], out: Sequence[Array | None] | None = None) -> list[Array]:
        return deliver(on_host(self.deliver_to(["host"] * len(self.dtypes), inputs)), out)

    def deliver_to(
        self, where: Sequence[Where], inputs: Sequence[Any], out: Sequence[Array | None] | None = None
    ) -> list[Any]:
        import jax

        weights = self.executable.weights().values()
        given = self._with_states(inputs)
        inputs = [a.value if isinstance(a, XlaArray) else emulation.to_stored(a) for a in given]
        with jax.enable_x64(True):
            program = self._compiled or self._program(weights, inputs)
            results = program(*weights, *inputs)
            for i, at in self.written.items():
                given[at].value = results[i]
            for asked, error in zip(results[len(self.dtypes) :], self.shape_errors):
                if bool(asked):
                    raise ShapeError(str(error))
            made = [
                given[self.written[i]] if i in self.written else self._delivered(place, r, d)
                for i, (place, r, d) in enumerate(zip(where, results, self.dtypes))
            ]
            return made if out is None else deliver(made, out)

    def _with_states(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs, with states that are none of ours yet as arrays which the program may take the memory of."""
        given = plain(inputs)
        for at in self.written.values():
            if not isinstance(given[at], XlaArray):
                given[at] = XlaArray.of_host(given[at], self.executable.device)
        return given

    def _delivered(self, where: Where, result: Any, dtype: DType) -> Any:
        if where == "device":
            return XlaArray(result, dtype, self.executable.device)
        # what the caller gets is his to write to
        return emulation.from_stored(np.array(result), dtype) if where == "host" else None

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        """A kernel is an instruction that XLA made; kernels may run beside each other. Programs that jax's profiler
        records take somewhat longer. It is one a process: raises ProfileError where others use it."""
        import jax

        if not self.executable.timed:
            return super().profile(inputs)
        with jax.enable_x64(True):
            taken = [a.value if isinstance(a, XlaArray) else emulation.to_stored(a) for a in plain(inputs)]
            program = self._program(self.executable.weights().values(), taken)
        return timers.times(self.graph, program.as_text(), timers.record(lambda: self(inputs)))
