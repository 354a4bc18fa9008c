"""How long the instructions of a body wait for one another, and how many vectors of it are worked on side by side.

A core works ahead in a loop as far as its queues and registers reach: less than two hundred vector instructions. If the
chain of a body is long, it overlaps there with too few others, and the units wait. Several vectors side by side, whose
instructions alternate, put as many chains at every place of the loop. LLVM keeps that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rlx.ir import expr as ex
from rlx.ir.expr import INSTRUCTIONS, Expr

LONG_CYCLES = 60
"""Of a chain from which on several vectors gain: that of an exponential has 69."""
FLOAT_CYCLES = 4
"""Until the result of an addition, a product, a comparison or a conversion is there; roughly, on the cores of today."""
BIT_CYCLES = 1
OTHER_CYCLES = {
    "div": 12, "sqrt": 18, "rem": 30, "bitcast": 0, "load": 6, "floor": 8, "ceil": 8, "trunc": 8, "round": 8
}  # fmt: skip
BITS = ("and", "or", "xor", "not", "shl", "shr", "neg", "abs", "copysign", "select")
MOST_INSTRUCTIONS = 512
"""Of the vectors side by side together: compile time grows with them. Registers are no bound: with 16 of them, four
vectors that need eleven each gain as much as others, as what is spilled comes from the nearest cache in time."""
REACH = 160
"""Vector instructions that a core looks ahead: about as many registers as it has for results that are under way."""


@lru_cache(maxsize=1 << 12)
def cycles(body: Expr) -> int:
    """Of the longest chain of instructions of a body, each of which waits for the one before."""
    until: dict[Expr, int] = {}
    for node in ex.walk([body]):
        until[node] = max((until[a] for a in node.args), default=0) + _cycles_of(node)
    return until[body]


def _cycles_of(node: Expr) -> int:
    if node.kind in OTHER_CYCLES:
        return OTHER_CYCLES[node.kind]
    if node.kind not in INSTRUCTIONS:
        return 0
    of_bits = node.kind in BITS or (node.dtype.is_integer and node.kind in ("add", "sub"))
    return BIT_CYCLES if of_bits else FLOAT_CYCLES


def side_by_side(bodies: Sequence[Expr], instructions: int) -> int:
    """Vectors of bodies whose instructions alternate: up to four where chains are long and not too much code comes of
    it; 1 where chains are short, or calls of functions are between.

    instructions   of all bodies together
    """
    calls = any(INSTRUCTIONS[n.kind].transcendental for n in ex.walk(list(bodies)) if n.kind in INSTRUCTIONS)
    if calls or max(map(cycles, bodies)) < LONG_CYCLES:
        return 1
    return next((n for n in (4, 2) if n * instructions <= MOST_INSTRUCTIONS), 1)


def waits(bodies: Sequence[Expr], instructions: int, beside: int) -> float:
    """Cycles a vector that the chains of bodies take, if nothing else did: those of vectors `beside` one another, and
    of as many as a core sees at a time, go on together."""
    return max(map(cycles, bodies)) / max(beside, REACH / max(instructions, 1))
