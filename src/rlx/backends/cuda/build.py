"""Turns a graph into the kernels that the CUDA C++ language can write: passes and lowering."""

from __future__ import annotations

from rlx.backends.claims import PREFER_NATIVE
from rlx.backends.simt_claims import claim
from rlx.codegen.simt import contraction, irregular
from rlx.codegen.simt.language.cuda import CUDA
from rlx.ir.graph import Graph
from rlx.kernel.ir.program import Program
from rlx.kernel.passes.atomic_scatter import AtomicScatter
from rlx.kernel.passes.bitonic import Bitonic
from rlx.kernel.passes.driver import KernelPass
from rlx.kernel.passes.long_reductions import FOR_WORKGROUPS, LongReductions
from rlx.kernel.passes.pack import Pack
from rlx.kernel.passes.split_kv import SplitKv
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import layout, optimise, standard


def program_of(graph: Graph) -> Program:
    """The program of a graph: of composites it has what shaders have. Raises UnsupportedOp."""
    passes = [*standard(PREFER_NATIVE.claims(claim)), *layout()]
    return to_kernels(optimise(graph, passes)[0], passes=kernel_passes())


def kernel_passes() -> list[KernelPass]:
    """What makes of a program one for NVIDIA's GPUs: attention of few queries, long selections, scatters and
    reductions as what many lanes can share, and weights in panels."""
    return [
        SplitKv(),
        Bitonic(irregular.is_long),
        AtomicScatter(irregular.is_long_scatter, CUDA.has_atomic),
        LongReductions(FOR_WORKGROUPS),
        Pack(contraction.panels),
    ]
