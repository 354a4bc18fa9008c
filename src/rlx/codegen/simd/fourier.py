"""Whole Fourier transforms as LLVM functions of the form that `codegen.simd.loops` describes: a row at a time.

The steps of `kernel.passes.twiddles` go to and fro between two buffers in scratch, each with a real and an imaginary
part. The first step reads the signal itself where vectors fit into it, the last writes the result. All steps transform
forward: an inverse one has its parts exchanged, before and behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from rlx.codegen.scalar import maths
from rlx.codegen.simd.body import Body, lane_mask
from rlx.codegen.simd.butterfly import Arithmetic, Complex, Number
from rlx.codegen.simd.function import Callee, Function, Module, memory_type
from rlx.codegen.simd.prologue import PARAMETERS, buffer_pointers, over_positions
from rlx.codegen.simd.registers import Reg, Vector, float_literal
from rlx.codegen.simd.scheduled import WholePositions
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.expr import INSTRUCTIONS, Expr, walk
from rlx.kernel.ir.irregular import FourierTransform
from rlx.kernel.passes.twiddles import Step, pair_count, passes, points, scheduled_steps, twiddles_end
from rlx.kernel.passes.twiddles import schedule as tiles_of
from rlx.kernel.schedule.schedule import Schedule

MOST_REPEATED = 6
"""Instructions of a signal's body that are written out for every element that a step joins; heavier ones are worked
out in a loop before."""
PASS_CYCLES, ROW_CYCLES = 10, 60
"""Of a complex vector that goes through a step, and of a row beside, roughly."""


class Steps(Protocol):
    """What the writer asks of a scheduled transform."""

    @property
    def work(self) -> FourierTransform: ...

    @property
    def steps(self) -> tuple[Step, ...]: ...

    @property
    def lanes(self) -> int: ...

    @property
    def room(self) -> int:
        """Elements of a part of a buffer in scratch."""
        ...


@dataclass(frozen=True)
class ScheduledFourier(WholePositions):
    """How a transform is run; fields as in `loops.ScheduledLoops`. A position is a row."""

    work: FourierTransform
    schedule: Schedule
    steps: tuple[Step, ...]
    positions: Dim
    weight: Dim
    scratch: Dim

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.schedule.static_tile("register", "signal")

    def render(self, module: Module, stem: str, slots: int) -> Callee:
        return module.define(stem, lambda name: FourierWriter(module, name, self, slots).write())

    @property
    def room(self) -> int:
        """Elements of a part of a buffer: some before the first, and what vectors reach beyond the last."""
        beyond = max(step.radix if step.apart < self.lanes else 2 for step in self.steps)
        return (-(-(points(self.work) + 1) // self.lanes) + 1 + beyond) * self.lanes


def schedule(work: FourierTransform, lanes: int) -> ScheduledFourier:
    """Legalises bodies and chooses the steps."""
    imaginary = None if work.imaginary is None else maths.legalise(work.imaginary)
    work = replace(work, real=maths.legalise(work.real), imaginary=imaginary)
    chosen = tiles_of(work, lanes)
    plan = scheduled_steps(work, chosen)
    weight = ROW_CYCLES + PASS_CYCLES * passes(work, plan, chosen.static_tile("register", "signal"))
    scheduled = ScheduledFourier(work, chosen, plan, dims.product(work.outer), weight, 0)
    return replace(scheduled, scratch=4 * scheduled.room * work.real.dtype.itemsize)


Reader = Callable[[str], Callable[[int], Complex]]
Writer = Callable[[str], Callable[[int, Complex], None]]
"""At a position that the run knows: reads or writes a vector some elements further."""
GivePair = Callable[[str, str, Complex, Complex], None]
"""Takes two places and the values that belong there."""


class FourierWriter:
    """Writes the function of whole rows; `fourier_parts` has that of parts of rows."""

    def __init__(self, module: Module, name: str, scheduled: Steps, slots: int) -> None:
        self.scheduled = scheduled
        self.work = work = scheduled.work
        self.lanes = scheduled.lanes
        self.length = points(work)
        self.axis = len(work.outer)
        self.f = Function(module, name, PARAMETERS)
        self.body = Body(self.f, buffer_pointers(self.f, slots))
        self.body.lanes = self.lanes
        self.dtype = work.real.dtype
        self.scalar = memory_type(self.dtype)
        self.arithmetic = Arithmetic(self.f, self.scalar, self.lanes)
        self.kind = self.arithmetic.kind
        self.buffers = [self._buffer(number) for number in (0, 1)]
        self.swapped = work.inverse or work.kind == "from bins"
        self.scale = self.arithmetic.constant(1 / work.length) if self.swapped else ""

    def _buffer(self, number: int) -> tuple[str, str]:
        places = ((2 * number + part) * self.scheduled.room + self.lanes for part in (0, 1))
        re, im = (self.f.at_entry(f"getelementptr {self.scalar}, ptr %scratch, i64 {place}", "p") for place in places)
        return re, im

    def write(self) -> Function:
        over_positions(self.f, self.body, self.work.outer, self._row)
        return self.f

    def _row(self) -> None:
        work, steps = self.work, self.scheduled.steps
        bodies = [work.real, *([work.imaginary] if work.imaginary is not None else [])]
        self.body.hoist(bodies, self._moves, {self.axis})
        asked = all(result is not None for result in work.results)
        reads_signal = work.kind != "from bins" and steps[0].apart >= self.lanes and self._is_light(bodies)
        writes_result = work.kind != "to bins" and steps[-1].apart >= self.lanes and asked
        now = 0 if reads_signal else self._load()
        for number, step in enumerate(steps):
            read = self._signal if number == 0 and reads_signal else self._from(now)
            write = self._result if number == len(steps) - 1 and writes_result else self._into(1 - now)
            self._step(step, read, write)
            now = 1 - now
        if work.kind == "to bins":
            now = self._to_bins(now, asked)
        elif not writes_result:
            self._store(now)
        if work.kind != "from bins":
            self._spread_nan(now, asked)

    def _moves(self, node: Expr) -> bool:
        if node.kind == "axis":
            return bool(node.attr == self.axis)
        return node.kind == "load" and any(number == self.axis for number, _ in node.attr.axes)

    def _is_light(self, bodies: list[Expr]) -> bool:
        return sum(n.kind in INSTRUCTIONS or n.kind == "load" for n in walk(bodies)) <= MOST_REPEATED

    # memory

    def _vector(self, pointer: str, offset: str | int) -> Number:
        where = self.f.offset(pointer, self.scalar, str(offset))
        return Number(self.f.value(f"load {self.kind}, ptr {where}, align {self.dtype.itemsize}"))

    def _put(self, value: Number, pointer: str, offset: str | int) -> None:
        where = self.f.offset(pointer, self.scalar, str(offset))
        self.f.emit(f"store {self.kind} {self.arithmetic.plain(value)}, ptr {where}, align {self.dtype.itemsize}")

    def _from(self, buffer: int) -> Reader:
        def at(position: str) -> Callable[[int], Complex]:
            re, im = (self.f.offset(part, self.scalar, position) for part in self.buffers[buffer])
            return lambda further: (self._vector(re, further), self._vector(im, further))

        return at

    def _into(self, buffer: int) -> Writer:
        def at(position: str) -> Callable[[int, Complex], None]:
            re, im = (self.f.offset(part, self.scalar, position) for part in self.buffers[buffer])

            def put(further: int, value: Complex) -> None:
                self._put(value[0], re, further)
                self._put(value[1], im, further)

            return put

        return at

    def _value(self, expression: Expr | None, position: str, mask: str | None = None) -> Number:
        """A part of the signal."""
        if expression is None:
            return Number("zeroinitializer")
        body = self.body
        body.push()
        body.axes[self.axis] = position
        body.vector = Vector(self.axis, mask)
        vector = body.splat(body.gen(expression)).name
        body.vector = None
        body.pop()
        return Number(vector)

    def _write(self, number: int, position: str, value: Number, mask: str | None = None) -> None:
        """Writes a part of the result, if it is asked for."""
        result = self.work.results[number]
        if result is None:
            return
        body = self.body
        body.push()
        body.axes[self.axis] = position
        body.vector = Vector(self.axis, mask)
        body.store(*result, Reg(self.arithmetic.plain(value), self.dtype, True))
        body.vector = None
        body.pop()

    def _signal(self, position: str) -> Callable[[int], Complex]:
        """Complex elements of the signal; of a real one two neighbours are one."""
        f, work = self.f, self.work

        def take(further: int) -> Complex:
            at = f.add(position, str(further))
            if work.kind == "complex":
                return self._exchanged((self._value(work.real, at), self._value(work.imaginary, at)))
            first = f.mul(at, "2")
            pair = self._value(work.real, first), self._value(work.real, f.add(first, str(self.lanes)))
            return self._unzipped(pair)

        return take

    def _result(self, position: str) -> Callable[[int, Complex], None]:
        def put(further: int, value: Complex) -> None:
            self._finish(self.f.add(position, str(further)), value, None, None)

        return put

    def _finish(self, at: str, value: Complex, mask: str | None, second: str | None) -> None:
        """Writes complex elements as they are wanted outside; of "from bins" each becomes two, with a mask for both."""
        value = self._exchanged(value)
        if self.scale:
            value = self.arithmetic.mul(value[0], self.scale), self.arithmetic.mul(value[1], self.scale)
        if self.work.kind == "complex":
            self._write(0, at, value[0], mask)
            self._write(1, at, value[1], mask)
            return
        first, other = self._zipped(value)
        place = self.f.mul(at, "2")
        self._write(0, place, first, mask)
        self._write(0, self.f.add(place, str(self.lanes)), other, second)

    def _exchanged(self, value: Complex) -> Complex:
        return (value[1], value[0]) if self.swapped else value

    # lanes

    def _shuffle(self, a: Number, b: Number, lanes: list[int]) -> Number:
        order = ", ".join(f"i32 {lane}" for lane in lanes)
        a, b = Number(self.arithmetic.plain(a)), Number(self.arithmetic.plain(b))
        text = f"shufflevector {self.kind} {a.name}, {self.kind} {b.name}, <{self.lanes} x i32> <{order}>"
        return Number(self.f.value(text))

    def _unzipped(self, pair: Complex) -> Complex:
        """Elements at even and at odd places."""
        return (
            self._shuffle(*pair, list(range(0, 2 * self.lanes, 2))),
            self._shuffle(*pair, list(range(1, 2 * self.lanes, 2))),
        )

    def _zipped(self, pair: Complex, unit: int = 1) -> Complex:
        """Two vectors in turns, `unit` elements of either."""
        width = self.lanes
        order = [g % 2 * width + g // 2 * unit + i for g in range(2 * width // unit) for i in range(unit)]
        return self._shuffle(*pair, order[:width]), self._shuffle(*pair, order[width:])

    def _reversed(self, value: Number) -> Number:
        return self._shuffle(value, value, list(reversed(range(self.lanes))))

    def _interleaved(self, rows: list[Number], unit: int) -> list[Number]:
        """Vectors in turns, `unit` elements of each, as one row of as many vectors."""
        count, width = len(rows), self.lanes
        if unit == width or count == 1:
            return rows
        if count % 2 == 0:
            pairs = [self._zipped((rows[i], rows[i + 1]), unit) for i in range(0, count, 2)]
            halves = ([pair[side] for pair in pairs] for side in (0, 1))
            return [vector for half in halves for vector in self._interleaved(half, 2 * unit)]
        vectors = []
        for number in range(count):
            places = []
            for chunk in range(number * width // unit, (number + 1) * width // unit):
                column, row = divmod(chunk, count)
                places += [(row, column * unit + i) for i in range(unit)]
            vectors.append(self._gathered(rows, places))
        return vectors

    def _gathered(self, rows: list[Number], places: list[tuple[int, int]]) -> Number:
        """A vector of elements (row, lane) of several."""
        needed = sorted({row for row, _ in places})
        gathered = rows[needed[0]]
        for turn, row in enumerate(needed):
            if turn == 0 and len(needed) > 1:
                continue
            kept = [lane if needed[0] == own and turn <= 1 else here for here, (own, lane) in enumerate(places)]
            order = [self.lanes + lane if own == row else kept[here] for here, (own, lane) in enumerate(places)]
            gathered = self._shuffle(gathered, rows[row], order)
        return gathered

    # steps

    def _along(self, count: int, visit: Callable[[str], None]) -> None:
        """Positions of vectors that cover `count` elements, the last over the end of the one before if need be."""
        f, width = self.f, self.lanes
        if count <= width:
            visit("0")
        elif count % width == 0:
            f.loop("0", str(count), width, [], lambda at, _: _done(visit, at))
        else:
            last = str(count - width)
            f.loop("0", str(count), width, [], lambda at, _: _done(visit, f.smin(at, last)))

    def _step(self, step: Step, read: Reader, write: Writer) -> None:
        if step.form == "one":
            self._along(step.apart, lambda at: self._turned(step, at, read, write))
            return

        def transforms(p: str, _: list[str]) -> list[str]:
            self._along(step.before, lambda q: self._straight(step, p, q, read, write))
            return []

        if step.after == 1:
            transforms("0", [])
        else:
            self.f.loop("0", str(step.after), 1, [], transforms)

    def _joined(self, step: Step, read: Callable[[int], Complex]) -> list[Complex]:
        return self.arithmetic.transform([read(i * step.apart) for i in range(step.radix)])

    def _straight(self, step: Step, p: str, q: str, read: Reader, write: Writer) -> None:
        """Neighbours stay neighbours: one twiddle for a vector."""
        f = self.f
        transformed = self._joined(step, read(f.add(f.mul(p, str(step.before)), q)))
        put = write(f.add(f.mul(p, str(step.radix * step.before)), q))
        if step.table >= 0:
            table = f.offset(self.body.bases[self.work.table], self.scalar, str(step.table))
            table = f.offset(table, self.scalar, f.mul(p, str(2 * (step.radix - 1))))
        for j, value in enumerate(transformed):
            if j and step.table >= 0:
                value = self.arithmetic.times(value, *(self._splat(table, 2 * (j - 1) + part) for part in (0, 1)))
            put(j * step.before, value)

    def _splat(self, pointer: str, offset: int) -> str:
        f = self.f
        where = f.offset(pointer, self.scalar, str(offset))
        one = f.value(f"load {self.scalar}, ptr {where}, align {self.dtype.itemsize}")
        first = f.value(f"insertelement {self.kind} poison, {self.scalar} {one}, i64 0")
        lanes = f"<{self.lanes} x i32> zeroinitializer"
        return f.value(f"shufflevector {self.kind} {first}, {self.kind} poison, {lanes}")

    def _turned(self, step: Step, at: str, read: Reader, write: Writer) -> None:
        """Vectors over several p: each lane has its twiddle, and results come to lie between one another."""
        f = self.f
        transformed = self._joined(step, read(at))
        if step.table >= 0:
            table = f.offset(self.body.bases[self.work.table], self.scalar, str(step.table))
            table = f.offset(table, self.scalar, at)
            count = max(step.apart, self.lanes)
            for j in range(1, step.radix):
                real, imaginary = (self._vector(table, (2 * (j - 1) + part) * count).name for part in (0, 1))
                transformed[j] = self.arithmetic.times(transformed[j], real, imaginary)
        parts = [self._interleaved([value[part] for value in transformed], step.before) for part in (0, 1)]
        put = write(f.mul(at, str(step.radix)))
        for number, value in enumerate(zip(*parts)):
            put(number * self.lanes, value)

    # before and behind the steps

    def _masked(self, count: int, visit: Callable[[str, str | None, str | None], None], each: int = 1) -> None:
        """Positions of vectors that cover `count` elements, with masks where fewer are left than a vector has. With
        `each` 2, elements come in pairs, and the masks are for two vectors of them."""
        f, width = self.f, self.lanes
        whole = count // width * width
        if whole:
            f.loop("0", str(whole), width, [], lambda at, _: _done(visit, at, None, None))
        left = each * (count - whole)
        if left:
            self.body.push()
            first = lane_mask(self.body, str(left)) if left < width else None
            second = lane_mask(self.body, str(max(left - width, 0)))
            visit(str(whole), first, second)
            self.body.pop()

    def _load(self) -> int:
        """Brings the signal into a buffer, and gives its number."""
        work = self.work
        if work.kind == "from bins":
            return self._from_bins()
        put = self._into(0)

        def take(at: str, mask: str | None, second: str | None) -> None:
            if work.kind == "complex":
                value = self._exchanged((self._value(work.real, at, mask), self._value(work.imaginary, at, mask)))
            else:
                place = self.f.mul(at, "2")
                other = self._value(work.real, self.f.add(place, str(self.lanes)), second)
                value = self._unzipped((self._value(work.real, place, mask), other))
            put(at)(0, value)

        self._masked(self.length, take, 1 if work.kind == "complex" else 2)
        return 0

    def _store(self, buffer: int) -> None:
        def give(at: str, mask: str | None, second: str | None) -> None:
            self._finish(at, self._from(buffer)(at)(0), mask, second)

        self._masked(self.length, give, 2 if self.work.kind == "from bins" else 1)

    def _spread_nan(self, buffer: int, asked: bool) -> None:
        """The sum of all, which is the first element, tells whether a NaN was among them."""
        f, work, body = self.f, self.work, self.body
        first = []
        for part in (0, 1):
            where = self.buffers[buffer][part]
            result = work.results[part]
            if asked and result is not None:
                body.push()
                body.axes[self.axis] = "0"
                where = body.pointer(result[0], self.dtype, result[1])
                body.pop()
            first.append(f.value(f"load {self.scalar}, ptr {where}, align {self.dtype.itemsize}"))
        broken = f.value(f"fcmp uno {self.scalar} {first[0]}, {first[1]}")

        def spread() -> None:
            nan = Number(self.arithmetic.constant(float("nan")))
            count = work.length if work.kind == "complex" else self.length + 1

            def give(at: str, mask: str | None, _: str | None) -> None:
                self._write(0, at, nan, mask)
                self._write(1, at, nan, mask)

            self._masked(count, give)

        f.when(broken, spread)

    # real signals

    def _pair(self, at: str, read: Reader, half: str, give: GivePair) -> None:
        """Bins k and n/2 - k from one another, as `ops.fourier` does it: gives their places and values."""
        f, m = self.f, self.arithmetic
        count = pair_count(self.work)
        table = twiddles_end(self.scheduled.steps, self.lanes)
        back = f.sub(str(self.length - self.lanes + 1), at)
        a, b = read(at)(0)
        c, d = (self._reversed(part) for part in read(back)(0))
        factors = f.offset(self.body.bases[self.work.table], self.scalar, f.add(at, str(table)))
        real, imaginary = (self._vector(factors, part * max(count, self.lanes)).name for part in (0, 1))
        turned = m.times((m.sub(a, c), m.add(b, d)), real, imaginary)
        both = m.add(a, c), m.sub(b, d)
        if half:
            front = m.fma(both[0], half, turned[0]), m.fma(both[1], half, turned[1])
            end = m.fma(both[0], half, -turned[0]), m.fma(-both[1], half, turned[1])
        else:
            front = m.plus(both, turned)
            end = m.sub(both[0], turned[0]), m.sub(turned[1], both[1])
        give(at, back, front, (self._reversed(end[0]), self._reversed(end[1])))

    def _to_bins(self, buffer: int, asked: bool) -> int:
        f = self.f
        for part in self.buffers[buffer]:  # Z[n/2] = Z[0]
            one = f.value(f"load {self.scalar}, ptr {part}, align {self.dtype.itemsize}")
            where = f.offset(part, self.scalar, str(self.length))
            f.emit(f"store {self.scalar} {one}, ptr {where}, align {self.dtype.itemsize}")
        direct = asked and pair_count(self.work) >= self.lanes
        put = self._into(1 - buffer)

        def give(at: str, back: str, front: Complex, end: Complex) -> None:
            for place, value in ((at, front), (back, end)):
                if direct:
                    self._write(0, place, value[0])
                    self._write(1, place, value[1])
                else:
                    put(place)(0, value)

        half = self.arithmetic.constant(0.5)
        self._along(pair_count(self.work), lambda at: self._pair(at, self._from(buffer), half, give))
        if not direct:

            def out(at: str, mask: str | None, _: str | None) -> None:
                value = self._from(1 - buffer)(at)(0)
                self._write(0, at, value[0], mask)
                self._write(1, at, value[1], mask)

            self._masked(self.length + 1, out)
        return 1 - buffer

    def _from_bins(self) -> int:
        """Bins into the first buffer, the elements that they make into the second."""
        f, work = self.f, self.work
        put = self._into(0)

        def take(at: str, mask: str | None, _: str | None) -> None:
            put(at)(0, (self._value(work.real, at, mask), self._value(work.imaginary, at, mask)))

        self._masked(self.length + 1, take)
        zero = float_literal(0.0)
        for place in (0, self.length):
            where = f.offset(self.buffers[0][1], self.scalar, str(place))
            f.emit(f"store {self.scalar} {zero}, ptr {where}, align {self.dtype.itemsize}")
        give_points = self._into(1)

        def give(at: str, back: str, front: Complex, end: Complex) -> None:
            give_points(at)(0, self._exchanged(front))
            give_points(back)(0, self._exchanged(end))

        self._along(pair_count(self.work), lambda at: self._pair(at, self._from(0), "", give))
        return 1


def _done(visit: Callable[..., None], *at: str | None) -> list[str]:
    """The body of a loop that carries nothing."""
    visit(*at)
    return []
