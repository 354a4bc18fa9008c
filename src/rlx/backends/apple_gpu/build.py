"""What is made of a graph for Apple's GPUs: kernels in Metal's language (`backends.cuda.build` does the rest)."""

from __future__ import annotations

from rlx.backends.cuda.build import LEAST_SCORES, Maker
from rlx.codegen.simt import contraction, irregular
from rlx.codegen.simt.language.metal import METAL, why_unsupported
from rlx.codegen.simt.module import APPLE
from rlx.kernel.passes.atomic_scatter import AtomicScatter
from rlx.kernel.passes.bitonic import Bitonic
from rlx.kernel.passes.driver import KernelPass
from rlx.kernel.passes.long_reductions import FOR_WORKGROUPS, LongReductions
from rlx.kernel.passes.pack import Pack
from rlx.kernel.passes.split_kv import SplitKv


def kernel_passes() -> list[KernelPass]:
    """As for AMD's GPUs: without matrix units."""
    return [
        SplitKv(LEAST_SCORES),
        Bitonic(irregular.is_long),
        AtomicScatter(irregular.is_long_scatter, METAL.has_atomic),
        LongReductions(FOR_WORKGROUPS),
        Pack(contraction.panels),
    ]


APPLES = Maker("apple-gpu", APPLE, kernel_passes, lacks=why_unsupported)
