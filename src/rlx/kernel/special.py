"""Work that no loop nest says: scatters, running reductions, selection of the greatest, whole Fourier transforms.

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

    No two outer positions write to one place. With `together` inner positions may come in any order, and at once, and
    the elements are joined by atomic instructions (`kernel.scatter` makes such).
    """

    outer: Shape
    inner: Shape
    offset: Linear
    guard: Expr
    body: Expr
    combine: str | None
    together: bool = False


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


@dataclass(frozen=True)
class Fourier:
    """A transform along an axis (number len(outer)) of `length` elements of a signal.

    kind       "complex"; "to bins" 0 … length / 2 of a real signal, or "from bins" to one: of an even length
    inverse    of the complex kind; it and "from bins" divide by the length
    results    slots and offsets of the real and the imaginary part, where they are asked for; "from bins" has one
    table      slot of the twiddles (`kernel.fourier.add_tables`)

    A NaN in a row that is no bin makes all of its result NaN. Imaginary parts of bins 0 and length / 2 count as 0.
    """

    outer: Shape
    length: int
    kind: str
    inverse: bool
    real: Expr
    imaginary: Expr | None
    results: tuple[tuple[int, Linear] | None, ...]
    table: int = -1


@dataclass(frozen=True)
class Exchanges:
    """Puts rows of `length` keys (slot 0) and their positions (slot 1), one behind the other in memory, in order: the
    least key first, of equals the lower position. Made of rankings by `kernel.ordering` where a renderer asks for it.
    """

    outer: Shape
    length: Dim


OrderedWork = Update | Running | Ranking
SpecialWork = OrderedWork | Fourier


def has_dims(work: SpecialWork) -> bool:
    """Whether a run alone knows extents of the work."""
    match work:
        case Update():
            extents, bodies = [*work.outer, *work.inner], [work.guard, work.body]
        case Running():
            extents, bodies = [*work.outer, work.length], [work.body]
        case Ranking():
            extents, bodies = [*work.outer, work.length, work.k], [work.body]
        case Fourier():
            extents, bodies = [*work.outer], [work.real, *([work.imaginary] if work.imaginary is not None else [])]
    return any(not isinstance(d, int) for d in extents) or _dims_in(bodies)


def _dims_in(bodies: Iterable[Expr]) -> bool:
    return any(node.kind == "dim" for node in ex.walk(list(bodies)))
