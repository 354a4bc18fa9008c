"""Makes a program's regions fit for one arena: what an alias may lie in has the form and the heap of temporaries.

Shaders know the heap and the form of what they read. A carried value that begins as a weight, or a part of an input
that lies packed, would be one thing in the first trip and another in the next, or begin in the middle of a word; such
buffers are copied first, which costs a copy of what is small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from rlx.backends.wgpu.layout import is_packed
from rlx.kernel.flatten import reals, with_bodies
from rlx.kernel.nest import Branch, Buffer, Carried, Kernel, Loop, Nest, Program, Store, axis, linear, load
from rlx.kernel.wgsl.types import PLAIN, Target


def settle(program: Program, target: Target = PLAIN) -> None:
    """Adds copies to the program where they are needed."""
    _unpack(program, target)
    static = {*program.params, *program.constants, *(n for k in program.prepare for n in k.slots[: k.writes])}

    def settled(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
        for kernel in kernels:
            work = kernel.work
            if isinstance(work, Loop):
                carried = []
                for value in work.carried:
                    if reals(program, value.start) & static:
                        copy, target = _copy(program, program.buffers[value.start], kernel.sources)
                        yield copy
                        value = _restarted(program, value, target)
                        kernel = dataclasses.replace(kernel, slots=(*kernel.slots, target.number))
                    carried.append(value)
                kernel = dataclasses.replace(kernel, work=dataclasses.replace(work, carried=tuple(carried)))
            yield with_bodies(kernel, settled) if isinstance(work, (Branch, Loop)) else kernel

    program.main[:] = list(settled(program.main))


def _copy(program: Program, source: Buffer, nodes: tuple[str, ...]) -> tuple[Kernel, Buffer]:
    """A copy of a buffer in memory of its own, in the form of temporaries; `nodes` are those that it is for."""
    target = program.new_buffer("temp", source.dtype, source.size, f"{source.name}.copy")
    place = linear(axis(0))
    nest = Nest((source.size,), (), (Store(0, place, load(1, place, source.dtype), False),))
    return Kernel("copy", nest, (target.number, source.number), 1, nodes), target


def _restarted(program: Program, value: Carried, target: Buffer) -> Carried:
    """The carried value beginning in another buffer."""
    for alias in (value.now, value.last):
        program.holds[alias] = (target.number, *(n for n in program.holds[alias] if n != value.start))
    return dataclasses.replace(value, start=target.number)


def _unpack(program: Program, target: Target) -> None:
    """Gives every packed buffer that an alias lies in a copy that is not packed, and lets the aliases lie there."""
    packed = {b.number for b in program.buffers if is_packed(b, target)}
    bases = {n for held in program.holds.values() for n in held} & packed
    swapped: dict[int, int] = {}
    for number in sorted(bases):
        copy, made = _copy(program, program.buffers[number], (program.buffers[number].name,))
        swapped[number] = made.number
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
                rows = tuple(dataclasses.replace(row, base=swap(row.base)) for row in work.rows)
                carried = tuple(dataclasses.replace(c, start=swap(c.start)) for c in work.carried)
                work = dataclasses.replace(work, rows=rows, carried=carried)
            if isinstance(work, (Branch, Loop)):
                slots = (*kernel.slots, *(swapped[n] for n in kernel.slots if n in swapped))
                kernel = with_bodies(dataclasses.replace(kernel, work=work, slots=slots), on_copies)
            yield kernel

    program.main[:] = list(on_copies(program.main))
