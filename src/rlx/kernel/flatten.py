"""Programs with conditionals and loops seen as one row of kernels, and buffers as the memory that they lie in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from rlx.kernel.nest import Branch, Kernel, Loop, Program


def reals(program: Program, number: int) -> set[int]:
    """The buffers with memory of their own that a buffer may lie in."""
    if number not in program.holds:
        return {number}
    return {real for inner in program.holds[number] for real in reals(program, inner)}


def parts(kernel: Kernel) -> tuple[Kernel, ...]:
    """The kernels that a branch or loop owns, in the order in which they may run."""
    match kernel.work:
        case Branch(yes=yes, no=no):
            return (*yes, *no)
        case Loop(body=body, test=test):
            return (*test, *body)
    return ()


def leaves(kernels: Iterable[Kernel]) -> list[Kernel]:
    """The kernels that do something themselves, of these and of what they own."""
    found: list[Kernel] = []
    for kernel in kernels:
        found.extend(leaves(parts(kernel)) if isinstance(kernel.work, (Branch, Loop)) else [kernel])
    return found


def has_loop(kernel: Kernel) -> bool:
    """Whether it is a loop or owns one."""
    return isinstance(kernel.work, Loop) or any(map(has_loop, parts(kernel)))


def touched(program: Program, kernels: Iterable[Kernel]) -> set[int]:
    """Buffers that the kernels, and those that they own, read and write; aliases and what they lie in."""
    found: set[int] = set()
    for kernel in kernels:
        numbers = {*kernel.slots, *touched(program, parts(kernel))}
        found |= numbers
        for number in numbers:
            found |= reals(program, number)
    return found


def with_bodies(kernel: Kernel, change: Callable[[tuple[Kernel, ...]], Iterable[Kernel]]) -> Kernel:
    """The branch or loop with other rows of kernels in it."""
    work = kernel.work
    if isinstance(work, Branch):
        work = dataclasses.replace(work, yes=tuple(change(work.yes)), no=tuple(change(work.no)))
    elif isinstance(work, Loop):
        work = dataclasses.replace(work, body=tuple(change(work.body)), test=tuple(change(work.test)))
    return dataclasses.replace(kernel, work=work)


def replace_leaves(program: Program, made_of: Callable[[Kernel], Iterable[Kernel] | None]) -> None:
    """Puts what is made of kernels that do something themselves in their places; those of which it is None stay."""

    def replaced(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
        for kernel in kernels:
            if isinstance(kernel.work, (Branch, Loop)):
                yield with_bodies(kernel, replaced)
            else:
                made = made_of(kernel)
                yield from (kernel,) if made is None else made

    for kernels in (program.prepare, program.main):
        kernels[:] = list(replaced(kernels))


def flat(program: Program, kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels as a memory plan sees them: in one row, on buffers with memory of their own.

    A branch or loop stands before and behind those that it owns: what a loop writes for later is there before its
    first trip, and what it reads stays until its last.
    """
    found: list[Kernel] = []
    for kernel in kernels:
        around = _on_reals(program, kernel)
        found.append(around)
        if isinstance(kernel.work, (Branch, Loop)):
            found.extend(flat(program, parts(kernel)))
            found.append(dataclasses.replace(around, writes=0))
    return found


def _on_reals(program: Program, kernel: Kernel) -> Kernel:
    slots: list[int] = []
    more: list[int] = []
    for number in kernel.slots:
        found = reals(program, number)
        slots.append(next(iter(found)) if len(found) == 1 else number)
        if len(found) > 1:
            more.extend(sorted(found))
    return dataclasses.replace(kernel, slots=(*slots, *more)) if more or tuple(slots) != kernel.slots else kernel
