"""Compiles code in two tiers. The first uses LLVM's level 0. It compiles in a third of the time or less, and runs a
program immediately, one to three times as slowly. Meanwhile a separate process at the lowest priority compiles the
second tier at the usual level. It continues if this process ends. Its code is stored in the cache and replaces the
first tier between two runs. Both tiers come from the same text and give the same bits.

Run as a program, this module is that process: `python -m rlx.backends.cpu.tiers FOLDER JOB KEY`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from rlx import disk
from rlx.backends.cpu import ahead, jit, kernel_store
from rlx.backends.cpu.artifact import Artifact, from_bytes, to_bytes
from rlx.backends.cpu.kernel_store import Pieces
from rlx.codegen.simd.isa import Isa
from rlx.errors import ModelError

QUICK_LEVEL = 0
LEAST_CHARACTERS = 150_000
"""Of text that is worth two tiers: below that the usual level takes no longer than starting another process."""
TEMPORARY = "rlx-tiers-"
NICE = 19

Take = Callable[[list[bytes]], None]


def can_start() -> bool:
    """Whether another process can do work for this one."""
    return bool(sys.executable)


def worth(texts: Sequence[str]) -> bool:
    """Whether a program is made in two tiers that has this text to compile."""
    return can_start() and sum(map(len, texts)) >= LEAST_CHARACTERS


def pack(artifact: Artifact, pieces: Pieces, isa: Isa) -> bytes:
    """A program of the first tier with all that the second is made of."""
    quick = to_bytes(artifact)
    header = json.dumps({"isa": asdict(isa), "quick_bytes": len(quick)}).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, quick, kernel_store.pack(pieces)])


def unpack(data: bytes) -> tuple[Artifact, Pieces, Isa]:
    """What `pack` was given. Raises ModelError for other bytes."""
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        behind = start + int(header["quick_bytes"])
        return from_bytes(data[start:behind]), kernel_store.unpack(data[behind:]), Isa(**header["isa"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"[cache] expected a program of the first tier, got {error}") from None


def until_exit(work: Callable[[], None]) -> None:
    """Does work of a thread that a process which ends does not wait for: it then starts no more threads."""
    try:
        work()
    except RuntimeError:
        if threading.main_thread().is_alive():
            raise


class Awaited:
    """Better code of a program that a thread waits for."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Returns when the better code is in place."""
        self._thread.join()


class Promotion(Awaited):
    """The second tier of one program on its way. `take` is handed its object files, in another thread.

    key   of the program in the cache; without one nothing is kept
    """

    def __init__(self, artifact: Artifact, pieces: Pieces, isa: Isa, key: str | None, take: Take) -> None:
        self._artifact, self._pieces, self._isa = artifact, pieces, isa
        self._key, self._take = key, take
        super().__init__(threading.Thread(target=until_exit, args=(self._work,), name="rlx-tiers", daemon=True))
        self._thread.start()

    def _work(self) -> None:
        written = self._by_process()
        if written is None:  # no process could be started, or it was killed: compile here
            written = kernel_store.complete(self._pieces, jit.emit_objects(self._pieces.texts, self._isa))
            if self._key:
                disk.write(self._key, to_bytes(better(self._artifact, written)))
                disk.remove(quick_key(self._key))
        self._take(written)
        self._pieces = Pieces((), {})

    def _by_process(self) -> list[bytes] | None:
        temporary = "" if self._key and writable() else tempfile.mkdtemp(prefix=TEMPORARY)
        try:
            folder = Path(temporary) if temporary else disk.folder()
            key = self._key or "program"
            disk.write(quick_key(key), pack(self._artifact, self._pieces, self._isa), folder)
            for _ in Worker(__name__, folder, quick_key(key), key).progress():
                pass
            data = disk.read(key, folder)  # by that process, or by one that an earlier start has left behind
            return None if data is None else from_bytes(data).code
        except (OSError, ModelError):
            return None
        finally:
            if temporary:
                shutil.rmtree(temporary, ignore_errors=True)


def better(artifact: Artifact, code: list[bytes]) -> Artifact:
    return replace(artifact, code=code, report={**artifact.report, "code_bytes": sum(map(len, code))})


def quick_key(key: str) -> str:
    """The key of a program's first tier."""
    return f"{key}-quick"


def writable() -> bool:
    try:
        disk.folder().mkdir(parents=True, exist_ok=True)
        return os.access(disk.folder(), os.W_OK)
    except OSError:
        return False


class Worker:
    """Another process, whose program is a module, at a job. It has started when this is made, and goes on if this
    process ends. Raises OSError."""

    def __init__(self, module: str, folder: Path, job: str, key: str) -> None:
        self.key = key
        self._owner = os.getpid()
        arguments = [str(folder), job, key]
        self._process = ahead.given(module, arguments) or ahead.spawned(module, arguments)

    def progress(self) -> Iterator[str]:
        """What it says, until it ends."""
        with self._process as process:
            assert process.stdout is not None  # a pipe
            for line in process.stdout:
                yield line.strip()
            process.wait()

    def stop(self) -> None:
        """Ends it, whatever it is doing; in a fork it goes on, for the process that has started it."""
        if self._owner == os.getpid():
            self._process.kill()


# the other process


def main(folder: Path, job: str, key: str) -> None:
    """Writes the second tier of a job into a folder of the cache, and removes the job."""
    jit.keep_addresses()
    give_way()
    with finished_with(job, folder) as data:
        write_better(*unpack(data), folder, key)


def give_way() -> None:
    """Gives this process the lowest priority."""
    if hasattr(os, "nice"):
        os.nice(NICE)


@contextmanager
def finished_with(job: str, folder: Path) -> Iterator[bytes]:
    """A job of a folder of the cache, which is removed when it is done."""
    parent = os.getppid()
    data = disk.read(job, folder)
    if data is None:
        raise SystemExit(1)
    yield data
    disk.remove(job, folder)
    if os.getppid() != parent and folder.name.startswith(TEMPORARY):  # nobody waits for it any more
        shutil.rmtree(folder, ignore_errors=True)


def write_better(artifact: Artifact, pieces: Pieces, isa: Isa, folder: Path, key: str) -> list[bytes]:
    """Writes the second tier of a program, and gives its object files."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    code = kernel_store.complete(pieces, jit.emit_objects(pieces.texts, isa, threads=threads), folder)
    disk.write(key, to_bytes(better(artifact, code)), folder)
    return code


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
