"""From a graph to the kernels that CUDA C++ has writers for: the passes, and lowering."""

from __future__ import annotations

from rlx.codegen.simt import contraction
from rlx.ir.graph import Graph
from rlx.kernel.ir.program import Program
from rlx.kernel.passes.driver import KernelPass
from rlx.kernel.passes.pack import Pack
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import optimise


def program_of(graph: Graph) -> Program:
    """The program of a graph. Raises UnsupportedOp."""
    return to_kernels(optimise(graph)[0], passes=kernel_passes())


def kernel_passes() -> list[KernelPass]:
    """What makes of a program one for NVIDIA's GPUs."""
    return [Pack(contraction.panels)]
