"""Pads, as one kernel for what lies inside and short ones for the borders: no element asks where it is.

The map of a pad chooses between an element and a number by tests on single axes. Inside of all tests it is a plain map,
which may go in vectors or in squares as any other; each border is a map of one number.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.axes import MOST_NESTS, collapse, replaced_expr, replaced_linear
from rlx.kernel.ir.index import Linear, linear
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.passes.driver import LeafPass
from rlx.records import dataclass


@dataclass(frozen=True)
class _Inside:
    """Elements before and behind the inside, by axis."""

    before: dict[int, int]
    behind: dict[int, int]


class Borders(LeafPass):
    """Splits maps of pads."""

    name = "borders"

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        return "split" if isinstance(kernel.work, LoopNest) and _split(kernel.work) else None

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        assert isinstance(kernel.work, LoopNest)
        *borders, inner = _split(kernel.work)
        return [
            *(Kernel("border", nest, kernel.slots[:1], 1, kernel.sources) for nest in borders),
            dataclasses.replace(kernel, work=inner),
        ]


@lru_cache(MOST_NESTS)
def _split(work: LoopNest) -> tuple[LoopNest, ...]:
    """The borders of a pad, and what lies inside; nothing if the nest is not the map of one."""
    inside = _inside(work)
    if inside is None:
        return ()
    (store,) = work.stores()
    guard, chosen, fill = store.body.args
    extents = list(work.outer)
    places: dict[int, Linear] = {}
    borders: list[LoopNest] = []
    for number in sorted(inside.before.keys() | inside.behind.keys()):
        low, high = inside.before.get(number, 0), inside.behind.get(number, 0)
        length, full = dims.add(extents[number], -low - high), extents[number]
        sides: list[tuple[int, Dim]] = [(low, 0)] if low else []
        sides += [(high, dims.add(full, -high))] if high else []
        for thick in dict.fromkeys(size for size, _ in sides):
            extents[number] = thick
            stores = []
            for size, start in sides:
                if size == thick:
                    at = places | {number: Linear(start, ((number, 1),))}
                    stores.append(Store(store.slot, replaced_linear(store.offset, at), fill, False))
            borders.append(collapse(LoopNest(tuple(extents), (), tuple(stores))))
        extents[number] = length
        places[number] = Linear(low, ((number, 1),))
    body = replaced_expr(_without_guard(chosen, guard), places)
    inner = LoopNest(tuple(extents), (), (Store(store.slot, replaced_linear(store.offset, places), body, False),))
    return (*borders, collapse(inner))


def _inside(work: LoopNest) -> _Inside | None:
    """Where the tests of a pad hold, if the nest is the map of one."""
    if work.inner or len(work.statements) != 1:
        return None
    (store,) = work.stores()
    if store.body.kind != "select" or store.body.args[2].kind != "const" or store.offset.others:
        return None
    inside = _Inside({}, {})
    tests = [store.body.args[0]]
    while tests:
        test = tests.pop()
        if test.kind == "and":
            tests += test.args
        elif not _noted(test, work, inside):
            return None
    return inside


def _noted(test: Expr, work: LoopNest, inside: _Inside) -> bool:
    """Whether a test bounds one axis, by a known number of elements from an end of it; notes that."""
    if test.kind not in ("le", "lt") or len(test.args) != 2:
        return False
    left, right = (linear(part) for part in test.args)
    if left.others or right.others:
        return False
    strict = 1 if test.kind == "lt" else 0
    if not left.axes and len(right.axes) == 1:  # at least so much
        ((number, step),) = right.axes
        count = dims.add(dims.add(left.const, dims.mul(right.const, -1)), strict)
        side = inside.before
    elif not right.axes and len(left.axes) == 1:  # below so much
        ((number, step),) = left.axes
        end = dims.add(dims.add(right.const, dims.mul(left.const, -1)), 1 - strict)
        count = dims.add(work.outer[number], dims.mul(end, -1))
        side = inside.behind
    else:
        return False
    if step != 1 or not isinstance(count, int) or count < 0:
        return False
    side[number] = max(side.get(number, 0), count)
    return _fits(work.outer[number], inside.before.get(number, 0) + inside.behind.get(number, 0))


def _fits(extent: Dim, count: int) -> bool:
    """Whether an axis has so many elements, at every size that it may have."""
    return dims.bounds(dims.add(extent, -count), {})[0] >= 0


def _without_guard(body: Expr, guard: Expr) -> Expr:
    """A body as it is where the guard holds."""

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind == "load" and node.attr.guarded and node.args[0] == guard:
            return Expr("load", node.dtype, args[1:], dataclasses.replace(node.attr, guarded=False))
        return None

    return ex.rewrite(body, rule)
