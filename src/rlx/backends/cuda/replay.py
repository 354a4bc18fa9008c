"""Graphs of what a run does on the stream: noted at the second run, replayed from then on. A driver that notes nothing
is given it each time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from rlx.backends.cuda.device import Device
from rlx.backends.cuda.launches import Given


class _Noted:
    """A graph that can be launched, and the launches that it was made of; none before it was made."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.executable: Any = None
        self.launches: Sequence[Given] = ()
        self.runs = 0

    def note(self, launches: Sequence[Given], run: Callable[[Any], None]) -> None:
        """Takes a run down. A graph whose pointers alone are others is updated, if its parts can be."""
        driver, stream = self.device.driver, self.device.stream
        driver.begin_capture(stream)
        try:
            run(stream)
        except BaseException:
            driver.drop_graph(driver.end_capture(stream))
            raise
        graph = driver.end_capture(stream)
        try:
            moves = self.executable is not None and all(each.moves for each in (*self.launches, *launches))
            if not moves or not driver.update(self.executable, graph):
                self._drop()
                self.executable = driver.instantiate(graph)
        finally:
            driver.drop_graph(graph)
        self.launches = launches

    def _drop(self) -> None:
        if self.executable is not None:
            self.device.later(self.device.driver.synchronise, self.device.stream)
            self.device.later(self.device.driver.drop_executable, self.executable)
            self.executable = None

    def __del__(self) -> None:
        self._drop()


class Replay:
    """The graphs of one program at one size, by what of it they do."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._noted: dict[Hashable, _Noted] = {}

    def run(self, key: Hashable, launches: Sequence[Given], run: Callable[[Any], None]) -> None:
        """Does what `run` gives a stream: directly at first, as many programs run once. `launches` are what it is of:
        where they are others than last time, the graph is another. Call it within `Device.work`."""
        driver, stream = self.device.driver, self.device.stream
        if not driver.captures:
            run(stream)
            driver.submit(stream)
        elif self.is_first(key):
            run(stream)
        else:
            self.note(key, launches, run)
            self.again(key)

    def is_first(self, key: Hashable) -> bool:
        """Whether nobody has asked this before."""
        noted = self._noted.setdefault(key, _Noted(self.device))
        noted.runs += 1
        return noted.runs == 1

    def note(self, key: Hashable, launches: Sequence[Given], run: Callable[[Any], None]) -> None:
        """Has a graph of what `run` gives a stream, for `again`. Call it within `Device.work`."""
        noted = self._noted[key]
        if noted.launches is not launches:
            noted.note(launches, run)

    def again(self, key: Hashable) -> None:
        """Runs the graph. Call it within `Device.work`."""
        self.device.driver.replay(self._noted[key].executable, self.device.stream)
