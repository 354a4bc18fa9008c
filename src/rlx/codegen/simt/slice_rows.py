"""A row of which each warp makes the slices along k that it multiplies itself, so that no warp waits for another: what
is summed over the row, every warp sums for itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rlx.codegen.simt.body import Body
from rlx.codegen.simt.group_rows import WARP
from rlx.codegen.simt.piece_rows import MOST_WORDS, NEIGHBOURS, Operand, PieceRows, held_operands, steps, words
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.rows import needs
from rlx.codegen.simt.team_contraction import CHUNK
from rlx.ir.expr import Expr
from rlx.kernel.ir.loops import LoopNest, Reduce, Statement

OF_A_CHUNK = CHUNK // NEIGHBOURS
"""Lanes that have a chunk of the row."""


class SliceRows(PieceRows):
    """The row's own chunks of a warp: those from its number along k on, each `along_k`th.

    whole   sums over the row
    """

    def __init__(
        self, body: Body, nest: LoopNest, stages: Sequence[Statement], lanes: int, element: Expr,
        take: Callable[[str, list[Reg]], None], storing: str, held: Sequence[Operand], whole: PieceRows, along_k: int,
    ) -> None:  # fmt: skip
        super().__init__(body, nest, stages, lanes, WARP, element, take, storing, held)
        self.whole, self.along_k = whole, along_k

    def bring_ahead(self) -> None:
        self.whole.bring_ahead()
        super().bring_ahead()

    def write(self) -> None:
        self.whole.bring()
        self.bring()
        self.make(self.whole.sum())

    @property
    def _steps(self) -> int:
        assert isinstance(self.length, int)
        return _own_steps(self.length, self.along_k)

    def _place(self, step: str) -> str:
        piece = f"(own + {step} * {WARP})"
        chunk = f"(part + {piece} / {OF_A_CHUNK} * {self.along_k})"
        return f"({chunk} * {OF_A_CHUNK} + {piece} % {OF_A_CHUNK}) * {NEIGHBOURS}"

    @property
    def _is_whole(self) -> bool:
        return self.length == self._steps * WARP * NEIGHBOURS * self.along_k


def _own_steps(length: int, along_k: int) -> int:
    """How often a warp goes along its own chunks."""
    chunks = -(-length // CHUNK)
    return -(-(-(-chunks // along_k) * OF_A_CHUNK) // WARP)


def slices_of(
    body: Body, nest: LoopNest, stages: Sequence[Statement], lanes: int, element: Expr,
    take: Callable[[str, list[Reg]], None], left: str, along_k: int,
) -> SliceRows | None:  # fmt: skip
    """What makes the slices, if all that they read lies in pieces and a warp has room for it."""
    axis, length = len(nest.outer), nest.inner[0]
    if not isinstance(length, int) or length % NEIGHBOURS or len(nest.inner) > 1:
        return None
    sums = [s.body for s in stages if isinstance(s, Reduce)]
    others = [e for s in stages if not isinstance(s, Reduce) for e in needs(s)]
    summed, own = (held_operands(body.slots, bodies, axis) for bodies in (sums, [*others, element]))
    if summed is None or own is None or any(each.guard is not None for each in (*summed, *own)):
        return None
    held = words(summed) * steps(length, WARP) + words(own) * _own_steps(length, along_k)
    if held > MOST_WORDS:
        return None
    own = [dataclasses.replace(operand, name=f"own_{number}") for number, operand in enumerate(own)]
    storing = f"{left} == 0"
    whole = PieceRows(body, nest, stages, lanes, WARP, element, take, storing, summed)
    return SliceRows(body, nest, stages, lanes, element, take, storing, own, whole, along_k)
