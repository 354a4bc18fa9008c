"""Sizes that move from run to run: how many tokens a context has, where each run adds one.

Where a size is that of an input of which no kernel reads anything, and of no result, what depends on it is the length
of loops, the bounds of what is read, and how many blocks a kernel has. Kernels find these numbers in a table on the
device (`codegen.simt.language.cuda`), and have blocks and buffers for the most that a bucket needs. All runs of a
bucket are then one graph, which brings the table along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.executable import Bound, KernelTime
from rlx.backends.memory import Where
from rlx.codegen.simt.module import CppModule
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.interval import Interval, interval
from rlx.ir.literal import Array
from rlx.kernel.ir.program import Program, buffers_used, leaves

if TYPE_CHECKING:
    from rlx.backends.cuda.bound import CudaBound

LEAST_BUCKET = 256
"""Sizes up to this one are one bucket; from there on each ends at twice the last one's end."""


def unread_inputs(program: Program) -> frozenset[int]:
    """Inputs whose sizes alone count."""
    return frozenset(program.inputs) - buffers_used(program, (*program.prepare, *program.main)) - {*program.outputs}


def moving_symbols(program: Program, results: Iterable[Dim]) -> frozenset[str]:
    """Symbols that may move: of programs that keep something from run to run, and whose kernels run in one order.

    results   dims of the results' shapes
    """
    if not program.written_states() or any(kernel.work.owns_kernels for kernel in program.main):
        return frozenset()
    unread = unread_inputs(program)
    counted = _symbols(program.buffers[number].size for number in unread)
    others = [b.size for b in program.buffers if b.kind in ("input", "state", "param") and b.number not in unread]
    places = [first for _, first in program.aliases.values()]
    return frozenset(counted - _symbols((*others, *places, *results)))


def in_rounds(program: Program, module: CppModule) -> set[str]:
    """Symbols on which the number of launches depends: those may not move."""
    shaders = (v.shader for kernel in leaves(program.main) for v in module.variants[id(kernel)])
    return _symbols(shader.rounds.extent for shader in shaders if shader.rounds is not None)


def table_of(program: Program, module: CppModule, moving: frozenset[str]) -> tuple[Dim, ...]:
    """The dims of the table: all that kernels ask for and that move."""
    numbers = (
        number
        for kernel in leaves(program.main)
        for variant in module.variants[id(kernel)]
        for number in variant.shader.numbers
        if dims.symbols(number) & moving
    )
    return tuple(dict.fromkeys(numbers)) if moving else ()


@dataclass(frozen=True)
class Sizes:
    """The sizes of a program, or of all runs of a bucket.

    binding   values of symbols, of those that move the bucket's end
    moving    the least and the greatest value of those that move
    """

    binding: Mapping[str, int]
    moving: Mapping[str, Interval] = field(default_factory=dict)

    @staticmethod
    def of(binding: Mapping[str, int], moving: frozenset[str]) -> Sizes:
        """The bucket in which this binding is."""
        ends = {
            name: max(LEAST_BUCKET, 1 << (binding[name] - 1).bit_length() if binding[name] else 0) for name in moving
        }
        starts = {name: 0 if end == LEAST_BUCKET else end // 2 + 1 for name, end in ends.items()}
        return Sizes({**binding, **ends}, {name: (starts[name], ends[name]) for name in moving})

    def most(self, dim: Dim) -> int:
        """The greatest value of a dim: its value, where it does not move."""
        if isinstance(dim, int) or not self.moving or not dims.symbols(dim) & self.moving.keys():
            return dims.evaluate(dim, self.binding)
        return interval(dim, {**{name: (size, size) for name, size in self.binding.items()}, **self.moving})[1]


def _symbols(found: Iterable[Dim]) -> set[str]:
    return set().union(*map(dims.symbols, found))


class MovingBound(Bound):
    """A program at one size of a bucket, whose memory and graphs are those of the bucket."""

    def __init__(self, bucket: CudaBound, binding: Mapping[str, int]) -> None:
        self.bucket = bucket
        self.shapes = bucket.shapes
        self.table = np.array([dims.evaluate(dim, binding) for dim in bucket.plan.table], np.int64)

    def __call__(self, inputs: Sequence[Any], out: Sequence[Array | None] | None = None) -> list[Array]:
        with self.bucket.at(self.table):
            return self.bucket(inputs, out)

    def deliver_to(
        self, where: Sequence[Where], inputs: Sequence[Any], out: Sequence[Array | None] | None = None
    ) -> list[Any]:
        with self.bucket.at(self.table):
            return self.bucket.deliver_to(where, inputs, out)

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        with self.bucket.at(self.table):
            return self.bucket.profile(inputs)
