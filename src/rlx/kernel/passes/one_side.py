"""Choices between two sides that are alike become one side, whose loads choose where they read.

A concatenation that is a choice (`passes/joins.py`) has two sides, of which every element needs one. Where both do the
same to other elements, as the halves of rotary positions do, that is done once: x where c, else y becomes f(z), z read
at a place that depends on c. On GPUs, whose lanes would do both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.expr import INSTRUCTIONS, Expr
from rlx.ir.rewriting import Context
from rlx.kernel.ir.index import Access, Linear, dim_value, linear, load, offset_of
from rlx.kernel.ir.index import axis as axis_of
from rlx.kernel.ir.loops import LoopNest, Statement, Store
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.slots import nest_on_slots
from rlx.kernel.passes.driver import KernelPass

COMMUTATIVE = frozenset(("add", "mul"))
MOST_NODES = 200
"""Of both sides together, each of which is looked at."""


class OneSide(KernelPass):
    """Joins the sides of choices in nests."""

    name = "one-side"

    def run(self, program: Program, context: Context) -> None:
        for number, kernel in enumerate(program.main):
            if not isinstance(kernel.work, LoopNest):
                continue
            made = _with_one_side(program, kernel)
            if made is not kernel and self.spend(context, "one-side", kernel):
                program.main[number] = made


def _with_one_side(program: Program, kernel: Kernel) -> Kernel:
    """A kernel whose bodies have no two sides that are alike."""
    nest = kernel.work
    assert isinstance(nest, LoopNest)
    extents = nest.extents()

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind != "select":
            return None
        condition, one, other = args
        found = _as_comparison(program, kernel, condition, extents)
        return None if found is None else _joined(found, one, other)

    def changed(statement: Statement) -> Statement:
        body = ex.rewrite(statement.body, rule)
        return statement if body is statement.body else dataclasses.replace(statement, body=body)

    statements = tuple(changed(statement) for statement in nest.statements)
    if all(new is old for new, old in zip(statements, nest.statements)):
        return kernel
    made = dataclasses.replace(nest, statements=statements)
    read = {node.attr.slot for node in ex.walk(_needed(statements)) if node.kind == "load"}
    slots = tuple(b for slot, b in enumerate(kernel.slots) if slot < kernel.writes or slot in read)
    return dataclasses.replace(kernel, work=nest_on_slots(made, kernel.slots, slots), slots=slots)


def _needed(statements: tuple[Statement, ...]) -> list[Expr]:
    return [e for s in statements for e in (s.needs() if isinstance(s, Store) else (s.body,))]


def _as_comparison(program: Program, kernel: Kernel, condition: Expr, extents: tuple[object, ...]) -> Expr | None:
    """A condition that compares places; a table of constants that is true up to some place is one, too."""
    if condition.kind in ("lt", "le"):
        return condition
    if condition.kind != "load" or condition.attr.guarded:
        return None
    line, table = offset_of(condition), program.constants.get(kernel.slots[condition.attr.slot])
    if table is None or line.const != 0 or line.others or len(line.axes) != 1 or line.axes[0][1] != 1:
        return None
    (axis, _), values = line.axes[0], np.asarray(table).ravel()
    count = int(np.count_nonzero(values))
    if extents[axis] != len(values) or not values[:count].all():
        return None
    return ex.apply("lt", axis_of(axis), ex.const(count, dtypes.i64))


def _joined(condition: Expr, one: Expr, other: Expr) -> Expr | None:
    """Both sides as one, if less is loaded by it."""
    if len(ex.walk([one, other])) > MOST_NODES:
        return None
    spared: set[Expr] = set()
    one, other = _assuming(one, condition, True, spared), _assuming(other, condition, False, spared)
    made = _Sides(condition, spared).joined(one, other)
    before, after = _loads(one, other), _loads(made)
    return made if after < before else None


def _loads(*roots: Expr) -> int:
    return sum(node.kind == "load" for node in ex.walk(roots))


def _assuming(body: Expr, condition: Expr, holds: bool, spared: set[Expr]) -> Expr:
    """A body where a comparison is known to hold, or not to. `spared` takes loads whose guards the comparison was part
    of."""

    def known(test: Expr) -> bool | None:
        if test is condition:
            return holds
        return not holds if _is_opposite(test, condition) else None

    def left_of(guard: Expr) -> Expr | None:
        """What of a guard is not known to hold; None where all of it does."""
        if guard.kind != "and":
            return None if known(guard) else guard
        parts = [part for part in map(left_of, guard.args) if part is not None]
        if len(parts) == 2:
            return ex.apply("and", *parts)
        return parts[0] if parts else None

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind == "select" and (truth := known(args[0])) is not None:
            return args[1] if truth else args[2]
        if node.kind == "load" and node.attr.guarded:
            rest = left_of(args[0])
            made = load(node.attr.slot, _place(args[1:], node.attr), node.dtype, rest)
            if rest is not args[0]:
                spared.add(made)
            return made
        return None

    return ex.rewrite(body, rule)


def _place(others: Iterable[Expr], access: Access) -> Linear:
    return Linear(access.const, access.axes, tuple(zip(others, access.scales)))


def _is_opposite(test: Expr, condition: Expr) -> bool:
    """Whether one comparison of integers holds exactly where another does not."""
    one, other = _margin(test), _margin(condition)
    return one is not None and other is not None and _difference(one, other.times(-1)) == -1


def _margin(test: Expr) -> Linear | None:
    """What is not negative exactly where a comparison of integers holds."""
    if test.kind not in ("lt", "le") or not test.args[0].dtype.is_integer:
        return None
    low, high = (linear(arg) for arg in test.args)
    return high.plus(low.times(-1)).plus(Linear(-1 if test.kind == "lt" else 0))


def _difference(one: Linear, other: Linear) -> int | None:
    """What one index is more than another, if that is a number."""
    apart = one.plus(other.times(-1))
    return apart.const if not apart.axes and not apart.others and isinstance(apart.const, int) else None


class _Sides:
    """Two sides of a choice, joined from their results to their loads. What stays a choice has both its sides computed,
    so that its loads that were `spared` the condition have it as a guard again."""

    def __init__(self, condition: Expr, spared: set[Expr]) -> None:
        self.condition, self.spared = condition, spared
        low, high = condition.args
        self.opposite = ex.apply("le" if condition.kind == "lt" else "lt", high, low)
        self.made: dict[tuple[Expr, Expr], Expr] = {}

    def joined(self, one: Expr, other: Expr) -> Expr:
        found = self.made.get((one, other))
        if found is None:
            found = self.made[one, other] = self._joined(one, other)
        return found

    def _joined(self, one: Expr, other: Expr) -> Expr:
        if one is other:
            return one
        if one.kind == "load" == other.kind:
            read = self._read(one, other)
            return self._chosen(one, other) if read is None else read
        if {one.kind, other.kind} == {"add", "sub"} and one.dtype.is_float:  # a - b is a + -b, to the bit
            one, other = (ex.apply("add", n.args[0], -n.args[1]) if n.kind == "sub" else n for n in (one, other))
        if "neg" in (one.kind, other.kind) and one.kind != other.kind:
            inner = self.joined(*(n.args[0] if n.kind == "neg" else n for n in (one, other)))
            return self._chosen(-inner if one.kind == "neg" else inner, -inner if other.kind == "neg" else inner)
        if one.kind != other.kind or one.attr != other.attr or len(one.args) != len(other.args) or not one.args:
            return self._chosen(one, other)
        if one.kind not in INSTRUCTIONS:
            return self._chosen(one, other)
        orders = [other.args, other.args[::-1]] if one.kind in COMMUTATIVE else [other.args]
        tried = [self._of(one, tuple(map(self.joined, one.args, order))) for order in orders]
        return min(tried, key=_loads)

    @staticmethod
    def _of(node: Expr, args: tuple[Expr, ...]) -> Expr:
        return Expr(node.kind, node.dtype, args, node.attr)

    def _chosen(self, one: Expr, other: Expr) -> Expr:
        return ex.select(self.condition, self._alone(one, self.condition), self._alone(other, self.opposite))

    def _alone(self, side: Expr, condition: Expr) -> Expr:
        """A side that is computed even where the other is chosen."""

        def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
            if node not in self.spared:
                return None
            guard, others = (args[0], args[1:]) if node.attr.guarded else (None, args)
            both = condition if guard is None else ex.apply("and", condition, guard)
            return load(node.attr.slot, _place(others, node.attr), node.dtype, both)

        return ex.rewrite(side, rule)

    def _read(self, one: Expr, other: Expr) -> Expr | None:
        """One load in the place of two, if these differ by a number of elements."""
        same = one.attr.slot == other.attr.slot and one.attr.guarded == other.attr.guarded
        if not same or (one.attr.guarded and one.args[0] is not other.args[0]):
            return None
        place = offset_of(other)
        apart = _difference(offset_of(one), place)
        if apart is None:
            return None
        switch = ex.select(self.condition, dim_value(1), dim_value(0))
        moved = place.plus(Linear(0, (), ((switch, apart),)))
        return load(one.attr.slot, moved, one.dtype, one.args[0] if one.attr.guarded else None)
