"""Fusion: which values get memory, and which nodes share a kernel.

Everything elementwise, and everything that only moves elements, is computed where it is used. A value gets memory (is a
*root*) when it leaves the program, when a contraction or another special kernel reads it, or when several kernels would
compute it again. On top of that a contraction takes the elementwise nodes behind it as its epilogue, and a reduction
grows into a *row group* (softmax, norms): reductions over the same axes and the elementwise nodes between and behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlx.errors import UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir.expr import INSTRUCTIONS, Expr, walk
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import LEAVES, Constant, Elementwise, Op, Param
from rlx.kernel.ir.index import contiguous
from rlx.kernel.lower.growth import MOST_INSTRUCTIONS, Growth, instructions
from rlx.kernel.lower.index import Key, can_inline, is_scalar_constant, key_of
from rlx.kernel.lower.views import VIEW_OPS, view_of
from rlx.ops.control import Control, Scan
from rlx.ops.convolution import Conv, ReduceWindow
from rlx.ops.cumulative import Cumulative
from rlx.ops.fourier import Fft, Irfft, Rfft
from rlx.ops.index import Gather, GatherElements, GatherNd, ScatterElements, ScatterNd
from rlx.ops.linalg import DotGeneral
from rlx.ops.ordering import TopK
from rlx.ops.reduce import Argmax, Argmin, Reduction
from rlx.ops.shape import BroadcastTo, Concat, Pad, Reshape, Transpose
from rlx.ops.transformer import Attention

PRODUCTS = (DotGeneral, Conv)
STRIDED_OPERANDS = (*PRODUCTS, Attention, ReduceWindow)
ARGUMENTS = (Argmax, Argmin)
GATHERS = (Gather, GatherElements, GatherNd)
TRANSFORMS = (Fft, Rfft, Irfft)
SPECIALS = (ScatterElements, ScatterNd, Cumulative, TopK, *TRANSFORMS)
"""Ops with work of a kind of their own (`kernel.ir.irregular`), which not every renderer has."""
HEAVY = (*STRIDED_OPERANDS, Reduction, *ARGUMENTS, Concat, *SPECIALS)


@dataclass
class Group:
    """Nodes of one kernel, `lead` its main one; `results` are the values that it writes.

    `kind`: contraction, convolution, window, attention, row, argument, concat, special, map.
    """

    kind: str
    lead: Node
    members: list[Node] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)


class Fusion:
    """Groups of a graph in an order in which they can run, and `order` of a value's axes in memory.

    `fixed` are inputs that params alone decide, as those of a region may be. With `chosen` a product may read matrices
    of a weight that data choose where they lie. Raises UnsupportedOp for nodes that no kernel kind can take.
    """

    def __init__(
        self, graph: Graph, disable: frozenset[str] = frozenset(), fixed: Sequence[Value] = (), chosen: bool = False
    ) -> None:
        self.graph = graph
        self.disable = disable
        self.chosen = chosen
        self.nodes = _live(graph)
        self.position = {id(n): i for i, n in enumerate(self.nodes)}
        self.ancestors: list[int] = []
        for i, node in enumerate(self.nodes):
            mask = 1 << i
            for v in node.inputs:
                mask |= self.ancestors[self.position[id(v.node)]]
            self.ancestors.append(mask)
        self.static = self._find_static(fixed)
        self.results = {key_of(v) for v in graph.outputs.values()}
        self.roots: set[Key] = set()
        self.owner: dict[int, Group] = {}
        self.layout: dict[Key, tuple[int, ...]] = {}
        self._refuse_unknown()
        self._find_layouts()
        self._demand_memory()
        self._bound_expressions()
        self._group_contractions()
        self._group_rows()
        self._give_memory_to_shared()
        self.groups = self._in_order()

    def _find_static(self, fixed: Sequence[Value]) -> set[int]:
        """Nodes that params and constants alone decide."""
        found = {id(v.node) for v in fixed}
        for node in self.nodes:
            above = bool(node.inputs) and not node.regions and all(id(v.node) in found for v in node.inputs)
            if above or isinstance(node.op, (Param, Constant)):
                found.add(id(node))
        return found

    def in_memory(self, value: Value) -> bool:
        """Whether the value has a buffer of its own."""
        if isinstance(value.node.op, LEAVES):
            return not is_scalar_constant(value)
        return key_of(value) in self.roots

    def _refuse_unknown(self) -> None:
        wrong = [n for n in self.nodes if not isinstance(n.op, Control) and not _taken(n)]
        if wrong:
            listed = "; ".join(f"[{n.op.name}] at node {n.source or n.name!r}" for n in wrong)
            raise UnsupportedOp(f"no kernel for {listed}")

    def uses(self, value: Value) -> list[Node]:
        return [n for n in self.graph.uses(value) if id(n) in self.position]

    def _find_layouts(self) -> None:
        """An attention result that is only ever transposed in one way is written in that order at once."""
        for node in self.nodes:
            if not isinstance(node.op, Attention) or key_of(node.outputs[0]) in self.results:
                continue
            orders = {u.op.permutation if isinstance(u.op, Transpose) else None for u in self.uses(node.outputs[0])}
            order = next(iter(orders)) if len(orders) == 1 else None
            if order is not None:
                self.layout[key_of(node.outputs[0])] = order

    def _demand_memory(self) -> None:
        for value in self.graph.outputs.values():
            self._to_memory(value)
        for node in self.nodes:
            if isinstance(node.op, HEAVY):
                self.roots.update(key_of(v) for v in node.outputs)
        for node in self.nodes:
            if isinstance(node.op, STRIDED_OPERANDS):
                for value in node.inputs:
                    if self.chosen and value is node.inputs[-1] and self._chooses(node):
                        source, places = value.node.inputs
                        self._strided(source)
                        self._to_memory(places)
                    else:
                        self._strided(value)
                self._neighbours(node)
            elif isinstance(node.op, GATHERS):
                if not isinstance(node.inputs[0].node.op, GATHERS):  # a gather of a gather is one gather
                    self._strided(node.inputs[0])
            elif isinstance(node.op, Pad) and isinstance(node.inputs[0].node.op, Transpose):
                # turned in blocks first: behind a guard every element would be fetched alone
                self._along(node.inputs[0], node.inputs[0].rank - 1)
            elif isinstance(node.op, Reshape) and not _only_ones(node):
                # through a reshape that regroups elements an index costs divisions, a flat load from memory none
                self._strided(node.inputs[0])
                if view_of(node.outputs[0], self._any_strides) is None:
                    self._to_memory(node.inputs[0])
            elif isinstance(node.op, Control):
                self._whole_operands(node)
            elif isinstance(node.op, TRANSFORMS):
                for value in node.inputs:
                    self._along(value, value.rank - 1)

    def _bound_expressions(self) -> None:
        """Values get memory where the expressions that they are part of have grown long."""
        growth = Growth(self.in_memory, self._to_memory)
        for node in self.nodes:
            if node.inputs and not isinstance(node.op, Concat):  # whose operands have kernels of their own
                growth.add(node, inlined=not node.regions and len(node.types) == 1 and can_inline(node.outputs[0]))

    def _chooses(self, node: Node) -> bool:
        """Whether it is a batch of products with matrices of a weight that data choose, one for each of the batch."""
        op, right = node.op, node.inputs[-1].node
        if not isinstance(op, DotGeneral) or not isinstance(right.op, Gather) or right.op.axis % 3 != 0:
            return False
        source, places = right.inputs
        known = source.rank == 3 and source.type.is_static and 0 not in source.shape and id(source.node) in self.static
        plain = source.dtype.is_float and places.rank == 1 and op.rhs_batch == (0,) and len(op.rhs_contract) == 1
        return known and plain and len(self.uses(right.outputs[0])) == 1

    def _to_memory(self, value: Value) -> None:
        if not isinstance(value.node.op, LEAVES):
            self.roots.add(key_of(value))

    def _strided(self, value: Value) -> None:
        """Makes sure that `value` is a strided view of something in memory."""
        chain = value
        while not isinstance(chain.node.op, LEAVES) and key_of(chain) not in self.roots:
            if not isinstance(chain.node.op, VIEW_OPS):
                self._to_memory(chain)
                break
            chain = chain.node.inputs[0]
        if is_scalar_constant(chain):
            if chain is not value:
                self._to_memory(value)
            return
        if view_of(value, self._any_strides) is None:
            self._to_memory(value)

    def _whole_operands(self, node: Node) -> None:
        """Regions read their operands as whole arrays; of a sequence only the elements need to be whole."""
        scanned = range(0)
        if isinstance(node.op, Scan):
            scanned = range(node.op.carried, node.op.carried + node.op.sequences)
        for position, value in enumerate(node.inputs):
            self._strided(value)
            view = view_of(value, self._any_strides)
            skip = 1 if position in scanned else 0
            if view is not None and not is_whole(value.shape[skip:], view.strides[skip:]):
                self._to_memory(value)

    def _neighbours(self, node: Node) -> None:
        """Left sides of products are read along the axis that is summed: they get memory where it has other steps."""
        value = node.inputs[0]
        match node.op:
            case DotGeneral(lhs_contract=(axis,)):
                self._along(value, axis % value.rank)
            case Conv(channels_last=True, groups=groups):
                self._along(value, value.rank - 1)
                if groups > 1:  # no packed panels: vectors lie along the output channels of the weights
                    self._along(node.inputs[1], value.rank - 1)
            case Attention():
                self._along(value, value.rank - 1)

    def _along(self, value: Value, axis: int) -> None:
        view = view_of(value, self._any_strides)
        if view is not None and view.strides[axis] != 1 and value.shape[axis] != 1:
            self._to_memory(value)

    def _any_strides(self, value: Value) -> tuple[dims.Dim, ...] | None:
        return self.strides(value) if self.in_memory(value) else None

    def strides(self, value: Value) -> tuple[dims.Dim, ...]:
        """Strides of a value in memory, its axes stored in `layout` order."""
        order = self.layout.get(key_of(value), tuple(range(value.rank)))
        strides: list[dims.Dim] = [0] * value.rank
        step: dims.Dim = 1
        for axis in reversed(order):
            strides[axis] = step
            step = dims.mul(step, value.shape[axis])
        return tuple(strides)

    # contractions and what follows them

    def _group_contractions(self) -> None:
        for node in self.nodes:
            if not isinstance(node.op, (*PRODUCTS, ReduceWindow)):
                continue
            members = [node] if "fuse/epilogue" in self.disable else self._epilogue(node)
            result = members[-1].outputs[0]
            self.roots.discard(key_of(node.outputs[0]))
            self.roots.add(key_of(result))
            kind = {DotGeneral: "contraction", Conv: "convolution", ReduceWindow: "window"}[type(node.op)]
            group = Group(kind, node, members, [result])
            for member in members:
                self.owner[id(member)] = group

    def _epilogue(self, dot: Node) -> list[Node]:
        """The dot and the elementwise nodes behind it, up to one value through which everything leaves."""
        shape = dot.outputs[0].shape
        inside = {id(dot): dot}
        mask = 1 << self.position[id(dot)]
        left = MOST_INSTRUCTIONS
        ends = [dot]
        for node in self.nodes[self.position[id(dot)] + 1 :]:
            if not isinstance(node.op, Elementwise) or id(node) in self.owner or node.types[0].shape != shape:
                continue
            if not any(id(v.node) in inside for v in node.inputs) or self._would_hold(dot, node):
                continue
            others = [v for v in node.inputs if id(v.node) not in inside]
            if any(self.ancestors[self.position[id(v.node)]] & mask for v in others):
                continue
            inside[id(node)] = node
            mask |= 1 << self.position[id(node)]
            ends.append(node)
            left -= instructions(node)
            if left < 0:
                break
        for end in reversed(ends):
            needed = [n for n in ends if self.ancestors[self.position[id(end)]] >> self.position[id(n)] & 1]
            names = {id(n) for n in needed}
            closed = all(
                key_of(n.outputs[0]) not in self.results
                and key_of(n.outputs[0]) not in (self.roots - {key_of(dot.outputs[0])})
                and all(id(u) in names for u in self.uses(n.outputs[0]))
                for n in needed
                if n is not end
            )
            if closed:
                return needed
        return [dot]

    # rows

    def _group_rows(self) -> None:
        for node in self.nodes:
            if id(node) in self.owner:
                continue
            if isinstance(node.op, ARGUMENTS):
                self._own(Group("argument", node, [node], [node.outputs[0]]))
            elif isinstance(node.op, Concat):
                self._own(Group("concat", node, [node], [node.outputs[0]]))
            elif isinstance(node.op, Control):
                self._own(Group("control", node, [node], list(node.outputs)))
            elif isinstance(node.op, Attention):
                self._own(Group("attention", node, [node], [node.outputs[0]]))
            elif isinstance(node.op, SPECIALS):
                asked = [v for v in node.outputs if self.graph.use_count(v)]
                self._own(Group("special", node, [node], asked))
            elif isinstance(node.op, Reduction):
                members = [node] if "fuse/row" in self.disable or not node.op.keepdims else self._row(node)
                self._own(Group("row", node, members, self._leaving(members)))

    def _own(self, group: Group) -> None:
        for member in group.members:
            self.owner[id(member)] = group
        written = {key_of(v) for v in group.results}
        for member in group.members:
            self.roots.difference_update(key_of(v) for v in member.outputs)
        self.roots |= written

    def _row(self, first: Node) -> list[Node]:
        full, row = first.inputs[0].shape, first.types[0].shape
        axes = _normal_axes(first)
        members = [first]
        inside = {id(first)}
        mask = 1 << self.position[id(first)]
        left = MOST_INSTRUCTIONS
        for node in self.nodes[self.position[id(first)] + 1 :]:
            if id(node) in self.owner or not any(id(v.node) in inside for v in node.inputs):
                continue
            if self._would_hold(first, node):
                continue
            if isinstance(node.op, Reduction):
                fits = node.op.keepdims and _normal_axes(node) == axes and node.inputs[0].shape == full
            else:
                fits = isinstance(node.op, (Elementwise, BroadcastTo)) and node.types[0].shape in (full, row)
            others = [v for v in node.inputs if id(v.node) not in inside]
            apart = not any(self.ancestors[self.position[id(v.node)]] & mask for v in others)
            if fits and apart and all(len(v.shape) <= len(full) for v in others):
                members.append(node)
                inside.add(id(node))
                mask |= 1 << self.position[id(node)]
                left -= instructions(node)
            if left < 0:
                break
        return members

    def _would_hold(self, lead: Node, node: Node) -> bool:
        """Whether a node would keep work that only params decide from being done once, in `prepare`."""
        return id(lead) in self.static and id(node) not in self.static

    def _leaving(self, members: list[Node]) -> list[Value]:
        """Values of members that somebody outside needs."""
        inside = {id(n) for n in members}
        leaving = []
        for node in members:
            value = node.outputs[0]
            wanted = key_of(value) in self.results or (
                key_of(value) in self.roots and not isinstance(node.op, Reduction)
            )
            if wanted or any(id(u) not in inside for u in self.uses(value)):
                leaving.append(value)
        return leaving

    # everything else

    def _give_memory_to_shared(self) -> None:
        """Elementwise values that several kernels would compute, or that are spread out, get memory."""
        sinks: dict[int, set[int]] = {}
        again: dict[int, bool] = {}  # whether an element of the node would be computed again, here or further on
        for node in reversed(self.nodes):
            value = node.outputs[0]
            if isinstance(node.op, LEAVES) or id(node) in self.owner:
                continue
            reached: set[int] = set()
            spread = False
            repeats = False
            for user in self.uses(value):
                group = self.owner.get(id(user))
                if group is not None:
                    reached.add(id(group))
                elif key_of(user.outputs[0]) in self.roots:
                    reached.add(id(user))
                else:
                    reached |= sinks.get(id(user), set())
                    repeats |= again.get(id(user), False)
                spread |= self._spreads(value, user)
                repeats |= isinstance(user.op, GATHERS) and value.type.size != user.types[0].size
            sinks[id(node)] = reached
            again[id(node)] = repeats or spread
            if not isinstance(node.op, Elementwise) or value.type.size == 1:
                continue
            if len(reached) > 1 or spread or (repeats and _is_dear(node)):
                self.roots.add(key_of(value))
        for node in self.nodes:
            if id(node) not in self.owner and key_of(node.outputs[0]) in self.roots:
                self.owner[id(node)] = Group("map", node, [node], [node.outputs[0]])

    def _spreads(self, value: Value, user: Node) -> bool:
        """Whether this use computes every element several times, and not only along the innermost axes."""
        target = user.types[0].shape
        if isinstance(user.op, (Elementwise, BroadcastTo)):
            if value.type.size == user.types[0].size:
                return False
            lead = len(target) - value.rank
            grown = [i for i, d in enumerate(target) if i < lead or (value.shape[i - lead] == 1 and d != 1)]
            tail = list(range(len(target) - len(grown), len(target)))
            return grown != tail
        return False

    def _in_order(self) -> list[Group]:
        """Groups sorted so that each runs behind those whose results it reads."""
        seen: dict[int, Group] = {}
        for node in self.nodes:
            group = self.owner.get(id(node))
            if group is not None:
                seen.pop(id(group), None)
                seen[id(group)] = group  # a group stands where its last member stands
        return _topological(list(seen.values()), self)


def _topological(groups: list[Group], fusion: Fusion) -> list[Group]:
    made: list[Group] = []
    state: dict[int, int] = {}

    def visit(start: Group) -> None:
        stack = [(start, False)]
        while stack:
            group, ready = stack.pop()
            if ready:
                state[id(group)] = 2
                made.append(group)
            elif state.get(id(group), 0) == 0:
                state[id(group)] = 1
                stack.append((group, True))
                needed = {id(g): g for g in _reads(group, fusion)}
                stack.extend((g, False) for g in needed.values() if state.get(id(g), 0) == 0)

    for group in groups:
        visit(group)
    return made


def _reads(group: Group, fusion: Fusion) -> list[Group]:
    """Groups whose results this one reads, through inlined nodes."""
    found: dict[int, Group] = {}
    inside = {id(n) for n in group.members}
    stack = [v for n in group.members for v in n.inputs if id(v.node) not in inside]
    seen: set[int] = set()
    while stack:
        value = stack.pop()
        if id(value.node) in seen or id(value.node) in inside:
            continue
        seen.add(id(value.node))
        owner = fusion.owner.get(id(value.node))
        if owner is not None:
            found[id(owner)] = owner
        else:
            stack.extend(value.node.inputs)
    return list(found.values())


def _is_dear(node: Node) -> bool:
    """Whether an element costs so much that a load from memory is better than doing it again."""
    assert isinstance(node.op, Elementwise)
    body = node.op.scalar(*(Expr("operand", v.dtype, (), i) for i, v in enumerate(node.inputs)))
    kinds = [n for n in walk([body]) if n.kind in INSTRUCTIONS]
    return any(INSTRUCTIONS[n.kind].transcendental or (n.kind in ("div", "rem") and n.dtype.is_integer) for n in kinds)


def _taken(node: Node) -> bool:
    return isinstance(node.op, (*LEAVES, *HEAVY)) or (len(node.types) == 1 and can_inline(node.outputs[0]))


def untaken(graph: Graph, specials: tuple[type[Op], ...] = ()) -> list[Node]:
    """Nodes that no kernel kind takes, of the special ones those that the renderer has.

    Those with regions are among them.
    """
    lacking = tuple(op for op in SPECIALS if op not in specials)
    return [n for n in _live(graph) if not _taken(n) or isinstance(n.op, lacking)]


def _live(graph: Graph) -> list[Node]:
    """Nodes that outputs need, and the inputs and params, in order."""
    wanted: set[int] = set()
    stack = [v.node for v in graph.outputs.values()]
    while stack:
        node = stack.pop()
        if id(node) not in wanted:
            wanted.add(id(node))
            stack.extend(v.node for v in node.inputs)
    return [n for n in graph.nodes if id(n) in wanted]


def is_whole(shape: dims.Shape, strides: tuple[dims.Dim, ...]) -> bool:
    """Whether an array of these strides lies in memory without gaps, row by row."""
    return all(d == 1 or s == wanted for d, s, wanted in zip(shape, strides, contiguous(shape)))


def _only_ones(node: Node) -> bool:
    old, new = node.inputs[0].shape, node.types[0].shape
    return [d for d in old if d != 1] == [d for d in new if d != 1]


def _normal_axes(node: Node) -> tuple[int, ...]:
    assert isinstance(node.op, Reduction)
    return tuple(sorted(a % node.inputs[0].rank for a in node.op.axes))
