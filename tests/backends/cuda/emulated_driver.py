"""A CUDA driver on the processor. Kernels are compiled as C++ (`tools.emulate_cuda`). What a stream is given is done
when somebody waits for it and not before, so that code which relies on work that nobody waited for gets wrong results;
memory is checked, and calls can be made to fail."""

from __future__ import annotations

import ctypes
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.backends.cuda.driver import CUDA, MAP_BYTES, OUT_OF_MEMORY, STICKY, CallError, Driver
from rlx.codegen.simt.maps import PlacedMap
from tools.emulate_cuda import Emulator, encoded_map

from .emulated_kernels import Kernels

ILLEGAL_ADDRESS = 700
POISON = 0xA5
ROOM_OF_ONE = 64 << 10


@dataclass
class Operation:
    """`kind` and `detail` tell graphs of the same shape; `detail` of kernels is the function."""

    kind: str
    do: Callable[[], None]
    detail: Any = None


@dataclass(eq=False)
class Stream:
    driver: EmulatedDriver
    pending: deque[Operation] = field(default_factory=deque)
    noted: list[Operation] | None = None

    def give(self, operation: Operation) -> None:
        if self.noted is not None:
            self.noted.append(operation)
        else:
            self.pending.append(operation)

    def drain(self) -> None:
        while self.pending:
            self.pending.popleft().do()


@dataclass
class Event:
    stream: Stream | None = None
    given: int = 0
    reached: int = 0
    at: int = 0


@dataclass
class Graph:
    operations: list[Operation]

    def shape(self) -> list[tuple[str, Any]]:
        return [(each.kind, each.detail) for each in self.operations]


@dataclass(frozen=True)
class Loaded:
    """A kernel: its library, its name, how many pointers it takes, how many numbers, what its launches bring of
    workgroup memory, and how many maps."""

    library: ctypes.CDLL
    name: str
    pointers: int
    numbers: int
    shared_bytes: int
    maps: int


class EmulatedDriver(Driver):
    """capacity  bytes of the device
    warp      lanes of a warp
    calls     names of all calls so far
    blocks    allocations by where they start, with their bytes
    launch_ns   what a kernel takes by the clock of events
    branches    whether graphs have parts that the device runs or leaves out
    done        what graphs have done, by kind
    kernels     their libraries; the code of one is its text, with what its parameters are
    """

    api = CUDA
    compiler = "emulated"

    def __init__(self, capacity: int = 1 << 28, warp: int = 32, in_front: bool = False) -> None:
        self.emulator = Emulator(warp, in_front)
        self.capacity = capacity
        self.calls: list[str] = []
        self.blocks: dict[int, Any] = {}
        self.pinned: dict[int, Any] = {}
        self.replayed: list[int] = []
        self.clock = 0
        self.launch_ns = 0
        self.broken = 0
        self.branches = True
        self.conditions: dict[int, ctypes.c_uint32] = {}
        self.done: list[str] = []
        self._failures: dict[str, list[int]] = {}
        self._streams: list[Stream] = []
        self._legacy = Stream(self)
        self.kernels = Kernels()
        self._loaded: dict[bytes, ctypes.CDLL] = {}

    # failures

    def fail(self, call: str, code: int, after: int = 0) -> None:
        """Has a call fail: the first, or the one after so many."""
        self._failures[call] = [*[0] * after, code]

    def _called(self, name: str) -> None:
        self.calls.append(name)
        codes = self._failures.get(name)
        code = codes.pop(0) if codes else 0
        if self.broken:
            code = self.broken
        if code in STICKY:
            self.broken = code
        if code:
            raise CallError(name, code, "INJECTED")

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """The calls that are made within."""
        first = len(self.calls)
        inside: list[str] = []
        yield inside
        inside.extend(self.calls[first:])

    # devices

    def version(self) -> str:
        return "13.0"

    def device_count(self) -> int:
        return 1

    def device_name(self, ordinal: int) -> str:
        return "Emulated"

    def architecture(self, ordinal: int) -> str:
        return "C++"

    def overlaps(self, ordinal: int) -> bool:
        return True

    def room_of_one(self, ordinal: int) -> int:
        return ROOM_OF_ONE

    def compile(self, source: str, architecture: str, name: str) -> bytes:
        self.calls.append("compile")
        self.kernels.wait(name, source, self.emulator)
        head = re.search(rf"{name}\((.*?)\) {{", source, re.DOTALL)
        assert head is not None, source
        numbers = re.search(r"Record<(\d+)>", head[1])
        assert numbers is not None
        shared = re.findall(r"^  DYNAMIC_SHARED\((\d+)\);", source, re.MULTILINE)
        facts = {
            "name": name, "pointers": head[1].count("__restrict__"), "numbers": int(numbers[1]),
            "maps": head[1].count("TensorMap"),
            "shared_bytes": sum(map(int, shared)),
        }  # fmt: skip
        return f"{json.dumps(facts)}\n{source}".encode()

    def open(self, ordinal: int) -> Any:
        self._called("open")
        return object()

    def reset(self, ordinal: int) -> None:
        self.calls.append("reset")
        self.broken = 0
        self.blocks.clear()
        self._streams.clear()

    def enter(self, context: Any) -> None:
        self._called("enter")

    def memory(self) -> tuple[int, int]:
        return self.capacity - self.used, self.capacity

    @property
    def used(self) -> int:
        return sum(raw.nbytes for raw in self.blocks.values())

    # streams

    def stream(self) -> Any:
        stream = Stream(self)
        self._streams.append(stream)
        return stream

    def stream_number(self, stream: Any) -> int:
        return 1000 + self._streams.index(stream)

    def _of(self, stream: Any) -> Stream:
        if isinstance(stream, int):
            return self._legacy if stream == self.api.legacy_stream else self._streams[stream - 1000]
        assert isinstance(stream, Stream)
        return stream

    def synchronise(self, stream: Any) -> None:
        self._called("synchronise")
        assert self._of(stream).noted is None, "a wait while a graph is noted"
        self._of(stream).drain()

    def synchronise_all(self) -> None:
        self._called("synchronise_all")
        for stream in (*self._streams, self._legacy):
            stream.drain()

    def event(self, timed: bool = False) -> Any:
        return Event()

    def drop_event(self, event: Any) -> None:
        self._called("drop_event")

    def record(self, event: Any, stream: Any, external: bool = False) -> None:
        self._called("record")
        assert external == (self._of(stream).noted is not None), "others look at events of graphs that are external"
        event.stream, event.given = self._of(stream), event.given + 1
        number = event.given

        def reach() -> None:
            self.clock += 1000
            event.reached, event.at = max(event.reached, number), self.clock

        event.stream.give(Operation("record", reach))

    def wait(self, stream: Any, event: Any) -> None:
        self._called("wait")
        self._of(stream).give(Operation("wait", lambda number=event.given: self._until(event, number)))

    def _until(self, event: Event, number: int) -> None:
        while event.reached < number:
            assert event.stream is not None and event.stream.pending, "an event that comes never"
            event.stream.pending.popleft().do()

    def wait_for(self, event: Any) -> None:
        self._called("wait_for")
        self._until(event, event.given)

    def is_reached(self, event: Any) -> bool:
        self._called("is_reached")
        return bool(event.reached >= event.given)

    def elapsed_ns(self, first: Any, last: Any) -> float:
        self._called("elapsed_ns")
        return float(last.at - first.at)

    # memory

    def pool(self, ordinal: int) -> Any:
        return object()

    def allocate(self, nbytes: int, pool: Any, stream: Any) -> int:
        self._called("allocate")
        assert self._of(stream).noted is None, "memory while a graph is noted"
        if self.used + nbytes > self.capacity:
            raise CallError("allocate", OUT_OF_MEMORY, "OUT_OF_MEMORY")
        pointer = self.emulator.buffer(nbytes).value
        self.blocks[pointer] = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))
        return pointer

    def free(self, pointer: int, stream: Any) -> None:
        self._called("free")

        def free() -> None:
            self.blocks.pop(pointer)[:] = POISON

        self._of(stream).give(Operation("free", free))

    def trim(self, pool: Any) -> None:
        self._called("trim")

    def allocate_host(self, nbytes: int) -> int:
        self._called("allocate_host")
        raw = np.full(nbytes, POISON, np.uint8)
        self.pinned[raw.ctypes.data] = raw
        return int(raw.ctypes.data)

    def free_host(self, pointer: int) -> None:
        self._called("free_host")
        del self.pinned[pointer]

    def _is_pinned(self, pointer: int) -> bool:
        return any(start <= pointer < start + raw.nbytes for start, raw in self.pinned.items())

    def _check(self, pointer: int, nbytes: int) -> None:
        """Sticky errors come where addresses are no memory, as those of kernels do."""
        if not any(start <= pointer and pointer + nbytes <= start + raw.nbytes for start, raw in self.blocks.items()):
            self.broken = ILLEGAL_ADDRESS
            raise CallError("copy", ILLEGAL_ADDRESS, "ILLEGAL_ADDRESS")

    def copy_in(self, target: int, host: int, nbytes: int, stream: Any) -> None:
        self._called("copy_in")
        if self._is_pinned(host):
            source: Callable[[], bytes] = lambda: ctypes.string_at(host, nbytes)  # noqa: E731
        else:
            assert self._of(stream).noted is None, "a copy of the host's own memory while a graph is noted"
            data = ctypes.string_at(host, nbytes)
            source = lambda: data  # noqa: E731

        def do() -> None:
            self._check(target, nbytes)
            ctypes.memmove(target, source(), nbytes)

        self._of(stream).give(Operation("copy_in", do))

    def copy_out(self, host: int, source: int, nbytes: int, stream: Any) -> None:
        self._called("copy_out")

        def do() -> None:
            self._check(source, nbytes)
            ctypes.memmove(host, source, nbytes)

        self._of(stream).give(Operation("copy_out", do))
        if not self._is_pinned(host):
            assert self._of(stream).noted is None, "a copy to the host's own memory while a graph is noted"
            self._of(stream).drain()

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self._called("copy")

        def do() -> None:
            self._check(target, nbytes)
            self._check(source, nbytes)
            ctypes.memmove(target, source, nbytes)

        self._of(stream).give(Operation("copy", do))

    # kernels

    def load(self, code: bytes) -> Any:
        self._called("load")
        told, _, source = code.decode().partition("\n")
        facts = json.loads(told)
        library = self.kernels.library(facts["name"], source, self.emulator)
        if library not in self._loaded:
            self._loaded[library] = self.emulator.load(library)
        return {**facts, "library": self._loaded[library]}

    def unload(self, module: Any) -> None:
        self._called("unload")

    def function(self, module: Any, name: str) -> Any:
        assert name == module["name"]
        counts = (module[count] for count in ("pointers", "numbers", "shared_bytes", "maps"))
        return Loaded(module["library"], name, *counts)

    def launch(
        self, function: Any, blocks: int, lanes: int, arguments: int, stream: Any, overlapping: bool = False,
        shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        self._called("launch")
        assert shared_bytes in (function.shared_bytes, max(function.shared_bytes, ROOM_OF_ONE))
        count = function.pointers + 1 + function.maps
        places = np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(arguments))
        pointers = [ctypes.c_int64.from_address(int(place)).value for place in places[: function.pointers]]
        record, *maps = (
            ctypes.string_at(int(place), 8 * function.numbers if number == 0 else MAP_BYTES)
            for number, place in enumerate(places[function.pointers :])
        )

        def do() -> None:
            for pointer in pointers:
                self._check(pointer, 0)
            brought = [ctypes.create_string_buffer(data, len(data)) for data in (record, *maps)]
            held = [*map(ctypes.c_int64, pointers), *brought]
            self.emulator.launch(function.library, function.name, blocks, lanes, held)
            self.clock += self.launch_ns

        self._of(stream).give(Operation("launch", do, function))

    def encode_map(self, placed: PlacedMap, start: int) -> bytes:
        return encoded_map(placed, start)

    # graphs

    def begin_capture(self, stream: Any) -> None:
        self._called("begin_capture")
        self._of(stream).noted = []

    def end_capture(self, stream: Any) -> Any:
        self._called("end_capture")
        noted, self._of(stream).noted = self._of(stream).noted, None
        assert noted is not None
        return Graph(noted)

    def why_no_branches(self) -> str:
        return "" if self.branches else "a driver without branches"

    def compile_setter(self, source: str, name: str) -> bytes:
        return self.compile(source, "any", name)

    def condition(self, stream: Any) -> int:
        self._called("condition")
        noted = self._of(stream).noted
        assert noted is not None, "a condition of no graph"
        word = ctypes.c_uint32(POISON)
        number = ctypes.addressof(word)
        self.conditions[number] = word
        noted.append(Operation("condition", lambda: None, number))
        return number

    def branch(
        self, condition: int, stream: Any, bodies: Sequence[Callable[[Any], None]], repeated: bool = False
    ) -> None:
        """Conditions are of the very graph that their branch is in. None has a value when a graph begins."""
        self._called("branch")
        noted = self._of(stream).noted
        assert noted is not None, "a branch of no graph"
        own = [each for each in noted if each.kind == "condition" and each.detail == condition]
        assert len(own) == 1, "a condition of another graph, or of another branch"
        noted.remove(own[0])
        assert 1 <= len(bodies) <= (1 if repeated else 2)
        rows = [self._body(body) for body in bodies]
        word = self.conditions[condition]

        def do() -> None:
            while repeated and word.value:
                self._do(rows[0])
            if not repeated and (word.value or len(rows) == 2):
                self._do(rows[0] if word.value else rows[1])

        noted.append(Operation("branch", do, (word, rows)))

    def _body(self, body: Callable[[Any], None]) -> list[Operation]:
        stream = Stream(self, noted=[])
        self._streams.append(stream)
        try:
            body(stream)
        finally:
            assert self._streams.pop() is stream
        assert stream.noted, "a body without anything in it"
        kinds = {operation.kind for operation in stream.noted}
        assert kinds <= {"launch", "product", "copy", "branch"}, f"a body of {kinds}"
        return stream.noted

    def _do(self, operations: Sequence[Operation]) -> None:
        self.done.extend(operation.kind for operation in operations)
        for operation in operations:
            operation.do()

    def _forget_conditions(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if operation.kind == "branch":
                word, rows = operation.detail
                word.value = POISON
                for row in rows:
                    self._forget_conditions(row)

    def instantiate(self, graph: Any) -> Any:
        self._called("instantiate")
        assert all(kind != "condition" for kind, _ in graph.shape()), "a condition that no branch has"
        return Graph(list(graph.operations))

    def update(self, executable: Any, graph: Any) -> bool:
        self._called("update")
        assert all(kind != "branch" for kind, _ in (*executable.shape(), *graph.shape())), "a graph that does not move"
        if executable.shape() != graph.shape():
            return False
        executable.operations = list(graph.operations)
        return True

    def replay(self, executable: Any, stream: Any) -> None:
        self._called("replay")
        operations = list(executable.operations)

        def do() -> None:
            self._forget_conditions(operations)
            self._do(operations)

        self._of(stream).give(Operation("replay", do))

    def drop_graph(self, graph: Any) -> None:
        self._called("drop_graph")

    def drop_executable(self, executable: Any) -> None:
        self._called("drop_executable")
