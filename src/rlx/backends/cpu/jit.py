"""From LLVM IR text to callable machine code, through an object file that can be kept.

LLVM's optimisation passes are skipped: the text has explicit vectors, and they make nothing faster. A module is emitted
once and thrown away, because emitting changes it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from rlx import logs
from rlx.backends.cpu.elf import Image, MissingFunction, Unloadable
from rlx.backends.cpu.isa import host_arch
from rlx.codegen.simd.isa import Isa
from rlx.errors import CompileError

OPTIMISATION_LEVEL = 2
_lock = threading.Lock()  # LLVM's global tables are not ours to race on
_MOST_WRITERS = 64
_writers = threading.BoundedSemaphore(_MOST_WRITERS)
"""Threads that have LLVM write code, each in a context of its own."""


def _llvm_lock() -> Any:
    """The lock that llvmlite holds while LLVM works; None if it is not loaded, or has none."""
    ffi = sys.modules.get("llvmlite.binding.ffi")
    return getattr(getattr(ffi, "lib", None), "_lock", None)


def _before_fork() -> None:
    """Waits until no other thread is in LLVM: in the child nobody would ever come out of it."""
    _lock.acquire()
    for _ in range(_MOST_WRITERS):
        _writers.acquire()
    held = _llvm_lock()
    if held is not None:
        held.__enter__()
    _held_by_fork.append(held)


def _after_fork() -> None:
    held = _held_by_fork.pop()
    if held is not None:
        held.__exit__(None, None, None)
    for _ in range(_MOST_WRITERS):
        _writers.release()
    _lock.release()


_held_by_fork: list[Any] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


@atexit.register
def _before_exit() -> None:
    """Waits until no thread is in LLVM, and lets none in any more: the process ends by tearing LLVM's tables down, and
    daemon threads go on until then."""
    _lock.acquire()
    for _ in range(_MOST_WRITERS):
        _writers.acquire()


@cache
def _select_by_graph() -> None:
    """What selects instructions at level 0 calls memcpy by its distance, for which the loader sets no memory aside: the
    other levels' way is taken. It is an option of the process, which LLVM takes once."""
    import llvmlite.binding as llvm

    llvm.set_option("rlx", "-fast-isel=0")


def keep_addresses() -> None:
    """LLVM leaves the addresses of loops as they are written, which takes it a fourth less time: its search for better
    ones finds none that are faster. It is an option of the whole process, so only processes of our own choose it."""
    import llvmlite.binding as llvm

    llvm.set_option("rlx", "-disable-lsr")


def _machine(isa: Isa, level: int) -> Any:
    import llvmlite.binding as llvm

    if level == 0:
        _select_by_graph()
    if isa.triple_arch == host_arch():
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        triple = llvm.get_process_triple()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        triple = f"{isa.triple_arch}-unknown-linux-gnu"
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=level, reloc="pic", codemodel="default", jit=False
    )


def emit_objects(texts: Sequence[str], isa: Isa, level: int | None = None, threads: int = 1) -> list[bytes]:
    """Object files of the parts of a module, by LLVM's `level` of care in writing code, or the usual one. Raises
    CompileError with LLVM's words if a text is not valid."""
    chosen = OPTIMISATION_LEVEL if level is None else level
    if len(texts) == 1 or threads == 1:
        return [_emit_object(text, isa, chosen) for text in texts]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(threads, len(texts))) as pool:
        return list(pool.map(lambda text: _emit_object(text, isa, chosen), texts))


def _emit_object(text: str, isa: Isa, level: int) -> bytes:
    import llvmlite.binding as llvm

    with _lock:
        machine = _machine(isa, level)
        context = llvm.create_context()
    with _writers:
        try:
            module = llvm.parse_assembly(text, context)
            module.verify()
        except RuntimeError as error:
            raise CompileError(f"[llvm] {error}") from None
        return _written(machine, module)


def _written(machine: Any, module: Any) -> bytes:
    """The object file of a module. llvmlite has one thread at a time in LLVM; those that write code in contexts of
    their own need not wait for each other."""
    from llvmlite.binding import ffi

    write = getattr(ffi.lib.LLVMPY_TargetMachineEmitToMemory, "_cfn", None)
    if write is None:  # another llvmlite than we know
        return bytes(machine.emit_object(module))
    with ffi.OutputString() as told:
        buffer = write(machine, module, 1, told)
        if not buffer:
            raise CompileError(f"[llvm] {told}")
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _check_function(name: str) -> None:
    """Raises CompileError for a function that LLVM has not either: its loader would call nothing, and crash."""
    import llvmlite.binding as llvm

    if not llvm.address_of_symbol(name):
        raise CompileError(
            f"[llvm] expected code that calls functions of this process, got {name!r}, which is not there"
        )


class Loaded:
    """Object files in executable memory; `address` gives their functions. The memory lives as long as this."""

    def __init__(self, code: Sequence[bytes], isa: Isa) -> None:
        self._image: Image | None = None
        try:
            self._image = Image(code)
        except Unloadable as why:
            if isinstance(why, MissingFunction):
                _check_function(why.name)
            logs.tell(logs.COMPILES, "llvm", f"LLVM loads the code, which has {why}")
            self._engine = self._by_llvm(code, isa)

    @staticmethod
    def _by_llvm(code: Sequence[bytes], isa: Isa) -> Any:
        import llvmlite.binding as llvm

        with _lock:
            machine = _machine(isa, OPTIMISATION_LEVEL)
            # sections that are given memory apart may lie too far from each other for the code to reach
            engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine, use_lmm=True)
            for part in code:
                engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(part))
            engine.finalize_object()
            return engine

    def address(self, name: str) -> int:
        found = self._image.symbols.get(name, 0) if self._image else int(self._engine.get_function_address(name))
        if found == 0:
            raise CompileError(f"[llvm] the object file has no function {name!r}")
        return found
