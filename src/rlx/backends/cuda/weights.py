"""Weights on a CUDA device, prepared by `prepare`. Setting one weight moves only its bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

import numpy as np

from rlx.backends.cuda.build import Plan
from rlx.backends.cuda.device import Device, Function, Memory
from rlx.backends.cuda.launches import give_apart, launches
from rlx.backends.cuda.moving import Sizes
from rlx.backends.simt_unroll import Unroller
from rlx.backends.simt_weights import affected
from rlx.ir import dim as dims
from rlx.ir.literal import Array
from rlx.kernel.ir.program import Program, buffers_used, storage_roots


class Weights:
    """One set of weights: the memory of all that `main` reads and a run does not write. It is never changed, but for
    parts of reserved weights: sets that have a weight in common share its memory.

    moved      bytes that making it took from the host
    reserved   buffers of weights that come in parts, in their place
    """

    def __init__(self, plan: Plan, device: Device, arrays: Mapping[int, Array]) -> None:
        self.plan = plan
        self.device = device
        self.arrays = dict(arrays)
        self.memory: dict[int, Memory] = {}
        self.moved = 0
        self.reserved: frozenset[int] = frozenset()
        self._copies: dict[tuple[int, Hashable], Memory] = {}

    @staticmethod
    def of(
        plan: Plan, device: Device, arrays: Mapping[int, Array], reserved: Collection[int],
        functions: Mapping[str, Function], old: Weights | None,
    ) -> Weights:  # fmt: skip
        """Weights on the device. What is the same in the `old` ones stays where it is. Call it within `Device.work`."""
        weights = Weights(plan, device, arrays)
        program, kept = plan.program, kept_buffers(plan.program)
        if old is None:
            changed, kernels = set(arrays), list(program.prepare)
        else:
            changed = {number for number, array in arrays.items() if array is not old.arrays.get(number)}
            kernels = affected(program, changed, kept.__contains__)
        written = _roots(program, (n for kernel in kernels for n in kernel.slots[: kernel.writes]))
        read = _roots(program, (n for kernel in kernels for n in kernel.slots))
        memory = {} if old is None else {n: m for n, m in old.memory.items() if n not in changed and n not in written}
        for number in sorted({*changed & kept, *read, *reserved} - memory.keys()):
            buffer = program.buffers[number]
            array = arrays.get(number)
            size = array.nbytes if array is not None else dims.evaluate(buffer.nbytes, {})
            memory[number] = device.allocate(size, f"the weight {buffer.name!r}")
            if array is not None:
                weights._bring(memory[number], 0, array)
        starts = {n: m.pointer for n, m in memory.items()}
        started = Unroller(program, starts, {}, lambda dtype: dtype.itemsize).go(kernels)
        made = launches(plan, functions, started, Sizes({}))
        give_apart(device.driver, made, device.stream)
        device.driver.synchronise(device.stream)
        weights.memory = {n: m for n, m in memory.items() if n in kept}
        weights.reserved = frozenset(reserved)
        if old is not None:
            stale = changed | written
            weights._copies = {
                key: copy for key, copy in old._copies.items() if storage_roots(program, key[0]).isdisjoint(stale)
            }
        return weights

    def copy(self, number: int, form: Hashable, make: Callable[[], Memory]) -> Memory:
        """A buffer in another form, which is made once for these weights. Call it within `Device.work`."""
        key = number, form
        if key not in self._copies:
            self._copies[key] = make()
        return self._copies[key]

    def _bring(self, memory: Memory, at: int, array: Array) -> None:
        array = np.ascontiguousarray(array)
        if array.nbytes:
            self.device.driver.copy_in(memory.pointer + at, array.ctypes.data, array.nbytes, self.device.stream)
            self.moved += array.nbytes

    def write_part(self, number: int, at: int, array: Array) -> None:
        """Brings one element of a weight along its first axis. Call it within `Device.work`."""
        self._bring(self.memory[number], at * array.nbytes, array)
        self.device.driver.synchronise(self.device.stream)

    @property
    def nbytes(self) -> int:
        return sum(memory.nbytes for memory in (*self.memory.values(), *self._copies.values()))


def kept_buffers(program: Program) -> set[int]:
    """Buffers with memory of their own that are the same in every run, and that `main` or the results need."""
    static = _roots(program, program.static_buffers())
    return static & (buffers_used(program, program.main) | _roots(program, program.outputs))


def _roots(program: Program, numbers: Iterable[int]) -> set[int]:
    return {root for number in numbers for root in storage_roots(program, number)}
