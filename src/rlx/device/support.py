"""What a device does with each op of a graph, according to the pipeline that compiles it. The answer is cached per
program."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from rlx import locks
from rlx.arguments import checked
from rlx.backends.base import Backend, Options, Unsupported
from rlx.device import registry
from rlx.device.device import Device
from rlx.device.staged import parts
from rlx.errors import UnsupportedOp
from rlx.ir.fingerprint import fingerprint
from rlx.ir.graph import Graph, Node
from rlx.ir.op import LEAVES, Composite, Elementwise
from rlx.ir.symbols import has_measured
from rlx.ops.reduce import Reduction
from rlx.ops.shape import Movement
from rlx.records import dataclass

Fate = Literal["native", "decomposed", "merged", "unsupported"]
SIMPLE = (*LEAVES, Movement, Elementwise)
"""What is done where it is used, in the kernels of other ops or in one for all of it."""
MOST_KEPT = 256


@dataclass(frozen=True)
class OpReport:
    """The fate of one node. `native`: a kernel does it, or a part of one. The same holds if its definition (`through`)
    leaves no more than one op beside elementwise arithmetic, or reductions of the same rows. `decomposed`: several ops
    of its definition do it, for the given `reason`. `merged`: nothing is left to do, because it was folded, or another
    node gives the same value. `unsupported`: see `reason`."""

    node: str
    op: str
    fate: Fate
    reason: str = ""
    through: tuple[str, ...] = ()

    def __str__(self) -> str:
        through = f" (through {', '.join(self.through)})" if self.through else ""
        return f"{self.op} at node {self.node!r}: {self.fate}{through}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True)
class DispatchReport:
    """What a device does with a graph, node by node, in order. `refusal` is an error that concerns no single node."""

    device: str
    ops: tuple[OpReport, ...]
    refusal: str = ""

    @property
    def compiles(self) -> bool:
        return not self.refusal and all(op.fate != "unsupported" for op in self.ops)

    @property
    def unsupported(self) -> list[OpReport]:
        return [op for op in self.ops if op.fate == "unsupported"]

    @property
    def why_not(self) -> str:
        """Why the graph does not compile, as a clause; empty if it does."""
        wrong = self.unsupported
        if wrong:
            first = wrong[0]
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            return f"{first.op} at node {first.node!r}: {first.reason}{more}"
        return self.refusal

    def counts(self) -> dict[str, int]:
        """Number of nodes by fate."""
        fates: dict[str, int] = {}
        for op in self.ops:
            fates[op.fate] = fates.get(op.fate, 0) + 1
        return fates


_kept: OrderedDict[tuple[str, str, Options], DispatchReport] = OrderedDict()
_lock = locks.lock()


@checked
def dispatch_report(graph: Graph, device: str | Device, options: Options | None = None) -> DispatchReport:
    """What the device's backend does with the graph. The device need not be available, only its package.

    Raises DeviceUnavailable for a backend that cannot be loaded.
    """
    named = registry.parse(device)
    chosen = options or Options()
    key = (fingerprint(graph), named.kind, chosen)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    report = _report(graph, named, chosen)
    with _lock:
        _kept[key] = report
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return report


def _report(graph: Graph, device: Device, options: Options) -> DispatchReport:
    backend = registry.load(device.kind)
    nodes = [node for node in graph.nodes if not isinstance(node.op, LEAVES)]
    try:
        stages = parts(graph)
        ready = [node for part in stages for node in backend.legalise(part, options).nodes]
        refused = [each for part in stages for each in backend.unsupported(part)]
    except UnsupportedOp as error:
        return DispatchReport(str(device), tuple(OpReport(_name(n), n.op.name, "merged") for n in nodes), str(error))
    wrong = {_name(u.node): u.reason for u in refused}
    by_name: dict[str, list[Node]] = {}
    for node in ready:
        by_name.setdefault(_name(node), []).append(node)
    ops = []
    for node in nodes:
        name, replacements = _name(node), by_name.get(_name(node), [])
        if name in wrong:
            ops.append(OpReport(name, node.op.name, "unsupported", wrong.pop(name)))
        elif not replacements:
            ops.append(OpReport(name, node.op.name, "merged"))
        elif any(each.op.name == node.op.name for each in replacements):
            ops.append(OpReport(name, node.op.name, "native"))
        else:
            ops.append(_taken_apart(node, replacements, backend, options))
    rest = "; ".join(f"{name!r}: {reason}" for name, reason in wrong.items())
    return DispatchReport(str(device), tuple(ops), rest)


def _taken_apart(node: Node, replacements: list[Node], backend: Backend, options: Options) -> OpReport:
    """Of a node in whose place others came."""
    names = tuple(dict.fromkeys(each.op.name for each in replacements if not isinstance(each.op, (*LEAVES, Movement))))
    working = [each.op for each in replacements if not isinstance(each.op, SIMPLE)]
    more = tuple(dict.fromkeys(op.name for op in working))
    # reductions over the same axes are one pass over rows
    kernels = {op.axes if isinstance(op, Reduction) else op.name for op in working}
    reason = (backend.claim(node) if isinstance(node.op, Composite) else None) or ""
    if len(kernels) <= 1:
        return OpReport(_name(node), node.op.name, "native", reason, more or names)
    if options.dispatch.of(node.op.name) == "force-common":
        reason = "the options take it apart"
    return OpReport(_name(node), node.op.name, "decomposed", reason or f"no kernel of its own: {', '.join(more)} do it")


def refused_nodes(graph: Graph, backend: Backend) -> list[Unsupported]:
    """Nodes that the backend refuses, of all stages; none where the graph cannot be cut into stages."""
    try:
        return [each for part in parts(graph) for each in backend.unsupported(part)]
    except UnsupportedOp:
        return []


def _name(node: Node) -> str:
    return node.source or node.name


@checked
def legalize(graph: Graph, device: str | Device, options: Options | None = None) -> tuple[Graph, DispatchReport]:
    """The graph as the device's backend would compile it, and the report. Raises UnsupportedOp if it would not."""
    report = dispatch_report(graph, device, options)
    if not report.compiles:
        raise UnsupportedOp(f"[device] expected ops that {device} takes, got {report.why_not}")
    if has_measured(graph):
        raise UnsupportedOp("[device] expected a graph of one stage, got one that measures dims while it runs")
    return registry.load(registry.parse(device).kind).legalise(graph, options or Options()), report


@checked
def supports_graph(device: str | Device, graph: Graph, options: Options | None = None) -> bool:
    """Whether the device is available and supports the graph."""
    return registry.is_available(device) and dispatch_report(graph, device, options).compiles


@checked
def first_unsupported_op(device: str | Device, graph: Graph, options: Options | None = None) -> OpReport | None:
    """The first node that the device does not support, or None."""
    return next(iter(dispatch_report(graph, device, options).unsupported), None)


def supports(device: str | Device, node: Node) -> bool:
    """Whether the device is available and supports a graph of this node alone."""
    graph = Graph("one")
    values = [graph.input(f"x{i}", v.shape, v.dtype) for i, v in enumerate(node.inputs)]
    results = graph.add(node.op, *values, regions=node.regions) if node.regions else graph.add(node.op, *values)
    for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
        graph.output(value, name=f"y{i}")
    return supports_graph(device, graph)


def forget() -> None:
    """Drops all reports."""
    with _lock:
        _kept.clear()
