"""A shader under construction: its slots and bindings, the record of numbers that a dispatch brings, and its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlx.codegen.scalar.int_ranges import Check
from rlx.codegen.simt.maps import TileMap
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.kernel.schedule.schedule import UNTILED, Schedule

if TYPE_CHECKING:
    from rlx.codegen.simt.language.base import Language

WORKGROUP = 64
"""Invocations of a workgroup: every WebGPU device takes 256, and the warps of none are longer than 64."""
WIDE = 256
"""Invocations of a workgroup where there are many workgroups, as each of them takes time to begin."""


@dataclass(frozen=True)
class Slot:
    """Where a kernel's buffer lies. `storage` is the number of a storage binding; where the buffer starts in it, the
    record tells. `packed` is the form of its elements (WGSL's `types.py`); `quads` is the number of a second, read-only
    binding of the same memory as `array<vec4<f32>>`, or None. `atomic` is i32 or u32 if its storage is of atomics, and
    `native` tells that it is of f16, `aligned` that it begins at a multiple of 16 bytes, `static` that no run writes
    to it."""

    dtype: DType
    storage: int
    packed: bool = False
    quads: int | None = None
    atomic: str = ""
    native: bool = False
    aligned: bool = True
    static: bool = False


@dataclass(frozen=True)
class Binding:
    """A storage binding of a shader: what of (u32, atomics, f16, or vec4<f32>), and whether it is written."""

    element: str
    writable: bool


@dataclass(frozen=True)
class Rounds:
    """Dispatches of one shader in a row. `of` gives the numbers that each brings, for a value of `extent`; the record
    has a place for so many `numbers` behind the slots."""

    extent: Dim
    numbers: int
    of: Callable[[int], Sequence[tuple[int, ...]]]


@dataclass(frozen=True)
class Shader:
    """A compute shader with the entry point `main`, and what a dispatch of it needs.

    bindings     storage bindings, numbered from 1; binding 0 is the uniform record
    slots        how many slots: the record has a 0, then the start of each in words
    numbers      the record's last entries: dims, each as an i32
    positions    how many outer positions there are
    team         whether a workgroup takes a position; else each of its WORKGROUP invocations takes one
    lanes        invocations of a workgroup
    iterations   how many times an invocation goes through loops, at most
    rounds       where the work is dispatched several times, in rounds that depend on a dim
    schedule     how the work is spread over lanes, where it is tiled
    ahead        whether it asks for what it reads before it waits for earlier kernels
    shared_bytes   of workgroup memory that a dispatch brings
    later        numbers behind the others of what a later kernel wants: where it is, and its bytes
    fewer        what there must be less than 2^31 of, as its number has 32 bits
    maps         of tensors that a dispatch brings behind the record
    wide_positions   `positions`, or workgroups of a team, in workgroups of WIDE invocations; None where it has no such
    """

    text: str
    bindings: tuple[Binding, ...]
    slots: int
    numbers: tuple[Dim, ...]
    positions: Dim
    team: bool
    iterations: Dim
    checks: tuple[Check, ...] = ()
    rounds: Rounds | None = None
    schedule: Schedule = UNTILED
    lanes: int = WORKGROUP
    ahead: bool = False
    shared_bytes: int = 0
    later: int = 0
    wide_positions: Dim | None = None
    fewer: tuple[Dim, ...] = ()
    maps: tuple[TileMap, ...] = ()

    @property
    def record_words(self) -> int:
        """Length of the record."""
        return 1 + self.slots + (self.rounds.numbers if self.rounds else 0) + len(self.numbers)


@dataclass
class Code:
    """Lines of a language; `let` names a value and `block` indents. Names are unique in a function.

    shared      workgroup memory: names of arrays, with the type of their elements, and how many there are
    dynamic_shared   bytes of workgroup memory beside them that a launch brings
    functions   device functions of its own, by their names
    cluster     workgroups in a row that run at once and read one another's memory
    subgroups   whether lanes may exchange values within subgroups
    follows     whether the lines ask for what they read before they wait for earlier kernels
    waits       whether the lines wait for these
    later       numbers of a launch by which the kernel asks for what a later one wants
    maps        of tensors that a launch brings
    alone       whether a workgroup may have a multiprocessor's registers: compilers else have few loads under way
    """

    language: Language
    lines: list[str] = field(default_factory=list)
    shared: dict[str, tuple[str, int]] = field(default_factory=dict)
    dynamic_shared: int = 0
    functions: dict[str, str] = field(default_factory=dict)
    maps: list[TileMap] = field(default_factory=list)
    cluster: int = 1
    depth: int = 1
    subgroups: bool = False
    follows: bool = False
    waits: bool = False
    later: int = 0
    alone: bool = False
    _counter: int = 0

    def emit(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def fresh(self, stem: str = "v") -> str:
        self._counter += 1
        return f"{stem}{self._counter}"

    def let(self, text: str, stem: str = "v") -> str:
        name = self.fresh(stem)
        self.emit(self.language.let(name, text))
        return name

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.emit(f"{head} {{")
        self.depth += 1
        yield
        self.depth -= 1
        self.emit("}")


ZERO = "record[0].x"
"""An i32 that is 0 at run time, and that no compiler knows to be."""


class Record:
    """The uniform of a dispatch: 0, the start of every slot, `rounds` numbers that a round brings, then dims, as i32s
    that are worked out on the host."""

    def __init__(self, slots: int, rounds: int = 0) -> None:
        self.slots = slots
        self.rounds = rounds
        self._dims: dict[Dim, int] = {}

    def start(self, slot: int) -> str:
        """The first word of a slot."""
        return self._entry(1 + slot)

    def dim(self, dim: Dim) -> str:
        """A dim's value, an i32: a literal, or an entry of the record."""
        if isinstance(dim, int):
            return int_literal(dim)
        return self._entry(1 + self.slots + self.rounds + self._dims.setdefault(dim, len(self._dims)))

    def divisor(self, extent: Dim) -> str:
        """An axis' extent to divide positions by, an i32. No position is divided by 0, but a 0 that stands there is an
        error in WGSL."""
        return self.dim(1 if extent == 0 else extent)

    def round(self, number: int) -> str:
        """A number that the round brings, an i32."""
        return self._entry(1 + self.slots + number)

    def _entry(self, number: int) -> str:
        return f"record[{number // 4}].{'xyzw'[number % 4]}"

    @property
    def numbers(self) -> tuple[Dim, ...]:
        return tuple(self._dims)

    @property
    def quads(self) -> int:
        """Length in `vec4<i32>`s."""
        return -(-(1 + self.slots + self.rounds + len(self._dims)) // 4)


def int_literal(value: int) -> str:
    """An i32 literal that stands in any expression."""
    return f"{value}i" if value >= 0 else f"i32({value})"
