"""Rows of a product that lie along several axes become one axis: the images and positions of a convolution, of which a
tile then has as many as it takes. Where a row lies is worked out by divisions, once for each row of a tile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.axes import renumber_linear, renumber_statement, speaks_of
from rlx.kernel.ir.contraction import Bound, Contraction
from rlx.kernel.ir.index import Linear, axis, dim_value, linear, load, offset_of
from rlx.kernel.ir.loops import Store
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.passes.driver import LeafPass
from rlx.kernel.passes.pack import joined_taps


class FlatRows(LeafPass):
    """Makes one axis of the rows of products that the target `wants` so."""

    name = "flat-rows"

    def __init__(self, wants: Callable[[Contraction], bool]) -> None:
        self.wants = wants

    def matches(self, program: Program, kernel: Kernel) -> str | None:
        if not isinstance(kernel.work, Contraction):
            return None
        flat = flattened(joined_taps(kernel.work))
        return "rows" if flat != kernel.work and self.wants(flat) else None

    def replace(self, program: Program, kernel: Kernel) -> Sequence[Kernel]:
        assert isinstance(kernel.work, Contraction)
        return [dataclasses.replace(kernel, work=flattened(joined_taps(kernel.work)))]


def flattened(work: Contraction) -> Contraction:
    """The same product with one axis for all rows that have the same right side, and without taps of one place."""
    right = [e for e, _ in work.b.others]
    rows = [i for i in range(len(work.batch)) if work.b.coefficient(i) == 0 and not speaks_of(right, i)]
    rows.append(work.m_axis)
    taps = [i for i, extent in zip(work.tap_axes, work.taps) if extent != 1]
    kept = [i for i in range(len(work.batch)) if i not in rows]
    order = [*kept, work.m_axis, work.n_axis, *taps, work.k_axis]
    if len(order) == len(work.extents()):
        return work
    single = {i: Linear() for i, extent in zip(work.tap_axes, work.taps) if extent == 1}
    moved = _Rows([(i, work.extents()[i]) for i in rows], single)
    renumber = {old: new for new, old in enumerate(order)}

    def line(given: Linear) -> Linear:
        return renumber_linear(moved.line(given), renumber)

    stores = [Store(s.slot, moved.line(s.offset), moved.expr(s.body), s.per_element) for s in work.epilogue]
    epilogue = [renumber_statement(store, renumber) for store in stores]
    return dataclasses.replace(
        work,
        batch=tuple(work.batch[i] for i in kept),
        m=dims.product(work.extents()[i] for i in rows),
        a=line(work.a),
        b=line(work.b),
        epilogue=tuple(store for store in epilogue if isinstance(store, Store)),
        taps=tuple(work.extents()[i] for i in taps),
        bounds=tuple(Bound(line(bound.position), bound.extent) for bound in work.bounds),
    )


class _Rows:
    """What positions along `axes`, with their extents, are in terms of one position along all of them, which has the
    number of the last axis; and along axes of one place."""

    def __init__(self, axes: Sequence[tuple[int, Dim]], single: Mapping[int, Linear]) -> None:
        self.axes = [(number, extent) for number, extent in axes if extent != 1]
        self.names = {number for number, _ in axes}
        self.single = single
        self.row = axes[-1][0]

    def _place(self, inner: Dim, extent: Dim, first: bool) -> Expr:
        """The position along neighbouring axes of some extent, inside of which others have `inner` positions."""
        at = axis(self.row)
        if inner != 1:
            at = at / dim_value(inner)
        return at if first else ex.apply("rem", at, dim_value(extent))

    def line(self, given: Linear) -> Linear:
        """An offset. Neighbouring axes along which it goes on in equal steps need no division among them."""
        others = tuple((self.expr(e), c) for e, c in given.others)
        made = Linear(given.const, (), others)
        for number, coefficient in given.axes:
            if number not in self.names and number not in self.single:
                made = made.plus(Linear(0, ((number, coefficient),)))
        inner: Dim = 1
        last = len(self.axes) - 1
        while last >= 0:
            step = given.coefficient(self.axes[last][0])
            first, extent = last, self.axes[last][1]
            while first > 0 and given.coefficient(self.axes[first - 1][0]) == dims.mul(step, extent):
                first -= 1
                extent = dims.mul(extent, self.axes[first][1])
            made = made.plus(linear(self._place(inner, extent, first == 0)).times(step))
            inner = dims.mul(inner, extent)
            last = first - 1
        return made

    def expr(self, body: Expr) -> Expr:
        """A body, with what it loads and the positions that it speaks of."""

        def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
            if node.kind == "axis" and node.attr in self.names:
                return self._position(node.attr)
            if node.kind == "load":
                guard = args[0] if node.attr.guarded else None
                seen = offset_of(node)
                scaled = zip(args[1:] if guard is not None else args, (c for _, c in seen.others))
                line = self.line(Linear(seen.const, seen.axes))
                return load(node.attr.slot, line.plus(Linear(0, (), tuple(scaled))), node.dtype, guard)
            return None

        return ex.rewrite(body, rule)

    def _position(self, number: int) -> Expr:
        """The position along one axis."""
        inner: Dim = 1
        for place in reversed(range(len(self.axes))):
            of, extent = self.axes[place]
            if of == number:
                return self._place(inner, extent, place == 0)
            inner = dims.mul(inner, extent)
        return dim_value(0)  # of one place
