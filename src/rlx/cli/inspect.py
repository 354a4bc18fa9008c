"""`rlx inspect`: what is in a model, without running it. Bodies of conditionals and loops count too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx.cli.console import emit_json, human_bytes, out, progress, table
from rlx.cli.inputs import check_names, parse_dims
from rlx.cli.sizes import fitting
from rlx.cli.values import scalars
from rlx.ir import dim as dims
from rlx.ir.cost import cost_of
from rlx.ir.graph import Graph, Node
from rlx.ir.op import LEAVES, Cost
from rlx.ir.picture import page
from rlx.ir.type import TensorType
from rlx.model import read
from rlx.ops.control import If, Scan, While
from rlx.passes.pipeline import optimise

BODIES: Mapping[type[object], tuple[str, ...]] = {
    If: ("then", "else"), While: ("condition", "body"), Scan: ("body",),
}  # fmt: skip


def inspect_model(path: Path, sizes: Sequence[str], as_json: bool, picture: Path | None = None) -> None:
    """Prints what is in the model at `path`; flops and memory at the sizes given, and at some that fit for the rest.
    Draws its graph as a page if asked for."""
    chosen = parse_dims(sizes)
    with progress("reading"):
        imported = read(path)
    graph = imported.graph
    check_names(graph, chosen)
    found = fitting(graph, chosen, scalars(graph))
    with progress("counting"):
        report = {"model": str(path), "format": imported.format, "notes": imported.notes, **_told(graph, found.of)}
    report["unmet"] = found.unmet
    if picture is not None:
        with progress("drawing"):
            document = page(graph, path.name, found.of, lambda node: cost_of(node).flops, report["flops"])
        picture.write_text(document, encoding="utf-8")
    if as_json:
        emit_json(report)
        return
    types = {
        "inputs": {v.name: v.type for v in graph.brought},
        "outputs": {n: v.type for n, v in graph.results.items()},
    }
    _print(report, types)
    if picture is not None:
        out().print(f"\npicture written to {picture}")


def _told(graph: Graph, binding: Mapping[str, int]) -> dict[str, Any]:
    simple, _ = optimise(graph)
    total = work_of(simple, binding)
    params = {v.name: v.type for v in graph.params}
    return {
        "inputs": {v.name: str(v.type) for v in graph.brought},
        "outputs": {name: str(v.type) for name, v in graph.results.items()},
        "dims": {name: _limits(graph, name) for name in graph.symbols},
        "nodes": len(_work(graph)),
        "ops": _ops(graph),
        "bodies": list(_bodies(graph, binding)),
        "params": len(params),
        "param_elements": sum(dims.evaluate(of.size, binding) for of in params.values()),
        "param_bytes": sum(of.nbytes(binding) for of in params.values()),
        "at": dict(binding),
        "flops": total.flops,
        "transcendentals": total.transcendentals,
        "uncounted_nodes": total.uncounted,
        "open_loops": total.open_loops,
        "activation_bytes": peak_bytes(graph, binding),
    }


def _work(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if not isinstance(node.op, LEAVES)]


def _ops(graph: Graph) -> dict[str, int]:
    return dict(Counter(node.op.name for node in _work(graph)).most_common())


def _bodies(graph: Graph, binding: Mapping[str, int], within: str = "") -> Iterator[dict[str, Any]]:
    """What is in the bodies of conditionals and loops, one after the other, with those in them."""
    for node in graph.nodes:
        for kind, region in zip(BODIES.get(type(node.op), ("body", "body")), node.regions):
            name = f"{within}{node.source or node.name}: {kind}"
            yield {
                "body": name, "of": node.op.name, "nodes": len(_work(region)), "ops": _ops(region),
                "flops": work_of(region, binding).flops,
            }  # fmt: skip
            yield from _bodies(region, binding, f"{name} / ")


@dataclass(frozen=True)
class Work:
    """Operations of a run.

    uncounted    nodes whose sizes only a run tells
    open_loops   loops that data end, whose bodies count once
    """

    flops: int = 0
    transcendentals: int = 0
    uncounted: int = 0
    open_loops: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(_fields(self), _fields(other))))

    def times(self, trips: int) -> Work:
        return Work(self.flops * trips, self.transcendentals * trips, self.uncounted, self.open_loops)


def _fields(work: Work) -> tuple[int, int, int, int]:
    return work.flops, work.transcendentals, work.uncounted, work.open_loops


def work_of(graph: Graph, binding: Mapping[str, int]) -> Work:
    """The work of a graph and of its bodies: of conditionals the greater branch, of loops all trips."""
    return sum((_work_of_node(node, binding) for node in _work(graph)), start=Work())


def _work_of_node(node: Node, binding: Mapping[str, int]) -> Work:
    cost = cost_of(node)
    own = _at(cost, binding)
    bodies = [work_of(region, binding) for region in node.regions]
    if isinstance(node.op, If):
        return own + max(bodies, key=_fields)
    if isinstance(node.op, Scan):
        known = dims.symbols(node.op.length) <= binding.keys()
        trips = dims.evaluate(node.op.length, binding) if known else 1
        return sum((body.times(trips) for body in bodies), start=own) + Work(open_loops=int(not known))
    return sum(bodies, start=own) + Work(open_loops=int(isinstance(node.op, While)))


def _at(cost: Cost, binding: Mapping[str, int]) -> Work:
    if not (dims.symbols(cost.flops) | dims.symbols(cost.transcendentals)) <= binding.keys():
        return Work(uncounted=1)
    return Work(dims.evaluate(cost.flops, binding), dims.evaluate(cost.transcendentals, binding))


def _limits(graph: Graph, name: str) -> str:
    low, high = graph.bounds.get(name, (0, None))
    return f"from {low}" + ("" if high is None else f" to {high}")


def peak_bytes(graph: Graph, binding: Mapping[str, int]) -> int:
    """Most bytes alive at one time if every node keeps its results until their last use: what no fusion would need.
    Values whose sizes only a run tells do not count."""
    last = {id(v.node): i for i, node in enumerate(graph.nodes) for v in node.inputs}
    last |= {id(v.node): len(graph.nodes) for v in graph.outputs.values()}
    ends: dict[int, int] = {}
    alive = most = 0
    for i, node in enumerate(graph.nodes):
        if not isinstance(node.op, LEAVES):
            size = sum(of.nbytes(binding) for of in node.types if _is_known(of, binding))
            size += max((peak_bytes(region, binding) for region in node.regions), default=0)
            alive += size
            end = last.get(id(node), i)
            ends[end] = ends.get(end, 0) + size
        most = max(most, alive)
        alive -= ends.get(i, 0)
    return most


def _is_known(of: TensorType, binding: Mapping[str, int]) -> bool:
    return all(dims.symbols(dim) <= binding.keys() for dim in of.shape)


MOST_CHARACTERS = 24
"""Of a dim, in text; what is longer is of interest as a number."""


def _short(of: TensorType, binding: Mapping[str, int] | None = None) -> str:
    """The type with formulas left out, or with numbers in their place."""
    parts = []
    for dim in of.shape:
        if binding is not None and dims.symbols(dim) <= binding.keys():
            parts.append(str(dims.evaluate(dim, binding)))
        else:
            parts.append(str(dim) if len(str(dim)) <= MOST_CHARACTERS else "…")
    return f"{of.dtype}[{', '.join(parts)}]"


def _print(report: dict[str, Any], types: Mapping[str, Mapping[str, TensorType]]) -> None:
    console = out()
    notes = {"format": report["format"], **report["notes"]}
    console.print(table(report["model"], ("", ""), list(notes.items())))
    for kind in ("inputs", "outputs"):
        rows = [(name, _short(of), _short(of, report["at"])) for name, of in types[kind].items()]
        console.print()
        console.print(table(kind, ("name", "type", "at these sizes"), rows))
    if report["dims"]:
        console.print()
        console.print(
            table("dims", ("name", "size", "here"), [(n, of, report["at"][n]) for n, of in report["dims"].items()])
        )
    console.print()
    console.print(table(_counted(report["nodes"], "node"), ("op", "count"), list(report["ops"].items()), right=(1,)))
    if report["bodies"]:
        bodies = [(b["body"], b["of"], b["nodes"], f"{b['flops']:,}", _most(b["ops"])) for b in report["bodies"]]
        console.print()
        console.print(table("bodies", ("body", "of", "nodes", "flops", "most frequent"), bodies, right=(2, 3)))
    console.print()
    console.print(table(_at_sizes(report), ("", ""), _totals(report)))


def _most(ops: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in list(ops.items())[:4])


def _at_sizes(report: dict[str, Any]) -> str:
    at = ", ".join(f"{name} = {size}" for name, size in report["at"].items())
    return (
        f"at {at}" + (" (which do not fit: --dim sets others)" if report["unmet"] else "") if at else "at its one size"
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _totals(report: dict[str, Any]) -> list[tuple[str, str]]:
    params = f"{report['param_elements']:,} in {report['params']} arrays, {human_bytes(report['param_bytes'])}"
    rows = [
        ("parameters", params),
        ("flops", f"{report['flops']:,}"),
        ("transcendentals", f"{report['transcendentals']:,}"),
        ("activations", f"{human_bytes(report['activation_bytes'])} at most, without fusion"),
    ]
    if report["uncounted_nodes"]:
        rows.append(("not counted", f"{_counted(report['uncounted_nodes'], 'node')} whose sizes only a run tells"))
    if report["open_loops"]:
        rows.append(("counted once", f"{_counted(report['open_loops'], 'loop')} whose trips only a run tells"))
    return rows
