"""Memory of results that nobody has any more, where later runs put theirs: at the same places, so that the graphs of
earlier runs serve again (`direct.py`), and without calls of the driver."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from rlx.backends.cuda.device import Device, Memory

MOST_SPARES = 4
"""Of one result."""


class Spares:
    """Memory of the results of a program at one size, each of its own size in bytes. A place that was given back last
    is taken first. Whoever gives memory back does so in any thread; it is used again in the order of the device's
    stream.

    most_bytes   of all that is kept
    """

    def __init__(self, device: Device, sizes: Sequence[int], most_bytes: int) -> None:
        self.device = device
        self._sizes = tuple(sizes)
        self._free: tuple[list[int], ...] = tuple([] for _ in sizes)
        share = most_bytes // max(len(sizes), 1)
        self.reference = weakref.ref(self)
        self._most = tuple(min(share // max(size, 1), MOST_SPARES) for size in sizes)
        device.spares.add(self)

    def take(self, number: int, what: str) -> Memory:
        """Memory for a result. Call it within `Device.work`. Raises OutOfMemory."""
        try:
            pointer = self._free[number].pop()
        except IndexError:
            if not self._most[number]:
                return self.device.allocate(self._sizes[number], what)
            pointer = self.device.allocated(self._sizes[number], what)
        return SpareMemory(self, number, pointer, self._sizes[number])

    def put_back(self, number: int, pointer: int) -> bool:
        """Keeps memory for later; False where there is enough of it."""
        free = self._free[number]
        if len(free) >= self._most[number]:
            return False
        free.append(pointer)
        return True

    @property
    def nbytes(self) -> int:
        return sum(len(free) * size for free, size in zip(self._free, self._sizes))

    def give_back(self) -> None:
        """Gives back what nobody has."""
        for free in self._free:
            while free:
                self.device.later(self.device.driver.free, free.pop(), self.device.own_stream)

    def __del__(self) -> None:
        self.give_back()


class SpareMemory(Memory):
    """The memory of a result, which the next one gets. What other libraries have had goes another way: they may still
    read it on streams of theirs."""

    def __init__(self, spares: Spares, number: int, pointer: int, nbytes: int) -> None:
        super().__init__(spares.device, pointer, nbytes)
        self._spares = spares.reference
        self._number = number

    def __del__(self) -> None:
        spares = self._spares()
        if self.shared or spares is None or not spares.put_back(self._number, self.pointer):
            super().__del__()
