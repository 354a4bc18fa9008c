"""Writes into states in place, but only where a failing run provably leaves them unchanged.

A run fails in a check of its data (`passes.checks`), or in a loop whose time is over. A write into a state therefore
waits for all checks, and writes nothing unless they hold. States of graphs with regions, and states that a check
depends on after the write, become arrays of their own instead, which the runtime takes over when the run has succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rlx.ir import dim as dims
from rlx.ir.check import Check
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Node, Value
from rlx.ops import build
from rlx.ops.writing import written_in_place
from rlx.passes.checks import Checked
from rlx.passes.driver import Rebuild


def guarded(checked: Checked, in_place: bool = True) -> Checked:
    """The graph in which all that writes into states does so only if the checks hold; its `states` are those alone that
    may be written `in_place`, if any may."""
    graph = checked.graph
    if not graph.states:
        return checked
    if not checked.checks:
        graph = Rebuild(graph).finish()  # without dead nodes: they read nothing
    may = in_place and not any(node.regions for node in graph.nodes)
    writers = written_in_place(graph) if may else {}
    late = _descendants(graph, (node for nodes in writers.values() for node in nodes))
    if any(id(piece.node) in late for piece in checked.pieces):
        needed = _ancestors(checked.pieces)
        writers = {name: nodes for name, nodes in writers.items() if not any(id(node) in needed for node in nodes)}
    guarded_graph = _guard(graph, [node for nodes in writers.values() for node in nodes], checked)
    guarded_graph.states = {name: output for name, output in graph.states.items() if name in writers}
    return Checked(guarded_graph, checked.checks)


def _descendants(graph: Graph, nodes: Iterable[Node]) -> set[int]:
    ids = {id(node) for node in nodes}
    for node in graph.nodes:
        if any(id(value.node) in ids for value in node.inputs):
            ids.add(id(node))
    return ids


def _ancestors(values: Iterable[Value]) -> set[int]:
    ids: set[int] = set()
    stack = [value.node for value in values]
    while stack:
        node = stack.pop()
        if id(node) not in ids:
            ids.add(id(node))
            stack.extend(value.node for value in node.inputs)
    return ids


def _guard(graph: Graph, writers: list[Node], checked: Checked) -> Graph:
    """A graph in which the places of writers lie outside unless the checks hold: then they write nothing."""
    rebuild = Rebuild(graph)
    guarding = {id(node) for node in writers} if checked.checks else set()
    holds: Value | None = None
    for node in graph.nodes:
        if id(node) not in guarding:
            rebuild.keep(node)
            continue
        x, second, third = (rebuild[value] for value in node.inputs)
        first = len(rebuild.new.nodes)
        if holds is None:
            holds = _holds([rebuild[piece] for piece in checked.pieces], checked.checks)
        outside = rebuild.new.constant(np.int64(np.iinfo(np.int64).max))
        if node.op.name == "update_slice":
            operands = x, second, build.select(holds, third.cast("i64"), outside)
        else:
            operands = x, build.select(holds, second.cast("i64"), outside), third
        written = rebuild.new.add(node.op, *operands, source=node.source)
        assert isinstance(written, Value)  # all of them have one result
        rebuild.replace(node, written, first=first)
    return rebuild.finish()


def _holds(pieces: list[Value], checks: tuple[Check, ...]) -> Value:
    """Whether all checks hold, bool []."""
    graph = pieces[0].graph
    all_hold: Value | None = None
    for piece, check in zip(pieces, checks, strict=True):
        limit = build.dims_tensor(graph, values=(_limit(check),)).reshape(()).cast("u64")
        one = build.lt(piece.reshape(()), limit)
        all_hold = one if all_hold is None else build.bitwise_and(all_hold, one)
    assert all_hold is not None  # there are checks
    return all_hold


def _limit(check: Check) -> Dim:
    """What the number of a check that holds is below; of no numbers it is 0 (`Check.most`)."""
    span = dims.add(check.high, dims.mul(check.low, -1))
    nothing = 1 if check.count is None else dims.add(1, dims.mul(check.count, -1))
    return dims.maximum(dims.maximum(span, nothing), 0)
