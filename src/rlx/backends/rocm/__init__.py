"""AMD GPUs, through HIP: kernels of `codegen/simt` in HIP C++, compiled by hiprtc.

`probe.py` looks for a device cheaply, `libraries.py` for ROCm's libraries, `driver.py` makes the calls, `hiprtc.py`
compiles, and `build.py` says what kernels may be. How programs run is that of `backends/cuda`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.backends.base import Probe
from rlx.backends.cuda import DriverBackend

if TYPE_CHECKING:
    from rlx.backends.cuda.build import Maker
    from rlx.backends.cuda.driver import Driver


class RocmBackend(DriverBackend):
    name = "rocm"

    def driver(self) -> type[Driver]:
        from rlx.backends.rocm.driver import HipDriver

        return HipDriver

    def maker(self) -> Maker:
        from rlx.backends.rocm.build import AMDS

        return AMDS

    def probe(self) -> Probe:
        from rlx.backends.rocm import probe

        return probe.probe()
