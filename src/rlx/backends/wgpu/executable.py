"""A compiled graph on a WebGPU device: pipelines, weights in heaps, and one arena for every size that runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlx.backends.executable import Bound, Capabilities, Executable, KernelTime, deliver
from rlx.backends.wgpu.build import Plan
from rlx.backends.wgpu.device import Device, translated
from rlx.backends.wgpu.layout import Arena, aligned, is_packed, place_arena, stored_bytes
from rlx.backends.wgpu.sequence import Placed, Sequenced, verify
from rlx.backends.wgpu.stopwatch import Stopwatch
from rlx.backends.wgpu.walk import Ask, Walk, depends_on_data
from rlx.codegen.simt.language.wgsl.types import PLAIN, WORD_BYTES, Target, is_narrow_float, is_wide
from rlx.errors import InputError, OutOfMemory
from rlx.ir import dim as dims
from rlx.ir.literal import Array
from rlx.kernel.ir.program import Buffer

MOST_SEQUENCES = 256
"""Pieces of a program with branches that are kept ready."""
Encode = Callable[[Sequenced, Any], None]
"""Adds the dispatches of a sequence to a command encoder."""


def upload(device: Device, buffer: Any, offset: int, array: Array) -> None:
    """Writes an array's bytes, padded to whole words."""
    if array.nbytes == 0:
        return
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if data.nbytes % WORD_BYTES:
        data = np.concatenate([data, np.zeros(-data.nbytes % WORD_BYTES, np.uint8)])
    device.raw.queue.write_buffer(buffer, offset, data)


def host_array(buffer: Buffer, shape: tuple[int, ...], raw: Any, target: Target = PLAIN) -> Array:
    """An output's bytes on the device as an array of its dtype."""
    if is_packed(buffer, target) or target.is_native(buffer.dtype):
        return np.frombuffer(raw, buffer.dtype.numpy).reshape(shape).copy()
    dtype = buffer.dtype
    if is_wide(dtype) or dtype.bits == 32:
        return np.frombuffer(raw, dtype.numpy).reshape(shape).copy()
    if is_narrow_float(dtype):
        return np.frombuffer(raw, np.float32).astype(dtype.numpy).reshape(shape)
    words = np.frombuffer(raw, np.int32 if dtype.kind == "int" else np.uint32)
    return words.astype(dtype.numpy).reshape(shape)


class Weights:
    """One set of weights on the device: the heaps of `main`, where buffers start in them, in words (or halves)."""

    def __init__(self, plan: Plan, device: Device, arrays: Mapping[int, Array]) -> None:
        self.start: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        for i, numbers in enumerate(plan.heaps.weights):
            end = 0
            for number in numbers:
                self.start[number] = end // plan.heaps.unit(1 + i)
                array = arrays.get(number)
                end += aligned(array.nbytes if array is not None else _static_bytes(plan, number))
            self.sizes[1 + i] = end
        self.heaps: dict[int, Any] = {}
        self.plan = plan
        self.device = device

    def fill(self, arrays: Mapping[int, Array], pipelines: Mapping[str, Any], old: Weights | None) -> None:
        """Uploads and runs `prepare`; heaps of `old` are taken over where they have the same size."""
        plan, device = self.plan, self.device
        heaps = {}
        for number, size in self.sizes.items():
            same = old is not None and old.sizes.get(number) == size and number in old.heaps
            heaps[number] = old.heaps[number] if same and old else device.buffer(size, "weights", "STORAGE", "COPY_SRC")
        for number, array in arrays.items():
            if number in self.start:
                heap = plan.heaps.of[number]
                upload(device, heaps[heap], self.start[number] * plan.heaps.unit(heap), array)
        if plan.prepare:
            steps = Walk(plan, self.start, {}, _nothing_to_ask).go(plan.program.prepare)
            sequence = Sequenced(device, steps, pipelines, heaps, {})
            encoder = device.raw.create_command_encoder()
            sequence.encode(encoder)
            device.raw.queue.submit([encoder.finish()])
        self.heaps = {n: b for n, b in heaps.items() if n <= len(plan.heaps.kept)}


def _nothing_to_ask(number: int, word: int) -> bool:
    """For programs in which nothing depends on data."""
    raise AssertionError(number, word)


def _static_bytes(plan: Plan, number: int) -> int:
    return dims.evaluate(stored_bytes(plan.program.buffers[number], plan.heaps.target), {})


class WgpuExecutable(Executable):
    """Runs a plan. Calls from many threads take turns: the device's queue is one.

    profile   whether its bounds tell the times of kernels. Raises ProfileError on a device that cannot.
    """

    def __init__(self, plan: Plan, device: Device, profile: bool = False) -> None:
        if profile:
            Stopwatch(device)  # the reason why not comes now
        self.plan = plan
        self.device = device
        self.timed = profile
        verify(device, plan.prepare, {})
        with device.lock:
            shaders = {step.shader.text: step.shader for step in (*plan.prepare, *plan.main)}
            self.pipelines = {text: device.pipeline(shader) for text, shader in shaders.items()}
        self._in_pieces: dict[tuple[int, ...], Plan] = {}
        self._params: dict[str, Array] = {}
        self._dirty = True
        self._weights: Weights | None = None

    def set_params(self, params: Mapping[str, Array]) -> None:
        with self.device.lock:
            self._params = {**self._params, **params}
            self._dirty = True

    def weights(self) -> Weights:
        """The weights on the device, uploaded at the first call after `set_params`. Call it under the device's lock."""
        if self._weights is None or self._dirty:
            program = self.plan.program
            names = {n: program.buffers[n].name for n in program.params}
            missing = [name for name in names.values() if name not in self._params]
            if missing:
                raise InputError(f"[run] expected params to be set, got none for {', '.join(missing)}")
            arrays = {n: self._params[name] for n, name in names.items()}
            arrays |= program.constants
            made = Weights(self.plan, self.device, arrays)
            with translated("weights"):
                made.fill(arrays, self.pipelines, self._weights)
            self._weights, self._dirty = made, False
        return self._weights

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
                made = plan.with_heaps(heaps)
                self.pipelines |= {s.shader.text: device.pipeline(s.shader) for s in made.main}
                self._in_pieces[key] = made
            return self._in_pieces[key]

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(profiling=self.timed, shared_code=True)

    @property
    def weight_bytes(self) -> int:
        return sum(self._weights.sizes[n] for n in self._weights.heaps) if self._weights else 0

    def clone(self, weights: bool = True) -> WgpuExecutable:
        """Shares pipelines; weights are uploaded once more, because those on the device change in place."""
        made = copy.copy(self)
        made._params = self._params if weights else {}
        made._weights, made._dirty = None, True
        return made

    def describe(self) -> dict[str, Any]:
        return {
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
        self.outputs = [(*self._placed(n), shape) for n, shape in zip(plan.program.outputs, shapes)]
        self.asks = depends_on_data(plan.program.main)
        self._weights: Weights | None = None
        self._sequences: dict[tuple[Placed, ...], Sequenced] = {}
        self._whole: Sequenced | None = None
        self._memory: dict[int, Any] = {}
        self._staging: Any = None

    def _placed(self, number: int) -> tuple[Buffer, int, int]:
        """A buffer, where it starts in its heap, and its length, in bytes."""
        buffer = self.plan.program.buffers[number]
        size = dims.evaluate(stored_bytes(buffer, self.plan.heaps.target), self.binding)
        unit = self.plan.heaps.unit(self.plan.heaps.of[number])
        return buffer, self.arena.start[number] * unit, size

    def _ready(self, weights: Weights) -> None:
        """Memory; what was made ready is forgotten when the weights have moved."""
        device = self.executable.device
        if not self._memory:
            outputs = sum(size for _, _, size in self._results())
            self._staging = device.buffer(max(outputs, WORD_BYTES), "outputs", "MAP_READ")
            self._memory = {
                heap: device.buffer(piece.nbytes, "arena", "STORAGE", "COPY_SRC")
                for heap, piece in self.arena.pieces.items()
            }
        if self._weights is None or self._weights.heaps != weights.heaps or self._weights.start != weights.start:
            self._sequences, self._whole = {}, None
        self._weights = weights

    def _heaps(self) -> dict[int, Any]:
        assert self._weights is not None  # `_ready` was called
        return {**self._memory, **self._weights.heaps}

    def _results(self) -> list[tuple[int, int, int]]:
        """Where outputs lie: a heap, the first of their bytes there, and how many."""
        pieces = self.arena.pieces.items()
        return [
            (heap, p.inputs_end, p.outputs_end - p.inputs_end) for heap, p in pieces if p.outputs_end > p.inputs_end
        ]

    def _walk(self, ask: Ask) -> Walk:
        assert self._weights is not None  # `_ready` was called
        return Walk(self.plan, {**self.arena.start, **self._weights.start}, self.binding, ask)

    def _sequence(self, steps: Iterable[Placed]) -> Sequenced:
        return Sequenced(self.executable.device, steps, self.executable.pipelines, self._heaps(), self.binding)

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array] | None = None) -> list[Array]:
        return deliver(self._run(inputs, Sequenced.encode), out)

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        """A call is a dispatch, each a pass of its own. What happens on the host in between is in no kernel's time."""
        if not self.executable.timed:
            return super().profile(inputs)
        stopwatch = Stopwatch(self.executable.device)
        with self.executable.device.lock, translated("profile"):
            self._run(inputs, stopwatch.encode)
            return stopwatch.times(self.plan.main)

    def _run(self, inputs: Sequence[Array], encode: Encode) -> list[Array]:
        device, main = self.executable.device, self.plan.program.main
        with device.lock, translated("run"):
            self._ready(self.executable.weights())
            self._upload(inputs)
            if self.asks:
                last = self._up_to_the_last_question(encode)
            else:
                if self._whole is None:
                    self._whole = self._sequence(self._walk(_nothing_to_ask).go(main))
                last = self._whole
            self._submit(last, self._results(), encode)
            return self._download()

    def _submit(self, sequence: Sequenced, wanted: Iterable[tuple[int, int, int]], encode: Encode) -> None:
        """Runs a sequence, then copies what is wanted, as (heap, first byte, bytes), to where the host reads it."""
        device, heaps, end = self.executable.device, self._heaps(), 0
        encoder = device.raw.create_command_encoder()
        encode(sequence, encoder)
        for heap, start, size in wanted:
            encoder.copy_buffer_to_buffer(heaps[heap], start, self._staging, end, size)
            end += size
        device.raw.queue.submit([encoder.finish()])

    def _up_to_the_last_question(self, encode: Encode) -> Sequenced:
        """Runs all that comes before the last branch or test of a loop, and gives what is left to run."""
        pending: list[Placed] = []
        plan = self.plan

        def ask(number: int, word: int) -> bool:
            self._submit(self._kept(pending), [(plan.heaps.of[number], word * WORD_BYTES, WORD_BYTES)], encode)
            pending.clear()
            with self._mapped() as whole:
                return bool(whole[0])  # a bool's word, or its byte where it lies as the host gave it

        pending.extend(self._walk(ask).go(plan.program.main))
        return self._kept(pending)

    def _kept(self, steps: Sequence[Placed]) -> Sequenced:
        key = tuple(steps)
        if key not in self._sequences:
            if len(self._sequences) >= MOST_SEQUENCES:
                self._sequences.pop(next(iter(self._sequences)))
            self._sequences[key] = self._sequence(key)
        return self._sequences[key]

    @contextmanager
    def _mapped(self) -> Iterator[Any]:
        """What was copied for the host, as bytes."""
        self.executable.device.map_for_reading(self._staging)
        try:
            yield self._staging.read_mapped(copy=False)
        finally:
            self._staging.unmap()

    def _upload(self, inputs: Sequence[Array]) -> None:
        """The inputs of each piece in one write: they lie side by side."""
        queue, of = self.executable.device.raw.queue, self.plan.heaps.of
        blocks = {heap: np.zeros(p.inputs_end, np.uint8) for heap, p in self.arena.pieces.items() if p.inputs_end}
        for number, (_, start, size), array in zip(self.plan.program.inputs, self.inputs, inputs):
            if size:
                blocks[of[number]][start : start + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for heap, block in blocks.items():
            queue.write_buffer(self._memory[heap], 0, block)

    def _download(self) -> list[Array]:
        firsts: dict[int, int] = {}
        end = 0
        for heap, start, size in self._results():
            firsts[heap] = end - start
            end += size
        if end == 0:
            return [np.zeros(shape, buffer.dtype.numpy) for buffer, _, _, shape in self.outputs]
        made = []
        with self._mapped() as whole:
            for number, (buffer, at, size, shape) in zip(self.plan.program.outputs, self.outputs):
                at += firsts.get(self.plan.heaps.of[number], 0)
                made.append(host_array(buffer, shape, whole[at : at + size], self.plan.heaps.target))
        return made
