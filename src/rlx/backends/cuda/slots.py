"""Staging: memory of the host and of the device for what comes and what goes, of runs that overlap and of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.cuda.build import Arena
from rlx.backends.cuda.device import Device, Event, Pinned
from rlx.ir.literal import Array


class StagedTable:
    """A table of sizes on its way to the device. Made within `Device.work`."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device = device
        self.pinned = Pinned(device, nbytes)
        self.brought = Event(device)

    def bring(self, table: Array, place: int, stream: Any) -> None:
        """Has a stream copy a table to the device, when the last one has gone."""
        self.brought.wait()
        self.pinned.bytes[: table.nbytes] = table.view(np.uint8)
        self.device.driver.copy_in(place, self.pinned.pointer, table.nbytes, stream)
        self.brought.record(stream)


class Slot:
    """What one run in flight has. Copies between host and device have streams of their own, beside kernels; the device
    copies between its staging and the arena, which kernels of one run after the other have.

    held   the run's inputs, which may be another library's to give back
    """

    def __init__(self, device: Device, arena: Arena) -> None:
        self.device = device
        self.held: Sequence[Any] = ()
        self.out_bytes = arena.outputs_end - arena.inputs_end
        self.incoming = Pinned(device, arena.inputs_end)
        self.outgoing = Pinned(device, self.out_bytes)
        self._in = device.allocate(arena.inputs_end, "staged inputs")
        self._out = device.allocate(self.out_bytes, "staged outputs")
        driver = device.driver
        self._brought, self._computed, self._done = (driver.event() for _ in range(3))
        driver.record(self._computed, device.stream)
        driver.wait(device.incoming, self._computed)  # the memory is there in the order of the stream

    def bring(self, blocks: Sequence[tuple[int, int]], arena: int) -> None:
        """Brings parts of the staged inputs to the arena."""
        driver, device = self.device.driver, self.device
        if not blocks:
            return
        for first, size in blocks:
            driver.copy_in(self._in.pointer + first, self.incoming.pointer + first, size, device.incoming)
        driver.record(self._brought, device.incoming)
        driver.wait(device.stream, self._brought)
        for first, size in blocks:
            driver.copy(arena + first, self._in.pointer + first, size, device.stream)

    def fetch(self, outputs: int) -> None:
        """Brings all outputs of the arena to the host."""
        driver, device = self.device.driver, self.device
        if self.out_bytes:
            driver.copy(self._out.pointer, outputs, self.out_bytes, device.stream)
        driver.record(self._computed, device.stream)
        driver.wait(device.outgoing, self._computed)
        if self.out_bytes:
            driver.copy_out(self.outgoing.pointer, self._out.pointer, self.out_bytes, device.outgoing)
        driver.record(self._done, device.outgoing)

    def wait(self) -> None:
        """Waits until the outputs are on the host. Nothing of the slot is in use any more then."""
        self.device.driver.wait_for(self._done)

    def __del__(self) -> None:
        if hasattr(self, "_done"):
            for event in (self._brought, self._computed, self._done):
                self.device.later(self.device.driver.drop_event, event)
