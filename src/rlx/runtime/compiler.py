"""Compiles a graph for one device, and keeps the programs of a process for equal graphs.

A program is kept without weights, so that compiling an equal graph shares its code and nothing else.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from rlx import collector, flags, locks, logs
from rlx.backends.base import Backend, Options
from rlx.backends.executable import Executable
from rlx.backends.failures import translated
from rlx.ir.fingerprint import fingerprint
from rlx.ir.graph import Graph
from rlx.records import dataclass
from rlx.runtime.broadcasting import around
from rlx.runtime.interface import LateGraph
from rlx.runtime.stages import compile_graph

if TYPE_CHECKING:
    from rlx.passes.held_experts import Budget


@dataclass(frozen=True)
class Compiler:
    """A device with the options under which graphs are compiled for it."""

    device: str
    backend: Backend
    options: Options
    ordinal: int = 0

    def with_budget(self, budget: Budget) -> Compiler:
        """For programs that hold so many experts on the device, if it can hold some only."""
        return (
            replace(self, options=replace(self.options, expert_budget=budget)) if self.backend.holds_experts else self
        )

    def compile(self, graph: Graph) -> Executable:
        """The executable of a graph, with the code of an equal one if that is kept.

        Raises UnsupportedOp, DeviceUnavailable, CompileError.
        """
        executable = self.for_equal_dims(graph)
        if logs.wanted(logs.COMPILES, "compile"):
            origin = "taken from the cache" if executable.from_cache else "compiled"
            took = f"{executable.compile_ns / 1e6:.1f} ms"
            logs.tell(logs.COMPILES, "compile", f"{origin} in {took}: {graph.name!r} for {self.device}")
        return self.around(graph, executable)

    def around(self, graph: Graph, equal: Executable) -> Executable:
        """The executable of a graph, of one for dims that are equal wherever they broadcast."""
        return around(LateGraph.of(graph), equal, self.for_equal_dims)

    def for_equal_dims(self, graph: Graph) -> Executable:
        """The executable of a graph whose dims are equal wherever they broadcast. Raises as `compile`."""
        if not self.options.cache or flags.debug() >= 3:
            return self._compile(graph)
        from rlx.kernel.schedule import tuned

        start_ns = time.perf_counter_ns()
        state = (flags.code_state(), flags.num_threads(), tuned.state())
        key = (fingerprint(graph), type(self.backend), self.ordinal, self.options, *state)
        cached = CODE.get(key)
        if cached is not None:
            executable = cached.clone(weights=False)
            executable.from_cache, executable.compile_ns = True, time.perf_counter_ns() - start_ns
            return executable
        executable = self._compile(graph)
        if executable.nbytes and executable.capabilities.shared_code:
            CODE.put(key, executable.clone(weights=False))
        return executable

    def _compile(self, graph: Graph) -> Executable:
        with collector.paused(), translated("compile", self.device):
            return compile_graph(graph, self.backend, self.options, self.ordinal)


class CodeCache:
    """Programs without weights by key, the least recently used dropped first; bounded in bytes of code."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, Executable] = OrderedDict()
        self._lock = locks.lock()
        self.hits = 0
        self.misses = 0

    def get(self, key: Hashable) -> Executable | None:
        """The program that was kept under this key, if it still is."""
        with self._lock:
            executable = self._kept.get(key)
            if executable is None:
                self.misses += 1
            else:
                self.hits += 1
                self._kept.move_to_end(key)
            return executable

    def put(self, key: Hashable, executable: Executable) -> None:
        """Keeps a program; one that is bigger than all that may be kept is not."""
        limit = flags.code_bytes() if self._max_bytes is None else self._max_bytes
        with self._lock:
            self._kept[key] = executable
            self._kept.move_to_end(key)
            total = sum(each.nbytes for each in self._kept.values())
            while self._kept and total > limit:
                total -= self._kept.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(each.nbytes for each in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)


CODE = CodeCache()
"""The programs of this process."""
