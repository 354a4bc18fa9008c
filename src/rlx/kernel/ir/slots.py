"""The slots of work that becomes part of other work."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear
from rlx.kernel.ir.loops import LoopNest, Statement, Store
from rlx.kernel.ir.program import Kernel
from rlx.kernel.ir.work import Renderable


def joined(kernels: Iterable[Kernel], inside: Iterable[int] = ()) -> tuple[tuple[int, ...], int]:
    """The slots of one kernel in the place of several, and how many of them are written. Buffers `inside` have none."""
    kernels, hidden = tuple(kernels), set(inside)
    written = dict.fromkeys(n for kernel in kernels for n in kernel.slots[: kernel.writes] if n not in hidden)
    read = dict.fromkeys(n for kernel in kernels for n in kernel.slots if n not in hidden and n not in written)
    return (*written, *read), len(written)


def nest_on_slots(nest: LoopNest, of: tuple[int, ...], slots: tuple[int, ...]) -> LoopNest:
    """The nest of a kernel with slots `of` as part of one with other `slots`; those that are not there become
    `Contraction.NO_SLOT`."""
    places = _places(of, slots)
    return dataclasses.replace(nest, statements=tuple(_statement(s, places) for s in nest.statements))


def product_on_slots(work: Contraction, of: tuple[int, ...], slots: tuple[int, ...]) -> Contraction:
    """The same of a contraction."""
    places = _places(of, slots)
    blocks = work.blocks and work.blocks.on_slots(places)
    return dataclasses.replace(
        work, a_slot=places.get(work.a_slot, Contraction.NO_SLOT), a=_line(work.a, places),
        b_slot=places[work.b_slot], b=_line(work.b, places), blocks=blocks,
        epilogue=tuple(_store(store, places) for store in work.epilogue),
    )  # fmt: skip


def _places(of: tuple[int, ...], slots: tuple[int, ...]) -> dict[int, int]:
    return {slot: slots.index(n) if n in slots else Contraction.NO_SLOT for slot, n in enumerate(of)}


def apart(kernel: Kernel, parts: Iterable[Renderable]) -> Iterator[Kernel]:
    """A kernel for each part of a kernel's work, with the slots that it speaks of."""
    for part in parts:
        assert isinstance(part, (LoopNest, Contraction))
        written = {place.slot for place in part.writes()}
        used = written | {place.slot for place in part.reads()} | {node.attr.slot for node in part.loads()}
        slots = tuple(n for slot, n in enumerate(kernel.slots) if slot in used)
        moved: Renderable
        if isinstance(part, LoopNest):
            moved = nest_on_slots(part, kernel.slots, slots)
        else:
            moved = product_on_slots(part, kernel.slots, slots)
        yield dataclasses.replace(kernel, work=moved, slots=slots, writes=len(written))


def _statement(statement: Statement, places: Mapping[int, int]) -> Statement:
    if isinstance(statement, Store):
        return _store(statement, places)
    return dataclasses.replace(statement, body=on_places(statement.body, places))


def _store(store: Store, places: Mapping[int, int]) -> Store:
    return Store(
        places[store.slot], _line(store.offset, places), on_places(store.body, places),
        store.per_element, None if store.guard is None else on_places(store.guard, places),
    )  # fmt: skip


def _line(line: Linear, places: Mapping[int, int]) -> Linear:
    return Linear(line.const, line.axes, tuple((on_places(e, places), c) for e, c in line.others))


def on_places(body: Expr, places: Mapping[int, int]) -> Expr:
    """A body whose loads have other slots."""

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if node.kind != "load":
            return None
        return Expr("load", node.dtype, args, dataclasses.replace(node.attr, slot=places[node.attr.slot]))

    return ex.rewrite(body, rule)
