"""NVIDIA GPUs, through the CUDA driver: kernels of `codegen/simt` in CUDA C++, compiled by NVRTC.

`probe.py` looks for a device cheaply, `driver.py` says which calls the backend makes and `bindings.py` makes them,
`device.py` opens devices, `build.py` makes kernels of a graph and `cubins.py` keeps their code, `weights.py` has
weights, `executable.py` and `bound.py` run, `replay.py` has graphs of whole runs, `branches.py` has the device decide
in them what data decide, `blas.py` has cuBLASLt make products where that is faster, `arrays.py` and `dlpack.py` speak
with other libraries. All but the probe, the bindings and what cuBLASLt takes serve AMD's GPUs as well
(`backends/rocm`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlx.backends.base import Backend, Options, Probe, Unsupported
from rlx.backends.executable import Executable
from rlx.cost.estimate import Estimator, Rates
from rlx.errors import RlxError
from rlx.ir.graph import Graph, Node

if TYPE_CHECKING:
    from rlx.backends.cuda.build import Maker
    from rlx.backends.cuda.device import Device
    from rlx.backends.cuda.driver import Driver


class DriverBackend(Backend):
    """GPUs of a maker, through a driver."""

    loop_trips = 1 << 14  # each is waited for where the host decides
    writes_states = True
    holds_experts = True

    @abstractmethod
    def driver(self) -> type[Driver]: ...

    @abstractmethod
    def maker(self) -> Maker: ...

    def _open(self, ordinal: int) -> Device:
        from rlx.backends.cuda.device import open_device

        return open_device(ordinal, self.driver())

    def identity(self, ordinal: int = 0) -> dict[str, str]:
        from rlx.backends.cuda.device import driver

        started = driver(self.driver())
        return {
            "device": started.device_name(ordinal), "architecture": started.architecture(ordinal),
            "driver": started.version(), "compiler": started.compiler,
        }  # fmt: skip

    def free_bytes(self, ordinal: int = 0) -> int | None:
        try:
            return self._open(ordinal).free_bytes()
        except RlxError:
            return None

    def unified_memory(self, ordinal: int = 0) -> bool:
        return False

    def calibrate(self, ordinal: int = 0, step: Callable[[str], None] = lambda name: None) -> Rates:
        from rlx.backends import simt_cost
        from rlx.backends.cuda.cost import CudaEstimator, measure_compiler
        from rlx.backends.microbenchmarks import calibrate

        common = calibrate(self, ordinal, step)
        step("compilers")
        common |= measure_compiler(self._open(ordinal), self.maker())

        def estimator(graph: Graph, rates: Rates) -> CudaEstimator:
            return CudaEstimator(graph, Options(), rates, self.maker())

        return common | simt_cost.calibrate(self, ordinal, step, common, estimator)

    def estimator(self, graph: Graph, options: Options, rates: Rates, ordinal: int = 0) -> Estimator:
        from rlx.backends.cuda.cost import CudaEstimator

        return CudaEstimator(graph, options, rates, self.maker())

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        from rlx.backends.cuda import build

        return build.unsupported(graph, self.maker())

    def claim(self, node: Node) -> str | None:
        return self.maker().claim(node)

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        from rlx.backends.cuda import build
        from rlx.backends.cuda.executable import CudaExecutable

        start = time.perf_counter_ns()
        device = self._open(ordinal)
        plan = build.build(graph, options, self.maker().on(device.architecture))
        texts = list(plan.texts.items())
        codes = dict(zip(plan.texts, device.compiled(texts, options.cache)))
        executable = CudaExecutable(plan, device, codes, options.profile, options.cache)
        executable.compile_ns = time.perf_counter_ns() - start
        return executable


class CudaBackend(DriverBackend):
    name = "cuda"

    def driver(self) -> type[Driver]:
        from rlx.backends.cuda.bindings import BindingsDriver

        return BindingsDriver

    def maker(self) -> Maker:
        from rlx.backends.cuda.build import NVIDIAS

        return NVIDIAS

    def probe(self) -> Probe:
        from rlx.backends.cuda import probe

        return probe.probe()
