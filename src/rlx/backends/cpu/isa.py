"""The instruction sets that CPU code is generated for: vector width, registers, and the matrix block that fits them.

`detect()` says what the host runs, `forced(name)` takes one by name. An `Isa` is everything a renderer may know about
its target; caches are the host's when the host runs the code, typical sizes else.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rlx import flags
from rlx.codegen.simd.isa import Isa
from rlx.errors import DeviceUnavailable, did_you_mean
from rlx.records import dataclass

CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class _Level:
    """An ISA by name, the least CPU that has it, and the host features that it needs."""

    isa: Isa
    needs: tuple[str, ...]


_AVX2 = ("avx2", "fma", "f16c", "bmi", "bmi2")
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")

# From the best to the least, for each architecture. 24 of 32 registers for results, or 12 of 16, hide the latency of
# the multiply-add (4 cycles, 2 a cycle) and leave room for the operands. For SSE 6 x 2 measured best of seven blocks,
# though its products need the last registers.
LEVELS = {
    "avx512": _Level(Isa("avx512", "x86_64", "x86-64-v4", "", 16, 32, 8, 3, has_fma=True), _AVX512 + _AVX2),
    "avx2": _Level(Isa("avx2", "x86_64", "x86-64-v3", "", 8, 16, 6, 2, has_fma=True), _AVX2),
    "sse": _Level(Isa("sse", "x86_64", "x86-64-v2", "", 4, 16, 6, 2, has_fma=False), ("sse4.2", "popcnt")),
    "neon": _Level(Isa("neon", "aarch64", "generic", "+neon", 4, 32, 8, 3, has_fma=True), ("neon",)),
}


def detect() -> Isa:
    """The ISA for this process: `RLX_CPU_ISA` if set, else the widest that the host runs. Raises DeviceUnavailable."""
    name = flags.cpu_isa()
    return widest() if name == "auto" else forced(name)


def widest() -> Isa:
    """The widest ISA that the host runs, tuned for the host. Raises DeviceUnavailable."""
    features = host_features()
    for level in LEVELS.values():
        if not _lacks(level, features):
            return _for_host(level.isa)
    raise DeviceUnavailable(f"cpu: no code for {host_arch()}: rlx has x86-64 from SSE4.2 on (x86-64-v2) and 64-bit Arm")


def forced(name: str, for_codegen_only: bool = False) -> Isa:
    """The ISA of this name. It must run on the host unless the code is only made, not run. Raises DeviceUnavailable."""
    if name not in LEVELS:
        near = did_you_mean(name, LEVELS)
        raise DeviceUnavailable(f"cpu: no ISA named {name!r}; expected one of {', '.join(LEVELS)}{near}")
    level = LEVELS[name]
    if for_codegen_only:
        return level.isa
    lacks = _lacks(level, host_features())
    if lacks:
        raise DeviceUnavailable(
            f"cpu: this CPU cannot run {name} code (lacks {', '.join(lacks)}); it can run {widest().name}. "
            "Unset RLX_CPU_ISA, or choose that."
        )
    return _with_host_caches(level.isa)


def describe() -> str:
    """The CPU's model name and the ISA in use: `AMD EPYC 9354 (avx512)`."""
    return f"{model_name()} ({detect().name})"


def host_arch() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def host_features() -> frozenset[str]:
    """LLVM's names of the features that the host has; 64-bit Arm always has neon."""
    features = {feature[1:] for feature in _host()[1].split(",") if feature.startswith("+")}
    return frozenset(features | {"neon"} if host_arch() == "aarch64" else features)


@cache
def _host() -> tuple[str, str]:
    """The CPU's name, and its features as LLVM takes them. Every compile asks, and they stay as they are."""
    told = _told_by_library()
    if told is not None:
        return told
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_name()), str(llvm.get_host_cpu_features().flatten())


def _told_by_library() -> tuple[str, str] | None:
    """The same, asked of llvmlite's library, which takes a fifth of the time to load that the package takes; None where
    it is another than we know. What waits for code of another process needs no more of LLVM."""
    spec = None if "llvmlite.binding" in sys.modules else find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(str(Path(spec.origin).parent / "binding" / "libllvmlite.so"))
        answers = []
        for ask in (library.LLVMPY_GetHostCPUName, library.LLVMPY_GetHostCPUFeatures):
            answer = ctypes.c_char_p()
            ask(ctypes.byref(answer))
            answers.append((answer.value or b"").decode())
            library.LLVMPY_DisposeString(answer)
    except (OSError, AttributeError):
        return None
    name, features = answers
    parts = sorted(features.split(","), key=lambda part: part[1:])
    return (name, ",".join(parts)) if name and all(part[:1] in ("+", "-") for part in parts) else None


def _lacks(level: _Level, features: Collection[str]) -> list[str]:
    """What the host has not of what the level needs."""
    if level.isa.triple_arch != host_arch():
        return [f"the {level.isa.triple_arch} architecture"]
    return [name for name in level.needs if name not in features]


def _for_host(isa: Isa) -> Isa:
    """The ISA with the host's own CPU name and features, so that LLVM schedules for it and uses the extras."""
    cpu, features = _host()
    return _with_host_caches(replace(isa, cpu=cpu or isa.cpu, features=features or isa.features))


def _with_host_caches(isa: Isa) -> Isa:
    sizes = cache_sizes()
    return replace(
        isa,
        line_bytes=sizes.get("line_bytes", isa.line_bytes),
        l1_bytes=sizes.get("l1_bytes", isa.l1_bytes),
        l2_bytes=sizes.get("l2_bytes", isa.l2_bytes),
        l3_bytes=sizes.get("l3_bytes", isa.l3_bytes),
    )


@cache
def cache_sizes(folder: Path = CACHE_FOLDER) -> dict[str, int]:
    """The fields of `Isa` that Linux tells about the caches of the first CPU; what it does not tell is absent."""
    sizes: dict[str, int] = {}
    for index in sorted(folder.glob("index*")):
        level, kind, size, line = (_read(index / name) for name in ("level", "type", "size", "coherency_line_size"))
        amount = _bytes(size)
        if kind == "Instruction" or level not in ("1", "2", "3") or not amount:
            continue
        sizes[f"l{level}_bytes"] = amount
        if line.isdigit() and int(line):
            sizes["line_bytes"] = int(line)
    return sizes


def _bytes(text: str) -> int:
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * scale if digits.isdigit() else 0


def model_name() -> str:
    """The CPU's name as the system gives it, LLVM's name of the core else."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    if sys.platform == "win32":
        return platform.processor() or host_arch()
    return _host()[0] or host_arch()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
