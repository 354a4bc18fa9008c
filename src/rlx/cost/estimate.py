"""Predicted times of kernels and of whole programs, and the interface of what predicts them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelEstimate:
    """What a kernel is expected to take in one run, all its calls together.

    compute_ns, memory_ns   what its instructions and what its memory traffic alone would take
    flops, nbytes           operations and bytes, for its place under the roofline
    calls                   how often it starts: more than once in loops, less where only a branch has it
    kind                    what sort of work it is; kernels of a kind are expected to be off by the same factor
    """

    name: str
    sources: tuple[str, ...]
    ns: float
    compute_ns: float
    memory_ns: float
    flops: float = 0.0
    nbytes: float = 0.0
    calls: float = 1.0
    kind: str = "other"


@dataclass(frozen=True)
class Estimate:
    """What one run is expected to take on a device.

    launch_ns    calling, starting kernels, and waiting for the end
    copy_ns      inputs to the device and results from it
    band         how far off it may be: 0.2 is a fifth, either way
    arena_bytes, weight_bytes   memory that the program needs on the device
    free_bytes   memory there is, None if that is not known
    compile_ns   of a compile that finds nothing in caches
    syncs        how often the host waits for the device
    """

    kernels: tuple[KernelEstimate, ...]
    launch_ns: float
    copy_ns: float
    band: float
    arena_bytes: int
    weight_bytes: int
    free_bytes: int | None
    compile_ns: float
    syncs: int = 1

    @property
    def work_ns(self) -> float:
        return sum(k.ns for k in self.kernels)

    @property
    def run_ns(self) -> float:
        """One run, from arrays to arrays."""
        return self.work_ns + self.launch_ns + self.copy_ns

    def parts(self) -> dict[str, float]:
        """The ns of `run_ns` by kind of kernel; `call` and `copy` are what is around them."""
        ns_by_kind = {"call": self.launch_ns, "copy": self.copy_ns}
        for kernel in self.kernels:
            ns_by_kind[kernel.kind] = ns_by_kind.get(kernel.kind, 0.0) + kernel.ns
        return {kind: ns for kind, ns in ns_by_kind.items() if ns > 0}

    @property
    def fits(self) -> bool:
        return self.free_bytes is None or self.arena_bytes + self.weight_bytes <= self.free_bytes

    def total_ns(self, expected_runs: float = float("inf")) -> float:
        """A run with its share of the compile."""
        return self.run_ns + self.compile_ns / max(expected_runs, 1.0)


class Estimator(ABC):
    """A graph made ready for a device, whose runs can be predicted at any size."""

    @abstractmethod
    def __call__(self, binding: Mapping[str, int]) -> Estimate:
        """What a run at these dims would take."""


Rates = dict[str, float]
"""What calibration measures of a device, by names that end in their unit."""
