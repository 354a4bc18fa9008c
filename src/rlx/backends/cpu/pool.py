"""The process's threads: generated code calls `rlx_parallel(fn, frame, chunks, most)`, which runs fn once per chunk.

`fn` is `void(ptr frame, i64 chunk, i64 thread)`. The chunks of a call are claimed one by one by the caller and the
workers. What a kernel may rely on:

- `thread` is below `most` and below `ThreadPool.threads`, and no two chunks of one call run under the same number at
  once. The caller has number 0, and so has a call that runs serially: scratch memory is indexed by `thread` and belongs
  to the *call* (to its frame), because two callers may both be number 0 at the same time.
- A call returns when all its chunks are done, and their writes are visible then.
- One call at a time has the workers. A call that finds them taken (from another thread, or from inside a chunk) runs
  all its chunks itself, in order.

Workers start at the first call that has use for them, spin shortly for the next one, then sleep. They hold no Python
objects and no lock; the interpreter exits without waiting for them. After `fork` the child starts its own.
The machine code is `pool.ll`, where the memory order is explained.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import time
from pathlib import Path

from rlx import disk, locks
from rlx.backends.cpu import topology
from rlx.backends.cpu.elf import Image, Unloadable
from rlx.errors import RlxError

MOST_THREADS = 4095
SPINS = 3000
"""Pauses before a worker sleeps (tens of microseconds): the time between two kernels, not between two calls."""

PIECE_CYCLES = 4_000_000
"""Of a kernel in a run that may be ended: some milliseconds."""

_MACHINES = {
    "x86_64": {"futex": "202", "declare_pause": "declare void @llvm.x86.sse2.pause()",
               "pause": "call void @llvm.x86.sse2.pause()"},
    "aarch64": {"futex": "98", "declare_pause": "declare void @llvm.aarch64.hint(i32)",
                "pause": "call void @llvm.aarch64.hint(i32 1)"},
}  # fmt: skip

_SERIAL = """
define void @rlx_parallel(ptr %function, ptr %frame, i64 %chunks, i64 %most) {
entry:
  br label %loop
loop:
  %chunk = phi i64 [ 0, %entry ], [ %chunk.next, %run ]
  %more = icmp slt i64 %chunk, %chunks
  br i1 %more, label %run, label %leave
run:
  call void %function(ptr %frame, i64 %chunk, i64 0)
  %chunk.next = add i64 %chunk, 1
  br label %loop
leave:
  ret void
}
"""


def ir_for(system: str, machine: str) -> str:
    """The pool as LLVM IR for this operating system and architecture; a plain loop where there is no futex."""
    names = _MACHINES.get(machine) if system == "Linux" else None
    if names is None:
        return _SERIAL
    here = Path(__file__).parent
    text = "\n".join((here / name).read_text() for name in ("pool.ll", "watch.ll"))
    for name, value in {**names, "PIECE_CYCLES": str(PIECE_CYCLES)}.items():
        text = text.replace(f"${name}", value)
    return text


class ThreadPool:
    """The pool of this process; `shared()` gives it."""

    def __init__(self, threads: int) -> None:
        system, machine = platform.system(), platform.machine()
        self.has_workers = system == "Linux" and machine in _MACHINES
        self._why_none = "" if self.has_workers else f"no workers on {system} {machine}: they need Linux futexes"
        addresses = load_forever(ir_for(system, machine))
        self.parallel_address = addresses["rlx_parallel"]
        """Address of `void rlx_parallel(fn, frame, chunks, most)`; it stays valid as long as the process lives."""
        self.watched_main = addresses.get("rlx_watched_main", 0)
        """Address of what calls `rlx_main` of a run that may be ended (`watch.ll`); 0 where there is no such."""
        if self.has_workers:
            self._acquire = ctypes.CFUNCTYPE(ctypes.c_int64)(addresses["rlx_pool_acquire"])
            self._release = ctypes.CFUNCTYPE(None)(addresses["rlx_pool_release"])
            self._resize = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(addresses["rlx_pool_resize"])
            self._forget = ctypes.CFUNCTYPE(None)(addresses["rlx_pool_forget"])
            self._threads = ctypes.CFUNCTYPE(ctypes.c_int64)(addresses["rlx_pool_threads"])
            self.set_threads(threads)

    @classmethod
    def shared(cls) -> ThreadPool:
        """The pool of this process, made at the first call. Raises FlagError for a bad RLX_NUM_THREADS."""
        global _shared
        with _making:
            if _shared is None:
                _shared = cls(topology.threads())
            return _shared

    @property
    def threads(self) -> int:
        """How many threads may run chunks of one call, the caller included."""
        return int(self._threads()) if self.has_workers else 1

    @property
    def why_serial(self) -> str:
        """Why calls run serially; empty if they do not."""
        if self._why_none or self.threads > 1:
            return self._why_none
        return "one thread: affinity, CPU quota or RLX_NUM_THREADS allow no more"

    def set_threads(self, threads: int, patience_s: float = 10.0) -> None:
        """Ends the workers; as many as asked for start at the next call. Waits for a call in progress.

        With more threads than CPUs nobody spins, because a spinning thread keeps a working one from its CPU.
        Raises RlxError if the pool is not idle within `patience_s`, or for a number that is not in 1 .. 4095.
        """
        if not 1 <= threads <= MOST_THREADS:
            raise RlxError(f"[threads] expected a number from 1 to {MOST_THREADS}, got {threads}")
        if not self.has_workers:
            return
        deadline = time.monotonic() + patience_s
        while not self._acquire():
            if time.monotonic() > deadline:
                raise RlxError(
                    f"[threads] the pool was busy for {patience_s} s; set the number of threads between runs"
                )
            time.sleep(0.0005)
        try:
            self._resize(threads, SPINS if threads <= topology.usable() else 0)
        finally:
            self._release()


_shared: ThreadPool | None = None
_making = locks.lock()


def _after_fork_in_child() -> None:
    if _shared is not None and _shared.has_workers:
        _shared._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def load_forever(text: str) -> dict[str, int]:
    """Addresses of the public functions. The code is never freed: workers run it until the process ends.

    It is kept in the cache on disk, so that LLVM is not needed for it.
    """
    what = f"{text}\0{platform.machine()}\0{platform.system()}"
    key = f"pool-{hashlib.blake2b(what.encode(), digest_size=20).hexdigest()}"
    cached = disk.read(key)
    try:
        code = _compiled(text) if cached is None else cached
        image = Image([code])
    except Unloadable:
        return _by_llvm(text)
    if cached is None:
        disk.write(key, code)
    image.forever()
    return {name: address for name, address in image.symbols.items() if name.startswith("rlx_")}


def _compiled(text: str) -> bytes:
    """The object file of a module for any processor of this architecture."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{text}')
    module.verify()
    target = llvm.Target.from_triple(triple).create_target_machine(opt=2, reloc="pic", codemodel="default")
    return bytes(target.emit_object(module))


def _by_llvm(text: str) -> dict[str, int]:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{text}')
    module.verify()
    names = [f.name for f in module.functions if f.name.startswith("rlx_") and not f.is_declaration]
    target = llvm.Target.from_triple(triple).create_target_machine(opt=2, codemodel="jitdefault", jit=True)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    addresses = {name: int(engine.get_function_address(name)) for name in names}
    engine.detach()
    return addresses
