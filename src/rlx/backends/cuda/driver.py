"""The calls of a maker's driver that the backend makes, and what they fail with.

`bindings.py` makes them by the package cuda-bindings, `backends.rocm.driver` those of HIP, which are the same by other
names, and `backends.apple_gpu.driver` does what they do by Metal. Tests have a driver that works on the processor.
Handles are what a driver gives out; pointers are integers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlx.errors import DeviceUnavailable

if TYPE_CHECKING:
    from rlx.backends.cuda.cublaslt import CublasLt
    from rlx.codegen.simt.maps import PlacedMap

OUT_OF_MEMORY = 2
EXECUTION_FAILED = 719
MAP_BYTES = 128
"""Of a map of a tensor."""
NOT_READY = 600
"""What is asked for is not done yet."""
STICKY = frozenset((46, 214, 226, 700, 702, 709, 710, *range(714, 720), 721, 999))
"""Codes after which a context does nothing any more: faults of kernels, failed memory, a device that went away."""


class CallError(Exception):
    """A call that failed: its name, the driver's code, and what the driver calls that."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} gave {name} ({code})")
        self.code = code


@dataclass(frozen=True)
class Api:
    """What tells the devices of one maker from those of another.

    device          their kind, as rlx names it
    label           what people call the interface
    dlpack          their kind, as DLPack numbers it; 0 where other libraries do not get their memory
    torch           the version of torch's that tells that its devices `cuda` are these
    legacy_stream   the handle of the stream that libraries use which name none
    most_lanes      that a launch may have
    """

    device: str
    label: str
    dlpack: int
    torch: str
    legacy_stream: int
    most_lanes: int


CUDA = Api("cuda", "CUDA", dlpack=2, torch="cuda", legacy_stream=1, most_lanes=1 << 41)


class Driver(ABC):
    """One driver. All methods raise CallError.

    compiler         what `compile` is, by version: a part of the keys of what is kept on disk
    captures         whether streams can note what they are given; else each run gives it anew
    times_in_graphs  whether events that a graph records tell times
    """

    api: Api
    compiler: str
    captures = True
    times_in_graphs = True

    @abstractmethod
    def version(self) -> str:
        """The newest version of its interface that it has."""

    @abstractmethod
    def device_count(self) -> int: ...

    @abstractmethod
    def device_name(self, ordinal: int) -> str: ...

    @abstractmethod
    def architecture(self, ordinal: int) -> str:
        """What to compile for."""

    @abstractmethod
    def overlaps(self, ordinal: int) -> bool:
        """Whether kernels of a device can begin while those before them end."""

    def room_of_one(self, ordinal: int) -> int:
        """Bytes of workgroup memory with which a block has a multiprocessor for itself among others like it; 0 where
        kernels do not overlap, so that blocks never meet a device that is partly taken."""
        return 0

    @abstractmethod
    def compile(self, source: str, architecture: str, name: str) -> bytes:
        """Machine code of a kernel of this name. Raises CompileError; calls from several threads run at once."""

    def why_no_blas(self) -> str:
        """Why there is no library of products; empty if there may be one."""
        return f"rlx has no library of products for {self.api.label}"

    def blas(self) -> CublasLt:
        """A library of products, for the context that the calling thread is in. Raises DeviceUnavailable."""
        raise DeviceUnavailable(f"[device] {self.why_no_blas()}")

    # contexts

    @abstractmethod
    def open(self, ordinal: int) -> Any:
        """The context of a device, which its other users in this process have too."""

    @abstractmethod
    def reset(self, ordinal: int) -> None:
        """Ends the context of a device with all that is in it."""

    @abstractmethod
    def enter(self, context: Any) -> None:
        """Makes a context that of the calling thread."""

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Free and all bytes of the device."""

    # streams and events

    @abstractmethod
    def stream(self) -> Any:
        """A stream that does not wait for the legacy one."""

    @abstractmethod
    def stream_number(self, stream: Any) -> int:
        """A stream's handle as other libraries know it."""

    @abstractmethod
    def synchronise(self, stream: Any) -> None:
        """Waits for what was given to a stream."""

    @abstractmethod
    def synchronise_all(self) -> None:
        """Waits for what was given to all streams of the context."""

    def submit(self, stream: Any) -> None:  # noqa: B027  # most have begun already
        """Has the device begin with what a stream was given, where it waits for more."""

    @abstractmethod
    def event(self, timed: bool = False) -> Any: ...

    @abstractmethod
    def record(self, event: Any, stream: Any, external: bool = False) -> None:
        """Puts an event behind what a stream was given, in a graph that is noted as one that others may look at too if
        it is `external`."""

    @abstractmethod
    def wait(self, stream: Any, event: Any) -> None:
        """Has a stream wait; it may be one that is known by its number."""

    @abstractmethod
    def wait_for(self, event: Any) -> None:
        """Has the calling thread wait."""

    @abstractmethod
    def is_reached(self, event: Any) -> bool:
        """Whether what an event is behind is done."""

    @abstractmethod
    def elapsed_ns(self, first: Any, last: Any) -> float: ...

    @abstractmethod
    def drop_event(self, event: Any) -> None: ...

    # memory

    @abstractmethod
    def pool(self, ordinal: int) -> Any:
        """Memory that keeps what is given back."""

    @abstractmethod
    def allocate(self, nbytes: int, pool: Any, stream: Any) -> int: ...

    @abstractmethod
    def free(self, pointer: int, stream: Any) -> None: ...

    @abstractmethod
    def trim(self, pool: Any) -> None:
        """Gives what a pool has left back to the device."""

    @abstractmethod
    def allocate_host(self, nbytes: int) -> int:
        """Memory of the host that the device reads and writes by itself."""

    @abstractmethod
    def free_host(self, pointer: int) -> None: ...

    @abstractmethod
    def copy_in(self, target: int, host: int, nbytes: int, stream: Any) -> None: ...

    @abstractmethod
    def copy_out(self, host: int, source: int, nbytes: int, stream: Any) -> None: ...

    @abstractmethod
    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None: ...

    # kernels

    @abstractmethod
    def load(self, code: bytes) -> Any:
        """A module of what `compile` gave."""

    def compile_setter(self, source: str, name: str) -> bytes:
        """A kernel of this name that sets conditions of graphs, for `load`. Raises CompileError."""
        raise NotImplementedError

    @abstractmethod
    def unload(self, module: Any) -> None: ...

    @abstractmethod
    def function(self, module: Any, name: str) -> Any: ...

    @abstractmethod
    def launch(
        self, function: Any, blocks: int, lanes: int, arguments: int, stream: Any, overlapping: bool = False,
        shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        """`arguments` points to pointers to a kernel's arguments, which are read before this returns.

        overlapping    the kernel waits itself for the one before it in the stream
        shared_bytes   of workgroup memory beside what the kernel declares
        """

    def encode_map(self, placed: PlacedMap, start: int) -> bytes:
        """The map of a tensor as kernels take it, in a buffer that starts there."""
        raise NotImplementedError

    # graphs, of drivers that have `captures`

    def begin_capture(self, stream: Any) -> None:
        """From now on a stream notes what it is given, instead of doing it."""
        raise NotImplementedError

    def end_capture(self, stream: Any) -> Any:
        """What was noted."""
        raise NotImplementedError

    def instantiate(self, graph: Any) -> Any:
        """Something that `replay` runs, made of what was noted."""
        raise NotImplementedError

    def update(self, executable: Any, graph: Any) -> bool:
        """Has it run this instead; False where that is another row of kernels."""
        raise NotImplementedError

    def replay(self, executable: Any, stream: Any) -> None:
        raise NotImplementedError

    def drop_graph(self, graph: Any) -> None:
        raise NotImplementedError

    def drop_executable(self, executable: Any) -> None:
        raise NotImplementedError

    # parts of graphs that the device runs or leaves out, of drivers that have a way to it

    def why_no_branches(self) -> str:
        """Why graphs have no such parts; empty if they do."""
        return f"rlx has no branches in graphs of {self.api.label}"

    def condition(self, stream: Any) -> int:
        """A condition of the graph that a stream notes, for one `branch` of it: the number by which kernels set it."""
        raise NotImplementedError

    def branch(
        self, condition: int, stream: Any, bodies: Sequence[Callable[[Any], None]], repeated: bool = False
    ) -> None:
        """Adds a part to the graph that a stream notes, of which the device runs the first body if kernels have set the
        condition to another number than 0 when it comes there, else the second, if there is one; if it is `repeated`,
        the one body for as long as the condition is not 0. Bodies give a stream kernels, copies within the device, and
        branches."""
        raise NotImplementedError
