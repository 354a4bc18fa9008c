"""Conditionals and loops at the loop level: kernels that own kernels, over buffers of the same program.

A region's inputs are the buffers of its operands, or views of them; what it gives is written where the results lie. So
entering a branch or a trip copies nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from rlx.errors import UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Node, Value
from rlx.kernel.ir.control import Branch, Loop, LoopCarried, SliceView
from rlx.kernel.ir.program import Buffer, Kernel, Program, buffers_used, storage_roots
from rlx.kernel.lower.context import LoweringContext
from rlx.kernel.lower.facts import Facts, handed_out
from rlx.kernel.lower.group import Group, group
from rlx.kernel.lower.index import key_of
from rlx.kernel.lower.lowering import lower_groups
from rlx.kernel.lower.materialise import Materialised, materialise
from rlx.kernel.lower.order import order
from rlx.kernel.lower.table import demands, lowers
from rlx.kernel.lower.views import is_whole, view_of
from rlx.ops.control import Control, If, Scan, While


class RegionBody:
    """A region of a node on its way into the program of the graph around it; `given` are the buffers of its inputs.

    Buffers, `prepare` and constants are those of the one program; the kernels are this body's.
    """

    def __init__(self, outer: LoweringContext, region: Graph, given: Sequence[Buffer]) -> None:
        fixed = [v for v, b in zip(region.inputs, given, strict=True) if b.number in outer.static]
        facts = Facts.of(region, outer.facts.disable, fixed, outer.facts.indirect, outer.facts.bounded)
        memory = materialise(facts)
        program = dataclasses.replace(outer.program, main=[], inputs=[], outputs=[])
        self.context = LoweringContext(facts, memory, program, outer.static)
        self._handed_out = {b.number for b in given}
        buffers = self.context.buffers
        buffers.update({key_of(v): b for v, b in zip(region.inputs, given, strict=True)})
        params = {program.buffers[n].name: program.buffers[n] for n in program.params}
        buffers.update({key_of(v): params[v.name] for v in region.params})
        self.context.add_constants()
        lower_groups(self.context, order(facts, group(facts, memory)))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of the body."""
        return tuple(self.context.program.main)

    def fresh(self, value: Value) -> Buffer:
        """A buffer that this body alone writes the value to: its own where that is possible, else that of a copy."""
        buffer = self.context.buffers.get(key_of(handed_out(value)))
        kept = buffer is not None and buffer.kind == "temp" and buffer.number not in self.context.static
        if buffer is None or not kept or buffer.number in self._handed_out:
            buffer = self.context.program.new_buffer("temp", value.dtype, value.type.size, value.name)
            self.context.program.main.append(self.context.copy(value, buffer))
        self._handed_out.add(buffer.number)
        return buffer


@demands(Control)
def whole_operands(node: Node, memory: Materialised) -> None:
    """Regions read their operands as whole arrays; of a sequence only the elements need to be whole."""
    scanned = range(0)
    if isinstance(node.op, Scan):
        scanned = range(node.op.carried, node.op.carried + node.op.sequences)
    for position, value in enumerate(node.inputs):
        memory.add_strided(value)
        view = view_of(value, memory.strides_if_held)
        skip = 1 if position in scanned else 0
        if view is not None and not is_whole(value.shape[skip:], view.strides[skip:]):
            memory.add(value)


@lowers(Control)
def lower_control(outer: LoweringContext, group: Group) -> None:
    """Adds the kernel of a conditional or loop to the program."""
    node = group.anchor
    assert isinstance(node.op, Control)
    for value in node.inputs:  # buffers that this makes for constants are there from outside, like all operands
        outer.add_scalar_constant(value)
    first = len(outer.program.buffers)
    work: Branch | Loop
    match node.op:
        case If():
            work, written = _lower_if(outer, node)
        case Scan():
            work, written = _lower_scan(outer, node, node.op)
        case While():
            work, written = _lower_while(outer, node, node.op)
        case _:
            raise UnsupportedOp(f"no kernel for [{node.op.name}] at node {node.source or node.name!r}")
    program = outer.program
    own = Kernel(node.op.name, work, tuple(written), len(written), (node.source or node.name,))
    inside = buffers_used(program, [own])
    for carried in work.carried if isinstance(work, Loop) else ():
        inside |= storage_roots(program, carried.start)
    for view in work.views if isinstance(work, Loop) else ():
        inside |= storage_roots(program, view.base)
    if isinstance(work, Branch):
        inside |= storage_roots(program, work.predicate)
    around = sorted(n for n in inside if n < first and n not in written)
    program.main.append(dataclasses.replace(own, slots=(*written, *around)))


def _alias(program: Program, buffer: Buffer, holds: Iterable[int]) -> None:
    """Makes a buffer one that lies in others."""
    program.buffers[buffer.number] = dataclasses.replace(buffer, kind="alias")
    program.holds[buffer.number] = tuple(holds)


def _operand(outer: LoweringContext, value: Value) -> tuple[Buffer, Dim, tuple[Dim, ...]]:
    """(buffer, offset, strides) of an operand; fusion has seen to it that there is a buffer."""
    outer.add_scalar_constant(value)
    view = view_of(value, outer.strides_of)
    assert view is not None
    return outer.buffers[key_of(view.root)], view.offset, view.strides


def _whole(outer: LoweringContext, value: Value) -> Buffer:
    """The buffer that is an operand, or a new name for a part of one."""
    buffer, offset, _ = _operand(outer, value)
    if offset == 0 and buffer.size == value.type.size:
        return buffer
    program = outer.program
    part = program.new_buffer("alias", value.dtype, value.type.size, value.name)
    _alias(program, part, (buffer.number,))
    program.aliases[part.number] = (buffer.number, offset)
    if buffer.number in outer.static and isinstance(offset, int):
        outer.static.add(part.number)
    return part


def _lower_if(outer: LoweringContext, node: Node) -> tuple[Branch, list[int]]:
    program = outer.program
    predicate, *given = (_whole(outer, value) for value in node.inputs)
    results = [program.new_buffer("temp", v.dtype, v.type.size, v.name) for v in node.outputs]
    bodies: list[tuple[Kernel, ...]] = []
    checks: list[tuple[int, ...]] = []
    for region in node.regions:
        inner = RegionBody(outer, region, given)
        for value, target in zip(region.outputs.values(), results):
            result = inner.fresh(value)
            _alias(program, result, (target.number,))
            program.aliases[result.number] = (target.number, 0)
        bodies.append(inner.kernels)
        checks.append(tuple(range(len(program.checks), len(program.checks) + len(region.equalities))))
        program.checks.extend(region.equalities)
    outer.buffers.update({key_of(v): b for v, b in zip(node.outputs, results)})
    return Branch(predicate.number, bodies[0], bodies[1], checks[0], checks[1]), [b.number for b in results]


def _lower_scan(outer: LoweringContext, node: Node, op: Scan) -> tuple[Loop, list[int]]:
    program = outer.program
    starts = [_whole(outer, value) for value in node.inputs[: op.carried]]
    views: list[SliceView] = []
    given = [program.new_buffer("alias", b.dtype, b.size, f"{b.name}.now") for b in starts]
    behind = op.carried + op.sequences
    for value in node.inputs[op.carried : behind]:
        buffer, offset, strides = _operand(outer, value)
        row = program.new_buffer("alias", value.dtype, dims.product(value.shape[1:]), f"{value.name}.row")
        _alias(program, row, (buffer.number,))
        views.append(SliceView(row.number, buffer.number, offset, strides[0]))
        given.append(row)
    given += [_whole(outer, value) for value in node.inputs[behind:]]
    inner = RegionBody(outer, node.regions[0], given)
    values = list(node.regions[0].outputs.values())
    written: list[int] = []
    for value, result in zip(values[op.carried :], node.outputs[op.carried :]):
        target = program.new_buffer("temp", result.dtype, result.type.size, result.name)
        slice_buffer = inner.fresh(value)
        _alias(program, slice_buffer, (target.number,))
        views.append(SliceView(slice_buffer.number, target.number, 0, value.type.size))
        outer.buffers[key_of(result)] = target
        written.append(target.number)
    stacked = {view.number for view in views[op.sequences :]}
    carried = _carry(outer, inner, node, starts, given, values, stacked)
    written += [n for c in carried for n in c.ping_pong]
    return Loop(inner.kernels, op.length, tuple(carried), tuple(views), op.reverse), written


def _lower_while(outer: LoweringContext, node: Node, op: While) -> tuple[Loop, list[int]]:
    program = outer.program
    starts = [_whole(outer, value) for value in node.inputs[: op.carried]]
    given = [program.new_buffer("alias", b.dtype, b.size, f"{b.name}.now") for b in starts]
    given += [_whole(outer, value) for value in node.inputs[op.carried :]]
    test = RegionBody(outer, node.regions[0], given)
    condition = test.fresh(next(iter(node.regions[0].outputs.values())))
    inner = RegionBody(outer, node.regions[1], given)
    carried = _carry(outer, inner, node, starts, given, list(node.regions[1].outputs.values()), set())
    work = Loop(inner.kernels, op.limit, tuple(carried), (), False, test.kernels, condition.number)
    return work, [n for c in carried for n in c.ping_pong]


def _carry(
    outer: LoweringContext,
    inner: RegionBody,
    node: Node,
    starts: Sequence[Buffer],
    given: Sequence[Buffer],
    values: Sequence[Value],
    stacked: set[int],
) -> list[LoopCarried]:
    """Where the carried values lie. A value that is also a row of a stacked result is carried on from there."""
    program = outer.program
    carried: list[LoopCarried] = []
    for start, now, value, result in zip(starts, given, values, node.outputs):
        written = inner.context.buffers.get(key_of(value))
        last = program.new_buffer("alias", start.dtype, start.size, result.name)
        ping_pong: tuple[int, ...] = ()
        if written is not None and written.number in stacked:
            following = written.number
            after: tuple[int, ...] = (following,)
        else:
            fresh = inner.fresh(value)
            pair = [program.new_buffer("temp", start.dtype, start.size, f"{result.name}.turn") for _ in range(2)]
            ping_pong = after = tuple(b.number for b in pair)
            _alias(program, fresh, ping_pong)
            following = fresh.number
        for buffer in (now, last):
            _alias(program, buffer, (start.number, *after))
        carried.append(LoopCarried(start.number, now.number, following, last.number, ping_pong))
        outer.buffers[key_of(result)] = program.buffers[last.number]
    return carried
