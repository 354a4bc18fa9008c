"""What an expression reads that changes while a kernel runs: positions along axes, results of rows, registers.

A value that was computed for an expression may be reused only while all of these are unchanged.
"""

from __future__ import annotations

from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.kernel.ir.index import Linear, axis

CHANGING = frozenset({"axis", "row", "acc", "register"})
"""Kinds of leaves whose value is another one at another time."""


class Reads:
    """Finds the changing leaves of expressions; of each expression once.

    beside   kinds of leaves that change too
    """

    def __init__(self, beside: frozenset[str] = frozenset()) -> None:
        self._changing = CHANGING | beside
        self._known: dict[Expr, tuple[Expr, ...]] = {}

    def of(self, node: Expr) -> tuple[Expr, ...]:
        """Changing leaves of an expression, in an order that is always the same; axes of its loads among them."""
        expressions = self._known.get(node)
        if expressions is None:
            for part in ex.walk([node], below=lambda part: part not in self._known):
                if part not in self._known:
                    self._known[part] = self._below(part)
            expressions = self._known[node]
        return expressions

    def of_line(self, line: Linear) -> tuple[Expr, ...]:
        """Changing leaves of a linear offset."""
        return _sorted({axis(number) for number, _ in line.axes}.union(*(self.of(e) for e, _ in line.others)))

    def _below(self, node: Expr) -> tuple[Expr, ...]:
        reads = {read for a in node.args for read in self._known[a]}
        if node.kind in self._changing:
            reads.add(node)
        elif node.kind == "load":
            reads.update(axis(number) for number, _ in node.attr.axes)
        return _sorted(reads)


def _sorted(reads: set[Expr]) -> tuple[Expr, ...]:
    return tuple(sorted(reads, key=lambda leaf: (leaf.kind, str(leaf.attr), leaf.dtype.name)))
