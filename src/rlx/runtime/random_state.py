"""The state of random numbers that each run of a program gets: a key, and the number of the run."""

from __future__ import annotations

import itertools
import secrets

import numpy as np

from rlx.errors import InputError
from rlx.ir.literal import Array


class RandomState:
    """Gives states, each once, from any thread. Without a seed the key is drawn from the system's source."""

    def __init__(self) -> None:
        self.seed(None)

    def seed(self, seed: int | None) -> None:
        """The same seed gives the same states from here on; None draws a key. Raises InputError."""
        if seed is not None and not (isinstance(seed, int) and 0 <= seed < 1 << 64):
            raise InputError(f"[seed] expected an integer from 0 to 2⁶⁴ - 1, got {seed!r}")
        key = secrets.randbits(64) if seed is None else seed
        # one assignment, so that a run in another thread sees a key with its own count
        self._source = (key, itertools.count())

    def next(self) -> Array:
        """u32 [4]: the key, lower word first, and the number of the run."""
        key, runs = self._source
        return np.array([key, next(runs)], "<u8").view("<u4").astype(np.uint32)
