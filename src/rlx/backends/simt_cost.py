"""Costs that only devices with kernels from `codegen/simt` have: attention, two ways of ranking and of scattering, and
values that the host reads back in the middle of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rlx.backends import simt_claims
from rlx.backends.base import Backend, Options
from rlx.backends.claims import Claim
from rlx.backends.microbenchmarks import MeasuredBackend
from rlx.codegen.simt.attention import TILE
from rlx.cost.calibrate import LEAST_PART, Runner
from rlx.cost.compiles import Compiler
from rlx.cost.counts import Binding, extents, footprint, host_syncs
from rlx.cost.estimate import Estimate, KernelEstimate, Rates
from rlx.cost.generic import GenericEstimator
from rlx.cost.microbenchmarks import Body, ProbeGraph
from rlx.ir import dim as dims
from rlx.ir.graph import Graph, Value
from rlx.ir.graph import call as call_op
from rlx.ir.op import Op
from rlx.ir.rewriting import Context
from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.fused import Composite
from rlx.kernel.ir.irregular import BitonicSort, Scatter, TopKSelection
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.slots import apart
from rlx.kernel.passes.driver import KernelPass, run_kernel_passes
from rlx.kernel.passes.split_kv import chunk_of, part_length, parts_of
from rlx.ops import build

ATTENTIONS = ((12, 32, 32, 32), (4, 256, 256, 64), (12, 1, 1024, 64))
"""(heads, queries, keys, features) of what is measured."""
COUNTED = (64, 128)
"""(rows, elements) of a ranking by counting; below of rankings by a network."""
EXCHANGED = ((64, 512), (4, 8192))
IN_ORDER = ((1, 256), (64, 256))
"""(elements that lie side by side, updates to each) of scatters."""
JOINED = 1 << 16
"""Updates of a scatter that are made at once."""
ASKED = 6
"""Conditionals whose predicates come one after the other."""


def _probe(name: str, amount: float, body: Body, *weights: tuple[int, ...], size: int = 1) -> ProbeGraph:
    """A graph of a small input: what matters is made of weights, which are there already."""
    graph, random = Graph(name), np.random.default_rng(0)
    params = {f"w{i}": random.standard_normal(shape).astype(np.float32) for i, shape in enumerate(weights)}
    x = graph.input("x", (size,), "f32")
    graph.output(body(x, *(graph.param(key, value.shape, "f32") for key, value in params.items())))
    return ProbeGraph(name, graph, (np.zeros(size, np.float32),), params, amount)


def _greatest(x: Value) -> Value:
    """Little of it for the host to read."""
    return build.reduce_max(x, axes=(x.rank - 1,))


def _attention(heads: int, queries: int, keys: int, features: int) -> ProbeGraph:
    def body(x: Value, q: Value, k: Value) -> Value:
        return _greatest(build.attention(q + x, k, k))

    name, shapes = f"attention_{heads}x{queries}x{keys}x{features}", [(1, heads, n, features) for n in (queries, keys)]
    return _probe(name, 4.0 * heads * queries * keys * features, body, *shapes)


def _sort(name: str, shape: tuple[int, int], comparisons: float) -> ProbeGraph:
    """Rows sorted; the amount is how many elements are compared, over all comparisons of a row."""
    return _probe(name, shape[0] * comparisons, lambda x, w: _greatest(build.sort(w + x, axis=1)), shape)


def _places(graph: Graph, count: int, among: int) -> Value:
    """Positions among a power of two, in no order."""
    return build.bitwise_and(build.iota(graph, shape=(count, 1), axis=0, dtype="i32") * 40503, among - 1)


def _in_order(beside: int, count: int) -> ProbeGraph:
    def body(x: Value, old: Value, new: Value) -> Value:
        return _greatest(build.scatter_nd(old, _places(x.graph, count, 128), new + x))

    return _probe(f"update_{beside}x{count}", beside * count, body, (128, beside), (count, beside))


def _joined() -> ProbeGraph:
    def body(x: Value, old: Value, new: Value) -> Value:
        at = _places(x.graph, JOINED, JOINED)
        updated = build.scatter_nd(old.cast("i32"), at, (new + x).cast("i32"), combine="max")
        return _greatest(updated.reshape(JOINED // 64, 64)).cast("f32")

    return _probe("joined", JOINED, body, (JOINED,), (JOINED,))


def _asked() -> ProbeGraph:
    def side(x: Value, number: float) -> Graph:
        graph = Graph("side")
        graph.output(graph.input("x", x.shape, "f32") + number)
        return graph

    def body(x: Value) -> Value:
        for _ in range(ASKED):
            branches = call_op("if", build.lt(x[0], 0.5), x, regions=(side(x, 1.0), side(x, 2.0)))
            x = branches[0] if isinstance(branches, tuple) else branches
        return x

    return _probe("asked", ASKED, body, size=4)


def calibrate(
    backend: Backend, ordinal: int, step: Callable[[str], None], common: Rates,
    estimator: Callable[[Graph, Rates], SimtEstimator],
) -> Rates:  # fmt: skip
    """The rates that an estimator of this kind needs beside the `common` ones."""
    listed = [
        *(_attention(*s) for s in ATTENTIONS), _sort("counted", COUNTED, COUNTED[1] ** 2),
        *(_sort(f"exchanged_{rows}x{n}", (rows, n), _comparisons(n)) for rows, n in EXCHANGED),
        *(_in_order(*s) for s in IN_ORDER), _joined(), _asked(),
    ]  # fmt: skip
    ns_of = Runner(MeasuredBackend(backend, ordinal), step).run_ns(listed)
    rates: Rates = {}
    for probe in listed:
        copied = probe.bytes_out / common["download_bytes_per_ns"]
        ns = max(ns_of[probe.name] - common["call_ns"] - copied, LEAST_PART * ns_of[probe.name])
        if probe.name == "asked":
            # of each, the predicate and the side that was taken are kernels
            rates["asked_ns"] = max(ns / probe.amount - 2 * common["launch_ns"], LEAST_PART * ns / probe.amount)
            continue
        kernels = estimator(probe.graph, common | rates).program.main
        starts = len(kernels) * common["launch_ns"]
        rates[f"{probe.name}_per_ns"] = probe.amount / max(ns - starts, LEAST_PART * ns)
    return rates


def _comparisons(length: int) -> float:
    """Of the elements of a row, by a sorting network."""
    steps = math.ceil(math.log2(max(length, 2)))
    return length * steps * (steps + 1) / 4


class SimtEstimator(GenericEstimator):
    """Prices the kernels that these passes make of a program."""

    def __init__(
        self, graph: Graph, options: Options, rates: Rates, passes: Sequence[KernelPass], compiler: Compiler,
        claim: Claim = simt_claims.claim, products: tuple[type[Op], ...] = (),
    ) -> None:  # fmt: skip
        policy = options.policy(also=products)
        super().__init__(graph, rates, options.disable, options.dispatch.claims(claim), policy, compiler)
        run_kernel_passes(self.program, passes, Context(options.disable))

    def arena_bytes(self, binding: Mapping[str, int]) -> int:
        """What a run takes beside weights."""
        raise NotImplementedError

    def __call__(self, binding: Mapping[str, int]) -> Estimate:
        estimate = super().__call__(binding)
        syncs = host_syncs(self.program.main, binding)
        waited = syncs * self.rates["asked_ns"]
        return dataclasses.replace(
            estimate, launch_ns=estimate.launch_ns + waited, syncs=1 + round(syncs),
            arena_bytes=self.arena_bytes(binding),
        )  # fmt: skip

    def _kernel(self, program: Program, kernel: Kernel, binding: Binding, looped: bool) -> KernelEstimate:
        if isinstance(kernel.work, Composite):
            return self._composite(program, kernel, kernel.work, binding, looped)
        if isinstance(kernel.work, (LoopNest, Contraction)) and 0 in extents(kernel.work.extents(), binding):
            return KernelEstimate(kernel.name, kernel.sources, 0.0, 0.0, 0.0)
        of_attention = isinstance(kernel.work, (FusedAttention, SplitKvPartial, SplitKvCombine))
        kind = "attention" if of_attention else "order"
        match kernel.work:
            case FusedAttention() as work:
                ns, flops, points = self._attention(work, TILE, binding)
            case SplitKvPartial(work, team):
                ns, flops, points = self._attention(work, chunk_of(work, team), binding)
            case SplitKvCombine(work, team):
                ns, flops, points = 0.0, 0.0, self._joined(work, team, binding)
            case TopKSelection() | BitonicSort() | Scatter() as work:
                ns, flops, points = self._ordered(work, binding)
            case _:
                return super()._kernel(program, kernel, binding, looped)
        touched = footprint(program, kernel, binding, points, set()).total if points else 0.0
        memory = touched / self._bytes_per_ns(touched)
        return KernelEstimate(kernel.name, kernel.sources, max(ns, memory), ns, memory, flops, touched, kind=kind)

    def _composite(
        self, program: Program, kernel: Kernel, work: Composite, binding: Binding, looped: bool
    ) -> KernelEstimate:
        """Its parts one after the other; of the kind of the last, which is the product of a `RowProduct`."""
        parts = [self._kernel(program, part, binding, looped) for part in apart(kernel, work.parts())]
        return KernelEstimate(
            kernel.name, kernel.sources, sum(p.ns for p in parts), sum(p.compute_ns for p in parts),
            sum(p.memory_ns for p in parts), sum(p.flops for p in parts), sum(p.nbytes for p in parts),
            kind=parts[-1].kind,
        )  # fmt: skip

    def _attention(self, work: FusedAttention, tile: int, binding: Binding) -> tuple[float, float, int]:
        """ns, operations, and elements that are touched. Where a causal mask spares tiles, half of the pairs; a window
        leaves its own keys and those of a tile."""
        rows = dims.product((work.live, work.batch, work.heads))
        heads, queries, keys = extents((rows, work.queries, work.keys), binding)
        if work.window is not None and work.fill == -math.inf:
            keys = min(keys, tile + work.window * (1 if work.causal else 2))
        flops = 2.0 * heads * queries * keys * (work.features + work.value_features)
        if work.causal and work.fill == -math.inf and work.offset == 0 and queries == keys:
            flops /= 2
        size = (heads, queries, keys, (work.features + work.value_features) / 2)
        points = heads * max(queries, keys) * max(work.features, work.value_features)
        times = self.rates.get(f"times_of_{work.dtype.name}", 1.0)
        return times * flops / self.rate_at("attention", size), flops, points

    def _joined(self, work: FusedAttention, team: bool, binding: Binding) -> int:
        """Elements of the parts that are joined."""
        rows = dims.product((work.live, work.batch, work.heads, work.queries))
        return math.prod(extents((rows, parts_of(work, team)), binding)) * part_length(work)

    def _ordered(self, work: TopKSelection | BitonicSort | Scatter, binding: Binding) -> tuple[float, float, int]:
        outer = math.prod(extents(work.outer, binding))
        if isinstance(work, Scatter):
            inner = math.prod(extents(work.inner, binding))
            rate = self.rates["joined_per_ns"] if work.atomic or not inner else self.rate_at("update", (outer, inner))
            return outer * inner / rate, outer * inner, outer * inner
        length = dims.evaluate(work.length, binding)
        if isinstance(work, TopKSelection):
            steps = float(outer * length * length)
            return steps / self.rates["counted_per_ns"], steps, outer * length
        steps = outer * _comparisons(length)
        return steps / self.rate_at("exchanged", (outer, length)), steps, outer * length
