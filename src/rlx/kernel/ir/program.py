"""Programs: buffers, and kernels in order over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any

from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.expect import Equality
from rlx.kernel.ir.control import Loop
from rlx.kernel.ir.work import Work
from rlx.records import dataclass


@dataclass(frozen=True)
class Buffer:
    """Memory of a program. `kind`: input, state (an input that kernels write to, through an alias), param, constant,
    output, temp, or alias (part of another, see `Program.holds`). Sizes are in elements."""

    number: int
    kind: str
    dtype: DType
    size: Dim
    name: str

    @property
    def nbytes(self) -> Dim:
        return dims.mul(self.size, self.dtype.itemsize)


@dataclass(frozen=True)
class Kernel:
    """A piece of work bound to buffers: slot i of the work is buffer `slots[i]`; the first `writes` slots are written.

    `name` tells the ops that it came from, `sources` the nodes.
    """

    name: str
    work: Work
    slots: tuple[int, ...]
    writes: int
    sources: tuple[str, ...] = ()

    @property
    def children(self) -> tuple[Kernel, ...]:
        """The kernels that a branch or loop owns, in the order in which they may run."""
        return self.work.children()

    def map_children(self, change: Callable[[tuple[Kernel, ...]], Iterable[Kernel]]) -> Kernel:
        """The branch or loop with other rows of kernels in it."""
        return dataclasses.replace(self, work=self.work.map_children(change))


@dataclass
class Program:
    """Kernels in order over buffers. `prepare` depends on params alone and runs once when they are set.

    aliases   buffers that lie in others: (the other, first element)
    holds     buffers in whose memory an alias may lie
    inputs    what a run gets, those of kind state too; an output that is an alias of one lies in its memory
    checks    what regions need of dims when they run
    """

    symbols: tuple[str, ...]
    buffers: list[Buffer] = field(default_factory=list)
    prepare: list[Kernel] = field(default_factory=list)
    main: list[Kernel] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    params: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)
    aliases: dict[int, tuple[int, Dim]] = field(default_factory=dict)
    holds: dict[int, tuple[int, ...]] = field(default_factory=dict)
    checks: list[Equality] = field(default_factory=list)

    def new_buffer(self, kind: str, dtype: DType, size: Dim, name: str) -> Buffer:
        buffer = Buffer(len(self.buffers), kind, dtype, size, name)
        self.buffers.append(buffer)
        return buffer

    def written_states(self) -> dict[int, int]:
        """Of the outputs that lie in the memory of a state, by their places: the place of that among the inputs."""
        states: dict[int, int] = {}
        for place, number in enumerate(self.outputs):
            for root in storage_roots(self, number):
                if self.buffers[root].kind == "state":
                    states[place] = self.inputs.index(root)
        return states

    def static_buffers(self) -> set[int]:
        """Buffers that are the same in every run: params, constants, and what `prepare` writes."""
        written = (number for kernel in self.prepare for number in kernel.slots[: kernel.writes])
        return {*self.params, *self.constants, *written}


def leaves(kernels: Iterable[Kernel]) -> list[Kernel]:
    """The kernels that do something themselves, of these and of what they own."""
    leaf_kernels: list[Kernel] = []
    for kernel in kernels:
        leaf_kernels.extend(leaves(kernel.children) if kernel.work.owns_kernels else [kernel])
    return leaf_kernels


def has_loop(kernel: Kernel) -> bool:
    """Whether it is a loop or owns one."""
    return isinstance(kernel.work, Loop) or any(map(has_loop, kernel.children))


def storage_roots(program: Program, number: int) -> set[int]:
    """The buffers with memory of their own that a buffer may lie in."""
    if number not in program.holds:
        return {number}
    return {root for inner in program.holds[number] for root in storage_roots(program, inner)}


def buffers_used(program: Program, kernels: Iterable[Kernel]) -> set[int]:
    """Buffers that the kernels, and those that they own, read and write; aliases and what they lie in."""
    used: set[int] = set()
    for kernel in kernels:
        numbers = {*kernel.slots, *buffers_used(program, kernel.children)}
        used |= numbers
        for number in numbers:
            used |= storage_roots(program, number)
    return used
