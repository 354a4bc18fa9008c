"""Elements that repeat, as nearest resizing by whole numbers makes them, without a division: an axis whose position is
asked for only by whole multiples, `axis / 2`, becomes two, and everything is linear again."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.kernel.ir.axes import MOST_NESTS, bodies_of, collapse, replaced_expr, replaced_linear, speaks_of
from rlx.kernel.ir.index import Linear, axis, linear, load
from rlx.kernel.ir.loops import LoopNest, Statement, Store
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.passes.driver import LeafPass


class Repeats(LeafPass):
    """Splits axes of loop nests."""

    name = "repeats"

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        return "split" if isinstance(kernel.work, LoopNest) and _split(kernel.work) != kernel.work else None

    def replace(self, program: Program, kernel: Kernel) -> list[Kernel]:
        assert isinstance(kernel.work, LoopNest)
        return [dataclasses.replace(kernel, work=_split(kernel.work))]


@lru_cache(MOST_NESTS)
def _split(nest: LoopNest) -> LoopNest:
    """The nest with all axes split that can be, if the last is among them; else itself: a division by a known number is
    less work for each row than to find where one is on two more axes."""
    last = len(nest.outer) - 1
    split = nest
    for number, count in sorted(_divided(nest), reverse=True):  # so that those to come keep their numbers
        if split is nest and number != last:
            return nest
        split = _along(split, number, count) or split
    return nest if split is nest else collapse(split)


def _divided(nest: LoopNest) -> set[tuple[int, int]]:
    """Outer axes of which a multiple is asked for, and how many positions have the same."""
    found = ((_multiple(node), node) for node in ex.walk(bodies_of(nest.statements)))
    return {(at, ex.value_of(node.args[1])) for at, node in found if at is not None and at < len(nest.outer)}


def _multiple(node: Expr) -> int | None:
    """The axis whose position an expression divides by a number, if that is what it does."""
    if node.kind != "div" or node.dtype is not dtypes.i64 or node.args[1].kind != "const":
        return None
    line = linear(node.args[0])
    is_axis = line.const == 0 and not line.others and len(line.axes) == 1 and line.axes[0][1] == 1
    return line.axes[0][0] if is_axis and ex.value_of(node.args[1]) > 1 else None


def _along(nest: LoopNest, number: int, count: int) -> LoopNest | None:
    """The nest with an axis as two: of multiples, and of `count` positions each; None where anything but results asks
    for the position itself."""
    quotient = dims.exact_div(nest.outer[number], count)
    if quotient is None:
        return None
    multiple = axis(len(nest.extents()))  # a number that no axis has, until all are numbered anew

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if _multiple(node) == number and ex.value_of(node.args[1]) == count:
            return multiple
        if node.kind != "load" or args == node.args:
            return None
        guard, others = (args[0], args[1:]) if node.attr.guarded else (None, args)
        line = Linear(node.attr.const, node.attr.axes)
        for part, scale in zip(others, node.attr.scales):
            line = line.plus(linear(part).times(scale))
        return load(node.attr.slot, line, node.dtype, guard)

    statements = [dataclasses.replace(s, body=ex.rewrite(s.body, rule)) for s in nest.statements]
    guards = [s.guard for s in nest.stores() if s.guard is not None]
    offsets = [e for s in nest.stores() for e, _ in s.offset.others]
    if speaks_of([*(s.body for s in statements), *guards, *offsets], number):
        return None
    places = {later: Linear(0, ((later + 1, 1),)) for later in range(number + 1, len(nest.extents()))}
    places[number] = Linear(0, ((number, count), (number + 1, 1)))
    places[multiple.attr] = Linear(0, ((number, 1),))

    def placed(statement: Statement) -> Statement:
        changed = dataclasses.replace(statement, body=replaced_expr(statement.body, places))
        if not isinstance(changed, Store):
            return changed
        guard = None if changed.guard is None else replaced_expr(changed.guard, places)
        return dataclasses.replace(changed, offset=replaced_linear(changed.offset, places), guard=guard)

    outer = (*nest.outer[:number], quotient, count, *nest.outer[number + 1 :])
    return LoopNest(outer, nest.inner, tuple(map(placed, statements)))
