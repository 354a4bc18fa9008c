"""How long compiles take: what of a program is compiled once, how much of it side by side, and what one thread does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.fused import Composite
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Kernel, Program, leaves


@dataclass(frozen=True)
class Weights:
    """What a compiler has to do for a kernel, by what the kernel is.

    narrow     products and attention of operands of 16 bits and less
    composite  work that is made of other work
    """

    map: float
    reduction: float
    product: float
    narrow: float
    attention: float
    composite: float
    other: float

    def of(self, kernel: Kernel) -> float:
        match kernel.work:
            case Contraction(b_dtype=dtype):
                return self.narrow if dtype.itemsize < 4 else self.product
            case FusedAttention(dtype=dtype):
                return self.narrow if dtype.itemsize < 4 else self.attention
            case SplitKvPartial() | SplitKvCombine():
                return self.attention / 2
            case LoopNest() as nest:
                return self.reduction if nest.reduces else self.map
            case Composite():
                return self.composite
        return self.other


KERNEL = 0.5
"""Of what a small program of a calibration takes, one of its two kernels."""
ALIKE = Weights(KERNEL, KERNEL, KERNEL, KERNEL, KERNEL, KERNEL, KERNEL)


def once(kernel: Kernel) -> int:
    """Most kernels are one function, whatever the sizes of a run are."""
    return 1


@dataclass(frozen=True)
class Compiler:
    """How a backend compiles the kernels of a program, in a unit that the backend chooses; where calibration measures
    `compile_ns`, that is one: what a small program takes.

    weights   what each function takes that is compiled
    variants  how many functions a kernel is
    again     what a kernel takes that equals one before, as a part of that: 0 where they share the code
    cores     functions, as a map is one, that all products of a program share
    at_once   functions that are compiled side by side
    least     what a thread is given at least: less work is not shared with another
    lowered   what each kernel takes of the one thread that makes the program, equal ones too
    written   what each function takes of that thread
    """

    weights: Weights = ALIKE
    variants: Callable[[Kernel], int] = once
    again: float = 1.0
    cores: int = 0
    at_once: float = 1.0
    least: float = 0.0
    lowered: float = 0.0
    written: float = 0.0

    def amount(self, program: Program) -> float:
        """What a compile of the program takes, if nothing of it is in caches."""
        kernels = list(leaves((*program.prepare, *program.main)))
        functions = list(self._functions(program, kernels))
        alone = self.lowered * len(kernels) + self.written * len(functions)
        return alone + self._side_by_side(functions)

    def _functions(self, program: Program, kernels: Sequence[Kernel]) -> Iterator[float]:
        """The weights of all that is compiled. Equal work on the same dtypes has the same code, wherever it lies."""
        seen: set[object] = set()
        if any(isinstance(kernel.work, Contraction) for kernel in kernels):
            yield from [self.weights.map] * self.cores
        for kernel in kernels:
            key = kernel.work, tuple(program.buffers[number].dtype for number in kernel.slots)
            times = self.again if key in seen else 1.0
            seen.add(key)
            if times:
                yield from [times * self.weights.of(kernel)] * self.variants(kernel)

    def _side_by_side(self, functions: Sequence[float]) -> float:
        """When the last of them is ready. Threads take the next one when they are done, in no order of length: on
        average half of the longest is left when the others have nothing to do."""
        total, longest = sum(functions), max(functions, default=0.0)
        threads = max(1.0, min(self.at_once, total / self.least if self.least else self.at_once))
        return max(longest, total / threads + (1 - 1 / threads) * longest / 2)
