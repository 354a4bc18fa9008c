"""Compilers of GPUs' C++ that are libraries with the interface of NVRTC: texts to machine code in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from rlx.errors import CompileError


class RuntimeCompiler:
    """One such library.

    prefix   how the names of its functions begin
    code     what its functions call machine code
    device   the kind of device that it compiles for, as errors name it
    """

    def __init__(self, library: ctypes.CDLL, prefix: str, code: str, device: str) -> None:
        self.library = library
        self.prefix = prefix
        self.code = code
        self.device = device
        self._of("GetErrorString").restype = ctypes.c_char_p

    def compile(
        self, source: str, architecture: str, name: str, options: Sequence[str], code: str | None = None
    ) -> bytes:
        """Machine code of a text, or what else the library calls `code`. Errors give `name` as the text's file. Raises
        CompileError with the log."""
        program = ctypes.c_void_p()
        made = self._of("CreateProgram")(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        self._check(made, name)
        try:
            texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            if self._of("CompileProgram")(program, len(options), texts):
                log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
                raise CompileError(f"[{self.device}] {name} for {architecture}: {log}")
            return self._bytes(program, code or self.code)
        finally:
            self._of("DestroyProgram")(ctypes.byref(program))

    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._of("Version")(ctypes.byref(major), ctypes.byref(minor)), "version")
        return f"{major.value}.{minor.value}"

    def _of(self, name: str) -> ctypes._NamedFuncPointer:
        function: ctypes._NamedFuncPointer = getattr(self.library, self.prefix + name)
        return function

    def _check(self, code: int, what: str) -> None:
        if code:
            raise CompileError(f"[{self.device}] {what}: {self._of('GetErrorString')(code).decode()}")

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(self._of(f"Get{what}Size")(program, ctypes.byref(size)), what)
        buffer = ctypes.create_string_buffer(size.value)
        self._check(self._of(f"Get{what}")(program, buffer), what)
        return buffer.raw
