"""Short windows that move along an axis, several positions at a time: what the windows of neighbours share is loaded
once. A depthwise convolution would otherwise load two vectors for each product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.axes import replaced_expr, replaced_linear
from rlx.kernel.ir.index import Linear
from rlx.kernel.ir.loops import LoopNest, Reduce, Statement, Store
from rlx.kernel.schedule.overrides import unfit

LONGEST = 7
"""Steps along an inner axis that are written out one by one; longer axes are loops."""
MOST_STEPS = 9
"""Steps along several axes that are: of larger windows each row is a turn of a loop, as code takes time to compile."""
LEAST_STEPS = 3
"""Of a window whose neighbours share anything worth while."""
AT_A_TIME = (4, 7, 6, 5, 3, 2)
"""Positions at a time, the best first, of wide windows more first: each has a sum, and the window in front of them
slides. Registers are no bound: with 16 of them, seven positions of rows of 7 and 14 are 1.2 to 1.4 times as fast as
four and a rest."""
ENOUGH, MOST = 3, 16


def is_written_out(nest: LoopNest) -> bool:
    """Whether all steps of a row are written out one by one."""
    return all(isinstance(extent, int) and extent <= LONGEST for extent in nest.inner)


def are_steps_written_out(extents: Sequence[Dim]) -> bool:
    """Whether the steps along an inner axis are written out, with all axes within it."""
    if len(extents) > 1 and not (isinstance(steps := dims.product(extents), int) and steps <= MOST_STEPS):
        return False
    return all(isinstance(extent, int) and extent <= LONGEST for extent in extents)


def are_in(nest: LoopNest) -> bool:
    """Whether several positions along the last outer axis but one may be worked on together, and share what they
    load."""
    if len(nest.outer) < 2 or not nest.inner or not is_written_out(nest) or nest.outer[-2] == 1:
        return False
    steps = dims.product(nest.inner)
    assert isinstance(steps, int)  # all steps are written out
    return steps >= LEAST_STEPS and all(_is_plain(statement) for statement in nest.statements) and _shares(nest)


def positions_at_a_time(nest: LoopNest) -> int:
    """How many of them: so many that none is left, if that can be."""
    extent = nest.outer[-2]
    wide = isinstance(nest.inner[-1], int) and nest.inner[-1] >= LONGEST
    choices = sorted(AT_A_TIME, reverse=True) if wide else AT_A_TIME
    if isinstance(extent, int):
        even = next((count for count in choices if extent % count == 0 and count >= ENOUGH), 0)
        return even or min(choices[0], extent)
    return choices[0]


def check(count: Dim) -> None:
    """Raises RlxError for a number set by hand that is too large."""
    if not isinstance(count, int) or not 0 < count <= MOST:
        raise unfit("windows", "register", "positions", count, f"of at most {MOST}")


def _is_plain(statement: Statement) -> bool:
    if isinstance(statement, Reduce):
        return not statement.argument
    return isinstance(statement, Store) and not statement.per_element


def _shares(nest: LoopNest) -> bool:
    """Whether neighbours load anything that is the same, and nothing that asks where it is."""
    axis = len(nest.outer) - 2
    loads = [n for n in ex.walk([s.body for s in nest.statements if isinstance(s, Reduce)]) if n.kind == "load"]
    return any(n.attr.coefficient(axis) == 0 for n in loads) and not any(n.attr.guarded or n.args for n in loads)


def together(nest: LoopNest, count: int) -> LoopNest:
    """The nest with so many positions along the last outer axis but one in one: each statement stands there for each
    of them. Where the axis is no multiple of them the last ones must be left out."""
    axis = len(nest.outer) - 2
    statements: list[Statement] = []
    for statement in nest.statements:
        for number in range(count):
            places = {axis: Linear(number, ((axis, count),))}
            statements.append(_at(statement, places, count, number))
    outer = (*nest.outer[:axis], dims.ceildiv(nest.outer[axis], count), nest.outer[-1])
    return LoopNest(outer, nest.inner, tuple(statements))


def _at(statement: Statement, places: dict[int, Linear], count: int, number: int) -> Statement:
    def of_its_own(node: Expr, _: tuple[Expr, ...]) -> Expr | None:
        return Expr("row", node.dtype, (), node.attr * count + number) if node.kind == "row" else None

    body = ex.rewrite(replaced_expr(statement.body, places), of_its_own)
    if isinstance(statement, Reduce):
        return Reduce(statement.combine, body, statement.dtype)
    assert isinstance(statement, Store)  # of a plain nest
    return Store(statement.slot, replaced_linear(statement.offset, places), body, statement.per_element)


def only_sums(statements: Iterable[Statement]) -> bool:
    """Whether a pass writes nothing, so that what was loaded stays what it was."""
    return all(isinstance(statement, Reduce) for statement in statements)
