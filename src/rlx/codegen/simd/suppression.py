"""Non-maximum suppression as an LLVM function: one list of boxes, a class of a picture, at a time.

Boxes that take part become integers as in `top_k`: the key of the score above the position. Where a condition leaves
few of them, vectors of scores without any are passed by. The integers are put in order, and box by box is compared with
those that were kept before, whose sides and areas lie in scratch, a vector of them at once and the best first: most
boxes that go are covered by one of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.codegen.scalar import maths
from rlx.codegen.simd.body import Body, lane_mask
from rlx.codegen.simd.function import Callee, Function, Module
from rlx.codegen.simd.irregular import weight_of
from rlx.codegen.simd.prologue import PARAMETERS, buffer_pointers, over_positions
from rlx.codegen.simd.registers import Reg, Vector
from rlx.codegen.simd.scheduled import WholePositions
from rlx.codegen.simd.top_k import add_sort
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr, apply
from rlx.kernel.ir.irregular import Suppression
from rlx.kernel.ir.order_keys import order_key
from rlx.kernel.schedule.schedule import Schedule

KEY, KEY_BYTES = "i64", 8
BITS = 64
"""Boxes of which one word says whether they count."""
CANDIDATE_CYCLES = 40
"""To put a box in its place, and to compare it with others, roughly."""


@dataclass(frozen=True)
class ScheduledSuppression(WholePositions):
    """How a suppression is run; fields as in `loops.ScheduledLoops`. A position is a list."""

    work: Suppression
    schedule: Schedule
    positions: Dim
    weight: Dim
    scratch: Dim

    def render(self, module: Module, stem: str, slots: int) -> Callee:
        return module.define(stem, lambda name: _SuppressionWriter(module, name, slots, self.work).write())


def schedule(work: Suppression, lanes: int) -> ScheduledSuppression:
    """Legalises bodies. Where a condition chooses, few boxes are taken to be candidates."""
    work = work.map_bodies(maths.legalise)
    each = weight_of(work.bodies()) + (CANDIDATE_CYCLES if work.counts is None else 4)
    scratch = dims.add(4 * len(_KEPT) * _room(work, lanes), dims.mul(2 * KEY_BYTES, dims.add(work.length, 1)))
    return ScheduledSuppression(work, Schedule(), dims.product(work.outer), dims.mul(work.length, each), scratch)


_KEPT = ("low y", "low x", "high y", "high x", "area")
"""What scratch has of boxes that are kept: a row of each."""


def _room(work: Suppression, lanes: int) -> Dim:
    """Elements of such a row: whole vectors, from wherever the last box lies."""
    return dims.mul(lanes, dims.add(dims.floordiv(work.limit, lanes), 2))


def _leaf(name: str) -> Expr:
    return Expr("register", dtypes.f32, (), ("suppression", name))


def _area(sides: tuple[Expr, ...]) -> Expr:
    return (sides[2] - sides[0]) * (sides[3] - sides[1])


def _covers(box: tuple[Expr, ...], kept: tuple[Expr, ...], overlap: Expr) -> Expr:
    """Whether a box (sides and area) is covered by one that is kept: instruction by instruction what the op's
    definition says, so that both keep the same boxes."""
    zero = ex.const(0, dtypes.f32)
    height, width = (
        apply("max", apply("min", box[i + 2], kept[i + 2]) - apply("max", box[i], kept[i]), zero) for i in (0, 1)
    )
    common = height * width
    union = kept[4] + box[4] - common
    meets = apply("and", apply("lt", zero, common), apply("lt", zero, union))
    return apply("and", meets, apply("lt", overlap, common / union))


class _SuppressionWriter:
    """Candidates of a list, in order; those that are kept; what is behind the last of them."""

    def __init__(self, module: Module, name: str, slots: int, work: Suppression) -> None:
        self.work = work
        self.f = f = Function(module, name, PARAMETERS)
        self.body = Body(f, buffer_pointers(f, slots))
        self.axis = len(work.outer)
        self.sort = add_sort(module, KEY, KEY_BYTES)
        room = f.dim(_room(work, self.body.lanes))
        self.rows = [f.at_entry(f"getelementptr float, ptr %scratch, i64 {row}") for row in self._multiples(room)]
        self.keys = f.at_entry(f"getelementptr float, ptr %scratch, i64 {self._multiple(room, len(_KEPT))}")
        self.spare = f.at_entry(f"getelementptr {KEY}, ptr {self.keys}, i64 {f.dim(dims.add(work.length, 1))}")
        self.count, self.kept, self.at, self.other, self.left = (f.at_entry("alloca i64, align 8") for _ in range(5))
        self.covered = f.at_entry("alloca i1, align 1")

    def _multiple(self, room: str, times: int) -> str:
        if room.isdigit():
            return str(int(room) * times)
        return self.f.at_entry(f"mul i64 {room}, {times}")

    def _multiples(self, room: str) -> list[str]:
        return [self._multiple(room, times) for times in range(len(_KEPT))]

    def write(self) -> Function:
        over_positions(self.f, self.body, self.work.outer, self._list)
        return self.f

    def _list(self) -> None:
        f, work = self.f, self.work
        self._set(self.kept, "0")
        limit = f.dim(work.limit)
        most = f.smin(self.body.gen(work.most).name, limit)

        def choose() -> None:
            self._set(self.count, "0")
            self.body.push()
            self._collect()
            self.body.pop()
            count = self._get(self.count)
            f.emit(f"call void @{self.sort}(ptr {self.keys}, ptr {self.spare}, i64 {count})")
            self._set(self.at, "0")
            self._while(lambda: self._goes_on(count, most), self._candidate)

        f.when(f.value(f"icmp sgt i64 {most}, 0"), choose)
        kept = self._get(self.kept)
        self.body.store(*work.kept, Reg(kept, dtypes.i64, False))
        self._fill(kept, limit)

    # candidates

    def _collect(self) -> None:
        f, work, lanes = self.f, self.work, self.body.lanes
        length, counts = f.dim(work.length), work.counts
        if counts is None:
            f.loop("0", length, 1, [], lambda position, _: self._take(position))
            return
        whole = f.mul(f.divide(length, str(BITS)), str(BITS))
        f.loop("0", whole, BITS, [], lambda first, _: self._take_some(first, self._several(counts, first)))
        f.loop(whole, length, lanes, [], lambda first, _: self._take_some(first, self._rest(counts, first, length)))

    def _several(self, counts: Expr, first: str) -> str:
        """Which of the next boxes count, as bits."""
        f, lanes = self.f, self.body.lanes
        total = "0"
        for start in range(0, BITS, lanes):
            bits = f.value(f"zext i{lanes} {self._bits(counts, f.add(first, str(start)), None)} to i{BITS}")
            total = f.value(f"or i{BITS} {total}, {f.value(f'shl i{BITS} {bits}, {start}')}")
        return total

    def _rest(self, counts: Expr, first: str, length: str) -> str:
        """Which boxes of a vector count that may reach beyond the last one."""
        f, lanes = self.f, self.body.lanes
        mask = lane_mask(self.body, f.sub(length, first))
        return f.value(f"zext i{lanes} {self._bits(counts, first, mask)} to i{BITS}")

    def _bits(self, counts: Expr, first: str, mask: str | None) -> str:
        f, body, lanes = self.f, self.body, self.body.lanes
        body.push()
        body.axes[self.axis] = first
        body.vector = Vector(self.axis, mask)
        some = body.splat(body.gen(counts)).name
        body.vector = None
        body.pop()
        some = some if mask is None else f.value(f"and <{lanes} x i1> {some}, {mask}")
        return f.value(f"bitcast <{lanes} x i1> {some} to i{lanes}")

    def _take_some(self, first: str, bits: str) -> list[str]:
        """Takes the boxes whose bits are set."""
        f = self.f
        self._set(self.left, bits)
        f.module.declare(f"declare i{BITS} @llvm.cttz.i{BITS}(i{BITS}, i1)")

        def take() -> None:
            left = self._get(self.left)
            place = f.value(f"call i{BITS} @llvm.cttz.i{BITS}(i{BITS} {left}, i1 true)")
            self._set(self.left, f.value(f"and i{BITS} {left}, {f.sub(left, '1')}"))
            self._take(f.add(first, place))

        self._while(lambda: f.value(f"icmp ne i{BITS} {self._get(self.left)}, 0"), take)
        return []

    def _take(self, position: str) -> list[str]:
        """Puts a box behind those that were taken."""
        f, body = self.f, self.body
        body.push()
        body.axes[self.axis] = position
        key = body.gen(order_key(self.work.score, largest=True)).name
        body.pop()
        wide = f.value(f"sext i32 {key} to i64")
        element = f.value(f"or i64 {f.value(f'shl i64 {wide}, 32')}, {position}")
        count = self._get(self.count)
        f.emit(f"store i64 {element}, ptr {f.offset(self.keys, KEY, count)}, align 8")
        self._set(self.count, f.add(count, "1"))
        return []

    # what is kept

    def _goes_on(self, count: str, most: str) -> str:
        f = self.f
        more = f.value(f"icmp slt i64 {self._get(self.at)}, {count}")
        return f.value(f"and i1 {more}, {f.value(f'icmp slt i64 {self._get(self.kept)}, {most}')}")

    def _candidate(self) -> None:
        """Keeps the next box, unless one that is kept covers it."""
        f, work, body = self.f, self.work, self.body
        at = self._get(self.at)
        self._set(self.at, f.add(at, "1"))
        element = f.value(f"load i64, ptr {f.offset(self.keys, KEY, at)}, align 8")
        position = f.value(f"and i64 {element}, {(1 << 32) - 1}")
        body.push()
        body.axes[self.axis] = position
        sides = tuple(map(body.gen, work.sides))
        leaves = tuple(map(_leaf, _KEPT))
        for leaf, side in zip(leaves, sides):
            body.remember(leaf, side)
        box = (*sides, body.gen(_area(leaves)))
        body.pop()
        f.emit(f"store i1 false, ptr {self.covered}, align 1")
        self._set(self.other, "0")
        kept = self._get(self.kept)
        self._while(lambda: self._looks_on(kept), lambda: self._compare(box, kept))

        def keep() -> None:
            for row, number in zip(self.rows, box):
                f.emit(f"store float {number.name}, ptr {f.offset(row, 'float', kept)}, align 4")
            body.push()
            body.axes[self.axis] = kept
            body.store(*work.picked, Reg(f.value(f"trunc i64 {position} to i32"), dtypes.i32, False))
            body.pop()
            self._set(self.kept, f.add(kept, "1"))

        f.when(self._is_free(), keep)

    def _looks_on(self, kept: str) -> str:
        f = self.f
        more = f.value(f"icmp slt i64 {self._get(self.other)}, {kept}")
        return f.value(f"and i1 {more}, {self._is_free()}")

    def _is_free(self) -> str:
        covered = self.f.value(f"load i1, ptr {self.covered}, align 1")
        return self.f.value(f"xor i1 {covered}, true")

    def _compare(self, box: tuple[Reg, ...], kept: str) -> None:
        """The box with a vector of those that are kept; lanes behind the last are of no account."""
        f, body, lanes = self.f, self.body, self.body.lanes
        other = self._get(self.other)
        body.push()
        ours, theirs = (tuple(_leaf(f"{name} of {whose}") for name in _KEPT) for whose in ("box", "kept"))
        for leaf, register in zip(ours, box):
            body.remember(leaf, register)
        for leaf, row in zip(theirs, self.rows):
            value = f.value(f"load <{lanes} x float>, ptr {f.offset(row, 'float', other)}, align 4")
            body.remember(leaf, Reg(value, dtypes.f32, True))
        covers = body.splat(body.gen(_covers(ours, theirs, self.work.overlap))).name
        inside = lane_mask(body, f.sub(kept, other))
        some = f.value(f"bitcast <{lanes} x i1> {f.value(f'and <{lanes} x i1> {covers}, {inside}')} to i{lanes}")
        body.pop()
        f.emit(f"store i1 {f.value(f'icmp ne i{lanes} {some}, 0')}, ptr {self.covered}, align 1")
        self._set(self.other, f.add(other, str(lanes)))

    def _fill(self, kept: str, limit: str) -> None:
        """-1 behind the last."""
        f, body, lanes = self.f, self.body, self.body.lanes

        def none(first: str, mask: str | None) -> list[str]:
            body.push()
            body.axes[self.axis] = first
            body.vector = Vector(self.axis, mask)
            body.store(*self.work.picked, body.splat(Reg("-1", dtypes.i32, False)))
            body.vector = None
            body.pop()
            return []

        whole = f.add(kept, f.mul(f.divide(f.sub(limit, kept), str(lanes)), str(lanes)))
        f.loop(kept, whole, lanes, [], lambda first, _: none(first, None))
        f.loop(whole, limit, lanes, [], lambda first, _: none(first, lane_mask(body, f.sub(limit, first))))

    # numbers that change

    def _get(self, where: str) -> str:
        return self.f.value(f"load i64, ptr {where}, align 8")

    def _set(self, where: str, number: str) -> None:
        self.f.emit(f"store i64 {number}, ptr {where}, align 8")

    def _while(self, test: Callable[[], str], body: Callable[[], None]) -> None:
        f = self.f
        number = f.fresh("W")[1:]
        f.emit(f"br label %{number}.head")
        f.label(f"{number}.head")
        f.emit(f"br i1 {test()}, label %{number}.body, label %{number}.exit")
        f.label(f"{number}.body")
        body()
        f.emit(f"br label %{number}.head")
        f.label(f"{number}.exit")
