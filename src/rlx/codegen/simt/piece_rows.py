"""Rows of which a lane has neighbours: 16 bytes of each operand at a time, which stay in registers for all passes.

What is the same for all rows and in every run, as a norm's weights are, comes before earlier kernels have ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlx.codegen.simt.body import Body
from rlx.codegen.simt.group_rows import GroupRows
from rlx.codegen.simt.registers import Reg
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.expr import Expr
from rlx.kernel.ir.axes import speaks_of
from rlx.kernel.ir.index import Linear, offset_of
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
    body: Body, nest: LoopNest, stages: Sequence[Statement], element: Expr, width: int
) -> list[Operand] | None:
    """What passes read along a row of the nest, if it all lies in pieces and so many lanes have room for it."""
    axis, length = len(nest.outer), nest.inner[0]
    if not isinstance(length, int) or length % NEIGHBOURS:
        return None
    needed = [e for s in stages for e in (s.needs() if isinstance(s, Store) else (s.body,))]
    found: list[Operand] = []
    for node in ex.walk([*needed, element]):
        if node.kind != "load" or not speaks_of([node], axis):
            continue
        line, slot = offset_of(node), body.slots[node.attr.slot]
        strides = [line.const, *(c for n, c in line.axes if n != axis), *(c for _, c in line.others)]
        near = line.coefficient(axis) == 1 and not speaks_of((e for e, _ in line.others), axis)
        whole = slot.aligned and all(dims.exact_div(c, NEIGHBOURS) is not None for c in strides)
        if node.attr.guarded or not near or not whole or node.dtype not in HELD_DTYPES:
            return None
        ahead = slot.static and not line.others and not any(n != axis for n, _ in line.axes)
        found.append(Operand(node, f"row{len(found)}", ahead))
    words = sum(4 * each.pieces for each in found) * steps(length, width)
    return found if words <= MOST_WORDS else None


def steps(length: int, width: int) -> int:
    """How often so many lanes go along a row."""
    return math.ceil(length / (NEIGHBOURS * width))


class PieceRows(GroupRows):
    """The stages of a row whose operands a lane holds. `take` gets the first of some neighbours, and their values."""

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
        code, slot = self.code, operand.load.attr.slot
        assert isinstance(self.length, int)
        count = steps(self.length, self.step)
        line = offset_of(operand.load)
        outside = tuple(each for each in line.axes if each[0] != self.inner[0])
        start = self.body.fresh_offset(Linear(line.const, outside, line.others))
        code.emit(f"Piece {operand.name}[{count * operand.pieces}];")
        for step in range(count):
            first = f"({self.lane} + {step * self.step}) * {NEIGHBOURS}"
            for piece in range(operand.pieces):
                place = f"slot{slot} + {start} + {first} + {piece * 16 // operand.load.dtype.itemsize}"
                value = f"piece_ahead({place})" if operand.ahead else f"piece_at<true>({place})"
                if not self._is_whole:
                    value = f"{first} < {self.length} ? {value} : Piece{{}}"
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
                    for _ in self._neighbours(first, step):
                        self.visit(sums, totals)
                for number, stage in self.reduces(sums).items():
                    self.body.rows[number] = self._joined(stage, totals[number])
        self.body.hoist([self.element], self._varies)
        with self._pieces() as (first, step):
            self.take_all(first, [self.body.gen(self.element) for _ in self._neighbours(first, step)])
            if stores:
                with self.body.scope(f"if ({self.storing})"):
                    for _ in self._neighbours(first, step):
                        self.visit(stores, {})

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

    def _neighbours(self, first: str, step: str) -> Iterator[None]:
        """Goes to each of some neighbours."""
        for number in range(NEIGHBOURS):
            self.body.axes[self.inner[0]] = f"({first} + {number})"
            for operand in self.held:
                if self.body.find(operand.load) is None:
                    held = self.code.let(operand.element(step, number))
                    self.body.remember(operand.load, Reg(held, operand.load.dtype, False))
            yield
