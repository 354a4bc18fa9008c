"""Makes a program's regions fit for one arena: what an alias may lie in has the form and the heap of temporaries.

Shaders know the heap and the form of what they read. A carried value that begins as a weight, or a part of an input
that lies packed, would be one thing in the first trip and another in the next, or begin in the middle of a word; such
buffers are copied first, which costs a copy of what is small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from rlx.ir.rewriting import Context
from rlx.kernel.ir.control import Loop, LoopCarried
from rlx.kernel.ir.index import axis, linear, load
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Buffer, Kernel, Program, storage_roots
from rlx.kernel.passes.driver import KernelPass


class LegaliseAliases(KernelPass):
    """Adds copies to the program where they are needed. `is_packed` tells buffers that lie in another form than
    temporaries."""

    name = "aliases"
    required = True

    def __init__(self, is_packed: Callable[[Buffer], bool]) -> None:
        self.is_packed = is_packed

    def run(self, program: Program, context: Context) -> None:
        _unpack(program, {b.number for b in program.buffers if self.is_packed(b)})
        static = program.static_buffers()

        def legal(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
            for kernel in kernels:
                if isinstance(kernel.work, Loop):
                    copies, kernel = _from_copies(program, kernel, kernel.work, static)
                    for copy in copies:
                        self.spend(context, "carried-weight", copy)
                        yield copy
                yield kernel.map_children(legal) if kernel.work.owns_kernels else kernel

        program.main[:] = list(legal(program.main))


def _from_copies(program: Program, kernel: Kernel, work: Loop, static: set[int]) -> tuple[list[Kernel], Kernel]:
    """Copies of the weights that a loop's carried values begin as, and the loop that begins with these."""
    copies: list[Kernel] = []
    carried: list[LoopCarried] = []
    slots = kernel.slots
    for value in work.carried:
        if storage_roots(program, value.start) & static:
            copy, target = _copy(program, program.buffers[value.start], kernel.sources)
            copies.append(copy)
            value = _restarted(program, value, target)
            slots = (*slots, target.number)
        carried.append(value)
    return copies, dataclasses.replace(kernel, work=dataclasses.replace(work, carried=tuple(carried)), slots=slots)


def _copy(program: Program, source: Buffer, nodes: tuple[str, ...]) -> tuple[Kernel, Buffer]:
    """A copy of a buffer in memory of its own, in the form of temporaries; `nodes` are those that it is for."""
    target = program.new_buffer("temp", source.dtype, source.size, f"{source.name}.copy")
    place = linear(axis(0))
    nest = LoopNest((source.size,), (), (Store(0, place, load(1, place, source.dtype), False),))
    return Kernel("copy", nest, (target.number, source.number), 1, nodes), target


def _restarted(program: Program, value: LoopCarried, target: Buffer) -> LoopCarried:
    """The carried value beginning in another buffer."""
    for alias in (value.now, value.last):
        program.holds[alias] = (target.number, *(n for n in program.holds[alias] if n != value.start))
    return dataclasses.replace(value, start=target.number)


def _unpack(program: Program, packed: set[int]) -> None:
    """Gives every packed buffer that an alias lies in a copy that is not packed, and lets the aliases lie there."""
    bases = {n for held in program.holds.values() for n in held} & packed
    swapped: dict[int, int] = {}
    for number in sorted(bases):
        copy, unpacked = _copy(program, program.buffers[number], (program.buffers[number].name,))
        swapped[number] = unpacked.number
        (program.main if program.buffers[number].kind == "input" else program.prepare).insert(0, copy)
    if not swapped:
        return

    def swap(number: int) -> int:
        return swapped.get(number, number)

    program.holds = {n: tuple(map(swap, held)) for n, held in program.holds.items()}
    program.aliases = {n: (swap(base), offset) for n, (base, offset) in program.aliases.items()}

    def on_copies(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
        for kernel in kernels:
            work = kernel.work
            if isinstance(work, Loop):
                views = tuple(dataclasses.replace(view, base=swap(view.base)) for view in work.views)
                carried = tuple(dataclasses.replace(c, start=swap(c.start)) for c in work.carried)
                work = dataclasses.replace(work, views=views, carried=carried)
            if work.owns_kernels:
                slots = (*kernel.slots, *(swapped[n] for n in kernel.slots if n in swapped))
                kernel = dataclasses.replace(kernel, work=work, slots=slots).map_children(on_copies)
            yield kernel

    program.main[:] = list(on_copies(program.main))
