"""Graphs at sizes that are larger than those of a run: how what a value holds lies in an array with room for more.

In a padded graph a dim stands for the size of the arrays. How much of it a run uses comes as a number, an input. Types
are those of the graph that it was made from. `Op.padded` builds an op there; what it is told of its operands, and tells
of its results, is a `Padded`.

Every axis has *parts*: dims whose product is that of the axis, the outermost first. What counts are the first entries
of each part. Most axes have one, and padding is a suffix. Two axes that a reshape joined have two. An axis that
broadcasts one entry has none: its entries are equal, in its padding too, so it goes with any parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from rlx.errors import RlxError
from rlx.ir import dim as dims
from rlx.ir.dim import Call, Dim, Shape
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Op
from rlx.records import dataclass

Parts = tuple[Dim, ...]
Axes = tuple[Parts, ...]
ALIKE: Parts = ()
"""Of an axis whose entries are equal."""
PREFIX = "rlx.size."
FAR = (1 << 31) - 1
"""An index that lies outside of all axes."""


class NotPadded(RlxError):
    """A node that must know its sizes when it is compiled; `symbols` are the dims for which that is so."""

    def __init__(self, message: str, symbols: Iterable[str]) -> None:
        super().__init__(message)
        self.symbols = frozenset(symbols)


@dataclass(frozen=True)
class Padded:
    """A value of a padded graph, and the parts of its axes."""

    value: Value
    axes: Axes

    @property
    def shape(self) -> Shape:
        return self.value.shape

    def along(self, axis: int, parts: Parts) -> Padded:
        """The value with other parts of one of its axes."""
        return Padded(self.value, (*self.axes[:axis], parts, *self.axes[axis + 1 :]))


@dataclass(frozen=True)
class Body:
    """A padded region. Behind its own inputs it takes the numbers of `sizes`."""

    graph: Graph
    results: tuple[Padded, ...]
    sizes: tuple[Dim, ...]


Walk = Callable[[Graph, frozenset[str], Sequence[Axes], Sequence[Dim]], Body]
"""Pads a region whose inputs have these axes, and which may need more sizes than these."""


class Padding:
    """What rules of ops know of the padded graph that they build in.

    symbols   the dims whose arrays may be larger than what a run uses; the others are *closed*
    sizes     by the name of an input, i64 []: the dim whose number it gets
    node      the node that is built
    """

    def __init__(self, graph: Graph, symbols: frozenset[str], walk: Walk) -> None:
        self.graph = graph
        self.symbols = symbols
        self._walk = walk
        self.sizes: dict[str, Dim] = {}
        self.node: Node | None = None
        self._numbers: dict[Dim, Value] = {}
        self._masks: dict[tuple[int, int, Parts], Value] = {}

    # dims

    def is_open(self, *shape: Dim) -> bool:
        """Whether one of the dims hangs on a size that may be padded."""
        return any(dims.symbols(d) & self.symbols for d in shape)

    def parts(self, listed: Iterable[Dim]) -> Parts:
        """The parts of an axis in their only form: a closed part is inside of the one before it."""
        kept: list[Dim] = []
        for dim in listed:
            if kept and not self.is_open(dim):
                kept[-1] = dims.mul(kept[-1], dim)
            elif dim != 1:
                kept.append(dim)
        return tuple(kept) or (1,)

    def of(self, value: Value) -> Padded:
        """A value whose padding lies behind what counts."""
        return Padded(value, tuple((d,) for d in value.shape))

    def size(self, dim: Dim) -> Value:
        """What a dim is in the run, i64 []."""
        if isinstance(dim, int):
            return self.graph.constant(np.int64(dim))
        if not self.is_open(dim):
            return self.graph.build("dims_tensor", self.graph, values=(dim,)).reshape(())
        if dim not in self._numbers:
            name = f"{PREFIX}{len(self.sizes)}"
            self._numbers[dim] = self.graph.input(name, (), "i64")
            self.sizes[name] = dim
        return self._numbers[dim]

    def refuse(self, reason: str, *culprits: Dim) -> NoReturn:
        """Raises NotPadded for the open dims of these; of all that the node speaks of if there are none."""
        node = self.node
        assert node is not None  # rules are called for nodes
        spoken = culprits or tuple(d for v in (*node.inputs, *node.outputs) for d in v.shape)
        found = frozenset().union(*map(dims.symbols, spoken)) & self.symbols
        raise NotPadded(f"[{node.op.name}] {reason}, at node {node.source or node.name!r}", found or self.symbols)

    # axes

    def in_front(self, x: Padded, axis: int) -> Padded:
        """x with what counts of an axis in front of its padding: entries that lie apart are gathered."""
        extent = x.shape[axis]
        if len(x.axes[axis]) > 1:
            places = self._places(self.graph.build("iota", self.graph, shape=(extent,), dtype="i64"), x.axes[axis])
            x = Padded(self.graph.build("gather", x.value, places, axis=axis), x.axes)
        return x.along(axis, (extent,))

    def relaid(self, x: Padded, shape: Shape) -> Padded:
        """x under another shape of as many elements that count, gathered one by one."""
        number = self.graph.constant(np.int64(0))
        for axis in range(len(shape)):
            line = tuple(d if i == axis else 1 for i, d in enumerate(shape))
            places = self.graph.build("iota", self.graph, shape=line, dtype="i64", axis=axis)
            number = number + places * self.size(dims.product(shape[axis + 1 :]))
        parts = [d for of, extent in zip(x.axes, x.shape) for d in (of or (extent,))]
        flat = x.value.reshape((dims.product(x.shape),))
        return self.of(self.graph.build("gather", flat, self._places(number, parts), axis=0))

    def _places(self, numbers: Value, parts: Sequence[Dim]) -> Value:
        """Where entries lie that are numbered among those that count, in an axis of these parts."""
        places: Value | None = None
        stride: Dim = 1
        for part in reversed(parts):
            size = self.graph.build("maximum", self.size(part), 1)
            step = self.graph.build("mod", numbers, size) * self._whole(stride)
            numbers = self.graph.build("div", numbers, size)
            places = step if places is None else places + step
            stride = dims.mul(stride, part)
        assert places is not None  # no axis has no parts here
        return places

    def _whole(self, dim: Dim) -> Value:
        """What a dim is in the arrays, i64 []."""
        if isinstance(dim, int):
            return self.graph.constant(np.int64(dim))
        return self.graph.build("dims_tensor", self.graph, values=(dim,)).reshape(())

    def closed(self, x: Padded, axis: int, why: str) -> None:
        """Raises NotPadded for an axis that may be padded."""
        if self.is_open(x.shape[axis]):
            self.refuse(f"{why} an axis of {x.shape[axis]}", x.shape[axis])

    def same(self, left: Parts, right: Parts) -> Parts:
        """The parts of two axes that go together. Raises NotPadded where what counts lies elsewhere in each."""
        if ALIKE in (left, right):
            return left or right
        if left != right and not len(left) == len(right) == 1:
            texts = [" times ".join(map(str, parts)) for parts in (left, right)]
            self.refuse(f"what counts of {texts[0]} lies elsewhere than of {texts[1]}", *left, *right)
        return left if self.is_open(*left) else right  # of two names for one size either does

    def same_of(self, listed: Iterable[Parts]) -> Parts:
        """The parts of axes that all go together, as `same`."""
        common = ALIKE
        for parts in listed:
            common = self.same(common, parts)
        return common

    def joined(self, shape: Shape, operands: Sequence[Padded]) -> Axes:
        """The parts of operands that broadcast to a shape."""
        axes: list[Parts] = []
        for back in range(len(shape), 0, -1):
            parts, extent = ALIKE, shape[len(shape) - back]
            for x in operands:
                if len(x.axes) >= back and (x.shape[-back] != 1 or extent == 1):
                    parts = self.same(parts, x.axes[-back])
            axes.append(parts if parts or self.is_open(extent) else (extent,))
        return tuple(axes)

    def regrouped(self, x: Padded, shape: Shape) -> Axes | None:
        """The parts of axes under another shape of the same elements; None where what counts is in no parts of it."""
        if 0 in shape:
            return tuple((d,) for d in shape)
        axes: list[Parts] = []
        for old, new in _groups(x.shape, shape):
            parts, targets = x.axes[old], shape[new]
            if not self.is_open(*x.shape[old], *targets):
                axes += [(d,) for d in targets]
            elif parts and all(p == ALIKE or d == 1 for p, d in zip(parts, x.shape[old])) and ALIKE in parts:
                axes += [ALIKE if self.is_open(d) else (d,) for d in targets]
            else:
                inner = [d for p, e in zip(parts, x.shape[old]) for d in (p or (e,))]
                distributed = self._distributed(inner, targets)
                if distributed is None:
                    return None
                axes += distributed
        return tuple(axes)

    def _distributed(self, parts: list[Dim], targets: Shape) -> list[Parts] | None:
        """These parts, the outermost first, to the axes that they become; None where one would have to be split."""
        axes, left = list[Parts](), [d for d in parts if d != 1]
        if len(left) == 1 and sum(d != 1 for d in targets) == 1:
            return [(d,) for d in targets]  # of two names for one size either does
        for target in targets:
            taken, need = [], target
            while need != 1 and left:
                part = left.pop(0)
                rest, inside = dims.exact_div(need, part), dims.exact_div(part, need)
                if rest is None and (inside is None or self.is_open(inside)):
                    break
                if rest is not None:
                    need = rest
                    taken.append(part)
                else:
                    assert inside is not None  # tested above
                    left.insert(0, inside)
                    taken.append(need)
                    need = 1
            if need != 1:
                return None
            axes.append(self.parts(taken))
        return None if left else axes

    # regions

    def bodies(self, inputs: Sequence[Axes], *needed: Dim) -> list[Body]:
        """The regions of the node, padded, all with the same sizes, these among them. Raises NotPadded."""
        assert self.node is not None  # rules are called for nodes
        sizes: dict[Dim, None] = dict.fromkeys(d for d in needed if self.is_open(d))
        for region in self.node.regions:
            sizes.update(dict.fromkeys(self._walk(region, self.symbols, inputs, tuple(sizes)).sizes))
        return [self._walk(region, self.symbols, inputs, tuple(sizes)) for region in self.node.regions]

    def settled(self, carried: Sequence[Padded], others: Sequence[Axes], which: int, *needed: Dim) -> list[Body]:
        """The regions of a loop, with axes of carried values that a trip leaves as they are; `which` gives these."""
        axes = [x.axes for x in carried]
        while True:
            bodies = self.bodies([*axes, *others], *needed)
            after = [x.axes for x in bodies[which].results[: len(axes)]]
            joined = [tuple(map(self.same, a, b)) for a, b in zip(axes, after)]
            if joined == axes:
                return bodies
            axes = joined

    # values

    def build(self, op: Op, *operands: Value) -> Value:
        """The op on values of the padded graph."""
        value = self.graph.add(op, *operands)
        assert isinstance(value, Value)  # what has several results calls `add` itself
        return value

    def elementwise(self, op: Op, *operands: Padded) -> Padded:
        """An op that goes element by element, as it is."""
        operands = self._aligned(operands)
        value = self.build(op, *(x.value for x in operands))
        return Padded(value, self.joined(value.shape, operands))

    def _aligned(self, operands: tuple[Padded, ...]) -> tuple[Padded, ...]:
        """Operands that broadcast, with what counts of an axis in front if it does not lie alike in all."""
        for back in range(1, max((len(x.axes) for x in operands), default=0) + 1):
            along = {x.axes[-back] for x in operands if len(x.axes) >= back and x.shape[-back] != 1} - {ALIKE}
            if len(along) > 1 and any(len(parts) > 1 for parts in along):
                operands = tuple(
                    self.in_front(x, len(x.axes) - back) if len(x.axes) >= back and len(x.axes[-back]) > 1 else x
                    for x in operands
                )
        return operands

    def counts(self, x: Padded, axis: int) -> Value:
        """Whether entries along an axis count, bool [1, ..., n, ..., 1] of the rank of x."""
        rank, parts = len(x.axes), x.axes[axis] if self.is_open(*x.axes[axis]) else (x.shape[axis],)
        key = (rank, axis % rank, parts)
        if key not in self._masks:
            kept: Value | None = None
            for at, dim in enumerate(parts):
                if self.is_open(dim):
                    shape = tuple(d if i == at else 1 for i, d in enumerate(parts))
                    places = self.graph.build("iota", self.graph, shape=shape, dtype="i64", axis=at)
                    inside = self.graph.build("lt", places, self.size(dim))
                    kept = inside if kept is None else self.graph.build("bitwise_and", kept, inside)
            assert kept is not None  # only open axes are asked about
            if kept.shape != parts:
                kept = self.graph.build("broadcast_to", kept, shape=parts)
            whole = tuple(x.shape[axis] if i == axis % rank else 1 for i in range(rank))
            self._masks[key] = kept.reshape(whole)
        return self._masks[key]

    def filled(self, x: Padded, axes: Iterable[int], fill: Any) -> Padded:
        """x with a number in the place of all that does not count along these axes; x itself if they are closed."""
        kept: Value | None = None
        for axis in axes:
            if self.is_open(x.shape[axis]):
                counts = self.counts(x, axis)
                kept = counts if kept is None else self.graph.build("bitwise_and", kept, counts)
        if kept is None:
            return x
        number = self.graph.constant(np.asarray(fill).astype(x.value.dtype.numpy))
        return Padded(self.graph.build("select", kept, x.value, number), x.axes)

    def places(self, indices: Value, extent: Dim) -> Value:
        """Indices into an axis, i64, those below zero counted from the end of what counts."""
        if indices.dtype.kind == "uint" and indices.dtype.bits == 64:  # its upper half would be negative
            indices = self.graph.build("minimum", indices, self.graph.constant(np.uint64(FAR)))
        wide = indices.cast("i64")
        return self.graph.build("select", self.graph.build("lt", wide, 0), wide + self.size(extent), wide)

    def nearest(self, indices: Value, extent: Dim) -> Value:
        """Indices as `places`, those out of range at the nearest entry that counts."""
        last = self.size(dims.add(extent, -1))
        return self.graph.build("maximum", self.graph.build("minimum", self.places(indices, extent), last), 0)

    def reached(self, x: Padded, indices: Padded, axis: int) -> tuple[Padded, Padded]:
        """What a gather takes: from an axis of which nothing counts it takes zeros."""
        x, extent = self.in_front(x, axis), x.shape[axis]
        if not self.is_open(extent):
            return x, indices
        if dims.bounds(extent, dict.fromkeys(dims.symbols(extent), (1, None)))[0] < 1:
            x = self.filled(x, (axis,), 0)
        return x, Padded(self.nearest(indices.value, extent), indices.axes)

    def dropped(self, indices: Padded, extents: Sequence[Dim]) -> Padded:
        """What a scatter takes, of indices into an axis, or of one column of vectors for each of several: those out of
        range, and those that do not count, lie outside of all."""
        columns = [indices.value] if len(extents) == 1 else [indices.value[..., i : i + 1] for i in range(len(extents))]
        places = [self.places(column, extent) for column, extent in zip(columns, extents)]
        whole = places[0] if len(places) == 1 else self.graph.build("concat", *places, axis=-1)
        far = self.graph.build("select", self.graph.build("lt", whole, 0), FAR, whole)
        return self.filled(Padded(far, indices.axes), range(len(indices.axes)), FAR)


def _groups(old: Shape, new: Shape) -> list[tuple[slice, slice]]:
    """The smallest stretches of axes that hold the same elements under both shapes."""
    found, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        a, b = next(
            ((a, b) for total in range(2, len(old) - i + len(new) - j + 1)
             for a in range(i + 1, min(i + total, len(old) + 1)) for b in [j + total - (a - i)]
             if j < b <= len(new) and dims.product(old[i:a]) == dims.product(new[j:b])),
            (len(old), len(new)),
        )  # fmt: skip
        found.append((slice(i, a), slice(j, b)))
        i, j = a, b
    return found


def grows(dim: Dim, symbols: frozenset[str]) -> bool:
    """Whether a dim is provably no smaller where these symbols are larger."""
    return _direction(dim, symbols)[0]


def _direction(dim: Dim, symbols: frozenset[str]) -> tuple[bool, bool]:
    """Whether a dim never falls, and whether it never rises, with these symbols."""
    rises = falls = True
    terms = () if isinstance(dim, int) else dim.terms
    for monomial, coefficient in terms:  # n - max(0, n-1) is min(n, 1)
        call = monomial[0] if len(monomial) == 1 and coefficient == -1 else None
        if isinstance(call, Call) and call.function in ("min", "max"):
            rest = dims.add(dim, _alone(call))
            left, right = (_direction(dims.add(rest, dims.mul(d, -1)), symbols) for d in (call.left, call.right))
            return left[0] and right[0], left[1] and right[1]
    for monomial, coefficient in terms:
        ways = [_way(factor, symbols) for factor in monomial]
        if len(monomial) > 1 and any(isinstance(f, Call) and dims.bounds(_alone(f), {})[0] < 0 for f in monomial):
            ways.append((not dims.symbols(dim) & symbols,) * 2)
        up, down = all(way[0] for way in ways), all(way[1] for way in ways)
        rises, falls = (rises and up, falls and down) if coefficient > 0 else (rises and down, falls and up)
    return rises, falls


def _alone(call: Call) -> Dim:
    return dims.Poly((((call,), 1),))


def _way(factor: str | Call, symbols: frozenset[str]) -> tuple[bool, bool]:
    if isinstance(factor, str):
        return True, factor not in symbols
    left, right = _direction(factor.left, symbols), _direction(factor.right, symbols)
    if factor.function in ("min", "max"):
        return left[0] and right[0], left[1] and right[1]
    if factor.function == "floordiv" and isinstance(factor.right, int) and factor.right > 0:
        return left
    fixed = not (dims.symbols(factor.left) | dims.symbols(factor.right)) & symbols
    return fixed, fixed
