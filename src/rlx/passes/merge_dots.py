"""Dots of one operand with several weights become one dot with the weights side by side, and slices of it: queries,
keys and values; gate and up projections.

The weights are joined by a concat of params, which depends on params alone and so costs nothing per run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Input, Param
from rlx.ops import build
from rlx.ops.elementwise import Add
from rlx.ops.linalg import DotGeneral
from rlx.ops.packed import PackedMatmul
from rlx.passes.driver import Context, Pass, Rebuild
from rlx.records import dataclass


@dataclass(frozen=True)
class Member:
    """A dot with a weight, and the addition of a bias that follows it, if one does."""

    dot: Node
    add: Node | None
    bias: Value | None

    @property
    def last(self) -> Node:
        return self.add or self.dot

    @property
    def weight(self) -> Value:
        return self.dot.inputs[1]


class MergeDots(Pass):
    """Joins dots that share their left operand."""

    name = "merge-dots"

    def groups(self, graph: Graph) -> list[list[Member]]:
        """What becomes one."""
        return find_groups(graph)

    def run(self, graph: Graph, context: Context) -> Graph:
        groups = [group for group in self.groups(graph) if context.spend(self.name, "same-operand", group[0].dot)]
        if not groups:
            return graph
        rebuild = Rebuild(graph)
        of = {id(member.dot): group for group in groups for member in group}
        for node in graph.nodes:
            group = of.get(id(node))
            if group is None:
                rebuild.keep(node)
            elif node is group[0].dot:
                _merge(group, rebuild)
        return rebuild.finish()


class MergePacked(MergeDots):
    """The same of products with weights of few bits, for targets that have them as single kernels."""

    name = "merge-packed"

    def groups(self, graph: Graph) -> list[list[Member]]:
        return find_groups(graph, _packed_key)


def prepared(graph: Graph, more: Iterable[Value] = ()) -> set[Value]:
    """Values that depend on params and constants alone, with a param among them; inputs `more` count as params."""
    fixed = set(more)
    values = set(fixed)
    for node in graph.nodes:
        if isinstance(node.op, Input) or not all(v in fixed for v in node.inputs) or node.regions:
            continue
        fixed.update(node.outputs)
        if isinstance(node.op, Param) or any(v in values for v in node.inputs):
            values.update(node.outputs)
    return values


def _dot_key(node: Node, weights: set[Value]) -> object:
    """What dots have in common that can be one; None for nodes that cannot."""
    op = node.op
    if not isinstance(op, DotGeneral) or op.lhs_batch or op.sum_dtype or node.inputs[1] not in weights:
        return None
    return None if node.inputs[1].rank != 2 or len(op.rhs_contract) != 1 else op


def _packed_key(node: Node, weights: set[Value]) -> object:
    """The same of packed products."""
    if not isinstance(node.op, PackedMatmul) or not all(operand in weights for operand in node.inputs[1:]):
        return None
    return node.op, tuple(operand.dtype for operand in node.inputs[1:])


def find_groups(graph: Graph, key_of: Callable[[Node, set[Value]], object] = _dot_key) -> list[list[Member]]:
    """Groups of at least two dots that can be one."""
    weights = prepared(graph)
    groups: dict[object, list[Member]] = {}
    for node in graph.nodes:
        shared = key_of(node, weights)
        if shared is None or node.inputs[0] in weights:
            continue
        member = _member(node, weights)
        key = (node.inputs[0], shared, member.add is not None)
        group = groups.setdefault(key, [])
        if all(member.weight != other.weight for other in group):
            group.append(member)
    return [group for group in groups.values() if len(group) > 1]


def _member(dot: Node, weights: set[Value]) -> Member:
    value = dot.outputs[0]
    users = dot.graph.uses(value)
    if len(users) == 1 and dot.graph.use_count(value) == 1 and isinstance(users[0].op, Add):
        a, b = users[0].inputs
        bias = b if a == value else a
        if bias in weights and bias.shape == (value.shape[-1],):
            return Member(dot, users[0], bias)
    return Member(dot, None, None)


def _merge(group: list[Member], rebuild: Rebuild) -> None:
    op = group[0].dot.op
    left = rebuild[group[0].dot.inputs[0]]
    columns = 1 - op.rhs_contract[0] if isinstance(op, DotGeneral) else 0
    operands = zip(*(member.dot.inputs[1:] for member in group))
    biases = [rebuild[member.bias] for member in group if member.bias is not None]
    first = len(rebuild.new.nodes)
    graph = rebuild.new
    joined = [build.concat(*(rebuild[operand] for operand in alike), axis=columns) for alike in operands]
    merged = graph.add(op, left, *joined)
    assert isinstance(merged, Value)
    graph.rename(merged.node, "+".join(member.dot.name for member in group))
    if biases:
        merged = merged + build.concat(*biases, axis=0)
    start: Dim = 0
    for member in group:
        size = member.dot.types[0].shape[-1]
        end = dims.add(start, size)
        zeros = (0,) * (merged.rank - 1)
        part = build.slice(merged, starts=(*zeros, start), stops=(*merged.shape[:-1], end), steps=(1,) * merged.rank)
        rebuild.replace(member.last, part, first=first)
        first = len(graph.nodes)
        start = end
