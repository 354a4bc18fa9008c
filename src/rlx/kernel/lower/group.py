"""Which nodes share a kernel: a product with the elementwise nodes behind it (its epilogue), a reduction with others
over the same axes and the elementwise nodes between and behind (a row group: softmax, norms), all else alone."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from rlx.ir.dim import Shape
from rlx.ir.expr import INSTRUCTIONS, Expr, walk
from rlx.ir.graph import Node, Value
from rlx.ir.op import LEAVES, Elementwise
from rlx.kernel.lower.facts import Facts
from rlx.kernel.lower.growth import MOST_INSTRUCTIONS, instructions
from rlx.kernel.lower.index import is_listed, key_of
from rlx.kernel.lower.materialise import GATHERS, Materialised
from rlx.kernel.lower.table import kind_of
from rlx.ops.control import Control
from rlx.ops.elementwise import Cast
from rlx.ops.reduce import Reduction
from rlx.ops.shape import BroadcastTo

MOST_FOLLOWED = 4096
"""Nodes behind an anchor that are looked at: keeps grouping linear where all that follows depends on it."""


@dataclass
class Group:
    """Nodes of one kernel, `anchor` its main one; `results` are the values that it writes."""

    anchor: Node
    members: list[Node] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)


def group(facts: Facts, memory: Materialised) -> dict[int, Group]:
    """The group of every node that has one, by the node's id. What leaves a group is given memory, what stays inside
    loses it."""
    grouping = _Grouping(facts, memory)
    grouping.add_epilogues()
    grouping.add_anchors()
    grouping.add_shared()
    return grouping.owner


class _Grouping:
    def __init__(self, facts: Facts, memory: Materialised) -> None:
        self.facts = facts
        self.memory = memory
        self.owner: dict[int, Group] = {}

    def _add(self, group: Group) -> None:
        for member in group.members:
            self.owner[id(member)] = group
            self.memory.roots.difference_update(key_of(v) for v in member.outputs)
        self.memory.roots |= {key_of(v) for v in group.results}

    def add_epilogues(self) -> None:
        for node in self.facts.nodes:
            kind = kind_of(node.op)
            if kind is not None and kind.grows == "epilogue":
                members = [node] if "fuse/epilogue" in self.facts.disable else self._epilogue(node)
                self.memory.roots.discard(key_of(node.outputs[0]))
                self.memory.roots.add(key_of(members[-1].outputs[0]))
                group = Group(node, members, [members[-1].outputs[0]])
                self.owner.update((id(member), group) for member in members)

    def add_anchors(self) -> None:
        for node in self.facts.nodes:
            kind = kind_of(node.op)
            if id(node) in self.owner or kind is None:
                continue
            if kind.grows == "row":
                assert isinstance(node.op, Reduction)
                members = [node] if "fuse/row" in self.facts.disable else self._row(node)
                self._add(Group(node, members, self._leaving(members)))
            else:
                every = isinstance(node.op, Control)
                results = [v for v in node.outputs if every or self.facts.graph.use_count(v)]
                self._add(Group(node, [node], results))

    # growing

    def _follow(self, anchors: list[Node], may_join: Callable[[Node], bool]) -> list[Node]:
        """The anchors, none of which depends on another, and the nodes behind them that join them, in order. A node
        joins if one of its operands is a member and no other operand depends on one: what goes out and comes back would
        have to run in between."""
        inside = {id(anchor) for anchor in anchors}
        outside: set[int] = set()  # nodes that depend on members but are none
        members = list(anchors)
        left = MOST_INSTRUCTIONS
        seen: set[int] = set()
        heap: list[int] = []
        candidates: set[int] = set()

        def push_users(node: Node, joined: bool) -> None:
            for value in node.outputs:
                for user in self.facts.uses(value):
                    at = self.facts.position[id(user)]
                    if joined and at not in candidates and may_join(user):
                        candidates.add(at)
                    if at not in seen:
                        seen.add(at)
                        heapq.heappush(heap, at)

        for anchor in anchors:
            push_users(anchor, True)
        followed = 0
        while heap and candidates and left >= 0 and followed < MOST_FOLLOWED:
            at = heapq.heappop(heap)
            node = self.facts.nodes[at]
            followed += 1
            joins = at in candidates and not any(id(v.node) in outside for v in node.inputs)
            candidates.discard(at)
            if joins:
                inside.add(id(node))
                members.append(node)
                left -= instructions(node)
            else:
                outside.add(id(node))
            push_users(node, joins)
        return members

    def _epilogue(self, product: Node) -> list[Node]:
        """The product and the elementwise nodes behind it, up to one value through which everything leaves."""
        shape = product.outputs[0].shape

        def may_join(node: Node) -> bool:
            fits = isinstance(node.op, Elementwise) and node.types[0].shape == shape
            return fits and id(node) not in self.owner and not self._would_hold(product, node)

        ends = self._follow([product], may_join)
        masks: dict[int, int] = {}  # of each member the members that it depends on, itself among them
        for position, node in enumerate(ends):
            mask = 1 << position
            for value in node.inputs if position else ():
                mask |= masks.get(id(value.node), 0)
            masks[id(node)] = mask
        for end in reversed(ends):
            if self._widens_again(end):
                continue
            needed = [n for position, n in enumerate(ends) if masks[id(end)] >> position & 1]
            if self._leaves_by(end, needed, product):
                return needed
        return [product]

    def _widens_again(self, end: Node) -> bool:
        """Whether a node only widens what was rounded to fewer bits, which all that read it can do as well."""
        value = end.outputs[0]
        if not isinstance(end.op, Cast) or key_of(value) in self.memory.roots:
            return False
        before = end.inputs[0]
        narrows = isinstance(before.op, Cast) and before.dtype.bits < before.node.inputs[0].dtype.bits
        return narrows and before.dtype.is_float and value.dtype.is_float and before.dtype.bits < value.dtype.bits

    def _leaves_by(self, end: Node, members: list[Node], product: Node) -> bool:
        """Whether what members make is needed outside of them at their end only."""
        names = {id(n) for n in members}
        own = key_of(product.outputs[0])
        keys = {id(n): key_of(n.outputs[0]) for n in members if n is not end}
        return all(
            keys[id(n)] not in self.facts.results
            and (keys[id(n)] == own or keys[id(n)] not in self.memory.roots)
            and all(id(u) in names for u in self.facts.uses(n.outputs[0]))
            for n in members
            if n is not end
        )

    def _row(self, first: Node) -> list[Node]:
        """Reductions of a value, and what follows them in rows where these keep their axes."""
        full, row = first.inputs[0].shape, first.types[0].shape
        axes = _axes_of(first)
        anchors = [first, *self._beside(first)]
        if len(row) != len(full):
            return anchors

        def may_join(node: Node) -> bool:
            if id(node) in self.owner or self._would_hold(first, node):
                return False
            if isinstance(node.op, Reduction):
                fits = node.op.keepdims and _axes_of(node) == axes and node.inputs[0].shape == full
            else:
                fits = isinstance(node.op, (Elementwise, BroadcastTo)) and node.types[0].shape in (full, row)
            return fits and all(v.rank <= len(full) for v in node.inputs)

        inside: set[int] = set()
        members: list[Node] = []
        for node in reversed(self._follow(anchors, may_join)):
            used = any(id(user) in inside for user in self.facts.uses(node.outputs[0]))
            if used or not (self._widens_again(node) or self._only_spreads(node, full)):
                inside.add(id(node))
                members.append(node)
        return members[::-1]

    def _beside(self, first: Node) -> list[Node]:
        """Other reductions of the same value over the same axes: its greatest element beside its least."""
        axes = _axes_of(first)
        return [
            node
            for node in self.facts.uses(first.inputs[0])
            if node is not first
            and isinstance(node.op, Reduction)
            and id(node) not in self.owner
            and (_axes_of(node), node.types[0].shape) == (axes, first.types[0].shape)
            and not self._would_hold(first, node)
        ]

    def _only_spreads(self, node: Node, full: Shape) -> bool:
        """Whether a node makes whole rows of values that have fewer elements, which all that read it can do as well."""
        if (
            isinstance(node.op, Reduction)
            or node.types[0].shape != full
            or key_of(node.outputs[0]) in self.facts.results
        ):
            return False
        return all(value.shape != full for value in node.inputs)

    def _would_hold(self, anchor: Node, node: Node) -> bool:
        """Whether a node would keep work that only params decide from being done once, in `prepare`."""
        return id(anchor) in self.facts.static and id(node) not in self.facts.static

    def _leaving(self, members: list[Node]) -> list[Value]:
        """Values of members that somebody outside needs."""
        inside = {id(n) for n in members}
        leaving = []
        for node in members:
            value = node.outputs[0]
            leaves = key_of(value) in self.facts.results or (
                key_of(value) in self.memory.roots and not isinstance(node.op, Reduction)
            )
            if leaves or any(id(u) not in inside for u in self.facts.uses(value)):
                leaving.append(value)
        return leaving

    # everything else

    def add_shared(self) -> None:
        """Elementwise values that several kernels would compute, or that are spread out, get memory."""
        sinks: dict[int, frozenset[int]] = {}  # kernels that compute the node; two stand for many
        again: dict[int, bool] = {}  # whether an element of the node would be computed again, here or further on
        for node in reversed(self.facts.nodes):
            value = node.outputs[0]
            if isinstance(node.op, LEAVES) or id(node) in self.owner:
                continue
            reached: set[int] = set()
            spread = repeats = False
            for user in self.facts.uses(value):
                if is_listed(user, value):
                    continue
                group = self.owner.get(id(user))
                if group is not None:
                    reached.add(id(group))
                elif key_of(user.outputs[0]) in self.memory.roots:
                    reached.add(id(user))
                else:
                    reached |= sinks.get(id(user), frozenset())
                    repeats |= again.get(id(user), False)
                spread |= _spreads(value, user)
                repeats |= isinstance(user.op, GATHERS) and value.type.size != user.types[0].size
            sinks[id(node)] = frozenset(sorted(reached)[:2])
            again[id(node)] = repeats or spread
            if not isinstance(node.op, Elementwise) or value.type.size == 1:
                continue
            if len(reached) > 1 or spread or (repeats and _is_expensive(node)):
                self.memory.roots.add(key_of(value))
        for node in self.facts.nodes:
            if id(node) not in self.owner and key_of(node.outputs[0]) in self.memory.roots:
                self.owner[id(node)] = Group(node, [node], [node.outputs[0]])


def _axes_of(node: Node) -> tuple[int, ...]:
    assert isinstance(node.op, Reduction)
    return tuple(sorted(a % node.inputs[0].rank for a in node.op.axes))


def _spreads(value: Value, user: Node) -> bool:
    """Whether this use computes every element several times, and not only along the innermost axes."""
    target = user.types[0].shape
    if not isinstance(user.op, (Elementwise, BroadcastTo)) or value.type.size == user.types[0].size:
        return False
    lead = len(target) - value.rank
    grown = [i for i, d in enumerate(target) if i < lead or (value.shape[i - lead] == 1 and d != 1)]
    return grown != list(range(len(target) - len(grown), len(target)))


def _is_expensive(node: Node) -> bool:
    """Whether an element costs so much that a load from memory is better than doing it again."""
    assert isinstance(node.op, Elementwise)
    body = node.op.scalar(*(Expr("operand", v.dtype, (), i) for i, v in enumerate(node.inputs)))
    kinds = [n for n in walk([body]) if n.kind in INSTRUCTIONS]
    return any(INSTRUCTIONS[n.kind].transcendental or (n.kind in ("div", "rem") and n.dtype.is_integer) for n in kinds)
