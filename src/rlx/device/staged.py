"""Programs with data-dependent dims or held experts, as the device choice sees them: the parts that they are compiled
as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlx.backends.base import Backend, Options
from rlx.cost.estimate import Estimate, Estimator, Rates
from rlx.cost.generic import GenericEstimator
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.op import Measured
from rlx.ir.symbols import has_measured
from rlx.passes.held_experts import held_weights, is_held, product_on_slots
from rlx.passes.staging import cut

USUAL = 16
"""What a dim without an upper bound is taken to be."""


def parts(graph: Graph, held: Mapping[str, int] | None = None) -> list[Graph]:
    """The graphs that a backend compiles for this one, with products by weights that are `held` apart. Raises
    UnsupportedOp where it cannot be cut."""
    if not held and not has_measured(graph):
        return [graph]
    stages = [stage.graph for stage in cut(graph, held) if stage.gives]
    products = [node for node in graph.nodes if is_held(node, held or {})]
    return [*stages, *(product_on_slots(node, (held or {})[node.inputs[1].name]) for node in products)]


def held_on(backend: Backend, graph: Graph, options: Options) -> dict[str, int]:
    """The weights of which the backend's devices hold some experts only, and how many."""
    return held_weights(graph, options.expert_budget) if backend.holds_experts else {}


def estimator_of(graph: Graph, backend: Backend, options: Options, rates: Rates, ordinal: int) -> Estimator:
    """What predicts the program of a graph, in its parts. Raises what preparing the graph raises."""
    held = held_on(backend, graph, options)
    estimators = [
        backend.estimator(part, options, rates, ordinal)
        or GenericEstimator(part, rates, options.disable, policy=options.policy())
        for part in parts(graph, held)
    ]
    if held:
        return StagedEstimator(graph, estimators, apart=True, quiet=len(estimators) - _waits(graph, held))
    return StagedEstimator(graph, estimators) if len(estimators) > 1 else estimators[0]


def _waits(graph: Graph, held: Mapping[str, int]) -> int:
    """How many of the parts give what the host reads: numbers, choices of experts, outputs."""
    read = {node.inputs[2] for node in graph.nodes if is_held(node, held)} | set(graph.outputs.values())
    return sum(bool(stage.measures) or not read.isdisjoint(stage.gives) for stage in cut(graph, held))


class StagedEstimator(Estimator):
    """The sum over the parts; dims that a run measures are as great as they may be.

    apart   whether each part keeps its arena
    quiet   how many parts give nothing that the host waits for
    """

    def __init__(self, graph: Graph, estimators: Sequence[Estimator], apart: bool = False, quiet: int = 0) -> None:
        self.estimators = estimators
        self.apart, self.quiet = apart, quiet
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
            arena_bytes=(sum if self.apart else max)(each.arena_bytes for each in estimates),
            weight_bytes=sum(each.weight_bytes for each in estimates),
            free_bytes=min(free) if free else None,
            compile_ns=sum(each.compile_ns for each in estimates),
            syncs=sum(each.syncs for each in estimates) - self.quiet,
        )
