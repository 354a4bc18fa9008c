"""Unrolls the control flow of a program, for devices whose kernels the host starts: kernels in execution order, and
where the buffers of each start.

The host computes where each alias lies: rows of a loop's sequences and carried values are in other places in each trip.
A loop of known length is therefore unrolled into dispatches that differ only in their records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rlx import interrupt
from rlx.errors import InputError
from rlx.ir import dim as dims
from rlx.ir.dtype import DType
from rlx.ir.expect import Equality
from rlx.kernel.ir.control import Branch, Loop
from rlx.kernel.ir.program import Kernel, Program
from rlx.records import dataclass

Ask = Callable[[int, int], bool]
"""Tells the bool in a buffer that starts at a place, after all kernels that were given out have run."""


@dataclass(frozen=True)
class Started:
    """A kernel, and where the buffer in each of its slots starts."""

    kernel: Kernel
    starts: tuple[int, ...]


def nothing_to_ask(number: int, place: int) -> bool:
    """For programs in which nothing depends on data."""
    raise AssertionError(number, place)


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

    starts   places of the buffers with memory of their own
    units    how many places an element of a dtype takes
    """

    def __init__(
        self, program: Program, starts: Mapping[int, int], binding: Mapping[str, int], units: Callable[[DType], int],
        ask: Ask = nothing_to_ask,
    ) -> None:  # fmt: skip
        self.program = program
        self.starts = starts
        self.units = units
        self.binding = binding
        self.ask = ask
        self.moved: dict[int, int] = {}

    def start(self, number: int) -> int:
        """The place of a buffer."""
        if number in self.moved:
            return self.moved[number]
        if number in self.program.aliases:
            base, offset = self.program.aliases[number]
            return self._inside(base, dims.evaluate(offset, self.binding))
        return self.starts[number]

    def _inside(self, base: int, element: int) -> int:
        return self.start(base) + element * self.units(self.program.buffers[base].dtype)

    def go(self, kernels: Sequence[Kernel]) -> Iterator[Started]:
        """Gives out what runs. Raises InputError where a region needs dims to be equal that are not."""
        for kernel in kernels:
            match kernel.work:
                case Branch():
                    yield from self._branch(kernel, kernel.work)
                case Loop():
                    yield from self._loop(kernel, kernel.work)
                case _:
                    yield Started(kernel, tuple(self.start(n) for n in kernel.slots))

    def _broken(self, numbers: Iterable[int]) -> Equality | None:
        """The first of these checks that does not hold."""
        checks = (self.program.checks[number] for number in numbers)
        values = ((c, dims.evaluate(c.left, self.binding), dims.evaluate(c.right, self.binding)) for c in checks)
        return next((check for check, left, right in values if left != right), None)

    def _branch(self, kernel: Kernel, work: Branch) -> Iterator[Started]:
        yes = self.ask(work.predicate, self.start(work.predicate))
        broken = self._broken(work.yes_checks if yes else work.no_checks)
        if broken is not None:
            raise InputError(f"[run] {broken.told(self.binding)}")
        around = dict(self.moved)
        yield from self.go(work.yes if yes else work.no)
        self.moved = around

    def _loop(self, kernel: Kernel, work: Loop) -> Iterator[Started]:
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
