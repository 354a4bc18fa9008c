"""Forms of runs: what a run does with its inputs and results, by where these are. Found once for each form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlx.backends.cuda.device import SMALL_BYTES
from rlx.backends.memory import Where
from rlx.ir.literal import Array
from rlx.kernel.ir.program import Buffer, Kernel, Program, storage_roots

Block = tuple[int, int]
"""A part of the arena: where it starts, and its bytes."""


@dataclass(frozen=True)
class Placed:
    """An input or output: its buffer, where it starts in the arena, its bytes and its shape."""

    buffer: Buffer
    start: int
    size: int
    shape: tuple[int, ...]

    def view(self, staged: Array, first: int) -> Array:
        """It in a block of the host that begins where this place of the arena does."""
        at = self.start - first
        return staged[at : at + self.size].view(self.buffer.dtype.numpy).reshape(self.shape)


def is_brought(output: Placed, place: Where) -> bool:
    """Whether a result comes to the host with the run."""
    return place == "host" or (place == "soon" and not 0 < output.size <= SMALL_BYTES)


class Form:
    """What runs of a form do. Inputs and results are told by their places among all.

    staged    inputs of the host, with where they go
    blocks    parts of the arena in which these are: neighbours are moved in one go
    given     inputs on the device
    kept      results that stay on the device
    late      small results that are on their way to the host when a run returns
    fetched   results that come to the host with the run
    wanted    parts of the arena in which these are
    waits     whether the host waits for the run: the next one stages its inputs where these are
    targets   of `staged`, where the host puts them; `sources`, of `fetched`, where it finds them
    """

    targets: tuple[tuple[int, Array], ...] = ()
    sources: tuple[tuple[int, Array], ...] = ()

    def __init__(
        self, inputs: Sequence[Placed], outputs: Sequence[Placed | None], on_device: Sequence[bool],
        where: Sequence[Where],
    ) -> None:  # fmt: skip
        moved = [(at, placed) for at, placed in enumerate(inputs) if placed.size and placed.buffer.kind != "state"]
        results = [(i, o, place) for i, (o, place) in enumerate(zip(outputs, where)) if o is not None]
        self.staged = tuple((at, placed) for at, placed in moved if not on_device[at])
        self.given = tuple((at, placed) for at, placed in moved if on_device[at])
        self.blocks = _joined([p for _, p in self.staged], [p.start for _, p in moved])
        self.kept = tuple((i, output) for i, output, place in results if place in ("device", "unchecked"))
        self.fetched = tuple((i, output) for i, output, place in results if is_brought(output, place))
        self.late = tuple((i, o) for i, o, place in results if place == "soon" and not is_brought(o, place))
        self.wanted = _joined(
            [o for _, o in self.fetched if o.size], [o.start for o in outputs if o is not None and o.size]
        )
        self.waits = bool(self.wanted or self.staged)
        self.direct = bool(self.given or self.late or any(output.size for _, output in self.kept))


def _joined(wanted: Iterable[Placed], starts: Iterable[int]) -> tuple[Block, ...]:
    """Parts of the arena where these are: those between which nothing of `starts` lies are one."""
    blocks: list[Block] = []
    known = sorted(starts)
    for placed in sorted(wanted, key=lambda placed: placed.start):
        first, size = blocks[-1] if blocks else (0, 0)
        if blocks and not any(first + size <= start < placed.start for start in known):
            blocks[-1] = (first, placed.start + placed.size - first)
        else:
            blocks.append((placed.start, placed.size))
    return tuple(blocks)


def read_in_place(program: Program) -> frozenset[int]:
    """Inputs that kernels may read where another has them: they write to states alone."""
    return frozenset(n for n in program.inputs if program.buffers[n].kind == "input")


def written_in_place(program: Program) -> frozenset[int]:
    """Outputs that kernels may put where another wants them: each run makes them anew, once."""
    written, static = _written(program, program.main), program.static_buffers()
    return frozenset(
        n
        for n in written - static
        if program.buffers[n].kind == "output" and n not in program.holds and program.outputs.count(n) == 1
    )


def _written(program: Program, kernels: Iterable[Kernel]) -> set[int]:
    """Buffers with memory of their own that kernels write to."""
    written: set[int] = set()
    for kernel in kernels:
        written |= {root for n in kernel.slots[: kernel.writes] for root in storage_roots(program, n)}
        written |= _written(program, kernel.children)
    return written
