"""Work that starts at the first elements of its buffers: where in them it starts is no part of it, so that copies to
different places, or from them, are equal work."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Access, Linear
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.winograd import WinogradConvolution
from rlx.kernel.ir.work import Work

MOST_WORKS = 1 << 10
"""That are remembered: layers of a net repeat."""


@lru_cache(MOST_WORKS)
def at_origins(work: Work) -> tuple[Work, Mapping[int, int]]:
    """Loop nests and products with each slot's least constant offset taken from all its accesses, and these offsets by
    slot, in elements. Slots with an offset that only a run knows stay as they are; so does other work, and work that
    looks up where it writes."""
    if isinstance(work, WinogradConvolution):
        conv, origins = at_origins(work.conv)
        assert isinstance(conv, Contraction)  # the same kind of work
        return (dataclasses.replace(work, conv=conv) if origins else work), origins
    if not isinstance(work, (LoopNest, Contraction)) or any(place.offset.others for place in work.writes()):
        return work, {}
    origins = _origins(work)
    if not origins:
        return work, {}

    def moved(slot: int, line: Linear) -> Linear:
        return line if slot not in origins else dataclasses.replace(line, const=line.const - origins[slot])

    def at_origin(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        access: Access = node.attr
        if node.kind != "load" or access.slot not in origins:
            return None
        const: Any = access.const  # a number, as all of the slot are
        return Expr("load", node.dtype, args, dataclasses.replace(access, const=const - origins[access.slot]))

    changed = work.map_bodies(lambda body: ex.rewrite(body, at_origin))
    if isinstance(changed, LoopNest):
        statements = (
            dataclasses.replace(s, offset=moved(s.slot, s.offset)) if isinstance(s, Store) else s
            for s in changed.statements
        )
        return dataclasses.replace(changed, statements=tuple(statements)), origins
    stores = tuple(dataclasses.replace(s, offset=moved(s.slot, s.offset)) for s in changed.epilogue)
    a, b = moved(changed.a_slot, changed.a), moved(changed.b_slot, changed.b)
    return dataclasses.replace(changed, a=a, b=b, epilogue=stores), origins


def _origins(work: LoopNest | Contraction) -> dict[int, int]:
    """The least offset of each slot, where all of the slot are numbers and that is not 0."""
    consts: dict[int, list[Any]] = {}
    for place in (*work.writes(), *work.reads()):
        consts.setdefault(place.slot, []).append(place.offset.const)
    for node in work.loads():
        consts.setdefault(node.attr.slot, []).append(node.attr.const)
    known = {slot: all_of for slot, all_of in consts.items() if all(isinstance(const, int) for const in all_of)}
    return {slot: min(all_of) for slot, all_of in known.items() if min(all_of)}
