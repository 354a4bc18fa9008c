"""Times dispatches by timestamps that the device writes before and after each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.executable import KernelTime
from rlx.backends.wgpu.build import Step
from rlx.backends.wgpu.device import TIMESTAMPS, Device
from rlx.backends.wgpu.dispatches import DispatchSequence, encode_pass
from rlx.errors import ProfileError

TIMED_TOGETHER = 2048
"""Dispatches whose timestamps are one query set: WebGPU promises 4096 queries in each."""
STAMP_BYTES = 8


class KernelTimer:
    """Encodes sequences with a pass for each dispatch, and reads when these began and ended. Raises ProfileError on a
    device without timestamps."""

    def __init__(self, device: Device) -> None:
        if device.tick_ns is None:
            raise ProfileError(f"[profile] expected an adapter with the feature {TIMESTAMPS}, got {device.name}")
        self.device = device
        self.tick_ns = device.tick_ns
        self._written: list[tuple[Sequence[Step], Any]] = []

    def encode(self, sequence: DispatchSequence, encoder: Any) -> None:
        """Adds all dispatches of a sequence to a command encoder."""
        for first in range(0, len(sequence.steps), TIMED_TOGETHER):
            steps = sequence.steps[first : first + TIMED_TOGETHER]
            count = 2 * len(steps)
            queries = self.device.raw.create_query_set(type="timestamp", count=count)
            for i, dispatch in enumerate(sequence.dispatches[first : first + TIMED_TOGETHER]):
                stamps = {
                    "query_set": queries, "beginning_of_pass_write_index": 2 * i, "end_of_pass_write_index": 2 * i + 1
                }  # fmt: skip
                encode_pass(encoder, (dispatch,), stamps)
            stamped = self.device.buffer(count * STAMP_BYTES, "timestamps", "QUERY_RESOLVE", "COPY_SRC")
            encoder.resolve_query_set(queries, 0, count, stamped, 0)
            self._written.append((steps, stamped))

    def times(self, among: Sequence[Step]) -> list[KernelTime]:
        """The times of these steps in all that was encoded, after it was submitted."""
        spans: dict[int, list[tuple[int, int]]] = {id(step): [] for step in among}
        for steps, stamped in self._written:
            stamps = np.frombuffer(self.device.raw.queue.read_buffer(stamped), np.uint64)
            for step, (start, end) in zip(steps, stamps.reshape(-1, 2).tolist()):
                spans[id(step)].append((start, end))
        start = min((first for spans_of in spans.values() for first, _ in spans_of), default=0)
        return [self._time(step, spans[id(step)], start) for step in among]

    def _time(self, step: Step, spans: Sequence[tuple[int, int]], start: int) -> KernelTime:
        """A counter that began anew within a dispatch makes it one without time."""
        ticks = sum(max(end - begin, 0) for begin, end in spans)
        first = min((begin for begin, _ in spans), default=start) - start
        kernel = step.kernel
        return KernelTime(kernel.name, tuple(kernel.sources), len(spans), ticks * self.tick_ns, first * self.tick_ns)
