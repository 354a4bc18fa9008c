"""hiprtc: HIP C++ to machine code for a named architecture, by the library of ROCm."""

from __future__ import annotations

from functools import cache

from rlx.backends.rocm import libraries
from rlx.backends.runtime_compiler import RuntimeCompiler

OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off")


def compile_code(source: str, architecture: str, name: str = "rlx.hip") -> bytes:
    """The code object of a HIP C++ text. Raises CompileError with the compiler's log, DeviceUnavailable without
    hiprtc."""
    return _compiler().compile(source, architecture, name, [f"--offload-arch={architecture}", *OPTIONS])


def version() -> str:
    """hiprtc's version. Raises DeviceUnavailable."""
    return _compiler().version()


@cache
def _compiler() -> RuntimeCompiler:
    return RuntimeCompiler(libraries.load(libraries.COMPILER), "hiprtc", "Code", "rocm")
