"""A compiled graph on a WebGPU device: pipelines, weights in heaps, and one arena for every size that runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.base import Bound, Capabilities, Executable, deliver
from rlx.backends.wgpu.build import Plan, Step
from rlx.backends.wgpu.device import Device, in_two_dimensions, translated
from rlx.backends.wgpu.layout import ARENA, Arena, aligned, is_packed, place_arena, stored_bytes
from rlx.errors import InputError, OutOfMemory, UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir.literal import Array
from rlx.kernel.nest import Buffer
from rlx.kernel.wgsl.code import WORKGROUP
from rlx.kernel.wgsl.ranges import overflows
from rlx.kernel.wgsl.types import WORD_BYTES, is_narrow_float, is_wide

MAX_INDEX = (1 << 31) - 1


class Sequenced:
    """Steps made ready for a device at known dims: their records in one uniform buffer, bind groups, workgroups."""

    def __init__(
        self,
        device: Device,
        steps: Sequence[Step],
        pipelines: Sequence[Any],
        starts: Mapping[int, int],
        heaps: Mapping[int, Any],
        binding: Mapping[str, int],
    ) -> None:
        self.device = device
        live: list[tuple[Step, Any, int, int]] = []
        records = bytearray()
        for step, pipeline in zip(steps, pipelines):
            positions = dims.evaluate(step.shader.positions, binding)
            if positions == 0:
                continue
            numbers = [0, *(starts[n] for n in step.kernel.slots)]
            numbers += [dims.evaluate(d, binding) for d in step.shader.numbers]
            records += bytes(-len(records) % device.record_alignment)
            live.append((step, pipeline, len(records), positions if step.shader.team else -(-positions // WORKGROUP)))
            records += np.array(numbers, np.int32).tobytes() + bytes(-len(numbers) % 4 * 4)
        self.uniform = device.buffer(len(records), "records", "UNIFORM")
        if records:
            device.raw.queue.write_buffer(self.uniform, 0, bytes(records))
        self.dispatches = [
            (pipeline, self._group(step, heaps, at), in_two_dimensions(groups)) for step, pipeline, at, groups in live
        ]

    def _group(self, step: Step, heaps: Mapping[int, Any], at: int) -> Any:
        shader = step.shader
        size = -(-(1 + shader.slots + len(shader.numbers)) // 4) * 16
        entries = [{"binding": 0, "resource": {"buffer": self.uniform, "offset": at, "size": size}}]
        for number, heap in enumerate(step.heaps):
            buffer = heaps[heap]
            entries.append({"binding": number + 1, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}})
        return self.device.raw.create_bind_group(layout=self.device.layout(shader.bindings), entries=entries)

    def encode(self, encoder: Any) -> None:
        """Adds all dispatches to a command encoder, as one pass."""
        run = encoder.begin_compute_pass()
        last = None
        for pipeline, group, (x, y) in self.dispatches:
            if pipeline is not last:
                run.set_pipeline(pipeline)
                last = pipeline
            run.set_bind_group(0, group)
            run.dispatch_workgroups(x, y)
        run.end()


def verify(device: Device, steps: Sequence[Step], binding: Mapping[str, int]) -> None:
    """Refuses what shaders would get wrong: they count in 32 bits, and some drivers end loops that are long.

    Raises UnsupportedOp.
    """
    for step in steps:
        shader = step.shader
        numbers = [dims.evaluate(d, binding) for d in (shader.positions, *shader.numbers)]
        iterations = dims.evaluate(shader.iterations, binding)
        if any(abs(n) > MAX_INDEX for n in numbers) or any(overflows(check, binding) for check in shader.checks):
            wanted = "sizes that 32-bit indices reach"
        elif iterations > device.max_iterations and numbers[0]:
            wanted = f"at most {device.max_iterations} iterations, after which the driver ends loops"
        else:
            continue
        raise UnsupportedOp(
            f"[{step.kernel.name}] expected {wanted}, on {device.name}, got {dict(binding)}, "
            f"at nodes {', '.join(step.kernel.sources)}"
        )


def upload(device: Device, buffer: Any, offset: int, array: Array) -> None:
    """Writes an array's bytes, padded to whole words."""
    if array.nbytes == 0:
        return
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if data.nbytes % WORD_BYTES:
        data = np.concatenate([data, np.zeros(-data.nbytes % WORD_BYTES, np.uint8)])
    device.raw.queue.write_buffer(buffer, offset, data)


def host_array(buffer: Buffer, shape: tuple[int, ...], raw: Any) -> Array:
    """An output's bytes on the device as an array of its dtype."""
    if is_packed(buffer):
        return np.frombuffer(raw, buffer.dtype.numpy).reshape(shape).copy()
    dtype = buffer.dtype
    if is_wide(dtype) or dtype.bits == 32:
        return np.frombuffer(raw, dtype.numpy).reshape(shape).copy()
    if is_narrow_float(dtype):
        return np.frombuffer(raw, np.float32).astype(dtype.numpy).reshape(shape)
    words = np.frombuffer(raw, np.int32 if dtype.kind == "int" else np.uint32)
    return words.astype(dtype.numpy).reshape(shape)


class Weights:
    """One set of weights on the device: heaps that `main` reads, and where buffers start in them, in words."""

    def __init__(self, plan: Plan, device: Device, arrays: Mapping[int, Array]) -> None:
        self.start: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        for i, numbers in enumerate(plan.heaps.weights):
            end = 0
            for number in numbers:
                self.start[number] = end // WORD_BYTES
                array = arrays.get(number)
                end += aligned(array.nbytes if array is not None else _static_bytes(plan, number))
            self.sizes[1 + i] = end
        self.heaps: dict[int, Any] = {}
        self.plan = plan
        self.device = device

    def fill(self, arrays: Mapping[int, Array], prepare: Sequence[Any], old: Weights | None) -> None:
        """Uploads and runs `prepare`; heaps of `old` are taken over where they have the same size."""
        plan, device = self.plan, self.device
        heaps = {}
        for number, size in self.sizes.items():
            same = old is not None and old.sizes.get(number) == size and number in old.heaps
            heaps[number] = old.heaps[number] if same and old else device.buffer(size, "weights", "STORAGE")
        for number, array in arrays.items():
            if number in self.start:
                upload(device, heaps[plan.heaps.of[number]], self.start[number] * WORD_BYTES, array)
        if plan.prepare:
            sequence = Sequenced(device, plan.prepare, prepare, self.start, heaps, {})
            encoder = device.raw.create_command_encoder()
            sequence.encode(encoder)
            device.raw.queue.submit([encoder.finish()])
        self.heaps = {n: b for n, b in heaps.items() if n <= len(plan.heaps.kept)}


def _static_bytes(plan: Plan, number: int) -> int:
    return dims.evaluate(stored_bytes(plan.program.buffers[number]), {})


class WgpuExecutable(Executable):
    """Runs a plan. Calls from many threads take turns: the device's queue is one."""

    def __init__(self, plan: Plan, device: Device) -> None:
        self.plan = plan
        self.device = device
        verify(device, plan.prepare, {})
        with device.lock:
            self.prepare = [device.pipeline(step.shader) for step in plan.prepare]
            self.main = [device.pipeline(step.shader) for step in plan.main]
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
                made.fill(arrays, self.prepare, self._weights)
            self._weights, self._dirty = made, False
        return self._weights

    def bind(self, binding: Mapping[str, int]) -> Bound:
        return WgpuBound(self, {s: binding[s] for s in self.plan.program.symbols})

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(shared_code=True)

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
        shaders = {s.shader.text for s in (*self.plan.prepare, *self.plan.main)}
        return {
            "adapter": self.device.name,
            "kernels": len(self.plan.main),
            "prepare_kernels": len(self.plan.prepare),
            "pipelines": len(shaders),
            "weight_bytes": self.weight_bytes,
        }


class WgpuBound(Bound):
    """The executable at one size, with an arena of its own, made at the first call."""

    def __init__(self, executable: WgpuExecutable, binding: Mapping[str, int]) -> None:
        self.executable = executable
        self.binding = dict(binding)
        plan, device = executable.plan, executable.device
        self.arena: Arena = place_arena(plan.program, plan.memory, binding)
        self.nbytes = self.arena.nbytes
        if self.nbytes > device.max_binding:
            raise OutOfMemory(
                f"[run] expected an arena of at most {device.max_binding} bytes (what one binding of {device.name} "
                f"takes), got {self.nbytes} for {self.binding}"
            )
        verify(device, plan.main, binding)
        shapes = tuple(tuple(dims.evaluate(d, binding) for d in of.shape) for of in plan.outputs)
        self.shapes = shapes
        self.inputs = [self._placed(n) for n in plan.program.inputs]
        self.outputs = [(*self._placed(n), shape) for n, shape in zip(plan.program.outputs, shapes)]
        self._weights: Weights | None = None
        self._sequence: Sequenced | None = None
        self._memory: Any = None
        self._staging: Any = None

    def _placed(self, number: int) -> tuple[Buffer, int, int]:
        """A buffer, where it starts in the arena, and its length, in bytes."""
        buffer = self.executable.plan.program.buffers[number]
        size = dims.evaluate(stored_bytes(buffer), self.binding)
        return buffer, self.arena.start[number] * WORD_BYTES, size

    def _ready(self, weights: Weights) -> Sequenced:
        """Memory, records and bind groups; made anew when the weights have moved."""
        device, plan = self.executable.device, self.executable.plan
        if self._memory is None:
            self._memory = device.buffer(self.arena.nbytes, "arena", "STORAGE", "COPY_SRC")
            outputs = self.arena.outputs_end - self.arena.inputs_end
            self._staging = device.buffer(outputs, "outputs", "MAP_READ")
        moved = self._weights is None or self._weights.heaps != weights.heaps or self._weights.start != weights.start
        if self._sequence is None or moved:
            starts = {**self.arena.start, **weights.start}
            heaps = {ARENA: self._memory, **weights.heaps}
            self._sequence = Sequenced(device, plan.main, self.executable.main, starts, heaps, self.binding)
        self._weights = weights
        return self._sequence

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array] | None = None) -> list[Array]:
        device = self.executable.device
        with device.lock, translated("run"):
            sequence = self._ready(self.executable.weights())
            self._upload(inputs)
            encoder = device.raw.create_command_encoder()
            sequence.encode(encoder)
            start, size = self.arena.inputs_end, self.arena.outputs_end - self.arena.inputs_end
            if size:
                encoder.copy_buffer_to_buffer(self._memory, start, self._staging, 0, size)
            device.raw.queue.submit([encoder.finish()])
            return deliver(self._download(size), out)

    def _upload(self, inputs: Sequence[Array]) -> None:
        """All inputs in one write: they lie side by side."""
        if not self.arena.inputs_end:
            return
        block = np.zeros(self.arena.inputs_end, np.uint8)
        for (_, start, size), array in zip(self.inputs, inputs):
            block[start : start + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.executable.device.raw.queue.write_buffer(self._memory, 0, block)

    def _download(self, size: int) -> list[Array]:
        if size == 0:
            return [np.zeros(shape, buffer.dtype.numpy) for buffer, _, _, shape in self.outputs]
        staging = self._staging
        staging.map_sync(self.executable.device.wgpu.MapMode.READ)
        try:
            whole = staging.read_mapped(copy=False)
            first = self.arena.inputs_end
            return [host_array(b, shape, whole[at - first : at - first + n]) for b, at, n, shape in self.outputs]
        finally:
            staging.unmap()
