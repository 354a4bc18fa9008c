"""Which values get memory before anything is grouped, and how their axes lie there.

A value is materialised when it leaves the program, when it is the result of a kernel of its own kind, when a kernel
reads it through strides, or when an expression would grow too long. What is left is computed where it is used.
"""

from __future__ import annotations

from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Node, Value
from rlx.ir.op import LEAVES
from rlx.kernel.ir.index import contiguous
from rlx.kernel.lower.facts import Facts
from rlx.kernel.lower.growth import Growth
from rlx.kernel.lower.index import Key, can_inline, is_scalar_constant, key_of
from rlx.kernel.lower.table import demand_of, demands, kind_of
from rlx.kernel.lower.views import VIEW_OPS, view_of
from rlx.ops.index import Gather, GatherElements, GatherNd
from rlx.ops.shape import Concat, Pad, Reshape, Transpose
from rlx.ops.transformer import Attention

SHORT = 8
"""Elements of a row that are fetched one by one."""
GATHERS = (Gather, GatherElements, GatherNd)


class Materialised:
    """The values that have memory (`roots`), and the order in which the axes of some lie there (`layout`)."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.roots: set[Key] = set()
        self.layout: dict[Key, tuple[int, ...]] = {}

    def holds(self, value: Value) -> bool:
        """Whether the value has a buffer of its own."""
        if isinstance(value.node.op, LEAVES):
            return not is_scalar_constant(value)
        return key_of(value) in self.roots

    def strides(self, value: Value) -> tuple[Dim, ...]:
        """Strides of a value in memory, its axes stored in `layout` order."""
        order = self.layout.get(key_of(value))
        if order is None:
            return contiguous(value.shape)
        strides: list[Dim] = [0] * value.rank
        step: Dim = 1
        for axis in reversed(order):
            strides[axis] = step
            step = dims.mul(step, value.shape[axis])
        return tuple(strides)

    def strides_if_held(self, value: Value) -> tuple[Dim, ...] | None:
        """Strides of a value that has memory, None for others."""
        return self.strides(value) if self.holds(value) else None

    def add(self, value: Value) -> None:
        """Gives a value memory; inputs, params and constants have it."""
        if not isinstance(value.node.op, LEAVES):
            self.roots.add(key_of(value))

    def add_strided(self, value: Value) -> None:
        """Makes sure that a value is a strided view of something in memory."""
        chain = value
        while not isinstance(chain.node.op, LEAVES) and key_of(chain) not in self.roots:
            if not isinstance(chain.node.op, VIEW_OPS):
                self.add(chain)
                break
            chain = chain.node.inputs[0]
        if is_scalar_constant(chain):
            if chain is not value:
                self.add(value)
            return
        if view_of(value, self.strides_if_held) is None:
            self.add(value)

    def add_along(self, value: Value, axis: int) -> None:
        """Makes sure that the elements of a strided view along an axis are neighbours in memory."""
        view = view_of(value, self.strides_if_held)
        if view is not None and view.strides[axis] != 1 and value.shape[axis] != 1:
            self.add(value)


def materialise(facts: Facts) -> Materialised:
    """The values that get memory before groups are made."""
    memory = Materialised(facts)
    _find_layouts(memory)
    for value in facts.outputs.values():
        memory.add(value)
    for node in facts.nodes:
        if kind_of(node.op) is not None:
            memory.roots.update(key_of(v) for v in node.outputs)
    for node in facts.nodes:
        demand = demand_of(node.op)
        if demand is not None:
            demand(node, memory)
    _bound_expressions(memory)
    return memory


def _find_layouts(memory: Materialised) -> None:
    """An attention result that is only ever transposed in one way is written in that order at once."""
    for node in memory.facts.nodes:
        if not isinstance(node.op, Attention) or key_of(node.outputs[0]) in memory.facts.results:
            continue
        users = memory.facts.uses(node.outputs[0])
        orders = {u.op.permutation if isinstance(u.op, Transpose) else None for u in users}
        order = next(iter(orders)) if len(orders) == 1 else None
        if order is not None:
            memory.layout[key_of(node.outputs[0])] = order


def _bound_expressions(memory: Materialised) -> None:
    """Values get memory where the expressions that they are part of have grown long."""
    growth = Growth(memory.holds, memory.add)
    for node in memory.facts.nodes:
        if node.inputs and not isinstance(node.op, Concat):  # whose operands have kernels of their own
            growth.add(node, inlined=not node.regions and len(node.types) == 1 and can_inline(node.outputs[0]))


# what ops that move elements demand


@demands(*GATHERS)
def _gather(node: Node, memory: Materialised) -> None:
    if not isinstance(node.inputs[0].node.op, GATHERS):  # a gather of a gather is one gather
        memory.add_strided(node.inputs[0])


@demands(Pad)
def _pad(node: Node, memory: Materialised) -> None:
    """Transposed in blocks first: behind a guard every element would be fetched alone. On GPUs lanes that do so find
    their neighbours' elements in the cache, where rows are short."""
    short = node.types[0].shape[-1]
    if memory.facts.bounded and isinstance(short, int) and short <= SHORT:
        return
    if isinstance(node.inputs[0].node.op, Transpose):
        memory.add_along(node.inputs[0], node.inputs[0].rank - 1)


@demands(Reshape)
def _reshape(node: Node, memory: Materialised) -> None:
    """Through a reshape that regroups elements an index costs divisions, a flat load from memory none."""
    old, new = node.inputs[0].shape, node.types[0].shape
    if [d for d in old if d != 1] == [d for d in new if d != 1]:
        return
    memory.add_strided(node.inputs[0])
    if view_of(node.outputs[0], memory.strides_if_held) is None:
        memory.add(node.inputs[0])
