"""Apple's GPUs, through Metal: kernels of `codegen/simt` in Metal's language, compiled by macOS.

`probe.py` looks for a device cheaply, `objective_c.py` sends messages to objects of macOS, `driver.py` makes the calls,
`commands.py` has what a queue is given, and `build.py` says what kernels may be. How programs run is that of
`backends/cuda`, without graphs of whole runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.backends.base import Probe
from rlx.backends.cuda import DriverBackend

if TYPE_CHECKING:
    from rlx.backends.cuda.build import Maker
    from rlx.backends.cuda.driver import Driver


class AppleGpuBackend(DriverBackend):
    name = "apple-gpu"

    def driver(self) -> type[Driver]:
        from rlx.backends.apple_gpu.driver import MetalDriver

        return MetalDriver

    def maker(self) -> Maker:
        from rlx.backends.apple_gpu.build import APPLES

        return APPLES

    def probe(self) -> Probe:
        from rlx.backends.apple_gpu import probe

        return probe.probe()

    def unified_memory(self, ordinal: int = 0) -> bool:
        return True
