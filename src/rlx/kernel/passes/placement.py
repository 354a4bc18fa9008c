"""Values that are only copied into a part of another, such as operands of concatenations and insides of pads, are
written there, and the copy is gone.

What other kernels read too stays apart: to read it in strides, out of a buffer that lives for longer, was slower in a
U-Net (233 ms against 206) than to copy it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.ir.rewriting import Context
from rlx.kernel.ir.axes import replaced_expr, replaced_linear
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Access, Linear, offset_of
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Kernel, Program, leaves
from rlx.kernel.ir.winograd import WinogradConvolution
from rlx.kernel.ir.work import Work
from rlx.kernel.passes.driver import KernelPass
from rlx.records import dataclass


@dataclass(frozen=True)
class _Part:
    """A part of `target` that `source` is copied to: extents, and steps of both along each axis, the widest first."""

    source: int
    target: int
    start: Dim
    axes: tuple[tuple[Dim, Dim, Dim], ...]

    def place(self, offset: Dim) -> tuple[int, Dim] | None:
        """The axis along which an offset in the source is a number of steps, and this number."""
        for axis, (_, step, _) in enumerate(self.axes):
            times = dims.exact_div(offset, step)
            if times is not None:
                return axis, times
        return None

    def moved(self, line: Linear, extents: Sequence[Dim]) -> Linear | None:
        """Where in the target the elements lie that are at `line` in the source; None where no line says it."""
        if line.others:
            return None
        last: list[Dim] = [0] * len(self.axes)
        begin, axes = self.start, []
        for number, offset in ((None, line.const), *line.axes):
            if offset == 0:
                continue
            place = self.place(offset)
            if place is None:
                return None
            axis, times = place
            far = times if number is None else dims.mul(times, dims.add(extents[number], -1))
            last[axis] = dims.add(last[axis], far)
            step = dims.mul(times, self.axes[axis][2])
            if number is None:
                begin = dims.add(begin, step)
            else:
                axes.append((number, step))
            if dims.bounds(times, {})[0] < 0:
                return None
        for far, (extent, _, _) in zip(last, self.axes):
            # a line through several rows would leave the part
            if dims.bounds(dims.add(extent, dims.mul(far, -1)), {})[0] < 1:
                return None
        return Linear(begin, tuple(axes))


class Placement(KernelPass):
    """Takes copies of temporaries into parts of others away."""

    name = "placement"

    def run(self, program: Program, context: Context) -> None:
        kernels = _Kernels(program)
        for at, kernel in enumerate(program.main):
            part = _part(program, kernel)
            moved = None if part is None else kernels.moved(at, part)
            if part is not None and moved is not None and self.spend(context, "copy", kernel):
                kernels.take(at, part, moved)
        program.main[:] = [kernel for kernel in kernels.now if kernel is not None]


class _Kernels:
    """The kernels of `main` while copies go: what stands at each place now, and the places that touch each buffer."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.now: list[Kernel | None] = [*program.main]
        self.users: dict[int, list[int]] = {}
        for at, kernel in enumerate(program.main):
            for number in {number for each in (kernel, *leaves([kernel])) for number in each.slots}:
                self.users.setdefault(number, []).append(at)
        held = {number for numbers in program.holds.values() for number in numbers}
        prepared = {number for kernel in program.prepare for number in kernel.slots}
        self.fixed = {*program.outputs, *program.aliases, *program.holds, *held, *prepared}

    def _touching(self, number: int) -> list[tuple[int, Kernel]]:
        """Places and kernels that touch a buffer."""
        found = ((at, self.now[at]) for at in self.users.get(number, ()))
        return [(at, kernel) for at, kernel in found if kernel is not None]

    def moved(self, copy: int, part: _Part) -> dict[int, Kernel] | None:
        """The kernels that write the source, writing the part of the target instead, by their places; None if one of
        them cannot, or another than the copy reads it."""
        if part.source in self.fixed or part.target in self.fixed or not self._is_covered_once(part.target):
            return None
        kernels_moved: dict[int, Kernel] = {}
        for at, kernel in self._touching(part.source):
            if at == copy:
                continue
            if part.target in kernel.slots or part.source not in kernel.slots[: kernel.writes]:
                return None
            work = _moved(kernel.work, kernel.slots.index(part.source), part)
            if work is None:
                return None
            slots = tuple(part.target if number == part.source else number for number in kernel.slots)
            kernels_moved[at] = dataclasses.replace(kernel, work=work, slots=slots)
        return kernels_moved

    def _is_covered_once(self, target: int) -> bool:
        """Whether every element of a buffer is written once: then no part of it is ever written over."""
        count: Dim = 0
        for _, kernel in self._touching(target):
            if not kernel.work.owns_kernels and target not in kernel.slots[: kernel.writes]:
                continue
            if not isinstance(kernel.work, (LoopNest, Contraction, WinogradConvolution)):
                return False
            for place in kernel.work.writes():
                if kernel.slots[place.slot] == target:
                    if place.offset.others:
                        return False
                    elements = dims.product(place.extents[number] for number, _ in place.offset.axes)
                    count = dims.add(count, elements)
        return count == self.program.buffers[target].size

    def take(self, copy: int, part: _Part, moved: Mapping[int, Kernel]) -> None:
        """Puts kernels in the place of those that a copy read, and takes the copy away."""
        self.now[copy] = None
        for at, kernel in moved.items():
            self.now[at] = kernel
        self.users.setdefault(part.target, []).extend(moved)
        self.users[part.source] = []


def _part(program: Program, kernel: Kernel) -> _Part | None:
    """The part that a kernel copies to, if that is all it does and it copies a whole temporary."""
    work = kernel.work
    if not isinstance(work, LoopNest) or work.inner or len(work.statements) != 1:
        return None
    (store,) = work.stores()
    body, line = store.body, store.offset
    if body.kind != "load" or body.args or line.others or body.attr.const != 0:
        return None
    source, target = (program.buffers[kernel.slots[slot]] for slot in (body.attr.slot, store.slot))
    if source.kind != "temp" or target.kind != "temp" or source.number == target.number:
        return None
    axes = [(e, body.attr.coefficient(i), line.coefficient(i)) for i, e in enumerate(work.outer) if e != 1]
    expected: Dim = 1
    ordered: list[tuple[Dim, Dim, Dim]] = []
    while len(ordered) < len(axes):  # from the closest on: the source is read whole, each element once
        axis = next((each for each in axes if each[1] == expected and each not in ordered), None)
        if axis is None:
            return None
        ordered.insert(0, axis)
        expected = dims.mul(expected, axis[0])
    if expected != source.size or source.size == 0:
        return None
    return _Part(source.number, target.number, line.const, tuple(ordered))


def _moved(work: Work, slot: int, part: _Part) -> Work | None:
    """The work with what it reads and writes through a slot where that is in the target."""
    match work:
        case LoopNest():
            return _moved_nest(work, slot, part)
        case WinogradConvolution():
            conv = _moved_product(work.conv, slot, part)
            return None if conv is None else dataclasses.replace(work, conv=conv)
        case Contraction():
            return _moved_product(work, slot, part) or _moved_by_rows(work, slot, part)
    return None


def _moved_by_rows(work: Contraction, slot: int, part: _Part) -> Contraction | None:
    """The same where the rows of a product are places of an image, and those of one line lie side by side in the
    target: a batch of lines."""
    (store, *others) = [store for store in work.epilogue if store.slot == slot]
    step = store.offset.coefficient(work.m_axis)
    if others or work.a_slot == slot or work.b_slot == slot or step == 0:
        return None
    lines: list[tuple[Dim, Dim]] = []
    for extent, line_step, _ in part.axes[:-1]:
        rows = dims.exact_div(line_step, step)
        if rows is None:
            break
        lines.append((extent, rows))
    if not lines or lines[-1][1] == 1 or dims.product((*(extent for extent, _ in lines), lines[-1][1])) != work.m:
        return None
    return _moved_product(_in_lines(work, lines), slot, part)


def _in_lines(work: Contraction, lines: list[tuple[Dim, Dim]]) -> Contraction:
    """The product with its rows in a batch of images and lines: how many there are, and rows from one to the next."""
    axis, more = work.m_axis, len(lines)
    places = {number: Linear(0, ((number + more, 1),)) for number in range(axis + 1, len(work.extents()))}
    places[axis] = Linear(0, (*((axis + at, rows) for at, (_, rows) in enumerate(lines)), (axis + more, 1)))
    epilogue = tuple(
        dataclasses.replace(s, offset=replaced_linear(s.offset, places), body=replaced_expr(s.body, places))
        for s in work.epilogue
    )
    return dataclasses.replace(
        work, batch=(*work.batch, *(extent for extent, _ in lines)), m=lines[-1][1],
        a=replaced_linear(work.a, places), b=replaced_linear(work.b, places), epilogue=epilogue,
    )  # fmt: skip


def _moved_nest(work: LoopNest, slot: int, part: _Part) -> LoopNest | None:
    statements = []
    for stage in work.statements:
        body = _moved_body(stage.body, slot, part, work.extents())
        changed: Any = None if body is None else dataclasses.replace(stage, body=body)
        if isinstance(changed, Store) and changed.slot == slot:
            line = part.moved(changed.offset, work.extents())
            changed = None if line is None else dataclasses.replace(changed, offset=line)
        if changed is None:
            return None
        statements.append(changed)
    return dataclasses.replace(work, statements=tuple(statements))


def _moved_product(work: Contraction, slot: int, part: _Part) -> Contraction | None:
    nest = _moved_nest(LoopNest(work.extents(), (), work.epilogue), slot, part)
    lines: dict[str, Linear | None] = {"a": work.a, "b": work.b}
    for side in ("a", "b"):
        if getattr(work, f"{side}_slot") == slot:
            lines[side] = None if side == "b" and work.packed else part.moved(getattr(work, side), work.extents())
    if nest is None or None in lines.values():
        return None
    changed: dict[str, Any] = {**lines, "epilogue": nest.statements}
    return dataclasses.replace(work, **changed)


def _moved_body(body: Expr, slot: int, part: _Part, extents: Sequence[Dim]) -> Expr | None:
    places: dict[Expr, Linear] = {}
    for node in ex.walk([body]):
        if node.kind == "load" and node.attr.slot == slot:
            line = None if node.args else part.moved(offset_of(node), extents)
            if line is None:
                return None
            places[node] = line

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        line = places.get(node)
        return None if line is None else Expr("load", node.dtype, (), Access(slot, line.const, line.axes))

    return ex.rewrite(body, rule)
