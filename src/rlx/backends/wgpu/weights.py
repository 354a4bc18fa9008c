"""Weights on a WebGPU device: in heaps, prepared by `prepare`. Setting one weight moves only its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.backends.simt_unroll import Unroller
from rlx.backends.simt_weights import affected
from rlx.backends.wgpu.arrays import upload
from rlx.backends.wgpu.build import Plan
from rlx.backends.wgpu.device import Device, translated
from rlx.backends.wgpu.dispatches import DispatchSequence, placed
from rlx.backends.wgpu.layout import aligned, stored_bytes
from rlx.codegen.simt.language.wgsl.types import element_words
from rlx.ir import dim as dims
from rlx.ir.literal import Array
from rlx.kernel.ir.program import Kernel, storage_roots


def _static_bytes(plan: Plan, number: int) -> int:
    return dims.evaluate(stored_bytes(plan.program.buffers[number], plan.heaps.target), {})


class Weights:
    """One set of weights: the heaps of `main`, and where buffers start in them, in words (or halves). It is never
    changed: programs may share it.

    moved   bytes that making it took from the host
    """

    def __init__(self, plan: Plan, device: Device, arrays: Mapping[int, Array]) -> None:
        self.plan = plan
        self.device = device
        self.arrays = dict(arrays)
        self.start: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.heaps: dict[int, Any] = {}
        self.moved = 0
        for i, numbers in enumerate(plan.heaps.weights):
            end = 0
            for number in numbers:
                self.start[number] = end // plan.heaps.unit(1 + i)
                array = arrays.get(number)
                end += aligned(array.nbytes if array is not None else _static_bytes(plan, number))
            self.sizes[1 + i] = end

    @staticmethod
    def of(
        plan: Plan, device: Device, arrays: Mapping[int, Array], pipelines: Mapping[str, Any], old: Weights | None,
        give_up: bool,
    ) -> Weights:  # fmt: skip
        """Weights on the device. What is the same in the `old` ones is copied there, or stays in their memory where
        these are to be given up. Call it under the device's lock."""
        weights = Weights(plan, device, arrays)
        alike = old is not None and (old.start, old.sizes) == (weights.start, weights.sizes)
        with translated("weights"):
            if old is not None and alike:
                weights._update(old, pipelines, give_up)
            else:
                weights._fill(old if give_up else None, pipelines)
        return weights

    def write_part(self, number: int, at: int, array: Array) -> None:
        """Brings one element of a weight along its first axis. Call it under the device's lock."""
        heap = self.plan.heaps.of[number]
        start = self.start[number] * self.plan.heaps.unit(heap)
        upload(self.device, self.heaps[heap], start + at * array.nbytes, array)
        self.moved += array.nbytes

    @property
    def _kept(self) -> set[int]:
        return set(range(1, 1 + len(self.plan.heaps.kept)))

    def _fill(self, old: Weights | None, pipelines: Mapping[str, Any]) -> None:
        """Everything anew; heaps of the same size may be those of the old ones."""
        heaps = {
            number: old.heaps[number]
            if old is not None and old.sizes.get(number) == size and number in old.heaps
            else self._heap(size)
            for number, size in self.sizes.items()
        }
        self._run(heaps, self.arrays, self.plan.program.prepare, pipelines)

    def _update(self, old: Weights, pipelines: Mapping[str, Any], give_up: bool) -> None:
        """Only arrays that changed, and what is made of them."""
        changed = {number for number, array in self.arrays.items() if array is not old.arrays.get(number)}
        kernels = affected(self.plan.program, changed, lambda number: self.plan.heaps.of[number] in self._kept)
        heaps = {n: heap if give_up else self._heap(self.sizes[n]) for n, heap in old.heaps.items()}
        if not give_up:
            encoder = self.device.raw.create_command_encoder()
            for number, heap in old.heaps.items():
                encoder.copy_buffer_to_buffer(heap, 0, heaps[number], 0, heap.size)
            self.device.raw.queue.submit([encoder.finish()])
        needed = {n for kernel in kernels for slot in kernel.slots for n in storage_roots(self.plan.program, slot)}
        of = self.plan.heaps.of
        for number in sorted({of[n] for n in needed if n in self.start} - heaps.keys()):
            heaps[number] = self._heap(self.sizes[number])
        dropped = {n for n in needed & self.arrays.keys() if of[n] not in self._kept}
        arrays = {n: self.arrays[n] for n in self.arrays if n in dropped or (n in changed and of.get(n) in heaps)}
        self._run(heaps, arrays, kernels, pipelines)

    def _heap(self, size: int) -> Any:
        return self.device.buffer(size, "weights", "STORAGE", "COPY_SRC")

    def _run(
        self, heaps: dict[int, Any], arrays: Mapping[int, Array], kernels: list[Kernel], pipelines: Mapping[str, Any]
    ) -> None:
        """Uploads arrays, and runs kernels of `prepare`."""
        plan, device = self.plan, self.device
        for number, array in arrays.items():
            if number in self.start:
                heap = plan.heaps.of[number]
                upload(device, heaps[heap], self.start[number] * plan.heaps.unit(heap), array)
                self.moved += array.nbytes
        if kernels:
            started = Unroller(plan.program, self.start, {}, element_words).go(kernels)
            steps = [placed(plan, each) for each in started]
            sequence = DispatchSequence(device, steps, pipelines, heaps, {})
            encoder = device.raw.create_command_encoder()
            sequence.encode(encoder)
            device.raw.queue.submit([encoder.finish()])
        self.heaps = {n: b for n, b in heaps.items() if n in self._kept}
