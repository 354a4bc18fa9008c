"""Compiles HIP C++ for AMD's GPUs without ROCm, by a clang that has them: that of the package `ziglang`, or one of the
system's (`clang-19` of Debian).

What comes out are objects. Functions of ROCm's device library (`__ocml_…`) stay open in them; hiprtc links those.
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from rlx.backends.rocm.hiprtc import OPTIONS
from rlx.errors import CompileError

ARCHITECTURES = ("gfx90a", "gfx942", "gfx1100")
"""MI200 and MI300 with wavefronts of 64 lanes, and RDNA 3 with those of 32, which every kernel must compile for."""
SYSTEM = ("clang", "clang-22", "clang-21", "clang-20", "clang-19", "clang-18", "clang-17")
ALONE = ("-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-nostdinc", "-O3", "-S", "-Xclang", "-emit-obj")
"""An object of the device's code alone. Drivers of clang link what they compile for GPUs, except where they are asked
for assembly: then the object is asked of the compiler itself."""
MACHINE = 224
"""AMD's GPUs in ELF."""


@cache
def compiler() -> tuple[str, ...]:
    """How to call a compiler; empty if there is none."""
    package = importlib.util.find_spec("ziglang")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        if Path(folder, "zig").exists():
            return (str(Path(folder, "zig")), "clang")
    for name in SYSTEM:
        found = shutil.which(name)
        if found and "amdgcn" in subprocess.run([found, "--print-targets"], capture_output=True, text=True).stdout:
            return (found,)
    return ()


def why_absent() -> str:
    """Why kernels cannot be compiled here; empty if they can."""
    return "" if compiler() else "no clang with AMD's GPUs: pip install ziglang"


def version() -> str:
    told = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    return told.splitlines()[0]


def compile_object(text: str, architecture: str) -> bytes:
    """Raises CompileError with what the compiler says."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "kernels.hip"), Path(folder, "kernels.o")
        source.write_text(text)
        options = [*ALONE, f"--offload-arch={architecture}", *OPTIONS]
        done = subprocess.run([*compiler(), *options, str(source), "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            raise CompileError(f"[rocm] {architecture}: {done.stderr[:2000]}")
        return made.read_bytes()


def symbols(code: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """Names that an object has, and those that it lacks. Raises ValueError for one of another machine."""
    if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", code, 18)[0] != MACHINE:
        raise ValueError("expected an object for AMD's GPUs")
    start, size, count = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + size * number) for number in range(count)]
    had, lacked = set(), set()
    for _, kind, _, _, offset, nbytes, link, _, _, _ in sections:
        if kind != 2:
            continue  # no table of symbols
        names = sections[link][4]
        for at in range(offset, offset + nbytes, 24):
            name, _, _, section, _, _ = struct.unpack_from("<IBBHQQ", code, at)
            end = code.index(b"\0", names + name)
            (had if section else lacked).add(code[names + name : end].decode())
    return frozenset(had - {""}), frozenset(lacked - {""})
