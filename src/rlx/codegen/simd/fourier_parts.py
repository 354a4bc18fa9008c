"""Long Fourier transforms in parts that threads share, as LLVM functions of the form that `codegen.simd.loops` has.

A position of the parts "rows" and "columns" is a vector of columns: half of the steps go through them in scratch memory
that stays in a near cache, each lane a transform of its own. A position of "pairs" is some vectors of bins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rlx.codegen.scalar import maths
from rlx.codegen.simd.butterfly import Complex, Number
from rlx.codegen.simd.fourier import PASS_CYCLES, ROW_CYCLES, FourierWriter, Reader, Writer
from rlx.codegen.simd.function import Callee, Function, Module
from rlx.codegen.simd.prologue import over_positions
from rlx.codegen.simd.registers import float_literal
from rlx.codegen.simd.scheduled import WholePositions
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.expr import walk
from rlx.kernel.ir.index import offset_of
from rlx.kernel.ir.irregular import FourierPart, FourierTransform
from rlx.kernel.passes.twiddles import Step, halves_of, pair_count, part_room, points
from rlx.kernel.passes.twiddles import schedule as tiles_of
from rlx.kernel.schedule.schedule import Schedule

PAIR_VECTORS = 32
"""Of bins, in a piece that a thread takes."""
BESIDE = 4
"""Vectors of columns in a piece, at most: rows are far apart in memory, and neighbouring lines come faster."""
LEAST_PIECES = 16
"""Of a row, if it has as many vectors of columns: threads find enough of them."""
SCRATCH_BYTES = 1 << 20
"""For these vectors, at most."""


@dataclass(frozen=True)
class ScheduledFourierPart(WholePositions):
    """How a part of a transform is run; fields as in `loops.ScheduledLoops`.

    here   the steps of this part
    beside   vectors of columns that are a piece
    pieces   of a row, one a position
    """

    part: FourierPart
    schedule: Schedule
    steps: tuple[Step, ...]
    here: tuple[Step, ...]
    beside: int
    pieces: int
    weight: Dim

    @property
    def work(self) -> FourierTransform:
        return self.part.of

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.schedule.static_tile("register", "signal")

    @property
    def positions(self) -> Dim:
        return dims.mul(dims.product(self.work.outer), self.pieces)

    @property
    def high(self) -> int:
        """Elements of a column."""
        high = 1
        for step in self.here:
            high *= step.radix
        return high

    @property
    def across(self) -> int:
        """Columns of a row."""
        return points(self.work) // self.high

    @property
    def area(self) -> int:
        """Elements of scratch for a part of a vector of columns."""
        return (self.high + 1) * self.lanes

    @property
    def room(self) -> int:
        """Elements of a part of a buffer."""
        return self.beside * self.area + self.lanes

    @property
    def scratch(self) -> Dim:
        return 4 * self.room * self.work.real.dtype.itemsize if self.here else 0

    @property
    def vectors(self) -> int:
        """Complex vectors that go through a step, or a pass over pairs or columns, at a position."""
        if self.part.part == "pairs":
            return 2 * min(PAIR_VECTORS, -(-pair_count(self.work) // self.lanes))
        return self.beside * self.high * (len(self.here) + (self.part.part == "rows")) if self.here else 0

    def render(self, module: Module, stem: str, slots: int) -> Callee:
        return module.define(stem, lambda name: _PartWriter(module, name, self, slots).write())


def schedule(part: FourierPart, lanes: int) -> ScheduledFourierPart:
    """Legalises bodies and finds the steps of a part."""
    part = part.map_bodies(maths.legalise)
    chosen = tiles_of(part.of, lanes)
    width = chosen.static_tile("register", "signal")
    cut = halves_of(part.of, chosen)
    assert cut is not None  # other transforms are not cut
    here = {"rows": cut[0], "columns": cut[1]}.get(part.part, ())
    scheduled = ScheduledFourierPart(part, chosen, (*cut[0], *cut[1]), here, 1, 1, 0)
    if here:
        vectors = -(-scheduled.across // width)
        most = SCRATCH_BYTES // (4 * scheduled.area * part.of.real.dtype.itemsize)
        most = min(BESIDE, most, vectors // LEAST_PIECES)
        beside = next((n for n in range(most, 1, -1) if vectors % n == 0), 1)
        scheduled = replace(scheduled, beside=beside, pieces=vectors // beside)
    elif part.part == "pairs":
        scheduled = replace(scheduled, pieces=-(-pair_count(part.of) // (width * PAIR_VECTORS)))
    return replace(scheduled, weight=ROW_CYCLES + PASS_CYCLES * scheduled.vectors)


ReaderOf = Callable[[str], Reader]
WriterOf = Callable[[str], Writer]
"""By the number of a vector of columns in its piece; positions are rows."""
TwiddlesOf = Callable[[Step, str, str], list[tuple[str, str]]]
"""Of a step's results but the first, at a row of its twiddles and a vector of columns."""


class _PartWriter(FourierWriter):
    def __init__(self, module: Module, name: str, scheduled: ScheduledFourierPart, slots: int) -> None:
        super().__init__(module, name, scheduled, slots)
        self.scheduled_part = scheduled
        self.part = scheduled.part
        self.piece = ""

    def write(self) -> Function:
        visit = {"rows": self._rows, "columns": self._columns, "pairs": self._some_pairs, "nan": self._nan}

        def one() -> None:
            self.piece = self.body.axes[self.axis]  # what is read and written has its place there
            visit[self.part.part]()

        over_positions(self.f, self.body, (*self.work.outer, self.scheduled_part.pieces), one)
        return self.f

    def _nan(self) -> None:
        self._spread_nan(0, True)

    def _hoisted(self) -> None:
        self.body.hoist(self.work.bodies(), self._moves, {self.axis})

    # memory

    def _between(self, slot: int) -> tuple[str, str]:
        """The real and the imaginary part of this row, as parts leave them to one another."""
        f, room = self.f, part_room(self.work, self.scheduled.steps, self.lanes)
        row = "0"
        for number, extent in enumerate(self.work.outer):
            row = f.add(f.mul(row, f.dim(extent)), self.body.axes[number])
        real = f.offset(self.body.bases[slot], self.scalar, f.mul(row, str(2 * room)))
        return real, f.offset(real, self.scalar, str(room))

    def _of_rows(
        self, where: tuple[str, str], apart: int, first: str, ahead: int = 0
    ) -> tuple[Reader, Writer]:  # fmt: skip
        """Vectors of rows that are some elements apart, by number, from an element of the first on. What is read is
        asked for so many elements ahead."""

        def at(position: str) -> tuple[str, str]:
            place = self.f.add(self.f.mul(position, str(apart)), first)
            re, im = (self.f.offset(part, self.scalar, place) for part in where)
            return re, im

        def read(position: str) -> Callable[[int], Complex]:
            re, im = at(position)

            def one(further: int) -> Complex:
                for part in (re, im) if ahead else ():
                    self._prefetch(self.f.offset(part, self.scalar, str(further * apart + ahead)))
                return self._vector(re, further * apart), self._vector(im, further * apart)

            return one

        def write(position: str) -> Callable[[int, Complex], None]:
            re, im = at(position)

            def put(further: int, value: Complex) -> None:
                self._put(value[0], re, further * apart)
                self._put(value[1], im, further * apart)

            return put

        return read, write

    def _area(self, buffer: int, vector: str) -> tuple[str, str]:
        """The place in scratch of a vector of columns of this piece."""
        place = self.f.mul(vector, str(self.scheduled_part.area))
        re, im = (self.f.offset(part, self.scalar, place) for part in self.buffers[buffer])
        return re, im

    def _of_columns(self, where: tuple[str, str], apart: int, ahead: int = 0) -> tuple[ReaderOf, WriterOf]:
        """Columns of rows that are some elements apart."""
        return (
            lambda vector: self._of_rows(where, apart, self._column(vector), ahead)[0],
            lambda vector: self._of_rows(where, apart, self._column(vector))[1],
        )

    def _in_scratch(self, buffer: int) -> tuple[ReaderOf, WriterOf]:
        return (
            lambda vector: self._of_rows(self._area(buffer, vector), self.lanes, "0")[0],
            lambda vector: self._of_rows(self._area(buffer, vector), self.lanes, "0")[1],
        )

    @property
    def _ahead(self) -> int:
        return self.scheduled_part.beside * self.lanes

    def _number(self, vector: str) -> str:
        """Of a vector of columns in the row."""
        return self.f.add(self.f.mul(self.piece, str(self.scheduled_part.beside)), vector)

    def _column(self, vector: str) -> str:
        """The first column of a vector: the last vector lies over the end of the one before if need be."""
        f, count = self.f, self.scheduled_part.across
        first = f.mul(self._number(vector), str(self.lanes))
        return first if count % self.lanes == 0 else f.smin(first, str(count - self.lanes))

    def _each(self, visit: Callable[[str], None]) -> None:
        """The vectors of columns of this piece."""
        self._repeat(self.scheduled_part.beside, visit)

    def _repeat(self, count: int, visit: Callable[[str], None]) -> None:
        def one(number: str, _: list[str]) -> list[str]:
            visit(number)
            return []

        if count == 1:
            visit("0")
        else:
            self.f.loop("0", str(count), 1, [], one)

    # halves

    def _rows(self) -> None:
        """The first half: reads columns of the signal, writes rows of transforms."""
        part = self.scheduled_part
        if self.part.source >= 0:
            read = self._of_columns(self._between(self.part.source), part.across, self._ahead)[0]
        else:
            self._hoisted()
            read = self._signal_rows()
        now = self._column_steps(read, None, self._lane_twiddles)
        target = self._between(self.part.target)
        self._each(lambda vector: self._turned_over(now, vector, target))

    def _signal_rows(self) -> ReaderOf:
        """Vectors of the signal's rows; heavy ones are worked out in a loop before."""
        f, across = self.f, self.scheduled_part.across

        def read(vector: str) -> Reader:
            def at(position: str) -> Callable[[int], Complex]:
                place = f.add(f.mul(position, str(across)), self._column(vector))
                take = self._signal(place)

                def at_row(further: int) -> Complex:
                    self._fetch(f.add(place, str(further * across + self.scheduled_part.beside * self.lanes)))
                    return take(further * across)

                return at_row

            return at

        if self._is_light(list(self.work.bodies())):
            return read
        scratch, put = self._in_scratch(1)

        def row(position: str) -> None:
            self._each(lambda vector: put(vector)(position)(0, read(vector)(position)(0)))

        self._repeat(self.scheduled_part.high, row)
        return scratch

    def _fetch(self, place: str) -> None:
        """Asks for the lines of the signal that the next piece begins with."""
        f, body = self.f, self.body
        whole = self.work.kind == "complex"
        for node in walk(list(self.work.bodies())):
            if node.kind == "load" and node.attr.coefficient(self.axis) != 0:
                body.push()
                body.axes[self.axis] = place if whole else f.mul(place, "2")
                pointer = body.pointer(node.attr.slot, node.dtype, offset_of(node))
                body.pop()
                for line in range(1 if whole else 2):
                    self._prefetch(f.offset(pointer, self.scalar, str(line * self.lanes)))

    def _prefetch(self, pointer: str) -> None:
        self.f.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.f.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")

    def _lane_twiddles(self, step: Step, p: str, vector: str) -> list[tuple[str, str]]:
        f, count = self.f, 2 * (step.radix - 1)
        number = f.add(f.mul(self._number(vector), str(step.after // step.columns)), p)
        table = f.offset(self.body.bases[self.work.table], self.scalar, str(step.table))
        table = f.offset(table, self.scalar, f.mul(number, str(count * self.lanes)))
        read = [self._vector(table, each * self.lanes).name for each in range(count)]
        return list(zip(read[::2], read[1::2]))

    def _turned_over(self, buffer: int, vector: str, target: tuple[str, str]) -> None:
        """Writes columns from scratch as rows, squares of them turned in registers."""
        f, width, high = self.f, self.lanes, self.scheduled_part.high
        read, column = self._in_scratch(buffer)[0](vector), self._column(vector)

        def square(first: str) -> None:
            take = read(first)
            values = [take(number) for number in range(width)]
            place = f.add(f.mul(column, str(high + width)), first)
            for part in (0, 1):
                where = f.offset(target[part], self.scalar, place)
                for lane, row in enumerate(self._interleaved([value[part] for value in values], 1)):
                    self._put(row, where, lane * (high + width))

        self._along(high, square)

    def _columns(self) -> None:
        """The second half: transforms columns of rows, in their place."""
        across = self.scheduled_part.across
        read = self._of_columns(self._between(self.part.source), across + self.lanes, self._ahead)[0]
        if self.part.target < 0:
            self._column_steps(read, self._result_rows, self._number_twiddles)
            return
        target = self._between(self.part.target)
        self._column_steps(read, self._of_columns(target, across)[1], self._number_twiddles)

        def close() -> None:  # Z[n/2] = Z[0]
            for where in target:
                one = self.f.value(f"load {self.scalar}, ptr {where}, align {self.dtype.itemsize}")
                end = self.f.offset(where, self.scalar, str(self.length))
                self.f.emit(f"store {self.scalar} {one}, ptr {end}, align {self.dtype.itemsize}")

        self.f.when(self.f.value(f"icmp eq i64 {self.piece}, 0"), close)

    def _result_rows(self, vector: str) -> Writer:
        across = self.scheduled_part.across

        def write(position: str) -> Callable[[int, Complex], None]:
            put = self._result(self.f.add(self.f.mul(position, str(across)), self._column(vector)))
            return lambda further, value: put(further * across, value)

        return write

    def _number_twiddles(self, step: Step, p: str, _: str) -> list[tuple[str, str]]:
        f = self.f
        table = f.offset(self.body.bases[self.work.table], self.scalar, str(step.table))
        table = f.offset(table, self.scalar, f.mul(p, str(2 * (step.radix - 1))))
        return [(self._splat(table, 2 * j), self._splat(table, 2 * j + 1)) for j in range(step.radix - 1)]

    def _column_steps(self, read: ReaderOf, write: WriterOf | None, twiddles: TwiddlesOf) -> int:
        """Steps of each lane's own transform between the buffers in scratch; the last one writes there too if no other
        writer is given. Returns the buffer that is written last."""
        steps = self.scheduled_part.here
        left, before, now = self.scheduled_part.high, 1, 1
        for number, step in enumerate(steps):
            left //= step.radix
            outside = write if number == len(steps) - 1 else None
            source = read if number == 0 else self._in_scratch(now)[0]
            target = outside if outside is not None else self._in_scratch(1 - now)[1]
            self._column_step(step, before, left, source, target, twiddles, number == 0 or outside is not None)
            before, now = before * step.radix, 1 - now
        return now

    def _column_step(
        self, step: Step, before: int, after: int, read: ReaderOf, write: WriterOf, twiddles: TwiddlesOf, far: bool
    ) -> None:  # fmt: skip
        """One step of all vectors of the piece; `far` with those that are neighbours in memory one after the other."""
        f = self.f

        def one(p: str, q: str, vector: str, factors: list[tuple[str, str]]) -> None:
            take = read(vector)(f.add(f.mul(p, str(before)), q))
            values = self.arithmetic.transform([take(i * before * after) for i in range(step.radix)])
            put = write(vector)(f.add(f.mul(p, str(step.radix * before)), q))
            for j, value in enumerate(values):
                put(j * before, self.arithmetic.times(value, *factors[j - 1]) if j and factors else value)

        def factors(p: str, vector: str) -> list[tuple[str, str]]:
            return twiddles(step, p, vector) if step.table >= 0 else []

        def row(p: str, vector: str) -> None:
            ready = factors(p, vector)
            self._repeat(before, lambda q: one(p, q, vector, ready))

        if far:
            self._repeat(
                after,
                lambda p: self._repeat(
                    before, lambda q: self._each(lambda vector: one(p, q, vector, factors(p, vector)))
                ),
            )
        else:
            self._each(lambda vector: self._repeat(after, lambda p: row(p, vector)))

    # pairs of bins

    def _some_pairs(self) -> None:
        if self.work.kind == "from bins":
            self._hoisted()
            _, put = self._of_rows(self._between(self.part.target), 1, "0")

            def leave(at: str, back: str, front: Complex, end: Complex) -> None:
                put(at)(0, self._exchanged(front))
                put(back)(0, self._exchanged(end))

            self._over_pairs(lambda at: self._pair(at, self._bins, "", leave))
            return
        source = self._between(self.part.source)
        read, _ = self._of_rows(source, 1, "0")
        half, nan = self.arithmetic.constant(0.5), Number(self.arithmetic.constant(float("nan")))

        def give(at: str, back: str, front: Complex, end: Complex) -> None:
            for place, value in ((at, front), (back, end)):
                self._write(0, place, value[0])
                self._write(1, place, value[1])

        def spread(at: str) -> None:
            back = self.f.sub(str(self.length - self.lanes + 1), at)
            give(at, back, (nan, nan), (nan, nan))

        self.f.branch(
            self._is_broken(source),
            lambda: self._over_pairs(spread),
            lambda: self._over_pairs(lambda at: self._pair(at, read, half, give)),
        )

    def _is_broken(self, source: tuple[str, str]) -> str:
        """Whether bin 0, which Z[0] makes, is NaN: it is the sum of all, and tells whether a NaN was among them."""
        f = self.f
        size = self.dtype.itemsize
        ones = [f.value(f"load {self.scalar}, ptr {part}, align {size}") for part in source]
        gone = [f.value(f"fsub {self.scalar} {one}, {one}") for one in ones]  # NaN of what is not finite
        return f.value(f"fcmp uno {self.scalar} {gone[0]}, {gone[1]}")

    def _over_pairs(self, visit: Callable[[str], None]) -> None:
        """Vectors of bins of this piece, the last over the end of the one before if need be."""
        f, count, width = self.f, pair_count(self.work), self.lanes
        first = f.mul(self.piece, str(PAIR_VECTORS))
        end = f.smin(f.add(first, str(PAIR_VECTORS)), str(-(-count // width)))

        def one(number: str, _: list[str]) -> list[str]:
            visit(f.smin(f.mul(number, str(width)), str(count - width)))
            return []

        f.loop(first, end, 1, [], one)

    def _bins(self, position: str) -> Callable[[int], Complex]:
        """Bins of the signal; imaginary parts of the first and of the last count as 0."""
        f, kind = self.f, self.arithmetic.kind

        def take(_: int) -> Complex:
            real, imaginary = (self._value(part, position).name for part in (self.work.real, self.work.imaginary))
            for place, lane in (("0", 0), (str(self.length - self.lanes + 1), self.lanes - 1)):
                there = f.value(f"icmp eq i64 {position}, {place}")
                without = f.value(f"insertelement {kind} {imaginary}, {self.scalar} {float_literal(0.0)}, i64 {lane}")
                imaginary = f.value(f"select i1 {there}, {kind} {without}, {kind} {imaginary}")
            return Number(real), Number(imaginary)

        return take
