"""Fewer, longer loops: neighbouring axes that every access walks as one become one axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.index import Access, Linear, index_of
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Statement, Store

MOST_NESTS = 1 << 10
"""That are remembered: layers of a net repeat."""


def bodies_of(stages: Sequence[Statement]) -> list[Expr]:
    """What statements evaluate, but for where they store."""
    guards = (s.guard for s in stages if isinstance(s, Store))
    return [*(s.body for s in stages), *(g for g in guards if g is not None)]


def accesses(stages: Sequence[Statement]) -> list[Access | Linear]:
    """Every place that the stages read or write."""
    offsets: list[Access | Linear] = [n.attr for n in ex.walk(bodies_of(stages)) if n.kind == "load"]
    offsets.extend(s.offset for s in stages if isinstance(s, Store))
    return offsets


def bare_axes(stages: Sequence[Statement]) -> set[int]:
    """Axes whose position is used as a number; these cannot be joined with others."""
    axes = {n.attr for n in ex.walk(bodies_of(stages)) if n.kind == "axis"}
    for store in stages:
        if isinstance(store, Store):
            axes |= {n.attr for n in ex.walk([e for e, _ in store.offset.others]) if n.kind == "axis"}
    return axes


def speaks_of(bodies: Iterable[Expr], axis: int) -> bool:
    """Whether expressions depend on the position along an axis: by itself, or by where they load."""
    return any(
        (node.kind == "axis" and node.attr == axis)
        or (node.kind == "load" and any(number == axis for number, _ in node.attr.axes))
        for node in ex.walk(list(bodies))
    )


def joinable(outer: int, extent_of_inner: Dim, places: Sequence[Access | Linear]) -> bool:
    """Whether axes `outer` and `outer + 1` are walked as one by all accesses."""
    return all(p.coefficient(outer) == dims.mul(p.coefficient(outer + 1), extent_of_inner) for p in places)


@lru_cache(MOST_NESTS)
def collapse(nest: LoopNest) -> LoopNest:
    """Joins axes within the outer and within the inner ones, and drops axes of extent 1."""
    extents = [*nest.outer, *nest.inner]
    bare = bare_axes(nest.statements)
    if any(isinstance(s, Reduce) and s.argument for s in nest.statements):
        bare |= set(range(len(nest.outer), len(extents)))
    places = accesses(nest.statements)
    is_inner = [False] * len(nest.outer) + [True] * len(nest.inner)
    groups: list[list[int]] = []
    for number, extent in enumerate(extents):
        if extent == 1 and number not in bare:
            continue
        last = groups[-1][-1] if groups else None
        follows = last is not None and all(extents[i] == 1 for i in range(last + 1, number))
        if (
            last is not None
            and follows
            and is_inner[last] == is_inner[number]
            and not {last, number} & bare
            and all(p.coefficient(last) == dims.mul(p.coefficient(number), extent) for p in places)
        ):
            groups[-1].append(number)
        else:
            groups.append([number])
    renumber = {group[-1]: new for new, group in enumerate(groups)}
    outer = tuple(dims.product(extents[i] for i in g) for g in groups if not is_inner[g[0]])
    inner = tuple(dims.product(extents[i] for i in g) for g in groups if is_inner[g[0]])
    return LoopNest(outer, inner, tuple(renumber_statement(s, renumber) for s in nest.statements))


def renumber_linear(line: Linear, renumber: dict[int, int]) -> Linear:
    """Axes renamed; those that are not in the map are dropped."""
    axes = tuple(sorted((renumber[n], c) for n, c in line.axes if n in renumber))
    return Linear(line.const, axes, tuple((renumber_expr(e, renumber), c) for e, c in line.others))


def renumber_expr(body: Expr, renumber: dict[int, int]) -> Expr:
    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind == "axis":
            return Expr("axis", node.dtype, (), renumber[node.attr])
        if node.kind == "load":
            a: Access = node.attr
            axes = tuple(sorted((renumber[n], c) for n, c in a.axes if n in renumber))
            return Expr("load", node.dtype, args, Access(a.slot, a.const, axes, a.scales, a.guarded))
        return None

    return ex.rewrite(body, rule)


def renumber_statement(stage: Statement, renumber: dict[int, int]) -> Statement:
    body = renumber_expr(stage.body, renumber)
    match stage:
        case Reduce():
            return Reduce(stage.combine, body, stage.dtype, stage.argument, stage.last)
        case RowBuffer():
            return RowBuffer(body)
        case Store():
            guard = None if stage.guard is None else renumber_expr(stage.guard, renumber)
            return Store(stage.slot, renumber_linear(stage.offset, renumber), body, stage.per_element, guard)


Places = Mapping[int, Linear]
"""Positions along axes in terms of other axes, linear."""


def replaced_linear(line: Linear, places: Places) -> Linear:
    """An offset with positions in the place of axes."""
    offset = Linear(line.const, (), tuple((replaced_expr(e, places), c) for e, c in line.others))
    for number, coefficient in line.axes:
        offset = offset.plus(places.get(number, Linear(0, ((number, 1),))).times(coefficient))
    return offset


def replaced_expr(body: Expr, places: Places) -> Expr:
    """A body with positions in the place of axes."""

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind == "axis" and node.attr in places:
            return index_of(places[node.attr])
        if node.kind == "load":
            a: Access = node.attr
            line = replaced_linear(Linear(a.const, a.axes), places)
            return Expr("load", node.dtype, args, Access(a.slot, line.const, line.axes, a.scales, a.guarded))
        return None

    return ex.rewrite(body, rule)
