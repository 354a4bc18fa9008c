"""State: what one user of a program keeps from run to run, and the declarations that change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rlx import locks
from rlx.errors import InputError
from rlx.ir.literal import Array
from rlx.runtime.extent import check_extent
from rlx.runtime.mode import PLAIN, Mode, Observer, check_feeds
from rlx.runtime.program import Program
from rlx.runtime.signature import check_handle


class State:
    """The mode of a program, replaced as a whole. Every method may be called from many threads.

    settle   waits for the runs that were queued before a change, which see the mode as it was
    """

    def __init__(self, program: Program, settle: Callable[[], None], mode: Mode = PLAIN) -> None:
        self.program = program
        self.mode = mode
        self._settle = settle
        self._turn = locks.rlock()  # of runs that feed, and of changes

    def run(self, run: Callable[[Mode], list[Array]], copy: bool) -> list[Array]:
        """A run in the mode that holds. Where results feed handles, runs take turns.

        copy   the results lie in arrays of the caller, which may write to them
        """
        if not self.mode.feeds:
            return run(self.mode)
        with self._turn:
            mode = self.mode
            results = run(mode)
            handles = mode.fed(dict(zip(self.program.output_names, results)), copy)
            self.mode = replace(mode, handles=handles)
            return results

    def _change(self, change: Callable[[Mode], Mode]) -> None:
        """Replaces the mode, after the runs that were queued before."""
        self._settle()
        with self._turn:
            self.mode = change(self.mode) or PLAIN

    def now(self) -> Mode:
        """The mode, when the runs that were queued before are done and no run that feeds is on its way."""
        self._settle()
        with self._turn:
            return self.mode

    def bind_handle(self, name: str, array: Any) -> None:
        """Raises InputError."""
        signature = self.program.signature
        if name not in signature.names:
            raise InputError(f"[bind_handle] expected an input among {list(signature.names)}, got {name!r}")
        value = check_handle(name, array, signature.types[name])
        self._change(lambda mode: replace(mode, handles={**mode.handles, name: value}))

    def read_handle(self, name: str) -> Array:
        """Raises InputError."""
        self._settle()
        handles = self.mode.handles
        if name not in handles:
            raise InputError(f"[read_handle] expected an input with a handle among {list(handles)}, got {name!r}")
        return handles[name]

    def unbind_handle(self, name: str) -> None:
        """Raises InputError where the input has no handle, or a feed."""

        def without(mode: Mode) -> Mode:
            if name not in mode.handles:
                wanted = f"an input with a handle among {list(mode.handles)}"
                raise InputError(f"[unbind_handle] expected {wanted}, got {name!r}")
            if name in mode.feeds.values():
                raise InputError(f"[unbind_handle] expected an input that no output feeds, got {name!r}")
            return replace(mode, handles={k: v for k, v in mode.handles.items() if k != name})

        self._change(without)

    def set_feeds(self, feeds: Mapping[str, str]) -> None:
        """Raises InputError for types that do not go together."""
        given = dict(feeds)

        def with_feeds(mode: Mode) -> Mode:
            check_feeds(self.program.graph, given, mode.handles)
            return replace(mode, feeds=given)

        self._change(with_feeds)

    def set_active_extent(self, dim: str, extent: int | None) -> None:
        """Raises InputError, CapabilityError."""
        if extent is None:
            self._change(lambda mode: replace(mode, extents={k: n for k, n in mode.extents.items() if k != dim}))
            return
        self.program.executable.capabilities.require("active_extent", self.program.device)
        check_extent(self.program.graph, dim, extent)
        self._change(lambda mode: replace(mode, extents={**mode.extents, dim: extent}))

    def observe(self, observer: Observer) -> None:
        """From now on the observer sees its values of each run."""
        self._change(lambda mode: replace(mode, observers=(*_without(mode, observer), observer)))

    def unobserve(self, observer: Observer) -> None:
        """The observer sees no more runs."""
        self._change(lambda mode: replace(mode, observers=_without(mode, observer)))


def _without(mode: Mode, observer: Observer) -> tuple[Observer, ...]:
    return tuple(each for each in mode.observers if each is not observer)
