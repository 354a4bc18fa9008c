"""`rlx_main` and `rlx_prepare`: kernels called in order, with branches and loops around those that regions own.

Loops of a group are functions of their own. Where the work is worth it, threads run them whole, and those that come
apart by rows in parts; nobody waits between trips, and a call of a kernel is a plain call. Else they run in order, and
their kernels are shared as all others are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rlx.codegen.simd.function import ONCE_A_RUN, Callee, Function, Module
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.kernel.ir.control import Branch, ByThreads, Loop, LoopGroup, RowCut
from rlx.kernel.ir.program import Kernel, Program, leaves
from rlx.kernel.ir.rows import LEAST_ROWS, ROWS, whole
from rlx.kernel.passes.memory import MemoryPlan

POLL_TICKS = {"llvm.readcyclecounter": 1 << 26, "llvm.readsteadycounter": 1 << 20}
"""Of the processor's counter, from one question of a loop whether to go on to the next: some hundredths of a second."""

GRAIN_CYCLES = 6000
"""Least work of a chunk that is worth handing to another thread (a fork and join costs some hundred cycles)."""
CHUNKS_A_THREAD = 4
"""At most, so that a thread whose core is busy leaves some to the others."""
LOOP_GRAIN_CYCLES = 2000
"""Least work of a chunk in a loop, where the other threads have just done one and still wait for the next. There is one
chunk a thread, so that a thread finds in its cache what it read in the trip before."""

TASK = "ptr %args, i64 %part, i64 %parts, ptr %scratch, ptr %parallel, i64 %threads"
TASKS = "ptr %args, i64 %begin, i64 %end, ptr %scratch"
TASK_PLACES = ("dims", "buffers", "arena", "base", "stop")
"""What stands first in the arguments of a group: three of `rlx_main`, where the scratch memory of all threads begins,
and whether loops are to end. Behind them: the number of parts of each loop, the buffers that loops before have moved,
and where the carried values of each loop lie at its end."""


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
        self.scratch_size = scratch
        self.scratch_bytes = f.dim(scratch)
        self.args = ""
        self.tables: dict[tuple[Dim, ...], str] = {}
        self.clock = clock
        self.timed = timed
        self.due = ""  # the address of the tick at which a loop asks again
        self.shifts: dict[int, str] = {}  # bytes from where a buffer begins to the rows of this part
        self.odd = ""  # in a loop: whether its trip has an odd number
        self.stop = ""  # of a loop of a group: the address of what ends all of them

    def write(self, kernels: Sequence[Kernel]) -> None:
        """Runs the kernels in order."""
        inner = [leaf for kernel in kernels for leaf in leaves(self._own([kernel]))]
        widest = max((len(k.slots) for k in inner), default=0)
        self.args = self.f.at_entry(f"alloca [{widest + 3} x ptr], align 16")
        self.f.emit(f"store ptr %dims, ptr {self.args}, align 8")
        for given in dict.fromkeys(self.code[id(k)].function.dims for k in inner):
            self.tables[given] = self._table(given) if given else ""
        self._run(kernels)

    def _own(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        """Those that this function calls itself: not the loops of groups, unless kernels are timed."""
        return [k for k in kernels if self.timed is not None or not isinstance(k.work, LoopGroup)]

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
            elif isinstance(kernel.work, ByThreads):
                self._by_threads(kernel.work)
            elif isinstance(kernel.work, Loop):
                self._loop(kernel.work)
            elif isinstance(kernel.work, LoopGroup):
                if self.timed is not None:
                    self._run(kernel.work.loops)
                else:
                    self._group(kernel.work)
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
            pointer = f.offset(pointer, "i8", self.shifts.get(number, "0"))
            f.emit(f"store ptr {pointer}, ptr {place}, align 8")
        table = self.tables[code.function.dims]
        if table:
            f.emit(f"store ptr {table}, ptr {f.offset(self.args, 'ptr', str(len(kernel.slots) + 1))}, align 8")
        if code.function.turns:
            f.emit(f"store i64 {self.odd}, ptr {f.offset(self.args, 'i64', str(len(kernel.slots) + 2))}, align 8")
        cycles = dims.mul(code.positions, code.cycles)
        grain, each = (LOOP_GRAIN_CYCLES, 1) if self.odd else (GRAIN_CYCLES, CHUNKS_A_THREAD)
        if isinstance(cycles, int) and cycles < 2 * grain * (16 if code.flat else 1) and code.positions != 0:
            # already known to be too little work to share
            count = f.dim(code.positions)
            f.emit(f"call void @{code.function.name}(ptr {self.args}, i64 0, i64 {count}, ptr {self.scratch})")
            return
        work = (f.dim(code.positions), f.dim(code.cycles), int(code.flat))
        self._hand_out(code.function.name, self.args, work, (grain, each))

    def _hand_out(self, name: str, args: str, work: tuple[str, str, int], chunks: tuple[int, int]) -> None:
        """Runs positions of a function, each of so many cycles, in chunks: cycles of one, and how many a thread."""
        total, cycles, flat = work
        grain, each = chunks
        self.f.emit(
            f"call void @rlx_run(ptr @{name}, ptr {args}, i64 {total}, i64 {cycles}, i64 {flat}, ptr {self.scratch}, "
            f"i64 {self.scratch_bytes}, ptr %parallel, i64 %threads, i64 {grain}, i64 {each})"
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

    def _by_threads(self, work: ByThreads) -> None:
        around = self.pointers

        def side(kernels: Sequence[Kernel]) -> None:
            # addresses computed in one branch are unknown in the other, and after both
            self.pointers = dict(around)
            self._run(kernels)

        several = self.f.value("icmp sgt i64 %threads, 1")
        self.f.when(several, partial(side, work.several), partial(side, work.alone))
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
        outside, self.odd = self.odd, f.value(f"and i64 {trip}, 1")
        self._test(work, trip, label)
        f.label(f"{label}.body")
        self._rows(work, trip)
        for carried, ping_pong in zip(work.carried, spare_names):
            if ping_pong:
                self.pointers[carried.following] = ping_pong[0]
        self._run(work.body)
        self.odd = outside
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
        if self.stop:  # the thread that called may have said so
            flag = f.value(f"load atomic i64, ptr {self.stop} monotonic, align 8")
            f.emit(f"br i1 {f.value(f'icmp ne i64 {flag}, 0')}, label %{label}.exit, label %{label}.look")
            f.label(f"{label}.look")
        now = f.value(f"call i64 @{self.clock}()")
        late = f.value(f"icmp ugt i64 {now}, {f.value(f'load i64, ptr {self.due}, align 8')}")
        if self.stop:  # it alone can ask
            late = f.value(f"and i1 {late}, %calls")
        f.emit(f"br i1 {late}, label %{label}.ask, label %{label}.go")
        f.label(f"{label}.ask")
        place = f.offset("%buffers", "ptr", str(len(self.program.buffers) + 2))
        stop = f.value(f"call i64 {f.value(f'load ptr, ptr {place}, align 8')}()")
        ends = f.value(f"icmp ne i64 {stop}, 0")
        again = f.value(f"select i1 {ends}, i64 0, i64 {f.add(now, str(POLL_TICKS[self.clock]))}")
        f.emit(f"store i64 {again}, ptr {self.due}, align 8")
        if self.stop:
            f.emit(f"store atomic i64 {f.value(f'zext i1 {ends} to i64')}, ptr {self.stop} monotonic, align 8")
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

    # groups of loops

    def _group(self, work: LoopGroup) -> None:
        """Calls the function that runs tasks: a loop, or a part of one."""
        f = self.f
        name = f"{f.name}.{f.fresh('G')[1:]}"
        loops = [kernel.work for kernel in work.loops if isinstance(kernel.work, Loop)]
        moved = sorted(number for number in self.pointers if number in _named(self.program, work.loops))
        frame = _TaskFrame(loops, moved)
        args = f.at_entry(f"alloca [{frame.size} x ptr], align 16")
        fixed = ["%dims", "%buffers", "%arena", self.scratch, "null", *["null"] * len(loops)]
        for place, value in enumerate([*fixed, *(self.pointers[number] for number in moved)]):
            f.emit(f"store ptr {value}, ptr {f.offset(args, 'ptr', str(place))}, align 8")
        total = "0"
        share = f.smax(f.value(f"udiv i64 %threads, {len(loops)}"), "1")
        for number, cut in enumerate(work.cuts):
            parts = "1"
            if cut is not None:
                parts = f.smax(f.smin(share, f.value(f"sdiv i64 {f.dim(cut.rows)}, {LEAST_ROWS}")), "1")
            f.emit(f"store i64 {parts}, ptr {f.offset(args, 'ptr', str(frame.parts(number)))}, align 8")
            total = f.add(total, parts)
            self._write_task(f"{name}.{number}", cut, frame, number)
        _write_tasks(f.module, name, frame)
        self._run_tasks(name, args, total, sum(map(self._cycles, loops, work.cuts), start=0), len(loops))
        for number, loop in enumerate(loops):
            for place, carried in enumerate(loop.carried):
                where = f.offset(args, "ptr", str(frame.last(number) + place))
                self.pointers[carried.last] = f.value(f"load ptr, ptr {where}, align 8")

    def _run_tasks(self, name: str, args: str, total: str, work_cycles: Dim, loops: int) -> None:
        """All tasks at once where there is enough work for two threads and more, else one loop after another."""
        f = self.f
        cycles = f.dim(work_cycles)
        tests = ("%threads, 1", f"{total}, 1", f"{cycles}, {2 * GRAIN_CYCLES}")
        threads, tasks, worth = (f.value(f"icmp sgt i64 {test}") for test in tests)
        shared = f.value(f"and i1 {threads}, {f.value(f'and i1 {tasks}, {worth}')}")

        def at_once() -> None:
            each = f.value(f"sdiv i64 {cycles}, {total}")
            self._hand_out(name, args, (total, each, 0), (GRAIN_CYCLES, CHUNKS_A_THREAD))

        def in_order() -> None:
            for number in range(loops):
                given = f"ptr {args}, i64 0, i64 1, ptr {self.scratch}, ptr %parallel, i64 %threads"
                f.emit(f"call void @{name}.{number}({given})")

        f.when(shared, at_once, in_order)

    def _cycles(self, loop: Loop, cut: RowCut | None) -> Dim:
        """Of all trips, roughly."""
        total: Dim = 0
        for kernel in loop.body:
            code = self.code[id(kernel)]
            cycles = dims.mul(code.positions, code.cycles)
            total = dims.add(total, dims.floordiv(cycles, 16) if code.flat else cycles)
        if cut is not None:
            total = whole(total, cut.rows)
        return dims.mul(total, loop.trips or 0)

    def _write_task(self, name: str, cut: RowCut | None, frame: _TaskFrame, number: int) -> None:
        """The function that runs part `%part` of `%parts` of a loop."""
        loop = frame.loops[number]
        f = Function(self.f.module, name, TASK, "internal", ONCE_A_RUN)
        for place, what in enumerate(TASK_PLACES):
            how = "getelementptr ptr, ptr %args, i64 {}" if what == "stop" else "load ptr, ptr {}, align 8"
            at = str(place) if what == "stop" else f.at_entry(f"getelementptr ptr, ptr %args, i64 {place}")
            f.entry.append(f"  %{what} = {how.format(at)}")
        f.entry.append("  %calls = icmp eq ptr %scratch, %base")
        task = Entry(f, self.program, self.memory, self.scratch_size, self.code, self.clock, None)
        task.scratch, task.stop = "%scratch", "%stop"
        if cut is not None:
            self._cut(f, cut, task.shifts)
        for place, buffer in enumerate(frame.moved):
            where = f.offset("%args", "ptr", str(frame.first + place))
            task.pointers[buffer] = f.value(f"load ptr, ptr {where}, align 8")
        task.write([Kernel("loop", loop, (), 0)])

        def leave() -> None:
            for place, carried in enumerate(loop.carried):
                where = f.offset("%args", "ptr", str(frame.last(number) + place))
                f.emit(f"store ptr {task.pointers[carried.last]}, ptr {where}, align 8")

        f.when(f.value("icmp eq i64 %part, 0"), leave)
        f.module.add(name, f.text(), of_program=True)

    def _cut(self, f: Function, cut: RowCut, shifts: dict[int, str]) -> None:
        """Works out at the entry how many rows a part has, and how far behind the first they lie in each buffer."""
        rows = f.dim(cut.rows)
        begin, end = (
            f.at_entry(f"udiv i64 {f.at_entry(f'mul i64 {part}, {rows}')}, %parts")
            for part in ("%part", f.at_entry("add i64 %part, 1"))
        )
        f.know(ROWS, f.at_entry(f"sub i64 {end}, {begin}"))
        for buffer, step in cut.steps:
            nbytes = f.dim(dims.mul(step, self.program.buffers[buffer].dtype.itemsize))
            shifts[buffer] = f.at_entry(f"mul i64 {begin}, {nbytes}")


@dataclass(frozen=True)
class _TaskFrame:
    """Where in the arguments of a group things stand: see `TASK_PLACES`."""

    loops: Sequence[Loop]
    moved: Sequence[int]

    def parts(self, number: int) -> int:
        """The number of parts of a loop."""
        return len(TASK_PLACES) + number

    @property
    def first(self) -> int:
        """The first buffer that a loop before has moved."""
        return len(TASK_PLACES) + len(self.loops)

    def last(self, number: int) -> int:
        """Where the first carried value of a loop lies at its end."""
        return self.first + len(self.moved) + sum(len(loop.carried) for loop in self.loops[:number])

    @property
    def size(self) -> int:
        return self.last(len(self.loops))


def _write_tasks(module: Module, name: str, frame: _TaskFrame) -> None:
    """The function that runs tasks `%begin` to `%end`, each on the thread that calls it."""
    f = Function(module, name, TASKS, "internal", ONCE_A_RUN)

    def one(task: str, _: list[str]) -> list[str]:
        for number in range(len(frame.loops)):
            parts = f.value(f"load i64, ptr {f.offset('%args', 'ptr', str(frame.parts(number)))}, align 8")
            mine = f.value(f"icmp ult i64 {task}, {parts}")
            given = f"ptr %args, i64 {task}, i64 {parts}, ptr %scratch, ptr null, i64 1"
            f.when(mine, partial(f.emit, f"call void @{name}.{number}({given})"))
            task = f.value(f"sub i64 {task}, {parts}")  # of a task that ran it is no number of one
        return []

    f.loop("%begin", "%end", 1, [], one)
    module.add(name, f.text(), of_program=True)


def _named(program: Program, kernels: Sequence[Kernel]) -> set[int]:
    """Buffers that loops speak of, and those in which these lie at a known place."""
    found: set[int] = set()
    for kernel in kernels:
        found |= {*kernel.slots, *_named(program, kernel.children)}
        if isinstance(kernel.work, Loop):
            found |= {carried.start for carried in kernel.work.carried} | {view.base for view in kernel.work.views}
    return found | {program.aliases[number][0] for number in found if number in program.aliases}


def _phi(kind: str, name: str, start: str, end: str) -> str:
    """A phi with holes for the blocks that it comes from."""
    return f"  {name} = phi {kind} [{start}, %{{}}], [{end}, %{{}}]"
