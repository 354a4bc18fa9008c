"""What a backend is: it finds its devices, says what it can take, and makes executables of graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.errors import ProfileError
from rlx.ir.graph import Graph, Node
from rlx.ir.literal import Array


@dataclass(frozen=True)
class Probe:
    """What a cheap look found: physical devices by name, or why there are none and what would help."""

    devices: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Options:
    """How to compile. `disable` holds names of passes or rewrites (`pass`, `pass/rewrite`) to leave out; `profile` adds
    what `Bound.profile` needs to the code."""

    disable: frozenset[str] = frozenset()
    threads: int | None = None
    isa: str | None = None
    cache: bool = True
    profile: bool = False


@dataclass(frozen=True)
class KernelTime:
    """How long a kernel took in one run: all its calls together, and when the first began, from the run's start."""

    name: str
    sources: tuple[str, ...]
    calls: int
    total_ns: float
    first_ns: float


class Bound(ABC):
    """An executable at one binding of its dims: shapes are known, buffers are planned.

    nbytes   bytes of the buffers that it keeps from call to call
    """

    nbytes: int = 0

    @abstractmethod
    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Runs. `inputs` lie in the graph's order, C-contiguous, checked; results lie in the order of its outputs."""

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        """Runs, and tells the times of kernels in their order. Raises ProfileError where that was not compiled in."""
        raise ProfileError("[profile] expected a program compiled for profiling, on a device that can time its kernels")


class Executable(ABC):
    """A compiled graph without its weights. Safe to use from many threads.

    compile_count   programs compiled so far: 1, plus every specialisation made since
    """

    compile_ns: int = 0
    compile_count: int = 1
    from_cache: bool = False

    @abstractmethod
    def set_params(self, params: Mapping[str, Array]) -> None:
        """Takes weights (checked, C-contiguous) by name; may keep or repack them. All or nothing.

        They are views of mapped files often, so their addresses need not be multiples of their element size.
        Bounds that exist already run with the new weights from their next call on.
        """

    @abstractmethod
    def bind(self, binding: Mapping[str, int]) -> Bound:
        """Fixes the dims. Raises OutOfMemory where the arena cannot fit."""

    def describe(self) -> dict[str, Any]:
        """What was compiled: kernels, bytes, counts. For people and reports."""
        return {}


@dataclass(frozen=True)
class Unsupported:
    """One node that a backend cannot take, and why."""

    node: Node
    reason: str


@dataclass
class Backend(ABC):
    """One way to run graphs. Instances are cheap; nothing heavy is imported before `compile`."""

    name: str = field(init=False)

    @abstractmethod
    def probe(self) -> Probe:
        """Looks for devices in well under a millisecond, importing nothing heavy."""

    @abstractmethod
    def unsupported(self, graph: Graph) -> list[Unsupported]:
        """Nodes that `compile` would refuse. Empty means that it compiles."""

    @abstractmethod
    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        """Raises UnsupportedOp naming every node that cannot be taken, DeviceUnavailable, CompileError."""
