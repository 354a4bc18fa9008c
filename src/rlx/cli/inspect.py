"""`rlx inspect`: what is in a model, without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlx.cli.console import emit_json, human_bytes, out, progress, table
from rlx.cli.inputs import gather, parse_dims
from rlx.ir import dim as dims
from rlx.ir.cost import cost_of
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Node
from rlx.ir.op import LEAVES
from rlx.model import read
from rlx.passes.pipeline import optimise
from rlx.runtime.signature import Signature


def inspect_model(path: Path, sizes: Sequence[str], as_json: bool) -> None:
    """Prints what is in the model at `path`; flops and memory at the sizes given, or at small ones."""
    chosen = parse_dims(sizes)
    with progress("reading"):
        imported = read(path)
    graph = imported.graph
    inputs = gather(graph, [], chosen)
    binding = Signature(graph).binding(list(inputs.values()), graph.data)
    with progress("counting"):
        report = {"model": str(path), "format": imported.format, "notes": imported.notes, **_told(graph, binding)}
    if as_json:
        emit_json(report)
        return
    _print(report)


def _told(graph: Graph, binding: Mapping[str, int]) -> dict[str, Any]:
    simple, _ = optimise(graph)
    costs = [cost_of(node) for node in _work(simple)]
    params = {v.name: v.type for v in graph.params}
    return {
        "inputs": {v.name: str(v.type) for v in graph.brought},
        "outputs": {name: str(v.type) for name, v in graph.results.items()},
        "dims": {name: _limits(graph, name) for name in graph.symbols},
        "nodes": len(_work(graph)),
        "ops": dict(Counter(node.op.name for node in _work(graph)).most_common()),
        "params": len(params),
        "param_elements": sum(dims.evaluate(of.size, binding) for of in params.values()),
        "param_bytes": sum(of.nbytes(binding) for of in params.values()),
        "at": dict(binding),
        "flops": _total([c.flops for c in costs], binding),
        "transcendentals": _total([c.transcendentals for c in costs], binding),
        "activation_bytes": peak_bytes(graph, binding),
    }


def _work(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if not isinstance(node.op, LEAVES)]


def _total(costs: Sequence[Dim], binding: Mapping[str, int]) -> int:
    return sum(dims.evaluate(cost, binding) for cost in costs)


def _limits(graph: Graph, name: str) -> str:
    low, high = graph.bounds.get(name, (0, None))
    return f"from {low}" + ("" if high is None else f" to {high}")


def peak_bytes(graph: Graph, binding: Mapping[str, int]) -> int:
    """Most bytes alive at one time if every node keeps its results until their last use: what no fusion would need."""
    last = {id(v.node): i for i, node in enumerate(graph.nodes) for v in node.inputs}
    last |= {id(v.node): len(graph.nodes) for v in graph.outputs.values()}
    ends: dict[int, int] = {}
    alive = most = 0
    for i, node in enumerate(graph.nodes):
        if not isinstance(node.op, LEAVES):
            size = sum(of.nbytes(binding) for of in node.types)
            alive += size
            end = last.get(id(node), i)
            ends[end] = ends.get(end, 0) + size
        most = max(most, alive)
        alive -= ends.get(i, 0)
    return most


def _print(report: dict[str, Any]) -> None:
    console = out()
    notes = {"format": report["format"], **report["notes"]}
    console.print(table(report["model"], ("", ""), list(notes.items())))
    for kind in ("inputs", "outputs", "dims"):
        if report[kind]:
            console.print()
            console.print(table(kind, ("name", "type" if kind != "dims" else "size"), list(report[kind].items())))
    console.print()
    console.print(table(f"{report['nodes']} nodes", ("op", "count"), list(report["ops"].items()), right=(1,)))
    at = ", ".join(f"{name} = {size}" for name, size in report["at"].items()) or "its one size"
    totals = [
        (
            "parameters",
            f"{report['param_elements']:,} in {report['params']} arrays, {human_bytes(report['param_bytes'])}",
        ),
        (f"flops at {at}", f"{report['flops']:,}"),
        (f"transcendentals at {at}", f"{report['transcendentals']:,}"),
        (f"activations at {at}", f"{human_bytes(report['activation_bytes'])} at most, without fusion"),
    ]
    console.print()
    console.print(table("", ("", ""), totals))
