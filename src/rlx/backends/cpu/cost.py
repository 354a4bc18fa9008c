"""How much the kernels of a program do on the CPU, in the units that `rates.py` prices: from plans and known dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.codegen.scalar import maths
from rlx.codegen.simd import attention, fourier, gemm, winograd
from rlx.codegen.simd import irregular as special
from rlx.codegen.simd import loops as nests
from rlx.codegen.simd import transpose as turns
from rlx.codegen.simd.entry import GRAIN_CYCLES
from rlx.codegen.simd.isa import Isa
from rlx.codegen.simd.module import Planned, cycles_of
from rlx.codegen.simd.top_k import LEAST_ROOM
from rlx.ir import dim as dims
from rlx.kernel.ir.irregular import PrefixScan, Scatter, TopKSelection
from rlx.kernel.ir.loops import Reduce, Store
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.winograd import POINTS, TILE
from rlx.kernel.passes.twiddles import passes
from rlx.kernel.passes.twiddles import points as points_of
from rlx.kernel.work import Binding, Counts, count, extents, footprint, store_counts

Amounts = dict[str, float]
"""Amounts of work by the name of their rate."""


@dataclass
class KernelWork:
    """A kernel at known dims: amounts, bytes that it touches (`warm` as in `Footprint`), floating-point operations,
    pieces that threads may share, and its kind as in `KernelEstimate`."""

    amounts: Amounts = field(default_factory=dict)
    flops: float = 0.0
    warm_bytes: float = 0.0
    total_bytes: float = 0.0
    pieces: float = 1.0
    kind: str = "elementwise"

    def add(self, name: str, amount: float) -> None:
        if amount:
            self.amounts[name] = self.amounts.get(name, 0.0) + amount


def work_of(
    program: Program, kernel: Kernel, planned: Planned, isa: Isa, binding: Binding, runs: set[int]
) -> KernelWork:
    """What a kernel does in one call; `runs` as in `footprint`."""
    made = KernelWork()
    made.add("calls", 1)
    match planned:
        case gemm.GemmPlan():
            made.kind = "convolution" if planned.work.taps else "product"
            points = _gemm(made, planned, isa, binding)
        case winograd.WinogradPlan():
            made.kind = "convolution"
            points = _winograd(made, planned, isa, binding)
        case attention.AttentionPlan():
            made.kind = "attention"
            points = _attention(made, planned, isa, binding)
        case turns.TransposePlan():
            made.kind = "move"
            points = _turn(made, planned, isa, binding)
        case nests.NestPlan():
            made.kind = "reduction" if planned.nest.reduces else "elementwise"
            points = _nest(made, planned, isa, binding)
        case fourier.FourierPlan():
            made.kind = "transform"
            points = _fourier(made, planned, isa, binding)
        case special.SpecialPlan():
            made.kind = "order"
            points = _special(made, planned, isa, binding)
    touched = footprint(program, kernel, binding, points, runs)
    made.total_bytes, made.warm_bytes = touched.total, touched.warm
    made.pieces = _pieces(planned, isa, binding)
    return made


def _pieces(planned: Planned, isa: Isa, binding: Binding) -> float:
    """Chunks that the work is worth, as the dispatcher in the generated code counts them."""
    positions = dims.evaluate(planned.positions, binding)
    cycles = dims.evaluate(cycles_of(planned, isa), binding) * positions
    flat = isinstance(planned, (nests.NestPlan, special.SpecialPlan)) and planned.flat
    cycles = cycles // 16 if flat else cycles
    return float(max(1, min(cycles // GRAIN_CYCLES, positions)))


# contractions


def _gemm(made: KernelWork, planned: gemm.GemmPlan, isa: Isa, binding: Binding) -> int:
    work = planned.work
    batch = math.prod(extents(work.batch, binding))
    m, n, k = extents((work.m, work.n, work.k), binding)
    taps = math.prod(extents(work.taps, binding))
    if not batch * m * n:
        return 0
    width = planned.vectors * isa.lanes
    panels, blocks = -(-n // width), -(-m // gemm.ROW_BLOCK)
    calls_a_tile = math.prod(dims.evaluate(extent, binding) for extent, _ in planned.taps)
    depth = k * taps
    group, size = planned.form.group, planned.form.of.itemsize
    for height, tiles in _tiles(m, blocks, planned.rows):
        whole = batch * panels * tiles
        made.add(f"{planned.form.stem}_{height}x{planned.vectors}", whole * -(-depth // group))
        cells = height * planned.vectors * planned.form.dtype.itemsize // 4
        _tiles_of(made, whole, cells)
        made.add("gemm_again", whole * (calls_a_tile - 1) * cells)
    made.flops += 2.0 * batch * m * n * depth
    # every tile reads its panel of B; the panels stay where they fit
    panel_bytes = float(size) * depth * width
    readers = batch * (sum(tiles for _, tiles in _tiles(m, blocks, planned.rows)) - 1)
    _stream(
        made, "panel", panel_bytes * panels * readers, panel_bytes if m > planned.rows else panel_bytes * panels, isa
    )
    if not work.packed:
        made.add("packed", batch * blocks * panels * depth * width)
    _stores(made, [(s.offset, s.body) for s in work.epilogue], work.n_axis, batch * m, n, isa)
    return batch * max(m * n, m * k * taps, n * k * taps)


def _tiles_of(made: KernelWork, number: float, vectors: int) -> None:
    """So many tiles of this many vectors: what each takes beside the steps along k."""
    made.add("gemm_tiles", number)
    made.add("gemm_cells", number * vectors)


def _tiles(m: int, blocks: int, rows: int) -> list[tuple[int, int]]:
    """(height, number) of tiles: blocks of equal height, each in tiles of nearly equal height."""
    found: dict[int, int] = {}
    height = -(-m // blocks)
    for block, times in ((height, blocks - 1), (m - height * (blocks - 1), 1)):
        if block <= 0 or not times:
            continue
        count = -(-block // rows)
        for tall, number in ((block // count, count - block % count), (block // count + 1, block % count)):
            if number:
                found[tall] = found.get(tall, 0) + number * times
    return list(found.items())


def _stream(made: KernelWork, name: str, nbytes: float, span: float, isa: Isa) -> None:
    """Bytes that are read again and again out of the cache level that holds `span` bytes. What comes from L2 and nearer
    is in the steps of the cores, which were measured so."""
    level = level_of(span, isa)
    if level in ("l3", "dram"):
        made.add(f"{name}_{level}", nbytes)


def level_of(span: float, isa: Isa) -> str:
    """The cache that so many bytes stay in, or `dram`."""
    for name, size in (("l1", isa.l1_bytes), ("l2", isa.l2_bytes), ("l3", isa.l3_bytes)):
        if span <= 0.8 * size:
            return name
    return "dram"


def _winograd(made: KernelWork, planned: winograd.WinogradPlan, isa: Isa, binding: Binding) -> int:
    conv = planned.work.conv
    images, rows = extents(conv.batch[:2], binding)
    across, n, k = -(-dims.evaluate(conv.m, binding) // TILE), *extents((conv.n, conv.k), binding)
    down = -(-rows // TILE)
    if not images * across * down:
        return 0
    groups = -(-down // planned.group)
    points = POINTS**2
    panels = -(-n // conv.packed)
    for index in range(groups):
        tiles = across * min(planned.group, down - index * planned.group)
        for height, number in _tiles(tiles, 1, planned.rows):
            made.add(f"gemm_{height}x{planned.vectors}", images * points * panels * number * k)
            _tiles_of(made, images * points * panels * number, height * planned.vectors)
    tiles = images * across * down
    made.flops += 2.0 * tiles * points * k * n
    _stream(made, "panel", 4.0 * points * k * panels * conv.packed * images * groups, 4.0 * points * k * n, isa)
    made.add("winograd_in", tiles * k / isa.lanes)
    made.add("winograd_out", tiles * panels * conv.packed / isa.lanes)
    _stores(made, [(s.offset, s.body) for s in conv.epilogue], 3, tiles * TILE**2, n, isa)
    return images * rows * max(n, k) * dims.evaluate(conv.m, binding)


def _attention(made: KernelWork, planned: attention.AttentionPlan, isa: Isa, binding: Binding) -> int:
    work = planned.work
    heads, queries, keys = dims.evaluate(planned.positions, binding), *extents((work.queries, work.keys), binding)
    if not heads * queries:
        return 0
    made.flops += 2.0 * heads * queries * keys * (work.features + work.value_features)
    made.add("attention_scores", heads * queries * -(-keys // isa.lanes))
    made.add("attention_rows", heads * queries)
    points = heads * max(queries, keys) * max(work.features, work.value_features)
    if planned.may_be_few and queries <= attention.FEW:
        vectors = -(-work.features // isa.lanes) + -(-work.value_features // isa.lanes)
        for name, each in (("plain", vectors), ("near", vectors), ("joins", 1)):
            made.add(name, heads * queries * keys * each)
        return points
    key_panels = -(-keys // (planned.key_vectors * isa.lanes))
    value_panels = -(-work.value_features // (planned.value_vectors * isa.lanes))
    for height, tiles in _tiles(queries, 1, planned.rows):
        made.add(f"gemm_{height}x{planned.key_vectors}", heads * tiles * key_panels * work.features)
        made.add(f"gemm_{height}x{planned.value_vectors}", heads * tiles * value_panels * keys)
        _tiles_of(made, heads * tiles * key_panels, height * planned.key_vectors)
        _tiles_of(made, heads * tiles * value_panels, height * planned.value_vectors)
    made.add("packed", heads * keys * (work.features + work.value_features))
    return points


# nests


def _stores(made: KernelWork, stores: Sequence[tuple[Any, Any]], axis: int, rows: int, length: int, isa: Isa) -> None:
    """Bodies worked out and written for `rows` rows of `length`, vectors along `axis`."""
    vectors = rows * -(-length // isa.lanes)
    total = Counts()
    for offset, written in stores:
        body = maths.legalise(written)
        each, _ = count(body, axis)
        total = total + each + store_counts(offset, body, axis)
    _instructions(made, total, vectors, isa)


def _instructions(made: KernelWork, counts: Counts, vectors: float, isa: Isa) -> None:
    made.flops += (counts.plain + counts.slow) * vectors * isa.lanes
    made.add("plain", counts.plain * vectors)
    made.add("slow", counts.slow * vectors)
    made.add("library", counts.library * vectors * isa.lanes)
    made.add("near", counts.near * vectors)
    made.add("apart", counts.apart * vectors * isa.lanes)


def _nest(made: KernelWork, planned: nests.NestPlan, isa: Isa, binding: Binding) -> int:
    nest = planned.nest
    outer, inner = extents(nest.outer, binding), extents(nest.inner, binding)
    positions, inside = math.prod(outer), math.prod(inner)
    inner_axes = range(len(outer), len(outer) + len(inner))
    if not positions:
        return 0
    if planned.across:
        axis, length = len(outer) - 1, outer[-1] if outer else 1
        rows = positions // max(length, 1)
    else:
        axis, length = len(outer) + len(inner) - 1, inner[-1] if inner else 1
        rows = positions * (inside // max(length, 1))
    vectors = rows * -(-length // isa.lanes)
    for stage in nest.statements:
        each, once = count(stage.body, axis, inner_axes if planned.across else ())
        single = isinstance(stage, Store) and not stage.per_element and bool(inner)
        if isinstance(stage, Store):
            each = each + store_counts(stage.offset, stage.body, axis)
        elif isinstance(stage, Reduce):
            each = each + Counts(plain=2 if stage.argument else 1)
        else:
            each = each + Counts(near=1)
        if planned.across:
            _instructions(made, each, vectors * (1 if single else inside), isa)
        elif single:
            _instructions(made, each, positions / isa.lanes, isa)
        else:
            _instructions(made, each, vectors, isa)
        _instructions(made, once, rows / isa.lanes, isa)
        if isinstance(stage, Reduce) and not planned.across:
            made.add("joins", positions)
    made.add("rows", rows)
    return positions * max(inside, 1)


def _turn(made: KernelWork, planned: turns.TransposePlan, isa: Isa, binding: Binding) -> int:
    nest = planned.inner.nest
    outer = extents(nest.outer, binding)
    points = math.prod(outer)
    store = nest.statements[0]
    each, _ = count(store.body, len(outer) - 1)
    turned = len(planned.turned)
    each = Counts(each.plain, each.slow, each.library, each.near + 1, max(0.0, each.apart - turned))
    columns = turns.few_columns(planned, isa.lanes)
    if columns:
        each = Counts(each.plain + columns - 1, each.slow, each.library, each.near + turned, each.apart)
        _instructions(made, each, points / isa.lanes, isa)
        made.add("rows", dims.evaluate(planned.positions, binding))
        return points
    # squares are turned whole, however few of their rows and columns are there
    squares = dims.evaluate(planned.positions, binding) * -(-outer[-1] // isa.lanes)
    _instructions(made, each, squares * isa.lanes, isa)
    made.add("turned", turned * squares * isa.lanes)
    made.add("rows", dims.evaluate(planned.positions, binding))
    return points


def _special(made: KernelWork, planned: special.SpecialPlan, isa: Isa, binding: Binding) -> int:
    work = planned.work
    outer = math.prod(extents(work.outer, binding))
    match work:
        case TopKSelection():
            length, k = extents((work.length, work.k), binding)
            # in a long row most elements are no better than the k best so far, and passed by in vectors
            room = max(min(length, max(2 * k, LEAST_ROOM)), 1)
            taken = room * (1 + math.log(max(length, 1) / room))
            steps = taken * max(math.log2(max(min(k, length), 2)), 1.0) + (length / isa.lanes if room < length else 0)
            made.add("ranked", outer * steps)
            return outer * length
        case Scatter():
            points = outer * math.prod(extents(work.inner, binding))
            made.add("updated", points / (isa.lanes if planned.across else 1))
            return points
        case PrefixScan():
            points = outer * dims.evaluate(work.length, binding)
            each, _ = count(work.body, len(work.outer))
            _instructions(made, each, points / isa.lanes, isa)
            made.add("running", points / (isa.lanes if planned.across else 1))
            return points
    return outer


def _fourier(made: KernelWork, planned: fourier.FourierPlan, isa: Isa, binding: Binding) -> int:
    work = planned.work
    rows = dims.evaluate(planned.positions, binding)
    if not rows:
        return 0
    # a vector that fills a part of a register costs more than its part
    part = planned.lanes * work.real.dtype.itemsize / isa.vector_bytes
    made.add("transformed", rows * passes(work, planned.lanes) * (1 + part) / 2)
    made.add("transforms", rows)
    bodies = [body for body in (work.real, work.imaginary) if body is not None]
    for body in bodies:
        each, _ = count(body, len(work.outer))
        _instructions(made, each, rows * work.length / isa.lanes, isa)
    made.flops += 5.0 * rows * points_of(work) * math.log2(points_of(work))
    return rows * work.length
