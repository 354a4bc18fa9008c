"""A schedule says how a kernel is spread over a machine: tiles of its axes by level, vectors, unrolling, memory spaces.

It is data: a code generator makes one for a kernel from the description of its target, a person may change one by hand
(`RLX_SCHEDULE`), a search may try others, and the generator writes the kernel that it says. The same type serves
processors and GPUs; each names the levels that it has.
"""

from __future__ import annotations

import dataclasses

from rlx.ir.dim import Dim
from rlx.records import dataclass

LEVELS = ("grid", "workgroup", "thread", "cache", "register")
"""From the outside in: pieces that threads or workgroups take, a workgroup's part, one thread's or lane's part, what
stays in a cache or in workgroup memory, what stays in registers."""


@dataclass(frozen=True)
class Tile:
    """At `level`, `size` positions along `axis` are one piece; `axis` is a name ("m", "n", "k", "queries", "a0")."""

    level: str
    axis: str
    size: Dim


@dataclass(frozen=True)
class Schedule:
    """How one kernel is run.

    tiles      sizes of pieces, by level and axis
    vector     the axis that vectors or neighbouring lanes lie along, and their width; None where all is scalar
    unrolled   axes whose inner loop is written out, with how many steps of it
    spaces     the memory that an operand or result is read from or kept in: "global", "panels" (packed, contiguous),
               "cache", "shared", "register"
    stages     copies of the next operands that are under way beside the arithmetic; 1 is none
    mma        (m, n, k) of the matrix instruction, None for plain arithmetic
    """

    tiles: tuple[Tile, ...] = ()
    vector: tuple[str, int] | None = None
    unrolled: tuple[tuple[str, int], ...] = ()
    spaces: tuple[tuple[str, str], ...] = ()
    stages: int = 1
    mma: tuple[int, int, int] | None = None

    def tile(self, level: str, axis: str) -> Dim:
        """Size of the piece along an axis at a level. Raises KeyError where there is none."""
        for tile in self.tiles:
            if (tile.level, tile.axis) == (level, axis):
                return tile.size
        raise KeyError(f"no tile of {axis} at level {level}")

    def static_tile(self, level: str, axis: str) -> int:
        """A tile whose size is known at compile time."""
        size = self.tile(level, axis)
        assert isinstance(size, int), f"tile of {axis} at level {level} is {size}"
        return size

    def vectors(self, level: str, axis: str) -> int:
        """How many vectors a tile is wide. Raises KeyError where there is no such tile."""
        lanes = self.vector[1] if self.vector is not None else 1
        return self.static_tile(level, axis) // lanes

    def with_tile(self, level: str, axis: str, size: Dim) -> Schedule:
        """The schedule with another size of a tile that it has. Raises KeyError where there is none."""
        self.tile(level, axis)
        tiles = (dataclasses.replace(t, size=size) if (t.level, t.axis) == (level, axis) else t for t in self.tiles)
        return dataclasses.replace(self, tiles=tuple(tiles))

    def in_whole_vectors(self, level: str, *axes: str) -> Schedule:
        """The schedule with tiles along these axes cut to whole vectors, of which there is one at least."""
        lanes = self.vector[1] if self.vector is not None else 1
        whole = self
        for axis in axes:
            whole = whole.with_tile(level, axis, max(self.vectors(level, axis), 1) * lanes)
        return whole

    def __str__(self) -> str:
        parts = []
        for level in dict.fromkeys(t.level for t in self.tiles):
            sizes = " x ".join(f"{t.axis} {t.size}" for t in self.tiles if t.level == level)
            parts.append(f"{level} {sizes}")
        if self.vector is not None:
            parts.append(f"vectors of {self.vector[1]} along {self.vector[0]}")
        parts += [f"{axis} unrolled by {steps}" for axis, steps in self.unrolled]
        parts += [f"{operand} in {space}" for operand, space in self.spaces]
        if self.stages > 1:
            parts.append(f"{self.stages} stages")
        if self.mma is not None:
            parts.append("mma " + "x".join(map(str, self.mma)))
        return ", ".join(parts) or "one position at a time"


UNTILED = Schedule()
"""One position at a time, as loops say."""
