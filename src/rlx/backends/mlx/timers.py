"""Times of calls: each is computed to its end before it returns, so mlx joins nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rlx.backends.executable import KernelTime
from rlx.backends.mlx.library import Value, mx
from rlx.ir.graph import Node
from rlx.records import dataclass

Call = Callable[[Sequence[Value], Mapping[str, Value]], Sequence[Value]]


@dataclass
class _Line:
    name: str
    source: str
    calls: int = 0
    total_ns: int = 0
    first_ns: int = 0


class KernelTimer:
    """One run's times, by nodes. What the bodies of a loop or a conditional take is in their own nodes' time."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._within_ns = 0
        self._start_ns = 0

    def start(self) -> None:
        """The run begins now."""
        self._start_ns = time.perf_counter_ns()

    def timed(self, node: Node, make: Callable[[], Call]) -> Call:
        """The call of a node, with its time taken. Nodes of bodies, which `make` makes, stand behind it."""
        line = _Line(node.op.name, node.source or node.name)
        self._lines.append(line)
        call = make()

        def run(operands: Sequence[Value], weights: Mapping[str, Value]) -> Sequence[Value]:
            around, self._within_ns = self._within_ns, 0
            begin = time.perf_counter_ns()
            made = call(operands, weights)
            mx.eval(*made)
            mx.synchronize()
            whole = time.perf_counter_ns() - begin
            if not line.calls:
                line.first_ns = begin - self._start_ns
            line.calls += 1
            line.total_ns += whole - self._within_ns
            self._within_ns = around + whole
            return made

        return run

    def times(self) -> list[KernelTime]:
        """What was measured, in the order of the program."""
        return [
            KernelTime(line.name, (line.source,), line.calls, float(line.total_ns), float(line.first_ns))
            for line in self._lines
        ]
