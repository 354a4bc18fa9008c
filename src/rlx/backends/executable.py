"""What backends compile graphs to: executables without weights, and executables bound to sizes."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.memory import DeviceArray, Where, on_host
from rlx.errors import CapabilityError, ProfileError
from rlx.ir import dim as dims
from rlx.ir.literal import Array
from rlx.ir.type import TensorType
from rlx.records import dataclass

if TYPE_CHECKING:
    from rlx.backends.stored_weights import LateWeights, Source
    from rlx.ir.check import Check


@dataclass(frozen=True)
class KernelTime:
    """How long a kernel took in one run: all its calls together, and when the first began, from the run's start."""

    name: str
    sources: tuple[str, ...]
    calls: int
    total_ns: float
    first_ns: float


@dataclass(frozen=True)
class Capabilities:
    """What the program of a backend can do. `require` is how anybody asks for it.

    dynamic_dims         one program runs at all sizes
    zero_copy_outputs    kernels write into arrays that the caller gives
    active_extent        a run at fewer rows does less work
    pipelining           other Python threads go on while it runs
    profiling            its kernels can be timed
    shared_code          copies of it share code, and packed weights until one of them gets others
    saved_code           its code can be written to a file and run elsewhere
    package              at given sizes it can be written as a model of another runtime, for programs without rlx
    """

    dynamic_dims: bool = True
    zero_copy_outputs: bool = False
    active_extent: bool = True
    pipelining: bool = True
    profiling: bool = False
    shared_code: bool = False
    saved_code: bool = False
    package: bool = False

    def require(self, name: str, device: str) -> None:
        """Raises CapabilityError that names what is missing, and what there is."""
        if not getattr(self, name):
            there = [f.name for f in fields(self) if getattr(self, f.name)]
            raise CapabilityError(f"[{name}] expected a program with {name}, got one for {device}, which has {there}")


class Bound(ABC):
    """An executable at one binding of its dims: shapes are known, buffers are planned.

    nbytes   bytes of the buffers that it keeps from call to call
    shapes   of the outputs; None where only a run tells
    late     whether `deliver_to` takes `unchecked` and `soon`; not where a run that fails must change nothing
    """

    late: bool = False
    nbytes: int = 0
    shapes: tuple[tuple[int, ...], ...] | None = None

    @property
    def looks(self) -> bool:
        """Whether its calls look at the limit of their thread's run themselves, every few milliseconds."""
        return False

    @abstractmethod
    def __call__(self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        """Runs. `inputs` lie in the graph's order, C-contiguous, checked; results lie in the order of its outputs.

        out   arrays to put the results in, one for each output, of its shape and dtype, C-contiguous and writeable;
              none shares memory with another or with an input. None stands for those that may be new. What they hold
              after an error is not said.

        Where the graph's `states` are written in place, the array of a state is also the result that is its next value.
        """

    def deliver_to(
        self, where: Sequence[Where], inputs: Sequence[Any], out: Sequence[Array | None] | None = None
    ) -> list[Any]:
        """A call whose results, one for each output, are NumPy arrays, arrays on the device, or None for nowhere.

        States that are written in place are what they were given as, wherever they are wanted. Inputs may be arrays on
        the device too, of the executable's `place`.
        """
        results = self(on_host(inputs), out)
        return [None if place == "nowhere" else result for place, result in zip(where, results, strict=True)]

    def begin(self, inputs: Sequence[Any]) -> Callable[[], list[Array]] | None:
        """Begins a run, and gives what waits for its end and gives its results. The next run may begin before. None,
        and nothing has begun, where runs of this program take turns."""
        return None

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

    def take(self, params: Mapping[str, Array], private: Mapping[str, Array]) -> None:
        """As `set_params`, of weights as they were given, which may lie in files, and as arrays that may be kept."""
        self.set_params(private)

    def take_stored(self, weights: LateWeights) -> bool:
        """As `set_params`, of weights that the cache on disk has as the program reads them; False where it has not, and
        nothing was taken."""
        return False

    def keep_packed(self, source: Source) -> None:  # noqa: B027  # most have nothing to keep
        """Keeps the weights on disk as the program reads them, as soon as they are packed. They were set last, and are
        those in `source`."""

    def reserve(self, name: str) -> bool:
        """Room on the device for a weight that comes by `write_part`, instead of an array for it. False where the
        program does not read it as it comes. Of backends that hold experts in part (`Backend.holds_experts`)."""
        raise NotImplementedError

    def write_part(self, name: str, at: int, array: Array) -> None:
        """Brings one element of a reserved weight along its first axis to its place; no other bytes move."""
        raise NotImplementedError

    def prefer_experts(self, masks: Mapping[str, Array]) -> None:  # noqa: B027  # most have all of them
        """Which experts of weights stay on the device if it cannot hold all, bool [experts] by name."""

    def give_back(self) -> None:  # noqa: B027  # most keep nothing that could be had again
        """Gives back the weights on the device. The next run of a new bound brings them again."""

    @abstractmethod
    def bind(self, binding: Mapping[str, int]) -> Bound:
        """Fixes the dims. Raises OutOfMemory where the arena cannot fit."""

    @property
    def capabilities(self) -> Capabilities:
        """What this program can do."""
        return Capabilities()

    @property
    def place(self) -> object:
        """The memory whose arrays its bounds take and give; None where that is the host's."""
        return None

    @property
    def writes_states(self) -> bool:
        """Whether runs write to states in their place."""
        return False

    def put(self, name: str, array: Array) -> Array | DeviceArray:
        """A copy of an array for the input of this name where its bounds find it without another: on the device."""
        return array

    @property
    def nbytes(self) -> int:
        """Bytes of code that the program keeps."""
        return 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that the program keeps beside the arrays that it was given: packed, or on the device."""
        return 0

    @property
    def stored(self) -> tuple[str, dict[str, Any], Sequence[Check]] | None:
        """The key of its code in the cache on disk, its target, and the checks of its last output, where it can be had
        from there by these alone."""
        return None

    @property
    def is_pending(self) -> bool:
        """Whether its code is still on its way, and runs do without."""
        return False

    def finish(self) -> None:  # noqa: B027  # most backends have nothing to wait for
        """Waits for better code that is still on its way."""

    def clone(self, weights: bool = True) -> Executable:
        """A program with the same code whose weights can be set without a change to this one; with `weights` it starts
        with those of this one. Raises CapabilityError."""
        self.capabilities.require("shared_code", type(self).__name__)
        raise NotImplementedError

    def with_checks(self, checks: Sequence[Check]) -> Executable | None:
        """This program, of a graph whose last output is for checks, as one of the graph without it, if it looks at that
        itself; None leaves it to `backends.checked`."""
        return None

    def code(self) -> bytes:
        """The program without its weights, for `Backend.load_code`. Raises CapabilityError."""
        self.capabilities.require("saved_code", type(self).__name__)
        raise NotImplementedError

    def write_package(self, path: str | os.PathLike[str], binding: Mapping[str, int]) -> Any:
        """Writes the program at these dims, with its weights, as a model of another runtime. Gives what is in it.

        Raises CapabilityError, InputError for dims that are missing, UnsupportedOp, CompileError, OSError.
        """
        self.capabilities.require("package", type(self).__name__)
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """What was compiled: kernels, bytes, counts, `written_in_place` states. For people and reports."""
        return {}


def shapes_at(types: Iterable[TensorType], binding: Mapping[str, int]) -> tuple[tuple[int, ...], ...] | None:
    """The shapes of these types, None if one has a dim without a value."""
    type_list = list(types)
    if any(dims.symbols(d) - binding.keys() for of in type_list for d in of.shape):
        return None
    return tuple(tuple(dims.evaluate(d, binding) for d in of.shape) for of in type_list)


def deliver(results: list[Array], out: Sequence[Array | None] | None) -> list[Array]:
    """Results in the arrays of the caller, if there are any: for backends whose kernels cannot write there."""
    if out is None:
        return results
    for array, result in zip(out, results):
        if array is not None:
            np.copyto(array, result)
    return [result if array is None else array for array, result in zip(out, results)]
