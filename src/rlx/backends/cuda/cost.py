"""What programs cost on devices with kernels in C++ (`backends.simt_cost`)."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.backends.base import Options
from rlx.backends.cuda.build import NVIDIAS, Maker, place_arena, plan_temporaries
from rlx.backends.cuda.moving import Sizes
from rlx.backends.simt_cost import SimtEstimator
from rlx.cost.estimate import Rates
from rlx.ir.graph import Graph
from rlx.ops.packed import PackedMatmul


class CudaEstimator(SimtEstimator):
    """Prices the kernels that `build` makes."""

    def __init__(self, graph: Graph, options: Options, rates: Rates, maker: Maker = NVIDIAS) -> None:
        passes = maker.at(options.precision).passes(maker.target)
        super().__init__(graph, options, rates, passes, maker.claim, (PackedMatmul,))
        self.memory = plan_temporaries(self.program, self.graph, True)

    def arena_bytes(self, binding: Mapping[str, int]) -> int:
        return place_arena(self.program, self.memory, Sizes(binding)).nbytes
