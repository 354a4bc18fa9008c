"""Loop nests as compute shaders. An invocation takes one outer position and walks its row alone; or, where rows are
long, a workgroup takes one outer position, and its lanes share the row.

Rows are walked once for each group of stages that do not need one another's results (`rows.py`); what a `Temp` stage
would keep is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlx.codegen.scalar.int_ranges import Check, Ranges
from rlx.codegen.simt import piece_nests, transpose
from rlx.codegen.simt.body import Body, legal
from rlx.codegen.simt.code import WORKGROUP, Binding, Code, Shader, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.language import WGSL
from rlx.codegen.simt.language.wgsl.types import PLAIN, Target
from rlx.codegen.simt.rows import BLOCK, AloneRows, TeamRows
from rlx.codegen.simt.writer import place
from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.kernel.ir.axes import accesses
from rlx.kernel.ir.loops import LoopNest, Reduce, RowBuffer, Statement, Store
from rlx.kernel.schedule.overrides import is_by_hand, overridden, unfit
from rlx.kernel.schedule.schedule import Schedule, Tile
from rlx.kernel.schedule.transposes import transposition

SHORT = 64
"""Positions of a row that one invocation always walks alone."""
LONG_ALONE = 4096
"""Positions of a row that one invocation walks where neighbouring invocations then read neighbouring memory."""


def render(
    nest: LoopNest,
    slots: Sequence[Slot],
    bindings: Sequence[Binding],
    name: str,
    target: Target = PLAIN,
    language: Language = WGSL,
) -> Shader:
    """The shader of a nest. Slot i of the nest is `slots[i]`, in one of the storage `bindings`."""
    chosen = schedule(nest, target)
    transposed = transposition(nest)
    if transposed is not None and chosen.static_tile("workgroup", "side") > 1:
        return transpose.Squares(nest, transposed, chosen, slots, language).shader(bindings, name)
    stages = legal_stages(nest.statements)
    by_hand = is_by_hand("rows" if nest.inner else "map")
    pieces = piece_nests.plan(nest, stages, slots) if target.teams and not by_hand else None
    if pieces is not None:
        return piece_nests.render(nest, stages, pieces, slots, bindings, name, language, target.rows)
    record = language.record(len(slots))
    positions = frozenset(i for i, s in enumerate(stages) if isinstance(s, Reduce) and s.argument)
    body = Body(Code(language, subgroups=target.subgroups), record, slots, Ranges(positions))
    team = bool(nest.inner) and chosen.static_tile("workgroup", "rows") == 1
    place(body, nest.outer)
    rows = TeamRows(body, nest, stages) if team else AloneRows(body, nest, stages, chosen)
    rows.write()
    extents = (*nest.outer, *nest.inner)
    text = language.assemble(body.code, record, bindings, name, 1 if team else WORKGROUP)
    checks = (Check(tuple(body.indices), extents),) if body.indices else ()
    positions_count = dims.product(nest.outer)
    return Shader(
        text, tuple(bindings), len(slots), record.numbers, positions_count, team, rows.iterations, checks,
        schedule=chosen,
    )  # fmt: skip


def schedule(nest: LoopNest, target: Target) -> Schedule:
    """A row for each lane of a workgroup, or one for all; neighbouring lanes have neighbours of the last outer axis, or
    of the row. Sums along the row of one lane go in blocks. Raises RlxError for rows set by hand that no workgroup
    has."""
    transposed = transposition(nest)
    if transposed is not None:
        return transpose.schedule(nest, transposed, target)
    last = len(nest.outer) - 1
    lanes = (f"a{last}", WORKGROUP) if nest.outer else None
    if not nest.inner:
        chosen = overridden("map", Schedule((Tile("workgroup", "positions", WORKGROUP),), vector=lanes))
        positions = chosen.tile("workgroup", "positions")
        if positions != WORKGROUP:
            raise unfit("map", "workgroup", "positions", positions, f"of {WORKGROUP}, one a lane")
        return chosen
    rows = 1 if _wants_team(nest) else WORKGROUP
    chosen = overridden("rows", Schedule((Tile("workgroup", "rows", rows), Tile("register", "terms", BLOCK))))
    rows = chosen.static_tile("workgroup", "rows")
    if rows not in (1, WORKGROUP):
        raise unfit("rows", "workgroup", "rows", rows, f"of 1 or {WORKGROUP}")
    return replace(chosen, vector=(f"a{last + len(nest.inner)}", WORKGROUP) if rows == 1 else lanes)


def _wants_team(nest: LoopNest) -> bool:
    """Whether the lanes of a workgroup are to share a row."""
    length = dims.product(nest.inner)
    if isinstance(length, int) and length <= SHORT:
        return False
    if nest.outer and isinstance(length, int) and length <= LONG_ALONE:
        column, row = len(nest.outer) - 1, len(nest.outer) + len(nest.inner) - 1
        places = accesses(nest.statements)
        down = sum(p.coefficient(column) == 1 and p.coefficient(row) != 1 for p in places)
        return down < sum(p.coefficient(row) == 1 for p in places)
    return True


def legal_stages(stages: Sequence[Statement]) -> list[Statement]:
    """Stages with bodies that WGSL can say, temps put into the bodies that use them."""
    legalised: list[Statement] = []
    temps: dict[int, Expr] = {}

    def inlined(node: Expr, _: tuple[Expr, ...]) -> Expr | None:
        return temps[node.attr] if node.kind == "temp" else None

    for number, stage in enumerate(stages):
        body = ex.rewrite(legal(stage.body), inlined)
        changed = replace(stage, body=body)
        if isinstance(changed, RowBuffer):
            temps[number] = body
        elif isinstance(changed, Store) and (changed.guard is not None or changed.offset.others):
            guard = None if changed.guard is None else ex.rewrite(legal(changed.guard), inlined)
            others = tuple((ex.rewrite(legal(e), inlined), c) for e, c in changed.offset.others)
            changed = replace(changed, guard=guard, offset=replace(changed.offset, others=others))
        legalised.append(changed)
    return legalised
