"""Long Fourier transforms in parts that threads share, as LLVM functions of the form that `codegen.simd.loops` has.

A position of the parts "rows" and "columns" is a vector of columns: half of the steps go through them in scratch memory
that stays in a near cache, each lane a transform of its own. A position of "pairs" is some vectors of bins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from rlx.kernel.ir.irregular import FourierPart, FourierTransform
from rlx.kernel.passes.twiddles import Step, halves, pair_count, part_room, points, scheduled_steps
from rlx.kernel.passes.twiddles import schedule as tiles_of
from rlx.kernel.schedule.schedule import Schedule

PAIR_VECTORS = 32
"""Of bins, in a piece that a thread takes."""


@dataclass(frozen=True)
class ScheduledFourierPart(WholePositions):
    """How a part of a transform is run; fields as in `loops.ScheduledLoops`.

    here   the steps of this part
    pieces   of a row, one a position
    """

    part: FourierPart
    schedule: Schedule
    steps: tuple[Step, ...]
    here: tuple[Step, ...]
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
    def room(self) -> int:
        """Elements of a part of a buffer."""
        return (self.high + 1) * self.lanes

    @property
    def scratch(self) -> Dim:
        return 4 * self.room * self.work.real.dtype.itemsize if self.here else 0

    @property
    def vectors(self) -> int:
        """Complex vectors that go through a step, or a pass over pairs or columns, at a position."""
        if self.part.part == "pairs":
            return 2 * min(PAIR_VECTORS, -(-pair_count(self.work) // self.lanes))
        return self.high * (len(self.here) + (self.part.part == "rows")) if self.here else 0

    def render(self, module: Module, stem: str, slots: int) -> Callee:
        return module.define(stem, lambda name: _PartWriter(module, name, self, slots).write())


def schedule(part: FourierPart, lanes: int) -> ScheduledFourierPart:
    """Legalises bodies and finds the steps of a part."""
    part = part.map_bodies(maths.legalise)
    chosen = tiles_of(part.of, lanes)
    width = chosen.static_tile("register", "signal")
    cut = halves(scheduled_steps(part.of, chosen), width)
    assert cut is not None  # other transforms are not cut
    here = {"rows": cut[0], "columns": cut[1]}.get(part.part, ())
    scheduled = ScheduledFourierPart(part, chosen, (*cut[0], *cut[1]), here, 1, 0)
    if here:
        pieces = -(-scheduled.across // width)
    else:
        pieces = -(-pair_count(part.of) // (width * PAIR_VECTORS)) if part.part == "pairs" else 1
    return replace(scheduled, pieces=pieces, weight=ROW_CYCLES + PASS_CYCLES * scheduled.vectors)


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
        f, room = self.f, part_room(self.work, self.lanes)
        row = "0"
        for number, extent in enumerate(self.work.outer):
            row = f.add(f.mul(row, f.dim(extent)), self.body.axes[number])
        real = f.offset(self.body.bases[slot], self.scalar, f.mul(row, str(2 * room)))
        return real, f.offset(real, self.scalar, str(room))

    def _of_rows(self, where: tuple[str, str], apart: int, first: str) -> tuple[Reader, Writer]:
        """Vectors of rows that are some elements apart, by number, from an element of the first on."""

        def at(position: str) -> tuple[str, str]:
            place = self.f.add(self.f.mul(position, str(apart)), first)
            re, im = (self.f.offset(part, self.scalar, place) for part in where)
            return re, im

        def read(position: str) -> Callable[[int], Complex]:
            re, im = at(position)
            return lambda further: (self._vector(re, further * apart), self._vector(im, further * apart))

        def write(position: str) -> Callable[[int, Complex], None]:
            re, im = at(position)

            def put(further: int, value: Complex) -> None:
                self._put(value[0], re, further * apart)
                self._put(value[1], im, further * apart)

            return put

        return read, write

    def _first_column(self) -> str:
        """Of the vector: the last vector lies over the end of the one before if need be."""
        f, count = self.f, self.scheduled_part.across
        first = f.mul(self.piece, str(self.lanes))
        return first if count % self.lanes == 0 else f.smin(first, str(count - self.lanes))

    # halves

    def _rows(self) -> None:
        """The first half: reads columns of the signal, writes rows of transforms."""
        part, steps = self.scheduled_part, self.scheduled_part.here
        column = self._first_column()
        if self.part.source >= 0:
            read, _ = self._of_rows(self._between(self.part.source), part.across, column)
        else:
            self._hoisted()
            read = self._signal_rows(column)
        now = self._column_steps(steps, read, None, lambda step, p: self._lane_twiddles(step, p, column))
        self._turned_over(now, column)

    def _signal_rows(self, column: str) -> Reader:
        """Vectors of the signal's rows; heavy ones are worked out in a loop before."""
        f, across = self.f, self.scheduled_part.across

        def read(position: str) -> Callable[[int], Complex]:
            take = self._signal(f.add(f.mul(position, str(across)), column))
            return lambda further: take(further * across)

        if self._is_light(list(self.work.bodies())):
            return read
        scratch, put = self._of_rows(self.buffers[1], self.lanes, "0")

        def one(position: str, _: list[str]) -> list[str]:
            put(position)(0, read(position)(0))
            return []

        f.loop("0", str(self.scheduled_part.high), 1, [], one)
        return scratch

    def _lane_twiddles(self, step: Step, p: str, column: str) -> list[tuple[str, str]]:
        f = self.f
        place = f.add(f.mul(p, str(self.scheduled_part.across)), f.add(column, str(step.table)))
        table = f.offset(self.body.bases[self.work.table], self.scalar, place)
        factors = range(step.radix - 1)
        read = [[self._vector(table, (2 * j + part) * step.after).name for part in (0, 1)] for j in factors]
        return [(real, imaginary) for real, imaginary in read]

    def _turned_over(self, buffer: int, column: str) -> None:
        """Writes columns from scratch as rows, squares of them turned in registers."""
        f, width, high = self.f, self.lanes, self.scheduled_part.high
        read, _ = self._of_rows(self.buffers[buffer], width, "0")
        target = self._between(self.part.target)

        def square(first: str) -> None:
            take = read(first)
            values = [take(number) for number in range(width)]
            place = f.add(f.mul(column, str(high)), first)
            for part in (0, 1):
                where = f.offset(target[part], self.scalar, place)
                for lane, row in enumerate(self._interleaved([value[part] for value in values], 1)):
                    self._put(row, where, lane * high)

        self._along(high, square)

    def _columns(self) -> None:
        """The second half: transforms columns of rows, in their place."""
        part, steps = self.scheduled_part, self.scheduled_part.here
        column = self._first_column()
        read, _ = self._of_rows(self._between(self.part.source), part.across, column)
        if self.part.target < 0:
            self._column_steps(steps, read, self._result_rows(column), self._number_twiddles)
            return
        target = self._between(self.part.target)
        _, write = self._of_rows(target, part.across, column)
        self._column_steps(steps, read, write, self._number_twiddles)

        def close() -> None:  # Z[n/2] = Z[0]
            for where in target:
                one = self.f.value(f"load {self.scalar}, ptr {where}, align {self.dtype.itemsize}")
                end = self.f.offset(where, self.scalar, str(self.length))
                self.f.emit(f"store {self.scalar} {one}, ptr {end}, align {self.dtype.itemsize}")

        self.f.when(self.f.value(f"icmp eq i64 {self.piece}, 0"), close)

    def _result_rows(self, column: str) -> Writer:
        across = self.scheduled_part.across

        def write(position: str) -> Callable[[int, Complex], None]:
            put = self._result(self.f.add(self.f.mul(position, str(across)), column))
            return lambda further, value: put(further * across, value)

        return write

    def _number_twiddles(self, step: Step, p: str) -> list[tuple[str, str]]:
        f = self.f
        table = f.offset(self.body.bases[self.work.table], self.scalar, str(step.table))
        table = f.offset(table, self.scalar, f.mul(p, str(2 * (step.radix - 1))))
        return [(self._splat(table, 2 * j), self._splat(table, 2 * j + 1)) for j in range(step.radix - 1)]

    def _column_steps(
        self, steps: Sequence[Step], read: Reader, write: Writer | None,
        twiddles: Callable[[Step, str], list[tuple[str, str]]],
    ) -> int:  # fmt: skip
        """Steps of each lane's own transform between the buffers in scratch; the last one writes there too if no other
        writer is given. Returns the buffer that is written last."""
        left, before, now = self.scheduled_part.high, 1, 1
        for number, step in enumerate(steps):
            left //= step.radix
            source = read if number == 0 else self._of_rows(self.buffers[now], self.lanes, "0")[0]
            last = number == len(steps) - 1 and write is not None
            target = write if last and write is not None else self._of_rows(self.buffers[1 - now], self.lanes, "0")[1]
            self._column_step(step, before, left, source, target, twiddles)
            before, now = before * step.radix, 1 - now
        return now

    def _column_step(
        self, step: Step, before: int, after: int, read: Reader, write: Writer,
        twiddles: Callable[[Step, str], list[tuple[str, str]]],
    ) -> None:  # fmt: skip
        f = self.f

        def transforms(p: str, _: list[str]) -> list[str]:
            factors = twiddles(step, p) if step.table >= 0 else []

            def one(q: str, _: list[str]) -> list[str]:
                take = read(f.add(f.mul(p, str(before)), q))
                values = self.arithmetic.transform([take(i * before * after) for i in range(step.radix)])
                put = write(f.add(f.mul(p, str(step.radix * before)), q))
                for j, value in enumerate(values):
                    put(j * before, self.arithmetic.times(value, *factors[j - 1]) if j and factors else value)
                return []

            if before == 1:
                one("0", [])
            else:
                f.loop("0", str(before), 1, [], one)
            return []

        if after == 1:
            transforms("0", [])
        else:
            f.loop("0", str(after), 1, [], transforms)

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
