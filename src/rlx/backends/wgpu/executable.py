"""A compiled graph on a WebGPU device: pipelines, weights in heaps, and one arena for every size that runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np

from rlx.backends.executable import Bound, Capabilities, Executable, KernelTime, deliver
from rlx.backends.memory import DeviceArray, Where, on_host
from rlx.backends.simt_unroll import Ask, Unroller, depends_on_data, nothing_to_ask
from rlx.backends.wgpu.arrays import WgpuArray, from_stored, lies_as_host, words_of
from rlx.backends.wgpu.build import Plan
from rlx.backends.wgpu.device import Device, translated
from rlx.backends.wgpu.dispatches import DispatchSequence, Placed, placed, verify
from rlx.backends.wgpu.layout import Arena, place_arena, stored_bytes
from rlx.backends.wgpu.timers import KernelTimer
from rlx.backends.wgpu.weights import Weights
from rlx.codegen.simt.language.wgsl.types import WORD_BYTES, element_words
from rlx.errors import InputError, OutOfMemory
from rlx.ir import dim as dims
from rlx.ir.literal import Array
from rlx.kernel.ir.program import Buffer, buffers_used
from rlx.records import dataclass

MOST_SEQUENCES = 256
"""Pieces of a program with branches that are kept ready."""
Encode = Callable[[DispatchSequence, Any], None]
"""Adds the dispatches of a sequence to a command encoder."""


class WgpuExecutable(Executable):
    """Runs a plan. Calls from many threads take turns: the device's queue is one.

    profile   whether its bounds tell the times of kernels. Raises ProfileError on a device that cannot.
    """

    def __init__(self, plan: Plan, device: Device, profile: bool = False) -> None:
        if profile:
            KernelTimer(device)  # the reason why not comes now
        self.plan = plan
        self.device = device
        self.timed = profile
        verify(device, plan.prepare, {})
        with device.lock:
            shaders = {step.shader.text: step.shader for step in (*plan.prepare, *plan.main)}
            self.pipelines = {text: device.pipeline(shader) for text, shader in shaders.items()}
        self._in_pieces: dict[tuple[int, ...], Plan] = {}
        self._params: dict[str, Array] = {}
        self._reserved: frozenset[str] = frozenset()
        self._dirty = True
        self._weights: Weights | None = None
        self._shares = False  # its weights, with a clone

    def set_params(self, params: Mapping[str, Array]) -> None:
        with self.device.lock:
            self._params = {**self._params, **params}
            self._dirty = True

    def weights(self) -> Weights:
        """The weights on the device, uploaded at the first call after `set_params`. Call it under the device's lock."""
        if self._weights is None or self._dirty:
            program = self.plan.program
            names = {n: program.buffers[n].name for n in program.params}
            names = {n: name for n, name in names.items() if name not in self._reserved}
            missing = [name for name in names.values() if name not in self._params]
            if missing:
                raise InputError(f"[run] expected params to be set, got none for {', '.join(missing)}")
            arrays = {n: self._params[name] for n, name in names.items()}
            arrays |= program.constants
            old, give_up = self._weights, not self._shares
            self._weights = Weights.of(self.plan, self.device, arrays, self.pipelines, old, give_up)
            self._dirty = self._shares = False
        return self._weights

    def reserve(self, name: str) -> bool:
        if self._number(name) in buffers_used(self.plan.program, self.plan.program.prepare):
            return False
        self._reserved |= {name}
        return True

    def _number(self, name: str) -> int:
        return next(n for n in self.plan.program.params if self.plan.program.buffers[n].name == name)

    def write_part(self, name: str, at: int, array: Array) -> None:
        number = self._number(name)
        with self.device.lock, translated("weights"):
            self.weights().write_part(number, at, array)

    def give_back(self) -> None:
        with self.device.lock:
            self._weights, self._dirty, self._shares = None, True, False

    @property
    def place(self) -> object:
        return self.device

    @property
    def writes_states(self) -> bool:
        return bool(self.plan.program.written_states())

    def put(self, name: str, array: Array) -> Array | DeviceArray:
        program = self.plan.program
        (number,) = (n for n in program.inputs if program.buffers[n].name == name)
        return WgpuArray.of_host(self.device, array, lies_as_host(program.buffers[number], self.plan.heaps.target))

    def bind(self, binding: Mapping[str, int]) -> Bound:
        known = {s: binding[s] for s in self.plan.program.symbols}
        return WgpuBound(self, self._fitting(known), known)

    def _fitting(self, binding: Mapping[str, int]) -> Plan:
        """The plan, or one whose arena lies in more pieces, where it is too large for one at these dims."""
        plan, device = self.plan, self.device
        heaps = plan.fitting(binding, device.max_binding)
        if heaps is plan.heaps:
            return plan
        key = tuple(heaps.of.values())
        with device.lock:
            if key not in self._in_pieces:
                divided = plan.with_heaps(heaps)
                self.pipelines |= {s.shader.text: device.pipeline(s.shader) for s in divided.main}
                self._in_pieces[key] = divided
            return self._in_pieces[key]

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(profiling=self.timed, shared_code=True)

    @property
    def weight_bytes(self) -> int:
        return sum(self._weights.sizes[n] for n in self._weights.heaps) if self._weights else 0

    def clone(self, weights: bool = True) -> WgpuExecutable:
        """Shares pipelines, and the weights on the device until one of the two gets others."""
        with self.device.lock:
            clone = copy.copy(self)
            if weights:
                clone._shares = self._shares = self._weights is not None
            else:
                clone._params, clone._weights, clone._dirty, clone._shares = {}, None, True, False
            return clone

    def describe(self) -> dict[str, Any]:
        program = self.plan.program
        return {
            "written_in_place": [program.buffers[program.inputs[at]].name for at in program.written_states().values()],
            "adapter": self.device.name,
            "kernels": len(self.plan.main),
            "prepare_kernels": len(self.plan.prepare),
            "pipelines": len(self.pipelines),
            "weight_bytes": self.weight_bytes,
        }


class WgpuBound(Bound):
    """The executable at one size, with an arena of its own, made at the first call."""

    def __init__(self, executable: WgpuExecutable, plan: Plan, binding: Mapping[str, int]) -> None:
        self.executable = executable
        self.plan = plan
        self.binding = dict(binding)
        device = executable.device
        self.arena: Arena = place_arena(plan.program, plan.memory, plan.heaps, binding)
        self.nbytes = self.arena.nbytes
        if self.arena.largest > device.max_binding:
            raise OutOfMemory(
                f"[run] expected buffers of at most {device.max_binding} bytes (what one binding of {device.name} "
                f"takes), got {self.arena.largest} for {self.binding}"
            )
        verify(device, plan.main, binding)
        shapes = tuple(tuple(dims.evaluate(d, binding) for d in of.shape) for of in plan.outputs)
        self.shapes = shapes
        self.inputs = [self._placed(n) for n in plan.program.inputs]
        self.written = plan.program.written_states()
        self.outputs = [
            _Output(n, *self._placed(n), shape) if i not in self.written else None
            for i, (n, shape) in enumerate(zip(plan.program.outputs, shapes))
        ]
        self.asks = depends_on_data(plan.program.main)
        self._weights: Weights | None = None
        self._sequences: dict[tuple[Placed, ...], DispatchSequence] = {}
        self._whole: DispatchSequence | None = None
        self._memory: dict[int, Any] = {}
        self._states: dict[int, Any] = {}
        self._staging: Any = None
        self._spare: list[Any] = []
        """Buffers like `_staging` that no run has."""

    def _placed(self, number: int) -> tuple[Buffer, int, int]:
        """A buffer, where it starts in its heap, and its length, in bytes."""
        buffer = self.plan.program.buffers[number]
        size = dims.evaluate(stored_bytes(buffer, self.plan.heaps.target), self.binding)
        unit = self.plan.heaps.unit(self.plan.heaps.of[number])
        return buffer, self.arena.start[number] * unit, size

    def _ready(self, weights: Weights, inputs: Sequence[Any]) -> None:
        """Memory; what was made ready is forgotten when weights or states have moved."""
        device = self.executable.device
        if not self._memory:
            self._staging = self._new_staging()
            self._memory = {
                heap: device.buffer(piece.nbytes, "arena", "STORAGE", "COPY_SRC")
                for heap, piece in self.arena.pieces.items()
            }
        numbers = zip(self.plan.program.inputs, inputs)
        states = {self.plan.heaps.of[n]: array.buffer for n, array in numbers if self._is_state(n)}
        old = self._weights
        if old is None or old.heaps != weights.heaps or old.start != weights.start or states != self._states:
            self._sequences, self._whole = {}, None
        self._weights, self._states = weights, states

    def _new_staging(self) -> Any:
        """A buffer from which the host reads all outputs."""
        size = sum(size for _, _, size in self._regions(["host"] * len(self.outputs)))
        return self.executable.device.buffer(max(size, WORD_BYTES), "outputs", "MAP_READ")

    def _as_state(self, array: Any) -> WgpuArray:
        """A state that is no array on the device yet: what a run makes of it is only in its results."""
        return array if isinstance(array, WgpuArray) else WgpuArray.of_host(self.executable.device, array, False)

    def _is_state(self, number: int) -> bool:
        return self.plan.program.buffers[number].kind == "state"

    def _heaps(self) -> dict[int, Any]:
        assert self._weights is not None  # `_ready` was called
        return {**self._memory, **self._weights.heaps, **self._states}

    def _regions(self, where: Sequence[Where]) -> list[Region]:
        """Where outputs lie that are wanted on the host. They lie side by side, so all of them are few regions."""
        listed = [(output, place) for output, place in zip(self.outputs, where) if output is not None]
        if all(place == "host" for _, place in listed):
            pieces = self.arena.pieces.items()
            return [
                (heap, p.inputs_end, p.outputs_end - p.inputs_end) for heap, p in pieces if p.outputs_end > p.inputs_end
            ]
        of = self.plan.heaps.of
        return [(of[o.number], o.start, words_of(o.size)) for o, place in listed if place == "host" and o.size]

    def _unroller(self, ask: Ask) -> Unroller:
        assert self._weights is not None  # `_ready` was called
        starts = {**self.arena.start, **self._weights.start}
        return Unroller(self.plan.program, starts, self.binding, element_words, ask)

    def _sequence(self, steps: Iterable[Placed]) -> DispatchSequence:
        return DispatchSequence(self.executable.device, steps, self.executable.pipelines, self._heaps(), self.binding)

    def __call__(self, inputs: Sequence[Any], out: Sequence[Array | None] | None = None) -> list[Array]:
        return deliver(on_host(self._run(["host"] * len(self.outputs), inputs, DispatchSequence.encode)), out)

    def deliver_to(
        self, where: Sequence[Where], inputs: Sequence[Any], out: Sequence[Array | None] | None = None
    ) -> list[Any]:
        results = self._run(where, inputs, DispatchSequence.encode)
        if out is None:
            return results
        return [result if buffer is None else deliver([result], [buffer])[0] for result, buffer in zip(results, out)]

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        """A call is a dispatch, each a pass of its own. What happens on the host in between is in no kernel's time."""
        if not self.executable.timed:
            return super().profile(inputs)
        timer = KernelTimer(self.executable.device)
        with self.executable.device.lock, translated("profile"):
            self._run(["host"] * len(self.outputs), inputs, timer.encode)
            return timer.times(self.plan.main)

    def _run(self, where: Sequence[Where], inputs: Sequence[Any], encode: Encode) -> list[Any]:
        device, numbers = self.executable.device, self.plan.program.inputs
        inputs = [self._as_state(a) if self._is_state(n) else a for n, a in zip(numbers, inputs)]
        with device.lock, translated("run"):
            self._ready(self.executable.weights(), inputs)
            copies = self._upload(inputs)
            staying = [i for i, place in enumerate(where) if place == "device" and i not in self.written]
            arrays = {i: self._array(self.outputs[i]) for i in staying}
            regions = self._regions(where)
            if self.asks:
                if copies:
                    self._submit(None, copies, encode)
                last, copies = self._up_to_the_last_question(encode), []
            else:
                last = self._all()
            stays = [self._copy_out(self.outputs[i], array) for i, array in arrays.items()]
            self._submit(last, copies, encode, [*stays, *self._to_staging(regions, self._staging)])
            with self._mapped(sum(size for _, _, size in regions)) as whole:
                results = {**arrays, **self._downloaded(where, regions, whole)}
        return [inputs[self.written[i]] if i in self.written else results.get(i) for i in range(len(where))]

    def begin(self, inputs: Sequence[Any]) -> Callable[[], list[Array]] | None:
        """The device works through runs in the order of their submissions, each with its own buffer for results: the
        host brings the inputs of the next run, and reads the results of the last one, meanwhile."""
        if self.asks or self.written:
            return None
        device = self.executable.device
        where: list[Where] = ["host"] * len(self.outputs)
        with device.lock, translated("run"):
            self._ready(self.executable.weights(), inputs)
            staging = self._spare.pop() if self._spare else self._new_staging()
            regions = self._regions(where)
            copies = self._upload(inputs)
            self._submit(self._all(), copies, DispatchSequence.encode, self._to_staging(regions, staging))
            size = sum(size for _, _, size in regions)
            mapping = device.begin_mapping(staging) if size else None

        def end() -> list[Array]:
            with translated("run"):
                if mapping is not None:
                    mapping.sync_wait()
                whole = staging.read_mapped(0, size, copy=False) if size else None
                results = self._downloaded(where, regions, whole)
                if mapping is not None:
                    staging.unmap()
                self._spare.append(staging)
            return [results[i] for i in range(len(where))]

        return end

    def _all(self) -> DispatchSequence:
        """The whole program, of one without branches."""
        if self._whole is None:
            all_started = self._unroller(nothing_to_ask).go(self.plan.program.main)
            self._whole = self._sequence(placed(self.plan, started) for started in all_started)
        return self._whole

    def _array(self, output: _Output | None) -> WgpuArray:
        """An array for an output that stays on the device."""
        assert output is not None  # others are states
        as_host = lies_as_host(output.buffer, self.plan.heaps.target)
        return WgpuArray(self.executable.device, output.buffer.dtype, output.shape, as_host)

    def _copy_out(self, output: _Output | None, array: WgpuArray) -> Copy:
        assert output is not None  # others are no arrays of their own
        return self._heaps()[self.plan.heaps.of[output.number]], output.start, array.buffer, 0, words_of(output.size)

    def _to_staging(self, regions: Iterable[Region], staging: Any) -> list[Copy]:
        """Copies of regions to where the host reads them."""
        copies: list[Copy] = []
        heaps, end = self._heaps(), 0
        for heap, start, size in regions:
            copies.append((heaps[heap], start, staging, end, size))
            end += size
        return copies

    def _submit(
        self, sequence: DispatchSequence | None, before: Iterable[Copy], encode: Encode, behind: Iterable[Copy] = ()
    ) -> None:
        """Copies on the device, then a sequence, then more copies."""
        device = self.executable.device
        encoder = device.raw.create_command_encoder()
        for copy_ in before:
            _encode_copy(encoder, copy_)
        if sequence is not None:
            encode(sequence, encoder)
        for copy_ in behind:
            _encode_copy(encoder, copy_)
        device.raw.queue.submit([encoder.finish()])

    def _up_to_the_last_question(self, encode: Encode) -> DispatchSequence:
        """Runs all that comes before the last branch or test of a loop, and gives what is left to run."""
        pending: list[Placed] = []
        plan = self.plan

        def ask(number: int, word: int) -> bool:
            regions = self._to_staging([(plan.heaps.of[number], word * WORD_BYTES, WORD_BYTES)], self._staging)
            self._submit(self._kept(pending), (), encode, regions)
            pending.clear()
            with self._mapped(WORD_BYTES) as whole:
                return bool(whole[0])  # a bool's word, or its byte where it lies as the host gave it

        for started in self._unroller(ask).go(plan.program.main):
            pending.append(placed(plan, started))
        return self._kept(pending)

    def _kept(self, steps: Sequence[Placed]) -> DispatchSequence:
        key = tuple(steps)
        if key not in self._sequences:
            if len(self._sequences) >= MOST_SEQUENCES:
                self._sequences.pop(next(iter(self._sequences)))
            self._sequences[key] = self._sequence(key)
        return self._sequences[key]

    @contextmanager
    def _mapped(self, size: int) -> Iterator[Any]:
        """What was copied for the host, as so many bytes; None where there are none."""
        if not size:
            yield None
            return
        self.executable.device.begin_mapping(self._staging).sync_wait()
        try:
            yield self._staging.read_mapped(0, size, copy=False)
        finally:
            self._staging.unmap()

    def _upload(self, inputs: Sequence[Any]) -> list[Copy]:
        """Writes inputs of the host, neighbours at once; gives the copies that bring those which are on the device."""
        queue, of = self.executable.device.raw.queue, self.plan.heaps.of
        copies: list[Copy] = []
        rows: list[_Row] = []
        latest: dict[int, _Row | None] = {}
        for number, (buffer, start, size), value in zip(self.plan.program.inputs, self.inputs, inputs):
            heap = of[number]
            if not size or buffer.kind == "state":
                continue
            if isinstance(value, WgpuArray):
                fitting = value.lying(lies_as_host(buffer, self.plan.heaps.target))
                copies.append((fitting.buffer, 0, self._memory[heap], start, words_of(size)))
                latest[heap] = None
                continue
            row = latest.get(heap)
            if row is None:
                row = latest[heap] = _Row(heap, start)
                rows.append(row)
            row.parts.append((start, size, value))
        for row in rows:
            queue.write_buffer(self._memory[row.heap], row.start, row.block())
        return copies

    def _downloaded(self, where: Sequence[Where], regions: Sequence[Region], whole: Any) -> dict[int, Array]:
        """Results for the host by their places, of the regions that were copied for it, one behind the other."""
        target, of = self.plan.heaps.target, self.plan.heaps.of
        results = {}
        for i, (output, place) in enumerate(zip(self.outputs, where)):
            if output is None or place != "host":
                continue
            if not output.size:
                results[i] = np.zeros(output.shape, output.buffer.dtype.numpy)
                continue
            at = _offset_in(regions, of[output.number], output.start)
            raw = whole[at : at + output.size]
            results[i] = from_stored(output.buffer.dtype, output.shape, raw, lies_as_host(output.buffer, target))
        return results


Region = tuple[int, int, int]
"""A heap, the first of the bytes there, and how many."""
Copy = tuple[Any, int, Any, int, int]
"""A buffer and a place in it, another and a place in it, and how many bytes are copied from the one to the other."""


@dataclass(frozen=True)
class _Output:
    """An output in the arena: its buffer, by its number too, where it starts in its heap, its bytes, its shape."""

    number: int
    buffer: Buffer
    start: int
    size: int
    shape: tuple[int, ...]


@dataclass
class _Row:
    """Inputs of the host that lie side by side in a heap: where each starts, its bytes, and the array."""

    heap: int
    start: int
    parts: list[tuple[int, int, Array]] = field(default_factory=list)

    def block(self) -> Array:
        """All of them as one."""
        last, size, _ = self.parts[-1]
        block = np.zeros(words_of(last + size - self.start), np.uint8)
        for start, size, array in self.parts:
            at = start - self.start
            block[at : at + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return block


def _encode_copy(encoder: Any, copy_: Copy) -> None:
    source, start, target, end, size = copy_
    if size:
        encoder.copy_buffer_to_buffer(source, start, target, end, size)


def _offset_in(regions: Sequence[Region], heap: int, place: int) -> int:
    """Where a place in a heap lies among the regions, one behind the other."""
    end = 0
    for number, start, size in regions:
        if number == heap and start <= place < start + size:
            return end + place - start
        end += size
    raise AssertionError(heap, place)
