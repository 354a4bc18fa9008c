"""Unrolls the control flow of a program: kernels in execution order, and where the buffers of each start.

The host computes where each alias lies: rows of a loop's sequences and carried values are in other places in each trip.
A loop of known length is therefore unrolled into dispatches that differ only in their records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rlx import interrupt
from rlx.backends.wgpu.build import Plan, Step
from rlx.backends.wgpu.dispatches import Placed
from rlx.codegen.simt.language.wgsl.types import element_words
from rlx.errors import InputError
from rlx.ir import dim as dims
from rlx.kernel.ir.control import Branch, Loop
from rlx.kernel.ir.program import Kernel

Ask = Callable[[int, int], bool]
"""Tells the bool in a buffer that starts at a word, after all steps that were given out have run."""


def depends_on_data(kernels: Sequence[Kernel]) -> bool:
    """Whether only a run tells which kernels run, and how often."""
    return any(
        isinstance(k.work, Branch)
        or (isinstance(k.work, Loop) and k.work.condition is not None)
        or depends_on_data(k.children)
        for k in kernels
    )


class Unroller:
    """One run through kernels.

    starts   first words, or halves, of the buffers with memory of their own
    """

    def __init__(self, plan: Plan, starts: Mapping[int, int], binding: Mapping[str, int], ask: Ask) -> None:
        self.program = plan.program
        self.steps: Mapping[int, Step] = plan.by_kernel
        self.starts = starts
        self.binding = binding
        self.ask = ask
        self.moved: dict[int, int] = {}

    def start(self, number: int) -> int:
        """The first word of a buffer."""
        if number in self.moved:
            return self.moved[number]
        if number in self.program.aliases:
            base, offset = self.program.aliases[number]
            return self._inside(base, dims.evaluate(offset, self.binding))
        return self.starts[number]

    def _inside(self, base: int, element: int) -> int:
        return self.start(base) + element * element_words(self.program.buffers[base].dtype)

    def go(self, kernels: Sequence[Kernel]) -> Iterator[Placed]:
        """Gives out what runs. Raises InputError where a region needs dims to be equal that are not."""
        for kernel in kernels:
            match kernel.work:
                case Branch():
                    yield from self._branch(kernel.work)
                case Loop():
                    yield from self._loop(kernel.work)
                case _:
                    yield Placed(self.steps[id(kernel)], tuple(self.start(n) for n in kernel.slots))

    def _branch(self, work: Branch) -> Iterator[Placed]:
        yes = self.ask(work.predicate, self.start(work.predicate))
        for number in work.yes_checks if yes else work.no_checks:
            check = self.program.checks[number]
            if dims.evaluate(check.left, self.binding) != dims.evaluate(check.right, self.binding):
                raise InputError(f"[run] {check.told(self.binding)}")
        around = dict(self.moved)
        yield from self.go(work.yes if yes else work.no)
        self.moved = around

    def _loop(self, work: Loop) -> Iterator[Placed]:
        around = dict(self.moved)
        now = [self.start(c.start) for c in work.carried]
        ping_pong = [[self.start(n) for n in c.ping_pong] for c in work.carried]
        trips = None if work.trips is None else dims.evaluate(work.trips, self.binding)
        trip = 0
        while trips is None or trip < trips:
            interrupt.check()
            self.moved |= {c.now: place for c, place in zip(work.carried, now)}
            if work.condition is not None:
                yield from self.go(work.test)
                if not self.ask(work.condition, self.start(work.condition)):
                    break
            at = trips - 1 - trip if work.reverse and trips is not None else trip
            for row in work.views:
                offset, step = (dims.evaluate(d, self.binding) for d in (row.offset, row.step))
                self.moved[row.number] = self._inside(row.base, offset + at * step)
            self.moved |= {c.following: pair[0] for c, pair in zip(work.carried, ping_pong) if pair}
            yield from self.go(work.body)
            now = [self.start(c.following) for c in work.carried]
            ping_pong = [pair[::-1] for pair in ping_pong]
            trip += 1
        self.moved = {**around, **{c.last: place for c, place in zip(work.carried, now)}}
