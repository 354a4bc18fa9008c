"""Programs with data-dependent dims, as the device choice sees them: the stages that they are compiled as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlx.cost.estimate import Estimate, Estimator
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.op import Measured
from rlx.ir.symbols import has_measured
from rlx.passes.staging import cut

USUAL = 16
"""What a dim without an upper bound is taken to be."""


def parts(graph: Graph) -> list[Graph]:
    """The graphs that a backend compiles for this one. Raises UnsupportedOp where it cannot be cut."""
    return [stage.graph for stage in cut(graph)] if has_measured(graph) else [graph]


class StagedEstimator(Estimator):
    """The sum over the stages; dims that a run measures are as great as they may be."""

    def __init__(self, graph: Graph, estimators: Sequence[Estimator]) -> None:
        self.estimators = estimators
        self.measured = [node.op for node in graph.measured.values()]

    def __call__(self, binding: Mapping[str, int]) -> Estimate:
        known = dict(binding)
        for op in self.measured:
            assert isinstance(op, Measured)  # `Graph.measured` lists nothing else
            known[op.symbol] = USUAL if op.upper is None else dims.evaluate(op.upper, known)
        estimates = [estimator(known) for estimator in self.estimators]
        free = [each.free_bytes for each in estimates if each.free_bytes is not None]
        return Estimate(
            kernels=tuple(kernel for each in estimates for kernel in each.kernels),
            launch_ns=sum(each.launch_ns for each in estimates),
            copy_ns=sum(each.copy_ns for each in estimates),
            band=max(each.band for each in estimates),
            arena_bytes=max(each.arena_bytes for each in estimates),
            weight_bytes=sum(each.weight_bytes for each in estimates),
            free_bytes=min(free) if free else None,
            compile_ns=sum(each.compile_ns for each in estimates),
            syncs=sum(each.syncs for each in estimates),
        )
