"""What programs cost on devices with kernels in C++ (`backends.simt_cost`)."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rlx.backends.base import Options
from rlx.backends.cpu import topology
from rlx.backends.cuda.build import NVIDIAS, Maker, build, place_arena, plan_temporaries
from rlx.backends.cuda.device import Device
from rlx.backends.cuda.moving import Sizes
from rlx.backends.simt_cost import SimtEstimator
from rlx.codegen.simt.module import guesses
from rlx.cost.compiles import Compiler, Weights
from rlx.cost.estimate import Rates
from rlx.cost.microbenchmarks import single
from rlx.ir.graph import Graph
from rlx.kernel.ir.program import Kernel
from rlx.ops.packed import PackedMatmul

WEIGHTS = Weights(map=0.2, reduction=0.5, product=1.1, narrow=0.6, attention=2.0, composite=0.7, other=0.5)
"""What NVRTC takes for a text, in those of the small programs of a calibration."""
LOWERED, WRITTEN = 0.004, 0.03
"""What Python takes for each kernel and for each text."""


TEXTS_A_THREAD = 3
"""Of those that are compiled side by side: a thread's first one takes longer."""


def measure_compiler(device: Device, maker: Maker) -> Rates:
    """Texts that are compiled in the time of one, where every processor has some: these share cores, and compilers wait
    for each other."""
    texts = build(single().graph, Options(), maker.on(device.architecture)).texts
    product = max(texts.items(), key=lambda text: len(text[1]))
    threads = topology.usable()

    def took(count: int) -> int:
        before = time.perf_counter_ns()
        device.compiled([product] * count, False)
        return time.perf_counter_ns() - before

    one = min(took(1), took(1))
    many = TEXTS_A_THREAD * threads
    return {"compilers_count": min(max(many * one / took(many), 1.0), threads)}


def compiler_of(maker: Maker, rates: Rates) -> Compiler:
    """Texts are compiled as `Device.compiled` does, side by side; equal kernels share one, and products of open rows
    have several."""

    def variants(kernel: Kernel) -> int:
        return sum(1 for _ in guesses(kernel, maker.target))

    at_once = rates.get("compilers_count", topology.usable())  # calibrations of before have none
    return Compiler(WEIGHTS, variants, again=0.0, at_once=at_once, lowered=LOWERED, written=WRITTEN)


class CudaEstimator(SimtEstimator):
    """Prices the kernels that `build` makes."""

    def __init__(self, graph: Graph, options: Options, rates: Rates, maker: Maker = NVIDIAS) -> None:
        passes = maker.at(options.precision).passes(maker.target)
        super().__init__(graph, options, rates, passes, compiler_of(maker, rates), maker.claim, (PackedMatmul,))
        self.memory = plan_temporaries(self.program, self.graph, True)

    def arena_bytes(self, binding: Mapping[str, int]) -> int:
        return place_arena(self.program, self.memory, Sizes(binding)).nbytes
