"""Compiled programs in files: code, the graph that it was made of, and weights.

    64 bytes  `rlx-compiled-1`, the length of the header (8 bytes at 16), and its digest (32 bytes at 32)
    header    JSON: device, options, what the code hangs on, what stays between runs, digest and length of the code
    code      as the backend wrote it
    kept      arrays of handles and states (`runtime.kept`)
    graph     a saved graph with its weights (`ir.serial`), mapped when it is read

All begin at multiples of 64 bytes. Code from a file is run as it is: digests tell damage, not who wrote it, so open
files only of people whom you would let run programs. The graph in it is checked as any saved graph is.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from rlx import disk, mapped
from rlx.backends.base import Backend, Options
from rlx.backends.checked import with_checks
from rlx.backends.executable import Executable
from rlx.device import registry
from rlx.errors import ModelError, RlxError
from rlx.ir.fingerprint import fingerprint
from rlx.ir.graph import Graph
from rlx.ir.serial import read_graph, write_graph
from rlx.passes.checks import add_checks
from rlx.runtime import saved_state
from rlx.runtime.checked import most_trips
from rlx.runtime.compiler import Compiler
from rlx.runtime.mode import PLAIN, Mode
from rlx.runtime.program import Program

MAGIC = b"rlx-compiled-1\n\0"
ALIGN = 64
MAX_HEADER = 1 << 20


def save(program: Program, mode: Mode, path: str | os.PathLike[str]) -> None:
    """Writes a program and what it keeps; the file appears whole or not at all. Raises CapabilityError, OSError."""
    program.executable.capabilities.require("saved_code", program.device)
    if not Path(path).absolute().parent.is_dir():  # said before the wait for code
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    code = program.executable.code()
    compiler = program.compiler
    graph = _with_weights(program)
    facts = compiler.backend.code_facts(compiler.options) if compiler else {}
    header = json.dumps(
        {
            "device": program.device, "profile": compiler.options.profile if compiler else False, "facts": facts,
            "check_indices": compiler.options.check_indices if compiler else True,
            "loop_trips": most_trips(compiler.backend) if compiler else 0,
            "precision": compiler.options.precision if compiler else "f32",
            "code_bytes": len(code), "code_digest": _digest(code), "graph_digest": fingerprint(graph),
            "kept": saved_state.described(mode, program),
        }
    ).encode()  # fmt: skip
    header += b" " * (-len(header) % ALIGN)
    start = MAGIC + len(header).to_bytes(8, "little") + bytes(8) + bytes.fromhex(_digest(header))
    with disk.written_whole(path) as file:
        file.write(start + header + code + bytes(-len(code) % ALIGN))
        file.writelines(saved_state.chunks(mode))
        write_graph(graph, file)


def _with_weights(program: Program) -> Graph:
    """The graph with its present weights as data. Those with named dims are left out: they have to be set again."""
    copied = program.graph.like()
    copied.nodes, copied.outputs = program.graph.nodes, program.graph.outputs
    static = {value.name for value in program.graph.params if value.type.is_static}
    copied.data = {name: array for name, array in program.params.items() if name in static}
    return copied


def load(path: str | os.PathLike[str], recompile: bool, threads: int | None, mmap: bool) -> tuple[Program, Mode]:
    """The program in a file, and what it keeps; parameters and errors are those of `load_compiled`."""
    with mapped.trusting(mmap):
        file = _File(path)
    backend, ordinal = registry.backend(file.device)
    options = Options(threads=threads, profile=file.profile, check_indices=file.check_indices, precision=file.precision)
    compiler = Compiler(file.device, backend, options, ordinal)
    reason = file.damage or backend.code_mismatch(file.facts, options)
    graph = file.graph()
    if not reason and fingerprint(graph) != file.graph_digest:
        reason = "its code is not of the graph in it"
    if reason and not recompile:
        raise ModelError(
            f"[load_compiled] expected code that runs here, got {file.path}: {reason}; recompile=True helps"
        )
    if reason:
        executable = compiler.compile(graph)
    else:
        executable = compiler.around(graph, file.program(backend, graph, options))
    program = Program(graph, file.device, executable, compiler, graph.data)
    return program, file.mode(program)


class _File:
    """A file of ours, mapped, with its header checked."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        data = _mapped(self.path)
        length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
        if bytes(data[: len(MAGIC)]) != MAGIC or length % ALIGN or length > min(MAX_HEADER, len(data) - ALIGN):
            raise ModelError(f"[load_compiled] expected a file that CompiledGraph.save wrote, got {self.path}")
        text = bytes(data[ALIGN : ALIGN + length])
        if _digest(text) != bytes(data[32:64]).hex():
            raise ModelError(f"[load_compiled] expected a header as it was written, got a damaged one in {self.path}")
        try:
            header: dict[str, Any] = json.loads(text)
            self.device = str(header["device"])
            self.profile = bool(header["profile"])
            self.check_indices = bool(header["check_indices"])
            self.loop_trips = int(header["loop_trips"])
            self.precision = str(header.get("precision", "f32"))
            self.facts = {str(key): str(value) for key, value in header["facts"].items()}
            self.graph_digest = str(header["graph_digest"])
            size = int(header["code_bytes"])
            digest = header["code_digest"]
            self._kept = dict(header["kept"])
            kept_bytes = int(self._kept["bytes"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"[load_compiled] expected a header of ours in {self.path}, got {error}") from None
        first = ALIGN + length
        if not 0 <= size <= len(data) - first:
            raise ModelError(
                f"[load_compiled] expected {size} bytes of code in {self.path}, got a file that ends before"
            )
        self.code = bytes(data[first : first + size])
        self.damage = "" if _digest(self.code) == digest else "its code is damaged"
        rest = data[first + size + -size % ALIGN :]
        if not 0 <= kept_bytes <= len(rest):
            raise ModelError(f"[load_compiled] expected {kept_bytes} bytes of states in {self.path}, got {len(rest)}")
        self._arrays, self._rest = rest[:kept_bytes], rest[kept_bytes:]

    def program(self, backend: Backend, graph: Graph, options: Options) -> Executable:
        """The program of the code, with the checks that it was compiled with."""
        checks = add_checks(graph, self.check_indices, self.loop_trips).checks
        return with_checks(backend.load_code(self.code, self.facts, options), checks)

    def mode(self, program: Program) -> Mode:
        """What stays between runs of the program."""
        try:
            return saved_state.restored(self._kept, self._arrays, program) or PLAIN
        except (RlxError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ModelError(f"[load_compiled] expected what {self.path} keeps to go with it: {error}") from None

    def graph(self) -> Graph:
        return read_graph(self._rest, str(self.path))


def _mapped(path: Path) -> memoryview:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size >= ALIGN:
                return memoryview(mapped.Mapping.of(file.fileno(), path))
    except OSError as error:
        raise ModelError(f"[load_compiled] expected a file that can be read, got {str(path)!r}: {error}") from None
    raise ModelError(f"[load_compiled] expected a file that CompiledGraph.save wrote, got {path}")


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()
