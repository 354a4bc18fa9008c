"""MLX: the graph is turned into calls of mlx, op by op, at every binding of its dims.

`scalar.py` has the instructions of elementwise ops, `shapes.py`, `contractions.py` and `indexing.py` a function for
each other primitive, `fused.py` the composites that mlx has functions for, `packed.py` products with weights of few
bits, `plan.py` puts them in a row, `executable.py` runs it.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.backends.base import Backend, Launches, Options, Probe, Unsupported
from rlx.backends.executable import Executable
from rlx.cost.prior import Traits
from rlx.errors import UnsupportedOp
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Node
from rlx.ops.packed import PackedMatmul
from rlx.ops.writing import UpdateSlice

if TYPE_CHECKING:
    from rlx.passes.driver import Pass

EXTRA = "pip install 'rlx[mlx]'"
PROCESSOR = "software (MLX on the processor)"
"""Not a device of its own: it is chosen only by name."""


def graphics_device(folder: Path) -> str:
    """The product of mlx's GPU, by the libraries that came with the package; empty if it is for processors alone."""
    if sys.platform == "darwin":
        return "Apple GPU" if (folder / "lib" / "mlx.metallib").is_file() else ""
    return "NVIDIA GPU" if any(folder.parent.glob("mlx_cuda*.dist-info")) else ""


class MlxBackend(Backend):
    """The GPU of mlx where there is one, and the processor as the last device."""

    name = "mlx"
    writes_states = True
    holds_experts = True
    reads_in_place = True

    def probe(self) -> Probe:
        spec = importlib.util.find_spec("mlx")
        if spec is None or not spec.submodule_search_locations:
            return Probe(reason=f"the package mlx is not installed: {EXTRA}")
        if sys.platform == "darwin" and platform.machine() != "arm64":
            return Probe(reason="mlx is there on Apple's own processors and on Linux")
        folder = Path(next(iter(spec.submodule_search_locations)))
        if not any((folder / "lib").glob("libmlx.*")):
            return Probe(reason=f"the package mlx has come without its library: {EXTRA}")
        product = graphics_device(folder)
        return Probe(devices=(product, PROCESSOR) if product else (PROCESSOR,))

    def on_processor(self, ordinal: int = 0) -> bool:
        return (self.probe().devices or (PROCESSOR,))[ordinal] == PROCESSOR

    def traits(self, ordinal: int = 0) -> Traits | None:
        from rlx.backends import processor

        return processor.traits() if self.on_processor(ordinal) else None

    def free_bytes(self, ordinal: int = 0) -> int | None:
        from rlx.backends import processor

        return processor.free_bytes() if self.on_processor(ordinal) else None

    def identity(self, ordinal: int = 0) -> dict[str, str]:
        from importlib.metadata import version

        return {"device": self.full_name(ordinal), "mlx": version("mlx")}

    def claim(self, node: Node) -> str | None:
        from rlx.backends.mlx import fused

        return "" if isinstance(node.op, UpdateSlice) else fused.claim(node)

    def passes(self, options: Options) -> list[Pass]:
        from rlx.backends.mlx import packed
        from rlx.passes.hoist import Hoist

        native = options.dispatch.of(PackedMatmul.name) != "force-common"
        return [*([packed.weights] if native else []), *super().passes(options), packed.normal, Hoist()]

    def launches(self, graph: Graph, options: Options, binding: Mapping[str, int]) -> Launches:
        from rlx.backends.op_by_op import calls
        from rlx.passes import prepare

        return Launches(calls(prepare.split(self.legalise(graph, options))[1], binding), exact=False)

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        return refused(self.legalise(graph, Options()), self.on_processor())

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        from rlx.backends.mlx.executable import MlxExecutable

        start = time.perf_counter_ns()
        ready = self.legalise(graph, options)
        found = refused(ready, self.on_processor(ordinal))
        if found:
            listed = "; ".join(
                f"[{u.node.op.name}] at node {u.node.source or u.node.name!r}: {u.reason}" for u in found
            )
            raise UnsupportedOp(f"[mlx] {listed}")
        made = MlxExecutable(ready, self.on_processor(ordinal))
        made.compile_ns = time.perf_counter_ns() - start
        return made


def refused(ready: Graph, on_processor: bool) -> list[Unsupported]:
    """Nodes of a legalised graph that mlx does not take, those of regions too."""
    from rlx.backends.mlx import plan

    found: list[Unsupported] = []
    for node in ready.nodes:
        reason = "" if plan.supported(node.op) else f"no lowering for {node.op.name}"
        for of in node.types:
            if of.dtype is dtypes.c128:
                reason = reason or "MLX has no c128"
            if of.dtype is dtypes.f64:
                reason = reason or ("" if on_processor else "f64 is not there on MLX's GPUs") or plan.inexact(node)
        if reason:
            found.append(Unsupported(node, reason))
        for region in node.regions:
            found.extend(refused(region, on_processor))
    return found
