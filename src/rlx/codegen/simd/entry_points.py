"""`rlx_main` and `rlx_prepare`: kernels called in order, with branches and loops around those that regions own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlx.codegen.simd.function import Callee, Function
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.kernel.ir.control import Branch, Loop
from rlx.kernel.ir.program import Kernel, Program, leaves
from rlx.kernel.passes.memory import MemoryPlan

POLL_TICKS = {"llvm.readcyclecounter": 1 << 26, "llvm.readsteadycounter": 1 << 20}
"""Of the processor's counter, from one question of a loop whether to go on to the next: some hundredths of a second."""

GRAIN_CYCLES = 6000
"""Least work of a chunk that is worth handing to another thread (a fork and join costs some hundred cycles)."""


@dataclass(frozen=True)
class Code:
    """The function of a kernel, how many positions it has, what each costs in cycles (of 16 if `flat`), and the element
    of each slot that is the first for the function, where that is not 0."""

    function: Callee
    positions: Dim
    cycles: Dim
    flat: bool
    origins: Mapping[int, int]


class Entry:
    """Writes the calls of kernels into a function of buffers, dims, arena, parallel and threads.

    code    by the kernel's id, for those that own no others
    clock   the intrinsic that tells ticks
    timed   the numbers of kernels by id where these are timed: behind the table of buffers and the failed check then
            stands the address of a table of ticks, calls and the first start of every kernel. Behind that stands whom
            loops ask whether to go on.
    """

    def __init__(
        self, f: Function, program: Program, memory: MemoryPlan, scratch: Dim, code: Mapping[int, Code], clock: str,
        timed: Mapping[int, int] | None,
    ) -> None:  # fmt: skip
        self.f = f
        self.program = program
        self.memory = memory
        self.code = code
        self.pointers: dict[int, str] = {}  # buffers that trips move
        self.offsets: list[str] = []
        position = "0"
        for size in memory.sizes:
            self.offsets.append(position)
            position = f.add(position, f.dim(size))
        self.scratch = f.offset("%arena", "i8", position)
        self.scratch_bytes = f.dim(scratch)
        self.args = ""
        self.tables: dict[tuple[Dim, ...], str] = {}
        self.clock = clock
        self.timed = timed
        self.due = ""  # the address of the tick at which a loop asks again

    def write(self, kernels: Sequence[Kernel]) -> None:
        """Runs the kernels in order."""
        inner = leaves(kernels)
        widest = max((len(k.slots) for k in inner), default=0)
        self.args = self.f.at_entry(f"alloca [{widest + 2} x ptr], align 16")
        self.f.emit(f"store ptr %dims, ptr {self.args}, align 8")
        for given in dict.fromkeys(self.code[id(k)].function.dims for k in inner):
            self.tables[given] = self._table(given) if given else ""
        self._run(kernels)

    def _table(self, given: Sequence[Dim]) -> str:
        """The values of dims in a row, from the entry on."""
        f = self.f
        table = f.at_entry(f"alloca [{len(given)} x i64], align 16")
        for number, dim in enumerate(given):
            value, place = f.dim(dim), f.at_entry(f"getelementptr i64, ptr {table}, i64 {number}")
            f.entry.append(f"  store i64 {value}, ptr {place}, align 8")
        return table

    def _run(self, kernels: Sequence[Kernel]) -> None:
        for kernel in kernels:
            if isinstance(kernel.work, Branch):
                self._branch(kernel.work)
            elif isinstance(kernel.work, Loop):
                self._loop(kernel.work)
            elif self.timed is not None:
                self._timed(kernel)
            else:
                self._call(kernel)

    def _timed(self, kernel: Kernel) -> None:
        f = self.f
        assert self.timed is not None  # asked by `_run`
        number = self.timed[id(kernel)]
        f.module.declare(f"declare i64 @{self.clock}()")
        before = f.value(f"call i64 @{self.clock}()")
        self._call(kernel)
        after = f.value(f"call i64 @{self.clock}()")
        table = f.value(f"load ptr, ptr {f.offset('%buffers', 'ptr', str(len(self.program.buffers) + 1))}, align 8")
        ticks, calls, first = (f.offset(table, "i64", str(3 * number + i)) for i in range(3))
        spent = f.add(f.value(f"load i64, ptr {ticks}, align 8"), f.sub(after, before))
        f.emit(f"store i64 {spent}, ptr {ticks}, align 8")
        count = f.value(f"load i64, ptr {calls}, align 8")
        start = f.value(f"load i64, ptr {first}, align 8")
        new = f.value(f"icmp eq i64 {count}, 0")
        f.emit(f"store i64 {f.value(f'select i1 {new}, i64 {before}, i64 {start}')}, ptr {first}, align 8")
        f.emit(f"store i64 {f.add(count, '1')}, ptr {calls}, align 8")

    def _call(self, kernel: Kernel) -> None:
        f, code = self.f, self.code[id(kernel)]
        for index, number in enumerate(kernel.slots):
            place = f.offset(self.args, "ptr", str(index + 1))
            first = code.origins.get(index, 0)
            pointer = self._moved(number, str(first)) if first else self.pointer(number)
            f.emit(f"store ptr {pointer}, ptr {place}, align 8")
        table = self.tables[code.function.dims]
        if table:
            f.emit(f"store ptr {table}, ptr {f.offset(self.args, 'ptr', str(len(kernel.slots) + 1))}, align 8")
        cycles = dims.mul(code.positions, code.cycles)
        if isinstance(cycles, int) and cycles < GRAIN_CYCLES * (16 if code.flat else 1) and code.positions != 0:
            # already known to be too little work to share
            count = f.dim(code.positions)
            f.emit(f"call void @{code.function.name}(ptr {self.args}, i64 0, i64 {count}, ptr {self.scratch})")
            return
        f.emit(
            f"call void @rlx_run(ptr @{code.function.name}, ptr {self.args}, i64 {f.dim(code.positions)}, "
            f"i64 {f.dim(code.cycles)}, i64 {int(code.flat)}, ptr {self.scratch}, i64 {self.scratch_bytes}, "
            f"ptr %parallel, i64 %threads)"
        )

    def pointer(self, number: int) -> str:
        """The address of a buffer."""
        f = self.f
        if number in self.pointers:
            return self.pointers[number]
        if number in self.program.aliases:
            base, offset = self.program.aliases[number]
            return self._moved(base, f.dim(offset))
        if number in self.memory.slot_of:
            return f.offset("%arena", "i8", self.offsets[self.memory.slot_of[number]])
        return f.value(f"load ptr, ptr {f.offset('%buffers', 'ptr', str(number))}, align 8", "b")

    def _moved(self, base: int, elements: str) -> str:
        size = self.program.buffers[base].dtype.itemsize
        return self.f.offset(self.pointer(base), "i8", self.f.mul(elements, str(size)))

    def _truth(self, number: int) -> str:
        byte = self.f.value(f"load i8, ptr {self.pointer(number)}, align 1")
        return self.f.value(f"icmp ne i8 {byte}, 0")

    # branches and loops

    def _branch(self, work: Branch) -> None:
        around = self.pointers

        def side(kernels: Sequence[Kernel], checks: Sequence[int]) -> Callable[[], None]:
            def run() -> None:
                # addresses computed in one branch are unknown in the other, and after both
                self.pointers = dict(around)
                self._checked(list(checks), kernels)

            return run

        self.f.when(self._truth(work.predicate), side(work.yes, work.yes_checks), side(work.no, work.no_checks))
        self.pointers = around

    def _checked(self, checks: list[int], kernels: Sequence[Kernel]) -> None:
        """Runs the kernels if the checks hold; else says in the last entry of the table which did not."""
        if not checks:
            self._run(kernels)
            return
        f, first = self.f, checks[0]
        equality = self.program.checks[first]
        place = f.offset("%buffers", "ptr", str(len(self.program.buffers)))
        same = f.value(f"icmp eq i64 {f.dim(equality.left)}, {f.dim(equality.right)}")
        f.when(
            same,
            lambda: self._checked(checks[1:], kernels),
            lambda: f.emit(f"store i64 {first + 1}, ptr {place}, align 8"),
        )

    def _loop(self, work: Loop) -> None:
        """Every carried value is a pointer; with spare buffers, two more that take turns.

        Blocks: head (the trip number and pointers), test, body, exit.
        """
        f = self.f
        label = f.fresh("T")[1:]
        starts = [self.pointer(c.start) for c in work.carried]
        turns = [[self.pointer(n) for n in c.ping_pong] for c in work.carried]
        bases = {row.base: self.pointer(row.base) for row in work.views}
        before = f.block_name
        f.emit(f"br label %{label}.head")
        f.label(f"{label}.head")
        hole = len(f.lines)
        trip = f.fresh("t")
        names = [f.fresh("c") for _ in work.carried]
        spare_names = [[f.fresh("s") for _ in pair] for pair in turns]
        around = self.pointers
        self.pointers = {**around, **bases, **{c.now: name for c, name in zip(work.carried, names)}}
        self._ask(label)
        self._test(work, trip, label)
        f.label(f"{label}.body")
        self._rows(work, trip)
        for carried, ping_pong in zip(work.carried, spare_names):
            if ping_pong:
                self.pointers[carried.following] = ping_pong[0]
        self._run(work.body)
        following = f.value(f"add i64 {trip}, 1")
        ends = [self.pointer(c.following) for c in work.carried]
        phis = [_phi("i64", trip, "0", following)]
        phis += [_phi("ptr", name, start, end) for name, start, end in zip(names, starts, ends)]
        for pair, ping_pong in zip(turns, spare_names):
            phis += [_phi("ptr", a, first, b) for a, b, first in zip(ping_pong, ping_pong[::-1], pair)]
        f.lines[hole:hole] = [text.format(before, f.block_name) for text in phis]
        f.emit(f"br label %{label}.head")
        f.label(f"{label}.exit")
        self.pointers = {**around, **{c.last: name for c, name in zip(work.carried, names)}}

    def _ask(self, label: str) -> None:
        """Leaves the loop if whoever watches the run says so; asked now and then, then again at once."""
        f = self.f
        f.module.declare(f"declare i64 @{self.clock}()")
        if not self.due:
            self.due = f.at_entry("alloca i64, align 8")
            start = f.at_entry(f"call i64 @{self.clock}()")
            first = f.at_entry(f"add i64 {start}, {POLL_TICKS[self.clock]}")
            f.entry.append(f"  store i64 {first}, ptr {self.due}, align 8")
        now = f.value(f"call i64 @{self.clock}()")
        late = f.value(f"icmp ugt i64 {now}, {f.value(f'load i64, ptr {self.due}, align 8')}")
        f.emit(f"br i1 {late}, label %{label}.ask, label %{label}.go")
        f.label(f"{label}.ask")
        place = f.offset("%buffers", "ptr", str(len(self.program.buffers) + 2))
        stop = f.value(f"call i64 {f.value(f'load ptr, ptr {place}, align 8')}()")
        ends = f.value(f"icmp ne i64 {stop}, 0")
        again = f.value(f"select i1 {ends}, i64 0, i64 {f.add(now, str(POLL_TICKS[self.clock]))}")
        f.emit(f"store i64 {again}, ptr {self.due}, align 8")
        f.emit(f"br i1 {ends}, label %{label}.exit, label %{label}.go")
        f.label(f"{label}.go")

    def _test(self, work: Loop, trip: str, label: str) -> None:
        """Leaves the loop where no trip is left or the condition fails."""
        f = self.f
        if work.trips is not None:
            inside = f.value(f"icmp slt i64 {trip}, {f.dim(work.trips)}")
            f.emit(f"br i1 {inside}, label %{label}.test, label %{label}.exit")
            f.label(f"{label}.test")
        if work.condition is None:
            f.emit(f"br label %{label}.body")
            return
        self._run(work.test)
        f.emit(f"br i1 {self._truth(work.condition)}, label %{label}.body, label %{label}.exit")

    def _rows(self, work: Loop, trip: str) -> None:
        f = self.f
        at = trip
        if work.reverse and work.trips is not None:
            at = f.sub(f.sub(f.dim(work.trips), "1"), trip)
        for row in work.views:
            self.pointers[row.number] = self._moved(row.base, f.add(f.dim(row.offset), f.mul(at, f.dim(row.step))))


def _phi(kind: str, name: str, start: str, end: str) -> str:
    """A phi with holes for the blocks that it comes from."""
    return f"  {name} = phi {kind} [{start}, %{{}}], [{end}, %{{}}]"
