"""A program at one size: its memory, its kernels in order, and the graphs that replay them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import interrupt
from rlx.backends.cuda.arrays import CudaArray, LateArray
from rlx.backends.cuda.blas import Chooser
from rlx.backends.cuda.branches import Branches, DecidedByHost
from rlx.backends.cuda.build import place_arena
from rlx.backends.cuda.device import ALIGNMENT, Borrowed, Device, Memory, Pinned, Reading
from rlx.backends.cuda.direct import DirectGraphs
from rlx.backends.cuda.driver import OUT_OF_MEMORY, STICKY, CallError
from rlx.backends.cuda.forms import Form, Placed, read_in_place, written_in_place
from rlx.backends.cuda.launches import Given, give, launches
from rlx.backends.cuda.moving import Sizes, unread_inputs
from rlx.backends.cuda.replay import Go, Replay
from rlx.backends.cuda.slots import Slot, StagedTable
from rlx.backends.cuda.spares import Spares
from rlx.backends.cuda.timers import KernelTimer
from rlx.backends.cuda.weights import Weights
from rlx.backends.executable import Bound, KernelTime, deliver
from rlx.backends.memory import DeviceArray, LateCheck, Where, on_host
from rlx.backends.simt_unroll import Ask, Unroller, depends_on_data, nothing_to_ask
from rlx.ir import dim as dims
from rlx.ir.literal import Array

if TYPE_CHECKING:
    from rlx.backends.cuda.executable import CudaExecutable


TABLES = 4
"""Runs that the device may be behind the host before the host waits."""


class CudaBound(Bound):
    """The executable at one size, or at the end of a bucket of sizes that move, with an arena of its own, made at the
    first call."""

    def __init__(self, executable: CudaExecutable, sizes: Sizes) -> None:
        self.executable = executable
        self.plan = executable.plan
        self.sizes = sizes
        self.binding = sizes.binding
        program = self.plan.program
        self.arena = place_arena(program, self.plan.memory, sizes)
        self.shapes = tuple(tuple(dims.evaluate(d, self.binding) for d in of.shape) for of in self.plan.outputs)
        self.written = program.written_states()
        self._unread = unread_inputs(program)
        self.inputs = [self._placed(n, None) for n in program.inputs]
        self.outputs = [
            None if i in self.written else self._placed(n, shape)
            for i, (n, shape) in enumerate(zip(program.outputs, self.shapes))
        ]
        self._states = [(at, n) for at, n in enumerate(program.inputs) if self._is_state(n)]
        self._read_in_place, self._written_in_place = read_in_place(program), written_in_place(program)
        self.late = not self.written
        self.asks = depends_on_data(program.main)
        self._table = np.zeros(len(self.plan.table), np.int64)
        self._memory: Memory | None = None
        self._device: Device | None = None
        self._weights: Weights | None = None
        """Those that what was made ready reads: their memory is in use."""
        self._state_places: tuple[int, ...] = ()
        self._starts: dict[int, int] = {}
        self._pieces: dict[tuple[tuple[int, tuple[int, ...]], ...], list[Given]] = {}
        self._all: list[Given] | None = None
        self._spare: list[Slot] = []
        """Staging for runs that overlap, of which none has it."""

    @property
    def nbytes(self) -> int:  # type: ignore[override]  # memory of results is kept for the next ones
        return self.arena.nbytes + (self._spares.nbytes if self._memory is not None else 0)

    def _placed(self, number: int, shape: tuple[int, ...] | None) -> Placed:
        buffer = self.plan.program.buffers[number]
        size = 0 if number in self._unread else dims.evaluate(buffer.nbytes, self.binding)
        flat = (size // buffer.dtype.itemsize,)
        return Placed(buffer, self.arena.start.get(number, 0), size, flat if shape is None else shape)

    # memory

    def _ready(self, weights: Weights, inputs: Sequence[Any]) -> None:
        """Memory, and what was made ready for it, which is made anew when weights or states have moved."""
        same = self._weights is weights and self._device is self.executable.device
        states = tuple([inputs[at].pointer for at, _ in self._states]) if self._states else ()
        if same and states == self._state_places:
            return
        if self._memory is None or self._device is not self.executable.device:
            self._make_memory(self.executable.device)
        assert self._memory is not None
        if self._weights is not weights:
            self._direct.clear()
        base = self._memory.pointer
        self._starts = {n: base + first for n, first in self.arena.start.items()}
        self._starts |= {n: memory.pointer for n, memory in weights.memory.items()}
        self._starts |= {n: place for (_, n), place in zip(self._states, states)}
        self._pieces, self._all = {}, None
        self._weights, self._state_places = weights, states

    def _make_memory(self, device: Device) -> None:
        """Memory of the device and of the host, and what is noted for it."""
        at = f" at {self.binding}" if self.binding else ""
        memory = device.allocate(self.arena.nbytes, f"the buffers of a run{at}")
        self._spare = []
        self._incoming = Pinned(device, self.arena.inputs_end)
        self._outgoing = Pinned(device, self.arena.outputs_end - self.arena.inputs_end)
        self._answer = Pinned(device, 1)
        wanted = self._table.size > 0
        self._tables = deque(StagedTable(device, self._table.nbytes) for _ in range(TABLES if wanted else 0))
        self._table_memory = device.allocate(self._table.nbytes, "numbers of sizes") if wanted else None
        self._replay, self._direct = Replay(device), DirectGraphs(device)
        sizes = [0 if output is None else output.size for output in self.outputs]
        self._spares = Spares(device, sizes, self.arena.nbytes)
        self._forms: dict[Hashable, Form] = {}
        self._branches = Branches(device, self.plan.program, self.binding) if self.asks else None
        self._weights = None
        self._memory, self._device = memory, device

    def _is_state(self, number: int) -> bool:
        return self.plan.program.buffers[number].kind == "state"

    def _taken(self, inputs: Sequence[Any]) -> list[Any]:
        """Inputs as a run takes them: arrays on the device, and of the host where they are no states."""
        device = self.executable.device
        return [
            value if type(value) is CudaArray and value.owner is device else self._as_array(number, value)
            for number, value in zip(self.plan.program.inputs, inputs)
        ]

    def _as_array(self, number: int, value: Any) -> Any:
        """A value as a run takes it. A state that is no array on the device yet becomes one: what a run makes of it is
        only in its results. Arrays of a device that was lost come through the host, or fail there."""
        if type(value) is not np.ndarray and isinstance(value, DeviceArray):
            value = value.numpy()
        return CudaArray.of_host(self.executable.device, value) if self._is_state(number) else value

    def _launches(self, ask: Ask, starts: Mapping[int, int]) -> Iterator[Any]:
        unroller = Unroller(self.plan.program, starts, self.binding, lambda dtype: dtype.itemsize, ask)
        return unroller.go(self.plan.program.main)

    def _whole(self) -> list[Given]:
        """The kernels of a program; where data decide, what a stream that notes a graph is given for them. Raises
        DecidedByHost."""
        if self._all is None:
            if self._branches is not None:
                self._all = self._branches.row(self._starts, self._made)
            else:
                self._all = self._made(self._launches(nothing_to_ask, self._starts))
        return self._all

    def _made(self, started: Iterable[Any]) -> list[Given]:
        table = self._table_memory.pointer if self._table_memory is not None else 0
        device, weights = self.executable.device, self.executable.weights()
        chooser = Chooser(device, self.plan, self.sizes, weights, self.executable.cache)
        return launches(self.plan, self.executable.functions, started, self.sizes, table, chooser)

    # runs

    @contextmanager
    def at(self, table: Array) -> Iterator[None]:
        """Runs at a size of the bucket, by its table."""
        with self.executable.device.lock:
            self._table = table
            yield

    def __call__(self, inputs: Sequence[Any], out: Sequence[Array | None] | None = None) -> list[Array]:
        return deliver(on_host(self._run(["host"] * len(self.outputs), inputs)), out)

    def deliver_to(
        self, where: Sequence[Where], inputs: Sequence[Any], out: Sequence[Array | None] | None = None
    ) -> list[Any]:
        results = self._run(where, inputs)
        if out is None:
            return results
        return [result if buffer is None else deliver([result], [buffer])[0] for result, buffer in zip(results, out)]

    def _run(self, where: Sequence[Where], inputs: Sequence[Any], timer: KernelTimer | None = None) -> list[Any]:
        self.executable.renew()
        device = self.executable.device
        inputs = self._taken(inputs)
        unsettled = self._unsettled(inputs)
        with device.work("run") as driver:
            self._ready(self.executable.weights(), inputs)
            form = self._form(where, inputs)
            arrays = [self._new(i, output) for i, output in form.kept]
            readings = [Reading(device) for _ in form.late]
            lent = _lent(inputs)
            # a graph on the lender's own stream is in its order, where ours and that one would wait for each other
            theirs = None if self.asks or timer is not None else _common_stream(lent)
            go = self._way(form, inputs, arrays, readings, timer)
            stream = device.lead(theirs)
            for at, target in form.targets:
                np.copyto(target, inputs[at].reshape(-1))
            if self._table_memory is not None:
                self._tables.rotate()
                self._tables[0].bring(self._table, self._table_memory.pointer, stream)
            if theirs is None:
                self._follow_lenders(lent)
            go(stream)
            for reading in readings:
                reading.landing.event.record(stream)
            waits = form.waits or timer is not None
            if lent and theirs is None:
                waits |= not self._lenders_wait(lent)
            if waits:
                driver.synchronise(stream)
            device.leave(readings[-1].landing.event if readings else None, waits)
            results: list[Any] = [None] * len(where)
            for i, source in form.sources:
                results[i] = source.copy()
        if unsettled and "host" in where:
            for check in unsettled:
                check.settle()
        for (i, _), array in zip(form.kept, arrays):
            array.checks = unsettled
            results[i] = array
        for (i, output), reading in zip(form.late, readings):
            results[i] = LateArray(output.buffer.dtype, output.shape, reading)
        for i, at in self.written.items():
            results[i] = inputs[at]
        return results

    def _form(self, where: Sequence[Where], inputs: Sequence[Any]) -> Form:
        """What a run does whose inputs are of these kinds, and whose results are wanted there."""
        on_device = tuple([type(value) is CudaArray for value in inputs])
        key = tuple(where), on_device
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = Form(self.inputs, self.outputs, on_device, where)
            form.targets = tuple((at, placed.view(self._incoming.bytes, 0)) for at, placed in form.staged)
            first = self.arena.inputs_end
            form.sources = tuple((i, output.view(self._outgoing.bytes, first)) for i, output in form.fetched)
        return form

    def _new(self, i: int, output: Placed) -> CudaArray:
        memory = self._spares.take(i, f"the output {output.buffer.name!r}")
        return CudaArray(self.executable.device, output.buffer.dtype, output.shape, memory)

    def _unsettled(self, inputs: Sequence[Any]) -> tuple[LateCheck, ...]:
        """What is not known to hold yet of the runs that made the inputs. It is waited for before states change."""
        arrays = [a for a in inputs if type(a) is CudaArray and a.checks]
        if not arrays:
            return ()
        checks = {id(check): check for array in arrays for check in array.checks if not check.holds()}
        if self.written:
            for check in checks.values():
                check.settle()
        return tuple(checks.values())

    def _lenders_wait(self, lent: Sequence[Borrowed]) -> bool:
        """Has the streams of libraries wait whose memory was read; False where one has no stream that could."""
        streams = {memory.stream for memory in lent}
        for stream in streams:
            if stream is not None:
                self.executable.device.let_wait(stream)
        return None not in streams

    def _at(self, place: int) -> int:
        assert self._memory is not None  # `_ready` was called
        return self._memory.pointer + place

    def _follow_lenders(self, lent: Sequence[Borrowed]) -> None:
        """Has the device's stream wait for those of libraries that write to what is read, once for each."""
        unwritten = [memory for memory in lent if not memory.written]
        for memory in {memory.stream: memory for memory in unwritten}.values():
            memory.follow()
        for memory in unwritten:
            memory.written = True

    def _way(
        self, form: Form, inputs: Sequence[Any], arrays: Sequence[CudaArray], readings: Sequence[Reading],
        timer: KernelTimer | None,
    ) -> Go:  # fmt: skip
        """What gives a stream the run: a graph of all of it, where these places have one; else a graph of what is the
        same at all places, between copies."""
        if form.direct and timer is None and not self.asks and self.executable.device.driver.captures:
            key = (
                form,
                *[inputs[at].memory.pointer for at, _ in form.given],
                *[array.memory.pointer for array in arrays],
                *[reading.landing.pointer for reading in readings],
                *self._state_places,
            )
            graph = self._direct.get(key)
            if graph is not None:
                return graph.run
            if self._direct.is_worth_one(key):
                return self._noted(key, form, inputs, arrays, readings)
        kernels = self._timed(form, timer) if timer is not None else self._kernels(form)
        if not form.direct:
            return kernels
        copied = [(placed, inputs[at].pointer) for at, placed in form.given]
        kept = [(output, array.pointer) for (_, output), array in zip(form.kept, arrays)]
        return self._around(kernels, copied, kept, form, readings)

    def _around(
        self, kernels: Go, copied: Sequence[tuple[Placed, int]], kept: Sequence[tuple[Placed, int]], form: Form,
        readings: Sequence[Reading],
    ) -> Go:  # fmt: skip
        """Kernels between copies of inputs to the arena, and of results from there."""
        driver = self.executable.device.driver

        def go(stream: Any) -> None:
            for placed, pointer in copied:
                driver.copy(self._at(placed.start), pointer, placed.size, stream)
            kernels(stream)
            for output, pointer in kept:
                if output.size:
                    driver.copy(pointer, self._at(output.start), output.size, stream)
            for (_, output), reading in zip(form.late, readings):
                driver.copy_out(reading.landing.pointer, self._at(output.start), output.size, stream)

        return go

    def _noted(
        self, key: Hashable, form: Form, inputs: Sequence[Any], arrays: Sequence[CudaArray],
        readings: Sequence[Reading],
    ) -> Go:  # fmt: skip
        """A graph of a run whose kernels read inputs where they lie, and put results where they stay, as far as they
        can: a run that writes to a state must not change another input that lies there too."""
        program, starts = self.plan.program, dict(self._starts)
        written = [inputs[at].memory for at, _ in self._states] if self.written else []
        copied: list[tuple[Placed, int]] = []
        kept: list[tuple[Placed, int]] = []
        for at, placed in form.given:
            number, pointer = program.inputs[at], inputs[at].pointer
            apart = all(pointer + placed.size <= m.pointer or m.pointer + m.nbytes <= pointer for m in written)
            if number in self._read_in_place and pointer % ALIGNMENT == 0 and apart:
                starts[number] = pointer
            else:
                copied.append((placed, pointer))
        for (i, output), array in zip(form.kept, arrays):
            if program.outputs[i] in self._written_in_place:
                starts[program.outputs[i]] = array.pointer
            else:
                kept.append((output, array.pointer))
        made = self._made(self._launches(nothing_to_ask, starts))
        kernels = self._all_of(made, form)
        return self._direct.note(key, made, self._around(kernels, copied, kept, form, readings)).run

    def _all_of(self, given: Sequence[Given], form: Form) -> Go:
        """Copies of the host's inputs, kernels, and copies of the parts of the arena that the host wants."""
        driver = self.executable.device.driver

        def everything(stream: Any) -> None:
            self._move_in(form, stream)
            give(driver, given, stream)
            self._move_out(form, stream)

        return everything

    def _move_in(self, form: Form, stream: Any) -> None:
        driver = self.executable.device.driver
        for first, size in form.blocks:
            driver.copy_in(self._at(first), self._incoming.pointer + first, size, stream)

    def _move_out(self, form: Form, stream: Any) -> None:
        driver = self.executable.device.driver
        for first, size in form.wanted:
            driver.copy_out(self._outgoing.pointer + first - self.arena.inputs_end, self._at(first), size, stream)

    def _kernels(self, form: Form) -> Go:
        """What is the same at all places of a form: one graph where the host has nothing to decide."""
        key = form.blocks, form.wanted
        if not self.asks:
            whole = self._whole()
            return self._replay.latest(key, whole) or self._replay.ready(key, whole, self._all_of(whole, form))
        if self._device_decides(key, lambda stream: self._all_of(self._whole(), form)(stream)):
            return self._replay.graph(key)
        driver = self.executable.device.driver

        def decided(stream: Any) -> None:
            self._move_in(form, stream)
            rest = self._up_to_the_last_question(lambda piece: give(driver, piece, stream))
            give(driver, rest, stream)
            self._move_out(form, stream)

        return decided

    def _timed(self, form: Form, timer: KernelTimer) -> Go:
        def timed(stream: Any) -> None:
            self._move_in(form, stream)
            timer.run(self._up_to_the_last_question(timer.run) if self.asks else self._whole())
            self._move_out(form, stream)

        return timed

    def _device_decides(self, key: Hashable, everything: Callable[[Any], None]) -> bool:
        """Whether there is a graph of all ways that a program may take. The host decides in the first run, as many
        programs run once, and where a limit may end a run, which it looks at between trips."""
        branches = self._branches
        assert branches is not None
        first = self._replay.is_first(key) and branches.mode != "always"
        if first or (branches.loops and interrupt.limit() is not None):
            return False
        try:
            if not branches.by_host:
                self._replay.note(key, self._whole(), everything)
        except DecidedByHost as reason:
            branches.leave_to_host(reason)
        except CallError as error:
            if error.code in STICKY or error.code == OUT_OF_MEMORY:
                raise
            branches.leave_to_host(f"the driver does not take the graph: {error}")
        self.executable.branching = str(branches)
        return not branches.by_host

    def _up_to_the_last_question(self, run: Callable[[list[Given]], None]) -> list[Given]:
        """Runs all that comes before the last branch or test of a loop, and gives what is left to run."""
        assert self._device is not None
        device, driver = self._device, self._device.driver
        pending: list[Any] = []

        def ask(_: int, pointer: int) -> bool:
            run(self._kept(pending))
            pending.clear()
            driver.copy_out(self._answer.pointer, pointer, 1, device.stream)
            driver.synchronise(device.stream)
            return bool(self._answer.bytes[0])

        pending.extend(self._launches(ask, self._starts))
        return self._kept(pending)

    def _kept(self, started: Sequence[Any]) -> list[Given]:
        key = tuple((id(each.kernel), each.starts) for each in started)
        if key not in self._pieces:
            if len(self._pieces) >= MOST_PIECES:
                self._pieces.pop(next(iter(self._pieces)))
            self._pieces[key] = self._made(started)
        return self._pieces[key]

    # pipelined runs and profiles

    def begin(self, inputs: Sequence[Any]) -> Callable[[], list[Array]] | None:
        """Runs follow one another on the device, each with staging of its own: the next one's inputs come, and the
        last one's results go, while kernels run. Where the host decides, they take turns."""
        if self.written:
            return None
        self.executable.renew()
        device = self.executable.device
        inputs = self._taken(inputs)
        unsettled = self._unsettled(inputs)
        where: list[Where] = ["host"] * len(self.outputs)
        with device.work("run") as driver:
            self._ready(self.executable.weights(), inputs)

            def kernels(stream: Any) -> None:
                give(driver, self._whole(), stream)

            if self.asks and not self._device_decides("kernels", kernels):
                return None
            form = self._form(where, inputs)
            slot = self._spare.pop() if self._spare else Slot(device, self.arena)
            slot.held = inputs
            for at, placed in form.staged:
                np.copyto(placed.view(slot.incoming.bytes, 0), inputs[at].reshape(-1))
            slot.bring(form.blocks, self._at(0))
            self._follow_lenders(_lent(inputs))
            for at, placed in form.given:
                driver.copy(self._at(placed.start), inputs[at].pointer, placed.size, device.stream)
            go = self._replay.graph("kernels") if self.asks else self._replay.ready("kernels", self._whole(), kernels)
            go(device.stream)
            slot.fetch(self._at(self.arena.inputs_end))

        def end() -> list[Array]:
            with self._of_run(device):
                slot.wait()
            for check in unsettled:
                check.settle()
            first = self.arena.inputs_end
            results = [output.view(slot.outgoing.bytes, first).copy() for _, output in form.fetched]
            slot.held = ()
            self._spare.append(slot)
            return results

        return end

    @contextmanager
    def _of_run(self, device: Device) -> Iterator[None]:
        """Errors of a wait that holds nobody else up."""
        with device.errors("run"):
            device.driver.enter(device.context)
            yield

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        """The times of kernels on the device. What happens on the host in between is in no kernel's time."""
        if not self.executable.timed:
            return super().profile(inputs)
        timer = KernelTimer(self.executable.device)
        self._run(["host"] * len(self.outputs), inputs, timer)
        with self.executable.device.work("run"):
            return timer.times(self.plan.program.main)


MOST_PIECES = 256
"""Pieces of a program with branches that are kept ready."""


def _lent(inputs: Sequence[Any]) -> list[Borrowed]:
    """Memory of other libraries in which inputs lie."""
    return [a.memory for a in inputs if type(a) is CudaArray and type(a.memory) is Borrowed]


def _common_stream(lent: Sequence[Borrowed]) -> int | None:
    """The stream that all of this memory is of, by its number, if there is one."""
    streams = {memory.stream for memory in lent}
    return streams.pop() if len(streams) == 1 else None
