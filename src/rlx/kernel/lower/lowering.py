"""Lowering: a graph of primitives (and of composites that the target claims) becomes a `Program` of kernels.

Three questions are answered in turn, each by a function: what gets memory (`materialise`), what shares a kernel
(`group`), and what runs when (`order`). Then each group is lowered by the function that its anchor's op is registered
with (`table`).
"""

from __future__ import annotations

from collections.abc import Iterable

from rlx.errors import UnsupportedOp
from rlx.ir.graph import Graph, Node
from rlx.ir.op import LEAVES, Op
from rlx.kernel.ir.program import Program
from rlx.kernel.lower.context import LoweringContext
from rlx.kernel.lower.elementwise import lower_map
from rlx.kernel.lower.facts import Facts, live
from rlx.kernel.lower.group import Group, group
from rlx.kernel.lower.index import can_inline
from rlx.kernel.lower.materialise import materialise
from rlx.kernel.lower.order import order
from rlx.kernel.lower.table import irregular_ops, kind_of
from rlx.ops.control import Control


def lower(
    graph: Graph, disable: frozenset[str] = frozenset(), indirect: bool = False, bounded: bool = False
) -> Program:
    """The program of a graph. With `indirect` a product may read matrices of a weight that data choose where they lie,
    with `bounded` windows may reach beyond what they read.

    Raises UnsupportedOp naming every node that no kernel can take.
    """
    facts = Facts.of(graph, disable, indirect=indirect, bounded=bounded)
    _refuse_unknown(facts)
    memory = materialise(facts)
    groups = order(facts, group(facts, memory))
    context = LoweringContext(facts, memory, Program(tuple(graph.symbols)), set())
    context.add_leaves()
    lower_groups(context, groups)
    staying = {graph.states[name] for name in facts.writers}
    for name in graph.outputs:
        context.hand_out(name, stays=name in staying)
    return context.program


def lower_groups(context: LoweringContext, groups: Iterable[Group]) -> None:
    """Adds the kernels of groups, in their order."""
    for each in groups:
        kind = kind_of(each.anchor.op)
        (lower_map if kind is None else kind.lower)(context, each)


def _refuse_unknown(facts: Facts) -> None:
    wrong = [n for n in facts.nodes if not isinstance(n.op, Control) and not _taken(n)]
    if wrong:
        listed = "; ".join(f"[{n.op.name}] at node {n.source or n.name!r}" for n in wrong)
        raise UnsupportedOp(f"no kernel for {listed}")


def _taken(node: Node) -> bool:
    own = isinstance(node.op, LEAVES) or (kind_of(node.op) is not None and not isinstance(node.op, Control))
    return own or (len(node.types) == 1 and can_inline(node.outputs[0]))


def untaken(graph: Graph, irregular: tuple[type[Op], ...] = ()) -> list[Node]:
    """Nodes that no kernel takes; of irregular ops those are taken that the code generator has.

    Those with regions are among them.
    """
    lacking = tuple(op for op in irregular_ops() if op not in irregular)
    return [n for n in live(graph) if not _taken(n) or isinstance(n.op, lacking)]
