"""Rows of which a lane has neighbours: 16 bytes of each operand at a time, which stay in registers for all passes.

What is the same for all rows and in every run, as a norm's weights are, comes before earlier kernels have ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlx.codegen.simt.body import Body
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.group_rows import GroupRows
from rlx.codegen.simt.language.cpp import words_of
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.rows import needs
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.kernel.ir.axes import speaks_of
from rlx.kernel.ir.index import Linear, linear, offset_of
from rlx.kernel.ir.loops import LoopNest, Reduce, Statement, Store

NEIGHBOURS = 8
"""Elements of a row that a lane has side by side."""
MOST_WORDS = 64
"""Of operands that a lane holds."""
HELD_DTYPES = (dtypes.f16, dtypes.bf16, dtypes.f32)


@dataclass(frozen=True)
class Operand:
    """An operand along the row, and the name of the array of pieces that holds a lane's part of it."""

    load: Expr
    name: str
    ahead: bool

    @property
    def guard(self) -> Expr | None:
        """What tells whether there is memory; it is the same for all neighbours."""
        return self.load.args[0] if self.load.attr.guarded else None

    @property
    def pieces(self) -> int:
        """Of 16 bytes, for the neighbours of a step."""
        return NEIGHBOURS * self.load.dtype.itemsize // 16

    def element(self, step: str, number: int) -> str:
        """One of the neighbours as a float."""
        each = 16 // self.load.dtype.itemsize
        piece = f"{self.name}[{step} * {self.pieces} + {number // each}]"
        if self.load.dtype is dtypes.f32:
            return f"__uint_as_float({piece}.{'xyzw'[number % 4]})"
        word = f"{piece}.{'xyzw'[number % each // 2]}"
        half = f"{word} >> 16" if number % 2 else f"({word} & 0xffffu)"
        return f"decode_{self.load.dtype}({half})"


def operands(
    body: Body, nest: LoopNest, stages: Sequence[Statement], element: Expr, width: int, most_words: int = MOST_WORDS
) -> list[Operand] | None:
    """What passes read along a row of the nest, if it all lies in pieces, and so many lanes with so many registers for
    it have room."""
    axis, length = len(nest.outer), nest.inner[0]
    if not isinstance(length, int) or length % NEIGHBOURS:
        return None
    needed = [e for s in stages for e in (s.needs() if isinstance(s, Store) else (s.body,))]
    found = held_operands(body.slots, [*needed, element], axis)
    if found is None or any(each.guard is not None for each in found):
        return None
    return found if words(found) * steps(length, width) <= most_words else None


def held_operands(slots: Sequence[Slot], bodies: Sequence[Expr], axis: int) -> list[Operand] | None:
    """What bodies read along an axis, if it all lies in pieces."""
    found: list[Operand] = []
    for node in ex.walk(bodies):
        if node.kind != "load" or not speaks_of([node], axis):
            continue
        line, slot = offset_of(node), slots[node.attr.slot]
        if node.dtype.itemsize == 1 and line.coefficient(axis) == 1:
            continue  # bytes side by side are loaded one by one
        if node.dtype not in HELD_DTYPES or not slot.aligned or not in_pieces(line, axis):
            return None
        if node.attr.guarded and not _is_one_for_neighbours(node.args[0], axis):
            return None
        fixed = not line.others and not any(n != axis for n, _ in line.axes)
        found.append(Operand(node, f"row_{len(found)}", slot.static and fixed and not node.attr.guarded))
    return found


def words(held: Sequence[Operand]) -> int:
    """Registers of a lane for the neighbours of a step."""
    return sum(4 * each.pieces for each in held)


def in_pieces(line: Linear, axis: int) -> bool:
    """Whether neighbours along an axis are neighbours in memory, and begin at a multiple of their number."""
    strides = [line.const, *(c for n, c in line.axes if n != axis), *(c for _, c in line.others)]
    near = line.coefficient(axis) == 1 and all(_is_one_value(e, axis) for e, _ in line.others)
    return near and all(dims.exact_div(c, NEIGHBOURS) is not None for c in strides)


def _is_one_value(index: Expr, axis: int) -> bool:
    """Whether a part of an index is the same for all neighbours: it does not speak of the axis, or chooses between two
    that do not by what is one for them."""
    if index.kind == "select" and _is_one_for_neighbours(index.args[0], axis):
        return not speaks_of(index.args[1:], axis)
    return not speaks_of([index], axis)


def _is_one_for_neighbours(guard: Expr, axis: int) -> bool:
    """Whether a condition holds for all neighbours or for none: it does not speak of the axis, or compares a place with
    a multiple of their number."""
    if any(node.kind in ("load", "row") for node in ex.walk([guard])):
        return False
    if not speaks_of([guard], axis):
        return True
    if guard.kind in ("and", "or", "not"):
        return all(_is_one_for_neighbours(arg, axis) for arg in guard.args)
    if guard.kind not in ("lt", "le"):
        return False
    left, right = (linear(arg) for arg in guard.args)  # that the places of neighbours are on one side of
    beyond = right.plus(left.times(-1)) if guard.kind == "lt" else left.plus(right.times(-1))
    if beyond.others or beyond.coefficient(axis) != -1:
        return False
    rest = [beyond.const, *(c for n, c in beyond.axes if n != axis)]
    return all(dims.exact_div(c, NEIGHBOURS) is not None for c in rest)


def _compares_neighbours(test: Expr, axis: int) -> bool:
    """Whether it compares the places of neighbours, all with the same result."""
    return test.kind in ("lt", "le") and speaks_of([test], axis) and _is_one_for_neighbours(test, axis)


def steps(length: int, width: int) -> int:
    """How often so many lanes go along a row."""
    return math.ceil(length / (NEIGHBOURS * width))


class PieceRows(GroupRows):
    """The stages of a row whose operands a lane holds. `take` gets the first of some neighbours, and their values."""

    loads_at_once = False
    """Whether compilers must leave loads where they are."""

    def __init__(
        self, body: Body, nest: LoopNest, stages: Sequence[Statement], lanes: int, width: int, element: Expr,
        take: Callable[[str, list[Reg]], None], storing: str, held: Sequence[Operand],
    ) -> None:  # fmt: skip
        super().__init__(body, nest, stages, lanes, width, element, lambda place, value: None, storing)
        self.take_all, self.held = take, held

    def bring_ahead(self) -> None:
        """Loads what no kernel writes."""
        for operand in self.held:
            if operand.ahead:
                self._load(operand)

    def _load(self, operand: Operand) -> None:
        code, slot, here = self.code, operand.load.attr.slot, operand.ahead or self.loads_at_once
        assert isinstance(self.length, int)
        count = steps(self.length, self.step)
        line = offset_of(operand.load)
        outside = tuple(each for each in line.axes if each[0] != self.inner[0])
        by_place = tuple(each for each in line.others if speaks_of([each[0]], self.inner[0]))
        others = tuple(each for each in line.others if each not in by_place)
        start = self.body.fresh_offset(Linear(line.const, outside, others))
        code.emit(f"Piece {operand.name}[{count * operand.pieces}];")
        for step in range(count):
            first = f"({self.lane} + {step * self.step}) * {NEIGHBOURS}"
            there = [] if self._is_whole else [f"{first} < {self.length}"]
            self.body.axes[self.inner[0]] = first
            if operand.guard is not None:
                there.append(self.body.gen(operand.guard).name)
            at = f"{start} + {self.body.fresh_offset(Linear(0, (), by_place))}" if by_place else start
            for piece in range(operand.pieces):
                place = f"slot{slot} + {at} + {first} + {piece * 16 // operand.load.dtype.itemsize}"
                value = f"piece_ahead({place})" if here else f"piece_at<true>({place})"
                if there:
                    value = f"{' && '.join(there)} ? {value} : Piece{{}}"
                code.emit(f"{operand.name}[{step * operand.pieces + piece}] = {value};")

    @property
    def _is_whole(self) -> bool:
        """Whether all lanes have as many places."""
        return isinstance(self.length, int) and self.length % (NEIGHBOURS * self.step) == 0

    def write(self) -> None:
        for operand in self.held:
            if not operand.ahead:
                self._load(operand)
        stores: list[int] = []
        for group in self.passes():
            sums = [n for n in group if isinstance(self.statements[n], Reduce)]
            stores += [n for n in group if isinstance(self.statements[n], Store)]
            if sums:
                totals = {n: self.variable(s, "total") for n, s in self.reduces(sums).items()}
                with self._pieces() as (first, step):
                    for _ in self._neighbours(first, step, [self.statements[n].body for n in sums]):
                        self.visit(sums, totals)
                for number, stage in self.reduces(sums).items():
                    self.body.rows[number] = self._joined(stage, totals[number])
        self.body.hoist([self.element], self._varies)
        with self._pieces() as (first, step):
            self.take_all(first, [self.body.gen(self.element) for _ in self._neighbours(first, step, [self.element])])
            if stores:
                with self.body.scope(f"if ({self.storing})"):
                    self._store_all(stores, first, step)

    def _store_all(self, numbers: Sequence[int], first: str, step: str) -> None:
        """What statements store of some neighbours: in pieces, or one by one."""
        apart = []
        for number in numbers:
            store = self.statements[number]
            assert isinstance(store, Store)
            slot = self.body.slots[store.slot]
            if slot.aligned and slot.dtype in HELD_DTYPES and in_pieces(store.offset, self.inner[0]):
                values = [self.body.gen(store.body) for _ in self._neighbours(first, step, [store.body])]
                self.store_pieces(store, first, values)
            else:
                apart.append(number)
        for _ in self._neighbours(first, step, [e for n in apart for e in needs(self.statements[n])]) if apart else ():
            self.visit(apart, {})

    def store_pieces(self, store: Store, first: str, values: Sequence[Reg]) -> None:
        """Stores values of neighbours side by side, 16 bytes at a time; of bytes, all 8 at once."""
        slot = self.body.slots[store.slot]
        self.body.axes[self.inner[0]] = first
        start = self.body.offset(store.offset)
        words = words_of(slot.dtype, [value.unrounded for value in values])
        kind, count = ("Piece", 4) if len(words) > 2 else ("HalfPiece", 2)
        for word in range(0, len(words), count):
            place = f"slot{store.slot} + {start} + {word * 4 // slot.dtype.itemsize}"
            self.code.emit(self.language.put(kind, place, words[word : word + count]))

    @contextmanager
    def _pieces(self) -> Iterator[tuple[str, str]]:
        """A loop over the lane's steps, written out; the first place of each, and its number."""
        code = self.code
        assert isinstance(self.length, int)
        count, step = steps(self.length, self.step), code.fresh("step")
        self.count(count * NEIGHBOURS)
        self.language.unroll(code, count)
        with self.body.scope(f"for (int {step} = 0; {step} < {count}; {step}++)"):
            first = code.fresh("k")
            code.emit(f"const int {first} = ({self.lane} + {step} * {self.step}) * {NEIGHBOURS};")
            inside = "true" if self._is_whole else f"{first} < {self.length}"
            with self.body.scope(f"if ({inside})"):
                yield first, step

    def _neighbours(self, first: str, step: str, bodies: Sequence[Expr]) -> Iterator[None]:
        """Goes to each of some neighbours, of which bodies are to be made."""
        read = set(ex.walk(bodies))
        held = [operand for operand in self.held if operand.load in read]
        self.body.axes[self.inner[0]] = first
        tests = {node: self.body.gen(node) for node in read if _compares_neighbours(node, self.inner[0])}
        for number in range(NEIGHBOURS):
            self.body.axes[self.inner[0]] = f"({first} + {number})"
            for test, holds in tests.items():
                self.body.remember(test, holds)
            for operand in held:
                if self.body.find(operand.load) is None:
                    element = self.code.let(operand.element(step, number))
                    self.body.remember(operand.load, Reg(element, operand.load.dtype, False))
            yield
