"""Branches, and loops that data end, as parts of a run's graph: the device decides, and no run waits for the host.

What a branch or loop does has its places before the run (`Undecided`). A branch is a part of a graph with two sides. A
loop takes two trips in each round, as carried values take turns between two places: from the second to the first, and
back. They are copied to the second place before, and once more behind an odd trip that is the last, so that all that
follows finds them there. A kernel reads what was decided, and counts trips where these have a limit
(`cuda_decide.cuh`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx import flags, logs
from rlx.backends.cuda.device import Device, Function, Memory
from rlx.backends.cuda.driver import OUT_OF_MEMORY, STICKY, CallError, Driver
from rlx.backends.cuda.launches import POINTER_BYTES, Given
from rlx.backends.simt_unroll import Started, Unroller
from rlx.codegen.simt.language import cuda
from rlx.codegen.simt.language.texts import text_of
from rlx.ir import dim as dims
from rlx.kernel.ir.control import Branch, Loop
from rlx.kernel.ir.program import Kernel, Program
from rlx.records import dataclass

MOST_BRANCHES = 256
"""Of a graph. What is in a loop is there twice, and once for each trip where its length is known."""
ANY_TRIPS = (1 << 63) - 1
NAME = "rlx_decide"
COUNTER_BYTES = 8


class DecidedByHost(Exception):
    """Says why the device cannot decide."""


Copy = tuple[int, int, int]
"""A place that bytes are copied to, where they are, and how many."""
Make = Callable[[Sequence[Started]], list[Given]]
"""Launches for kernels in a row."""


@dataclass(frozen=True)
class Fork(Started):
    """A branch, by the bool that lies at the place in `starts`."""

    yes: tuple[Started, ...]
    no: tuple[Started, ...]


@dataclass(frozen=True)
class Rounds(Started):
    """A loop, by the bool at the place in `starts`: tests and trips of carried values that lie at their second
    places, and at their first ones.

    begin   copies before the first trip, to the second places
    test    of values at the second places, before the first trip
    odd     a trip to the first places, and the test there
    even    a trip to the second places, and the test there
    end     copies from the first places to the second ones, where an odd trip was the last
    limit   trips at most
    """

    begin: tuple[Copy, ...]
    test: tuple[Started, ...]
    odd: tuple[Started, ...]
    even: tuple[Started, ...]
    end: tuple[Copy, ...]
    limit: int


class Undecided(Unroller):
    """Goes through kernels on all ways that they may take. Raises DecidedByHost."""

    left = MOST_BRANCHES

    def _take_one(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise DecidedByHost(f"a run has more than {MOST_BRANCHES} branches, or loops that data end")

    def _branch(self, kernel: Kernel, work: Branch) -> Iterator[Started]:
        self._take_one()
        broken = self._broken((*work.yes_checks, *work.no_checks))
        if broken is not None:
            raise DecidedByHost(f"a side of a branch cannot run: {broken.told(self.binding)}")
        around = dict(self.moved)
        sides = []
        for side in (work.yes, work.no):
            sides.append(tuple(self.go(side)))
            self.moved = dict(around)
        yield Fork(kernel, (self.start(work.predicate),), *sides)

    def _loop(self, kernel: Kernel, work: Loop) -> Iterator[Started]:
        if work.condition is None:
            yield from super()._loop(kernel, work)
            return
        self._take_one()
        if work.views or not all(c.ping_pong for c in work.carried):
            raise DecidedByHost("a loop that data end goes over rows")
        limit = ANY_TRIPS if work.trips is None else dims.evaluate(work.trips, self.binding)
        around = dict(self.moved)
        starts = [self.start(c.start) for c in work.carried]
        first, second = ([self.start(c.ping_pong[turn]) for c in work.carried] for turn in (0, 1))
        sizes = [dims.evaluate(self.program.buffers[c.start].nbytes, self.binding) for c in work.carried]

        def trip(origin: Sequence[int], target: Sequence[int]) -> tuple[Started, ...]:
            self.moved |= {c.now: place for c, place in zip(work.carried, origin)}
            self.moved |= {c.following: place for c, place in zip(work.carried, target)}
            return (*self.go(work.body), *test(target))

        def test(places: Sequence[int]) -> tuple[Started, ...]:
            self.moved |= {c.now: place for c, place in zip(work.carried, places)}
            return tuple(self.go(work.test))

        def copies(targets: Sequence[int], origins: Sequence[int]) -> tuple[Copy, ...]:
            return tuple(copy for copy in zip(targets, origins, sizes) if copy[2])

        if limit > 0:
            rows = (test(second), trip(second, first), trip(first, second))
            holds = (self.start(work.condition),)
            yield Rounds(kernel, holds, copies(second, starts), *rows, copies(second, first), limit)
        last = second if limit > 0 else starts
        self.moved = {**around, **{c.last: place for c, place in zip(work.carried, last)}}


class Setter:
    """The kernel on a device that sets conditions of graphs.

    reason   why there is none; empty if there is one
    """

    def __init__(self, device: Device) -> None:
        """Call it within `Device.work`."""
        driver = device.driver
        self.reason = driver.why_no_branches()
        self.function: Function | None = None
        if self.reason:
            return
        code = driver.compile_setter(f"{cuda.prelude()}\n{text_of('cuda_decide.cuh')}", NAME)
        try:
            self.function = Function(device, NAME, code)
        except CallError as error:
            if error.code in STICKY or error.code == OUT_OF_MEMORY:
                raise
            self.reason = f"the driver does not take the kernel that decides: {error}"

    @staticmethod
    def of(device: Device) -> Setter:
        """That of a device, which is loaded once. Call it within `Device.work`."""
        if not isinstance(device.setter, Setter):
            device.setter = Setter(device)
        return device.setter


@dataclass(frozen=True)
class Decision:
    """Sets a condition to whether the bool at a place holds, or to the opposite.

    trips   a number on the device, which counts the decisions that follow the `first`
    limit   the number of trips from which on nothing holds any more
    """

    function: Function
    holds: int
    trips: int
    limit: int = ANY_TRIPS
    opposite: bool = False

    def on(self, driver: Driver, stream: Any, condition: int, first: bool = True) -> None:
        values = np.array((self.holds, self.trips, condition, self.limit, first, self.opposite), np.uint64)
        places = values.ctypes.data + POINTER_BYTES * np.arange(3, dtype=np.int64)
        driver.launch(self.function.handle, 1, 1, places.ctypes.data, stream)


class Part(Given):
    """A part of a graph that the device runs, or not."""

    @property
    def moves(self) -> bool:
        return False


@dataclass(frozen=True)
class Forked(Part):
    """A branch of which one side at least has something to do; `decision` is for `yes` if that has, else for `no`."""

    kernel: Kernel
    decision: Decision
    yes: Sequence[Given]
    no: Sequence[Given]

    def on(self, driver: Driver, stream: Any, overlapping: bool = False) -> None:
        condition = driver.condition(stream)
        self.decision.on(driver, stream, condition)
        driver.branch(condition, stream, [_body(driver, side) for side in (self.yes, self.no) if side])


@dataclass(frozen=True)
class Repeated(Part):
    """A loop, with what is given for the parts of `Rounds`."""

    kernel: Kernel
    decision: Decision
    begin: Sequence[Copy]
    test: Sequence[Given]
    odd: Sequence[Given]
    even: Sequence[Given]
    end: Sequence[Copy]

    def on(self, driver: Driver, stream: Any, overlapping: bool = False) -> None:
        """Behind an odd trip that is the last, the decision about the next round finds what it has found before."""
        _copy(driver, self.begin, stream)
        _give_apart(driver, self.test, stream)
        again = driver.condition(stream)
        self.decision.on(driver, stream, again)

        def two_trips(inner: Any) -> None:
            _give_apart(driver, self.odd, inner)
            goes_on = driver.condition(inner)
            self.decision.on(driver, inner, goes_on, first=False)
            ends = [lambda last: _copy(driver, self.end, last)] if self.end else []
            driver.branch(goes_on, inner, [_body(driver, self.even), *ends])
            self.decision.on(driver, inner, again, first=False)

        driver.branch(again, stream, [two_trips], repeated=True)


def _body(driver: Driver, given: Sequence[Given]) -> Callable[[Any], None]:
    return lambda stream: _give_apart(driver, given, stream)


def _give_apart(driver: Driver, given: Sequence[Given], stream: Any) -> None:
    """Gives a stream kernels of which none begins before the one before has ended."""
    for each in given:
        each.on(driver, stream)


def _copy(driver: Driver, copies: Sequence[Copy], stream: Any) -> None:
    for target, origin, nbytes in copies:
        driver.copy(target, origin, nbytes, stream)


class Branches:
    """What the device decides of a program at one size.

    by_host   why the host decides for the device; empty if it need not
    loops     whether data end a loop
    """

    def __init__(self, device: Device, program: Program, binding: Mapping[str, int]) -> None:
        self.device = device
        self.program = program
        self.binding = binding
        self.loops = _has_open_loop(program.main)
        self.mode = flags.cuda_conditional()
        self.by_host = ""
        self._trips: Memory | None = None

    def __str__(self) -> str:
        return f"the host decides: {self.by_host}" if self.by_host else "the device decides"

    def leave_to_host(self, reason: object) -> None:
        """From now on the host decides."""
        self.by_host = str(reason)
        logs.tell(logs.PASSES, "cuda", f"branches are decided by the host: {self.by_host}")

    def row(self, starts: Mapping[int, int], made: Make) -> list[Given]:
        """What a stream that notes a graph is given for the program, with `made` for kernels in a row. Call it within
        `Device.work`. Raises DecidedByHost."""
        if self.mode == "off":
            raise DecidedByHost("RLX_CUDA_CONDITIONAL is off")
        function = Setter.of(self.device).function
        if function is None:
            raise DecidedByHost(Setter.of(self.device).reason)
        unroller = Undecided(self.program, starts, self.binding, lambda dtype: dtype.itemsize)
        kernels = list(unroller.go(self.program.main))
        if self._trips is None:
            self._trips = self.device.allocate(COUNTER_BYTES * (MOST_BRANCHES + 1), "numbers of trips")
        return _Row(function, self._trips.pointer, made).of(kernels)


class _Row:
    """Makes what a stream is given. Each decision counts its trips in a number of its own."""

    def __init__(self, function: Function, trips: int, made: Make) -> None:
        self.function = function
        self.trips = trips
        self.made = made

    def of(self, kernels: Sequence[Started]) -> list[Given]:
        given: list[Given] = []
        plain: list[Started] = []
        for each in kernels:
            if not isinstance(each, Fork | Rounds):
                plain.append(each)
                continue
            given += self.made(plain) if plain else []
            plain = []
            given += self._forked(each) if isinstance(each, Fork) else [self._repeated(each)]
        return given + (self.made(plain) if plain else [])

    def _counter(self) -> int:
        self.trips += COUNTER_BYTES
        return self.trips - COUNTER_BYTES

    def _forked(self, fork: Fork) -> list[Given]:
        yes, no = self.of(fork.yes), self.of(fork.no)
        decision = Decision(self.function, fork.starts[0], self._counter(), opposite=not yes)
        return [Forked(fork.kernel, decision, yes, no)] if yes or no else []

    def _repeated(self, loop: Rounds) -> Given:
        decision = Decision(self.function, loop.starts[0], self._counter(), loop.limit)
        test, odd, even = (self.of(row) for row in (loop.test, loop.odd, loop.even))
        return Repeated(loop.kernel, decision, loop.begin, test, odd, even, loop.end)


def _has_open_loop(kernels: Sequence[Kernel]) -> bool:
    return any(
        (isinstance(k.work, Loop) and k.work.condition is not None) or _has_open_loop(k.children) for k in kernels
    )
