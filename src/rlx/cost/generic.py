"""Predictions for a device of which only the times of small graphs are known.

The graph is lowered as for any device with kernels of its own. Every kernel is priced by its kind, with rates
interpolated between measured sizes. A backend that knows its kernels better has its own estimator.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from rlx import flags
from rlx.cost import microbenchmarks as probes
from rlx.cost.compiles import Compiler
from rlx.cost.counts import Binding, Counts, Placed, count, extents, footprint, placed, store_counts
from rlx.cost.estimate import Estimate, Estimator, KernelEstimate, Rates
from rlx.cost.fit import overlapped, points_of, product_amounts, surfaces_of
from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.ir.graph import Graph
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Access
from rlx.kernel.ir.irregular import FourierTransform, PrefixScan, Scatter, Suppression, TopKSelection
from rlx.kernel.ir.loops import LoopNest, Reduce, Store, is_once_a_row
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.passes.twiddles import points as transform_points
from rlx.passes.decompose import Claims, no_claims
from rlx.passes.precision import Policy

BAND = 0.3
NEAR = 0.25
"""Of an element anywhere, one near the last: a line of the cache, or a transaction, holds several."""


class GenericEstimator(Estimator):
    """Prices kernels by kind. `disable`, `claims` and `policy` as in `passes.pipeline`: rewrites to leave out,
    composites that are lowered as one kernel, the dtypes that nodes compute in. `compiler` is how kernels are compiled:
    without one, each by itself."""

    def __init__(
        self, graph: Graph, rates: Rates, disable: Iterable[str] = (), claims: Claims = no_claims,
        policy: Policy | None = None, compiler: Compiler | None = None,
    ) -> None:  # fmt: skip
        from rlx.kernel.pipeline import to_kernels
        from rlx.passes.pipeline import layout, optimise, standard

        disable = frozenset(disable) | frozenset(flags.disable())
        ready, _ = optimise(graph, [*standard(claims, policy), *layout()], disable)
        self.graph = graph
        self.program = to_kernels(ready, disable)
        self.rates = rates
        self.compiler = compiler or Compiler()
        self.surfaces = surfaces_of(rates)
        self.points = points_of(rates)

    def __call__(self, binding: Mapping[str, int]) -> Estimate:
        program, rates = self.program, self.rates
        estimates: list[KernelEstimate] = []
        launches, wakes = 0.0, False
        again = min(rates.get("looped_ns", rates["launch_ns"]), rates["launch_ns"])
        items = list(placed(program.main, binding))
        far = self._far(items, binding)
        for item in items:
            one = self._kernel(program, item.kernel, binding, item.times > 1)
            if not one.flops and not one.nbytes:
                continue  # a variant that this run does not take: nothing starts
            if far and item.times == 1:
                read = far * _weight_bytes(item.kernel, binding)
                one = dataclasses.replace(one, ns=overlapped(one.ns, read), memory_ns=max(one.memory_ns, read))
            times = item.times * item.chance
            # a launch by the host counts for the run, not for the kernel
            start = again if item.times > 1 else 0.0
            launches += 0.0 if item.times > 1 else times
            shares = item.times == 1 and one.ns > rates.get("shared_from_ns", 0.0)
            wakes = wakes or (shares and not _single_row(item.kernel, binding))
            estimates.append(
                KernelEstimate(
                    item.kernel.name, item.kernel.sources, (one.ns + start) * times, one.compute_ns * times,
                    one.memory_ns * times, one.flops * times, one.nbytes * times, times,
                    "loop" if item.times > 1 else one.kind,
                )
            )  # fmt: skip
        moved_in = sum(dims.evaluate(v.type.size, binding) * v.dtype.itemsize for v in self.graph.brought)
        moved_out = sum(dims.evaluate(v.type.size, binding) * v.dtype.itemsize for v in self.graph.results.values())
        copies = moved_in / rates["upload_bytes_per_ns"] + moved_out / rates["download_bytes_per_ns"]
        weights = sum(dims.evaluate(program.buffers[n].nbytes, binding) for n in program.params)
        arena = sum(dims.evaluate(b.nbytes, binding) for b in program.buffers if b.kind == "temp")
        return Estimate(
            kernels=tuple(estimates),
            # threads that sleep between runs are woken once
            launch_ns=rates["call_ns"]
            + len(program.params) * rates.get("weight_ns", 0.0)
            + launches * rates["launch_ns"]
            + wakes * rates.get("wake_ns", 0.0),
            copy_ns=copies,
            band=BAND,
            arena_bytes=arena,
            weight_bytes=weights,
            free_bytes=None,
            compile_ns=rates["compile_ns"] * max(1.0, self._compiled),
        )

    @cached_property
    def _compiled(self) -> float:
        """What a compile takes, in programs of the calibration, once backends have made their kernels of it."""
        return self.compiler.amount(self.program)

    def _kernel(self, program: Program, kernel: Kernel, binding: Binding, looped: bool) -> KernelEstimate:
        work = kernel.work
        match work:
            case Contraction():
                compute, flops, points = self._contraction(work, binding)
            case FusedAttention():
                compute, flops, points = 0.0, 0.0, 0
            case LoopNest():
                compute, flops, points = self._nest(work, binding)
            case _:
                compute, flops, points = self._special(work, binding)
        touched = footprint(program, kernel, binding, points, set())
        memory = touched.total / self._bytes_per_ns(touched.total)
        if looped and "looped" in self.points and isinstance(work, Contraction):
            # its operands stay in cache from trip to trip
            times = self.rates.get(f"times_of_{work.b_dtype.name}", 1.0)
            compute = memory = times * flops / self.rate_at("looped", (max(flops, 1.0),))
        # rates of products, and of reductions of what is there, include their reads and writes
        reads = isinstance(work, Contraction) or (isinstance(work, LoopNest) and self._is_read(work))
        ns = compute if reads else max(compute, memory)
        if not isinstance(work, Contraction) and memory < compute < self.rates.get("shared_from_ns", 0.0):
            ns *= self.rates["alone"]
        return KernelEstimate(
            kernel.name, kernel.sources, ns, compute, memory, flops, touched.total, kind=_kind(work, compute, memory)
        )

    def _bytes_per_ns(self, nbytes: float) -> float:
        """Of memory, for so many bytes: as streams of loops go that do next to nothing else, or as sums of what is
        there, if these are quicker."""
        streamed = 8 * self.rate_at("stream", (nbytes / 8,))
        if "sums" not in self.points:
            return streamed
        side = math.sqrt(nbytes / 4)
        return max(streamed, 4 * self.rate_at("sums", (side, side)))

    def _far(self, items: Sequence[Placed], binding: Binding) -> float:
        """ns a byte of weights of products: 0 while all of them stay in a cache, as those of most probes do; of twice
        as many bytes little stays."""
        weight_bytes = sum(_weight_bytes(item.kernel, binding) for item in items)
        share = min(max(math.log2(max(weight_bytes, 1.0) / probes.NEAR_BYTES), 0.0), 1.0)
        return self.rates.get("dram_bytes_ns", 0.0) * share

    def _contraction(self, work: Contraction, binding: Binding) -> tuple[float, float, int]:
        outer = extents(work.batch, binding)
        m, n, k = extents((work.m, work.columns, work.k), binding)
        taps = math.prod(extents(work.taps, binding))
        batch = math.prod(outer)
        flops = 2.0 * batch * m * n * k * taps
        points = batch * max(m * n, m * k * taps, n * k * taps)
        if flops == 0:
            return 0.0, 0.0, 0
        shares = batch > 1 and bool(work.b.axes) and any(number < len(outer) for number, _ in work.b.axes)
        # products with a right side for each batch element; others are products of more rows
        kind, sizes = "gemm", (1, batch * m, n, k)
        if taps > 1:
            kind, sizes = "conv", (1, batch * m, n, k * taps)
        elif shares:
            kind, sizes = "batched", (batch, m, n, k)
        if kind not in self.surfaces:  # a device that could not be measured in this way, or a profile without it
            kind, sizes = "gemm", (1, batch * m, n, k * taps)
        ns = self.surfaces[kind].ns(product_amounts(*sizes), sizes)
        ns *= self.rates.get(f"times_of_{work.b_dtype.name}", 1.0)
        each = Counts()
        for store in work.epilogue:
            each = each + count(store.body, work.n_axis)[0]
        return ns + self._instructions(each, batch * math.prod(extents((work.m, work.n), binding))), flops, points

    def _nest(self, nest: LoopNest, binding: Binding) -> tuple[float, float, int]:
        outer, inner = extents(nest.outer, binding), extents(nest.inner, binding)
        positions, inside = math.prod(outer), math.prod(inner)
        axis = _along(nest)
        total = reduced = 0.0
        flops = 0.0
        if windowed(nest):
            flops = 2.0 * positions * inside
            kind = "grouped" if "grouped" in self.points and _in_groups(nest) else "depthwise"
            return flops / self.rate_at(kind, (inside,)), flops, positions * max(inside, 1)
        for stage in nest.statements:
            each, _ = count(stage.body, axis, range(len(outer) + len(inner)))
            points = positions * (inside if not hasattr(stage, "per_element") or stage.per_element else 1)
            if hasattr(stage, "offset"):
                each = each + store_counts(stage.offset, stage.body, axis)
            if isinstance(stage, Reduce):
                reduced += positions * inside / self._reduce_rate(nest, stage, positions, max(inside, 1))
            total += self._instructions(each, points)
            flops += (each.plain + each.slow + each.divided) * points
        if self._is_read(nest):
            total = reduced
        return max(total, reduced), flops, positions * max(inside, 1)

    def _is_read(self, nest: LoopNest) -> bool:
        """Whether all that a nest does to elements is to reduce what is there, which was measured as a whole."""
        sums = [stage for stage in nest.statements if isinstance(stage, Reduce)]
        others = [stage for stage in nest.statements if not isinstance(stage, Reduce)]
        alone = all(isinstance(stage, Store) and is_once_a_row(stage) for stage in others)
        return alone and bool(sums) and all(self._kind_of_read(nest, stage) != "reduce" for stage in sums)

    def _kind_of_read(self, nest: LoopNest, stage: Reduce) -> str:
        """The probes that a reduction is priced by."""
        down = _along(nest) < len(nest.outer)
        if stage.argument:
            kind = "places" if down and "places" in self.points else "place"
        elif stage.body.kind == "load" and not stage.body.args:
            kind = "columns" if down else "sums"
        else:
            kind = "reduce"
        return kind if kind in self.points else "reduce"

    def _reduce_rate(self, nest: LoopNest, stage: Reduce, positions: float, inside: float) -> float:
        """Elements that go into a reduction in a nanosecond."""
        kind = self._kind_of_read(nest, stage)
        size = (inside, positions) if kind in ("columns", "places") else (positions, inside)
        return self.rate_at(kind, size)

    def _instructions(self, counts: Counts, points: float) -> float:
        """From what the probes of each take an element."""
        rates = self.rates
        return points * (
            counts.plain / (rates["plain_per_ns"] * probes.PLAIN)
            + (counts.slow + counts.divided) / (rates["divide_per_ns"] * probes.DIVIDES)
            + (counts.library - counts.angles) / (rates["heavy_per_ns"] * probes.HEAVY)
            + counts.angles / (rates.get("angle_per_ns", rates["heavy_per_ns"]) * probes.ANGLES)
            + (counts.strided + NEAR * counts.near) / rates["gather_per_ns"]
        )

    def _special(self, work: object, binding: Binding) -> tuple[float, float, int]:
        match work:
            case TopKSelection():
                points = math.prod(extents((*work.outer, work.length), binding))
                return points / self.rates.get("rank_per_ns", 0.01), points, points
            case PrefixScan():
                rows, length = math.prod(extents(work.outer, binding)), dims.evaluate(work.length, binding)
                points = rows * length
                return points / self._scan_rate(work, rows, length), points, points
            case Scatter():
                points = math.prod(extents((*work.outer, *work.inner), binding))
                return points / self.rates["gather_per_ns"], points, points
            case Suppression():
                points = math.prod(extents((*work.outer, work.length), binding))
                return points / self.rates.get("rank_per_ns", 0.01), points, points
            case FourierTransform():
                flops = probes.transform_flops(math.prod(extents(work.outer, binding)), transform_points(work))
                return flops / self.rates.get("transform_per_ns", self.rates["plain_per_ns"]), flops, int(flops)
        return 0.0, 0.0, 0

    def _scan_rate(self, work: PrefixScan, rows: float, length: float) -> float:
        """Elements of a running reduction in a nanosecond."""
        down = all(n.attr.coefficient(len(work.outer)) != 1 for n in ex.walk([work.body]) if n.kind == "load")
        if down and "downward" in self.points:
            return self.rate_at("downward", (length, rows))
        return (
            self.rate_at("running", (rows, length))
            if "running" in self.points
            else self.rates.get("running_per_ns", 0.01)
        )

    def rate_at(self, kind: str, at: tuple[float, ...]) -> float:
        """The rate at a size, between those measured: the nearer in ratio, the more they count."""
        total = weights = 0.0
        for size, rate in self.points.get(kind, []):
            distance = sum((math.log2(max(a, 1)) - math.log2(s)) ** 2 for a, s in zip(at, size))
            weight = 1.0 / (distance + 0.05) ** 2
            total += weight * math.log(rate)
            weights += weight
        return math.exp(total / weights) if weights else 1.0


def _weight_bytes(kernel: Kernel, binding: Binding) -> float:
    """Of the right side of a product that is one for all of its batch."""
    work = kernel.work
    if not isinstance(work, Contraction) or any(number < len(work.batch) for number, _ in work.b.axes):
        return 0.0
    return work.b_dtype.itemsize * float(math.prod(extents((work.columns, work.k, *work.taps), binding)))


def _single_row(kernel: Kernel, binding: Binding) -> bool:
    """Whether it is a product that reading the right side bounds, on which threads are not put."""
    work = kernel.work
    return isinstance(work, Contraction) and not work.taps and math.prod(extents((*work.batch, work.m), binding)) == 1


def _kind(work: object, compute: float, memory: float) -> str:
    """As in `KernelEstimate`."""
    match work:
        case Contraction():
            return "convolution" if work.taps else "product"
        case FusedAttention():
            return "attention"
        case LoopNest():
            if windowed(work):
                return "window"
            bound = "reduction" if work.reduces else "elementwise"
            return bound if compute >= memory else "move"
    return "order"


def _along(nest: LoopNest) -> int:
    """The axis that neighbours are read along: of the last of a row and the last of the others that along which fewer
    loads are apart, the former if both are alike."""
    last = len(nest.outer) + len(nest.inner) - 1
    loads = [n.attr for n in ex.walk([s.body for s in nest.statements]) if n.kind == "load"]

    def apart(axis: int) -> int:
        return sum(access.coefficient(axis) not in (0, 1) for access in loads)

    across = len(nest.outer) - 1
    return across if nest.inner and across >= 0 and apart(across) < apart(last) else max(last, 0)


def windowed(nest: LoopNest) -> bool:
    """Whether it sums over windows, as depthwise convolutions and pooling do: what is summed are products of elements,
    or the window has axes of its own and moves within what it reaches."""
    sums = [stage for stage in nest.statements if isinstance(stage, Reduce)]
    if any(_product(stage.body) for stage in sums):
        return True
    return len(nest.inner) > 1 and any(
        _moves_within(nest, node.attr) for stage in sums for node in ex.walk([stage.body]) if node.kind == "load"
    )


def _in_groups(nest: LoopNest) -> bool:
    """Whether windows sum over channels too: along an axis in which they do not move."""
    products = [stage.body for stage in nest.statements if isinstance(stage, Reduce) and _product(stage.body)]
    accesses = [load.attr for body in products for load in body.args]
    moving: set[int] = set()
    for access in accesses:
        steps = [c for number, c in access.axes if number < len(nest.outer)]
        for number, extent in enumerate(nest.inner):
            within = access.coefficient(len(nest.outer) + number)
            moving |= {number} if any(_meets(step, within, extent) for step in steps) else set()
    return bool(moving) and any(number not in moving and extent != 1 for number, extent in enumerate(nest.inner))


def _meets(step: Dim, within: Dim, extent: Dim) -> bool:
    """Whether a window, whose elements along an axis are so far apart, overlaps with itself after a step: rows of open
    width too."""
    if not isinstance(extent, int) or within == 0:
        return False
    if isinstance(step, int) and isinstance(within, int):
        return 0 < within <= step <= within * (extent - 1)
    times = dims.exact_div(step, within)
    return isinstance(times, int) and 1 <= times < extent


def _moves_within(nest: LoopNest, access: Access) -> bool:
    """Whether a step along another axis leads to elements that steps along those of a row lead to as well."""
    within = [access.coefficient(len(nest.outer) + number) for number in range(len(nest.inner))]
    steps = [c for number, c in access.axes if number < len(nest.outer)]
    if not all(isinstance(c, int) for c in (*within, *steps, *nest.inner)):
        return bool(steps)
    reach = sum(c * (extent - 1) for c, extent in zip(within, nest.inner))
    return any(min(within) <= step <= reach for step in steps)


def _product(body: Expr) -> bool:
    return body.kind == "mul" and all(arg.kind == "load" for arg in body.args)
