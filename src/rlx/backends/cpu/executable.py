"""A compiled graph on the CPU: machine code, packed weights, and arenas that calls share."""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import interrupt, locks, mapped
from rlx.backends.checked import look
from rlx.backends.cpu import watch as watched
from rlx.backends.cpu.artifact import Artifact, to_bytes
from rlx.backends.cpu.clock import ns_per_tick
from rlx.backends.cpu.jit import Loaded
from rlx.backends.cpu.pool import ThreadPool
from rlx.backends.executable import Bound, Capabilities, Executable, KernelTime
from rlx.backends.stored_weights import LateWeights, Source, write_packed
from rlx.codegen.simd.isa import Isa
from rlx.disk import MappedEntry
from rlx.errors import InputError, OutOfMemory
from rlx.ir import dim as dims
from rlx.ir.check import Check
from rlx.ir.expect import unequal
from rlx.ir.literal import Array

if TYPE_CHECKING:
    from rlx.backends.cpu.tiers import Awaited

PAGE = 4096
IDLE_FRAMES = 4
"""Arenas kept for calls to come; more than that many calls at once make and drop their own."""

_Entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_ArenaBytes = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


def aligned_empty(nbytes: int) -> Array:
    """Fresh memory that starts at a page; big ones come in huge pages where the system gives them."""
    raw = np.empty(nbytes + PAGE, np.uint8)
    start = -raw.ctypes.data % PAGE
    return raw[start : start + nbytes]


def _memory(nbytes: int, what: str) -> Array:
    """`aligned_empty`. Raises OutOfMemory that says for what."""
    try:
        return aligned_empty(nbytes)
    except MemoryError:
        raise OutOfMemory(f"[run] expected memory on cpu for {what}, got none for {nbytes} bytes") from None


def _address(array: Array) -> int:
    where: int = array.__array_interface__["data"][0]
    return where


_DATA_FIELD = object.__basicsize__  # the pointer to an array's elements follows the object's header
_pointer_at = ctypes.c_void_p.from_address


def _address_in_header(array: Array) -> int:
    """`_address` read from the array object itself, in a seventh of the time."""
    return _pointer_at(id(array) + _DATA_FIELD).value or 0


def _fastest_address() -> Callable[[Array], int]:
    """The quick way where this interpreter lays arrays out as expected, else the official one."""
    probes = [np.empty(n, np.uint8)[1:] for n in (3, 100, 5000)]
    same = all(_address_in_header(p) == _address(p) for p in probes)
    return _address_in_header if sys.implementation.name == "cpython" and same else _address


address_of = _fastest_address()


class _Packed:
    """One set of weights, packed: arrays that `rlx_main` reads, and their addresses by buffer number."""

    def __init__(self, arrays: dict[int, Array]) -> None:
        self.arrays = arrays
        self.addresses = {number: _address(a) for number, a in arrays.items()}


class _Frame:
    """What one call in progress owns: the table of buffer addresses and an arena."""

    __slots__ = ("address", "arena", "nbytes", "numbers", "numbers_address", "table", "weights")

    def __init__(self, buffers: int, nbytes: int) -> None:
        # then: which check failed, where times are written, and the callback by which loops ask whether to continue
        self.table = (ctypes.c_void_p * (buffers + 3))()
        self.arena = _memory(nbytes, "an arena of temporaries")
        self.nbytes = nbytes
        self.address = _address(self.arena)
        self.weights: _Packed | None = None
        self.numbers: Any = None  # of checks
        self.numbers_address = 0


class _Code:
    """Machine code in memory, with the frames of its calls. Programs that differ in weights alone share it."""

    def __init__(self, artifact: Artifact, isa: Isa, threads: int | None) -> None:
        self.artifact = artifact
        self.promotion: Awaited | None = None
        self.isa = isa
        self.key: str | None = None  # in the cache on disk
        self._loaded = Loaded(artifact.code, isa)
        self._before: list[Loaded] = []  # runs may still be in what was replaced
        self.main_address = self._loaded.address("rlx_main")
        self.main = _Entry(self.main_address)
        self.pool = ThreadPool.shared()
        self.threads = min(threads or self.pool.threads, self.pool.threads)
        """Of `rlx_prepare`, and of calls where nobody says otherwise."""
        self._frames: list[_Frame] = []

    def take(self, code: list[bytes]) -> None:
        """Lets later runs have other machine code for the same program."""
        loaded = Loaded(code, self.isa)
        address = loaded.address("rlx_main")
        self._before.append(self._loaded)
        self._loaded, self.main_address, self.main = loaded, address, _Entry(address)
        report = {**self.artifact.report, "code_bytes": sum(map(len, code))}
        self.artifact = replace(self.artifact, code=code, report=report)

    def finish(self) -> None:
        """Waits for code that is on its way."""
        if self.promotion is not None:
            self.promotion.wait()

    def pack(self, params: Mapping[str, Array]) -> _Packed:
        """Runs `rlx_prepare` on a set of weights. Raises InputError if one is missing."""
        artifact = self.artifact
        missing = [s.name for s in artifact.params if s.name not in params]
        if missing:
            raise InputError(f"[run] expected params to be set, got none for {', '.join(missing)}")
        # weights in mapped files are read here once more; packed ones are never read again
        mapped.release(params.values())
        arrays = {s.number: params[s.name] for s in artifact.params}
        arrays.update(artifact.constants)
        packed = {s.number: _memory(s.type.nbytes(), f"packed weights {s.name!r} of {s.type}") for s in artifact.kept}
        arrays.update(packed)
        frame = _Frame(artifact.buffers, self.bytes_of("rlx_prepare_arena", (ctypes.c_int64 * 1)(), self.threads))
        for number, array in arrays.items():
            frame.table[number] = _address(array)
        watch = interrupt.Watch()
        frame.table[artifact.buffers + 2] = watch.address
        entry = _Entry(self._loaded.address("rlx_prepare"))
        entry(frame.table, None, frame.address, self.pool.parallel_address, self.threads)
        mapped.release(params.values())
        if watch.error is not None:
            raise watch.error
        used = {*artifact.main_params, *packed}
        return _Packed({number: a for number, a in arrays.items() if number in used})

    def without_constants(self, packed: _Packed) -> dict[int, Array]:
        """Of what `rlx_main` reads, what the code does not bring itself."""
        return {n: array for n, array in packed.arrays.items() if n not in self.artifact.constants}

    def packed_by(self, entry: MappedEntry) -> _Packed | None:
        """Weights as `without_constants` gave them, in the memory of an entry; None if they are not those of this
        program."""
        artifact, read = self.artifact, set(self.artifact.main_params)
        slots = [*artifact.kept, *(slot for slot in artifact.params if slot.number in read)]
        if not all(slot.type.is_static for slot in slots):
            return None
        sizes = {slot.number: slot.type.nbytes() for slot in slots}
        if {name: array.nbytes for name, array in entry.arrays.items()} != {str(n): size for n, size in sizes.items()}:
            return None
        used = {n: array for n, array in artifact.constants.items() if n in read}
        return _Packed({**{n: entry.arrays[str(n)] for n in sizes}, **used})

    def bytes_of(self, name: str, values: Any, threads: int) -> int:
        """What the function of this name says about the size of an arena."""
        size = ctypes.c_int64()
        _ArenaBytes(self._loaded.address(name))(values, threads, ctypes.byref(size))
        return size.value

    def take_frame(self, nbytes: int) -> _Frame:
        """An idle frame with an arena of at least so many bytes, or a new one."""
        while self._frames:
            try:
                frame = self._frames.pop()
            except IndexError:  # another thread was faster
                break
            if frame.nbytes >= nbytes:
                return frame
        return _Frame(self.artifact.buffers, nbytes)

    def give_frame(self, frame: _Frame) -> None:
        if len(self._frames) < IDLE_FRAMES:
            self._frames.append(frame)


class _Weights:
    """One set of weights, never changed: packed when a run first wants it, for all programs that share it."""

    def __init__(self, code: _Code, params: Mapping[str, Array], packed: _Packed | None = None) -> None:
        self.params = params
        self.packed = packed
        self._code = code
        self._wanted: Source | None = None
        self._lock = locks.lock()

    def pack(self) -> _Packed:
        with self._lock:
            if self.packed is None:
                self.packed = self._code.pack(self.params)
                if self._wanted is not None:  # beside this run; the process waits for it before it ends
                    what = (self._wanted, self.packed)
                    threading.Thread(target=self._write, args=what, name="rlx-weights").start()
            return self.packed

    def keep(self, source: Source) -> None:
        """Keeps them on disk once they are packed; they are those in `source`."""
        with self._lock:
            self._wanted, packed = source, self.packed
        if packed is not None:
            self._write(source, packed)

    def _write(self, source: Source, packed: _Packed) -> None:
        if self._code.key is not None:
            write_packed(source.key(self._code.key), self._code.without_constants(packed))


class CpuExecutable(Executable):
    """Runs an artifact. Weights are swapped as a whole, so that a run sees the old ones or the new ones."""

    def __init__(self, code: _Code, params: Mapping[str, Array] | None = None, checks: Sequence[Check] = ()) -> None:
        self.checks = checks
        self.loaded = code
        self.threads = code.threads
        self.weights = _Weights(code, params or {})
        self._lock = locks.lock()

    @property
    def artifact(self) -> Artifact:
        return self.loaded.artifact

    @staticmethod
    def of(artifact: Artifact, isa: Isa, threads: int | None) -> CpuExecutable:
        """The artifact's code in memory, without weights."""
        return CpuExecutable(_Code(artifact, isa, threads))

    def set_params(self, params: Mapping[str, Array]) -> None:
        with self._lock:
            self.weights = _Weights(self.loaded, {**self.weights.params, **params})

    def take_stored(self, weights: LateWeights) -> bool:
        packed = None if weights.packed is None else self.loaded.packed_by(weights.packed)
        if packed is None:
            return False
        with self._lock:
            self.weights = _Weights(self.loaded, weights, packed)
        return True

    def take_packed(self, entry: MappedEntry) -> bool:
        """Reads the weights that it has where they are packed already, if it has not packed them itself; whether that
        was done."""
        packed = self.loaded.packed_by(entry)
        with self._lock:
            if packed is None or self.weights.packed is not None:
                return False
            self.weights = _Weights(self.loaded, self.weights.params, packed)
        return True

    def keep_packed(self, source: Source) -> None:
        with self._lock:
            self.weights.keep(source)

    def bind(self, binding: Mapping[str, int]) -> Bound:
        values = [binding[s] for s in self.artifact.symbols]
        dims_array = (ctypes.c_int64 * max(len(values), 1))(*values)
        return CpuBound(self, dict(zip(self.artifact.symbols, values)), dims_array)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            zero_copy_outputs=True, profiling="profile" in self.artifact.report, shared_code=True, saved_code=True
        )

    @property
    def nbytes(self) -> int:
        constants = sum(array.nbytes for array in self.artifact.constants.values())
        return sum(map(len, self.artifact.code)) + constants

    @property
    def writes_states(self) -> bool:
        return bool(self.artifact.in_place)

    @property
    def weight_bytes(self) -> int:
        return sum(s.type.nbytes() for s in self.artifact.kept) if self.weights.packed else 0

    def with_checks(self, checks: Sequence[Check]) -> CpuExecutable:
        copy = self.clone()
        copy.checks = checks
        return copy

    def clone(self, weights: bool = True) -> CpuExecutable:
        copy = CpuExecutable(self.loaded, checks=self.checks)
        if weights:
            copy.weights = self.weights
        copy.compile_ns, copy.from_cache = self.compile_ns, self.from_cache
        return copy

    @property
    def code_in_use(self) -> int:
        """Where the function lies that runs call."""
        return self.loaded.main_address

    @property
    def stored(self) -> tuple[str, dict[str, Any], Sequence[Check]] | None:
        key = self.loaded.key
        return None if key is None else (key, asdict(self.loaded.isa), self.checks)

    def finish(self) -> None:
        self.loaded.finish()

    def code(self) -> bytes:
        self.finish()
        return to_bytes(self.artifact)

    def describe(self) -> dict[str, Any]:
        promotion = self.loaded.promotion
        states = [self.artifact.inputs[at].name for at in self.artifact.in_place.values()]
        return {
            **self.artifact.report,
            "threads": self.threads,
            "tier": "full" if promotion is None or promotion.is_done else "quick",
            "written_in_place": states,
        }


class CpuBound(Bound):
    """The executable at one size. Calls in parallel each take a frame of their own."""

    looks = True

    def __init__(self, executable: CpuExecutable, binding: dict[str, int], dims_array: Any) -> None:
        self.executable = executable
        self.dims = dims_array
        code = executable.loaded
        self.arena_bytes = code.bytes_of("rlx_main_arena", dims_array, executable.threads)
        artifact = executable.artifact
        self.inputs = [s.number for s in artifact.inputs]
        checks = executable.checks
        outputs = [
            (s.number, tuple(dims.evaluate(d, binding) for d in s.type.shape), s.type.dtype.numpy)
            for s in (artifact.outputs[:-1] if checks else artifact.outputs)
        ]
        self._in_place = list(artifact.in_place.items())
        self.outputs = [output for i, output in enumerate(outputs) if i not in artifact.in_place]
        self._watched = artifact.outputs[-1].number if checks else 0
        self._most = [check.most(binding) for check in checks]
        self._binding = binding
        self.shapes = tuple(shape for _, shape, _ in outputs)
        self._code = code
        self._parallel = code.pool.parallel_address
        self._threads = executable.threads
        self._checks = artifact.checks
        self._loops = artifact.loops
        self._times_shape = (len(artifact.report["kernels"]), 3) if "profile" in artifact.report else None

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        try:
            return self._run(inputs, np.zeros(self._times_shape, np.int64) if self._times_shape else None, out)
        except OutOfMemory:
            raise
        except MemoryError:
            raise self._no_memory() from None

    def profile(self, inputs: Sequence[Array], out: Sequence[Array] | None = None) -> list[KernelTime]:
        """As every bound; results go to `out`, if it is given: memory that the system has handed over already."""
        report = self.executable.artifact.report
        if "profile" not in report:
            return super().profile(inputs)
        times = np.zeros((len(report["kernels"]), 3), np.int64)
        self._run(inputs, times, out)
        ran = times[times[:, 1] > 0]
        start, ns = (int(ran[:, 2].min()) if len(ran) else 0), ns_per_tick()
        return [
            KernelTime(name, tuple(sources), int(calls), float(ticks * ns), float((first - start) * ns) if calls else 0)
            for name, sources, (ticks, calls, first) in zip(report["kernels"], report["sources"], times)
        ]

    def _ends_early(self, limit: interrupt.Limit, frame: _Frame) -> bool:
        """Runs the program until the limit; whether that came first. Where there are no workers, loops alone look."""
        pool = self._code.pool
        if not pool.watched_main:
            self._code.main(frame.table, self.dims, frame.address, self._parallel, self._threads)
            return False
        main = self._code.main_address
        return not watched.run(pool, main, frame.table, self.dims, frame.address, self._threads, limit)

    def _no_memory(self) -> OutOfMemory:
        """For results: the largest is named."""
        sizes = [math.prod(shape) * dtype.itemsize for _, shape, dtype in self.outputs]
        most = sizes.index(max(sizes))
        slot = next(s for s in self._code.artifact.outputs if s.number == self.outputs[most][0])
        largest = f"results, the largest of them {slot.name!r} of {slot.type}: {sizes[most]} bytes"
        return OutOfMemory(f"[run] expected memory on cpu for {largest}, got none")

    def _place_results(self, table: Any, inputs: Sequence[Array], out: Sequence[Array | None] | None) -> list[Array]:
        """Arrays for the outputs, told to the code: those of the caller, or new ones, or where states lie."""
        if out is None:
            results = [np.empty(shape, dtype) for _, shape, dtype in self.outputs]
        else:
            apart = self.executable.artifact.in_place
            buffers = [array for i, array in enumerate(out) if i not in apart]
            results = [np.empty(o[1], o[2]) if array is None else array for o, array in zip(self.outputs, buffers)]
        for (number, _, _), array in zip(self.outputs, results):
            table[number] = address_of(array)
        for i, at in self._in_place:
            results.insert(i, inputs[at])
        return results

    def _run(
        self, inputs: Sequence[Array], times: Array | None, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        code = self._code
        holder = self.executable.weights
        weights = holder.packed or holder.pack()
        frame = code.take_frame(self.arena_bytes)
        table = frame.table
        if frame.weights is not weights:
            for number, address in weights.addresses.items():
                table[number] = address
            frame.weights = weights
        for number, array in zip(self.inputs, inputs):
            table[number] = address_of(array)
        results = self._place_results(table, inputs, out)
        if times is not None:
            table[code.artifact.buffers + 1] = address_of(times)
        if self._most:
            if frame.numbers is None:
                frame.numbers = (ctypes.c_uint64 * len(self._most))()
                frame.numbers_address = ctypes.addressof(frame.numbers)
            table[self._watched] = frame.numbers_address
        watch = interrupt.Watch() if self._loops else None
        if watch is not None:
            table[code.artifact.buffers + 2] = watch.address
        limit = interrupt.limit()
        if limit is None:
            code.main(table, self.dims, frame.address, self._parallel, self._threads)
        ended = limit is not None and self._ends_early(limit, frame)
        failed = table[code.artifact.buffers] if self._checks else None
        if failed:
            table[code.artifact.buffers] = None
        wrong = None
        for number, most in zip(frame.numbers or (), self._most):
            if number > most:
                wrong = list(frame.numbers or ())
                break
        code.give_frame(frame)
        if ended or failed or wrong or watch is not None:
            self._refuse(watch, failed, wrong)
        return results

    def _refuse(self, watch: interrupt.Watch | None, failed: int | None, wrong: list[int] | None) -> None:
        """Raises what the run failed with, if it did."""
        if watch is not None and watch.error is not None:
            raise watch.error
        interrupt.check()
        if failed:
            raise unequal(self._checks[failed - 1], self._binding)
        if wrong:
            look(wrong, self._most, self.executable.checks, self._binding)
