"""How much code fused values make, and where a kernel's expression has grown long enough.

A value that is not in memory is computed again wherever its users need it at another index: a chain of shifted sums
would double with every link. So a value's nodes count once for every way of moving elements that leads to them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from rlx.ir.dtype import DType
from rlx.ir.expr import INSTRUCTIONS, Expr, walk
from rlx.ir.graph import Node, Value
from rlx.ir.op import Elementwise, Op

MOST_INSTRUCTIONS = 1024
"""Of one expression, about; LLVM takes more than linear time for long blocks."""
TRANSCENDENTAL = 24
"""Instructions that a transcendental function becomes, about."""

Parts = dict[tuple[int, int], int]
"""Instructions of the nodes that an element of a value is made of, by node and by the moves that lead to it."""


def instructions(node: Node) -> int:
    """Instructions for one element of an elementwise node; moves of elements count as one."""
    return _instructions(node.op, tuple(v.dtype for v in node.inputs)) if isinstance(node.op, Elementwise) else 1


@lru_cache(maxsize=4096)
def _instructions(op: Op, dtypes: tuple[DType, ...]) -> int:
    assert isinstance(op, Elementwise)
    body = op.scalar(*(Expr("operand", dtype, (), i) for i, dtype in enumerate(dtypes)))
    kinds = [INSTRUCTIONS[n.kind] for n in walk([body]) if n.kind in INSTRUCTIONS]
    return 1 + sum(TRANSCENDENTAL if kind.transcendental else 1 for kind in kinds)


class Growth:
    """Follows expressions along a graph, node by node. `to_memory` ends the expression of a value."""

    def __init__(self, in_memory: Callable[[Value], bool], to_memory: Callable[[Value], None]) -> None:
        self._in_memory = in_memory
        self._to_memory = to_memory
        self._parts: dict[int, Parts] = {}

    def add(self, node: Node, inlined: bool) -> None:
        """A node whose operands were added; ends operands' expressions until what it reads is short enough.

        `inlined` tells whether the node itself may become a part of its users' expressions.
        """
        mine = instructions(node)
        parts = self._joined(node, mine)
        while sum(parts.values()) > MOST_INSTRUCTIONS:
            open_ = [v for v in node.inputs if self._parts.get(id(v.node)) and not self._in_memory(v)]
            if not open_:
                break
            self._to_memory(max(open_, key=lambda v: sum(self._parts[id(v.node)].values())))
            parts = self._joined(node, mine)
        if inlined:
            self._parts[id(node)] = parts

    def _joined(self, node: Node, mine: int) -> Parts:
        parts: Parts = {(id(node), 0): mine}
        for value in node.inputs:
            if not self._in_memory(value):
                parts |= self._parts.get(id(value.node), {})
        if isinstance(node.op, Elementwise):
            return parts
        return {(part, hash((way, id(node)))): count for (part, way), count in parts.items()}
