"""What programs cost on WebGPU devices (`backends.simt_cost`), whose arenas lie in bindings of limited size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from rlx.backends import simt_cost
from rlx.backends.base import Backend, Options
from rlx.backends.simt_cost import SimtEstimator
from rlx.backends.wgpu.build import kernel_passes
from rlx.backends.wgpu.device import PORTABLE_BINDING
from rlx.backends.wgpu.layout import choose_heaps, place_arena, plan_arena
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.cost.compiles import Compiler, Weights
from rlx.cost.estimate import Rates
from rlx.ir.graph import Graph

WEIGHTS = Weights(map=0.6, reduction=0.6, product=2.0, narrow=2.0, attention=2.0, composite=2.0, other=0.6)
"""What drivers take for a shader, in programs of a calibration: products are written out for a tile. They are compiled
one after the other, equal ones once."""


def calibrate(backend: Backend, ordinal: int, step: Callable[[str], None], common: Rates, target: Target) -> Rates:
    """The rates that `WgpuEstimator` needs beside the `common` ones, and what of `target` there is, as 1 or 0."""
    has: Rates = {name: float(value) for name, value in dataclasses.asdict(target).items()}

    def estimator(graph: Graph, rates: Rates) -> SimtEstimator:
        return WgpuEstimator(graph, Options(), rates)

    return has | simt_cost.calibrate(backend, ordinal, step, common | has, estimator)


class WgpuEstimator(SimtEstimator):
    """Prices the kernels that `build` makes."""

    def __init__(self, graph: Graph, options: Options, rates: Rates) -> None:
        target = Target(**{field.name: rates.get(field.name, 0.0) > 0 for field in dataclasses.fields(Target)})
        super().__init__(graph, options, rates, kernel_passes(target), Compiler(WEIGHTS, again=0.0))
        self.heaps = choose_heaps(self.program, PORTABLE_BINDING, target)
        self.memory = plan_arena(self.program, self.heaps, self.graph.bounds, True)

    def arena_bytes(self, binding: Mapping[str, int]) -> int:
        return place_arena(self.program, self.memory, self.heaps, binding).nbytes
