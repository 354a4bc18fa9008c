"""Graphs of what a run does on the stream: noted at the second run, replayed from then on. A driver that notes nothing
is given it each time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from rlx.backends.cuda.device import Device
from rlx.backends.cuda.launches import Given

Go = Callable[[Any], None]
"""Gives a stream something."""


class Noted:
    """A graph that can be launched, and the launches that it was made of; none before it was made."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.executable: Any = None
        self.launches: Sequence[Given] = ()
        self.runs = 0

    def note(self, launches: Sequence[Given], run: Go) -> None:
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

    def run(self, stream: Any) -> None:
        self.device.driver.replay(self.executable, stream)

    def _drop(self) -> None:
        if self.executable is not None:
            self.device.later(self.device.driver.synchronise, self.device.own_stream)
            self.device.later(self.device.driver.drop_executable, self.executable)
            self.executable = None

    def __del__(self) -> None:
        self._drop()


class Replay:
    """The graphs of one program at one size, by what of it they do."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._noted: dict[Hashable, Noted] = {}

    def ready(self, key: Hashable, launches: Sequence[Given], run: Go) -> Go:
        """What gives a stream all that `run` does: that itself at first, as many programs run once. `launches` are what
        it is of: where they are others than last time, the graph is another. Call it within `Device.work`."""
        driver = self.device.driver
        if not driver.captures:

            def submitted(stream: Any) -> None:
                run(stream)
                driver.submit(stream)

            return submitted
        if self.is_first(key):
            return run
        self.note(key, launches, run)
        return self.graph(key)

    def latest(self, key: Hashable, launches: Sequence[Given]) -> Go | None:
        """The graph of these very launches, if there is one."""
        noted = self._noted.get(key)
        return noted.run if noted is not None and noted.executable is not None and noted.launches is launches else None

    def is_first(self, key: Hashable) -> bool:
        """Whether nobody has asked this before."""
        noted = self._noted.get(key)
        if noted is None:
            noted = self._noted[key] = Noted(self.device)
        noted.runs += 1
        return noted.runs == 1

    def note(self, key: Hashable, launches: Sequence[Given], run: Go) -> None:
        """Has a graph of what `run` gives a stream, for `graph`. Call it within `Device.work`."""
        noted = self._noted[key]
        if noted.launches is not launches:
            noted.note(launches, run)

    def graph(self, key: Hashable) -> Go:
        """Runs the graph. Call it within `Device.work`."""
        return self._noted[key].run
