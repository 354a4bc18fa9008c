"""Dispatches in execution order: records in one uniform buffer, bind groups, workgroups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.simt_unroll import Started
from rlx.backends.wgpu.build import Plan, Step
from rlx.backends.wgpu.device import Device, in_two_dimensions
from rlx.codegen.scalar.int_ranges import overflows
from rlx.codegen.simt.code import WORKGROUP, Shader
from rlx.errors import UnsupportedOp
from rlx.ir import dim as dims
from rlx.records import dataclass

MAX_INDEX = (1 << 31) - 1
Dispatch = tuple[Any, Any, int, tuple[int, int]]
"""A pipeline, a bind group, the place of the record, and workgroups."""


@dataclass(frozen=True)
class Placed:
    """A step, with the first word of the buffer in each of its slots."""

    step: Step
    starts: tuple[int, ...]


def placed(plan: Plan, started: Started) -> Placed:
    """What an unroller gave out, with the step of its kernel."""
    return Placed(plan.by_kernel[id(started.kernel)], started.starts)


class DispatchSequence:
    """Steps made ready for a device at known dims. Pipelines go by the text of their shader."""

    def __init__(
        self,
        device: Device,
        steps: Iterable[Placed],
        pipelines: Mapping[str, Any],
        heaps: Mapping[int, Any],
        binding: Mapping[str, int],
    ) -> None:
        self.device = device
        self.heaps = heaps
        live: list[tuple[Step, int, int]] = []
        records = bytearray()
        for placed in steps:
            shader = placed.step.shader
            positions = dims.evaluate(shader.positions, binding)
            if positions == 0:
                continue
            groups = positions if shader.team else -(-positions // WORKGROUP)
            numbers_of_shader = [dims.evaluate(d, binding) for d in shader.numbers]
            for round_ in rounds_of(shader, binding):
                records += bytes(-len(records) % device.record_alignment)
                live.append((placed.step, len(records), groups))
                numbers = (0, *placed.starts, *round_, *numbers_of_shader)
                records += np.array(numbers, np.int32).tobytes() + bytes(-len(numbers) % 4 * 4)
        self.uniform = device.buffer(len(records), "records", "UNIFORM")
        if records:
            device.raw.queue.write_buffer(self.uniform, 0, bytes(records))
        self._groups: dict[tuple[Any, ...], Any] = {}
        self.steps = [step for step, _, _ in live]
        self.dispatches: list[Dispatch] = [
            (pipelines[step.shader.text], self._group(step), at, in_two_dimensions(groups)) for step, at, groups in live
        ]

    def _group(self, step: Step) -> Any:
        """The bind group of a step; steps that bind the same share one, and bring the place of their record."""
        shader = step.shader
        size = -(-shader.record_words // 4) * 16
        key = (shader.bindings, step.heaps, size)
        if key not in self._groups:
            entries = [{"binding": 0, "resource": {"buffer": self.uniform, "offset": 0, "size": size}}]
            for number, heap in enumerate(step.heaps):
                buffer = self.heaps[heap]
                entries.append(
                    {"binding": number + 1, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
                )
            layout = self.device.layout(shader.bindings)
            self._groups[key] = self.device.raw.create_bind_group(layout=layout, entries=entries)
        return self._groups[key]

    def encode(self, encoder: Any) -> None:
        """Adds all dispatches to a command encoder, as one pass."""
        encode_pass(encoder, self.dispatches)


def encode_pass(encoder: Any, dispatches: Iterable[Dispatch], timestamps: Mapping[str, Any] | None = None) -> None:
    """Adds dispatches to a command encoder as a pass. `timestamps` say where the device notes when it ran."""
    run = encoder.begin_compute_pass(timestamp_writes=timestamps)
    last = None
    for pipeline, group, at, (x, y) in dispatches:
        if pipeline is not last:
            run.set_pipeline(pipeline)
            last = pipeline
        run.set_bind_group(0, group, [at])
        run.dispatch_workgroups(x, y)
    run.end()


def rounds_of(shader: Shader, binding: Mapping[str, int]) -> Sequence[tuple[int, ...]]:
    """What the dispatches of a shader bring beside dims; one that brings nothing where it has no rounds."""
    if shader.rounds is None:
        return [()]
    return shader.rounds.of(dims.evaluate(shader.rounds.extent, binding))


def verify(device: Device, steps: Sequence[Step], binding: Mapping[str, int]) -> None:
    """Refuses what shaders would get wrong: they count in 32 bits, and some drivers end loops that are long.

    Raises UnsupportedOp.
    """
    for step in steps:
        shader = step.shader
        numbers = [dims.evaluate(d, binding) for d in (shader.positions, *shader.numbers)]
        iterations = dims.evaluate(shader.iterations, binding)
        if any(abs(n) > MAX_INDEX for n in numbers) or any(overflows(check, binding) for check in shader.checks):
            expected = "sizes that 32-bit indices reach"
        elif iterations > device.max_iterations and numbers[0]:
            expected = f"at most {device.max_iterations} iterations, after which the driver ends loops"
        else:
            continue
        raise UnsupportedOp(
            f"[{step.kernel.name}] expected {expected}, on {device.name}, got {dict(binding)}, "
            f"at nodes {', '.join(step.kernel.sources)}"
        )
