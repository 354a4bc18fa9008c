"""Passes over a row that find the place of its greatest or least element (argmax, argmin)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.codegen.simd.body import lane_mask, uses_axis
from rlx.codegen.simd.extrema import Extremum
from rlx.codegen.simd.reductions import identity_literal
from rlx.codegen.simd.registers import Vector
from rlx.kernel.ir.loops import Reduce

if TYPE_CHECKING:
    from rlx.codegen.simd.nest_writer import NestWriter


def argument_pass(writer: NestWriter, number: int, stage: Reduce) -> None:
    """One pass over the row for the statement `number`, whose result is the place of an extremum."""
    axis = writer.inner_axes[0]
    for _ in writer.side_by_side():
        writer.body.hoist([stage.body], lambda n: uses_axis(n, {axis}), {axis})
    if writer.scheduled.across:
        _across(writer, number, stage, axis)
    else:
        _along(writer, number, stage, axis)


def _across(writer: NestWriter, number: int, stage: Reduce, axis: int) -> None:
    """For every lane of the vectors side by side, one row of them after the other."""
    extent = writer.nest.inner[0]
    extremum = Extremum(writer.body, stage, extent)
    worst = identity_literal(writer.body, stage.combine, stage.body.dtype, True)

    def one(position: str, values: list[str]) -> list[str]:
        candidates: list[str] = []
        writer.body.push()
        writer.body.axes[axis] = position
        writer.fetch_ahead([number], axis, position)
        places = extremum.places(position, 0)
        for part in writer.side_by_side():
            value = writer.body.splat(writer.body.gen(stage.body)).name
            candidates += extremum.taken((values[2 * part], values[2 * part + 1]), value, places)
        writer.body.pop()
        return candidates

    start = extremum.start(worst, 0, 0) * len(writer.parts)
    results = writer.f.loop("0", writer.f.dim(extent), 1, start, one)
    for part in writer.side_by_side():
        writer.body.rows[number] = extremum.result(results[2 * part + 1], True)


def _along(writer: NestWriter, number: int, stage: Reduce, axis: int) -> None:
    """Vectors along the row, some in flight; each lane keeps its best."""
    f, body = writer.f, writer.body
    extent = f.dim(writer.nest.inner[0])
    extremum = Extremum(body, stage, writer.nest.inner[0])
    worst = identity_literal(body, stage.combine, stage.body.dtype, True)
    unroll = writer.scheduled.in_flight(number)
    wide = writer.lanes * unroll
    whole = f.mul(f.divide(extent, str(wide)), str(wide))

    def visit(position: str, mask: str | None, best: list[str]) -> list[str]:
        body.push()
        body.axes[axis] = position
        body.vector = Vector(axis, mask)
        value = body.splat(body.gen(stage.body)).name
        body.vector = None
        body.pop()
        return [*extremum.taken((best[0], best[1]), value, extremum.places(position, 1), mask)]

    def step(position: str, best: list[str]) -> list[str]:
        ats = [f.add(position, str(part * writer.lanes)) for part in range(unroll)]
        return [v for part, at in enumerate(ats) for v in visit(at, None, best[2 * part : 2 * part + 2])]

    def masked(position: str, best: list[str]) -> list[str]:
        return visit(position, lane_mask(body, f.sub(extent, position)), best)

    start = [item for part in range(unroll) for item in extremum.start(worst, part * writer.lanes, 1)]
    best = f.loop("0", whole, wide, start, step)
    best_lanes = best[0], best[1]
    for part in range(1, unroll):
        best_lanes = extremum.joined(best_lanes, (best[2 * part], best[2 * part + 1]))
    best = f.loop(whole, extent, writer.lanes, list(zip(extremum.kinds, best_lanes)), masked)
    writer.body.rows[number] = extremum.result(extremum.across_lanes((best[0], best[1])), False)
