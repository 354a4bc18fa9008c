"""Scatters, running reductions and rankings as compute shaders.

A short scatter goes in order within an outer position, so equal indices meet as the reference has them; a long one is
made kernels first whose updates come in any order (`kernel.passes.atomic_scatter`). A prefix scan is walked by one
invocation, or, where rows are long, by the lanes of a workgroup, which scan a block at a time. Short selections count,
for every element, how many come before it; long ones are made a sorting network of many dispatches first
(`kernel.passes.bitonic`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlx.codegen.simt.attention import Attention
from rlx.codegen.simt.bitonic import Network, precedes
from rlx.codegen.simt.body import legal
from rlx.codegen.simt.code import WORKGROUP, Binding, Shader, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.language import WGSL
from rlx.codegen.simt.language.wgsl.types import PLAIN, Target
from rlx.codegen.simt.loops import SHORT
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.rows import identity_variable, iterations_of
from rlx.codegen.simt.shared import Shared
from rlx.codegen.simt.split_kv import Join, Parts
from rlx.codegen.simt.writer import Writer
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.expr import Expr
from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial
from rlx.kernel.ir.index import Linear, axis, load
from rlx.kernel.ir.irregular import BitonicSort, IrregularWork, PrefixScan, Scatter, TopKSelection
from rlx.kernel.ir.order_keys import line_at, order_key, value_at
from rlx.kernel.schedule.overrides import overridden, unfit
from rlx.kernel.schedule.schedule import Schedule, Tile

AnyAttention = FusedAttention | SplitKvPartial | SplitKvCombine

COUNTED = 256
"""Elements of a row that are ranked by counting, at most, unless a schedule set by hand says otherwise."""
IN_ORDER = 512
"""Updates that one invocation makes in their order, at most, unless a schedule set by hand says otherwise."""
BESIDE = 64
"""Rows of updates that are made in order on processors, at least."""
MOST_ITERATIONS = 65535
"""After which some drivers in software end loops."""
ITEMS = 8
"""Neighbouring elements that a lane takes in a block of a running reduction."""
MOST_ITEMS = 64
"""So many of them that an invocation keeps, at most."""


def _at_most(kind: str, things: str, default: int) -> int:
    """How many of these one invocation goes through, at most, before many share them."""
    return overridden(kind, Schedule((Tile("thread", things, default),))).static_tile("thread", things)


def is_long(work: TopKSelection) -> bool:
    """Whether a ranking is to become a sorting network."""
    return not (isinstance(work.length, int) and work.length <= _at_most("top-k", "elements", COUNTED))


def is_long_scatter(work: Scatter, target: Target = PLAIN) -> bool:
    """Whether the updates of a scatter are to be made together."""
    length = dims.product(work.inner)
    if isinstance(length, int) and length <= _at_most("scatter", "updates", IN_ORDER):
        return False
    return not (target.software and _in_order_is_quicker(work))


def _in_order_is_quicker(work: Scatter) -> bool:
    """Whether processors rather go through whole rows of updates: what would take several kernels to make together,
    and few enough for a driver that counts the iterations of loops."""
    beside, iterations = dims.product(work.outer), _iterations(work)
    several = work.combine is None or (work.combine == "add" and work.body.dtype.is_float)
    fits = isinstance(iterations, int) and iterations <= MOST_ITERATIONS
    return several and fits and isinstance(beside, int) and beside >= BESIDE


def _iterations(work: Scatter) -> Dim:
    """Of an invocation that makes its updates in order."""
    parts = [legal(part) for part in (work.guard, work.body, *(e for e, _ in work.offset.others))]
    return dims.add(dims.mul(dims.product(work.inner), 1 + len(work.inner) + iterations_of(parts)), 4)


def render(
    work: IrregularWork | BitonicSort | AnyAttention,
    slots: Sequence[Slot],
    bindings: Sequence[Binding],
    name: str,
    target: Target = PLAIN,
    language: Language = WGSL,
) -> Shader:
    """The shader of special work. Slot i of the work is `slots[i]`, in one of the storage `bindings`."""
    writer: Writer
    match work:
        case FusedAttention():
            writer = Attention(work, slots, language)
        case SplitKvPartial():
            writer = Parts(work, slots, language)
        case SplitKvCombine():
            writer = Join(work, slots, language)
        case Scatter():
            writer = _ScatterWriter(work, slots, language)
        case PrefixScan():
            writer = _ScanWriter(work, slots, language)
        case TopKSelection():
            writer = _TopKWriter(work, slots, language)
        case BitonicSort():
            writer = Network(work, slots, language)
    writer.code.subgroups = target.subgroups
    return writer.shader(bindings, name)


class _ScatterWriter(Writer):
    """One invocation an outer position; it goes along the inner axes. Or an invocation an update, where all are made
    together."""

    def __init__(self, work: Scatter, slots: Sequence[Slot], language: Language = WGSL) -> None:
        every = (*work.outer, *work.inner)
        super().__init__(slots, every if work.atomic else work.outer, every, language=language)
        self.work = dataclasses.replace(
            work, guard=legal(work.guard), body=legal(work.body), offset=_legal(work.offset)
        )
        self.schedule = Schedule((Tile("thread", "updates", 1 if work.atomic else dims.product(work.inner)),))

    def write(self) -> Dim:
        work = self.work
        parts = [work.guard, work.body, *(e for e, _ in work.offset.others)]
        inner = range(len(work.outer), len(work.outer) + len(work.inner))
        if work.atomic:
            self._join()
            return 4 + iterations_of(parts)
        self.body.hoist(parts, lambda node: _varies(node, inner))
        self._loops(len(work.outer), work.inner)
        return _iterations(work)

    def _loops(self, number: int, left: Shape) -> None:
        if not left:
            self._one()
            return
        name = self.code.fresh("k")
        self.body.axes[number] = name
        with self.body.scope(self.language.loop(name, self.language.index(0), self.record.dim(left[0]))):
            self._loops(number + 1, left[1:])

    def _one(self) -> None:
        work, body = self.work, self.body
        with body.scope(f"if ({body.gen(work.guard).name})"):
            value = body.gen(work.body)
            if work.combine is not None:
                value = body.apply(work.combine, body.gen(load(0, work.offset, value.dtype)), value)
            body.store(0, work.offset, value)

    def _join(self) -> None:
        """One update, while others are made."""
        work, body = self.work, self.body
        assert work.combine is not None  # what replaces is not joined
        with body.scope(f"if ({body.gen(work.guard).name})"):
            value = body.gen(work.body)
            self.language.join(body, 0, body.offset(work.offset), work.combine, value)


def _legal(line: Linear) -> Linear:
    return Linear(line.const, line.axes, tuple((legal(e), c) for e, c in line.others))


def _varies(node: Expr, axes: Sequence[int]) -> bool:
    """Whether a leaf changes along one of the axes."""
    if node.kind == "axis":
        return node.attr in axes
    return node.kind == "load" and any(number in axes for number, _ in node.attr.axes)


def _scan_schedule(work: PrefixScan) -> Schedule:
    """A row for each lane, where rows are short or lie side by side, or one for all of a workgroup, of which each takes
    some neighbours at a time. Raises RlxError for what is set by hand and no workgroup can have."""
    beside = bool(work.outer) and work.offset.coefficient(len(work.outer) - 1) == 1
    short = isinstance(work.length, int) and work.length <= SHORT
    rows = Tile("workgroup", "rows", WORKGROUP if short or beside else 1)
    chosen = overridden("prefix-scan", Schedule((rows, Tile("thread", "elements", ITEMS))))
    count, items = chosen.static_tile("workgroup", "rows"), chosen.static_tile("thread", "elements")
    if count not in (1, WORKGROUP):
        raise unfit("prefix-scan", "workgroup", "rows", count, f"of 1 or {WORKGROUP}")
    if items > MOST_ITEMS:
        raise unfit("prefix-scan", "thread", "elements", items, f"of at most {MOST_ITEMS}")
    return chosen if count == 1 else chosen.with_tile("thread", "elements", work.length)


class _ScanWriter(Writer):
    """One invocation a row; or, where rows are long and do not lie side by side, one workgroup a row."""

    def __init__(self, work: PrefixScan, slots: Sequence[Slot], language: Language = WGSL) -> None:
        self.schedule = _scan_schedule(work)
        team = self.schedule.tile("workgroup", "rows") == 1
        super().__init__(slots, work.outer, (*work.outer, work.length), team, language=language)
        self.work = dataclasses.replace(work, body=legal(work.body))
        self.axis = len(work.outer)

    def write(self) -> Dim:
        self.body.hoist([self.work.body], lambda node: _varies(node, [self.axis]))
        return self._shared() if self.team else self._alone()

    def _go_to(self, step: str) -> None:
        """The position along the axis at a step of the walk."""
        last = f"{self.record.dim(self.work.length)} - {self.language.index(1)} - {step}"
        self.body.axes[self.axis] = self.code.let(last, "index") if self.work.reverse else step

    def _store(self, total: Reg) -> None:
        work = self.work
        given = self.body.through(lambda leaf: ex.cast(leaf, work.dtype), total.like(self.code.let(total.name)))
        self.body.store(0, work.offset, given)

    def _alone(self) -> Dim:
        work, code = self.work, self.code
        total = identity_variable(code, work.combine, work.total, "total")
        step = code.fresh("k")
        with self.body.scope(self.language.loop(step, self.language.index(0), self.record.dim(work.length))):
            self._go_to(step)
            after = self.body.apply(work.combine, total, self.body.gen(work.body))
            self._store(total if work.exclusive else after)
            code.emit(f"{total.name} = {after.name};")
        return dims.add(dims.mul(work.length, 1 + iterations_of([work.body])), 4)

    def _shared(self) -> Dim:
        """Blocks of ITEMS neighbours a lane: each lane joins its own, the lanes scan what these give, and each goes
        through its own again with what lies before them."""
        work, code, body = self.work, self.code, self.body
        items = self._items_a_lane
        size = WORKGROUP * items
        length = self.record.dim(work.length)
        carry = identity_variable(code, work.combine, work.total, "carry")
        start = code.fresh("start")
        with body.scope(self.language.loop(start, self.language.index(0), length, size)):
            first = code.let(f"{start} + {self.language.lane_index()} * {self.language.index(items)}", "first")
            kept = code.fresh("kept")
            element = self.language.register_type(work.total, carry.wide)
            code.emit(self.language.array_variable(kept, element, items))
            part = identity_variable(code, work.combine, work.total, "part")
            with self._items(first, length) as item:
                value = body.apply(work.combine, part, body.gen(work.body))
                code.emit(f"{kept}[{item}] = {part.name if work.exclusive else value.name};")
                code.emit(f"{part.name} = {value.name};")
            before, whole = self._scan(part)
            ahead = body.apply(work.combine, carry, before)
            with self._items(first, length) as item:
                own = carry.like(code.let(f"{kept}[{item}]"))
                self._store(body.apply(work.combine, ahead, own))
            code.emit(f"{carry.name} = {body.apply(work.combine, carry, whole).name};")
        blocks = dims.floordiv(dims.add(work.length, size - 1), size)
        return dims.add(dims.mul(blocks, 4 + items * (2 + iterations_of([work.body]))), 4)

    @property
    def _items_a_lane(self) -> int:
        return self.schedule.static_tile("thread", "elements")

    @contextmanager
    def _items(self, first: str, length: str) -> Iterator[str]:
        """A loop over this lane's elements of a block, as far as there are any."""
        item = self.code.fresh("e")
        with self.body.scope(self.language.loop(item, self.language.index(0), self.language.index(self._items_a_lane))):
            step = self.code.let(f"{first} + {item}", "step")
            with self.body.scope(f"if ({step} < {length})"):
                self._go_to(step)
                yield item

    def _scan(self, part: Reg) -> tuple[Reg, Reg]:
        """What the lanes before this one give together, and what all give."""
        work, code, body = self.work, self.code, self.body
        shared = Shared(code)
        array = shared.array(part.dtype, part.wide)
        running = code.fresh("running")
        code.emit(self.language.mutable(running, part.name))
        so_far = part.like(running)
        shared.put(array, so_far)
        shared.barrier()
        step = 1
        while step < WORKGROUP:
            with body.scope(f"if (lane >= {step}u)"):
                both = body.apply(work.combine, shared.get(array, f"lane - {step}u", part), so_far)
                code.emit(f"{running} = {both.name};")
            shared.barrier()
            shared.put(array, so_far)
            shared.barrier()
            step *= 2
        before = identity_variable(code, work.combine, work.total, "before")
        with body.scope("if (lane > 0u)"):
            code.emit(f"{before.name} = {shared.get(array, 'lane - 1u', part).name};")
        whole = shared.get(array, f"{WORKGROUP - 1}", part)
        shared.barrier()
        return before, whole


class _TopKWriter(Writer):
    """One invocation an element: it counts those before it, which is where it goes."""

    def __init__(self, work: TopKSelection, slots: Sequence[Slot], language: Language = WGSL) -> None:
        rows = (*work.outer, work.length)
        super().__init__(slots, rows, (*rows, work.length, work.k), language=language)
        self.work = work
        self.axis = len(work.outer)
        self.key = legal(order_key(work.body, work.largest))
        self.schedule = Schedule((Tile("thread", "elements", work.length),))

    def write(self) -> Dim:
        work, code, body, own = self.work, self.code, self.body, self.axis
        mine = body.gen(self.key)
        mine = mine.like(code.let(mine.name))
        value = body.gen(legal(work.body))
        rank, other = code.fresh("rank"), code.fresh("k")
        body.axes |= {own + 1: other, own + 2: rank}
        code.emit(self.language.mutable(rank, self.language.index(0)))
        others = value_at(self.key, own, axis(own + 1))
        body.hoist([others], lambda node: _varies(node, [own + 1]))
        with body.scope(self.language.loop(other, self.language.index(0), self.record.dim(work.length))):
            before = precedes(body, body.gen(others), mine, f"{other} < {body.axes[own]}")
            one = self.language.select(before.name, self.language.index(1), self.language.index(0))
            code.emit(f"{rank} = {rank} + {one};")
        with body.scope(f"if ({rank} < {self.record.dim(work.k)})"):
            for where, reg in ((work.values, value), (work.indices, Reg(body.axes[own], dtypes.i64, False))):
                if where is not None:
                    body.store(where[0], line_at(where[1], own, axis(own + 2)), reg)
        return dims.add(dims.mul(work.length, 1 + iterations_of([self.key])), 4)
