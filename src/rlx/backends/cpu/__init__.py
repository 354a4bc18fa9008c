"""The CPU backend: native code through LLVM, no BLAS, no compiler on the user's machine.

`claims.py` says what is taken as it is, `codegen.py` turns a program into one LLVM module, `gemm.py` and `attention.py`
write the special kernels, `executable.py` runs the result on the threads of `pool.py`.
"""

from __future__ import annotations

import time

from rlx.backends.base import Backend, Executable, Options, Probe, Unsupported
from rlx.ir.graph import Graph


class CpuBackend(Backend):
    """The machine's own processor."""

    name = "cpu"

    def probe(self) -> Probe:
        from rlx.backends.cpu import isa

        return Probe(devices=(isa.model_name(),))

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        from rlx.backends.cpu import claims

        return claims.unsupported(graph)

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        from rlx.backends.cpu import build, isa

        start = time.perf_counter_ns()
        target = isa.detect() if options.isa is None else isa.forced(options.isa)
        made = build.build(graph, target, options)
        made.compile_ns = time.perf_counter_ns() - start
        return made


BACKEND = CpuBackend
