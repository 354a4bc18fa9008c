"""A program at one size: its memory, its kernels in order, and the graphs that replay them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import interrupt
from rlx.backends.cuda.arrays import CudaArray, LateArray
from rlx.backends.cuda.blas import Chooser
from rlx.backends.cuda.branches import Branches, DecidedByHost
from rlx.backends.cuda.build import place_arena
from rlx.backends.cuda.device import SMALL_BYTES, Borrowed, Device, Event, Memory, Pinned
from rlx.backends.cuda.driver import OUT_OF_MEMORY, STICKY, CallError
from rlx.backends.cuda.launches import Given, give, launches
from rlx.backends.cuda.moving import Sizes, unread_inputs
from rlx.backends.cuda.replay import Replay
from rlx.backends.cuda.slots import Slot
from rlx.backends.cuda.timers import KernelTimer
from rlx.backends.cuda.weights import Weights
from rlx.backends.executable import Bound, KernelTime, deliver
from rlx.backends.memory import DeviceArray, LateCheck, Where, on_host
from rlx.backends.simt_unroll import Ask, Unroller, depends_on_data, nothing_to_ask
from rlx.ir import dim as dims
from rlx.ir.literal import Array
from rlx.kernel.ir.program import Buffer

if TYPE_CHECKING:
    from rlx.backends.cuda.executable import CudaExecutable


TABLES = 4
"""Runs that the device may be behind the host before the host waits."""


@dataclass(frozen=True)
class Placed:
    """An input or output: its buffer, where it starts in the arena, its bytes and its shape."""

    buffer: Buffer
    start: int
    size: int
    shape: tuple[int, ...]

    def view(self, staged: Array, first: int) -> Array:
        """It in a block of the host that begins where this place of the arena does."""
        at = self.start - first
        return staged[at : at + self.size].view(self.buffer.dtype.numpy).reshape(self.shape)


class StagedTable:
    """A table of sizes on its way to the device. Made within `Device.work`."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device = device
        self.pinned = Pinned(device, nbytes)
        self.brought = Event(device)

    def bring(self, table: Array, place: int) -> None:
        """Copies a table to the device, when the last one has gone."""
        self.brought.wait()
        self.pinned.bytes[: table.nbytes] = table.view(np.uint8)
        self.device.driver.copy_in(place, self.pinned.pointer, table.nbytes, self.device.stream)
        self.brought.record()


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
        self.nbytes = self.arena.nbytes
        self.shapes = tuple(tuple(dims.evaluate(d, self.binding) for d in of.shape) for of in self.plan.outputs)
        self.written = program.written_states()
        self._unread = unread_inputs(program)
        self.inputs = [self._placed(n, None) for n in program.inputs]
        self.outputs = [
            None if i in self.written else self._placed(n, shape)
            for i, (n, shape) in enumerate(zip(program.outputs, self.shapes))
        ]
        self._states = [(at, n) for at, n in enumerate(program.inputs) if self._is_state(n)]
        self.late = not self.written
        self.asks = depends_on_data(program.main)
        self._table = np.zeros(len(self.plan.table), np.int64)
        self._memory: Memory | None = None
        self._device: Device | None = None
        self._spare: list[Slot] = []
        """Staging for runs that overlap, of which none has it."""

    def _placed(self, number: int, shape: tuple[int, ...] | None) -> Placed:
        buffer = self.plan.program.buffers[number]
        size = 0 if number in self._unread else dims.evaluate(buffer.nbytes, self.binding)
        flat = (size // buffer.dtype.itemsize,)
        return Placed(buffer, self.arena.start.get(number, 0), size, flat if shape is None else shape)

    # memory

    def _ready(self, weights: Weights, inputs: Sequence[Any]) -> None:
        """Memory, and what was made ready for it, which is made anew when weights or states have moved."""
        device = self.executable.device
        if self._memory is None or self._device is not device:
            at = f" at {self.binding}" if self.binding else ""
            memory = device.allocate(self.arena.nbytes, f"the buffers of a run{at}")
            self._spare = []
            self._incoming = Pinned(device, self.arena.inputs_end)
            self._outgoing = Pinned(device, self.arena.outputs_end - self.arena.inputs_end)
            self._answer = Pinned(device, 1)
            wanted = self._table.size > 0
            self._tables = deque(StagedTable(device, self._table.nbytes) for _ in range(TABLES if wanted else 0))
            self._table_memory = device.allocate(self._table.nbytes, "numbers of sizes") if wanted else None
            self._replay = Replay(device)
            self._branches = Branches(device, self.plan.program, self.binding) if self.asks else None
            self._starts: dict[int, int] = {}
            self._all_from: tuple[Weights, tuple[tuple[int, int], ...]] | None = None
            self._pieces: dict[tuple[tuple[int, tuple[int, ...]], ...], list[Given]] = {}
            self._all: list[Given] | None = None
            self._memory, self._device = memory, device
        states = tuple((n, inputs[at].pointer) for at, n in self._states)
        if self._all_from == (weights, states):
            return
        base = self._memory.pointer
        self._starts = {n: base + first for n, first in self.arena.start.items()}
        self._starts |= {n: memory.pointer for n, memory in weights.memory.items()}
        self._starts |= dict(states)
        self._pieces, self._all = {}, None
        self._all_from = weights, states  # these weights' memory is in use

    def _is_state(self, number: int) -> bool:
        return self.plan.program.buffers[number].kind == "state"

    def _as_array(self, number: int, value: Any) -> Any:
        """A value as a run takes it. A state that is no array on the device yet becomes one: what a run makes of it is
        only in its results. Arrays of a device that was lost come through the host, or fail there."""
        here = isinstance(value, CudaArray) and value.owner is self.executable.device
        if here:
            return value
        if isinstance(value, DeviceArray):
            value = value.numpy()
        return CudaArray.of_host(self.executable.device, value) if self._is_state(number) else value

    def _launches(self, ask: Ask) -> Iterator[Any]:
        unroller = Unroller(self.plan.program, self._starts, self.binding, lambda dtype: dtype.itemsize, ask)
        return unroller.go(self.plan.program.main)

    def _whole(self) -> list[Given]:
        """The kernels of a program; where data decide, what a stream that notes a graph is given for them. Raises
        DecidedByHost."""
        if self._all is None:
            if self._branches is not None:
                self._all = self._branches.row(self._starts, self._made)
            else:
                self._all = self._made(self._launches(nothing_to_ask))
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
        inputs = [self._as_array(n, a) for n, a in zip(self.plan.program.inputs, inputs)]
        unsettled = self._unsettled(inputs)
        with device.work("run") as driver:
            self._ready(self.executable.weights(), inputs)
            arrays: dict[int, CudaArray] = {
                i: CudaArray.empty(device, output.buffer.dtype, output.shape, f"the output {output.buffer.name!r}")
                for i, (output, place) in enumerate(zip(self.outputs, where))
                if output is not None and place in ("device", "unchecked")
            }
            wanted = [o for o, place in zip(self.outputs, where) if o and o.size and _is_brought(o, place)]
            self._stage(inputs)
            if self._table_memory is not None:
                self._tables.rotate()
                self._tables[0].bring(self._table, self._table_memory.pointer)
            self._run_kernels(inputs, self._joined(wanted), timer)
            for i, array in arrays.items():
                output = self.outputs[i]
                if output is not None and output.size:
                    driver.copy(array.pointer, self._at(output.start), output.size, device.stream)
            if wanted or not self._lenders_wait(inputs) or timer is not None or self._stages_any(inputs):
                driver.synchronise(device.stream)
            results: dict[int, Any] = {**arrays, **self._downloaded(where)}
            for i, (output, place) in enumerate(zip(self.outputs, where)):
                if output is not None and place == "soon" and not _is_brought(output, place):
                    results[i] = LateArray(device, output.buffer.dtype, output.shape, self._at(output.start))
        if "host" in where:
            for check in unsettled:
                check.settle()
        for array in arrays.values():
            array.checks = unsettled
        return [inputs[self.written[i]] if i in self.written else results.get(i) for i in range(len(where))]

    def _unsettled(self, inputs: Sequence[Any]) -> tuple[LateCheck, ...]:
        """What is not known to hold yet of the runs that made the inputs. It is waited for before states change."""
        arrays = [a for a in inputs if isinstance(a, CudaArray) and a.checks]
        checks = {id(check): check for array in arrays for check in array.checks if not check.holds()}
        if self.written:
            for check in checks.values():
                check.settle()
        return tuple(checks.values())

    def _lenders_wait(self, inputs: Sequence[Any]) -> bool:
        """Has the streams of libraries wait whose memory was read; False where one has no stream that could."""
        streams = {lent.stream for lent in _lent(inputs)}
        for stream in streams:
            if stream is not None:
                self.executable.device.let_wait(stream)
        return None not in streams

    def _stages_any(self, inputs: Sequence[Any]) -> bool:
        """Whether anything lies in the staging of the host, which the next run writes to."""
        return any(placed.size and not isinstance(a, CudaArray) for placed, a in zip(self.inputs, inputs))

    def _at(self, place: int) -> int:
        assert self._memory is not None  # `_ready` was called
        return self._memory.pointer + place

    def _follow_lenders(self, inputs: Sequence[Any]) -> None:
        """Has the device's stream wait for those of libraries that write to what is read, once for each."""
        lent = [memory for memory in _lent(inputs) if not memory.written]
        for memory in {memory.stream: memory for memory in lent}.values():
            memory.follow()
        for memory in lent:
            memory.written = True

    def _joined(self, outputs: Sequence[Placed]) -> tuple[tuple[int, int], ...]:
        """Parts of the arena where these are, first and size: those with nothing but them between are one."""
        blocks: list[tuple[int, int]] = []
        starts = [output.start for output in self.outputs if output is not None and output.size]
        for output in sorted(outputs, key=lambda output: output.start):
            first, size = blocks[-1] if blocks else (0, 0)
            if blocks and not any(first + size <= start < output.start for start in starts):
                blocks[-1] = (first, output.start + output.size - first)
            else:
                blocks.append((output.start, output.size))
        return tuple(blocks)

    def _run_kernels(
        self, inputs: Sequence[Any], wanted: tuple[tuple[int, int], ...], timer: KernelTimer | None
    ) -> None:
        """Copies of the host's inputs, kernels, and copies of the parts of the arena that the host wants: one graph
        where the host has nothing to decide."""
        assert self._device is not None
        device, driver = self._device, self._device.driver
        blocks = self._blocks(inputs)
        self._follow_lenders(inputs)

        def move_in(stream: Any) -> None:
            for first, size in blocks:
                driver.copy_in(self._at(first), self._incoming.pointer + first, size, stream)

        def move_out(stream: Any) -> None:
            for first, size in wanted:
                host = self._outgoing.pointer + first - self.arena.inputs_end
                driver.copy_out(host, self._at(first), size, stream)

        for array, placed in self._on_device(inputs):
            driver.copy(self._at(placed.start), array.pointer, placed.size, device.stream)

        def everything(stream: Any) -> None:
            move_in(stream)
            give(driver, self._whole(), stream)
            move_out(stream)

        key = tuple(blocks), wanted
        if timer is not None:
            move_in(device.stream)
            given = self._up_to_the_last_question(timer.run) if self.asks else self._whole()
            timer.run(given)
            move_out(device.stream)
        elif not self.asks:
            self._replay.run(key, self._whole(), everything)
        elif self._device_decides(key, everything):
            self._replay.again(key)
        else:
            move_in(device.stream)
            rest = self._up_to_the_last_question(lambda piece: give(driver, piece, device.stream))
            give(driver, rest, device.stream)
            move_out(device.stream)

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

        pending.extend(self._launches(ask))
        return self._kept(pending)

    def _kept(self, started: Sequence[Any]) -> list[Given]:
        key = tuple((id(each.kernel), each.starts) for each in started)
        if key not in self._pieces:
            if len(self._pieces) >= MOST_PIECES:
                self._pieces.pop(next(iter(self._pieces)))
            self._pieces[key] = self._made(started)
        return self._pieces[key]

    # inputs and results

    def _staged(self, inputs: Sequence[Any]) -> Iterator[tuple[Placed, Array]]:
        for placed, value in zip(self.inputs, inputs):
            if placed.size and placed.buffer.kind != "state" and not isinstance(value, CudaArray):
                yield placed, value

    def _on_device(self, inputs: Sequence[Any]) -> Iterator[tuple[CudaArray, Placed]]:
        for placed, value in zip(self.inputs, inputs):
            if placed.size and placed.buffer.kind != "state" and isinstance(value, CudaArray):
                yield value, placed

    def _stage(self, inputs: Sequence[Any], staging: Pinned | None = None) -> None:
        """Copies inputs of the host to where the device takes them from."""
        block = (staging or self._incoming).bytes
        for placed, value in self._staged(inputs):
            np.copyto(placed.view(block, 0), np.reshape(value, -1))

    def _blocks(self, inputs: Sequence[Any]) -> list[tuple[int, int]]:
        """Parts of the arena that the host's inputs are in: neighbours are moved in one go."""
        blocks: list[tuple[int, int]] = []
        ends = sorted(placed.start for placed in self.inputs if placed.size and placed.buffer.kind != "state")
        for placed, _ in self._staged(inputs):
            if blocks and all(not blocks[-1][0] + blocks[-1][1] <= start < placed.start for start in ends):
                first, _size = blocks.pop()
                blocks.append((first, placed.start + placed.size - first))
            else:
                blocks.append((placed.start, placed.size))
        return blocks

    def _downloaded(self, where: Sequence[Where], staging: Pinned | None = None) -> dict[int, Array]:
        """Results for the host by their places."""
        block = (staging or self._outgoing).bytes
        return {
            i: output.view(block, self.arena.inputs_end).copy() if output.size else _empty(output)
            for i, (output, place) in enumerate(zip(self.outputs, where))
            if output is not None and _is_brought(output, place)
        }

    # pipelined runs and profiles

    def begin(self, inputs: Sequence[Any]) -> Callable[[], list[Array]] | None:
        """Runs follow one another on the device, each with staging of its own: the next one's inputs come, and the
        last one's results go, while kernels run. Where the host decides, they take turns."""
        if self.written:
            return None
        self.executable.renew()
        device = self.executable.device
        inputs = [self._as_array(n, a) for n, a in zip(self.plan.program.inputs, inputs)]
        unsettled = self._unsettled(inputs)
        where: list[Where] = ["host"] * len(self.outputs)
        with device.work("run") as driver:
            self._ready(self.executable.weights(), inputs)

            def kernels(stream: Any) -> None:
                give(driver, self._whole(), stream)

            if self.asks and not self._device_decides("kernels", kernels):
                return None
            slot = self._spare.pop() if self._spare else Slot(device, self.arena)
            slot.held = inputs
            self._stage(inputs, slot.incoming)
            slot.bring(self._blocks(inputs), self._at(0))
            self._follow_lenders(inputs)
            for array, placed in self._on_device(inputs):
                driver.copy(self._at(placed.start), array.pointer, placed.size, device.stream)
            if self.asks:
                self._replay.again("kernels")
            else:
                self._replay.run("kernels", self._whole(), kernels)
            slot.fetch(self._at(self.arena.inputs_end))

        def end() -> list[Array]:
            with self._of_run(device):
                slot.wait()
            for check in unsettled:
                check.settle()
            results = self._downloaded(where, slot.outgoing)
            slot.held = ()
            self._spare.append(slot)
            return [results[i] for i in range(len(where))]

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


def _is_brought(output: Placed, place: Where) -> bool:
    """Whether a result comes to the host with the run."""
    return place == "host" or (place == "soon" and output.size > SMALL_BYTES)


def _lent(inputs: Sequence[Any]) -> list[Borrowed]:
    """Memory of other libraries in which inputs lie."""
    return [a.memory for a in inputs if isinstance(a, CudaArray) and isinstance(a.memory, Borrowed)]


def _empty(output: Placed) -> Array:
    return np.zeros(output.shape, output.buffer.dtype.numpy)
