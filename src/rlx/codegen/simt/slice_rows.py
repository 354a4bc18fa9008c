"""A row of which each warp makes the slices along k that it multiplies itself, so that no warp waits for another: what
is summed over the row, every warp sums for itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from rlx.codegen.simt.body import Body
from rlx.codegen.simt.group_rows import WARP
from rlx.codegen.simt.piece_rows import MOST_WORDS, NEIGHBOURS, Operand, PieceRows, held_operands, steps, words
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.rows import needs
from rlx.ir.expr import Expr
from rlx.kernel.ir.loops import LoopNest, Reduce, Statement


@dataclasses.dataclass(frozen=True)
class Slices:
    """Which parts of a row a warp has: chunks of so many elements, from its number along k on each `along_k`th.

    lanes     of the workgroup
    storing   where the nest's own stores are done
    """

    chunk: int
    along_k: int
    lanes: int
    storing: str

    @property
    def pieces(self) -> int:
        """Lanes that have a chunk."""
        return self.chunk // NEIGHBOURS

    def steps(self, length: int) -> int:
        """How often a warp goes along its chunks."""
        own = math.ceil(math.ceil(length / self.chunk) / self.along_k)
        return math.ceil(own * self.pieces / WARP)


class SliceRows(PieceRows):
    """The row's own chunks of a warp. `whole` makes the sums over the row."""

    def __init__(
        self, body: Body, nest: LoopNest, stages: Sequence[Statement], element: Expr,
        take: Callable[[str, list[Reg]], None], held: Sequence[Operand], whole: PieceRows, own: Slices,
    ) -> None:  # fmt: skip
        super().__init__(body, nest, stages, own.lanes, WARP, element, take, own.storing, held)
        self.whole, self.own = whole, own

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
        return self.own.steps(self.length)

    def _place(self, step: str) -> str:
        piece, lanes = f"(own + {step} * {WARP})", self.own.pieces
        chunk = f"(part + {piece} / {lanes} * {self.own.along_k})"
        return f"({chunk} * {lanes} + {piece} % {lanes}) * {NEIGHBOURS}"

    @property
    def _is_whole(self) -> bool:
        return self.length == self._steps * WARP * NEIGHBOURS * self.own.along_k


def slices_of(
    body: Body, nest: LoopNest, stages: Sequence[Statement], element: Expr, take: Callable[[str, list[Reg]], None],
    own: Slices,
) -> SliceRows | None:  # fmt: skip
    """What makes the slices, if all that they read lies in pieces and a warp has room for it."""
    axis, length = len(nest.outer), nest.inner[0]
    if not isinstance(length, int) or length % NEIGHBOURS or len(nest.inner) > 1:
        return None
    sums = [s.body for s in stages if isinstance(s, Reduce)]
    others = [e for s in stages if not isinstance(s, Reduce) for e in needs(s)]
    summed, held = (held_operands(body.slots, bodies, axis) for bodies in (sums, [*others, element]))
    if summed is None or held is None or any(each.guard is not None for each in (*summed, *held)):
        return None
    if words(summed) * steps(length, WARP) + words(held) * own.steps(length) > MOST_WORDS:
        return None
    held = [dataclasses.replace(operand, name=f"own_{number}") for number, operand in enumerate(held)]
    whole = PieceRows(body, nest, stages, own.lanes, WARP, element, take, own.storing, summed)
    return SliceRows(body, nest, stages, element, take, held, whole, own)
