"""Programs of which only the graph is there: another process compiles them. `first_runs` says what runs until then.

There is no first tier (`tiers`): products in NumPy are as fast as its code, or faster, and LLVM's second look at the
program would come so much later.

Run as a program, this module is that process: `python -m rlx.backends.cpu.arrival FOLDER JOB KEY`.
"""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlx import disk, locks, logs
from rlx.backends.base import Options
from rlx.backends.cpu import ahead, build, jit, tiers
from rlx.backends.cpu.artifact import Artifact, from_bytes, to_bytes
from rlx.backends.cpu.executable import CpuExecutable
from rlx.backends.stored_weights import Source, request_key, write_packed
from rlx.codegen.simd.isa import Isa
from rlx.errors import ModelError, RlxError

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

GRAPH = b"rlx-graph\n"
"""What a job begins with that has a graph."""
WAIT_S = 0.2
"""After which whoever waits for code looks whether anybody else still does."""
START_S = 0.2
"""That a process needs to start: whoever wants code sooner makes it more quickly here."""
LARGE_BYTES, REQUEST_S = 1 << 25, 1.0
"""Of weights whose files are hashed for a while before anybody asks that they be packed."""
WRITTEN, PACKED = "written", "packed"
"""What the other process says when the code is there, and when it has packed the weights that it was asked for."""


class Arrival:
    """The code of a graph on its way. If no other process makes it, whoever waits for it does.

    key      of the program in the cache; without one nothing is kept
    nbytes   of the graph, as the other process reads it
    """

    def __init__(self, graph: Graph, isa: Isa, options: Options, key: str | None) -> None:
        self._graph, self._isa, self._options, self._key = graph, isa, options, key
        job = pack_graph(graph, isa, options)
        self.nbytes = len(job)
        self._made: CpuExecutable | None = None
        self._error: Exception | None = None
        self._lock = locks.lock()
        self._asked: Source | None = None
        self.packed: disk.MappedEntry | None = None
        """Weights as the program reads them, once the other process has packed them."""
        self._is_there = threading.Event()
        self._temporary = "" if key and tiers.writable() else tempfile.mkdtemp(prefix=tiers.TEMPORARY)
        self._worker = self._started(job)
        self._began = time.monotonic()
        self._thread = threading.Thread(target=tiers.until_exit, args=(self._work,), name="rlx-tiers", daemon=True)
        self._thread.start()

    @property
    def _place(self) -> tuple[Path, str]:
        """The folder of the cache, and the key there."""
        return Path(self._temporary) if self._temporary else disk.folder(), self._key or "program"

    def _started(self, job: bytes) -> tiers.Worker | None:
        """The other process, which goes on if this one ends; None where it cannot be started."""
        try:
            folder, key = self._place
            disk.write(graph_key(key), job, folder)
            return tiers.Worker(__name__, folder, graph_key(key), key)
        except OSError as error:
            logs.tell(logs.COMPILES, "compile", f"no other process compiles: {error}")
            return None

    def keep_packed(self, source: Source) -> bool:
        """Asks the other process to pack these weights too, and to keep them in the cache; whether it can be asked."""
        if not self._key or self._temporary or self._asked is not None or not self._thread.is_alive():
            return False
        self._asked = source
        disk.write(request_key(self._key), source.to_bytes())
        return True

    @property
    def packs(self) -> bool:
        """Whether the other process may still pack the weights that it was asked for."""
        return self._asked is not None and self.packed is None and self._thread.is_alive()

    def now(self) -> CpuExecutable | None:
        """The program in code, if it is there. Raises CompileError, UnsupportedOp."""
        return self._made if self._made is not None or self._thread.is_alive() else self._here()

    def wait(self) -> CpuExecutable:
        """As `now`, as soon as there is code: made here if the other process has hardly begun."""
        if self._worker is not None and self._made is None and time.monotonic() - self._began < START_S:
            self._worker.stop()
            return self._here()
        while self._made is None and self._thread.is_alive():  # in a fork it is not, and nobody would set the event
            self._is_there.wait(WAIT_S)
        return self._made or self._here()

    def _here(self) -> CpuExecutable:
        """Compiles in this process what the other one did not."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._made is None:
                logs.tell(logs.COMPILES, "compile", f"compiled here, as no other process could: {self._graph.name!r}")
                try:
                    kept = build.from_disk(self._key, self._isa, self._options)
                    self._made = kept or build.built(self._graph, self._isa, self._options, self._key)
                except Exception as error:
                    self._error = error
                    raise
            return self._made

    def _work(self) -> None:
        folder, key = self._place
        try:
            for said in self._worker.progress() if self._worker is not None else ():
                self._hear(said, folder, key)
        except (OSError, RlxError) as error:
            logs.tell(logs.COMPILES, "compile", f"no code from another process: {error}")
        finally:
            self._is_there.set()
            disk.remove(graph_key(key), folder)  # it is still there if that process has failed
            if self._temporary:
                shutil.rmtree(self._temporary, ignore_errors=True)

    def _hear(self, said: str, folder: Path, key: str) -> None:
        """Takes what the other process has made: the code, or the weights."""
        if said == WRITTEN:
            self._take(folder, key)
        elif said == PACKED and self._asked is not None:
            self.packed = disk.map_entry(self._asked.key(key))

    def _take(self, folder: Path, key: str) -> None:
        """Takes the code that the other process has written."""
        data = disk.read(key, folder)
        if data is None:
            return
        made = CpuExecutable.of(from_bytes(data), self._isa, self._options.threads)
        made.loaded.key = self._key
        with self._lock:
            self._made = self._made or made
        self._is_there.set()


def graph_key(key: str) -> str:
    """The key of the job that makes a program of its graph."""
    return f"{key}-graph"


def pack_graph(graph: Graph, isa: Isa, options: Options) -> bytes:
    """A graph with all that its code depends on beside the environment."""
    from rlx.ir.serial import write_graph

    fields = {**asdict(options), "disable": sorted(options.disable)}
    del fields["dispatch"]  # the usual one
    header = json.dumps({"isa": asdict(isa), "options": fields}).encode()
    file = io.BytesIO()
    write_graph(graph, file, with_data=False)
    return b"".join([GRAPH, len(header).to_bytes(8, "little"), header, file.getvalue()])


def unpack_graph(job: bytes) -> tuple[Graph, Isa, Options]:
    """What `pack_graph` was given. Raises ModelError for other bytes."""
    import rlx.ops  # noqa: F401  # graphs are read by the names of ops
    from rlx.ir.serial import read_graph

    try:
        begin = len(GRAPH) + 8
        end = begin + int.from_bytes(job[len(GRAPH) : begin], "little")
        header = json.loads(job[begin:end])
        fields = header["options"]
        options = Options(**{**fields, "disable": frozenset(fields["disable"])})
        return read_graph(memoryview(job)[end:], "a job"), Isa(**header["isa"]), options
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"[cache] expected a graph to compile, got {error}") from None


# the other process


def main(folder: Path, job: str, key: str) -> None:
    """Compiles the graph of a job, and removes the job."""
    jit.keep_addresses()
    gc.disable()  # what a compile makes lives until its end, and so does the process
    with tiers.finished_with(job, folder) as data:
        _compile(data, folder, key)
    os._exit(0)  # nothing is left to be done: freeing some million objects would take longer than a tenth of a second


def _compile(job: bytes, folder: Path, key: str) -> None:
    """Writes the code of a graph. LLVM has the lowest priority, as runs in NumPy go on."""
    graph, isa, options = unpack_graph(job)
    if folder.name.startswith(tiers.TEMPORARY):
        options = replace(options, cache=False)
    artifact = build.compile_artifact(graph, isa, options, folder, tiers.give_way)
    disk.write(key, to_bytes(artifact), folder)
    disk.remove(graph_key(key), folder)
    _say(WRITTEN)
    _pack(artifact, isa, folder, key)


def _pack(artifact: Artifact, isa: Isa, folder: Path, key: str) -> None:
    """Packs weights of the program, if that was asked for, and keeps them: the next process maps them."""
    large = sum(slot.type.nbytes() for slot in artifact.kept if slot.type.is_static) >= LARGE_BYTES
    ends = time.monotonic() + (REQUEST_S if large else 0)
    while (request := disk.read(request_key(key), folder)) is None and time.monotonic() < ends:
        time.sleep(WAIT_S / 10)
    if request is None:
        return
    disk.remove(request_key(key), folder)
    source = Source.from_bytes(request)
    found = source.read() if disk.keeps_mapped(source.nbytes, folder) else None
    if found is not None:
        code = CpuExecutable.of(artifact, isa, None).loaded
        write_packed(source.key(key), code.without_constants(code.pack(found[0])), folder)
        _say(PACKED)


def _say(what: str) -> None:
    """Tells the process that waits, if it still does."""
    try:
        print(what, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # flushed again at exit


def _import() -> None:
    """What a compile imports, before it is known what is compiled."""
    import llvmlite.binding  # noqa: F401

    import rlx.backends.cpu.claims
    import rlx.backends.cpu.schedules
    import rlx.codegen.simd.module
    import rlx.ir.serial
    import rlx.kernel.pipeline
    import rlx.ops
    import rlx.passes.pipeline  # noqa: F401


if __name__ == "__main__":
    if len(sys.argv) == 1:
        _import()
        sys.argv += ahead.job()
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
