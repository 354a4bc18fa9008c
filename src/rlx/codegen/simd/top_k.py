"""Rankings as LLVM functions: sorting, and selecting the top k.

An element becomes one integer, its key above its position, so that integers compare as the elements do, and equal
elements by position. Elements that are less than the k-th best so far go into a buffer of twice k; a full buffer is
sorted and cut to k. Sorting everything is the case of a buffer that never fills.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from rlx.codegen.simd.body import Body
from rlx.codegen.simd.function import Function, Module
from rlx.codegen.simd.prologue import PARAMETERS, buffer_pointers, over_positions
from rlx.codegen.simd.registers import Reg, Vector
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.index import Linear
from rlx.kernel.ir.irregular import TopKSelection
from rlx.kernel.ir.order_keys import order_key
from rlx.kernel.schedule.overrides import overridden
from rlx.kernel.schedule.schedule import Schedule, Tile

MANY = 160
"""Elements that are sorted by the bytes of their keys; fewer are merged (`radix.ll`)."""
LEAST_ROOM = 64
"""Elements that the buffer holds at least, unless a schedule set by hand says otherwise."""


def schedule() -> Schedule:
    """The buffer's elements, at least: it also holds twice k."""
    return overridden("top-k", Schedule(tiles=(Tile("cache", "elements", LEAST_ROOM),)))


def _is_wide(work: TopKSelection) -> bool:
    return work.body.dtype.bits == 64


def _room(work: TopKSelection, least: int) -> Dim:
    """Elements of the buffer: all of the row, or twice k if that is less."""
    return dims.minimum(work.length, dims.maximum(dims.mul(2, work.k), least))


def scratch_bytes(work: TopKSelection, least: int) -> Dim:
    """The buffer, one element more, and room for sorting it."""
    return dims.mul(2 * (16 if _is_wide(work) else 8), dims.add(_room(work, least), 1))


@cache
def _sort_text(kind: str, size: int) -> str:
    text = (files("rlx.codegen.simd") / "sort.ll").read_text()
    return text.replace("@W@", kind).replace("@B@", str(size))


@cache
def _radix_text() -> str:
    return (files("rlx.codegen.simd") / "radix.ll").read_text().replace("@MANY@", str(MANY))


def add_sort(module: Module, kind: str, size: int) -> str:
    """The name of a function that puts integers of so many bytes, keys above positions, in order; positions of equal
    keys must be in order already."""
    merge, name = f"rlx_merge_sort_{kind}", "rlx_sort_i64" if kind == "i64" else f"rlx_merge_sort_{kind}"
    if not module.has(merge):
        module.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        module.add(merge, _sort_text(kind, size))
        if name != merge:
            module.add(name, _radix_text())
    return name


class TopKWriter:
    """One row at a time: fill the buffer, sort it, write values and positions."""

    def __init__(self, module: Module, name: str, slots: int, work: TopKSelection, least: int) -> None:
        self.work = work
        room = _room(work, least)
        self.looks = room != work.length
        self.f = f = Function(module, name, PARAMETERS)
        self.body = Body(f, buffer_pointers(f, slots))
        self.axis = len(work.outer)
        self.kind, self.size = ("i128", 16) if _is_wide(work) else ("i64", 8)
        self.greatest = (1 << (8 * self.size - 1)) - 1
        self.sort = add_sort(module, self.kind, self.size)
        self.room = f.dim(room)
        self.spare = f.offset("%scratch", self.kind, f.add(self.room, "1"))
        self.count = f.at_entry("alloca i64")
        self.threshold = f.at_entry(f"alloca {self.kind}, align 16")

    def write(self) -> Function:
        over_positions(self.f, self.body, self.work.outer, self._row)
        return self.f

    def _row(self) -> None:
        f, work = self.f, self.work
        f.emit(f"store i64 0, ptr {self.count}, align 8")
        f.emit(f"store {self.kind} {self.greatest}, ptr {self.threshold}, align 16")
        self.body.push()
        length = f.dim(work.length)
        whole = "0"
        if self.looks:
            whole = f.mul(f.divide(length, str(self.body.lanes)), str(self.body.lanes))
            f.loop("0", whole, self.body.lanes, [], lambda first, _: self._look(first))
        f.loop(whole, length, 1, [], lambda position, _: self._take(position))
        self.body.pop()
        self._sort(f.value(f"load i64, ptr {self.count}, align 8"))
        f.loop("0", f.dim(work.k), 1, [], lambda rank, _: self._give(rank))

    def _key(self) -> Expr:
        return order_key(self.work.body, self.work.largest)

    def _look(self, first: str) -> list[str]:
        """Takes the elements of a vector, unless none is less than the threshold: of many elements most are not."""
        f, body = self.f, self.body
        half, lanes = 4 * self.size, body.lanes
        body.push()
        body.axes[self.axis] = first
        body.vector = Vector(self.axis)
        keys = body.splat(body.gen(self._key())).name
        limit = f.value(f"load {self.kind}, ptr {self.threshold}, align 16")
        high = f.value(f"trunc {self.kind} {f.value(f'ashr {self.kind} {limit}, {half}')} to i{half}")
        # a key equal to the threshold's has a later position, and so comes after it
        limits = body.splat(Reg(high, dtypes.i64 if half == 64 else dtypes.i32, False)).name
        less = f.value(f"icmp slt <{lanes} x i{half}> {keys}, {limits}")
        some = f.value(f"icmp ne i{lanes} {f.value(f'bitcast <{lanes} x i1> {less} to i{lanes}')}, 0")
        body.vector = None
        body.pop()
        unset = f.value(f"icmp eq {self.kind} {limit}, {self.greatest}")

        def take() -> None:
            f.loop(first, f.add(first, str(lanes)), 1, [], lambda position, _: self._take(position))

        f.when(f.value(f"or i1 {some}, {unset}"), take)
        return []

    def _take(self, position: str) -> list[str]:
        """Puts one element behind those in the buffer; it counts if it is less than the threshold."""
        f, body = self.f, self.body
        body.push()
        body.axes[self.axis] = position
        key = body.gen(self._key())
        body.pop()
        half = 4 * self.size
        wide = f.value(f"sext i{half} {key.name} to {self.kind}")
        place = position if self.kind == "i64" else f.value(f"zext i64 {position} to i128")
        element = f.value(f"or {self.kind} {f.value(f'shl {self.kind} {wide}, {half}')}, {place}")
        count = f.value(f"load i64, ptr {self.count}, align 8")
        f.emit(f"store {self.kind} {element}, ptr {f.offset('%scratch', self.kind, count)}, align {self.size}")
        limit = f.value(f"load {self.kind}, ptr {self.threshold}, align 16")
        better = f.value(f"icmp slt {self.kind} {element}, {limit}")
        after = f.add(count, f.value(f"zext i1 {better} to i64"))
        f.emit(f"store i64 {after}, ptr {self.count}, align 8")
        full = f.value(f"icmp eq i64 {after}, {self.room}")
        going_on = f.value(f"icmp slt i64 {f.add(position, '1')}, {f.dim(self.work.length)}")
        f.when(f.value(f"and i1 {full}, {going_on}"), self._cut)
        return []

    def _cut(self) -> None:
        """Sorts a full buffer, and keeps k."""
        f = self.f
        self._sort(self.room)
        f.emit(f"store i64 {f.dim(self.work.k)}, ptr {self.count}, align 8")
        last = f.smax(f.sub(f.dim(self.work.k), "1"), "0")
        worst = f.value(f"load {self.kind}, ptr {f.offset('%scratch', self.kind, last)}, align {self.size}")
        f.emit(f"store {self.kind} {worst}, ptr {self.threshold}, align 16")

    def _sort(self, count: str) -> None:
        self.f.emit(f"call void @{self.sort}(ptr %scratch, ptr {self.spare}, i64 {count})")

    def _give(self, rank: str) -> list[str]:
        """Writes the element of a rank, read anew, and its position."""
        f, work, body = self.f, self.work, self.body
        element = f.value(f"load {self.kind}, ptr {f.offset('%scratch', self.kind, rank)}, align {self.size}")
        if self.kind == "i128":
            position = f.value(f"trunc i128 {element} to i64")
        else:
            position = f.value(f"and i64 {element}, {(1 << 32) - 1}")
        if work.values is not None:
            body.push()
            body.axes[self.axis] = position
            value = body.gen(work.body)
            body.pop()
            self._store(work.values, rank, value)
        if work.indices is not None:
            self._store(work.indices, rank, Reg(position, dtypes.i64, False))
        return []

    def _store(self, where: tuple[int, Linear], rank: str, value: Reg) -> None:
        self.body.push()
        self.body.axes[self.axis] = rank
        self.body.store(*where, value)
        self.body.pop()
