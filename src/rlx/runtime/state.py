"""State: what one user of a program keeps from run to run, and the declarations that change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import locks
from rlx.backends.memory import DeviceArray, Where
from rlx.errors import CapabilityError, InputError, did_you_mean
from rlx.ir import dim as dims
from rlx.ir.literal import Array
from rlx.runtime.extent import check_extent
from rlx.runtime.mode import PLAIN, Kept, Mode, Observer, check_feeds
from rlx.runtime.pipeline import is_queued_run
from rlx.runtime.program import Program
from rlx.runtime.signature import check_handle

if TYPE_CHECKING:
    from rlx.runtime.shared_state import SharedState

Run = Callable[[Mode, Sequence[Where] | None], list[Any]]
"""A run in a mode, whose outputs are wanted somewhere."""


class State:
    """The mode of a program, replaced as a whole. Every method may be called from many threads.

    settle   waits for the runs that were queued before a change, which see the mode as it was
    shared   what this program shares with those of the same graph on other devices; it may be with one of them
    """

    def __init__(
        self, program: Program, settle: Callable[[], None], mode: Mode = PLAIN, shared: SharedState | None = None
    ) -> None:
        self.program = program
        self.mode = mode
        self.settle = settle
        self._shared = shared
        self._turn = locks.rlock() if shared is None else shared.lock  # of runs that feed, and of changes

    def run(self, run: Run, copy: bool, destinations: Sequence[Where] | None = None) -> list[Any]:
        """A run in the mode that holds, without the next values of states. Where results feed handles, or there are
        states, runs take turns.

        copy     the results lie in arrays of the caller, which may write to them
        wanted   where each of the results is wanted; the host if that is not said
        """
        mode, shared = self.mode, self._shared
        if not (mode.feeds or mode.away or self.program.signature.states):
            return run(mode, destinations)
        if shared is None:
            return self._run_in_turn(run, copy, destinations)
        self.settle_others()
        with self._turn:
            shared.refuse_lost()
            if self.mode.away:
                return shared.lend(self, lambda: self._run_in_turn(run, copy, destinations))
            return self._run_in_turn(run, copy, destinations)

    def _run_in_turn(self, run: Run, copy: bool, destinations: Sequence[Where] | None) -> list[Any]:
        program = self.program
        with self._turn:
            mode = self.mode
            results = run(mode, self._destinations(mode, destinations))
            states: Mapping[str, Kept] = mode.states
            for name, at in program.next_at:
                if results[at] is not states[name]:
                    states = {**states, name: results[at]}
            if program.next_at:
                results = [results[at] for at in program.output_at]
            if mode.feeds:
                handles = mode.fed(dict(zip(program.output_names, results)), copy)
                self.mode = replace(mode, handles=handles, states=states)
            elif states is not mode.states:
                self.mode = replace(mode, states=states)
        if program.place is not None and mode.feeds:  # what stays may be wanted on the host too
            there = destinations or ["host"] * len(results)
            results = [r.numpy() if w == "host" and isinstance(r, DeviceArray) else r for r, w in zip(results, there)]
        return results

    def _destinations(self, mode: Mode, requested: Sequence[Where] | None) -> list[Where] | None:
        """Where all outputs of the program go: what is kept stays on the device. None where that is the host."""
        program = self.program
        if program.place is None:
            return None
        places: list[Where] = ["device"] * len(program.interface.outputs)
        for i, (name, at) in enumerate(zip(program.output_names, program.output_at)):
            if name not in mode.feeds:
                wanted = "host" if requested is None else requested[i]
                places[at] = "device" if wanted == "unchecked" else wanted  # a run that fails changes nothing
        return places

    def look(self, run: Callable[[Mode], list[Any]]) -> list[Any]:
        """A run in the mode that holds, of a program that changes no states."""
        if not self.program.signature.states and not self.mode.away:
            return run(self.mode)
        self.settle_others()
        with self._turn:
            return run(self._here())

    def rehearse(self, run: Run) -> list[Any]:
        """A run in a copy of the mode, which changes nothing that stays. The results of feeds stay on the device."""
        mode = self.now(copied=True).unobserved()
        return run(mode, self._destinations(mode, None))

    def settle_others(self) -> None:
        """Waits for the runs that were queued for other programs with the same state. Runs that are themselves queued
        do not wait for another queue: two of these would wait for each other."""
        if self._shared is not None and self.mode is not PLAIN and not is_queued_run():
            for other in self._shared.others(self):
                other.settle()

    def leave(self) -> None:
        """The program is about to be closed: a state that it shares goes on without it."""
        if self._shared is not None:
            self._shared.come_home(self)

    def _here(self) -> Mode:
        """The mode, or a copy of the one that is with another program. Call it with the lock."""
        if self._shared is None:
            return self.mode
        self._shared.refuse_lost()
        return self._shared.copied_for(self) if self.mode.away else self.mode

    def _change(self, change: Callable[[Mode], Mode], bound: str | None = None) -> None:
        """Replaces the mode, after the runs that were queued before. `bound` has a new value now."""
        self.settle()
        self.settle_others()
        with self._turn:
            shared = self._shared
            if shared is not None and self.mode.away:
                shared.lend(self, lambda: None)
            self.mode = change(self.mode) or PLAIN
            if shared is not None:
                if bound is not None:
                    shared.lost.pop(bound, None)
                shared.changed()

    def now(self, copied: bool = False) -> Mode:
        """The mode, when the runs that were queued before are done and no run that feeds is on its way; with arrays of
        states of its own if it is `copied`."""
        self.settle()
        self.settle_others()
        with self._turn:
            if self.mode.away:
                return self._here()
            return self._here().copied() if copied else self._here()

    def bind_handle(self, name: str, array: Any) -> None:
        """Raises InputError."""
        signature = self.program.signature
        known = [*signature.names, *signature.states]
        if name not in known:
            near = did_you_mean(name, known)
            raise InputError(f"[bind_handle] expected an input or a state among {known}, got {name!r}{near}")
        value = held(self.program, name, check_handle(name, array, signature.types[name], self.program.place))
        if name in signature.states:
            self._change(lambda mode: replace(mode, states={**mode.states, name: value}), bound=name)
        else:
            self._change(lambda mode: replace(mode, handles={**mode.handles, name: value}), bound=name)

    def read_handle(self, name: str) -> Array:
        """Raises InputError, StateLost."""
        self.settle()
        self.settle_others()
        shared = self._shared
        if shared is None and name not in self.program.signature.states:
            return self._value(name)
        with self._turn:  # a run may be writing to it
            if shared is None:
                return self._value(name)
            if name in shared.lost:
                shared.refuse_lost()
            return shared.holder._value(name)

    def _value(self, name: str) -> Array:
        mode = self.mode
        if name in self.program.signature.states:
            if name not in mode.states:
                raise InputError(f"[read_handle] expected a state that was bound, got {name!r}")
            value = _host_copy(mode.states[name])
            value.flags.writeable = False
            return value
        if name not in mode.handles:
            known = [*mode.handles, *mode.states]
            near, wanted = did_you_mean(name, known), "an input with a handle, or a state,"
            raise InputError(f"[read_handle] expected {wanted} among {known}, got {name!r}{near}")
        handle = mode.handles[name]
        if not isinstance(handle, DeviceArray):
            return handle
        value = _host_copy(handle)
        value.flags.writeable = False
        return value

    def handles(self) -> tuple[str, ...]:
        """Names of the inputs that have a handle, and of the states that have a value."""
        self.settle()
        mode = self.mode if self._shared is None else self._shared.holder.mode
        return (*mode.handles, *mode.states)

    def unbind_handle(self, name: str) -> None:
        """Raises InputError where the input has no handle, or a feed."""

        def without(mode: Mode) -> Mode:
            if name not in mode.handles:
                names = f"an input with a handle among {list(mode.handles)}"
                raise InputError(f"[unbind_handle] expected {names}, got {name!r}{did_you_mean(name, mode.handles)}")
            if name in mode.feeds.values():
                raise InputError(f"[unbind_handle] expected an input that no output feeds, got {name!r}")
            return replace(mode, handles={k: v for k, v in mode.handles.items() if k != name})

        self._change(without)

    def set_feeds(self, feeds: Mapping[str, str]) -> None:
        """Raises InputError for types that do not go together."""
        new_feeds = dict(feeds)

        def with_feeds(mode: Mode) -> Mode:
            check_feeds(self.program.interface, new_feeds, mode.handles)
            return replace(mode, feeds=new_feeds)

        self._change(with_feeds)

    def set_active_extent(self, dim: str, extent: int | None) -> None:
        """Raises InputError, CapabilityError."""
        if extent is None:
            self._change(lambda mode: replace(mode, extents={k: n for k, n in mode.extents.items() if k != dim}))
            return
        self.program.executable.capabilities.require("active_extent", self.program.device)
        if self.program.signature.states:
            states = list(self.program.signature.states)
            raise CapabilityError(f"[set_active_extent] expected a program without states, got one with {states}")
        check_extent(self.program.graph, dim, extent)
        self._change(lambda mode: replace(mode, extents={**mode.extents, dim: extent}))

    def observe(self, observer: Observer) -> None:
        """From now on the observer sees its values of each run."""
        self._change(lambda mode: replace(mode, observers=(*_without(mode, observer), observer)))

    def unobserve(self, observer: Observer) -> None:
        """The observer sees no more runs."""
        self._change(lambda mode: replace(mode, observers=_without(mode, observer)))


def held(program: Program, name: str, value: Kept) -> Kept:
    """An array of nobody else as the value of a handle or a state, in the program's memory."""
    if not isinstance(value, DeviceArray):
        value = program.executable.put(name, value)
    if not isinstance(value, DeviceArray):
        value.flags.writeable = name in program.signature.states
    return value


def begun(program: Program, mode: Mode) -> Mode:
    """The mode in which a program begins: states that it does not tell are zeros, if their dims are numbers."""
    fresh: dict[str, Kept] = {}
    for name, of in program.signature.states.items():
        if of.is_static and name not in mode.states:
            shape = tuple(dims.evaluate(d, {}) for d in of.shape)
            fresh[name] = program.executable.put(name, np.zeros(shape, of.dtype.numpy))
    return replace(mode, states={**fresh, **mode.states}) if fresh else mode


def _host_copy(value: Kept) -> Array:
    return np.array(value.numpy() if isinstance(value, DeviceArray) else value)


def _without(mode: Mode, observer: Observer) -> tuple[Observer, ...]:
    return tuple(each for each in mode.observers if each is not observer)
