"""Core ML: the graph is converted, at every size, into a model for Apple's Neural Engine, GPU and processor.

`library.py` has coremltools and what its language MIL calls dtypes, `scalar.py` the instructions of elementwise ops,
`shapes.py`, `contractions.py` and `indexing.py` a function for each other primitive, `fused.py` the composites that
MIL has ops for, `compressed.py` weights that stay integers, `build.py` puts them into a program, `package.py` converts
and saves it, `executable.py` runs it, and `folding.py` works it out without Core ML, for tests.
"""

from __future__ import annotations

import importlib.util
import platform
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rlx.backends.base import Backend, Launches, Options, Probe, Unsupported
from rlx.backends.coreml.library import EXTRA, on_macos
from rlx.backends.executable import Executable
from rlx.cost.estimate import Rates
from rlx.errors import DeviceUnavailable, UnsupportedOp
from rlx.ir.graph import Graph, Node

if TYPE_CHECKING:
    from rlx.passes.driver import Pass

CONVERTER = "converter (Core ML runs models on macOS)"
"""Not a device that runs anything: it is taken only by name."""
LEAST_MACOS = 15


class CoremlBackend(Backend):
    """The Neural Engine with what else Core ML uses; elsewhere than on macOS, a converter."""

    name = "ane"
    compiles_sizes = True
    tells_checks = False  # MIL has no u64, and the models serve other programs too

    def probe(self) -> Probe:
        if importlib.util.find_spec("coremltools") is None:
            return Probe(reason=f"the package coremltools is not installed: {EXTRA}")
        if not on_macos():
            return Probe(devices=(CONVERTER,))
        version = platform.mac_ver()[0]
        if int(version.partition(".")[0] or 0) < LEAST_MACOS:
            return Probe(reason=f"expected macOS {LEAST_MACOS} or newer, got {version or 'one without a version'}")
        return Probe(devices=("Apple Neural Engine",) if platform.machine() == "arm64" else ("Core ML",))

    def identity(self, ordinal: int = 0) -> dict[str, str]:
        from importlib.metadata import version

        return {"device": self.full_name(ordinal), "coremltools": version("coremltools")}

    def calibrate(self, ordinal: int = 0, step: Callable[[str], None] = lambda name: None) -> Rates | None:
        if not on_macos():
            raise DeviceUnavailable("[calibrate] expected macOS, whose Core ML runs models, to measure them there")
        return super().calibrate(ordinal, step)

    def claim(self, node: Node) -> str | None:
        from rlx.backends.coreml import fused

        return fused.claim(node)

    def passes(self, options: Options) -> list[Pass]:
        from rlx.passes.hoist import Hoist
        from rlx.passes.pipeline import standard

        return [*standard(options.dispatch.claims(self.claim), options.policy()), Hoist()]

    def launches(self, graph: Graph, options: Options, binding: Mapping[str, int]) -> Launches:
        return Launches(1)  # of the model, which Core ML spreads over its units

    def unsupported(self, graph: Graph) -> list[Unsupported]:
        from rlx.backends.coreml import build

        return build.refused(build.prepared(self.legalise(graph, Options())))

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        from rlx.backends.coreml import build
        from rlx.backends.coreml.executable import CoremlExecutable

        start = time.perf_counter_ns()
        unsupported = build.refused(build.prepared(self.legalise(graph, options)))
        if unsupported:
            raise UnsupportedOp(f"[ane] {build.listed(unsupported)}")
        executable = CoremlExecutable(graph, lambda known: self.legalise(known, options))
        executable.compile_ns = time.perf_counter_ns() - start
        return executable
