"""Cores: a tile of rows of A, read in place, times one panel of B, with all sums in registers.

There are several forms. Floats multiply an element of A with a vector of the panel: f32, f64, and f16 and bf16, which
become f32 when they are read. Bytes (u8 by i8, sums in i32, exact) multiply four neighbours of a row at once: a panel
keeps four elements of a column together, and an instruction adds their products to the column's sum. Where the CPU has
none that does (`vpdpbusd`), bytes widen to 16 bits, and pairs are multiplied and added (`pmaddwd`), which cannot
overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.codegen.simd.function import Function, Module, Target, memory_type, register_type
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType

UNROLL = 4
PREFETCH_LINES = 4
"""Cache lines of the next panel fetched into L2 per unrolled step."""
LINE_BYTES = 64
OPEN_REST = -1
"""In place of how many elements of k lie beyond its groups of four, where only a run knows."""
MOST_SUMS = 24
"""Vectors of sums in several sets."""


@dataclass(frozen=True)
class Form:
    """What a core multiplies.

    of      dtype of the elements of A, and of as wide ones of the panel
    dtype   of the sums
    group   elements along k that lie together in a panel
    """

    stem: str
    of: DType
    dtype: DType
    group: int = 1

    @property
    def element(self) -> str:
        """LLVM type of elements of A and of the panel."""
        return memory_type(self.of)

    @property
    def total(self) -> str:
        """LLVM type of the sums."""
        return register_type(self.dtype)

    @property
    def ahead(self) -> int:
        """Elements of the next panel that are fetched in a step along k."""
        return PREFETCH_LINES * LINE_BYTES // (self.of.itemsize * UNROLL * self.group)

    @property
    def moves(self) -> bool:
        """Whether a panel can be packed while running: its elements are what is multiplied, or bytes."""
        return self.of is self.dtype or self.dtype is dtypes.i32


FLOATS = Form("gemm", dtypes.f32, dtypes.f32)
BYTES = Form("gemm_bytes", dtypes.u8, dtypes.i32, 4)
DOUBLES = Form("gemm_f64", dtypes.f64, dtypes.f64)
HALVES, BRAINS = (Form(f"gemm_{of.name}", of, dtypes.f32) for of in (dtypes.f16, dtypes.bf16))
OF_DTYPE = {form.of: form for form in (FLOATS, DOUBLES, HALVES, BRAINS)}


def core(
    module: Module, rows: int, vectors: int, form: Form = FLOATS, tail: int = 0, alike: bool = False, of: int = 0
) -> str:  # fmt: skip
    """Adds the core of a tile shape for packed panels.

    void(ptr a, i64 lda, ptr b, ptr c, i64 ldc, i64 k, ptr ahead, ptr from, i64 ldf, i1 late), strides in elements;
    `ahead` is memory to prefetch. Unless `from` is null, the sums begin with the tile there, which may be the one at c;
    or it is added to them in the end, if `late`, and rounded once (sums that begin with a large number are rounded at
    every step). k is a multiple of the form's group but for `tail` elements (OPEN_REST for what k says). Those that are
    `alike` add up in one order, however many rows they have. A panel may be wider, `of` so many vectors, of which the
    first are multiplied.
    """
    sets = 1 if alike else sets_of(module.target, rows, vectors, form)
    apart = sets != sets_of(module.target, rows, vectors, form)
    wider = f"of{of}" if of > vectors else ""
    rest = "_open" if tail == OPEN_REST else f"_{tail}" if tail else ""
    stem = f"{form.stem}_{rows}x{vectors}{wider}{rest}" + "_alike" * apart
    if not module.has(stem):
        writer = ByteCore if form is BYTES else FloatCore
        module.add(stem, writer(module, stem, rows, vectors, form, tail, sets, max(of, vectors)).write().text())
    return stem


def sets_of(target: Target, rows: int, vectors: int, form: Form) -> int:
    """Sets of sums, added at the end: few sums would wait for one another, so short tiles have several."""
    few = rows * vectors * form.dtype.itemsize // 4
    # beside them: the panel's vectors and an element of A, and both as they are in memory
    others = (vectors + 1) * (1 if form.of is form.dtype else 2)
    room = min(MOST_SUMS, target.vector_registers - others)
    return 4 if few * 4 <= room else 2 if few * 2 <= room and few < 10 else 1


class Core:
    """The multiplication of `rows` rows with a panel; sums stay in registers over all of k."""

    def __init__(
        self, module: Module, name: str, rows: int, vectors: int, form: Form, tail: int, sets: int, of: int
    ) -> None:  # fmt: skip
        self.rows, self.vectors, self.form, self.tail, self.ways = rows, vectors, form, tail, sets
        self.lanes = module.target.lanes
        parameters = (
            "ptr noalias %a, i64 %lda, ptr noalias %b, ptr %c, i64 %ldc, i64 %k, ptr %ahead, ptr %from, i64 %ldf, "
            "i1 %late"
        )
        self.f = f = Function(module, name, parameters)
        self.kind = f"<{self.lanes} x {form.total}>"
        self.held = self.kind
        """Type of a vector of the panel in memory."""
        self.last = ""
        """With an open rest: the number of its last element."""
        module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.row_length = str(of * self.lanes)
        self.starts = [f.offset("%a", form.element, f.mul("%lda", str(r))) for r in range(rows)]

    def add(self, a: str, b: str) -> str:
        """The sum of two vectors of sums."""
        raise NotImplementedError

    def prepared(self, right: list[str]) -> list[list[str]]:
        """Registers that all rows use, for each vector of the panel."""
        raise NotImplementedError

    def row(self, place: str, tail: int) -> list[str]:
        """Registers that all vectors use, of the elements of a row at `place`."""
        raise NotImplementedError

    def multiplied(self, left: list[str], right: list[str], total: str) -> str:
        """`total` with the products added."""
        raise NotImplementedError

    def write(self) -> Function:
        f, count, kind, group = self.f, self.rows * self.vectors, self.kind, self.form.group
        even = f.sub("%k", str(self.tail)) if self.tail else "%k"
        if self.tail == OPEN_REST:
            even = f.mul(f.divide("%k", str(group)), str(group))
            self.last = f.sub(f.sub("%k", "1"), even)
        whole = f.mul(f.divide("%k", str(UNROLL * group)), str(UNROLL * group))
        start = [(kind, value) for value in self._start()]
        start += [(kind, "zeroinitializer")] * (count * (self.ways - 1))
        parts = f.loop("0", whole, UNROLL * group, start, self._unrolled)
        sums = parts[:count]
        for way in range(1, self.ways):
            sums = [self.add(a, b) for a, b in zip(sums, parts[way * count : (way + 1) * count])]
        sums = f.loop(whole, even, group, [(kind, s) for s in sums], lambda at, now: self._multiply(at, 0, now))
        if self.tail == OPEN_REST:
            carried = [(kind, s) for s in sums]
            sums = f.loop(even, "%k", group, carried, lambda at, now: self._multiply(at, 0, now, OPEN_REST))
        elif self.tail:
            sums = self._multiply(even, 0, sums, self.tail)
        sums = self._with_tile("%late", sums, lambda tile: [self.add(a, b) for a, b in zip(tile, sums)], "end")
        for r in range(self.rows):
            target = f.offset("%c", self.form.total, f.mul("%ldc", str(r)))
            for j in range(self.vectors):
                place = f.offset(target, self.form.total, str(j * self.lanes))
                f.emit(f"store {kind} {sums[r * self.vectors + j]}, ptr {place}, align 4")
        return f

    def _start(self) -> list[str]:
        """What the sums begin with: zeros, or a tile."""
        f = self.f
        some = f.value("icmp ne ptr %from, null")
        early = f.value(f"and i1 {some}, {f.value('xor i1 %late, true')}")
        zeros = ["zeroinitializer"] * (self.rows * self.vectors)
        return self._with_tile(early, zeros, lambda tile: tile, "start")

    def _with_tile(
        self, condition: str, sums: list[str], join: Callable[[list[str]], list[str]], label: str
    ) -> list[str]:  # fmt: skip
        """What `join` makes of the tile at `%from` where the condition holds, else the sums."""
        f, kind, total = self.f, self.kind, self.form.total
        before = f.block_name
        f.emit(f"br i1 {condition}, label %{label}.load, label %{label}")
        f.label(f"{label}.load")
        tile = []
        for r in range(self.rows):
            source = f.offset("%from", total, f.mul("%ldf", str(r)))
            for j in range(self.vectors):
                tile.append(f.value(f"load {kind}, ptr {f.offset(source, total, str(j * self.lanes))}, align 4"))
        joined = join(tile)
        f.emit(f"br label %{label}")
        f.label(label)
        return [f.value(f"phi {kind} [{a}, %{before}], [{b}, %{label}.load]") for a, b in zip(sums, joined)]

    def _unrolled(self, position: str, sums: list[str]) -> list[str]:
        f, count, element = self.f, self.rows * self.vectors, self.form.element
        ahead = f.offset("%ahead", element, f.mul(position, str(self.form.ahead)))
        for line in range(PREFETCH_LINES):
            place = f.offset(ahead, element, str(line * LINE_BYTES // self.form.of.itemsize))
            f.emit(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 2, i32 1)")
        sets = [sums[w * count : (w + 1) * count] for w in range(self.ways)]
        for step in range(UNROLL):
            sets[step % self.ways] = self._multiply(position, step * self.form.group, sets[step % self.ways])
        return [v for part in sets for v in part]

    def _multiply(self, position: str, step: int, sums: list[str], tail: int = 0) -> list[str]:
        """One step along k: `sums` with a column (or a group of them) of A times the panel's row added."""
        f, form = self.f, self.form
        where = f.offset("%b", form.element, f.mul(f.add(position, str(step)), self.row_length))
        wide = self.lanes * form.group
        right = [
            f.value(f"load {self.held}, ptr {f.offset(where, form.element, str(j * wide))}, align {form.of.itemsize}")
            for j in range(self.vectors)
        ]
        ready = self.prepared(right)
        products = []
        for r in range(self.rows):
            place = f.offset(f.offset(self.starts[r], form.element, position), form.element, str(step))
            left = self.row(place, tail)
            products += [self.multiplied(left, ready[j], sums[r * self.vectors + j]) for j in range(self.vectors)]
        return products

    def broadcast(self, scalar: str) -> str:
        f, kind = self.f, self.kind
        first = f.value(f"insertelement {kind} poison, {self.form.total} {scalar}, i64 0")
        return f.value(f"shufflevector {kind} {first}, {kind} poison, <{self.lanes} x i32> zeroinitializer")


class FloatCore(Core):
    """A multiply-add a vector."""

    def __init__(self, *operands: Any) -> None:
        super().__init__(*operands)
        self.held = f"<{self.lanes} x {self.form.element}>"

    def add(self, a: str, b: str) -> str:
        return self.f.value(f"fadd {self.kind} {a}, {b}")

    def prepared(self, right: list[str]) -> list[list[str]]:
        return [[self._wide(vector, self.lanes)] for vector in right]

    def row(self, place: str, tail: int) -> list[str]:
        of = self.form
        return [self.broadcast(self._wide(self.f.value(f"load {of.element}, ptr {place}, align {of.of.itemsize}"), 0))]

    def _wide(self, value: str, lanes: int) -> str:
        """An element, or a vector of them, as what is multiplied."""
        f, of = self.f, self.form.of
        if of is self.form.dtype:
            return value

        def kind(scalar: str) -> str:
            return f"<{lanes} x {scalar}>" if lanes else scalar

        if of is dtypes.f16:
            half = f.value(f"bitcast {kind('i16')} {value} to {kind('half')}")
            return f.value(f"fpext {kind('half')} {half} to {kind('float')}")
        places = "<" + ", ".join(["i32 16"] * lanes) + ">" if lanes else "16"
        wide = f.value(f"zext {kind('i16')} {value} to {kind('i32')}")
        shifted = f.value(f"shl {kind('i32')} {wide}, {places}")
        return f.value(f"bitcast {kind('i32')} {shifted} to {kind('float')}")

    def multiplied(self, left: list[str], right: list[str], total: str) -> str:
        return self.f.multiply_add(self.kind, left[0], right[0], total)


class ByteCore(Core):
    """u8 of A times i8 of the panel, four at a time."""

    def add(self, a: str, b: str) -> str:
        return self.f.value(f"add {self.kind} {a}, {b}")

    @property
    def how(self) -> str:
        return self.f.module.target.byte_products

    def cast(self, value: str, count: int, scalar: str) -> str:
        """A vector of i32 read as one of narrower integers."""
        return self.f.value(f"bitcast {self.kind} {value} to <{count * self.lanes} x {scalar}>")

    def prepared(self, right: list[str]) -> list[list[str]]:
        """As they are; or in 16 bits, the even bytes and the odd ones; or in 32 bits, each byte of the four."""
        f, vectors = self.f, []
        for vector in right:
            if self.how == "fours":
                vectors.append([vector])
            elif self.how == "pairs":
                kind, halves = self._halves(vector)
                shifted = f.value(f"shl {kind} {halves}, {self._splat('i16', 8)}")
                vectors.append([f.value(f"ashr {kind} {part}, {self._splat('i16', 8)}") for part in (shifted, halves)])
            else:
                kind = self.kind
                parts = [f.value(f"shl {kind} {vector}, {self._splat('i32', 24 - 8 * i)}") for i in range(4)]
                vectors.append([f.value(f"ashr {kind} {part}, {self._splat('i32', 24)}") for part in parts])
        return vectors

    def row(self, place: str, tail: int) -> list[str]:
        f = self.f
        word = self.broadcast(self._word(place, tail))
        if self.how == "fours":
            return [word]
        if self.how == "pairs":
            kind, halves = self._halves(word)
            low = f.value(f"and {kind} {halves}, {self._splat('i16', 255)}")
            return [low, f.value(f"lshr {kind} {halves}, {self._splat('i16', 8)}")]
        kind = self.kind
        parts = [f.value(f"lshr {kind} {word}, {self._splat('i32', 8 * i)}") for i in range(4)]
        return [f.value(f"and {kind} {part}, {self._splat('i32', 255)}") for part in parts]

    def _word(self, place: str, tail: int) -> str:
        """Four bytes of a row as an i32; where only `tail` are left, these. The panel has zeros for the others."""
        f = self.f
        if tail == 0:
            return f.value(f"load i32, ptr {place}, align 1")
        if tail == OPEN_REST:  # the last element again, in place of those behind it
            word = "0"
            for i in range(self.form.group - 1):
                byte = f.value(f"load i8, ptr {f.offset(place, 'i8', f.smin(str(i), self.last))}, align 1")
                shifted = f.value(f"shl i32 {f.value(f'zext i8 {byte} to i32')}, {8 * i}")
                word = f.value(f"or i32 {word}, {shifted}")
            return word
        low, bits = ("i16", 16) if tail > 1 else ("i8", 8)
        word = f.value(f"zext {low} {f.value(f'load {low}, ptr {place}, align 1')} to i32")
        if tail < 3:
            return word
        last = f.value(f"load i8, ptr {f.offset(place, 'i8', '2')}, align 1")
        high = f.value(f"shl i32 {f.value(f'zext i8 {last} to i32')}, {bits}")
        return f.value(f"or i32 {word}, {high}")

    def multiplied(self, left: list[str], right: list[str], total: str) -> str:
        f, kind, module = self.f, self.kind, self.f.module
        if self.how == "fours":
            wide = f"<{4 * self.lanes} x i8>"
            name = f"@llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
            module.declare(f"declare {kind} {name}({kind}, {wide}, {wide})")
            operands = f"{wide} {self.cast(left[0], 4, 'i8')}, {wide} {self.cast(right[0], 4, 'i8')}"
            return f.value(f"call {kind} {name}({kind} {total}, {operands})")
        for a, b in zip(left, right):
            total = self.add(total, self._pairs(a, b) if self.how == "pairs" else f.value(f"mul {kind} {a}, {b}"))
        return total

    def _pairs(self, a: str, b: str) -> str:
        half = f"<{2 * self.lanes} x i16>"
        name = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[self.lanes]
        self.f.module.declare(f"declare {self.kind} @llvm.x86.{name}({half}, {half})")
        return self.f.value(f"call {self.kind} @llvm.x86.{name}({half} {a}, {half} {b})")

    def _halves(self, vector: str) -> tuple[str, str]:
        return f"<{2 * self.lanes} x i16>", self.cast(vector, 2, "i16")

    def _splat(self, scalar: str, number: int) -> str:
        count = self.lanes * (2 if scalar == "i16" else 1)
        return "<" + ", ".join([f"{scalar} {number}"] * count) + ">"


@dataclass(frozen=True)
class BlockOperands:
    """Operands of a call of a core: pointers and row lengths in elements, as LLVM values."""

    a: str
    lda: str
    b: str
    c: str
    ldc: str
    k: str
    ahead: str
    start: str = "null"
    ldf: str = "0"
    late: bool = False


def call_core(
    f: Function, height: str, heights: int | Sequence[int], vectors: int, tile: BlockOperands, form: Form = FLOATS,
    tail: int = 0, alike: bool = False, of: int = 0,
) -> None:  # fmt: skip
    """Calls the core of a height that is only known at run time (one of these, or 1 to a number) on a packed panel."""
    text = (
        f"ptr {tile.a}, i64 {tile.lda}, ptr {tile.b}, ptr {tile.c}, i64 {tile.ldc}, i64 {tile.k}, "
        f"ptr {tile.ahead}, ptr {tile.start}, i64 {tile.ldf}, i1 {int(tile.late)}"
    )
    call_of_height(f, height, heights, lambda rows: f"{core(f.module, rows, vectors, form, tail, alike, of)}({text})")


def call_of_height(f: Function, height: str, heights: int | Sequence[int], call: Callable[[int], str]) -> None:
    """The call for a height that is only known at run time: one of these, or 1 to a number."""
    some = range(1, heights + 1) if isinstance(heights, int) else heights
    number = f.fresh("S")[1:]
    cases = " ".join(f"i64 {r}, label %{number}.{r}" for r in some)
    f.emit(f"switch i64 {height}, label %{number}.end [ {cases} ]")
    for r in some:
        f.label(f"{number}.{r}")
        f.emit(f"call void @{call(r)}")
        f.emit(f"br label %{number}.end")
    f.label(f"{number}.end")


def heights_of(m: Dim, block: int, tallest: int) -> Sequence[int]:
    """Heights that tiles of blocks of so many of `m` rows may have, by `tiles_of`."""
    if not isinstance(m, int):
        return range(1, tallest + 1)
    found: set[int] = set()
    blocks = max(-(-m // block), 1)
    most = -(-m // blocks)
    for rows in (most, m - most * (blocks - 1)):
        if rows > 0:
            count = -(-rows // tallest)
            found |= {rows // count, -(-rows // count)}
    return sorted(found)


def tiles_of(f: Function, rows: str, tallest: int) -> tuple[str, str, str]:
    """(number of tiles, least height, how many are one higher): tiles of nearly equal height."""
    count = f.ceil_divide(rows, str(tallest))
    none = f.value(f"icmp eq i64 {count}, 0")
    divisor = f.value(f"select i1 {none}, i64 1, i64 {count}")
    return count, f.divide(rows, divisor), f.remainder(rows, divisor)


def tile_at(f: Function, tile: str, base: str, extra: str) -> tuple[str, str]:
    """(first row, height) of a tile."""
    taller = f.value(f"icmp slt i64 {tile}, {extra}")
    height = f.add(base, f.value(f"zext i1 {taller} to i64"))
    return f.add(f.mul(tile, base), f.smin(tile, extra)), height
