"""Work that no loop nest says: scatters, running reductions, selection of the greatest.

Like a `Nest`, each has parallel `outer` axes (numbers 0 …) and reads through the leaves of `kernel.nest`; what follows
along its own axes goes in order. A renderer may lack any of them: `kernel.fuse.untaken` is told which it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlx.ir import expr as ex
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.nest import Linear


@dataclass(frozen=True)
class Update:
    """For every outer position, along the inner axes in row-major order: where `guard` holds, the element of slot 0 at
    `offset` becomes `body`, or is joined with it by an instruction (`combine`).

    No two outer positions write to one place.
    """

    outer: Shape
    inner: Shape
    offset: Linear
    guard: Expr
    body: Expr
    combine: str | None


@dataclass(frozen=True)
class Running:
    """Along one axis (number len(outer)) of `length` positions: slot 0 at `offset` gets what `combine` makes of `body`
    up to there.

    total       dtype of body and of what is kept; `dtype` is that of the result
    exclusive   leaves the position itself out; `reverse` comes from the end
    """

    outer: Shape
    length: Dim
    offset: Linear
    body: Expr
    combine: str
    total: DType
    dtype: DType
    exclusive: bool
    reverse: bool


@dataclass(frozen=True)
class Ranking:
    """The `k` first positions along an axis (number len(outer)) of `length`, in the order of `body`: greatest first if
    `largest`; of equals the lower position; NaN is greater than all.

    values, indices   slot and offset (axis len(outer) counts to k there) of what is written, where it is asked for
    """

    outer: Shape
    length: Dim
    k: Dim
    largest: bool
    body: Expr
    values: tuple[int, Linear] | None
    indices: tuple[int, Linear] | None


SpecialWork = Update | Running | Ranking


def has_dims(work: SpecialWork) -> bool:
    """Whether a run alone knows extents of the work."""
    match work:
        case Update():
            extents, bodies = [*work.outer, *work.inner], [work.guard, work.body]
        case Running():
            extents, bodies = [*work.outer, work.length], [work.body]
        case Ranking():
            extents, bodies = [*work.outer, work.length, work.k], [work.body]
    return any(not isinstance(d, int) for d in extents) or _dims_in(bodies)


def _dims_in(bodies: Iterable[Expr]) -> bool:
    return any(node.kind == "dim" for node in ex.walk(list(bodies)))
