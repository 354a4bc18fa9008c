"""NVIDIA GPUs, through the CUDA driver: kernels of `codegen/simt` in CUDA C++, compiled by NVRTC.

`probe.py` looks for a device cheaply, `driver.py` says which calls the backend makes and `bindings.py` makes them,
`device.py` opens devices, `build.py` makes kernels of a graph and `cubins.py` keeps their code, `weights.py` has
weights, `executable.py` and `bound.py` run, `replay.py` has graphs of whole runs, `arrays.py` and `dlpack.py`
speak with other libraries.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rlx.backends.base import Backend, Options, Probe, Unsupported
from rlx.backends.executable import Executable
from rlx.cost.estimate import Estimator, Rates
from rlx.errors import RlxError
from rlx.ir.graph import Graph, Node


class CudaBackend(Backend):
    name = "cuda"
    loop_trips = 1 << 14  # each is waited for
    writes_states = True
    holds_experts = True

    def probe(self) -> Probe:
        from rlx.backends.cuda import probe

        return probe.probe()

    def identity(self, ordinal: int = 0) -> dict[str, str]:
        from rlx.backends.cuda.device import driver

        started = driver()
        return {
            "device": started.device_name(ordinal), "architecture": started.architecture(ordinal),
            "driver": started.version(), "compiler": started.compiler,
        }  # fmt: skip

    def free_bytes(self, ordinal: int = 0) -> int | None:
        from rlx.backends.cuda.device import open_device

        try:
            return open_device(ordinal).free_bytes()
        except RlxError:
            return None

    def unified_memory(self, ordinal: int = 0) -> bool:
        return False

    def calibrate(self, ordinal: int = 0, step: Callable[[str], None] = lambda name: None) -> Rates:
        from rlx.backends import simt_cost
        from rlx.backends.cuda.cost import CudaEstimator
        from rlx.backends.microbenchmarks import calibrate

        common = calibrate(self, ordinal, step)

        def estimator(graph: Graph, rates: Rates) -> CudaEstimator:
            return CudaEstimator(graph, Options(), rates)

        return common | simt_cost.calibrate(self, ordinal, step, common, estimator)

    def estimator(self, graph: Graph, options: Options, rates: Rates, ordinal: int = 0) -> Estimator:
        from rlx.backends.cuda.cost import CudaEstimator

        return CudaEstimator(graph, options, rates)

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        from rlx.backends.cuda import build

        return build.unsupported(graph)

    def claim(self, node: Node) -> str | None:
        from rlx.backends import simt_claims

        return simt_claims.claim(node)

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        from rlx.backends.cuda import build
        from rlx.backends.cuda.device import open_device
        from rlx.backends.cuda.executable import CudaExecutable

        start = time.perf_counter_ns()
        device = open_device(ordinal)
        plan = build.build(graph, options)
        texts = list(plan.texts.items())
        codes = dict(zip(plan.texts, device.compiled(texts, options.cache)))
        executable = CudaExecutable(plan, device, codes, options.profile)
        executable.compile_ns = time.perf_counter_ns() - start
        return executable
