"""Where a program's buffers lie. Bindings are few, so buffers share *heaps*: one GPU buffer each, bound as a whole.

Heap 0 is the arena of a run: inputs, outputs, temporaries. The others hold weights: what `main` reads (params,
constants, results of `prepare`), and behind these what only `prepare` needs, which is given back after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Bounds, Dim
from rlx.kernel.flatten import reals, touched
from rlx.kernel.nest import Buffer, Program
from rlx.kernel.plan import MemoryPlan, plan_memory
from rlx.kernel.wgsl.types import WORD_BYTES, can_pack, element_words

ARENA = 0
ALIGNMENT = 64
"""Bytes between which buffers start in a heap; kernels read quads of words."""


def is_packed(buffer: Buffer) -> bool:
    """Whether elements lie as on the host, several to a word: so do those that come from there."""
    return buffer.kind in ("input", "param", "constant") and can_pack(buffer.dtype)


def stored_bytes(buffer: Buffer) -> Dim:
    """Bytes of a buffer on the device."""
    if is_packed(buffer):
        return dims.mul(buffer.size, buffer.dtype.itemsize)
    return dims.mul(buffer.size, element_words(buffer.dtype) * WORD_BYTES)


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Heaps:
    """The heap of every buffer, and what the heaps of weights hold: number 1 + i is `kept[i]`, then come `sources`."""

    of: Mapping[int, int]
    kept: tuple[tuple[int, ...], ...]
    sources: tuple[tuple[int, ...], ...]

    @property
    def weights(self) -> tuple[tuple[int, ...], ...]:
        return (*self.kept, *self.sources)


def choose_heaps(program: Program, limit: int) -> Heaps:
    """Puts weights into heaps of at most `limit` bytes (a bigger one gets a heap of its own)."""
    made = [n for kernel in program.prepare for n in kernel.slots[: kernel.writes]]
    static = list(dict.fromkeys([*program.params, *program.constants, *made]))
    read = touched(program, program.main)
    kept = _fill(program, [n for n in static if n in read], limit)
    sources = _fill(program, [n for n in static if n not in read], limit)
    of = {b.number: ARENA for b in program.buffers}
    of |= {n: 1 + i for i, heap in enumerate((*kept, *sources)) for n in heap}
    of |= {n: of[min(reals(program, n))] for n in program.holds}
    return Heaps(of, kept, sources)


def _fill(program: Program, numbers: Iterable[int], limit: int) -> tuple[tuple[int, ...], ...]:
    heaps: list[list[int]] = []
    room = 0
    for number in numbers:
        size = stored_bytes(program.buffers[number])
        # a param with named dims has its size only when it is set: nobody shares its heap
        needed = aligned(size) if isinstance(size, int) else limit
        if not heaps or needed > room:
            heaps.append([])
            room = limit
        heaps[-1].append(number)
        room = max(room - needed, 0)
    return tuple(tuple(h) for h in heaps)


def plan_arena(program: Program, heaps: Heaps, bounds: Bounds, reuse: bool) -> MemoryPlan:
    """Slots of `main`'s temporaries, by live range, in the sizes that they have on the device."""
    word = {1: dtypes.u32, 2: dtypes.u64}
    buffers = [replace(b, dtype=word[element_words(b.dtype)]) for b in program.buffers]
    sized = replace(program, buffers=buffers)
    temps = {b.number for b in program.buffers if b.kind == "temp" and heaps.of[b.number] == ARENA}
    return plan_memory(sized, program.main, temps, bounds, reuse)


@dataclass(frozen=True)
class Arena:
    """The arena at one size: the first word of each buffer in it; where inputs, outputs and the whole end, in bytes."""

    start: Mapping[int, int]
    inputs_end: int
    outputs_end: int
    nbytes: int


def place_arena(program: Program, memory: MemoryPlan, binding: Mapping[str, int]) -> Arena:
    """Inputs, then outputs, so that each is moved in one piece; temporaries behind them."""
    start: dict[int, int] = {}
    end = 0
    ends = []
    for numbers in (program.inputs, program.outputs):
        for number in numbers:
            start[number] = end // WORD_BYTES
            end += aligned(dims.evaluate(stored_bytes(program.buffers[number]), binding))
        ends.append(end)
    slots = []
    for size in memory.sizes:
        slots.append(end)
        end += dims.evaluate(size, binding)
    start |= {number: slots[slot] // WORD_BYTES for number, slot in memory.slot_of.items()}
    return Arena(start, ends[0], ends[1], end)
