"""Where a program's buffers lie. Bindings are few, so buffers share *heaps*: one GPU buffer each, bound as a whole.

Heap 0 is the arena of a run: inputs, outputs, temporaries. Where one binding cannot hold it, what does not fit lies in
further pieces, the heaps -1, -2 and so on; f16, where the device has it, lies in pieces of its own. States are heaps
from STATES downwards. The others hold weights: what `main` reads (params, constants, results of `prepare`), and behind
these what only `prepare` needs, which is given back after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlx.codegen.simt.language.wgsl.types import HALF_BYTES, PLAIN, WORD_BYTES, Target, can_pack, element_words
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Bounds, Dim
from rlx.kernel.ir.program import Buffer, Program, buffers_used, storage_roots
from rlx.kernel.passes.memory import MemoryPlan, plan_memory
from rlx.records import dataclass

ARENA = 0
HALVES = -1
"""The heap of a run's f16 where these lie as halves, as long as the arena is not in pieces."""
STATES = -(1 << 20)
"""The heap of the first state that a program writes; that of the next is one less. Each is an array of the runtime."""
ALIGNMENT = 64
"""Bytes between which buffers start in a heap; kernels read quads of words."""


def is_packed(buffer: Buffer, target: Target) -> bool:
    """Whether elements lie as on the host, several to a word: so do those that come from there."""
    if target.is_native(buffer.dtype):
        return False
    return buffer.kind in ("input", "param", "constant") and can_pack(buffer.dtype)


def stored_bytes(buffer: Buffer, target: Target) -> Dim:
    """Bytes of a buffer on the device."""
    if is_packed(buffer, target) or target.is_native(buffer.dtype):
        return dims.mul(buffer.size, buffer.dtype.itemsize)
    return dims.mul(buffer.size, element_words(buffer.dtype) * WORD_BYTES)


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Heaps:
    """The heap of every buffer, and what the heaps of weights hold: number 1 + i is `kept[i]`, then come `sources`.
    `halves` are the heaps of f16, where `target` has these."""

    of: Mapping[int, int]
    kept: tuple[tuple[int, ...], ...]
    sources: tuple[tuple[int, ...], ...]
    target: Target
    halves: frozenset[int]

    def unit(self, heap: int) -> int:
        """The bytes that places in a heap are counted in."""
        return HALF_BYTES if heap in self.halves else WORD_BYTES

    @property
    def weights(self) -> tuple[tuple[int, ...], ...]:
        return (*self.kept, *self.sources)


def choose_heaps(program: Program, limit: int, target: Target = PLAIN) -> Heaps:
    """Puts weights into heaps of at most `limit` bytes (a bigger one gets a heap of its own); halves lie apart."""
    prepared = [n for kernel in program.prepare for n in kernel.slots[: kernel.writes]]
    static = list(dict.fromkeys([*program.params, *program.constants, *prepared]))
    read = buffers_used(program, program.main)
    native = {b.number for b in program.buffers if target.is_native(b.dtype)}
    weights = _fill(program, [n for n in static if n in read], limit, target)
    sources = _fill(program, [n for n in static if n not in read], limit, target)
    of = {b.number: HALVES if b.number in native else ARENA for b in program.buffers}
    of |= {n: 1 + i for i, heap in enumerate((*weights, *sources)) for n in heap}
    of |= {b.number: STATES - i for i, b in enumerate(b for b in program.buffers if b.kind == "state")}
    of |= {n: of[min(storage_roots(program, n))] for n in program.holds}
    return Heaps(of, weights, sources, target, frozenset(of[n] for n in native))


def _fill(program: Program, numbers: Sequence[int], limit: int, target: Target) -> tuple[tuple[int, ...], ...]:
    heaps: list[list[int]] = []
    for native in (False, True):
        room = -1
        for number in numbers:
            if target.is_native(program.buffers[number].dtype) != native:
                continue
            size = stored_bytes(program.buffers[number], target)
            # the size of a param with named dims is known only when it is set: it shares its heap with nothing
            needed = aligned(size) if isinstance(size, int) else limit
            if needed > room:
                heaps.append([])
                room = limit
            heaps[-1].append(number)
            room = max(room - needed, 0)
    return tuple(tuple(h) for h in heaps)


def plan_arena(program: Program, heaps: Heaps, bounds: Bounds, reuse: bool) -> MemoryPlan:
    """Slots of `main`'s temporaries, by live range, in the sizes that they have on the device."""
    word = {1: dtypes.u32, 2: dtypes.u64}
    native = heaps.target.is_native
    buffers = [b if native(b.dtype) else replace(b, dtype=word[element_words(b.dtype)]) for b in program.buffers]
    sized = replace(program, buffers=buffers)
    arena = MemoryPlan()
    for heap in (ARENA, HALVES):  # buffers of the two share no slots
        temps = {b.number for b in program.buffers if b.kind == "temp" and heaps.of[b.number] == heap}
        part = plan_memory(sized, program.main, temps, bounds, reuse)
        arena.slot_of |= {number: slot + len(arena.sizes) for number, slot in part.slot_of.items()}
        arena.sizes += part.sizes
    return arena


@dataclass(frozen=True)
class Piece:
    """A heap of an arena: where inputs, outputs and the whole end in it, in bytes."""

    inputs_end: int
    outputs_end: int
    nbytes: int


@dataclass(frozen=True)
class Arena:
    """The arena at one size: the first word of each buffer in its heap; pieces by heap."""

    start: Mapping[int, int]
    pieces: Mapping[int, Piece]

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces.values())

    @property
    def largest(self) -> int:
        """Bytes that one binding must hold."""
        return max(piece.nbytes for piece in self.pieces.values())


Part = tuple[tuple[int, ...], int]
"""Buffers that lie in one place, and the bytes of it."""


def _parts(program: Program, memory: MemoryPlan, heaps: Heaps, binding: Mapping[str, int]) -> list[list[Part]]:
    """What an arena holds: inputs, outputs, slots of temporaries."""

    def alone(number: int) -> Part:
        return (number,), aligned(dims.evaluate(stored_bytes(program.buffers[number], heaps.target), binding))

    numbers_of_slot: list[list[int]] = [[] for _ in memory.sizes]
    for number, slot in memory.slot_of.items():
        numbers_of_slot[slot].append(number)
    slots = [(tuple(numbers), dims.evaluate(size, binding)) for numbers, size in zip(numbers_of_slot, memory.sizes)]
    ends = [[alone(n) for n in numbers if heaps.of[n] > STATES] for numbers in (program.inputs, program.outputs)]
    return [*ends, slots]


def place_arena(program: Program, memory: MemoryPlan, heaps: Heaps, binding: Mapping[str, int]) -> Arena:
    """In each piece inputs, then outputs, so that each is moved in one go; temporaries behind them."""
    start: dict[int, int] = {}
    ends: dict[int, int] = {ARENA: 0}
    marks: list[dict[int, int]] = []
    for part in _parts(program, memory, heaps, binding):
        for numbers, size in part:
            heap = heaps.of[numbers[0]]
            end = ends.setdefault(heap, 0)
            start |= dict.fromkeys(numbers, end // heaps.unit(heap))
            ends[heap] = end + size
        marks.append(dict(ends))
    inputs, outputs, _ = marks
    start |= {number: 0 for number, heap in heaps.of.items() if heap <= STATES}
    pieces = {heap: Piece(inputs.get(heap, 0), outputs.get(heap, 0), end) for heap, end in ends.items()}
    return Arena(start, pieces)


def split_arena(program: Program, memory: MemoryPlan, heaps: Heaps, binding: Mapping[str, int], limit: int) -> Heaps:
    """Heaps of which no piece of the arena is over `limit` bytes, as far as that can be: what may stand for one another
    in a loop or branch lies in one piece."""
    parts = [each for part in _parts(program, memory, heaps, binding) for each in part]
    together = _joined(program, [numbers for numbers, _ in parts])
    sizes: dict[int, int] = {}
    for group, (_, size) in zip(together, parts):
        sizes[group] = sizes.get(group, 0) + size
    native = {group for group, (numbers, _) in zip(together, parts) if heaps.of[numbers[0]] in heaps.halves}
    heap_of: dict[int, int] = {}
    halves = {n for n in heaps.halves if n > ARENA}
    heap, room = ARENA, limit
    for group, size in sorted(sizes.items(), key=lambda item: item[0] in native):
        first = group in native and heap not in halves
        if first or (size > room and room < limit):
            heap, room = heap - 1, limit
        if group in native:
            halves.add(heap)
        heap_of[group] = heap
        room -= size
    of = dict(heaps.of)
    for group, (numbers, _) in zip(together, parts):
        of |= dict.fromkeys(numbers, heap_of[group])
    of |= {n: of[min(storage_roots(program, n))] for n in program.holds}
    return replace(heaps, of=of, halves=frozenset(halves))


def _joined(program: Program, parts: Sequence[tuple[int, ...]]) -> list[int]:
    """A number for each part, the same for those that an alias may lie in."""
    part_of = {number: i for i, numbers in enumerate(parts) for number in numbers}
    group = list(range(len(parts)))
    for alias in program.holds:
        met = {group[part_of[n]] for n in storage_roots(program, alias) if n in part_of}
        group = [min(met) if g in met else g for g in group]
    return group
