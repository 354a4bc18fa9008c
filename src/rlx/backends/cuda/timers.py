"""Times kernels by events between them. Where a graph can record these, the host is in nobody's way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.backends.cuda.device import Device
from rlx.backends.cuda.launches import Given
from rlx.backends.executable import KernelTime
from rlx.kernel.ir.program import Kernel, leaves


class KernelTimer:
    """Runs launches with an event before the first and behind each."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._rows: list[tuple[list[Given], list[Any]]] = []

    def run(self, given: Sequence[Given]) -> None:
        """Call it within `Device.work`."""
        if not given:
            return
        driver, stream = self.device.driver, self.device.stream
        events = [driver.event(timed=True) for _ in range(len(given) + 1)]
        self._rows.append((list(given), events))
        if not driver.times_in_graphs:
            self._give(given, events)
            return
        driver.begin_capture(stream)
        try:
            self._give(given, events)
        finally:
            graph = driver.end_capture(stream)
        executable = driver.instantiate(graph)
        driver.drop_graph(graph)
        driver.replay(executable, stream)
        self.device.later(driver.drop_executable, executable)

    def _give(self, given: Sequence[Given], events: Sequence[Any]) -> None:
        driver, stream = self.device.driver, self.device.stream
        driver.record(events[0], stream, driver.times_in_graphs)
        for launch, event in zip(given, events[1:]):
            launch.on(driver, stream)
            driver.record(event, stream, driver.times_in_graphs)

    def times(self, kernels: Sequence[Kernel]) -> list[KernelTime]:
        """Of these, in all that ran and has ended. Call it within `Device.work`."""
        driver = self.device.driver
        spans: dict[int, list[tuple[float, float]]] = {}
        start = self._rows[0][1][0] if self._rows else None
        for given, events in self._rows:
            for launch, before, after in zip(given, events, events[1:]):
                first = driver.elapsed_ns(start, before)
                spans.setdefault(id(launch.kernel), []).append((first, driver.elapsed_ns(before, after)))
            for event in events[1:]:
                self.device.later(driver.drop_event, event)
        return [self._time(kernel, spans.get(id(kernel), [])) for kernel in leaves(kernels)]

    def _time(self, kernel: Kernel, spans: Sequence[tuple[float, float]]) -> KernelTime:
        total, first = sum(ns for _, ns in spans), min((at for at, _ in spans), default=0.0)
        return KernelTime(kernel.name, tuple(kernel.sources), len(spans), total, first)
