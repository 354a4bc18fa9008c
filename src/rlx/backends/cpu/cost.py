"""How much work the kernels of a program do on the CPU, in the units that `rates.py` prices, from schedules and known
dims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlx.backends.cpu.work import KernelWork
from rlx.codegen.scalar import maths
from rlx.codegen.simd import (
    attention,
    chains,
    fourier,
    fourier_parts,
    gemm,
    irregular,
    loops,
    repeat,
    suppression,
    top_k,
    transpose,
    windows,
    winograd,
)  # fmt: skip
from rlx.codegen.simd.block_cores import FEW_ROWS, BlockForm
from rlx.codegen.simd.entry_points import GRAIN_CYCLES
from rlx.codegen.simd.isa import Isa
from rlx.codegen.simd.microkernels import BYTES, FLOATS
from rlx.codegen.simd.scheduled import FLAT_UNIT, Scheduled
from rlx.cost.counts import Binding, Counts, count, extents, footprint, store_counts
from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.irregular import PrefixScan, Scatter, TopKSelection
from rlx.kernel.ir.loops import LoopNest, Reduce, Store, is_once_a_row, row_passes
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.winograd import POINTS, TILE
from rlx.kernel.passes.twiddles import passes
from rlx.kernel.passes.twiddles import points as points_of
from rlx.kernel.schedule.schedule import UNTILED

UNPACKED_ROWS = 2
"""What it takes to unpack weights of few bits, in rows that are multiplied with them."""
NEAR = 0.4
"""Of an element anywhere in memory, one near the last: it is in the nearest cache."""
SORTED_LEVELS = 3.0
"""What it takes to sort many elements by the bytes of their keys, in levels of merging."""
COMPARISON = Counts(plain=18, slow=1, contiguous=5)
"""Instructions that compare a box with a vector of others."""
CHOSEN = 64
"""Of so many boxes one has a score above the threshold, roughly."""


def work_of(
    program: Program, kernel: Kernel, scheduled: Scheduled, isa: Isa, binding: Binding, runs: set[int]
) -> KernelWork:
    """What a kernel does in one call; `runs` as in `footprint`."""
    costs = KernelWork()
    costs.add("calls", 1)
    costs.kind, amounts = AMOUNTS[type(scheduled)]
    if isinstance(scheduled, gemm.ScheduledMatmul) and scheduled.work.taps:
        costs.kind = "convolution"
    elif isinstance(scheduled, loops.ScheduledLoops) and scheduled.nest.reduces:
        costs.kind = "reduction"
    elif isinstance(scheduled, transpose.ScheduledTranspose):
        cold = any(kernel.slots[read.attr.slot] not in runs for read in scheduled.transposed)
        costs.slowness = FAR_ROWS if cold else 1.0
    points = amounts(costs, scheduled, isa, binding)
    touched = footprint(program, kernel, binding, points, runs)
    costs.total_bytes, costs.warm_bytes = touched.total, touched.warm
    costs.pieces = _pieces(scheduled, isa, binding)
    return costs


def _pieces(scheduled: Scheduled, isa: Isa, binding: Binding) -> float:
    """Chunks that the work is worth, as the dispatcher in the generated code counts them."""
    positions = dims.evaluate(scheduled.positions, binding)
    cycles = dims.evaluate(scheduled.cycles(isa.lanes), binding) * positions
    cycles = cycles // FLAT_UNIT if scheduled.flat else cycles
    return float(max(1, min(cycles // GRAIN_CYCLES, positions)))


# contractions


def _gemm(costs: KernelWork, scheduled: gemm.ScheduledMatmul, isa: Isa, binding: Binding) -> int:
    work = scheduled.work
    batch = math.prod(extents(work.batch, binding))
    m, n, k = extents((work.m, work.n, work.k), binding)
    taps = math.prod(extents(work.taps, binding))
    if not batch * m * n:
        return 0
    width = scheduled.vectors * isa.lanes
    panels, blocks = -(-n // width), -(-m // scheduled.row_block)
    calls_a_tile = math.prod(dims.evaluate(extent, binding) for extent, _ in scheduled.taps)
    depth = k * taps
    form = scheduled.form
    group, size, stem, unpacks = form.group, float(form.of.itemsize), form.stem, False
    if isinstance(form, BlockForm):  # cores of floats, which a few rows more would keep as busy as unpacking does
        size, stem, unpacks = form.element_bytes, FLOATS.stem, m <= FEW_ROWS
        costs.add("packed", 0.0 if unpacks else batch * blocks * panels * depth * width)
    for height, tiles in _tiles(m, blocks, scheduled.rows):
        whole = batch * panels * tiles
        core = _core(min(height + UNPACKED_ROWS * unpacks, scheduled.rows), scheduled.vectors, isa)
        costs.add(f"{stem}_{core}", whole * -(-depth // group))
        cells = height * scheduled.vectors * scheduled.form.dtype.itemsize // 4
        _tiles_of(costs, whole, cells)
        costs.add("gemm_again", whole * (calls_a_tile - 1) * cells)
    costs.flops += 2.0 * batch * m * n * depth
    # every tile reads its panel of B; the panels stay where they fit
    panel_bytes = size * depth * width
    readers = batch * (sum(tiles for _, tiles in _tiles(m, blocks, scheduled.rows)) - 1)
    _stream(
        costs, "panel", panel_bytes * panels * readers, panel_bytes if m > scheduled.rows else panel_bytes * panels, isa
    )
    if not work.packed and form is BYTES:
        _packed_bytes(costs, scheduled, batch * blocks * panels, depth, isa)
    elif not work.packed:
        costs.add("packed", batch * blocks * panels * depth * width)
    beside = scheduled.vectors if isinstance(work.n, int) and n % isa.lanes == 0 else 1
    _stores(costs, [(s.offset, s.body) for s in work.epilogue], work.n_axis, batch * m, n, isa, beside)
    return batch * max(m * n, m * k * taps, n * k * taps)


def _packed_bytes(costs: KernelWork, scheduled: gemm.ScheduledMatmul, panels: int, depth: int, isa: Isa) -> None:
    """Panels of bytes that a run packs: interleaved rows, transposed squares of words, or words byte by byte."""
    work, group = scheduled.work, scheduled.form.group
    steps = [work.b.coefficient(axis) for axis in (work.k_axis, work.n_axis)]
    vectors = panels * scheduled.vectors
    if steps[1] == 1:
        each = Counts(plain=3 * group - 2, contiguous=group, stored=1)
        _instructions(costs, each, vectors * -(-depth // group), isa)
        return
    words, singles = (depth // group, 1 if depth % group else 0) if steps[0] == 1 else (0, -(-depth // group))
    squares = -(-words // isa.lanes)
    costs.add("turned", vectors * squares * isa.lanes)
    costs.add("strided", group * vectors * isa.lanes * singles)


def _core(height: int, vectors: int, isa: Isa) -> str:
    """The core that rates are of: of as many sums, if a tile is wider than usual."""
    if vectors <= isa.gemm_vectors:
        return f"{height}x{vectors}"
    return f"{-(-height * vectors // isa.gemm_vectors)}x{isa.gemm_vectors}"


def _tiles_of(costs: KernelWork, number: float, vectors: int) -> None:
    """So many tiles of this many vectors: what each takes beside the steps along k."""
    costs.add("gemm_tiles", number)
    costs.add("gemm_cells", number * vectors)


def _tiles(m: int, blocks: int, rows: int) -> list[tuple[int, int]]:
    """(height, number) of tiles: blocks of equal height, each in tiles of nearly equal height."""
    heights: dict[int, int] = {}
    height = -(-m // blocks)
    for block, times in ((height, blocks - 1), (m - height * (blocks - 1), 1)):
        if block <= 0 or not times:
            continue
        count = -(-block // rows)
        for tall, number in ((block // count, count - block % count), (block // count + 1, block % count)):
            if number:
                heights[tall] = heights.get(tall, 0) + number * times
    return list(heights.items())


def _stream(costs: KernelWork, name: str, nbytes: float, span: float, isa: Isa) -> None:
    """Bytes that are read again and again out of the cache level that holds `span` bytes. What comes from L2 and nearer
    is in the steps of the cores, which were measured so."""
    level = level_of(span, isa)
    if level in ("l3", "dram"):
        costs.add(f"{name}_{level}", nbytes)


def level_of(span: float, isa: Isa) -> str:
    """The cache that so many bytes stay in, or `dram`."""
    for name, size in (("l1", isa.l1_bytes), ("l2", isa.l2_bytes), ("l3", isa.l3_bytes)):
        if span <= 0.8 * size:
            return name
    return "dram"


def _winograd(costs: KernelWork, scheduled: winograd.ScheduledWinograd, isa: Isa, binding: Binding) -> int:
    conv = scheduled.work.conv
    images, rows = extents(conv.batch[:2], binding)
    across, n, k = -(-dims.evaluate(conv.m, binding) // TILE), *extents((conv.n, conv.k), binding)
    down = -(-rows // TILE)
    if not images * across * down:
        return 0
    group = dims.evaluate(scheduled.group, binding)
    groups = -(-down // group)
    points = POINTS**2
    panels = -(-n // conv.packed)
    for index in range(groups):
        tiles = across * min(group, down - index * group)
        for height, number in _tiles(tiles, 1, scheduled.rows):
            costs.add(f"gemm_{_core(height, scheduled.vectors, isa)}", images * points * panels * number * k)
            _tiles_of(costs, images * points * panels * number, height * scheduled.vectors)
    tiles = images * across * down
    costs.flops += 2.0 * tiles * points * k * n
    _stream(costs, "panel", 4.0 * points * k * panels * conv.packed * images * groups, 4.0 * points * k * n, isa)
    costs.add("winograd_in", tiles * k / isa.lanes)
    costs.add("winograd_out", tiles * panels * conv.packed / isa.lanes)
    _stores(costs, [(s.offset, s.body) for s in conv.epilogue], 3, tiles * TILE**2, n, isa)
    return images * rows * max(n, k) * dims.evaluate(conv.m, binding)


def _attention(costs: KernelWork, scheduled: attention.ScheduledAttention, isa: Isa, binding: Binding) -> int:
    work = scheduled.work
    heads, queries, keys = dims.evaluate(scheduled.positions, binding), *extents((work.queries, work.keys), binding)
    if not heads * queries:
        return 0
    few = scheduled.may_be_few and queries <= attention.FEW
    width = scheduled.key_vectors * isa.lanes
    offset = dims.evaluate(work.offset, binding)
    keys_seen, panels = _seen(work, offset, queries, keys, 1 if few else scheduled.rows, 1 if few else width)
    costs.flops += 2.0 * heads * queries * keys_seen * (work.features + work.value_features)
    costs.add("attention_scores", heads * queries * math.ceil(keys_seen / isa.lanes))
    costs.add("attention_rows", heads * queries)
    points = heads * max(queries, keys) * max(work.features, work.value_features)
    if few:
        vectors = -(-work.features // isa.lanes) + -(-work.value_features // isa.lanes)
        for name, each in (("plain", vectors), ("contiguous", vectors), ("joins", 1)):
            costs.add(name, heads * queries * keys_seen * each)
        return points
    value_panels = -(-work.value_features // (scheduled.value_vectors * isa.lanes))
    for height, tiles in _tiles(queries, 1, scheduled.rows):
        costs.add(f"gemm_{height}x{scheduled.key_vectors}", heads * tiles * panels * work.features)
        costs.add(f"gemm_{height}x{scheduled.value_vectors}", heads * tiles * value_panels * keys_seen)
        _tiles_of(costs, heads * tiles * panels, height * scheduled.key_vectors)
        _tiles_of(costs, heads * tiles * value_panels, height * scheduled.value_vectors)
    costs.add("packed", heads * keys * (work.features + work.value_features))
    return points


def _seen(work: FusedAttention, offset: int, queries: int, keys: int, rows: int, width: int) -> tuple[float, float]:
    """Keys that a tile of so many queries looks at, and panels of them, on the average."""
    if not attention.skips(work):
        return keys, -(-keys // width)
    first = np.arange(0, queries, rows)
    behind = np.minimum(first + rows, queries) + offset + (0 if work.causal else (work.window or 1) - 1)
    behind = np.clip(behind, 0, keys)
    low = np.clip(first + offset + 1 - (work.window or queries + keys + offset + 1), 0, behind) // width * width
    return float(np.mean(behind - low)), float(np.mean(-(-behind // width) - low // width))


# nests

FAR_ROWS = 2.0
"""How many times as long as a stream parts of rows take that lie far apart."""
EXTREMUM = 7.0
"""Instructions that keep an extremum of floats, or its place: comparisons with it and with NaN, and choices."""


def _stores(
    costs: KernelWork, stores: Sequence[tuple[Any, Any]], axis: int, rows: int, length: int, isa: Isa, beside: int = 1
) -> None:
    """Bodies worked out and written for `rows` rows of `length`, vectors along `axis`, so many of them side by side."""
    vectors = rows * -(-length // isa.lanes)
    total = Counts()
    bodies = [(offset, maths.legalise(written)) for offset, written in stores]
    for offset, body in bodies:
        each, _ = count(body, axis)
        total = total + each + store_counts(offset, body, axis)
    _instructions(costs, total, vectors, isa)
    _wait(costs, [body for _, body in bodies], beside, vectors)


def _wait(costs: KernelWork, bodies: Sequence[Expr], beside: int, vectors: float) -> None:
    costs.waits += vectors * chains.waits(bodies, sum(map(loops.body_weight, bodies)), beside)


def _instructions(costs: KernelWork, counts: Counts, vectors: float, isa: Isa) -> None:
    costs.flops += (counts.plain + counts.slow + counts.divided) * vectors * isa.lanes
    costs.add("plain", counts.plain * vectors)
    costs.add("slow", counts.slow * vectors)
    costs.add("library", counts.library * vectors * isa.lanes)
    costs.add("divided", counts.divided * vectors * isa.lanes)
    costs.add("contiguous", counts.contiguous * vectors)
    costs.add("stored", counts.stored * vectors)
    costs.add("strided", (counts.strided + NEAR * counts.near) * vectors * isa.lanes)


def _nest(costs: KernelWork, scheduled: loops.ScheduledLoops, isa: Isa, binding: Binding) -> int:
    nest = scheduled.nest
    outer, inner = extents(nest.outer, binding), extents(nest.inner, binding)
    positions, inside = math.prod(outer), math.prod(inner)
    inner_axes = range(len(outer), len(outer) + len(inner))
    if not positions:
        return 0
    if scheduled.across:
        axis, length = len(outer) - 1, outer[-1] if outer else 1
        rows = positions // max(length, 1)
    else:
        axis, length = len(outer) + len(inner) - 1, inner[-1] if inner else 1
        rows = positions * (inside // max(length, 1))
    vectors = rows * -(-length // isa.lanes)
    shared = _loaded(nest, inner, binding) if scheduled.across and inner else 1.0
    for stage in nest.statements:
        each, once = count(stage.body, axis, inner_axes if scheduled.across else (), scheduled.across or not inner)
        each = replace(each, contiguous=shared * each.contiguous)
        single = isinstance(stage, Store) and not stage.per_element and bool(inner)
        if isinstance(stage, Store):
            each = each + store_counts(stage.offset, stage.body, axis)
        elif isinstance(stage, Reduce):
            of_floats = stage.combine in ("max", "min") and stage.dtype.is_float
            each = each + Counts(plain=EXTREMUM if stage.argument or of_floats else 1)
        else:
            each = each + Counts(stored=1)
        if scheduled.across:
            _instructions(costs, each, vectors * (1 if single else inside), isa)
        elif single:
            _instructions(costs, each, positions / isa.lanes, isa)
        else:
            _instructions(costs, each, vectors, isa)
        _instructions(costs, once, rows / isa.lanes, isa)
        if isinstance(stage, Reduce) and not scheduled.across:
            costs.add("joins", positions * min((length - 1) / 2, 1.0))
    for numbers in row_passes(dict(enumerate(nest.statements))):
        bodies = [nest.statements[number].body for number in numbers]
        single = is_once_a_row(nest.statements[numbers[0]]) and bool(inner)
        alone = scheduled.tiles is UNTILED or (single and not scheduled.across)
        beside = 1 if alone else scheduled.side_by_side if scheduled.across else scheduled.in_flight(numbers[0])
        times = vectors * inside if scheduled.across and not single else positions if single else vectors
        _wait(costs, bodies, beside, times)
    costs.add("rows", rows)
    wide = scheduled.side_by_side * isa.lanes
    if scheduled.across and inside >= loops.LONG_COLUMN and length > wide:
        costs.slowness = FAR_ROWS
    return positions * max(inside, 1)


def _loaded(nest: LoopNest, inner: Sequence[int], binding: Binding) -> float:
    """Of what windows load, the part that none beside them has loaded before."""
    if not windows.is_written_out(nest) or not windows.only_sums(
        s for s in nest.statements if not isinstance(s, Store)
    ):
        return 1.0
    turns = inner if windows.are_steps_written_out(nest.inner) else inner[1:]
    axes = range(len(nest.outer) + len(inner) - len(turns), len(nest.outer) + len(inner))
    places: set[object] = set()
    loads = [n.attr for s in nest.statements if isinstance(s, Reduce) for n in ex.walk([s.body]) if n.kind == "load"]
    for access in loads:
        start = dims.evaluate(access.const, binding)
        steps = [dims.evaluate(access.coefficient(number), binding) for number in axes]
        moving = tuple(pair for pair in access.axes if pair[0] not in axes)
        for at in itertools.product(*map(range, turns)):
            places.add((access.slot, moving, start + sum(step * place for step, place in zip(steps, at))))
    return len(places) / max(len(loads) * math.prod(turns), 1)


CONFLICTS = {4096: 2.5, 2048: 1.6}
"""How many times as long squares, and columns, take whose rows lie a multiple of so many bytes apart: they want the
same few lines of the nearest cache."""


def _conflicts(strides: Iterable[tuple[Dim, DType]], binding: Binding) -> float:
    """How many times as long rows take that are so far apart, in elements of a dtype."""
    apart = [dtype.itemsize * dims.evaluate(stride, binding) for stride, dtype in strides]
    return next((times for step, times in CONFLICTS.items() if any(a and a % step == 0 for a in apart)), 1.0)


def _strides(scheduled: transpose.ScheduledTranspose) -> Iterator[tuple[Dim, DType]]:
    """How far rows of squares are apart where they are read and where they are written."""
    nest = scheduled.inner.nest
    (store,) = nest.statements
    assert isinstance(store, Store)
    for read in scheduled.transposed:
        yield read.attr.coefficient(len(nest.outer) - 1), read.dtype
    yield store.offset.coefficient(scheduled.axis), store.body.dtype


def _repeats(costs: KernelWork, scheduled: repeat.ScheduledRepeats, isa: Isa, binding: Binding) -> int:
    """Elements that are made once, spread in registers, and stored several times."""
    outer, times, rows = extents(scheduled.nest.outer, binding), scheduled.times, scheduled.rows
    points = math.prod(outer)
    (store,) = scheduled.nest.stores()
    each, _ = count(store.body, len(outer) - 2)
    each = replace(each, plain=each.plain + times, contiguous=each.contiguous + times * rows)
    _instructions(costs, each, points / (times * rows * isa.lanes), isa)
    costs.add("rows", dims.evaluate(scheduled.positions, binding))
    return points


def _transpose(costs: KernelWork, scheduled: transpose.ScheduledTranspose, isa: Isa, binding: Binding) -> int:
    nest = scheduled.inner.nest
    outer = extents(nest.outer, binding)
    points = math.prod(outer)
    store = nest.statements[0]
    each, _ = count(store.body, len(outer) - 1)
    transposes = len(scheduled.transposed)
    each = replace(each, contiguous=each.contiguous + 1, strided=max(0.0, each.strided - transposes))
    columns = transpose.few_columns(scheduled, isa.lanes)
    if columns:
        each = replace(each, plain=each.plain + columns - 1, contiguous=each.contiguous + transposes)
        _instructions(costs, each, points / isa.lanes, isa)
        costs.add("rows", dims.evaluate(scheduled.positions, binding))
        return points
    # squares are turned whole, however few of their rows and columns are there
    down = scheduled.rows // isa.lanes
    squares = dims.evaluate(scheduled.positions, binding) * down * -(-outer[-1] // isa.lanes)
    _instructions(costs, each, squares * isa.lanes, isa)
    costs.add("turned", transposes * squares * isa.lanes * _conflicts(_strides(scheduled), binding))
    costs.add("rows", dims.evaluate(scheduled.positions, binding))
    return points


def _irregular(costs: KernelWork, scheduled: irregular.ScheduledIrregular, isa: Isa, binding: Binding) -> int:
    work = scheduled.work
    outer = math.prod(extents(work.outer, binding))
    match work:
        case TopKSelection():
            length, k = extents((work.length, work.k), binding)
            # in a long row most elements are no better than the k best so far, and passed by in vectors
            room = max(min(length, max(2 * k, scheduled.schedule.static_tile("cache", "elements"))), 1)
            merges = room * (1 + math.log(max(length, 1) / room))
            levels = SORTED_LEVELS if room >= top_k.MANY else math.log2(max(min(k, length), 2))
            steps = merges * max(levels, 1.0) + (length / isa.lanes if room < length else 0)
            costs.add("ranked", outer * steps)
            return outer * length
        case Scatter():
            points = outer * math.prod(extents(work.inner, binding))
            costs.add("updated", points / (isa.lanes if scheduled.across and not _is_strided(work) else 1))
            return points
        case PrefixScan():
            length = dims.evaluate(work.length, binding)
            points = outer * length
            along = len(work.outer)
            if scheduled.across and length >= loops.LONG_COLUMN:
                loads = [node for node in ex.walk([work.body]) if node.kind == "load"]
                costs.slowness = FAR_ROWS * _conflicts(((n.attr.coefficient(along), n.dtype) for n in loads), binding)
            each, _ = count(work.body, along - 1, (along,)) if scheduled.across else count(work.body, along)
            _instructions(costs, each, points / isa.lanes, isa)
            costs.add("running", points / (isa.lanes if scheduled.across else 1))
            return points
    return outer


def _is_strided(work: Scatter) -> bool:
    """Whether data say of each lane of a vector where its update goes."""
    axis = len(work.outer) - 1
    read = ex.walk([place for place, _ in work.offset.others])
    return any(n.attr.coefficient(axis) != 0 if n.kind == "load" else (n.kind, n.attr) == ("axis", axis) for n in read)


def _fourier(costs: KernelWork, scheduled: fourier.ScheduledFourier, isa: Isa, binding: Binding) -> int:
    work = scheduled.work
    rows = dims.evaluate(scheduled.positions, binding)
    if not rows:
        return 0
    # a vector that fills a part of a register costs more than its part
    part = scheduled.lanes * work.real.dtype.itemsize / isa.vector_bytes
    costs.add("transformed", rows * passes(work, scheduled.steps, scheduled.lanes) * (1 + part) / 2)
    costs.add("transforms", rows)
    bodies = [body for body in (work.real, work.imaginary) if body is not None]
    for body in bodies:
        each, _ = count(body, len(work.outer))
        _instructions(costs, each, rows * work.length / isa.lanes, isa)
    costs.flops += 5.0 * rows * points_of(work) * math.log2(points_of(work))
    return rows * work.length


def _suppression(costs: KernelWork, scheduled: suppression.ScheduledSuppression, isa: Isa, binding: Binding) -> int:
    """Candidates are put in order, and compared with half of what is kept: data tell how many there are."""
    work = scheduled.work
    lists, length, limit = math.prod(extents(work.outer, binding)), *extents((work.length, work.limit), binding)
    candidates = length if work.counts is None else length / CHOSEN
    if work.counts is not None:
        _instructions(costs, count(work.counts, len(work.outer))[0], lists * length / isa.lanes, isa)
    costs.add("ranked", lists * candidates * SORTED_LEVELS)
    kept = min(limit, candidates)
    vectors = lists * candidates * max(kept / isa.lanes / 2, 1.0)
    _instructions(costs, COMPARISON, vectors, isa)
    costs.add("stored", lists * limit / isa.lanes)
    return int(lists * length)


def _fourier_part(
    costs: KernelWork, scheduled: fourier_parts.ScheduledFourierPart, isa: Isa, binding: Binding
) -> int:  # fmt: skip
    work = scheduled.work
    rows = dims.evaluate(dims.product(work.outer), binding)
    if not rows:
        return 0
    part = scheduled.lanes * work.real.dtype.itemsize / isa.vector_bytes
    costs.add("transformed", rows * scheduled.pieces * scheduled.vectors * (1 + part) / 2)
    costs.add("transforms", rows * scheduled.pieces)
    for body in work.bodies():
        each, _ = count(body, len(work.outer))
        _instructions(costs, each, rows * work.length / isa.lanes, isa)
    costs.flops += 5.0 * rows * points_of(work) * sum(math.log2(step.radix) for step in scheduled.here)
    return rows * work.length if scheduled.part.part != "nan" else rows


AMOUNTS: dict[type[Any], tuple[str, Callable[[KernelWork, Any, Isa, Binding], int]]] = {
    gemm.ScheduledMatmul: ("product", _gemm),
    winograd.ScheduledWinograd: ("convolution", _winograd),
    attention.ScheduledAttention: ("attention", _attention),
    transpose.ScheduledTranspose: ("move", _transpose),
    repeat.ScheduledRepeats: ("move", _repeats),
    loops.ScheduledLoops: ("elementwise", _nest),
    fourier.ScheduledFourier: ("transform", _fourier),
    fourier_parts.ScheduledFourierPart: ("transform", _fourier_part),
    irregular.ScheduledIrregular: ("order", _irregular),
    suppression.ScheduledSuppression: ("order", _suppression),
}
"""The kind of each scheduled kernel, and what it does at known dims; the numbers of points come back."""
