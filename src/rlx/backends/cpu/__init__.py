"""The CPU backend: native code through LLVM, no BLAS, no compiler on the user's machine.

`claims.py` says what is taken as it is, `codegen.py` turns a program into one LLVM module, `gemm.py` and `attention.py`
write the special kernels, `executable.py` runs the result on the threads of `pool.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rlx.backends.base import Backend, Options, Probe, Unsupported
from rlx.backends.executable import Executable

if TYPE_CHECKING:
    from rlx.codegen.simd.isa import Isa
    from rlx.cost.estimate import Estimator, Rates
    from rlx.cost.prior import Traits
    from rlx.ir.graph import Graph, Node


class CpuBackend(Backend):
    """The machine's own processor."""

    name = "cpu"
    writes_states = True
    loop_trips = 1 << 25

    def on_processor(self, ordinal: int = 0) -> bool:
        return True

    def probe(self) -> Probe:
        from rlx.backends.cpu import isa

        return Probe(devices=(isa.model_name(),))

    def full_name(self, ordinal: int = 0) -> str:
        from rlx.backends.cpu import isa

        return isa.describe()

    def identity(self, ordinal: int = 0) -> dict[str, str]:
        import llvmlite

        from rlx.backends.cpu import isa

        return {"device": self.full_name(), "features": isa.detect().features, "llvmlite": llvmlite.__version__}

    def calibrate(self, ordinal: int = 0, step: Callable[[str], None] = lambda name: None) -> Rates:
        from rlx.backends.cpu.calibrate import calibrate

        return calibrate(self, ordinal, step)

    def traits(self, ordinal: int = 0) -> Traits:
        from rlx.backends import processor
        from rlx.backends.cpu import topology

        return processor.traits(topology.threads())

    def prior(self, ordinal: int = 0) -> Rates:
        """What no profile of this instruction set has is roughly as such machines have it."""
        from rlx.backends.cpu import isa, rates
        from rlx.cost.prior import predict, predict_any, recorded

        traits, profiles = self.traits(), recorded(__name__)
        roughly = predict_any(profiles, traits) | rates.usual(isa.detect())
        return roughly | predict(profiles, traits) | {"threads_count": traits.amounts["threads"]}

    def estimator(self, graph: Graph, options: Options, rates: Rates, ordinal: int = 0) -> Estimator:
        from rlx.backends.cpu.rates import CpuEstimator

        return CpuEstimator(graph, options, rates)

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        from rlx.backends.cpu import claims

        return claims.refused(self.legalise(graph, Options()))

    def claim(self, node: Node) -> str | None:
        from rlx.backends.cpu import claims

        return claims.claim(node)

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        from rlx.backends.cpu import first_runs

        start = time.perf_counter_ns()
        executable = first_runs.executable_of(graph, _target(options), options)
        executable.compile_ns = time.perf_counter_ns() - start
        return executable

    def code_facts(self, options: Options) -> dict[str, str]:
        from rlx.backends.cpu import build

        return build.code_facts(_target(options))

    def code_mismatch(self, facts: Mapping[str, str], options: Options) -> str:
        from rlx.backends.cpu import build

        return build.code_mismatch(facts)

    def load_code(self, data: bytes, facts: Mapping[str, str], options: Options) -> Executable:
        from rlx.backends.cpu import build

        start = time.perf_counter_ns()
        executable = build.load_code(data, facts, options)
        executable.compile_ns = time.perf_counter_ns() - start
        return executable


def _target(options: Options) -> Isa:
    from rlx.backends.cpu import isa

    return isa.detect() if options.isa is None else isa.forced(options.isa)


BACKEND = CpuBackend
