"""Which maps transpose: their operands run along another axis than their result."""

from __future__ import annotations

from rlx.ir.expr import Expr, walk
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.records import dataclass


@dataclass(frozen=True)
class Transposition:
    """`reads` (loads) have their neighbours along `axis`, where the result has them along the last."""

    axis: int
    reads: tuple[Expr, ...]


def transposition(nest: LoopNest) -> Transposition | None:
    """What a map transposes, if it is one that does."""
    if nest.inner or len(nest.outer) < 2 or len(nest.statements) != 1:
        return None
    store = nest.statements[0]
    assert isinstance(store, Store)
    last = len(nest.outer) - 1
    loads = [node for node in walk([store.body]) if node.kind == "load"]
    reads = tuple(node for node in loads if node.attr.coefficient(last) not in (0, 1))
    if not reads or store.guard is not None or store.offset.others or store.offset.coefficient(last) != 1:
        return None
    if any(node.args for node in reads):
        return None
    axes = {number for number, step in reads[0].attr.axes if step == 1 and number != last}
    axes = {number for number in axes if all(read.attr.coefficient(number) == 1 for read in reads)}
    return Transposition(axes.pop(), reads) if len(axes) == 1 else None
