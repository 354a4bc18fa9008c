"""State: what one user of a program keeps from run to run, and the declarations that change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlx import locks
from rlx.backends.memory import DeviceArray, Where
from rlx.errors import CapabilityError, InputError
from rlx.ir import dim as dims
from rlx.ir.literal import Array
from rlx.runtime.extent import check_extent
from rlx.runtime.mode import PLAIN, Kept, Mode, Observer, check_feeds
from rlx.runtime.program import Program
from rlx.runtime.signature import check_handle

Run = Callable[[Mode, Sequence[Where] | None], list[Any]]
"""A run in a mode, whose outputs are wanted somewhere."""


class State:
    """The mode of a program, replaced as a whole. Every method may be called from many threads.

    settle   waits for the runs that were queued before a change, which see the mode as it was
    """

    def __init__(self, program: Program, settle: Callable[[], None], mode: Mode = PLAIN) -> None:
        self.program = program
        self.mode = mode
        self._settle = settle
        self._turn = locks.rlock()  # of runs that feed, and of changes

    def run(self, run: Run, copy: bool, destinations: Sequence[Where] | None = None) -> list[Any]:
        """A run in the mode that holds, without the next values of states. Where results feed handles, or there are
        states, runs take turns.

        copy     the results lie in arrays of the caller, which may write to them
        wanted   where each of the results is wanted; the host if that is not said
        """
        program = self.program
        if not self.mode.feeds and not program.signature.states:
            return run(self.mode, destinations)
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
                places[at] = "host" if requested is None else requested[i]
        return places

    def look(self, run: Callable[[Mode], list[Any]]) -> list[Any]:
        """A run in the mode that holds, of a program that changes no states."""
        if not self.program.signature.states:
            return run(self.mode)
        with self._turn:
            return run(self.mode)

    def _change(self, change: Callable[[Mode], Mode]) -> None:
        """Replaces the mode, after the runs that were queued before."""
        self._settle()
        with self._turn:
            self.mode = change(self.mode) or PLAIN

    def now(self, copied: bool = False) -> Mode:
        """The mode, when the runs that were queued before are done and no run that feeds is on its way; with arrays of
        states of its own if it is `copied`."""
        self._settle()
        with self._turn:
            return self.mode.copied() if copied else self.mode

    def bind_handle(self, name: str, array: Any) -> None:
        """Raises InputError."""
        signature = self.program.signature
        known = [*signature.names, *signature.states]
        if name not in known:
            raise InputError(f"[bind_handle] expected an input or a state among {known}, got {name!r}")
        value = held(self.program, name, check_handle(name, array, signature.types[name], self.program.place))
        if name in signature.states:
            self._change(lambda mode: replace(mode, states={**mode.states, name: value}))
        else:
            self._change(lambda mode: replace(mode, handles={**mode.handles, name: value}))

    def read_handle(self, name: str) -> Array:
        """Raises InputError."""
        self._settle()
        if name in self.program.signature.states:
            with self._turn:  # a run may be writing to it
                states = self.mode.states
                if name not in states:
                    raise InputError(f"[read_handle] expected a state that was bound, got {name!r}")
                value = _host_copy(states[name])
            value.flags.writeable = False
            return value
        handles = self.mode.handles
        if name not in handles:
            known = [*handles, *self.mode.states]
            raise InputError(f"[read_handle] expected an input with a handle, or a state, among {known}, got {name!r}")
        handle = handles[name]
        if not isinstance(handle, DeviceArray):
            return handle
        value = _host_copy(handle)
        value.flags.writeable = False
        return value

    def handles(self) -> tuple[str, ...]:
        """Names of the inputs that have a handle, and of the states that have a value."""
        self._settle()
        mode = self.mode
        return (*mode.handles, *mode.states)

    def unbind_handle(self, name: str) -> None:
        """Raises InputError where the input has no handle, or a feed."""

        def without(mode: Mode) -> Mode:
            if name not in mode.handles:
                names = f"an input with a handle among {list(mode.handles)}"
                raise InputError(f"[unbind_handle] expected {names}, got {name!r}")
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
