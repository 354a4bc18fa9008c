"""The driver of Apple's GPUs: Metal, by ctypes.

Memory is the processor's too, so pointers are where the processor has it, and copies of an idle device are the
processor's. There is one queue: streams are names of it, whose order is that of all.
"""

from __future__ import annotations

import ctypes
import platform
import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.backends.apple_gpu.commands import CommandBuffer, Commands
from rlx.backends.apple_gpu.objective_c import Size, objective_c
from rlx.backends.cuda.driver import OUT_OF_MEMORY, Api, CallError, Driver
from rlx.errors import CompileError, DeviceUnavailable

METAL = Api("apple-gpu", "Metal", dlpack=0, torch="", legacy_stream=0, most_lanes=(1 << 32) - 1)
LANGUAGE = 3 << 16
"""`MTLLanguageVersion3_0`."""
SHARED = 0
"""`MTLResourceStorageModeShared`: memory of the processor and the device."""
READ_AND_WRITE = 3
"""`MTLResourceUsage`."""
MOST_BYTES = 4096
"""That commands hold themselves."""
WORD = 4
"""Bytes of which places and sizes of copies are multiples on macOS."""
NO_SUCH_MEMORY = 700
NO_SUCH_FUNCTION = 500
"""Codes of CUDA's for what Metal has no code for."""


@dataclass
class Event:
    """A point behind a buffer of commands, or behind nothing."""

    timed: bool
    behind: CommandBuffer | None = None


@dataclass(frozen=True)
class Pipeline:
    """A kernel that the device has: how many pointers it takes, how many numbers, and how many pointers are buffers."""

    handle: int
    pointers: int
    numbers: int
    near: int


@dataclass
class Module:
    """A library, with the objects that were made of it."""

    library: int
    text: str
    made: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Buffer:
    handle: int
    nbytes: int


class MetalDriver(Driver):
    """The driver of this machine. Raises DeviceUnavailable."""

    api = METAL
    times_in_graphs = False
    captures = False

    def __init__(self) -> None:
        self.objects = objective_c()
        self.device = self.objects.default_device()
        if not self.device:
            raise DeviceUnavailable("[device] Metal has no device here")
        self.compiler = f"Metal 3.0 of macOS {self.version()}, fast math off"
        self._commands: Commands | None = None
        self._libraries: dict[str, int] = {}
        self._buffers: dict[int, Buffer] = {}
        self._starts: list[int] = []
        self._spare: dict[int, list[int]] = defaultdict(list)
        self._streams = 0

    @property
    def commands(self) -> Commands:
        assert self._commands is not None  # a device was opened
        return self._commands

    def version(self) -> str:
        return platform.mac_ver()[0]

    def device_count(self) -> int:
        return 1

    def device_name(self, ordinal: int) -> str:
        with self.objects.pool():
            return self.objects.text(self.objects.send(self.device, "name"))

    def architecture(self, ordinal: int) -> str:
        return self.device_name(ordinal)

    def overlaps(self, ordinal: int) -> bool:
        return False

    def compile(self, source: str, architecture: str, name: str) -> bytes:
        """The text itself, which was found to compile: macOS keeps machine code of its own accord."""
        library = self._library(source, name)
        if self._libraries.setdefault(source, library) != library:
            self.objects.send(library, "release")
        return source.encode()

    def _library(self, source: str, name: str) -> int:
        objects, error = self.objects, ctypes.c_void_p()
        with objects.pool():
            options = objects.send(objects.send(objects.class_named("MTLCompileOptions"), "alloc"), "init")
            objects.send(options, "setFastMathEnabled:", False)
            objects.send(options, "setLanguageVersion:", LANGUAGE)
            text = objects.string(source)
            place = ctypes.byref(error)
            made = objects.send(self.device, "newLibraryWithSource:options:error:", text, options, place)
            objects.send(options, "release")
            if not made:
                raise CompileError(f"[apple-gpu] {name}: {objects.told(error.value)}")
        return int(made)

    # contexts

    def open(self, ordinal: int) -> Any:
        if self._commands is None:
            self._commands = Commands(self.objects, self.device or 0)
        return ordinal

    def reset(self, ordinal: int) -> None:
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        for buffer in self._buffers.values():
            self.objects.send(buffer.handle, "release")
        self._buffers.clear()
        self._starts.clear()
        self._spare.clear()

    def enter(self, context: Any) -> None:
        """Every thread has the device."""

    def memory(self) -> tuple[int, int]:
        total = self.objects.send(self.device, "recommendedMaxWorkingSetSize")
        return max(total - self.objects.send(self.device, "currentAllocatedSize"), 0), total

    # streams and events

    def stream(self) -> Any:
        self._streams += 1
        return self._streams

    def stream_number(self, stream: Any) -> int:
        return int(stream)

    def synchronise(self, stream: Any) -> None:
        self.commands.drain()

    def synchronise_all(self) -> None:
        self.commands.drain()

    def submit(self, stream: Any) -> None:
        self.commands.submit()

    def event(self, timed: bool = False) -> Any:
        return Event(timed)

    def record(self, event: Any, stream: Any, external: bool = False) -> None:
        event.behind = self.commands.mark() if event.timed else self.commands.latest

    def wait(self, stream: Any, event: Any) -> None:
        """Streams are in order; the one of libraries that name none is the host."""
        if stream == self.api.legacy_stream:
            self.wait_for(event)

    def wait_for(self, event: Any) -> None:
        self.commands.finish(event.behind)

    def is_reached(self, event: Any) -> bool:
        behind = event.behind
        if behind is None:
            return True
        if not behind.committed:
            self.commands.submit()
        if not behind.is_completed():
            return False
        self.commands.finish(behind)
        return True

    def elapsed_ns(self, first: Any, last: Any) -> float:
        return float((last.behind.end_time() - first.behind.end_time()) * 1e9)

    def drop_event(self, event: Any) -> None:
        event.behind = None

    # memory

    def pool(self, ordinal: int) -> Any:
        return ordinal

    def allocate(self, nbytes: int, pool: Any, stream: Any) -> int:
        """What was given back before may still be read by what the queue was given, and is written in its order."""
        spare = self._spare[nbytes]
        if spare:
            return spare.pop()
        return self._new_buffer(nbytes)

    def _new_buffer(self, nbytes: int) -> int:
        objects, made = self.objects, 0
        if nbytes <= self.memory()[0]:
            with objects.pool():
                made = objects.send(self.device, "newBufferWithLength:options:", nbytes, SHARED)
        if not made:
            raise CallError("newBufferWithLength", OUT_OF_MEMORY, "OUT_OF_MEMORY")
        start = int(objects.send(made, "contents"))
        self._buffers[start] = Buffer(made, nbytes)
        self._starts.insert(bisect_right(self._starts, start), start)
        return start

    def _drop_buffer(self, start: int) -> None:
        """Commands that name a buffer keep it."""
        self.objects.send(self._buffers.pop(start).handle, "release")
        del self._starts[bisect_right(self._starts, start) - 1]

    def free(self, pointer: int, stream: Any) -> None:
        self._spare[self._buffers[pointer].nbytes].append(pointer)

    def trim(self, pool: Any) -> None:
        for starts in self._spare.values():
            for start in starts:
                self._drop_buffer(start)
        self._spare.clear()

    def allocate_host(self, nbytes: int) -> int:
        return self._new_buffer(-(-nbytes // WORD) * WORD)

    def free_host(self, pointer: int) -> None:
        self._drop_buffer(pointer)

    def _place(self, pointer: int) -> tuple[Buffer, int] | None:
        """The buffer that an address is in, and how far; None for memory that is the processor's alone."""
        at = bisect_right(self._starts, pointer) - 1
        if at < 0:
            return None
        buffer, offset = self._buffers[self._starts[at]], pointer - self._starts[at]
        return (buffer, offset) if offset < buffer.nbytes else None

    def _bound(self, pointer: int) -> tuple[Buffer, int]:
        """The buffer of an argument, and how far it begins. Arrays without elements may lie at the end of one."""
        found, before = self._place(pointer), self._place(pointer - 1)
        if found is None and before is not None:
            return before[0], 0
        if found is None:
            raise CallError("setBuffer", NO_SUCH_MEMORY, f"no memory of the device at {pointer:#x}")
        return found

    def copy_in(self, target: int, host: int, nbytes: int, stream: Any) -> None:
        self._copy(target, host, nbytes)

    def copy_out(self, host: int, source: int, nbytes: int, stream: Any) -> None:
        self._copy(host, source, nbytes)

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self._copy(target, source, nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        """By the processor where the device is idle, or where it cannot reach both sides; else behind what it does."""
        commands = self.commands
        with commands.lock, self.objects.pool():
            to, of = self._place(target), self._place(source)
            words = target % WORD == source % WORD == nbytes % WORD == 0
            if commands.is_idle() or to is None or of is None or not words:
                commands.drain()
                ctypes.memmove(target, source, nbytes)
                return
            self.objects.send(
                commands.encoder("blit"), "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",
                of[0].handle, of[1], to[0].handle, to[1], nbytes,
            )  # fmt: skip

    # kernels

    def load(self, code: bytes) -> Any:
        text = code.decode()
        return Module(self._libraries.pop(text, 0) or self._library(text, "a kernel"), text)

    def unload(self, module: Any) -> None:
        for handle in (*reversed(module.made), module.library):
            self.objects.send(handle, "release")

    def function(self, module: Any, name: str) -> Any:
        objects, error = self.objects, ctypes.c_void_p()
        with objects.pool():
            function = objects.send(module.library, "newFunctionWithName:", objects.string(name))
            if not function:
                raise CallError("newFunctionWithName", NO_SUCH_FUNCTION, f"no function {name}")
            module.made.append(function)
            place = ctypes.byref(error)
            made = objects.send(self.device, "newComputePipelineStateWithFunction:error:", function, place)
            if not made:
                told = objects.told(error.value)
                raise CallError("newComputePipelineStateWithFunction", NO_SUCH_FUNCTION, told)
            module.made.append(made)
        return Pipeline(made, *parameters_of(module.text, name))

    def launch(
        self, function: Any, blocks: int, lanes: int, arguments: int, stream: Any, overlapping: bool = False,
        shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        send, commands = self.objects.send, self.commands
        places = np.ctypeslib.as_array((ctypes.c_int64 * (function.pointers + 1)).from_address(arguments))
        with commands.lock, self.objects.pool():
            bound = [self._bound(ctypes.c_uint64.from_address(int(place)).value) for place in places[:-1]]
            encoder = commands.encoder("compute")
            send(encoder, "setComputePipelineState:", function.handle)
            for number, (buffer, offset) in enumerate(bound[: function.near]):
                send(encoder, "setBuffer:offset:atIndex:", buffer.handle, offset, number)
            far = np.zeros(function.pointers - function.near, np.uint64)
            for number, (buffer, offset) in enumerate(bound[function.near :]):
                far[number] = send(buffer.handle, "gpuAddress") + offset
                send(encoder, "useResource:usage:", buffer.handle, READ_AND_WRITE)
            if far.size:
                self._set_numbers(encoder, far.ctypes.data, far.nbytes, function.near)
            self._set_numbers(encoder, int(places[-1]), 8 * function.numbers, function.near + (far.size > 0))
            size, group = Size(blocks, 1, 1), Size(lanes, 1, 1)
            send(encoder, "dispatchThreadgroups:threadsPerThreadgroup:", size, group)
            commands.launched()

    def _set_numbers(self, encoder: int, start: int, nbytes: int, index: int) -> None:
        send = self.objects.send
        if nbytes <= MOST_BYTES:
            send(encoder, "setBytes:length:atIndex:", start, nbytes, index)
            return
        held = send(self.device, "newBufferWithBytes:length:options:", start, nbytes, SHARED)
        if not held:
            raise CallError("newBufferWithBytes", OUT_OF_MEMORY, "OUT_OF_MEMORY")
        send(encoder, "setBuffer:offset:atIndex:", held, 0, index)
        send(held, "release")


def parameters_of(text: str, name: str) -> tuple[int, int, int]:
    """How many pointers a kernel takes, how many numbers of 64 bits, and how many of the pointers are buffers, by its
    text."""
    head = re.search(rf"\b{name}\((.*)\) {{$((?:\n  .* = .*\)far\[\d+\]\.start;$)*)", text, re.MULTILINE)
    assert head is not None, name
    numbers = re.search(r"Record<(\d+)>", head[1])
    assert numbers is not None, head[1]
    far = head[2].count("\n")
    near = head[1].count("[[buffer(") - (2 if far else 1)
    return near + far, int(numbers[1]), near
