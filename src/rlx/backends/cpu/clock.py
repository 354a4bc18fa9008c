"""The processor's time stamp counter, which profiling code reads."""

from __future__ import annotations

import ctypes
import time
from functools import cache

WATCHED_NS = 2_000_000


@cache
def ns_per_tick() -> float:
    """Nanoseconds of a tick of the counter, measured against the system's clock."""
    from rlx.backends.cpu import isa
    from rlx.backends.cpu.jit import Loaded, emit_objects

    target = isa.widest()
    text = (
        f"declare i64 @{target.clock}()\n"
        f"define i64 @rlx_ticks() {{\n  %now = call i64 @{target.clock}()\n  ret i64 %now\n}}\n"
    )
    loaded = Loaded(emit_objects([text], target), target)
    ticks = ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.address("rlx_ticks"))
    first_ns, first = time.perf_counter_ns(), ticks()
    while time.perf_counter_ns() - first_ns < WATCHED_NS:
        pass
    last_ns, last = time.perf_counter_ns(), ticks()
    return float(last_ns - first_ns) / max(int(last - first), 1)
