"""The random state that each run of a program gets: a key, and the number of the run."""

from __future__ import annotations

import os

import numpy as np

from rlx import locks
from rlx.errors import InputError
from rlx.ir.literal import Array


class RandomState:
    """Gives states, each once, from any thread. Without a seed the key is drawn from the system's source."""

    def __init__(self) -> None:
        self._lock = locks.lock()
        self.seed(None)

    def seed(self, seed: int | None) -> None:
        """The same seed gives the same states from here on; None draws a key. Raises InputError."""
        if seed is not None and not (isinstance(seed, int) and 0 <= seed < 1 << 64):
            raise InputError(f"[seed] expected an integer from 0 to 2⁶⁴ - 1, got {seed!r}")
        key = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        with self._lock:
            self._key, self._runs, self._seeded = key, 0, seed is not None

    def next(self) -> Array:
        """u32 [4]: the key, lower word first, and the number of the run."""
        with self._lock:
            key, run = self._key, self._runs
            self._runs += 1
        return np.array([key, run], "<u8").view("<u4").astype(np.uint32)

    @property
    def place(self) -> tuple[int, int] | None:
        """The seed, and the number of the next run; None without a seed."""
        with self._lock:
            return (self._key, self._runs) if self._seeded else None

    @place.setter
    def place(self, place: tuple[int, int] | None) -> None:
        """Goes on from a place; without one, numbers are of a key that nobody else has."""
        with self._lock:
            self._seeded = place is not None
            self._key, self._runs = place or (int.from_bytes(os.urandom(8), "little"), 0)

    def take_back(self, state: Array) -> None:
        """The state that was given last is the next again; nothing for any other."""
        key, run = (int(n) for n in np.ascontiguousarray(state).view("<u8"))
        with self._lock:
            if (key, run + 1) == (self._key, self._runs):
                self._runs = run
