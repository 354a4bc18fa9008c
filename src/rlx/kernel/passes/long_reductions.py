"""Reductions of few long rows in parts: a nest is shared by rows, so one long row would be one thread's work.

The parts of a row are as many on every machine, so that results do not hang on the number of threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import prod

from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.axes import replaced_expr
from rlx.kernel.ir.index import Linear, contiguous, load, row
from rlx.kernel.ir.loops import LoopNest, Reduce, Statement, Store
from rlx.kernel.ir.program import Buffer, Kernel, Program
from rlx.kernel.passes.driver import LeafPass
from rlx.records import dataclass


@dataclass(frozen=True)
class Parts:
    """Which rows a target takes in parts, and in how many.

    rows     so many rows, at most, keep too little of it busy
    length   elements of a row that is worth several parts
    count    parts of a row, at most; each has `least` elements or more
    """

    rows: int
    length: int
    count: int
    least: int = 1


FOR_THREADS = Parts(rows=4, length=1 << 17, count=32)
FOR_WORKGROUPS = Parts(rows=64, length=1 << 13, count=256, least=1 << 10)
"""A workgroup has a row, and a GPU runs hundreds of them at once."""


class LongReductions(LeafPass):
    """Puts partial results of the parts, one of what is left over, and their sum in the place of such a reduction."""

    name = "long-reductions"

    def __init__(self, wanted: Parts = FOR_THREADS) -> None:
        self.wanted = wanted

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        work = kernel.work
        return "parts" if isinstance(work, LoopNest) and _fits(work, self.wanted) else None

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        work = kernel.work
        assert isinstance(work, LoopNest)
        elements = prod(map(_known, work.inner))
        parts = min(self.wanted.count, _known(work.inner[0]), elements // self.wanted.least)
        length, left = divmod(_known(work.inner[0]), parts)
        slots = parts + (left > 0)
        outer = tuple(_known(extent) for extent in work.outer)
        reduces = [(i, s) for i, s in enumerate(work.statements) if isinstance(s, Reduce)]
        partial = [
            program.new_buffer("temp", stage.dtype, prod(outer) * slots, f"{kernel.name}.parts") for _, stage in reduces
        ]
        partials = [_part(kernel, reduces, partial, slots, 0, parts, length)]
        if left:
            partials.append(_part(kernel, reduces, partial, slots, parts, 1, left, parts * length))
        return [*partials, _join(kernel, reduces, partial, slots)]


def _known(extent: Dim) -> int:
    assert isinstance(extent, int)  # the pass takes known extents
    return extent


def _fits(work: LoopNest, wanted: Parts) -> bool:
    """Few long rows of known length, reduced in one pass."""
    extents = [extent for extent in work.extents() if isinstance(extent, int)]
    if len(extents) < len(work.extents()) or not work.reduces:
        return False
    rows, length = prod(extents[: len(work.outer)]), prod(extents[len(work.outer) :])
    if not 0 < rows <= wanted.rows or length < wanted.length:
        return False
    for stage in work.statements:
        match stage:
            case Reduce(argument=True):
                return False
            case Reduce() if any(node.kind in ("row", "temp") for node in ex.walk([stage.body])):
                return False
            case Store(per_element=False) | Reduce():
                continue
        return False
    return True


def _part(
    kernel: Kernel, reduces: Sequence[tuple[int, Reduce]], partial: Sequence[Buffer], slots: int, first: int,
    parts: int, length: int, start: int = 0,
) -> Kernel:  # fmt: skip
    """The results of `parts` parts of each row, `length` positions of its first axis each, from position `start` on."""
    work = kernel.work
    assert isinstance(work, LoopNest)
    rank = len(work.outer)
    reads = kernel.slots[kernel.writes :]

    # the row's first axis is the part's number and the position inside of it; axes behind it move by one
    places = {number: Linear(0, ((number + 1, 1),)) for number in range(rank + 1, len(work.extents()))}
    places[rank] = Linear(start, ((rank, length), (rank + 1, 1)))

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind != "load":
            return None
        slot = node.attr.slot - kernel.writes + len(partial)
        return Expr("load", node.dtype, args, dataclasses.replace(node.attr, slot=slot))

    bodies = [ex.rewrite(replaced_expr(stage.body, places), rule) for _, stage in reduces]
    statements: list[Statement] = [dataclasses.replace(s, body=body) for (_, s), body in zip(reduces, bodies)]
    steps = contiguous((*work.outer, slots))
    for number, (_, stage) in enumerate(reduces):
        offset = Linear(first, tuple(enumerate(steps)))
        statements.append(Store(number, offset, row(number, stage.dtype), False))
    nest = LoopNest((*work.outer, parts), (length, *work.inner[1:]), tuple(statements))
    numbers = tuple(buffer.number for buffer in partial)
    return Kernel(f"{kernel.name}_parts", nest, (*numbers, *reads), len(partial), kernel.sources)


def _join(kernel: Kernel, reduces: Sequence[tuple[int, Reduce]], partial: Sequence[Buffer], slots: int) -> Kernel:
    """The rows' results from those of their parts, and what is stored of these."""
    work = kernel.work
    assert isinstance(work, LoopNest)
    steps = tuple(enumerate(contiguous((*work.outer, slots))))
    places = {old: new for new, (old, _) in enumerate(reduces)}
    statements: list[Statement] = [
        dataclasses.replace(stage, body=load(len(kernel.slots) + number, Linear(0, steps), stage.dtype))
        for number, (_, stage) in enumerate(reduces)
    ]
    for stage in work.statements:
        if isinstance(stage, Store):
            body = ex.rewrite(stage.body, lambda e, _: row(places[e.attr], e.dtype) if e.kind == "row" else None)
            statements.append(dataclasses.replace(stage, body=body))
    nest = LoopNest(work.outer, (slots,), tuple(statements))
    numbers = tuple(buffer.number for buffer in partial)
    return Kernel(kernel.name, nest, (*kernel.slots, *numbers), kernel.writes, kernel.sources)
