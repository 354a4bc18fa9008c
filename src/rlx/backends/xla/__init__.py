"""XLA through jax: the graph is walked op by op while jax traces it, and compiled anew for every size.

`scalar.py` has the instructions of elementwise ops, `lowering.py` a function for each other primitive, `executable.py`
runs them, `timers.py` times them, with marks that `named_scopes.py` writes.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.backends.base import Backend, Launches, Options, Probe, Unsupported
from rlx.backends.executable import Executable
from rlx.cost.estimate import Estimator, Rates
from rlx.cost.prior import Traits
from rlx.errors import UnsupportedOp
from rlx.ir.graph import Graph, Node
from rlx.ops.writing import UpdateSlice

if TYPE_CHECKING:
    from rlx.backends.size_buckets import SizeBuckets
    from rlx.passes.driver import Pass

EXTRA = "pip install 'rlx[xla]'"
TPU_EXTRA = "pip install 'jax[tpu]'"
EQUAL = 0.15
"""What XLA takes for a kernel that equals one before, of what that took: it optimises a program as one."""
GOOGLE = "0x1ae0"
"""Vendor of TPUs on the PCI bus."""


class XlaBackend(Backend):
    """XLA on the processor."""

    name = "xla"
    compiles_sizes = True
    loop_trips = 1 << 25
    writes_states = True
    holds_experts = True
    reads_in_place = True
    platform = "cpu"

    def on_processor(self, ordinal: int = 0) -> bool:
        return self.platform == "cpu"

    def probe(self) -> Probe:
        if importlib.util.find_spec("jax") is None:
            return Probe(reason=f"the package jax is not installed: {EXTRA}")
        return Probe(devices=("XLA on the processor",))

    def identity(self, ordinal: int = 0) -> dict[str, str]:
        from importlib.metadata import version

        return {"device": self.full_name(ordinal), "jax": version("jax"), "jaxlib": version("jaxlib")}

    def traits(self, ordinal: int = 0) -> Traits | None:
        from rlx.backends import processor

        return processor.traits() if self.on_processor() else None

    def free_bytes(self, ordinal: int = 0) -> int | None:
        from rlx.backends import processor

        return processor.free_bytes() if self.on_processor() else None

    def claim(self, node: Node) -> str | None:
        from rlx.backends.xla import fourier

        return "" if isinstance(node.op, UpdateSlice) else fourier.claim(node)

    def passes(self, options: Options) -> list[Pass]:
        from rlx.passes.hoist import Hoist
        from rlx.passes.transpose_weights import TransposeWeights

        turned = [TransposeWeights()] if self.platform == "cpu" else []  # elsewhere XLA chooses how weights lie
        return [*super().passes(options), *turned, Hoist()]

    def launches(self, graph: Graph, options: Options, binding: Mapping[str, int]) -> Launches:
        from rlx.backends.op_by_op import calls
        from rlx.passes import prepare

        return Launches(calls(prepare.split(self.legalise(graph, options))[1], binding), exact=False)

    def size_buckets(self, graph: Graph, options: Options) -> SizeBuckets | None:
        from rlx import flags
        from rlx.backends.size_buckets import SizeBuckets
        from rlx.passes import prepare

        return SizeBuckets(prepare.split(self.legalise(graph, options))[1]) if flags.size_buckets() else None

    def unified_memory(self, ordinal: int = 0) -> bool:
        return self.platform == "cpu"

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        ready = self.legalise(graph, Options())
        return self._refused(ready)

    def _refused(self, ready: Graph) -> list[Unsupported]:
        from rlx.backends.xla import lowering

        return [Unsupported(node, f"no lowering for {node.op.name}") for node in lowering.unsupported_nodes(ready)]

    def estimator(self, graph: Graph, options: Options, rates: Rates, ordinal: int = 0) -> Estimator:
        from rlx.backends.xla import fourier
        from rlx.cost.compiles import Compiler
        from rlx.cost.generic import GenericEstimator

        claims = options.dispatch.claims(fourier.estimated)
        return GenericEstimator(graph, rates, options.disable, claims, options.policy(), Compiler(again=EQUAL))

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
        key = self._cache_key(ready, ordinal, options.profile) if options.cache else ""
        made = XlaExecutable(ready, self.platform, key, options.profile)
        made.compile_ns = time.perf_counter_ns() - start
        return made

    def _cache_key(self, ready: Graph, ordinal: int, profile: bool) -> str:
        """All that decides a program but for its sizes: it has code for this very processor."""
        import rlx
        from rlx import disk
        from rlx.backends.cpu.isa import detect
        from rlx.ir.fingerprint import fingerprint

        facts = self.identity(ordinal)
        target = detect()
        parts = [rlx.__version__, disk.source_digest(), self.platform, target.cpu, target.features, fingerprint(ready)]
        parts += ["marked"] if profile else []
        parts.append(os.environ.get("XLA_FLAGS", ""))  # XLA's own switches, which decide its code too
        return "\0".join([*parts, *(f"{name}={value}" for name, value in sorted(facts.items()))])


class TpuBackend(XlaBackend):
    """XLA on a TPU. Its compiler is checked without one (tools/check_tpu.py); nothing of this was run on one."""

    name = "tpu"
    platform = "tpu"

    def probe(self) -> Probe:
        for package in ("jax", "libtpu"):
            if importlib.util.find_spec(package) is None:
                return Probe(reason=f"the package {package} is not installed: {TPU_EXTRA}")
        count = sum(_vendor(device) == GOOGLE for device in Path("/sys/bus/pci/devices").glob("*"))
        return Probe(devices=("TPU",) * count) if count else Probe(reason="no TPU is on the PCI bus")


def _vendor(device: Path) -> str:
    try:
        return (device / "vendor").read_text().strip()
    except OSError:
        return ""
