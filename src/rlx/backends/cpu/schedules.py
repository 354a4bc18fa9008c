"""Schedules that kernels of a processor get beside what generators choose: those that a search has found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlx.codegen.simd.isa import Isa
from rlx.kernel.schedule import tuned

if TYPE_CHECKING:
    from rlx.kernel.ir.program import Kernel


def target(isa: Isa) -> str:
    """The processor that schedules are found for, and who writes kernels from them."""
    import rlx

    return f"{rlx.__version__} {isa.name} {isa.cpu}"


def table(isa: Isa) -> tuned.Table:
    """Tiles by signature: those being tried, else those that are kept."""
    tried = tuned.tried()
    if tried is not None:
        return tried
    return {signature: found.tiles for signature, found in tuned.kept(target(isa)).items()}


@contextmanager
def in_use(isa: Isa) -> Iterator[None]:
    """Has kernels of a processor scheduled by its table."""
    with tuned.using(table(isa)):
        yield


def facts(kernels: list[Kernel], isa: Isa) -> dict[str, Any]:
    """For a program's report: `tuned`, the tiles of kernels that the table in use has changed. While a search tries
    tables, also `schedules`: kind, signature and tiles of each kernel, None for those without; and the vectors."""
    used = tuned.in_use()
    if not used and tuned.tried() is None:
        return {}
    chosen = [_chosen(kernel, isa) for kernel in kernels]
    found: dict[str, Any] = {
        "tuned": {
            kernel.name: ", ".join(f"{place}={size}" for place, size in used[each.signature].items())
            for kernel, each in zip(kernels, chosen) if each is not None and each.signature in used
        }
    }  # fmt: skip
    if tuned.tried() is not None:
        found["schedules"] = [each and [each.kind, each.signature, each.tiles()] for each in chosen]
        found["lanes"], found["registers"] = isa.lanes, isa.vector_registers
    return found


def _chosen(kernel: Kernel, isa: Isa) -> tuned.Chosen | None:
    from rlx.codegen.simd.module import schedule_of

    with tuned.listening() as heard:
        schedule_of(kernel, isa)
    return heard[-1] if heard else None
