"""Checks the kernels of every op case, and of graphs large enough for several blocks, in Metal's language, and with
--emulate runs them on the processor.

    python -m tools.check_metal                    # address spaces and types, by a clang: `tools/compile_metal.py`
    python -m tools.check_metal --emulate          # on the processor, compiled as C++

Nothing here runs on a GPU, and no compiler of Metal's language is there but on macOS. Cases with conditionals and loops
are compiled only.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from rlx.backends.apple_gpu.build import APPLES
from tools.check_cuda import parser_of, prepared, run_all
from tools.compile_hip import version
from tools.compile_metal import check, why_absent
from tools.emulate_cuda import Emulator


def main() -> int:
    given = parser_of(__doc__ or "").parse_args()
    groups, modules = prepared(APPLES, given.only, given.every)
    if given.emulate:
        return run_all(Emulator(), groups, modules, given.jobs)
    if why_absent():
        print(why_absent())
        return 1
    start = time.perf_counter()
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda module: check(module.text), modules))
    kernels = sum(len(module.kernels) for module in modules)
    print(f"{version()}: {kernels} kernels, {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
