"""Kernels in the order in which they run, with their arguments made ready: pointers, and numbers of dims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.backends.cuda.build import Plan
from rlx.backends.cuda.device import Function
from rlx.backends.cuda.driver import Driver
from rlx.backends.simt_unroll import Started
from rlx.codegen.simt.code import Shader
from rlx.errors import UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir.literal import Array
from rlx.kernel.ir.program import Kernel

MOST_BLOCKS = (1 << 31) - 1
POINTER_BYTES = 8


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel. `arguments` points to pointers to the arguments, which lie in `held`."""

    kernel: Kernel
    function: Function
    blocks: int
    lanes: int
    arguments: int
    held: tuple[Array, Array]

    def on(self, driver: Driver, stream: Any) -> None:
        driver.launch(self.function.handle, self.blocks, self.lanes, self.arguments, stream)


def launches(
    plan: Plan, functions: Mapping[str, Function], started: Iterable[Started], binding: Mapping[str, int]
) -> list[Launch]:
    """Kernels at known dims, without those that have nothing to do. Raises UnsupportedOp for one with more blocks than
    a device takes."""
    made = []
    for each in started:
        kernel = each.kernel
        variant = plan.module.variant(kernel, binding)
        shader = variant.shader
        positions = dims.evaluate(shader.positions, binding)
        blocks = positions if shader.team else -(-positions // shader.lanes)
        if blocks > MOST_BLOCKS:
            raise UnsupportedOp(
                f"[{kernel.name}] expected at most {MOST_BLOCKS} blocks, got {blocks} for {dict(binding)}, "
                f"at nodes {', '.join(kernel.sources)}"
            )
        numbers = [dims.evaluate(d, binding) for d in shader.numbers]
        function = functions[variant.name]
        for brought in _rounds(shader, binding) if blocks else ():
            made.append(_launch(kernel, function, blocks, shader.lanes, each.starts, [*brought, *numbers]))
    return made


def _rounds(shader: Shader, binding: Mapping[str, int]) -> Sequence[tuple[int, ...]]:
    """What the launches of a kernel bring beside dims; one that brings nothing where it has no rounds."""
    return [()] if shader.rounds is None else shader.rounds.of(dims.evaluate(shader.rounds.extent, binding))


def _launch(
    kernel: Kernel, function: Function, blocks: int, lanes: int, starts: Sequence[int], record: Sequence[int]
) -> Launch:
    """The record is the last argument, which has at least one number."""
    values = np.zeros(len(starts) + max(len(record), 1), np.int64)
    values[: len(starts)] = np.array(starts, np.uint64).view(np.int64)
    values[len(starts) : len(starts) + len(record)] = record
    places = values.ctypes.data + POINTER_BYTES * np.arange(len(starts) + 1, dtype=np.int64)
    return Launch(kernel, function, blocks, lanes, places.ctypes.data, (values, places))
