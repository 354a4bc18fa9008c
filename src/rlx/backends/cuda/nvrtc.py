"""NVRTC: CUDA C++ to machine code for a named architecture, without a GPU, a driver or a toolkit.

The library comes with the package `nvidia-cuda-nvrtc` (extra `cuda`).
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from functools import cache
from pathlib import Path

from rlx.backends.runtime_compiler import RuntimeCompiler
from rlx.errors import DeviceUnavailable

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
"""Ampere, Hopper and Blackwell, which every kernel must compile for."""
OPTIONS = ("--std=c++17", "--fmad=false")
PORTABLE = "compute_75"
"""The oldest GPUs that NVRTC 13 knows. PTX for these runs on all later ones."""
PTX_VERSION = "8.4"
"""The PTX of CUDA 12.4."""
INSTALL = "pip install 'rlx[cuda]'"


QUICK = ("--Ofast-compile=mid",)
"""Half of the time, for slower code."""


def compile_cubin(source: str, architecture: str, name: str = "rlx.cu", quick: bool = False) -> bytes:
    """Machine code of a CUDA C++ text. Raises CompileError with the compiler's log, DeviceUnavailable without NVRTC.

    quick   slower code in half of the time, for those who ask whether there is any
    """
    options = [f"--gpu-architecture={architecture}", *OPTIONS, *(QUICK if quick else ())]
    return _compiler().compile(source, architecture, name, options)


def compile_ptx(source: str, name: str = "rlx.cu") -> bytes:
    """PTX of a plain CUDA C++ text, which may call functions that the driver alone has. It says of itself that it is of
    `PTX_VERSION`: a driver refuses the PTX of compilers that are newer than itself. Raises CompileError,
    DeviceUnavailable."""
    options = [f"--gpu-architecture={PORTABLE}", *OPTIONS]
    text = _compiler().compile(source, PORTABLE, name, options, "PTX").rstrip(b"\0").decode()
    return re.sub(r"^\.version .*$", f".version {PTX_VERSION}", text, count=1, flags=re.MULTILINE).encode()


def version() -> str:
    """NVRTC's version. Raises DeviceUnavailable."""
    return _compiler().version()


def why_absent() -> str:
    """Why there is no NVRTC here; empty if there is one."""
    return "" if _paths() else f"no NVRTC: {INSTALL}"


@cache
def _compiler() -> RuntimeCompiler:
    paths = _paths()
    if not paths:
        raise DeviceUnavailable(f"cuda: {why_absent()}")
    for builtins in paths[0].parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))  # NVRTC 13.0 opens it by its name alone, and does not look where it lies itself
    return RuntimeCompiler(ctypes.CDLL(str(paths[0])), "nvrtc", "CUBIN", "cuda")


def _paths() -> list[Path]:
    """Libraries that NVIDIA's packages have installed, the newest first."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    paths = [path for folder in folders for path in folder.glob("*/lib/libnvrtc.so.*") if "builtins" not in path.name]
    return sorted(paths, reverse=True)
