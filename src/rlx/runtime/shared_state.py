"""What stays between the runs of a graph that has programs on several devices.

It exists once, and is where the last run was. A program on another device gets a copy through the host when it runs,
and has it from then on if that run succeeds; otherwise it stays where it was, unchanged. While it is nowhere else it
is in the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar
from weakref import WeakSet

from rlx import locks
from rlx.backends.executable import Bound, Executable
from rlx.backends.failures import structured, translated
from rlx.backends.memory import DeviceArray
from rlx.errors import DriverError, StateLost
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.runtime.demands import Demands
from rlx.runtime.mode import PLAIN, Kept, Mode
from rlx.runtime.program import Program
from rlx.runtime.random_state import RandomState
from rlx.runtime.signature import check_handle
from rlx.runtime.state import State, begun, held

T = TypeVar("T")


class _NoCode(Executable):
    """Of a program that only keeps values on the host."""

    def set_params(self, params: object) -> None:
        """It has no use for weights."""

    def bind(self, binding: object) -> Bound:
        raise AssertionError("the host's part of a shared state does not run")


class SharedState:
    """One state for several programs of a graph: handles, feeds, extents, states, and the place in the random numbers.

    lock     of everything in here, and of the runs of all members that feed or have states
    holder   the member whose mode it is; the modes of others are `away` if there is anything to bring
    lost     handles and states that were on a device that does not give them any more, until they are bound again
    """

    def __init__(self, graph: Graph) -> None:
        self.lock = locks.rlock()
        self.lost: dict[str, StateLost] = {}
        self._members: WeakSet[State] = WeakSet()
        program = Program(graph, "host", _NoCode(), demands=Demands({}, {}, [], []))
        self.random: RandomState | None = program.signature.random
        self._home = State(program, lambda: None, begun(program, PLAIN), self)
        self.holder = self._home

    def join(self, member: State) -> None:
        """A program on another device, which draws random numbers from the same place as all others."""
        if self.random is not None:
            member.program.signature.random = self.random
        with self.lock:
            self._members.add(member)
            self.changed()

    def others(self, member: State) -> list[State]:
        """All members but one."""
        with self.lock:
            return [other for other in self._members if other is not member]

    def changed(self) -> None:
        """Tells all members but the holder whether there is anything to bring before they run. Call it with the
        lock."""
        elsewhere = bool(self.lost) or bool(self.holder.mode.unobserved())
        for member in (self._home, *self._members):
            if member is not self.holder:
                member.mode = Mode(observers=member.mode.observers, away=elsewhere) or PLAIN

    def refuse_lost(self) -> None:
        """Raises StateLost if something is to be bound again before a run."""
        with self.lock:
            if self.lost:
                first = next(iter(self.lost.values()))
                raise StateLost(first.device, list(self.lost), first.reason) from first

    def lend(self, member: State, work: Callable[[], T]) -> T:
        """Does work of a member that is no holder with a copy of the state, which is the state if the work succeeds.
        Call it with the lock."""
        before = member.mode
        member.mode = self.copied_for(member) or PLAIN
        try:
            result = work()
        except BaseException:
            member.mode = before
            raise
        self.holder = member
        self.changed()
        return result

    def copied_for(self, member: State) -> Mode:
        """The mode with arrays of a member's own, in its memory, and its own observers. Call it with the lock.

        Raises StateLost that names what the device does not give; what it gives is on the host then. Raises
        CapabilityError for active extents that the member's program cannot have.
        """
        mode, program = self.holder.mode, member.program
        if mode.extents:
            program.executable.capabilities.require("active_extent", program.device)
        on_host = self._on_host(mode)
        with translated("run", program.device):
            arrays = _arrays_for(program, on_host)
        return replace(_with_arrays(mode, arrays), observers=member.mode.observers)

    def take_copy(self, other: SharedState) -> None:
        """Begins with a copy of what another graph's programs share. Raises StateLost."""
        other.holder.settle()
        with other.lock:
            other.refuse_lost()
            on_host = other._on_host(other.holder.mode)
            self._begin(other.holder.mode, on_host, other.random)

    def take_copy_of(self, member: State) -> None:
        """Begins with a copy of what a program of the graph keeps."""
        mode = member.now(copied=True)
        on_host = {name: _host_array(value) for name, value in {**mode.handles, **mode.states}.items()}
        self._begin(mode, on_host, member.program.signature.random)

    def _begin(self, mode: Mode, on_host: dict[str, Array], random: RandomState | None) -> None:
        with self.lock:
            arrays = _arrays_for(self._home.program, on_host)
            self._home.mode = replace(_with_arrays(mode, arrays), observers=()) or PLAIN
            if self.random is not None and random is not None:
                self.random.place = random.place
            self.changed()

    def come_home(self, leaving: State) -> None:
        """Moves the state to the host if this member has it. What cannot be moved is lost; the next run says so."""
        with self.lock:
            if self.holder is leaving:
                with suppress(StateLost):  # `lost` names it, and every later run raises it
                    self.lend(self._home, lambda: None)

    def _on_host(self, mode: Mode) -> dict[str, Array]:
        there: dict[str, Array] = {}
        lost: dict[str, Exception] = {}
        device = self.holder.program.device
        for name, value in {**mode.handles, **mode.states}.items():
            try:
                there[name] = _host_array(value)
            except Exception as error:
                failure = structured(error, "run", device)
                if not isinstance(failure, DriverError):
                    raise
                lost[name] = failure
        if lost:
            cause = next(iter(lost.values()))
            told = StateLost(device, list(lost), str(cause))
            self._lose(told, there)
            raise told from cause
        return there

    def _lose(self, error: StateLost, rest: dict[str, Array]) -> None:
        """Keeps on the host what is left."""
        arrays = _arrays_for(self._home.program, rest)
        self._home.mode = replace(_with_arrays(self.holder.mode, arrays), observers=())
        self.holder = self._home
        self.lost |= dict.fromkeys(error.names, error)
        self.changed()


def _with_arrays(mode: Mode, arrays: dict[str, Kept]) -> Mode:
    """The mode with these arrays for its own, by name."""
    handles = {name: arrays[name] for name in mode.handles if name in arrays}
    states = {name: arrays[name] for name in mode.states if name in arrays}
    return replace(mode, handles=handles, states=states)


def _arrays_for(program: Program, arrays: dict[str, Array]) -> dict[str, Kept]:
    """Copies in a program's memory."""
    types = program.signature.types
    return {name: held(program, name, check_handle(name, array, types[name])) for name, array in arrays.items()}


def _host_array(value: Kept) -> Array:
    return value.numpy() if isinstance(value, DeviceArray) else value
