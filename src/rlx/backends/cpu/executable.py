"""A compiled graph on the CPU: machine code, packed weights, and arenas that calls take turns with."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.backends.base import Bound, Executable
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.jit import Loaded
from rlx.backends.cpu.pool import ThreadPool
from rlx.errors import InputError, OutOfMemory
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.literal import Array
from rlx.ir.type import TensorType

PAGE = 4096
_Entry = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
)


@dataclass(frozen=True)
class Slot:
    """A buffer that is not in the arena: its number, type, and name."""

    number: int
    type: TensorType
    name: str


@dataclass
class Artifact:
    """Everything of a compiled program but its weights: what the cache on disk keeps.

    `kept` are the buffers that `rlx_prepare` writes and `rlx_main` reads. Arena sizes are bytes without scratch;
    scratch is bytes for one thread.
    """

    code: bytes
    symbols: tuple[str, ...]
    buffers: int
    inputs: list[Slot]
    params: list[Slot]
    outputs: list[Slot]
    kept: list[Slot]
    constants: dict[int, Array]
    arena: Dim
    scratch: Dim
    prepare_arena: int
    prepare_scratch: int
    main_params: list[int]
    report: dict[str, Any] = field(default_factory=dict)


def aligned_empty(nbytes: int) -> Array:
    """Fresh memory that starts at a page; big ones come in huge pages where the system gives them."""
    raw = np.empty(nbytes + PAGE, np.uint8)
    start = -raw.ctypes.data % PAGE
    return raw[start : start + nbytes]


def _address(array: Array) -> int:
    where: int = array.__array_interface__["data"][0]
    return where


class _Weights:
    """One set of weights, packed: arrays that `rlx_main` reads, and their addresses by buffer number."""

    def __init__(self, arrays: dict[int, Array]) -> None:
        self.arrays = arrays
        self.addresses = {number: _address(a) for number, a in arrays.items()}


class CpuExecutable(Executable):
    """Runs an artifact. Weights are swapped as a whole, so that a run sees the old ones or the new ones."""

    def __init__(self, artifact: Artifact, isa: Isa, threads: int | None) -> None:
        self.artifact = artifact
        self._loaded = Loaded(artifact.code, isa)
        self.main = _Entry(self._loaded.address("rlx_main"))
        self._prepare_entry = _Entry(self._loaded.address("rlx_prepare"))
        self.pool = ThreadPool.shared()
        self.threads = min(threads or self.pool.threads, self.pool.threads)
        self._lock = threading.Lock()
        self._params: dict[str, Array] = {}
        self._weights: _Weights | None = None

    def set_params(self, params: Mapping[str, Array]) -> None:
        with self._lock:
            self._params = {**self._params, **params}
            self._weights = None

    @property
    def weights(self) -> _Weights:
        """The packed weights; packs them at the first call after `set_params`. Raises InputError if one is missing."""
        ready = self._weights
        if ready is None:
            with self._lock:
                if self._weights is None:
                    self._weights = self._prepare()
                ready = self._weights
        return ready

    def _prepare(self) -> _Weights:
        missing = [s.name for s in self.artifact.params if s.name not in self._params]
        if missing:
            raise InputError(f"[run] expected params to be set, got none for {', '.join(missing)}")
        arrays = {s.number: self._params[s.name] for s in self.artifact.params}
        arrays.update(self.artifact.constants)
        kept = {s.number: aligned_empty(s.type.nbytes()) for s in self.artifact.kept}
        arrays.update(kept)
        table = (ctypes.c_void_p * self.artifact.buffers)()
        for number, array in arrays.items():
            table[number] = _address(array)
        size = self.artifact.prepare_arena + self.threads * self.artifact.prepare_scratch
        arena = aligned_empty(size)
        self._prepare_entry(table, None, _address(arena), self.pool.parallel_address, self.threads)
        used = {*self.artifact.main_params, *kept}
        return _Weights({number: a for number, a in arrays.items() if number in used})

    def bind(self, binding: Mapping[str, int]) -> Bound:
        values = [binding[s] for s in self.artifact.symbols]
        return CpuBound(self, dict(zip(self.artifact.symbols, values)))

    def describe(self) -> dict[str, Any]:
        return {**self.artifact.report, "threads": self.threads}


class _Frame:
    """What one call in progress owns: the table of buffer addresses and an arena."""

    __slots__ = ("arena", "arena_address", "table", "weights")

    def __init__(self, bound: CpuBound) -> None:
        self.table = (ctypes.c_void_p * max(bound.executable.artifact.buffers, 1))()
        try:
            self.arena = aligned_empty(bound.arena_bytes)
        except MemoryError:
            raise OutOfMemory(f"[run] no memory for an arena of {bound.arena_bytes} bytes on cpu") from None
        self.arena_address = _address(self.arena)
        self.weights: _Weights | None = None


class CpuBound(Bound):
    """The executable at one size. Calls in parallel each take a frame of their own."""

    def __init__(self, executable: CpuExecutable, binding: dict[str, int]) -> None:
        self.executable = executable
        artifact = executable.artifact
        self.dims = (ctypes.c_int64 * max(len(artifact.symbols), 1))(*binding.values())
        threads = executable.threads
        self.arena_bytes = dims.evaluate(artifact.arena, binding) + threads * dims.evaluate(artifact.scratch, binding)
        self.inputs = [s.number for s in artifact.inputs]
        self.outputs = [
            (s.number, tuple(dims.evaluate(d, binding) for d in s.type.shape), s.type.dtype.numpy)
            for s in artifact.outputs
        ]
        self._frames: list[_Frame] = []
        self._main = executable.main
        self._parallel = executable.pool.parallel_address
        self._threads = threads

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        weights = self.executable._weights or self.executable.weights
        frame = self._frames.pop() if self._frames else _Frame(self)
        table = frame.table
        if frame.weights is not weights:
            for number, address in weights.addresses.items():
                table[number] = address
            frame.weights = weights
        for number, array in zip(self.inputs, inputs):
            table[number] = array.__array_interface__["data"][0]
        results = []
        for number, shape, dtype in self.outputs:
            made = np.empty(shape, dtype)
            table[number] = made.__array_interface__["data"][0]
            results.append(made)
        self._main(table, self.dims, frame.arena_address, self._parallel, self._threads)
        self._frames.append(frame)
        return results
