"""Times of calls that take turns, so that whatever slows the machine slows them all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def measure(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Medians in ms, in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(taken) for name, taken in times.items()}
