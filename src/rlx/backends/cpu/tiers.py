"""Compiles code in two tiers. The first uses LLVM's level 0. It compiles in a third of the time or less, and runs a
program immediately, one to three times as slowly. Meanwhile a separate process at the lowest priority compiles the
second tier at the usual level. It continues if this process ends. Its code is stored in the cache and replaces the
first tier between two runs. Both tiers come from the same text and give the same bits.

A `Promotion` has the text and the first tier of a program, and waits for the second. An `Arrival` has a graph only, and
the other process makes both tiers (`first_runs` says what runs until then).

Run as a program, this module is that process: `python -m rlx.backends.cpu.tiers FOLDER JOB KEY`.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlx import disk, logs
from rlx.backends.base import Options
from rlx.backends.cpu import jit
from rlx.backends.cpu.artifact import Artifact, from_bytes, to_bytes
from rlx.codegen.simd.isa import Isa
from rlx.errors import ModelError

if TYPE_CHECKING:
    from rlx.backends.cpu.executable import CpuExecutable
    from rlx.ir.graph import Graph

QUICK_LEVEL = 0
LEAST_CHARACTERS = 150_000
"""Of text that is worth two tiers: below that the usual level takes no longer than starting another process."""
TEMPORARY = "rlx-tiers-"
LESS_URGENT, NICE = 5, 19
"""Priorities of the other process: while runs wait for its code, and when they have some."""

Take = Callable[[list[bytes]], None]


def can_start() -> bool:
    """Whether another process can do work for this one."""
    return bool(sys.executable)


def worth(texts: Sequence[str]) -> bool:
    """Whether a program of this text is made in two tiers."""
    return can_start() and sum(map(len, texts)) >= LEAST_CHARACTERS


def pack(artifact: Artifact, texts: Sequence[str], isa: Isa) -> bytes:
    """A program of the first tier with all that the second is made of."""
    quick = to_bytes(artifact)
    header = json.dumps({"isa": asdict(isa), "quick_bytes": len(quick), "lengths": [len(t) for t in texts]}).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, quick, zlib.compress("".join(texts).encode(), 1)])


def unpack(data: bytes) -> tuple[Artifact, list[str], Isa]:
    """What `pack` was given. Raises ModelError for other bytes."""
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        behind = start + int(header["quick_bytes"])
        text = zlib.decompress(data[behind:]).decode()
        texts, at = [], 0
        for length in header["lengths"]:
            texts.append(text[at : at + length])
            at += length
        return from_bytes(data[start:behind]), texts, Isa(**header["isa"])
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise ModelError(f"[cache] expected a program of the first tier, got {error}") from None


class Promotion:
    """The second tier of one program on its way. `take` is handed its object files, in another thread.

    key   of the program in the cache; without one nothing is kept
    """

    def __init__(self, artifact: Artifact, texts: Sequence[str], isa: Isa, key: str | None, take: Take) -> None:
        self._artifact, self._texts, self._isa = artifact, texts, isa
        self._key, self._take = key, take
        self._thread = threading.Thread(target=self._work, name="rlx-tiers", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Returns when the second tier is in place."""
        self._thread.join()

    def _work(self) -> None:
        written = self._by_process()
        if written is None:  # no process could be started, or it was killed: compile here
            written = jit.emit_objects(self._texts, self._isa)
            if self._key:
                disk.write(self._key, to_bytes(_better(self._artifact, written)))
                disk.remove(quick_key(self._key))
        self._take(written)
        self._texts = ()

    def _by_process(self) -> list[bytes] | None:
        temporary = "" if self._key and _writable() else tempfile.mkdtemp(prefix=TEMPORARY)
        try:
            folder = Path(temporary) if temporary else disk.folder()
            key = self._key or "program"
            disk.write(quick_key(key), pack(self._artifact, self._texts, self._isa), folder)
            for _ in _work_elsewhere(folder, quick_key(key), key):
                pass
            data = disk.read(key, folder)  # by that process, or by one that an earlier start has left behind
            return None if data is None else from_bytes(data).code
        except (OSError, ModelError):
            return None
        finally:
            if temporary:
                shutil.rmtree(temporary, ignore_errors=True)


def _better(artifact: Artifact, code: list[bytes]) -> Artifact:
    return replace(artifact, code=code, report={**artifact.report, "code_bytes": sum(map(len, code))})


def quick_artifact(data: bytes) -> Artifact:
    """The program of the first tier among what `pack` gave. Raises ModelError."""
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        return from_bytes(data[start : start + int(json.loads(data[8:start])["quick_bytes"])])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"[cache] expected a program of the first tier, got {error}") from None


def quick_key(key: str) -> str:
    """The key of a program's first tier."""
    return f"{key}-quick"


def _writable() -> bool:
    try:
        disk.folder().mkdir(parents=True, exist_ok=True)
        return os.access(disk.folder(), os.W_OK)
    except OSError:
        return False


def _work_elsewhere(folder: Path, job: str, key: str) -> Iterator[str]:
    """Has another process do a job, and gives what it says about its progress. Raises OSError."""
    above = str(Path(__file__).parents[3])
    path = os.pathsep.join([above, *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder), job, key],
        env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, start_new_session=True, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None  # a pipe
        for line in process.stdout:
            yield line.strip()
        process.wait()


# programs of which only the graph is there

GRAPH = b"rlx-graph\n"
"""What a job begins with that has a graph."""
QUICK, FULL = "quick", "full"
"""What the other process says when a tier is there."""


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
        self._lock = threading.Lock()
        self._is_quick = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._work, args=(job,), name="rlx-tiers", daemon=True)
        self._thread.start()

    def now(self) -> CpuExecutable | None:
        """The program in code of either tier, if it is there. Raises CompileError, UnsupportedOp."""
        return self._made if self._made is not None or not self._ended else self._here()

    def wait(self) -> CpuExecutable:
        """As `now`, as soon as there is code."""
        self._is_quick.wait()
        return self._made or self._here()

    def _here(self) -> CpuExecutable:
        """Compiles in this process what the other one did not."""
        from rlx.backends.cpu import build

        with self._lock:
            if self._error is not None:
                raise self._error
            if self._made is None:
                logs.tell(logs.COMPILES, "compile", f"compiled here, as no other process could: {self._graph.name!r}")
                try:
                    self._made = build.built(self._graph, self._isa, self._options, self._key)
                except Exception as error:
                    self._error = error
                    raise
            return self._made

    def _work(self, job: bytes) -> None:
        temporary = "" if self._key and _writable() else tempfile.mkdtemp(prefix=TEMPORARY)
        try:
            folder = Path(temporary) if temporary else disk.folder()
            key = self._key or "program"
            disk.write(graph_key(key), job, folder)
            for said in _work_elsewhere(folder, graph_key(key), key):
                self._hear(said, folder, key)
        except (OSError, ModelError) as error:
            logs.tell(logs.COMPILES, "compile", f"no code from another process: {error}")
        finally:
            self._ended = True
            self._is_quick.set()
            if temporary:
                shutil.rmtree(temporary, ignore_errors=True)

    def _hear(self, said: str, folder: Path, key: str) -> None:
        """Takes the code of a tier."""
        from rlx.backends.cpu.executable import CpuExecutable

        data = disk.read(quick_key(key) if said == QUICK else key, folder)
        if data is None:
            return
        artifact = quick_artifact(data) if said == QUICK else from_bytes(data)
        if self._made is not None:
            self._made.loaded.take(artifact.code)
            return
        made = CpuExecutable.of(artifact, self._isa, self._options.threads)
        made.loaded.key = self._key
        if said == QUICK:
            made.loaded.promotion = Rest(self._thread)
        with self._lock:
            self._made = self._made or made
        self._is_quick.set()


class Rest:
    """The second tier of a program whose first has arrived."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()


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
    data, graph.data = graph.data, {}
    try:
        write_graph(graph, file)
    finally:
        graph.data = data
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
    """Does a job of a folder of the cache, and removes it."""
    parent = os.getppid()
    data = disk.read(job, folder)
    if data is None:
        raise SystemExit(1)
    if data.startswith(GRAPH):
        _compile(data, folder, key)
    else:
        _better_code(*unpack(data), folder, key)
    disk.remove(job, folder)
    if os.getppid() != parent and folder.name.startswith(TEMPORARY):  # nobody waits for it any more
        shutil.rmtree(folder, ignore_errors=True)


def _compile(job: bytes, folder: Path, key: str) -> None:
    """Writes both tiers of a graph, or the second alone where the first is not worth while."""
    from rlx.backends.cpu import build

    if hasattr(os, "nice"):
        os.nice(LESS_URGENT)
    graph, isa, options = unpack_graph(job)
    artifact, texts = build.first_tier(graph, isa, options)
    if not texts:
        disk.write(key, to_bytes(artifact), folder)
        _say(FULL)
        return
    disk.write(quick_key(key), pack(artifact, texts, isa), folder)
    _say(QUICK)
    _better_code(artifact, texts, isa, folder, key)
    disk.remove(quick_key(key), folder)


def _better_code(artifact: Artifact, texts: Sequence[str], isa: Isa, folder: Path, key: str) -> None:
    """Writes the second tier, in idle time."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    code = jit.emit_objects(texts, isa, threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    disk.write(key, to_bytes(_better(artifact, code)), folder)
    _say(FULL)


def _say(what: str) -> None:
    """Tells the process that waits, if it still does."""
    try:
        print(what, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # flushed again at exit


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
