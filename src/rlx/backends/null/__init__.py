"""Devices that are not here, with recorded rates. Graphs compile for them and times are predicted; nothing runs.

They let tests of the device choice use figures of real machines. Profiles lie in `profiles`, in the order of their
names. Each says whether it was recorded or made up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from rlx.backends.base import Backend, Options, Probe, Unsupported
from rlx.backends.executable import Bound, Executable, KernelTime, shapes_at
from rlx.errors import ProfileError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.type import TensorType

if TYPE_CHECKING:
    from rlx.cost.estimate import Estimator, Rates


@cache
def profiles() -> list[dict[str, Any]]:
    """The recorded devices: name, kind (`recorded` or `synthetic`), where the figures come from, rates."""
    folder = resources.files("rlx.backends.null") / "profiles"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return [json.loads(f.read_text(encoding="utf-8")) for f in files]


class NullBound(Bound):
    """A program at known dims. It knows how long it would take."""

    def __init__(self, estimator: Estimator, types: Sequence[TensorType], binding: Mapping[str, int]) -> None:
        self.estimate = estimator(binding)
        self.shapes = shapes_at(types, binding)

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        raise ProfileError("[null] expected a device that runs programs; this one tells times only")

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        times, start = [], self.estimate.launch_ns
        for kernel in self.estimate.kernels:
            times.append(KernelTime(kernel.name, kernel.sources, 1, kernel.ns, start))
            start += kernel.ns
        return times


class NullExecutable(Executable):
    """A graph made ready for a recorded device."""

    def __init__(self, estimator: Estimator, types: Sequence[TensorType]) -> None:
        self.estimator = estimator
        self.types = types

    def set_params(self, params: Mapping[str, Array]) -> None:
        """Takes nothing: only sizes matter, and the graph tells those."""

    def bind(self, binding: Mapping[str, int]) -> Bound:
        return NullBound(self.estimator, self.types, binding)


class NullBackend(Backend):
    """Recorded devices by ordinal."""

    name = "null"
    writes_states = True
    prior_band = 0.0  # the rates are of the very device

    def probe(self) -> Probe:
        return Probe(devices=tuple(p["name"] for p in profiles()))

    def unified_memory(self, ordinal: int = 0) -> bool:
        return bool(profiles()[ordinal]["unified_memory"])

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        return []

    def prior(self, ordinal: int = 0) -> Rates:
        return self.calibrate(ordinal)

    def calibrate(self, ordinal: int = 0, step: Callable[[str], None] = lambda name: None) -> Rates:
        return dict(profiles()[ordinal]["rates"])

    def estimator(self, graph: Graph, options: Options, rates: Rates, ordinal: int = 0) -> Estimator:
        from rlx.cost.generic import GenericEstimator  # probing imports this module

        return GenericEstimator(graph, rates, options.disable, policy=options.policy())

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        types = [value.type for value in graph.outputs.values()]
        return NullExecutable(self.estimator(graph, options, self.calibrate(ordinal), ordinal), types)


BACKEND = NullBackend
