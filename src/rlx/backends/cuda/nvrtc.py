"""NVRTC: CUDA C++ to machine code for a named architecture, without a GPU, a driver or a toolkit.

The library comes with the package `nvidia-cuda-nvrtc` (extra `cuda`).
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rlx.errors import CompileError, DeviceUnavailable

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
"""Ampere, Hopper and Blackwell, which every kernel must compile for."""
OPTIONS = ("--std=c++17", "--fmad=false")
INSTALL = "pip install 'rlx[cuda]'"


def compile_cubin(source: str, architecture: str, name: str = "rlx.cu") -> bytes:
    """Machine code of a CUDA C++ text. Raises CompileError with the compiler's log, DeviceUnavailable without NVRTC."""
    library = _library()
    program = ctypes.c_void_p()
    _check(library, library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), name.encode(), 0, None, None
    ), name)  # fmt: skip
    try:
        options = [f"--gpu-architecture={architecture}", *OPTIONS]
        code = library.nvrtcCompileProgram(program, len(options), _strings(options))
        if code:
            raise CompileError(f"[cuda] {name} for {architecture}: {_text(library, program, 'ProgramLog')}")
        return _bytes(library, program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def version() -> str:
    """NVRTC's version. Raises DeviceUnavailable."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library = _library()
    _check(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "version")
    return f"{major.value}.{minor.value}"


def why_absent() -> str:
    """Why there is no NVRTC here; empty if there is one."""
    return "" if _paths() else f"no NVRTC: {INSTALL}"


@cache
def _library() -> ctypes.CDLL:
    paths = _paths()
    if not paths:
        raise DeviceUnavailable(f"cuda: {why_absent()}")
    library = ctypes.CDLL(str(paths[0]))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _paths() -> list[Path]:
    """Libraries that NVIDIA's packages have installed, the newest first."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    paths = [path for folder in folders for path in folder.glob("*/lib/libnvrtc.so.*") if "builtins" not in path.name]
    return sorted(paths, reverse=True)


def _strings(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _check(library: ctypes.CDLL, code: int, what: str) -> None:
    if code:
        raise CompileError(f"[cuda] {what}: {library.nvrtcGetErrorString(code).decode()}")


def _bytes(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
    buffer = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, buffer), what)
    return buffer.raw


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    return _bytes(library, program, what).rstrip(b"\0").decode(errors="replace")
