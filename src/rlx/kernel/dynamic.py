"""What of a kernel only a run knows."""

from __future__ import annotations

from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.kernel.collapse import accesses
from rlx.kernel.nest import Access, AttentionWork, Contraction, Kernel, Linear, Nest, Stage
from rlx.kernel.special import SpecialWork, has_dims


def dims_in(kernel: Kernel) -> bool:
    """Whether the kernel's extents, strides or bodies depend on dims that only a run knows."""
    work = kernel.work
    if isinstance(work, Nest):
        found: list[Dim] = [*work.outer, *work.inner, *_dims_of_stages(work.stages)]
    elif isinstance(work, Contraction):
        found = [*work.batch, work.m, work.n, *work.taps, work.k, *_dims_of_stages(work.epilogue)]
        found += [*_dims_of_place(work.a), *_dims_of_place(work.b)]
    elif isinstance(work, SpecialWork):
        return has_dims(work)
    elif not isinstance(work, AttentionWork):
        return True
    else:
        found = [work.batch, work.heads, work.queries, work.keys]
        found += [d for _, line in (work.q, work.k, work.v) for d in _dims_of_place(line)]
    return any(not isinstance(d, int) for d in found)


def _dims_of_stages(stages: tuple[Stage, ...]) -> list[Dim]:
    found = [n.attr for n in ex.walk([s.body for s in stages]) if n.kind == "dim"]
    return found + [d for place in accesses(stages) for d in _dims_of_place(place)]


def _dims_of_place(place: Access | Linear) -> list[Dim]:
    others = place.scales if isinstance(place, Access) else [c for _, c in place.others]
    return [place.const, *(c for _, c in place.axes), *others]
