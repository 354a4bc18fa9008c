"""Adapts a backend's device to `cost.calibrate`, which measures it."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.base import Backend, Options
from rlx.backends.failures import translated
from rlx.cost import calibrate as common
from rlx.cost.estimate import Rates
from rlx.cost.microbenchmarks import ProbeGraph
from rlx.ir.graph import Graph


class MeasuredBackend(common.Measurable):
    """One device of a backend."""

    def __init__(self, backend: Backend, ordinal: int) -> None:
        self.backend, self.ordinal = backend, ordinal

    def takes(self, graph: Graph) -> bool:
        return not self.backend.unsupported(graph)

    def claims(self, graph: Graph) -> bool:
        return any(self.backend.claim(node) == "" for node in graph.nodes)

    @property
    def reads_in_place(self) -> bool:
        return self.backend.reads_in_place

    def compile(self, probe: ProbeGraph) -> Callable[[], object]:
        executable = self.backend.compile(probe.graph, Options(cache=False), self.ordinal)
        executable.set_params(probe.params)
        bound, inputs = executable.bind({}), list(probe.inputs)
        if probe.on_device:
            placed = [executable.put(value.name, array) for value, array in zip(probe.graph.inputs, inputs)]
            return lambda: bound.deliver_to(["host"] * len(probe.graph.outputs), placed)
        return lambda: bound(inputs)


def calibrate(backend: Backend, ordinal: int, step: Callable[[str], None]) -> Rates:
    """Rates of a backend's device, by small graphs that any device runs; `step` hears of each measurement."""
    with translated("run", backend.name):
        return common.calibrate(MeasuredBackend(backend, ordinal), step)
