"""Session: the choice of a device and of options, and the compile step."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from rlx import flags
from rlx.backends.base import Backend, Executable, Options, Unsupported
from rlx.device import registry
from rlx.errors import DeviceUnavailable, GraphError, UnsupportedOp
from rlx.ir.graph import Graph
from rlx.ir.uses import has_measured
from rlx.runtime import stages
from rlx.runtime.compiled import CompiledGraph

AUTO = ("cpu",)


class Session:
    """Compiles graphs for one device.

    device    a name such as `cpu`, `vulkan:1`, `reference`; `auto` takes the fastest device that takes the graph
    disable   passes or rewrites to leave out (`pass`, `pass/rewrite`), added to those of RLX_DISABLE
    threads   threads of the CPU backend; None takes RLX_NUM_THREADS
    isa       instruction set of the CPU backend; None takes RLX_CPU_ISA
    cache     whether to read and write the compile cache on disk; None takes RLX_CACHE
    """

    def __init__(
        self,
        device: str = "auto",
        *,
        disable: Iterable[str] = (),
        threads: int | None = None,
        isa: str | None = None,
        cache: bool | None = None,
    ) -> None:
        self.device = device
        isa = isa or flags.cpu_isa()
        self.options = Options(
            disable=frozenset(disable) | frozenset(flags.disable()),
            threads=threads or flags.num_threads() or None,
            isa=None if isa == "auto" else isa,
            cache=flags.cache() if cache is None else cache,
        )
        if device != "auto":
            registry.parse(device)

    def with_options(self, options: Options) -> Session:
        """A session for the same device with other options."""
        made = copy.copy(self)
        made.options = options
        return made

    def compile(self, graph: Graph) -> CompiledGraph:
        """The graph as a program for the session's device, with the weights that the graph brings along.

        Raises UnsupportedOp that names every node the device cannot take, DeviceUnavailable, CompileError.
        """
        if not graph.outputs:
            raise GraphError(f"[session] expected a graph with outputs (graph.output declares them), got {graph!r}")
        attempts: list[str] = []
        absent = 0
        names = AUTO if self.device == "auto" else (self.device,)
        for name in names:
            try:
                backend, ordinal = registry.backend(name)
                return CompiledGraph(graph, name, self._executable(graph, backend, ordinal))
            except DeviceUnavailable as error:
                if self.device != "auto":
                    raise
                attempts.append(str(error).removeprefix("[device] "))
                absent += 1
            except UnsupportedOp as error:
                attempts.append(_refusal(name, graph, _refused(graph, backend)) or str(error))
        if self.device != "auto":
            raise UnsupportedOp(f"[session] {attempts[0]}")
        kind = DeviceUnavailable if absent == len(names) else UnsupportedOp
        listed = "\n  ".join(attempts)
        raise kind(
            f"[session] expected a device that takes the graph {graph.name!r}, got none:\n  {listed}\n"
            'device="reference" runs every op, slowly; it is never chosen by itself'
        )

    def _executable(self, graph: Graph, backend: Backend, ordinal: int) -> Executable:
        if has_measured(graph):
            return stages.compile_stages(graph, backend, self.options, ordinal)
        return backend.compile(graph, self.options, ordinal)


def _refused(graph: Graph, backend: Backend) -> list[Unsupported]:
    try:
        return stages.unsupported(graph, backend) if has_measured(graph) else backend.unsupported(graph)
    except UnsupportedOp:  # it cannot be cut into stages: the error at hand says why
        return []


def _refusal(device: str, graph: Graph, refused: list[Unsupported]) -> str:
    """All nodes that the device cannot take, a line each; empty if it names none."""
    if not refused:
        return ""
    lines = [f"{u.node.op.name} at node {(u.node.source or u.node.name)!r}: {u.reason}" for u in refused]
    return f"{device} cannot take {len(refused)} of {len(graph.nodes)} nodes:\n    " + "\n    ".join(lines)
