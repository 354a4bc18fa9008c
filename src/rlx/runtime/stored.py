"""Programs that start from the cache on disk without their graph.

The cache stores code under the graph's fingerprint, so finding it means reading and importing the model. A *record*
beside it has a key that is known earlier: the path, options, environment, processor and versions (`key`). It contains
the digests of the model's files, the interface of the program, the places of its weights in the files, and the key of
its code. If the digests of the files differ from the record's, or anything else does not fit, the record is not used
and the model takes the usual path. Packed weights come from the cache too (`backends.stored_weights`), so later changes
to the files do not affect them; the weights as they are, and the graph, are read when something needs them.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import disk, flags, logs, mapped
from rlx.backends.base import Options
from rlx.backends.stored_weights import LateWeights, Opening, Source, has_digests
from rlx.errors import ModelError, RlxError
from rlx.ir import dim as dims
from rlx.ir import dim_table
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

VERSION = 3
DEVICE = "cpu"
MOST_OTHER_BYTES = 1 << 26
"""Of weights that lie in no file as they are (subnormal numbers became zero): a record holds them."""
_PACKAGES = ("numpy", "ml_dtypes", "onnx", "llvmlite", "google/protobuf")
_NOT_IN_KEY = ("RLX_CACHE_DIR", "RLX_CACHE_BYTES")

Json = dict[str, Any]
Known = Mapping[str, Dim]
"""Dims by their texts, which need not be parsed."""


@dataclass(frozen=True)
class Spot:
    """Where the record of a model is: the key of its entry, and the folder of the model, from which on the entry names
    files. So the model may move, with the cache or without."""

    key: str
    folder: str


@dataclass(frozen=True)
class Record:
    """What a program starts from.

    about    what the model is beside its program, as `keep` was given it
    weights  of the program; `states` tell when each file that they lie in was last written to
    """

    about: Json
    interface: Interface
    demands: Demands
    checks: Sequence[Check]
    program: str
    isa: Json
    weights: LateWeights
    states: Sequence[tuple[int, ...]]

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
        whole = Program(late, DEVICE, executable, compiler, self.weights, self.demands)
        if self.weights.packed is None:
            whole.keep_packed(self.weights.source)
        return CompiledGraph(whole)

    def check_unchanged(self, files: Sequence[Array]) -> None:
        """Raises ModelError where files that were read since are not those that the program is of."""
        now = [mapped.state_of(file) for file in files]
        if now == list(self.states):
            return
        if not has_digests(files, self.weights.source):
            raise ModelError(
                "[load] expected the model as it was when it was opened, got files that were written to since"
            )


def place(path: Path, device: str, options: Options, reader: Mapping[str, Any]) -> Spot | None:
    """Where a model's record is. Its key has all that its program hangs on beside the content of files, which is looked
    into. None for what is not stored, and where this cannot be told cheaply."""
    processor = _processor()
    if not options.cache or not flags.cache() or flags.debug() >= 3 or device not in ("auto", DEVICE) or not processor:
        return None
    try:
        reader_text = json.dumps(dict(reader), sort_keys=True)
    except (TypeError, ValueError):  # arrays
        return None
    variables = sorted(i for i in os.environ.items() if i[0].startswith(flags.PREFIX) and i[0] not in _NOT_IN_KEY)
    switches = [sorted(options.disable), *(getattr(options, f.name) for f in fields(options) if f.name != "disable")]
    parts = [
        path.name,
        path.stat().st_size,
        device,
        repr(switches),
        reader_text,
        repr(variables),
        repr(flags.code_state()),
    ]
    parts.append(disk.digest_of(disk.TUNED))
    parts += [processor, _system(), sys.version, np.__version__, disk.source_digest(), repr(_packages())]
    if device == "auto":
        from rlx.device import facts

        parts.append(facts.digest())
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:40]
    return Spot(f"start-{digest}", os.path.dirname(os.path.abspath(path)))


def expect_compile(path: Path) -> None:
    """A model that has no record will be compiled: the process that does so imports what it needs while the model is
    read. Of formats whose first runs may go without code."""
    if path.suffix == ".onnx":
        from rlx.backends.cpu import ahead

        ahead.start("rlx.backends.cpu.arrival")


def expect_nothing() -> None:
    """What was expected to be compiled is, or is by now another process's to compile."""
    if "rlx.backends.cpu.ahead" in sys.modules:
        from rlx.backends.cpu import ahead

        ahead.drop()


def _system() -> str:
    """Kernel and machine, without the processes that `platform` starts to find out more, and without its name, which
    every container has one of."""
    if not hasattr(os, "uname"):
        return sys.platform
    of = os.uname()
    return repr((of.sysname, of.release, of.version, of.machine))


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


def keep(of: Spot, about: Json, files: Sequence[Array], compiled: CompiledGraph) -> None:
    """Notes how a program that was compiled starts the next time, if that can be told. `files` are those that the model
    was read from, mapped."""
    executable = compiled.executable.stored
    graph = compiled.graph
    if executable is None or not files or set(graph.data) != set(compiled.program.params):
        return
    source = Source.of(graph.data, files, MOST_OTHER_BYTES)
    if source is None:
        return
    program, isa, checks = executable
    demands = Demands.of(graph)
    files_there = [(os.path.relpath(path, of.folder), size, digest) for path, size, digest in source.files]
    used = [dim for sizes in (demands.fixed, demands.open) for shape in sizes for dim in shape]
    header = {
        "version": VERSION, "dims": dim_table.written(used), "about": about, "program": program, "isa": isa,
        "files": files_there, "params": source.places, "interface": _interface_out(Interface.of(graph)),
        "checks": [_check_out(check) for check in checks],
        "sizes": [_sizes_out(demands.fixed), _sizes_out(demands.open)],
        "trips": [_trips_out(demands.fixed_trips), _trips_out(demands.open_trips)],
    }  # fmt: skip
    text = json.dumps(header).encode()
    disk.write(of.key, b"".join([len(text).to_bytes(8, "little"), text, source.other]))
    compiled.program.keep_packed(source)


def find(of: Spot) -> Record | None:
    """The record that is there; None if there is none, or the files are not those of it."""
    data = disk.read(of.key)
    if data is None:
        return None
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        if header["version"] != VERSION:
            return None
        files = [(os.path.join(of.folder, path), size, digest) for path, size, digest in header["files"]]
        source = Source(files, header["params"], data[8 + length :])
        opening = Opening(source, header["program"])
        known = dim_table.read(*header["dims"])
        fixed, open_ = (_sizes_in(part, known) for part in header["sizes"])
        record = partial(
            Record,
            about=header["about"],
            interface=_interface_in(header["interface"], known),
            demands=Demands(fixed, open_, *(_trips_in(part, known) for part in header["trips"])),
            checks=[_check_in(entry, known) for entry in header["checks"]],
            program=header["program"],
            isa=header["isa"],
        )
        from rlx.backends.cpu import build  # noqa: F401  # which the first run needs: the other thread reads meanwhile

        found = opening.wait()
        return None if found is None else record(weights=found[0], states=found[1])
    except (ValueError, KeyError, TypeError, IndexError, RlxError):  # of no version that we know
        return None


def _type_out(of: TensorType) -> list[Any]:
    return [of.dtype.name, _shape_out(of.shape)]


def _type_in(entry: list[Any], known: Known) -> TensorType:
    return TensorType(_shape_in(entry[1], known), dtypes.parse(entry[0]))


def _shape_out(shape: Sequence[Dim]) -> list[int | str]:
    return [d if isinstance(d, int) else str(d) for d in shape]


def _dim(text: int | str, known: Known) -> Dim:
    if isinstance(text, int):
        return text
    return int(text) if text.isdecimal() else known.get(text) or dims.parse(text)


def _shape_in(entry: Sequence[int | str], known: Known) -> tuple[Dim, ...]:
    return tuple([d if isinstance(d, int) else _dim(d, known) for d in entry])


def _sizes_out(sizes: Sizes) -> list[Any]:
    return [[_shape_out(shape), nbytes, place.op, place.label] for shape, (nbytes, place) in sizes.items()]


def _sizes_in(entry: list[Any], known: Known) -> Sizes:
    return {_shape_in(shape, known): (nbytes, Place(op, label)) for shape, nbytes, op, label in entry}


def _trips_out(trips: Trips) -> list[Any]:
    return [[str(count), place.op, place.label] for count, place in trips]


def _trips_in(entry: list[Any], known: Known) -> Trips:
    return [(_dim(count, known), Place(op, label)) for count, op, label in entry]


def _check_out(of: Check) -> list[Any]:
    return [*_shape_out((of.low, of.high)), asdict(of.words), None if of.count is None else str(of.count)]


def _check_in(entry: list[Any], known: Known) -> Check:
    low, high, words, count = entry
    return Check(_dim(low, known), _dim(high, known), Violation(**words), None if count is None else _dim(count, known))


def _equality_out(of: Equality) -> list[Any]:
    return [*_shape_out((of.left, of.right)), of.reason, of.spreads]


def _equality_in(entry: list[Any], known: Known) -> Equality:
    return Equality(_dim(entry[0], known), _dim(entry[1], known), entry[2], entry[3])


def _interface_out(of: Interface) -> Json:
    return {
        "name": of.name,
        **{part: {n: _type_out(t) for n, t in getattr(of, part).items()} for part in ("inputs", "params", "outputs")},
        "states": of.states, "following": of.following, "symbols": of.symbols, "measured": of.measured,
        "bounds": {name: list(pair) for name, pair in of.bounds.items()},
        "equalities": [_equality_out(e) for e in of.equalities], "within": [_equality_out(e) for e in of.within],
        "assumes_equal": of.assumes_equal,
    }  # fmt: skip


def _interface_in(entry: Json, known: Known) -> Interface:
    inputs, params, outputs = (
        {n: _type_in(t, known) for n, t in entry[part].items()} for part in ("inputs", "params", "outputs")
    )
    return Interface(
        name=entry["name"], inputs=inputs, states=tuple(entry["states"]), following=entry["following"], params=params,
        outputs=outputs, symbols=tuple(entry["symbols"]), measured=tuple(entry["measured"]),
        bounds={name: (low, high) for name, (low, high) in entry["bounds"].items()},
        equalities=tuple(_equality_in(e, known) for e in entry["equalities"]),
        within=tuple(_equality_in(e, known) for e in entry["within"]),
        assumes_equal=entry["assumes_equal"],
    )  # fmt: skip
