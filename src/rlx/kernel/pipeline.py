"""From an optimised graph to the kernels of a target: lowering, then kernel passes in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlx import flags
from rlx.ir.graph import Graph
from rlx.ir.rewriting import Context
from rlx.kernel.ir.program import Program
from rlx.kernel.ir.verify import verify
from rlx.kernel.lower.lowering import lower
from rlx.kernel.passes.collapse import Collapse
from rlx.kernel.passes.driver import KernelPass, run_kernel_passes


def to_kernels(
    graph: Graph,
    disable: Iterable[str] = (),
    passes: Sequence[KernelPass] = (),
    context: Context | None = None,
    indirect: bool = False,
    bounded: bool = False,
) -> Program:
    """The program of a graph of primitives and of composites that the target claims.

    disable   kernel passes, rewrites of them, or steps of fusion to leave out, beside those of RLX_DISABLE
    passes    the target's own, behind those that every target has
    context   of the run of graph passes before, whose rewrites `RLX_STOP_AT` counts first
    indirect  lets products read matrices of a weight that data choose where they lie
    bounded   lets windows of products reach beyond what they read, which counts as zeros there

    Raises UnsupportedOp naming every node that no kernel can take.
    """
    context = context or Context(disable)
    program = lower(graph, context.disable, indirect, bounded)
    if flags.check():
        verify(program)
    return run_kernel_passes(program, (Collapse(), *passes), context)
