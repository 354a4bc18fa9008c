"""The interface of a scheduled kernel, which the module writer uses for every kind of work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rlx.ir.dim import Dim
from rlx.kernel.schedule.schedule import Schedule

if TYPE_CHECKING:
    from rlx.codegen.simd.function import Callee, Module

FLAT_UNIT = 16
"""Cycles of flat kernels are counted in sixteenths: their positions cost less than one."""


class WholePositions:
    """What kernels have in common whose positions are pieces of work of some size, each counted in cycles."""

    weight: Dim

    @property
    def flat(self) -> bool:
        return False

    def cycles(self, lanes: int) -> Dim:
        return self.weight


class Scheduled(Protocol):
    """A piece of work with a schedule: `positions` parallel positions that threads share, `scratch` bytes a thread.

    flat   positions are single elements of one axis, which pieces cut anywhere
    """

    @property
    def schedule(self) -> Schedule: ...

    @property
    def positions(self) -> Dim: ...

    @property
    def scratch(self) -> Dim: ...

    @property
    def flat(self) -> bool: ...

    def cycles(self, lanes: int) -> Dim:
        """Cycles of one position, roughly; in units of 1 / `FLAT_UNIT` if flat."""
        ...

    def render(self, module: Module, stem: str, slots: int) -> Callee:
        """Adds the kernel's function to a module."""
        ...
