"""Code shared by backends that run on the processor: its memory, and the traits that priors use."""

from __future__ import annotations

import os

from rlx.backends.cpu import isa, topology
from rlx.cost.prior import Traits


def traits(threads: int | None = None) -> Traits:
    """The processor by its instruction set and the threads that a program has; None takes all that it may use."""
    return Traits(isa.detect().name, {"threads": float(threads or topology.usable())})


def free_bytes() -> int | None:
    """Memory that programs can still get, where the system tells."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
