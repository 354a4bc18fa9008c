"""Pools, convolutions of each channel alone and pads in CUDA C++: lanes have several channels, which lie last. Memory
is read and written in pieces of 16 bytes, and indices are worked out once for all. Plain maps and long rows are in
pieces by `piece_nests.py`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from rlx.codegen.simt import loops as nests
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.cpp import words_of
from rlx.codegen.simt.registers import Reg
from rlx.codegen.simt.rows import identity_variable, iterations_of, needs
from rlx.codegen.simt.writer import Writer
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.axes import speaks_of
from rlx.kernel.ir.index import Linear, offset_of
from rlx.kernel.ir.loops import LoopNest, Reduce, Store
from rlx.kernel.schedule.schedule import Schedule, Tile
from rlx.kernel.schedule.transposes import transposition

WIDTHS = (8, 4)
"""Neighbours that a lane may have."""
MOST_TERMS = 64
"""Of a row, which a lane walks alone."""
SHORT = 8
"""Elements along the last axis up to which neighbours may lie apart where they are read."""
PIECES = (dtypes.f16, dtypes.bf16, dtypes.f32)
"""What is taken apart from pieces, and put together to these."""


def width_of(nest: LoopNest, slots: Sequence[Slot]) -> int:
    """How many neighbours a lane has of a nest; 0 where each is to have a lane of its own."""
    terms = dims.product(nest.inner)
    known = nest.outer and isinstance(terms, int) and 0 < terms <= MOST_TERMS and transposition(nest) is None
    if not known or not all(_is_plain(statement, nest) for statement in nest.statements):
        return 0
    stores = list(nest.stores())
    loads = list(nest.loads())
    if not nest.inner and not any(node.attr.guarded for node in loads):
        return 0
    for width in WIDTHS:
        fits = dims.exact_div(nest.outer[-1], width) is not None and all(
            _is_wide(slots, store.slot, store.offset, _last(nest), width) for store in stores
        )
        if fits and all(_is_readable(node, nest, slots, width) for node in loads):
            narrow = [slots[slot].dtype for slot in (*(s.slot for s in stores), *(n.attr.slot for n in loads))]
            if width == min(WIDTHS) or any(dtype.bits == 16 for dtype in narrow):
                return width
    return 0


def _last(nest: LoopNest) -> int:
    return len(nest.outer) - 1


def _is_plain(statement: object, nest: LoopNest) -> bool:
    """Whether it is a reduction of a row to one value, or a store of one value of the row."""
    if isinstance(statement, Reduce):
        alone = all(node.kind != "row" for node in ex.walk([statement.body]))
        return alone and not statement.argument and statement.combine in ("add", "max", "min")
    return isinstance(statement, Store) and statement.guard is None and not (statement.per_element and nest.inner)


def _is_wide(slots: Sequence[Slot], number: int, line: Linear, last: int, width: int) -> bool:
    """Whether neighbours along the last axis are neighbours in memory, which begin at multiples of their bytes."""
    slot = slots[number]
    if slot.dtype not in PIECES or not slot.aligned or line.coefficient(last) != 1:
        return False
    strides = [line.const, *(c for axis, c in line.axes if axis != last), *(c for _, c in line.others)]
    apart = not speaks_of((e for e, _ in line.others), last)
    return apart and all(dims.exact_div(c, width) is not None for c in strides)


def _is_wide_load(node: Expr, nest: LoopNest, slots: Sequence[Slot], width: int) -> bool:
    guard = node.args[:1] if node.attr.guarded else ()
    last = _last(nest)
    return not speaks_of(guard, last) and _is_wide(slots, node.attr.slot, offset_of(node), last, width)


def _is_readable(node: Expr, nest: LoopNest, slots: Sequence[Slot], width: int) -> bool:
    """Whether neighbours are read in pieces, or are the same element, or few."""
    if _is_wide_load(node, nest, slots, width) or not speaks_of([node], _last(nest)):
        return True
    short = nest.outer[-1]
    return isinstance(short, int) and short <= SHORT


class WideNest(Writer):
    """Positions are those of the outer axes, the last one in pieces of `width`."""

    def __init__(self, nest: LoopNest, slots: Sequence[Slot], language: Language, width: int) -> None:
        self.nest, self.width = nest, width
        pieces = dims.exact_div(nest.outer[-1], width)
        assert pieces is not None  # asked by `width_of`
        super().__init__(slots, (*nest.outer[:-1], pieces), (*nest.outer, *nest.inner), language=language)
        self.last = _last(nest)
        self.schedule = Schedule((Tile("thread", f"a{self.last}", width),), vector=(f"a{self.last}", width))

    def write(self) -> Dim:
        """All of a lane's elements."""
        body, code = self.body, self.code
        self.at = code.let(f"{body.axes[self.last]} * {self.language.index(self.width)}", "at")
        statements = nests.legal_stages(self.nest.statements)
        reduces = {n: s for n, s in enumerate(statements) if isinstance(s, Reduce)}
        totals = {
            n: [identity_variable(code, s.combine, s.dtype, "total") for _ in range(self.width)]
            for n, s in reduces.items()
        }
        if reduces:
            self._walk(reduces, totals)
        stores = [s for s in statements if isinstance(s, Store)]
        values: list[list[Reg]] = [[] for _ in stores]
        pieces = self._pieces_of([s.body for s in stores])
        for number in range(self.width):
            body.rows.update({n: each[number] for n, each in totals.items()})
            self._at(number, pieces)
            for of_store, store in zip(values, stores):
                of_store.append(body.gen(store.body))
        body.axes[self.last] = self.at
        for store, of_store in zip(stores, values):
            self._store(store, of_store)
        once = iterations_of([e for s in statements for e in needs(s)])
        return dims.mul(dims.add(dims.mul(dims.product(self.nest.inner), 3), 4), once * self.width)

    def _walk(self, reduces: dict[int, Reduce], totals: dict[int, list[Reg]]) -> None:
        """Joins what all places of the row have."""
        body, code, language = self.body, self.code, self.language
        with ExitStack() as loops:
            for axis, extent in enumerate(self.nest.inner, len(self.nest.outer)):
                name = code.fresh("k")
                body.axes[axis] = name
                code.emit("#pragma unroll")
                loops.enter_context(body.scope(language.loop(name, language.index(0), self.record.dim(extent))))
            pieces = self._pieces_of([s.body for s in reduces.values()])
            for number in range(self.width):
                self._at(number, pieces)
                for place, reduce in reduces.items():
                    total, value = totals[place][number], body.gen(reduce.body)
                    code.emit(f"{total.name} = {body.apply(reduce.combine, total, value).name};")

    def _at(self, number: int, pieces: dict[Expr, list[str]]) -> None:
        """Goes to one of the lane's elements, of which `pieces` are known."""
        body = self.body
        body.axes[self.last] = self.code.let(f"{self.at} + {self.language.index(number)}", "at") if number else self.at
        for node, of_node in pieces.items():
            body.remember(node, self._element(node, of_node, number))

    def _pieces_of(self, bodies: Sequence[Expr]) -> dict[Expr, list[str]]:
        """The pieces that bodies read at this place."""
        self.body.axes[self.last] = self.at
        loads = [node for node in ex.walk(list(bodies)) if node.kind == "load"]
        wide = [node for node in loads if _is_wide_load(node, self.nest, self.body.slots, self.width)]
        return {node: self._pieces(node) for node in wide}

    def _pieces(self, node: Expr) -> list[str]:
        slot = node.attr.slot
        kind, count = self._form(slot)
        at = self.body.fresh_offset(offset_of(node))
        guard = f"{self.body.gen(node.args[0]).name} ? " if node.attr.guarded else ""
        step = self.width // count
        places = [f"*(const {kind}*)(slot{slot} + {at} + {i * step})" for i in range(count)]
        return [self.code.let(f"{guard}{place}{f' : {kind}{{}}' if guard else ''}", "piece") for place in places]

    def _form(self, slot: int) -> tuple[str, int]:
        """The type of a lane's pieces, and how many there are."""
        nbytes = self.body.slots[slot].dtype.itemsize * self.width
        return ("Piece", nbytes // 16) if nbytes >= 16 else ("HalfPiece", 1)

    def _element(self, node: Expr, pieces: Sequence[str], number: int) -> Reg:
        """A lane's neighbour of this number."""
        dtype = self.body.slots[node.attr.slot].dtype
        piece, within = divmod(number * dtype.itemsize, 16)
        word = f"{pieces[piece]}.{'xyzw'[within // 4]}"
        if dtype is dtypes.f32:
            return Reg(self.code.let(f"__uint_as_float({word})"), dtype, False)
        bits = f"{word} >> 16" if within % 4 else f"{word} & 0xffffu"
        return Reg(self.code.let(f"decode_{dtype}({bits})"), dtype, False)

    def _store(self, store: Store, values: Sequence[Reg]) -> None:
        dtype = self.body.slots[store.slot].dtype
        words = words_of(dtype, [value.unrounded for value in values])
        kind, count = self._form(store.slot)
        at = self.body.fresh_offset(store.offset)
        step, of_piece = self.width // count, len(words) // count
        for i in range(count):
            place = f"slot{store.slot} + {at} + {i * step}"
            self.code.emit(self.language.put(kind, place, words[i * of_piece : (i + 1) * of_piece]))
