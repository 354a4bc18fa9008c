"""The bind cache: executables bound to sizes, kept by their last use."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from rlx import flags, locks
from rlx.backends.executable import Bound

Key = tuple[Any, ...]
"""Shapes of the inputs; with active extents a pair of these and the extents."""
MAX_BINDINGS = 256


class BindCache:
    """Bounds by input shapes, the least recently used dropped first; limited in number and in bytes."""

    def __init__(self, max_count: int = MAX_BINDINGS, max_bytes: int | None = None) -> None:
        self.max_count = max_count
        self.max_bytes = flags.plan_bytes() if max_bytes is None else max_bytes
        self._plans: OrderedDict[Key, Bound] = OrderedDict()
        self._lock = locks.rlock()
        self._latest: Bound | None = None

    def get(self, key: Key) -> Bound | None:
        """The plan for these shapes, if there is one."""
        bound = self._plans.get(key)
        if bound is not self._latest and bound is not None:
            with self._lock:
                if key in self._plans:
                    self._plans.move_to_end(key)
                    self._latest = bound
        return bound

    def put(self, key: Key, bound: Bound) -> None:
        with self._lock:
            self._plans[key] = bound
            self._plans.move_to_end(key)
            self._latest = bound
            while len(self._plans) > 1 and (len(self._plans) > self.max_count or self._is_full(bound)):
                self._plans.popitem(last=False)

    def _is_full(self, added: Bound) -> bool:
        """Whether there are too many bytes. One that keeps none, as others have its memory, cannot be why."""
        return added.nbytes > 0 and self.nbytes > self.max_bytes

    def clear(self) -> None:
        with self._lock:
            self._plans.clear()
            self._latest = None

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(bound.nbytes for bound in self._plans.values())

    def __len__(self) -> int:
        return len(self._plans)
