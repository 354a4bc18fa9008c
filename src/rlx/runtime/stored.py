"""Programs that start from the cache on disk without their graph.

The cache stores code under the graph's fingerprint, so finding it means reading and importing the model. A *record*
beside it has a key that is known earlier: the path, options, environment, processor and versions (`key`). It contains
the digests of the model's files, the interface of the program, the places of its weights in the files, and the key of
its code. Files are read whole into memory. If their digests differ from the record's, or anything else does not fit,
the record is not used and the model takes the usual path. Weights are parts of that memory, so later changes to the
files do not affect them. The graph is read when something needs it (`LateGraph`).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import disk, flags, logs, mapped
from rlx.backends.base import Options
from rlx.errors import ModelError, RlxError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.check import Check, Violation
from rlx.ir.dim import Dim
from rlx.ir.expect import Equality
from rlx.ir.literal import Array
from rlx.ir.type import TensorType
from rlx.records import dataclass
from rlx.runtime.broadcasting import around
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.demands import Demands, Place, Sizes, Trips
from rlx.runtime.interface import Interface, LateGraph
from rlx.runtime.program import Program

if TYPE_CHECKING:
    from rlx.ir.graph import Graph
    from rlx.runtime.compiler import Compiler

VERSION = 1
DEVICE = "cpu"
MOST_OTHER_BYTES = 1 << 26
"""Of weights that lie in no file as they are (subnormal numbers became zero): a record holds them."""
_READ_BYTES = 1 << 22
_OTHER = -1
_PACKAGES = ("numpy", "ml_dtypes", "onnx", "llvmlite", "google/protobuf")
_NOT_IN_KEY = ("RLX_CACHE_DIR", "RLX_CACHE_BYTES")

Json = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """What a program starts from.

    about    what the model is beside its program, as `keep` was given it
    files    memory with the whole of each file; `states` tell when each was last written to
    """

    about: Json
    interface: Interface
    demands: Demands
    checks: Sequence[Check]
    program: str
    isa: Json
    params: Mapping[str, Array]
    states: Sequence[tuple[int, ...]]
    digests: Sequence[str]

    def open(self, options: Options, read: Callable[[], Graph]) -> CompiledGraph | None:
        """The program; None where its code is not in the cache any more. `read` gives the graph."""
        from rlx.backends.cpu import build

        start_ns = time.perf_counter_ns()
        program = build.stored(self.program, self.isa, options)
        if program is None:
            return None
        program.checks = self.checks
        program.compile_ns = time.perf_counter_ns() - start_ns
        late = LateGraph(self.interface, read)

        def compiler() -> Compiler:
            from rlx.device import registry
            from rlx.runtime.compiler import Compiler

            backend, ordinal = registry.backend(DEVICE)
            return Compiler(DEVICE, backend, options, ordinal)

        executable = around(late, program, lambda graph: compiler().for_equal_dims(graph))
        if logs.wanted(logs.COMPILES, "compile"):
            took = f"{program.compile_ns / 1e6:.1f} ms"
            logs.tell(logs.COMPILES, "compile", f"taken from the cache in {took}: {self.interface.name!r} for {DEVICE}")
        return CompiledGraph(Program(late, DEVICE, executable, compiler, self.params, self.demands))

    def check_unchanged(self, files: Sequence[Array]) -> None:
        """Raises ModelError where files that were read since are not those that the program is of."""
        now = [mapped.state_of(file) for file in files]
        if now == list(self.states):
            return
        if [_digest_of(mapped.path_of(file)) for file in files] != list(self.digests):
            raise ModelError(
                "[load] expected the model as it was when it was opened, got files that were written to since"
            )


def key(path: Path, device: str, options: Options, reader: Mapping[str, Any]) -> str | None:
    """The key of a model's record: all that its program hangs on beside the files themselves. None for what is not
    stored, and where this cannot be told cheaply."""
    processor = _processor()
    if not options.cache or not flags.cache() or flags.debug() >= 3 or device not in ("auto", DEVICE) or not processor:
        return None
    try:
        reader_text = json.dumps(dict(reader), sort_keys=True)
    except (TypeError, ValueError):  # arrays
        return None
    variables = sorted(i for i in os.environ.items() if i[0].startswith(flags.PREFIX) and i[0] not in _NOT_IN_KEY)
    switches = [sorted(options.disable), *(getattr(options, f.name) for f in fields(options) if f.name != "disable")]
    parts = [os.path.abspath(path), device, repr(switches), reader_text, repr(variables), repr(flags.code_state())]
    parts += [processor, _system(), sys.version, np.__version__, disk.source_digest(), repr(_packages())]
    if device == "auto":
        from rlx.device import facts

        parts.append(facts.digest())
    return "start-" + hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:40]


def _system() -> str:
    """Kernel and machine, without the processes that `platform` starts to find out more."""
    return repr(os.uname()) if hasattr(os, "uname") else sys.platform


def _processor() -> str:
    """What tells one processor from another: code is made for one. Empty where the system does not say."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            first = file.read().partition("\n\n")[0]
    except OSError:
        return ""
    fields = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU ", "Features")
    return "\n".join(line for line in first.splitlines() if line.startswith(fields))


def _packages() -> list[tuple[str, int, int]]:
    """Of packages that read models and write code: sizes and times of what changes with their versions."""
    packages = []
    for package in _PACKAGES:
        for root in sys.path:
            folder = os.path.join(root or ".", package)
            try:
                of = os.stat(folder)
                first = os.stat(os.path.join(folder, "__init__.py"))
            except OSError:
                continue
            packages.append((folder, of.st_mtime_ns, first.st_mtime_ns))
            break
    return packages


# the record


def keep(of: str, about: Json, files: Sequence[Array], compiled: CompiledGraph) -> None:
    """Notes how a program that was compiled starts the next time, if that can be told. `files` are those that the model
    was read from, mapped."""
    executable = compiled.executable.stored
    graph = compiled.graph
    paths = [mapped.path_of(file) for file in files]
    if executable is None or not files or None in paths or set(graph.data) != set(compiled.program.params):
        return
    places, other = _places(graph.data, files)
    if sum(array.nbytes for array in other) > MOST_OTHER_BYTES:
        return
    program, isa, checks = executable
    digests = [_digest_of(path) for path in paths]
    if [mapped.state_of(file) for file in files] != [mapped.state_at(path) for path in paths if path]:
        return  # what was hashed is not what was read
    demands = Demands.of(graph)
    header = {
        "version": VERSION, "about": about, "program": program, "isa": isa,
        "files": [[str(path), file.size, digest] for path, file, digest in zip(paths, files, digests)],
        "params": places, "interface": _interface_out(Interface.of(graph)),
        "checks": [_check_out(check) for check in checks],
        "sizes": [_sizes_out(demands.fixed), _sizes_out(demands.open)],
        "trips": [_trips_out(demands.fixed_trips), _trips_out(demands.open_trips)],
    }  # fmt: skip
    text = json.dumps(header).encode()
    blobs = [np.ascontiguousarray(array).tobytes() for array in other]
    disk.write(of, b"".join([len(text).to_bytes(8, "little"), text, *blobs]))


def find(of: str) -> Record | None:
    """The record of this key, with the files in memory; None if there is none, or the files are not those of it."""
    data = disk.read(of)
    if data is None:
        return None
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        if header["version"] != VERSION:
            return None
        files = [_read(Path(path), size, digest) for path, size, digest in header["files"]]
        memory = [each[0] for each in files if each is not None]
        if len(memory) < len(files):
            return None
        other = np.frombuffer(data, np.uint8, offset=8 + length)
        params = {n: _param(other if at[0] == _OTHER else memory[at[0]], *at[1:]) for n, at in header["params"].items()}
        fixed, open_ = (_sizes_in(part) for part in header["sizes"])
        return Record(
            about=header["about"],
            interface=_interface_in(header["interface"]),
            demands=Demands(fixed, open_, *(_trips_in(part) for part in header["trips"])),
            checks=[_check_in(entry) for entry in header["checks"]],
            program=header["program"],
            isa=header["isa"],
            params=params,
            states=[each[1] for each in files if each is not None],
            digests=[digest for *_, digest in header["files"]],
        )
    except (ValueError, KeyError, TypeError, IndexError, RlxError):  # of no version that we know
        return None


def _read(path: Path, size: int, digest: str) -> tuple[Array, tuple[int, ...]] | None:
    """The whole of a file in memory, with its state; None if its content is another than noted."""
    try:
        with open(path, "rb", buffering=0) as file:
            before = mapped.state_of_open(file.fileno())
            if os.fstat(file.fileno()).st_size != size:
                return None
            memory = np.empty(size, np.uint8)
            hasher, remaining = _Hasher(beside=size > _READ_BYTES), memory.data
            try:
                while remaining and (count := file.readinto(remaining[:_READ_BYTES])):
                    hasher.update(remaining[:count])
                    remaining = remaining[count:]
            finally:
                actual_digest = hasher.hexdigest()  # which ends its thread
    except OSError:
        return None
    return (memory, before) if not remaining and actual_digest == digest else None


class _Hasher:
    """SHA-256 of parts; with `beside` in a thread of its own, while the next part is read."""

    def __init__(self, beside: bool) -> None:
        self._hash = hashlib.sha256()
        self._parts: SimpleQueue[memoryview | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="rlx-hash", daemon=True) if beside else None
        if self._thread is not None:
            self._thread.start()

    def _work(self) -> None:
        while (part := self._parts.get()) is not None:
            self._hash.update(part)

    def update(self, part: memoryview) -> None:
        if self._thread is None:
            self._hash.update(part)
        else:
            self._parts.put(part)

    def hexdigest(self) -> str:
        if self._thread is not None:
            self._parts.put(None)
            self._thread.join()
        return self._hash.hexdigest()


def _digest_of(path: Path | None) -> str:
    """Of a file's content; empty if it cannot be read."""
    if path is None:
        return ""
    hasher = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            while part := file.read(_READ_BYTES):
                hasher.update(part)
    except OSError:
        return ""
    return hasher.hexdigest()


def _places(data: Mapping[str, Array], files: Sequence[Array]) -> tuple[dict[str, list[Any]], list[Array]]:
    """Where each array lies: the number of its file, or that of what the record holds itself; with these."""
    starts = [(file.__array_interface__["data"][0], file.nbytes) for file in files]
    places, other, end = {}, [], 0
    for name, array in data.items():
        what = [dtypes.of(array.dtype).name, list(array.shape)]
        begin = array.__array_interface__["data"][0]
        inside = [i for i, (at, size) in enumerate(starts) if at <= begin and begin + array.nbytes <= at + size]
        if inside and array.flags.c_contiguous and array.dtype.isnative:
            places[name] = [inside[0], begin - starts[inside[0]][0], *what]
        else:
            places[name] = [_OTHER, end, *what]
            other.append(array.astype(array.dtype.newbyteorder("="), copy=False))
            end += array.nbytes
    return places, other


def _param(memory: Array, offset: int, dtype: str, shape: list[int]) -> Array:
    of = dtypes.parse(dtype).numpy
    count = 1
    for n in shape:
        count *= n
    array = memory[offset : offset + count * of.itemsize].view(of).reshape(shape)
    array.flags.writeable = False
    return array


@cache
def _dim(text: int | str) -> Dim:
    if isinstance(text, int):
        return text
    return int(text) if text.isdecimal() else dims.parse(text)


def _type_out(of: TensorType) -> list[Any]:
    return [of.dtype.name, _shape_out(of.shape)]


def _type_in(entry: list[Any]) -> TensorType:
    return TensorType(_shape_in(entry[1]), dtypes.parse(entry[0]))


def _shape_out(shape: Sequence[Dim]) -> list[int | str]:
    return [d if isinstance(d, int) else str(d) for d in shape]


def _shape_in(entry: Sequence[int | str]) -> tuple[Dim, ...]:
    return tuple(_dim(d) for d in entry)


def _sizes_out(sizes: Sizes) -> list[Any]:
    return [[_shape_out(shape), nbytes, place.op, place.label] for shape, (nbytes, place) in sizes.items()]


def _sizes_in(entry: list[Any]) -> Sizes:
    return {_shape_in(shape): (nbytes, Place(op, label)) for shape, nbytes, op, label in entry}


def _trips_out(trips: Trips) -> list[Any]:
    return [[str(count), place.op, place.label] for count, place in trips]


def _trips_in(entry: list[Any]) -> Trips:
    return [(_dim(count), Place(op, label)) for count, op, label in entry]


def _check_out(of: Check) -> list[Any]:
    return [*_shape_out((of.low, of.high)), asdict(of.words), None if of.count is None else str(of.count)]


def _check_in(entry: list[Any]) -> Check:
    low, high, words, count = entry
    return Check(_dim(low), _dim(high), Violation(**words), None if count is None else _dim(count))


def _equality_out(of: Equality) -> list[Any]:
    return [*_shape_out((of.left, of.right)), of.reason, of.spreads]


def _equality_in(entry: list[Any]) -> Equality:
    return Equality(_dim(entry[0]), _dim(entry[1]), entry[2], entry[3])


def _interface_out(of: Interface) -> Json:
    return {
        "name": of.name,
        **{part: {n: _type_out(t) for n, t in getattr(of, part).items()} for part in ("inputs", "params", "outputs")},
        "states": of.states, "following": of.following, "symbols": of.symbols, "measured": of.measured,
        "bounds": {name: list(pair) for name, pair in of.bounds.items()},
        "equalities": [_equality_out(e) for e in of.equalities], "within": [_equality_out(e) for e in of.within],
        "assumes_equal": of.assumes_equal,
    }  # fmt: skip


def _interface_in(entry: Json) -> Interface:
    inputs, params, outputs = ({n: _type_in(t) for n, t in entry[p].items()} for p in ("inputs", "params", "outputs"))
    return Interface(
        name=entry["name"], inputs=inputs, states=tuple(entry["states"]), following=entry["following"], params=params,
        outputs=outputs, symbols=tuple(entry["symbols"]), measured=tuple(entry["measured"]),
        bounds={name: (low, high) for name, (low, high) in entry["bounds"].items()},
        equalities=tuple(map(_equality_in, entry["equalities"])), within=tuple(map(_equality_in, entry["within"])),
        assumes_equal=entry["assumes_equal"],
    )  # fmt: skip
