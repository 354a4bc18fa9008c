"""Programs whose dims are measured while they run: one executable per stage (`passes.staging`), and the steps in
between.

Each stage is compiled like any graph, on any backend, once for all sizes. A run goes through them in order. It binds
the stage at the dims that are known by then, hands over the values that later stages need, reads the numbers that the
stage measured, and checks them before anything that depends on them starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from rlx import flags
from rlx.backends.base import Backend, Options
from rlx.backends.executable import Bound, Capabilities, Executable, KernelTime, deliver, shapes_at
from rlx.backends.failures import memory_bytes
from rlx.errors import InputError
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.op import Measured
from rlx.ir.symbols import has_measured
from rlx.ir.type import MAX_BYTES
from rlx.passes.decompose import decompose
from rlx.passes.staging import Stage, cut, sizes
from rlx.runtime.bind_cache import BindCache
from rlx.runtime.checked import compile_checked
from rlx.runtime.demands import check_sizes, places


def compile_graph(graph: Graph, backend: Backend, options: Options, ordinal: int) -> Executable:
    """The executable of a graph, in stages if it measures dims.

    Raises UnsupportedOp, DeviceUnavailable, CompileError.
    """
    if not has_measured(graph):
        return compile_checked(graph, backend, options, ordinal)
    stages = cut(graph)
    executables = [compile_checked(stage.graph, backend, options, ordinal) for stage in stages]
    return StagedExecutable(graph, stages, executables)


class StagedExecutable(Executable):
    """The stages with their executables. Weights are handed to those that have them."""

    def __init__(self, graph: Graph, stages: list[Stage], executables: list[Executable]) -> None:
        self.graph = graph
        self.cut = stages
        self.inputs = list(graph.inputs)
        self.outputs = list(graph.outputs.values())
        self.executables = executables
        self.stages = [_Stage(stage, executable) for stage, executable in zip(stages, executables)]
        self.compile_ns = sum(executable.compile_ns for executable in executables)
        self.from_cache = all(executable.from_cache for executable in executables)
        self._params = [{v.name for v in stage.graph.params} for stage in stages]

    @property
    def compile_count(self) -> int:  # type: ignore[override]  # it may grow with that of a stage
        return sum(executable.compile_count for executable in self.executables)

    def set_params(self, params: Mapping[str, Array]) -> None:
        for names, executable in zip(self._params, self.executables):
            executable.set_params({name: array for name, array in params.items() if name in names})

    def bind(self, binding: Mapping[str, int]) -> Bound:
        return _StagedBound(self, dict(binding))

    @property
    def capabilities(self) -> Capabilities:
        """What all stages can do; results come through the host."""
        parts = [executable.capabilities for executable in self.executables]
        able = {f.name: all(getattr(part, f.name) for part in parts) for f in fields(Capabilities)}
        return replace(Capabilities(**able), zero_copy_outputs=False, saved_code=False, package=False)

    @property
    def nbytes(self) -> int:
        return sum(executable.nbytes for executable in self.executables)

    @property
    def weight_bytes(self) -> int:
        return sum(executable.weight_bytes for executable in self.executables)

    def finish(self) -> None:
        for executable in self.executables:
            executable.finish()

    def clone(self, weights: bool = True) -> StagedExecutable:
        return StagedExecutable(self.graph, self.cut, [executable.clone(weights) for executable in self.executables])

    def describe(self) -> dict[str, Any]:
        parts = [executable.describe() for executable in self.executables]
        description: dict[str, Any] = {"stages": parts}
        for name in ("kernels", "prepare_kernels"):
            description[name] = [kernel for part in parts for kernel in part.get(name, ())]
        return description


class _Stage:
    """A stage with its executable, and what a run must look at between stages."""

    def __init__(self, stage: Stage, executable: Executable) -> None:
        self.executable = executable
        self.takes, self.gives, self.drops = stage.takes, stage.gives, stage.drops
        self.measures = [(node.op, node.inputs[0], node.source or node.name) for node in stage.measures]
        self.checks = stage.checks
        measured = set(stage.graph.given)
        self.sizes = places(sizes(stage.graph.nodes, measured))
        inside = places(sizes(decompose(stage.graph).nodes, measured))
        self.inner = {shape: of for shape, of in inside.items() if shape not in self.sizes}

    def check(self, binding: Mapping[str, int]) -> None:
        """Raises InputError or OutOfMemory for dims that this stage cannot run with."""
        for equality in self.checks:
            if not equality.holds(binding):
                known = "; what a run measures is not broadcast" if equality.one(binding) is not None else ""
                raise InputError(f"[run] {equality.told(binding)}{known}")
        check_sizes(self.sizes, binding, flags.value_bytes() or memory_bytes())
        check_sizes(self.inner, binding, MAX_BYTES)

    def read(self, values: Mapping[Value, Array], binding: Mapping[str, int]) -> dict[str, int]:
        """The dims that the stage measured. Raises InputError for one out of bounds."""
        known = dict(binding)
        for op, value, source in self.measures:
            assert isinstance(op, Measured)  # `cut` lists nothing else
            number = int(values[value])
            op.check(number, known, source)
            known[op.symbol] = number
        return known


class _StagedBound(Bound):
    """The stages at one size of the inputs; stages behind the first are bound when their dims are known."""

    def __init__(self, executable: StagedExecutable, binding: dict[str, int]) -> None:
        self.executable = executable
        self.binding = binding
        self.shapes = shapes_at((value.type for value in executable.outputs), binding)
        self._plans = [BindCache() for _ in executable.stages]

    @property
    def nbytes(self) -> int:  # type: ignore[override]  # it grows with the sizes that were measured
        return sum(plans.nbytes for plans in self._plans)

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        return deliver(self._run(inputs, None), out)

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        """Kernels of all stages; a stage begins where the kernels of those before it ended."""
        times: list[KernelTime] = []
        self._run(inputs, times)
        return times

    def _run(self, inputs: Sequence[Array], times: list[KernelTime] | None) -> list[Array]:
        """Runs the stages; a second time each for the times of its kernels, if these are asked for."""
        executable = self.executable
        values: dict[Value, Array] = dict(zip(executable.inputs, inputs))
        binding = self.binding
        outputs = set(executable.outputs)
        for stage, plans in zip(executable.stages, self._plans):
            key = (tuple(binding.values()),)
            bound = plans.get(key)
            if bound is None:
                stage.check(binding)
                bound = stage.executable.bind(binding)
                plans.put(key, bound)
            operands = [values[value] for value in stage.takes]
            if times is not None:
                start = max((time.first_ns + time.total_ns for time in times), default=0.0)
                times += [replace(time, first_ns=time.first_ns + start) for time in bound.profile(operands)]
            results = bound(operands)
            values.update(zip(stage.gives, results))
            binding = stage.read(values, binding)
            for value in stage.drops:
                if value not in outputs:
                    values.pop(value, None)
        return [values[value] for value in executable.outputs]
