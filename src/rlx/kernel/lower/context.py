"""What lowering writes to: a program under construction, the buffers of values, one kernel at a time.

`LoweringContext` is one graph's (a region has one of its own, over the same program), `KernelBuilder` one kernel's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Node, Value
from rlx.ir.op import Constant, Input, State
from rlx.kernel.ir.index import Linear, axis, place
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Buffer, Kernel, Program
from rlx.kernel.ir.work import Work
from rlx.kernel.lower.facts import Facts
from rlx.kernel.lower.index import Emitter, Index, Key, is_scalar_constant, key_of
from rlx.kernel.lower.materialise import Materialised


class KernelBuilder:
    """A kernel whose slots are numbered as its buffers are first spoken of: those that it writes come first."""

    def __init__(self, context: LoweringContext, writes: Sequence[Buffer]) -> None:
        self.context = context
        self.writes = tuple(writes)
        self._slots: dict[int, int] = {}
        for buffer in writes:
            self.slot(buffer)

    def slot(self, buffer: Buffer) -> int:
        """The kernel's slot for a buffer."""
        return self._slots.setdefault(buffer.number, len(self._slots))

    def slot_of(self, value: Value) -> int:
        """The slot for the buffer of a value that lies in memory."""
        return self.slot(self.context.buffers[key_of(value)])

    def emitter(self, computes: Value | None = None) -> Emitter:
        """What makes expressions of values; the one that the kernel `computes` is not read from its buffer."""
        node = computes.node if computes is not None else None
        return Emitter(lambda v: None if v.node is node else self.context.strides_of(v), self.slot_of)

    def finish(self, name: str, work: Work, nodes: Sequence[Node]) -> Kernel:
        """The kernel with its work."""
        sources = tuple(n.source or n.name for n in nodes)
        return Kernel(name, work, tuple(self._slots), len(self.writes), sources)


class LoweringContext:
    """One graph on its way into a program. `static` are the buffers that params and constants alone decide."""

    def __init__(self, facts: Facts, memory: Materialised, program: Program, static: set[int]) -> None:
        self.facts = facts
        self.memory = memory
        self.program = program
        self.static = static
        self.buffers: dict[Key, Buffer] = {}

    # buffers

    def add_leaves(self) -> None:
        """Gives inputs, params and constants their buffers."""
        program = self.program
        for value in (*self.facts.graph.inputs, *self.facts.graph.params):
            kind = "input" if isinstance(value.node.op, Input) else "param"
            written = isinstance(value.node.op, State) and value.name in self.facts.writers
            buffer = program.new_buffer("state" if written else kind, value.dtype, value.type.size, value.name)
            self.buffers[key_of(value)] = buffer
            (program.inputs if kind == "input" else program.params).append(buffer.number)
            if kind == "param":
                self.static.add(buffer.number)
        self.add_constants()

    def add_constants(self) -> None:
        """Gives constants of more than one element their buffers; the others become code."""
        for node in self.facts.nodes:
            if isinstance(node.op, Constant) and not is_scalar_constant(node.outputs[0]):
                self._add_constant(node.outputs[0], node.outputs[0].type.size)

    def add_scalar_constant(self, value: Value) -> None:
        """Gives a constant of one element a buffer, for a kernel that takes addresses; nothing for other values."""
        if is_scalar_constant(value) and key_of(value) not in self.buffers:
            self._add_constant(value, 1)

    def _add_constant(self, value: Value, size: Dim) -> None:
        assert isinstance(value.node.op, Constant)
        buffer = self.program.new_buffer("constant", value.dtype, size, value.name)
        self.program.constants[buffer.number] = value.node.op.value.array
        self.buffers[key_of(value)] = buffer
        self.static.add(buffer.number)

    def result(self, value: Value) -> Buffer:
        """A new buffer for a value."""
        buffer = self.program.new_buffer("temp", value.dtype, value.type.size, value.name)
        self.buffers[key_of(value)] = buffer
        return buffer

    def in_place(self, value: Value, x: Value) -> Buffer:
        """The buffer for a value that takes the place of x in memory."""
        self.buffers[key_of(value)] = buffer = self.part(self.buffers[key_of(x)], 0)
        return buffer

    def part(self, buffer: Buffer, first: Dim) -> Buffer:
        """The rest of a buffer from an element on: kernels that write alike into parts are one function."""
        program = self.program
        rest = program.new_buffer("alias", buffer.dtype, dims.add(buffer.size, dims.mul(first, -1)), buffer.name)
        program.holds[rest.number] = (buffer.number,)
        program.aliases[rest.number] = (buffer.number, first)
        return rest

    def strides_of(self, value: Value) -> tuple[Dim, ...] | None:
        """Strides of a value that has a buffer."""
        return self.memory.strides(value) if key_of(value) in self.buffers else None

    def offset(self, value: Value, index: Index) -> Linear:
        """Where an element of a value lies in its buffer."""
        return place(index, self.memory.strides(value))

    # kernels

    def kernel(self, *writes: Buffer) -> KernelBuilder:
        """A new kernel that writes these buffers."""
        return KernelBuilder(self, writes)

    def add(self, builder: KernelBuilder, name: str, work: Work, nodes: Sequence[Node]) -> None:
        """Finishes a kernel and puts it where it belongs."""
        self.place([builder.finish(name, work, nodes)], builder.writes)

    def place(self, kernels: Sequence[Kernel], writes: Sequence[Buffer]) -> None:
        """Kernels that write the same buffers go into `prepare` if params and constants alone decide all of them."""
        reads = [number for kernel in kernels for number in kernel.slots[kernel.writes :]]
        is_static = bool(reads) and all(number in self.static for number in reads)
        fixed = is_static and not any(k.work.depends_on_run() for k in kernels)
        if fixed and not any(b.kind == "output" for b in writes):
            self.static.update(b.number for b in writes)
            self.program.prepare.extend(kernels)
        else:
            self.program.main.extend(kernels)

    def copy(self, value: Value, target: Buffer) -> Kernel:
        """A kernel that writes a value to a buffer, row by row."""
        builder = self.kernel(target)
        index = tuple(axis(i) for i in range(value.rank))
        store = Store(0, self.offset(value, index), builder.emitter().emit(value, index), False)
        return builder.finish("copy", LoopNest(value.shape, (), (store,)), (value.node,))

    def hand_out(self, name: str, stays: bool = False) -> None:
        """Makes the value of a graph's output one of the program: its own buffer where it is a fresh one, or where the
        value `stays` in the memory of a state; else a copy."""
        program = self.program
        value, memory = self.facts.graph.outputs[name], self.facts.outputs[name]
        buffer = self.buffers.get(key_of(memory))
        if stays and buffer is not None:
            program.outputs.append(buffer.number)
            return
        if buffer is not None and buffer.kind == "temp" and buffer.number not in self.static:
            output = dataclasses.replace(buffer, kind="output")
            program.buffers[buffer.number] = self.buffers[key_of(memory)] = output
            program.outputs.append(buffer.number)
            return
        target = program.new_buffer("output", value.dtype, value.type.size, value.name)
        self.place([self.copy(value, target)], [target])
        program.outputs.append(target.number)
