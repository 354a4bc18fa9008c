"""Loops whose trips mix no rows: where the rows lie, and the kernels of a body for some of the rows alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.control import Loop, RowCut
from rlx.kernel.ir.index import Linear, offset_of
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Program, storage_roots
from rlx.kernel.ir.work import Work

_NAME = "__rows__"
ROWS = dims.symbol(_NAME)
"""How many rows a kernel for some of them has."""

LEAST_ROWS = 2
"""Of a part of a loop: a product of one row takes as long as of two, the time to read the weights."""


def of_rows(work: Work, rows: Dim) -> LoopNest | Contraction:
    """The same work on `ROWS` of its `rows` rows, from where its buffers then begin."""
    if isinstance(work, Contraction):
        return dataclasses.replace(work, m=ROWS)
    assert isinstance(work, LoopNest)  # `cut_of` takes no other
    inside = dims.exact_div(work.outer[0], rows)
    assert inside is not None  # as `cut_of` found it
    return dataclasses.replace(work, outer=(dims.mul(ROWS, inside), *work.outer[1:]))


def cut_of(program: Program, loop: Loop) -> RowCut | None:
    """How a loop comes apart by the rows of the products in its body; None if a trip may mix rows, or has too few.

    No trip does if every kernel counts rows by its first axis, and all that the loop writes and then reads it finds in
    the very row: rows of a buffer have the same step wherever it is used, and no offset reaches beyond its row.
    """
    heights = {k.work.m for k in loop.body if isinstance(k.work, Contraction) and not k.work.batch}
    if len(heights) != 1 or loop.condition is not None or not all(_is_plain(kernel.work) for kernel in loop.body):
        return None
    (rows,) = heights
    if isinstance(rows, int) and rows < 2 * LEAST_ROWS:
        return None
    written = _written(program, loop)
    steps: dict[int, Dim] = {}
    for kernel in loop.body:
        inside = _inside(kernel.work, rows)
        if inside is None:
            return None
        for slot, line, extents in _places(kernel.work):
            number = kernel.slots[slot]
            step = dims.mul(line.coefficient(0), inside)
            mine = bool(storage_roots(program, number) & written)
            if steps.setdefault(number, step) != step or line.others:
                return None
            if mine and (number in program.aliases or not _is_within(line, extents, step)):
                return None
    known = {n: step for n, step in steps.items() if storage_roots(program, n) & written}
    for carried in loop.carried:
        step = known.get(carried.following, 0)
        if step == 0 or known.get(carried.now, step) != step:
            return None
    by_root: dict[int, Dim] = {}
    for number, step in known.items():
        for root in storage_roots(program, number) & written:
            if by_root.setdefault(root, step) != step:
                return None
    return RowCut(rows, tuple((number, step) for number, step in steps.items() if step != 0))


def whole(dim: Dim, rows: Dim) -> Dim:
    """A dim where all `rows` are computed."""
    return dims.substitute(dim, {_NAME: rows})


def _is_plain(work: Work) -> bool:
    """Whether the first axis can be cut: a product of one matrix, or a nest whose bodies do not ask where they are."""
    if isinstance(work, Contraction):
        plain = not work.batch and not work.taps and not work.bounds and work.blocks is None and not work.above
    else:
        plain = isinstance(work, LoopNest) and bool(work.outer)
    return plain and not any(node.kind == "axis" and node.attr == 0 for node in ex.walk(list(work.bodies())))


def _inside(work: Work, rows: Dim) -> Dim | None:
    """Positions of the first axis in a row."""
    if isinstance(work, Contraction):
        return 1
    assert isinstance(work, LoopNest)
    return dims.exact_div(work.outer[0], rows) if rows != 0 else None


def _written(program: Program, loop: Loop) -> set[int]:
    """The memory that a loop writes."""
    numbers = {number for kernel in loop.body for number in kernel.slots[: kernel.writes]}
    return {root for number in numbers for root in storage_roots(program, number)}


def _places(work: Work) -> Iterator[tuple[int, Linear, Shape]]:
    """Slots that work reads and writes, where, and the extents of the axes."""
    for place in (*work.reads(), *work.writes()):
        yield place.slot, place.offset, place.extents or work.extents()
    for node in work.loads():
        yield node.attr.slot, offset_of(node), work.extents()


def _is_within(line: Linear, extents: Shape, step: Dim) -> bool:
    """Whether offsets stay in one of the rows that are `step` apart."""
    far, coefficient = line.const, line.coefficient(0)
    if step == 0 or dims.bounds(far, {})[0] < 0:
        return False
    if coefficient != step:  # several positions of the first axis make a row: all of it, side by side
        return far == 0 and dims.bounds(coefficient, {})[0] >= 0 and all(number == 0 for number, _ in line.axes)
    for number, of in line.axes:
        if number != 0:
            if dims.bounds(of, {})[0] < 0:
                return False
            far = dims.add(far, dims.mul(of, dims.add(extents[number], -1)))
    return dims.bounds(dims.add(step, dims.mul(far, -1)), {})[0] >= 1
