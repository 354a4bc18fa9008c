"""Compiles the kernels of every op case, and of graphs large enough for several blocks, for AMD's architectures, and
with --emulate runs them on the processor.

    python -m tools.check_rocm                    # objects, by a clang: no GPU, no ROCm (`tools/compile_hip.py`)
    python -m tools.check_rocm --hiprtc gfx942    # code objects, by ROCm's compiler, for one architecture
    python -m tools.check_rocm --emulate          # on the processor, with wavefronts of 64 and of 32 lanes

Nothing here runs on a GPU. Cases with conditionals and loops are compiled only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from rlx.backends.rocm import hiprtc
from rlx.backends.rocm.build import AMDS
from rlx.codegen.simt.module import CppModule
from tools.check_cuda import parser_of, prepared, run_all
from tools.compile_hip import ARCHITECTURES, compile_object, symbols, version, why_absent
from tools.emulate_cuda import Emulator

WAVEFRONTS = (64, 32)
LIBRARY = "__ocml_"
"""How names of ROCm's device library begin."""


def missing(module: CppModule, code: bytes) -> set[str]:
    """Kernels that an object lacks, and functions that nothing will bring."""
    had, lacked = symbols(code)
    return (module.kernels.keys() - had) | {name for name in lacked if not name.startswith(LIBRARY)}


def compile_all(
    modules: Sequence[CppModule], architecture: str, compiled: Callable[[str, str], bytes], jobs: int
) -> list[bytes]:
    start = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        codes = list(pool.map(lambda module: compiled(module.text, architecture), modules))
    kernels = sum(len(module.kernels) for module in modules)
    seconds = time.perf_counter() - start
    print(f"{architecture}: {kernels} kernels, {sum(map(len, codes))} bytes, {seconds:.0f} s", flush=True)
    return codes


def main() -> int:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--hiprtc", default="", metavar="ARCHITECTURE", help="compile for it by ROCm's hiprtc")
    given = parser.parse_args()
    groups, modules = prepared(AMDS, given.only, given.every)
    if given.emulate:
        return max(run_all(Emulator(warp), groups, modules, given.jobs) for warp in WAVEFRONTS)
    if given.hiprtc:
        print(f"hiprtc {hiprtc.version()}")
        compile_all(modules, given.hiprtc, hiprtc.compile_code, given.jobs)
        return 0
    if why_absent():
        print(why_absent())
        return 1
    print(version())
    lacking: set[str] = set()
    for architecture in ARCHITECTURES:
        for module, code in zip(modules, compile_all(modules, architecture, compile_object, given.jobs)):
            lacking |= missing(module, code)
    print("\n".join(sorted(lacking)))
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
