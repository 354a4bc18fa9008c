"""Programs whose dims are measured while they run: one executable per stage (`passes.staging`), and the steps in
between.

Each stage is compiled like any graph, on any backend, once for all sizes. A run goes through them in order. It binds
the stage at the dims that are known by then, hands over the values that later stages need, reads the numbers that the
stage measured, and checks them before anything that depends on them starts. Values stay on devices with memory of their
own. Products by experts that such a device holds in part (`expert_slots.py`) run between two stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from rlx import flags
from rlx.backends.base import Backend, Options
from rlx.backends.executable import Bound, Capabilities, Executable, KernelTime, deliver, shapes_at
from rlx.backends.failures import memory_bytes
from rlx.backends.memory import DeviceArray, Where, on_host
from rlx.errors import InputError
from rlx.ir.fingerprint import fingerprint
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.literal import Array
from rlx.ir.op import Measured
from rlx.ir.symbols import has_measured
from rlx.ir.type import MAX_BYTES
from rlx.passes.candidates import with_all_candidates
from rlx.passes.decompose import decompose
from rlx.passes.held_experts import WEIGHT, held_weights, is_held, product_on_slots
from rlx.passes.staging import Stage, cut, sizes
from rlx.runtime.bind_cache import BindCache
from rlx.runtime.checked import compile_checked
from rlx.runtime.demands import check_sizes, places
from rlx.runtime.expert_slots import HeldProduct, SharedMemory, add_times


def compile_graph(graph: Graph, backend: Backend, options: Options, ordinal: int) -> Executable:
    """The executable of a graph, in stages if it measures dims, or if its device is to hold experts in part.

    Raises UnsupportedOp, DeviceUnavailable, CompileError.
    """
    graph = with_all_candidates(graph, options.dispatch.claims(backend.claim))
    held = held_weights(graph, options.expert_budget) if backend.holds_experts else {}
    if not has_measured(graph) and not held:
        return compile_checked(graph, backend, options, ordinal)
    products = _compile_products(graph, held, backend, options, ordinal)
    held = {node.inputs[1].name: held[node.inputs[1].name] for node in products}
    stages = cut(graph, held)
    executables = [
        compile_checked(stage.graph, backend, options, ordinal) if stage.gives else Nothing() for stage in stages
    ]
    return StagedExecutable(graph, stages, executables, products)


def _compile_products(
    graph: Graph, held: Mapping[str, int], backend: Backend, options: Options, ordinal: int
) -> dict[Node, HeldProduct]:
    """The products by held experts; those of one shape share their code. A weight that the program of one of them would
    repack is held whole."""
    unchecked = replace(options, check_indices=False)  # the slots are ours
    programs: dict[str, Executable] = {}
    products, shared = {}, SharedMemory()
    for node in graph.nodes:
        if is_held(node, held):
            part = product_on_slots(node, held[node.inputs[1].name])
            key = fingerprint(part)
            known = programs.get(key)
            program = (
                compile_checked(part, backend, unchecked, ordinal) if known is None else known.clone(weights=False)
            )
            programs[key] = program
            if not program.reserve(WEIGHT):
                continue
            slots = held[node.inputs[1].name]
            products[node] = HeldProduct(node, part, program, slots, options.check_indices, shared)
    whole = {node.inputs[1].name for node in graph.nodes if is_held(node, held) and node not in products}
    return {node: product for node, product in products.items() if product.weight not in whole}


class Nothing(Executable):
    """The program of a stage in which nothing is computed: its products take inputs of the graph."""

    def set_params(self, params: Mapping[str, Array]) -> None:
        """It has no use for weights."""

    def bind(self, binding: Mapping[str, int]) -> Bound:
        return _NothingBound()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(**{f.name: True for f in fields(Capabilities)})

    def clone(self, weights: bool = True) -> Nothing:
        return Nothing()


class _NothingBound(Bound):
    def __call__(self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        return []

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        return []


class StagedExecutable(Executable):
    """The stages with their executables, and products by held experts between them. Weights are handed to those that
    have them."""

    def __init__(
        self,
        graph: Graph,
        stages: list[Stage],
        executables: list[Executable],
        products: Mapping[Node, HeldProduct],
    ) -> None:
        self.graph = graph
        self.cut = stages
        self.inputs = list(graph.inputs)
        self.outputs = list(graph.outputs.values())
        self.executables = executables
        self.products = products
        places_of = {value: number for number, value in enumerate(self.inputs)}
        ends = set(self.outputs)
        self.stages = [_Stage(*parts, products, places_of, ends) for parts in zip(stages, executables)]
        self.output_places = [places_of[value] for value in self.outputs]
        self.room = len(places_of)
        everything = [*executables, *(product.program for product in products.values())]
        self.compile_ns = sum(executable.compile_ns for executable in everything)
        self.from_cache = all(executable.from_cache for executable in executables)
        self._programs = everything
        self._params = [{v.name for v in stage.graph.params} for stage in stages]
        self.onward = {value for stage in stages for value in stage.takes}
        self.onward |= {product.rows for product in products.values()}
        devices = {executable.place for executable in everything if not isinstance(executable, Nothing)}
        self._place = devices.pop() if len(devices) == 1 else None

    @property
    def compile_count(self) -> int:  # type: ignore[override]  # it may grow with that of a stage
        return sum(executable.compile_count for executable in self._programs)

    def set_params(self, params: Mapping[str, Array]) -> None:
        for names, executable in zip(self._params, self.executables):
            executable.set_params({name: array for name, array in params.items() if name in names})
        for product in self.products.values():
            if product.weight in params:
                product.set_weight(params[product.weight])

    def prefer_experts(self, masks: Mapping[str, Array]) -> None:
        for product in self.products.values():
            if product.weight in masks:
                product.prefer(masks[product.weight])

    def give_back(self) -> None:
        for executable in self.executables:
            executable.give_back()
        for product in self.products.values():
            product.give_back()

    @property
    def place(self) -> object:
        return self._place

    def put(self, name: str, array: Array) -> Array | DeviceArray:
        for stage, executable in zip(self.cut, self.executables):
            if any(value.name == name for value in stage.graph.inputs):
                return executable.put(name, array)
        return array

    def bind(self, binding: Mapping[str, int]) -> Bound:
        return _StagedBound(self, dict(binding))

    @property
    def capabilities(self) -> Capabilities:
        """What all stages can do; results come through the host."""
        parts = [executable.capabilities for executable in self._programs]
        able = {f.name: all(getattr(part, f.name) for part in parts) for f in fields(Capabilities)}
        return replace(Capabilities(**able), zero_copy_outputs=False, saved_code=False, package=False)

    @property
    def nbytes(self) -> int:
        return sum(executable.nbytes for executable in self._programs)

    @property
    def weight_bytes(self) -> int:
        return sum(executable.weight_bytes for executable in self._programs)

    def finish(self) -> None:
        for executable in self._programs:
            executable.finish()

    def clone(self, weights: bool = True) -> StagedExecutable:
        executables = [executable.clone(weights) for executable in self.executables]
        shared = SharedMemory()
        products = {node: product.clone(weights, shared) for node, product in self.products.items()}
        return StagedExecutable(self.graph, self.cut, executables, products)

    def describe(self) -> dict[str, Any]:
        parts = [executable.describe() for executable in self.executables]
        description: dict[str, Any] = {"stages": parts}
        for name in ("kernels", "prepare_kernels"):
            found = [part[name] for part in parts if name in part]
            if all(isinstance(each, int) for each in found):  # some devices count them
                description[name] = sum(found)
            else:
                description[name] = [kernel for each in found for kernel in each]
        if self.products:
            description["held_experts"] = {product.weight: product.describe() for product in self.products.values()}
        return description


class _Stage:
    """A stage with its executable, and what a run must look at between stages.

    takes, gives, drops   where values lie in the list that a run keeps: in `places_of`, to which those are added that
                          the stage makes. What is an output of the whole graph (`kept`) is not dropped
    products              of each product where its result, its rows and its experts lie
    to_host               values that the host reads before the next stage
    """

    def __init__(
        self,
        stage: Stage,
        executable: Executable,
        products: Mapping[Node, HeldProduct],
        places_of: dict[Value, int],
        kept: set[Value],
    ) -> None:
        self.executable = executable
        self.given = stage.gives
        for value in (*stage.gives, *(Value(node, 0) for node in stage.products)):
            places_of.setdefault(value, len(places_of))
        made = [(Value(node, 0), products[node]) for node in stage.products]
        self.products = [(places_of[v], places_of[p.rows], places_of[p.experts], p) for v, p in made]
        drops = [value for value in stage.drops if value not in kept]
        self.takes, self.gives, self.drops = ([places_of[v] for v in of] for of in (stage.takes, stage.gives, drops))
        self.measures = [(node.op, places_of[node.inputs[0]], node.source or node.name) for node in stage.measures]
        self.checks = stage.checks
        self.to_host = {node.inputs[0] for node in stage.measures} | {product.experts for _, product in made}
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

    def read(self, values: Sequence[Any], binding: Mapping[str, int]) -> dict[str, int]:
        """The dims that the stage measured. Raises InputError for one out of bounds."""
        known = dict(binding)
        for op, place, source in self.measures:
            assert isinstance(op, Measured)  # `cut` lists nothing else
            number = int(values[place])
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
        return deliver(self._run(["host"] * len(self.executable.outputs), inputs, None), out)

    def deliver_to(
        self, where: Sequence[Where], inputs: Sequence[Any], out: Sequence[Array | None] | None = None
    ) -> list[Any]:
        results = self._run(where, inputs, None)
        if out is None:
            return results
        return [result if buffer is None else deliver([result], [buffer])[0] for result, buffer in zip(results, out)]

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        """Kernels of all stages and of products between them; each begins where the kernels before it ended."""
        times: list[KernelTime] = []
        self._run(["host"] * len(self.executable.outputs), inputs, times)
        return times

    def _run(self, where: Sequence[Where], inputs: Sequence[Any], times: list[KernelTime] | None) -> list[Any]:
        """Runs the stages; a second time each for the times of its kernels, if these are asked for."""
        executable = self.executable
        values: list[Any] = [*inputs, *[None] * (executable.room - len(inputs))]
        binding = self.binding
        for stage, plans in zip(executable.stages, self._plans):
            bound = self._bound(stage, plans, binding)
            operands = [values[place] for place in stage.takes]
            if times is not None:
                add_times(times, bound.profile(operands))
            for place, result in zip(stage.gives, self._results(stage, bound, operands, where)):
                values[place] = result
            if stage.measures:
                binding = stage.read(values, binding)
            for at, rows, experts, product in stage.products:
                (chosen,) = on_host([values[experts]])
                values[at] = product.run(values[rows], chosen, binding, times)
            for place in stage.drops:
                values[place] = None
        results = [values[place] for place in executable.output_places]
        return [on_host([result])[0] if place == "host" else result for result, place in zip(results, where)]

    def _bound(self, stage: _Stage, plans: BindCache, binding: Mapping[str, int]) -> Bound:
        key = (tuple(binding.values()),)
        bound = plans.get(key)
        if bound is None:
            stage.check(binding)
            bound = stage.executable.bind(binding)
            plans.put(key, bound)
        return bound

    def _results(self, stage: _Stage, bound: Bound, operands: Sequence[Any], where: Sequence[Where]) -> list[Any]:
        """What a stage gives: on the device where that has memory of its own, but for what the host reads, and for
        outputs that only the caller wants."""
        if self.executable.place is None:
            return bound(operands)
        wanted = {value for value, place in zip(self.executable.outputs, where) if place == "host"}
        ends = wanted - self.executable.onward
        places: list[Where] = ["host" if v in stage.to_host or v in ends else "device" for v in stage.given]
        return bound.deliver_to(places, operands)
