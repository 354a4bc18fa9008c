"""A sorting network: rounds of exchanges, those between neighbours in workgroup memory.

A workgroup takes a block of a row. In a *local* round it goes through all exchanges inside of its block, in workgroup
memory: those that sort it, or those that merge two halves. In other rounds its lanes exchange elements of two blocks,
in the buffers. In every pair the lesser element goes to the lower place; so what lies behind the end of a row, where
nothing is, would stay there.

Source: Batcher 1968, "Sorting networks and their applications" (the bitonic network, in the form in which all
comparisons go one way: the first exchanges of each size are between mirror images).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from rlx.codegen.simt.body import Body
from rlx.codegen.simt.code import WORKGROUP, Rounds, Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.wgsl.language import WGSL
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.writer import Writer
from rlx.errors import RlxError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.irregular import BitonicSort
from rlx.kernel.schedule.overrides import overridden
from rlx.kernel.schedule.schedule import Schedule, Tile

BLOCK = 1024
"""Elements in workgroup memory, at most: with 64-bit keys 12 KiB of the 16 that every device has."""
PLAIN, MIRRORED, SORT, MERGE = range(4)
"""What a round does: exchanges between halves of larger blocks, or between mirror images in them; local rounds."""

Get = Callable[[int, str], Reg]
Put = Callable[[int, str, Reg], None]


def schedule() -> Schedule:
    """A block of a row a workgroup. Raises RlxError for a size set by hand that no network has."""
    chosen = overridden(
        "bitonic",
        Schedule(tiles=(Tile("workgroup", "elements", BLOCK),), spaces=(("keys", "shared"), ("positions", "shared"))),
    )
    block = chosen.static_tile("workgroup", "elements")
    if not 2 <= block <= BLOCK or block & (block - 1):
        raise RlxError(
            f"[RLX_SCHEDULE] expected a power of two from 2 to {BLOCK}, got workgroup.elements={block}, for bitonic"
        )
    return chosen


def rounds(length: int, block: int = BLOCK) -> list[tuple[int, int]]:
    """Rounds that sort a row of which a workgroup holds so much: half of what a block of exchanges holds, and what is
    done."""
    if length < 2:
        return []
    planned = [(1, SORT)]
    half = block
    while half < length:
        planned.append((half, MIRRORED))
        larger = (half // block).bit_length() - 1
        planned += [(half >> i, PLAIN) for i in range(1, larger + 1)]
        planned.append((block // 2, MERGE))
        half *= 2
    return planned


class Network(Writer):
    """Slot 0 holds keys, slot 1 positions."""

    def __init__(self, work: BitonicSort, slots: Sequence[Slot], language: Language = WGSL) -> None:
        self.schedule = schedule()
        self.block = self.schedule.static_tile("workgroup", "elements")
        grid = (dims.product(work.outer), dims.ceildiv(work.length, self.block))
        super().__init__(slots, grid, grid, team=True, rounds=2, language=language)
        self.length = work.length
        self.rounds = Rounds(work.length, 2, partial(rounds, block=self.block))
        self.dtypes = [slot.dtype for slot in slots]

    def write(self) -> Dim:
        code, record, index, elements = self.code, self.record, self.language.index, self.block
        row, block = self.body.axes[0], self.body.axes[1]
        length = record.dim(self.length)
        self.base = code.let(f"{row} * {length}", "base")
        first = code.let(f"{block} * {index(elements)}", "first")
        mirrored = f"{record.round(1)} == {index(MIRRORED)}"
        # a mirror image may lie as far behind as the row is long: half of these pairs have no second place
        with self.body.scope(f"if ({record.round(1)} < {index(SORT)})"), self._each(elements) as place:
            pair = code.let(f"{first} + {place}", "pair")
            self._exchange(pair, record.round(0), mirrored, length, self._read, self._write)
        with self.body.scope(f"if ({record.round(1)} >= {index(SORT)})"):
            self._local(first, length)
        halvings, own = elements.bit_length(), -(-elements // WORKGROUP)
        return halvings * halvings * (2 + own) + 4 * own

    def _read(self, slot: int, at: str) -> Reg:
        return self.body.load_at(slot, f"({self.base} + {at})")

    def _write(self, slot: int, at: str, value: Reg) -> None:
        self.body.store_at(slot, f"({self.base} + {at})", value)

    @contextmanager
    def _each(self, count: int) -> Iterator[str]:
        """A loop over this lane's part of so many things."""
        name = self.code.fresh("k")
        language = self.language
        with self.body.scope(language.loop(name, language.lane_index(), language.index(count), WORKGROUP)):
            yield name

    def _local(self, first: str, length: str) -> None:
        """All exchanges of a local round, between a read and a write of the block."""
        code, body, record, language, index = self.code, self.body, self.record, self.language, self.language.index
        elements = index(self.block)
        inside = code.let(f"min({length} - {first}, {elements})", "inside")
        for name, dtype in zip(("shared_key", "shared_place"), self.dtypes):
            kind = language.register_type(dtype, language.is_wide(dtype))
            language.shared_variable(code, name, kind, self.block)

        def get(slot: int, at: str) -> Reg:
            array = ("shared_key", "shared_place")[slot]
            return Reg(code.let(f"{array}[{at}]"), self.dtypes[slot], language.is_wide(self.dtypes[slot]))

        def put(slot: int, at: str, value: Reg) -> None:
            code.emit(f"{('shared_key', 'shared_place')[slot]}[{at}] = {value.name};")

        with self._each(self.block) as place, body.scope(f"if ({place} < {inside})"):
            for slot in range(2):
                put(slot, place, self._read(slot, f"{first} + {place}"))
        code.emit(language.barrier())
        size, half = code.fresh("size"), code.fresh("half")
        sizes = language.loop_while(size, record.round(0), f"{size} < {elements}", f"{size} * {index(2)}")
        halvings = language.loop_while(half, size, f"{half} > {index(0)}", f"{half} / {index(2)}")
        with body.scope(sizes), body.scope(halvings):
            mirrored = code.let(f"{half} == {size} && {record.round(1)} == {index(SORT)}", "mirrored")
            with self._each(self.block // 2) as pair:
                self._exchange(pair, half, mirrored, inside, get, put)
            code.emit(language.barrier())
        with self._each(self.block) as place, body.scope(f"if ({place} < {inside})"):
            for slot in range(2):
                self._write(slot, f"{first} + {place}", get(slot, place))

    def _exchange(self, pair: str, half: str, mirrored: str, length: str, get: Get, put: Put) -> None:
        """Puts the two elements of a pair in order, if there are two."""
        code, body, index = self.code, self.body, self.language.index
        block = code.let(f"{pair} / {half}", "block")
        inside = code.let(f"{pair} - {block} * {half}", "index")
        low = code.let(f"{block} * {half} * {index(2)} + {inside}", "low")
        image = f"({block} + {index(1)}) * {half} * {index(2)} - {index(1)} - {inside}"
        high = code.let(self.language.select(mirrored, image, f"{low} + {half}"), "high")
        with body.scope(f"if ({high} < {length})"):
            keys = [get(0, at) for at in (low, high)]
            positions = [get(1, at) for at in (low, high)]
            wrong = precedes(body, keys[1], keys[0], f"{positions[1].name} < {positions[0].name}")
            with body.scope(f"if ({wrong.name})"):
                for slot, (left, right) in enumerate((keys, positions)):
                    put(slot, low, right)
                    put(slot, high, left)


def precedes(body: Body, left: Reg, right: Reg, lower: str) -> Reg:
    """Whether an element comes before another: by its key, of equals if it is the `lower` one."""
    if body.language.is_wide(left.dtype):
        left, right = left.widened(), right.widened()
    is_lower = Reg(body.code.let(lower), dtypes.bool_, False)
    return body.through(_before, left, right, is_lower)


def _before(left: Expr, right: Expr, lower: Expr) -> Expr:
    same = ex.apply("and", ex.apply("eq", left, right), lower)
    return ex.apply("or", ex.apply("lt", left, right), same)
