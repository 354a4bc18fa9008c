"""A graph that mlx runs, its weights in mlx's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rlx import flags, locks
from rlx.backends.executable import Bound, Capabilities, KernelTime, deliver, shapes_at
from rlx.backends.memory import Where, on_host, plain
from rlx.backends.mlx import scalar
from rlx.backends.mlx.arrays import MlxArray
from rlx.backends.mlx.library import Value, mx, put, take
from rlx.backends.mlx.plan import Plan
from rlx.backends.mlx.timers import KernelTimer
from rlx.backends.op_by_op import Shared, WeightsAsArguments, written_outputs
from rlx.codegen.scalar import emulation as emulation
from rlx.errors import CompileError, DeviceUnavailable, OutOfMemory, RlxError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.literal import Array

PROCESSOR, GPU = "on the processor", "on the GPU"
"""Memories that its arrays lie in."""
MEMORY_WORDS = ("attempting to allocate", "unable to allocate", "out of memory", "insufficient memory", "bad_alloc")


@contextmanager
def translated() -> Iterator[None]:
    """Errors of mlx in rlx's classes. mlx has none of its own: their words tell what they are."""
    try:
        yield
    except RlxError:
        raise
    except MemoryError as error:
        raise OutOfMemory(f"[run] {error}") from error
    except (RuntimeError, ValueError, TypeError) as error:
        text = str(error)
        if any(words in text.lower() for words in MEMORY_WORDS):
            raise OutOfMemory(f"[run] {text}") from error
        raise CompileError(f"[mlx] {text}") from error


class MlxExecutable(WeightsAsArguments):
    """`compiles` says whether mlx joins ops into kernels. On the processor it would ask a C++ compiler for each, two
    seconds a kernel: there a new size costs nothing.

    Everything runs on the default stream of one device in the thread that calls, and is computed before the call
    returns: streams of mlx belong to threads, finished arrays to nobody. The caller's own defaults stay.
    """

    def __init__(self, graph: Graph, on_processor: bool) -> None:
        wanted = flags.mlx_compile()
        self.compiles = wanted == "1" or (wanted == "auto" and not on_processor)
        super().__init__(graph, in_buckets=self.compiles)
        self.on_processor = on_processor
        self.device = mx.cpu if on_processor else mx.gpu
        if not mx.is_available(self.device):
            raise DeviceUnavailable("[mlx] expected a GPU that this build of mlx can use, got one for processors alone")

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """mlx works on this device in here."""
        with mx.stream(self.device), translated():
            yield

    def upload(self, params: Mapping[str, Array]) -> dict[str, Value]:
        with self.on_device():
            made = {name: put(a) for name, a in params.items()}
            mx.eval(*made.values())
            return made

    def compute(self, graph: Graph, weights: Mapping[str, Value]) -> Sequence[Value]:
        with self.on_device():
            made = from_stored_to_stored(Plan(graph, {}), graph)([], weights)
            mx.eval(*made)
            return made

    def with_part(self, whole: Value, part: Value, at: int) -> Value:
        with self.on_device():
            made = mx.slice_update(whole, part[None], mx.array([at]), axes=[0])
            del whole  # mlx takes the memory of what nobody else has
            mx.eval(made)
            return made

    def bound(self, graph: Graph, binding: Mapping[str, int], padded: tuple[str, ...] = ()) -> Bound:
        return MlxBound(self, graph, dict(binding), padded)

    @property
    def place(self) -> object:
        return PROCESSOR if self.on_processor else GPU

    def put(self, name: str, array: Array) -> MlxArray:
        with self.on_device():
            return MlxArray.of_host(array, self.place)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, profiling=True)

    @property
    def weight_bytes(self) -> int:
        return sum(value.nbytes for value in (self._weights or {}).values())

    def describe(self) -> dict[str, Any]:
        platform = "processor" if self.on_processor else "GPU"
        return {**super().describe(), "platform": platform, "programs": self.compile_count}


def from_stored_to_stored(plan: Plan, graph: Graph) -> Callable[..., Sequence[Value]]:
    """The plan with arguments and results as they are stored: it works on carriers."""
    inputs = {i: v.dtype for i, v in enumerate(graph.inputs) if emulation.is_emulated(v.dtype)}
    params = {v.name: v.dtype for v in graph.params if emulation.is_emulated(v.dtype)}
    results = {i: v.dtype for i, v in enumerate(graph.outputs.values()) if emulation.is_emulated(v.dtype)}
    if not (inputs or params or results):
        return plan

    def run(arguments: Sequence[Value], weights: Mapping[str, Value]) -> Sequence[Value]:
        loaded = [scalar.loaded(inputs[i])([a]) if i in inputs else a for i, a in enumerate(arguments)]
        held = {name: scalar.loaded(params[name])([a]) if name in params else a for name, a in weights.items()}
        made = plan(loaded, held)
        return [scalar.to_store(results[i])([a]) if i in results else a for i, a in enumerate(made)]

    return run


class MlxBound(Bound):
    """The executable's graph, or that in which some dims are padded, at one size, made ready at its first call."""

    def __init__(
        self, executable: MlxExecutable, graph: Graph, binding: dict[str, int], padded: tuple[str, ...] = ()
    ) -> None:
        self.executable = executable
        self.graph = graph
        self.binding = binding
        self.padded = padded
        self.written = executable.written if graph is executable.graph else written_outputs(graph)
        self.shapes = shapes_at((v.type for v in graph.outputs.values()), binding)
        self.dtypes = [v.dtype for v in graph.outputs.values()]
        self._lock = locks.lock()
        self._shared: Shared | None = None
        self._program: Callable[..., Sequence[Value]] | None = None

    def _made(self) -> Callable[..., Sequence[Value]]:
        with self._lock:
            if self._program is None:
                key = (self.padded, tuple(sorted(self.binding.items())))
                self._shared = self.executable.programs.get(key)
                if self._shared is None:
                    plan = Plan(self.graph, self.binding)
                    mx.eval([value for _, value in plan.constants])
                    program = from_stored_to_stored(plan, self.graph)
                    self._shared = Shared(mx.compile(program) if plan.traced and self.executable.compiles else program)
                    self.executable.programs[key] = self._shared
                    self.executable.compile_count += 1
                self._program = self._shared.program
            return self._program

    def __call__(self, inputs: Sequence[Any], out: Sequence[Array | None] | None = None) -> list[Array]:
        return deliver(on_host(self.deliver_to(["host"] * len(self.dtypes), inputs)), out)

    def deliver_to(
        self, where: Sequence[Where], inputs: Sequence[Any], out: Sequence[Array | None] | None = None
    ) -> list[Any]:
        weights, written = self.executable.weights(), self.written
        with self.executable.on_device():
            program = self._program or self._made()
            given = plain(inputs)
            given = [_as_state(a, self.executable) if at in written.values() else a for at, a in enumerate(given)]
            results = program([_value(a) for a in given], weights)
            states = {i: given[at] for i, at in written.items()}
            for state in states.values():
                state.value = None  # mlx takes the memory of what nobody else has
            mx.eval(*results)
            for i, state in states.items():
                state.value = results[i]
            made: list[Any] = [
                states.get(i) or self._delivered(*each) for i, each in enumerate(zip(where, results, self.dtypes))
            ]
        return made if out is None else deliver(made, out)

    def _delivered(self, where: Where, result: Value, dtype: DType) -> Any:
        if where == "device":
            return MlxArray(result, dtype, self.executable.place)
        return take(result, dtype) if where == "host" else None

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        """A kernel is a node, computed before the next one begins: more work than a run, in which mlx joins nodes."""
        graph, weights = self.graph, self.executable.weights()
        with self.executable.on_device():
            timer = KernelTimer()
            plan = Plan(graph, self.binding, timer)
            arguments = [_value(a) for a in plain(inputs)]
            mx.eval(arguments, [value for _, value in plan.constants])
            timer.start()
            from_stored_to_stored(plan, graph)(arguments, weights)
            return timer.times()


def _as_state(array: Any, executable: MlxExecutable) -> MlxArray:
    """A state that is no array of mlx yet: what a run makes of it is only in its results."""
    return array if isinstance(array, MlxArray) else MlxArray.of_host(array, executable.place)


def _value(array: Any) -> Value:
    return array.there() if isinstance(array, MlxArray) else put(array)
