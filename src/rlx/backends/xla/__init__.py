"""XLA through jax: the graph is walked op by op while jax traces it, and compiled anew for every size.

`scalar.py` has the instructions of elementwise ops, `walk.py` a function for each other primitive, `executable.py` runs
them.
"""

from __future__ import annotations

import importlib.util
import time

from rlx.backends.base import Backend, Executable, Options, Probe, Unsupported
from rlx.errors import UnsupportedOp
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph

EXTRA = "pip install 'rlx[xla]'"
NARROW = frozenset(d for d in dtypes.ALL.values() if d.bits < 16 and d not in (dtypes.bool_, dtypes.u8, dtypes.i8))


class XlaBackend(Backend):
    """XLA on the processor."""

    name = "xla"
    platform = "cpu"

    def probe(self) -> Probe:
        if importlib.util.find_spec("jax") is None:
            return Probe(reason=f"the package jax is not installed: {EXTRA}")
        return Probe(devices=("XLA on the processor",))

    def identity(self, ordinal: int = 0) -> dict[str, str]:
        from importlib.metadata import version

        return {"device": self.full_name(ordinal), "jax": version("jax"), "jaxlib": version("jaxlib")}

    def legalise(self, graph: Graph, options: Options) -> Graph:
        from rlx import flags
        from rlx.passes.pipeline import optimise

        disable = options.disable | frozenset(flags.disable())
        return optimise(graph, disable=disable)[0]  # jax lays images out as it likes

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        ready = self.legalise(graph, Options())
        return self._refused(ready)

    def _refused(self, ready: Graph) -> list[Unsupported]:
        from rlx.backends.xla import walk

        found = [Unsupported(node, f"no lowering for {node.op.name}") for node in walk.unsupported_nodes(ready)]
        for node in ready.nodes:
            wrong = [t.dtype for t in node.types if t.dtype in NARROW or t.dtype.is_complex]
            if wrong:
                found.append(Unsupported(node, f"{wrong[0]} is not lowered to XLA"))
        return found

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        from rlx.backends.xla.executable import XlaExecutable

        start = time.perf_counter_ns()
        ready = self.legalise(graph, options)
        refused = self._refused(ready)
        if refused:
            listed = "; ".join(
                f"[{u.node.op.name}] at node {u.node.source or u.node.name!r}: {u.reason}" for u in refused
            )
            raise UnsupportedOp(f"[xla] {listed}")
        made = XlaExecutable(ready, self.platform)
        made.compile_ns = time.perf_counter_ns() - start
        return made


BACKEND = XlaBackend
