"""Sizes of open dims that a model runs at, for inputs that are made up.

What must hold was noted when the graph was built: its type rules took dims to be equal, and a result of no elements is
none that anybody wants to see. Sizes are tried until all of that holds; nothing is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from rlx.cli.console import progress
from rlx.ir import dim as dims
from rlx.ir.dim import Dim, Poly
from rlx.ir.expect import Equality
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.literal import Array
from rlx.ir.op import Constant, Input
from rlx.ir.symbols import symbols_of
from rlx.ir.type import TensorType
from rlx.ops.control import If

BATCHES = (1, 2, 3, 4, 8, 16)
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
SIDES = (224, 256, 320, 384, 416, 512, 640, 128, 96, 64, 48, 32)
SAMPLES = (16000, 8000, 512, 1024, 2048, 4096, 48000)
OTHERS = (*range(1, 65), *range(80, 1025, 16), 576, *range(2048, 16385, 1024), 16000, 48000, 480000)
MOST_TRIED = 600
"""Of sizes for a whole model; a check of some hundred nodes takes a millisecond."""
KNOWN_ELEMENTS = 64
"""Of the values that conditions are worked out of."""


@dataclass(frozen=True)
class Sizes:
    """A size for each dim. `unmet` is what does not hold at these, where none were found that fit."""

    of: Mapping[str, int]
    unmet: str = ""


@dataclass
class _Needs:
    """What dims must be: `hard` where every run meets it; others stand where a run may not come."""

    hard: list[Equality] = field(default_factory=list)
    soft: list[Equality] = field(default_factory=list)
    extents: dict[Dim, None] = field(default_factory=dict)


def fitting(graph: Graph, given: Mapping[str, int], scalars: Mapping[str, Array]) -> Sizes:
    """Sizes for all dims of inputs and params, with those in `given` as they are.

    scalars   values of inputs that are known by now; a conditional that depends on them alone takes one branch
    """
    with progress("looking for sizes"):
        needs = _Needs()
        _collect(graph, needs, {name: np.asarray(value) for name, value in scalars.items()}, certain=True)
        known = set(graph.symbols)
        needs.hard = [e for e in needs.hard if e.symbols <= known]
        needs.soft = [e for e in needs.soft if e.symbols <= known]
        needs.extents = {dim: None for dim in needs.extents if dims.symbols(dim) <= known}
        return _Search(graph, needs, given).found()


def _collect(graph: Graph, needs: _Needs, known: Mapping[str, Array], certain: bool) -> None:
    """What a graph needs, and the bodies that its runs come to."""
    (needs.hard if certain else needs.soft).extend(graph.equalities)
    values = _values(graph, known)
    for node in graph.nodes:
        if certain:
            needs.extents.update(dict.fromkeys(d for of in node.types for d in of.shape if isinstance(d, Poly)))
        first = 1 if isinstance(node.op, If) else 0
        predicate = values.get(node.inputs[0]) if first else None
        for at, region in enumerate(node.regions):
            taken = predicate is None or bool(predicate) == (at == 0)
            if not taken:
                continue
            inside = {
                inner.name: values[outer]
                for inner, outer in zip(region.inputs, node.inputs[first:])
                if first and outer in values
            }
            _collect(region, needs, inside, certain and not (first and predicate is None))


def _values(graph: Graph, known: Mapping[str, Array]) -> dict[Value, Array]:
    """Small values that follow from known inputs and constants."""
    values: dict[Value, Array] = {}
    for node in graph.nodes:
        results = _results(node, known, values)
        values.update((v, r) for v, r in zip(node.outputs, results) if r.size <= KNOWN_ELEMENTS)
    return values


def _results(node: Node, known: Mapping[str, Array], values: Mapping[Value, Array]) -> Sequence[Array]:
    if isinstance(node.op, Input):
        return [known[node.name]] if node.name in known else []
    if isinstance(node.op, Constant):
        return [node.op.value.array]
    small = all(of.is_static and of.size <= KNOWN_ELEMENTS for of in node.types if isinstance(of.size, int))
    if node.regions or not node.inputs or not small or symbols_of(node) or any(v not in values for v in node.inputs):
        return []
    result = node.op.reference(*(values[v] for v in node.inputs))
    results = result if isinstance(result, tuple) else (result,)
    return [np.asarray(r, of.dtype.numpy) for r, of in zip(results, node.types)]


# what a dim usually is, by where it stands


@dataclass(frozen=True)
class _Place:
    """Where inputs have a dim."""

    dim: str
    input: str
    of: TensorType
    axis: int

    def says(self, words: str, of_input: bool = False) -> bool:
        texts = (self.dim, self.input) if of_input else (self.dim,)
        return any(re.search(rf"(^|[^a-z])({words})", text.lower()) for text in texts)

    @property
    def is_batch(self) -> bool:
        if self.says("batch|n$|b$|bs$"):
            return True
        return self.axis == 0 and self.of.rank > 1 and not self.says("seq|len|time|step|frame|token|sample|t$")

    @property
    def is_side(self) -> bool:
        """Of an image."""
        return self.of.rank == 4 and self.axis > 0 and (self.of.dtype.is_float or self.of.dtype.name == "u8")

    @property
    def is_sound(self) -> bool:
        sound = self.says("audio|wav|pcm|sample|speech", of_input=True)
        return sound and self.of.dtype.is_float and self.axis == self.of.rank - 1


_KINDS: tuple[tuple[Callable[[_Place], bool], Sequence[int]], ...] = (
    (lambda place: place.is_batch, BATCHES),
    (lambda place: place.is_side, SIDES),
    (lambda place: place.is_sound, SAMPLES),
)


def _usual(graph: Graph, symbol: str) -> Sequence[int]:
    """Sizes that a dim of this name, at these places, is likely to have."""
    places = [
        _Place(symbol, value.name, value.type, axis)
        for value in graph.brought
        for axis, dim in enumerate(value.shape)
        if symbol in dims.symbols(dim)
    ]
    return next((sizes for test, sizes in _KINDS if any(map(test, places))), LENGTHS)


# the search


@dataclass
class _Search:
    graph: Graph
    needs: _Needs
    given: Mapping[str, int]

    def __post_init__(self) -> None:
        self.tried = 0
        self.best: dict[str, int] = {}
        self.least = (1 << 60, 1 << 60)
        self.group_of = self._groups()
        free = [name for name in self.graph.symbols if name not in self.given]
        self.groups = list(dict.fromkeys(self.group_of[name] for name in free if self._of_group(name) is None))
        self.usual = {group: _usual(self.graph, group) for group in self.groups}

    def _groups(self) -> dict[str, str]:
        """Dims that must be equal have one name for them all."""
        of = {name: name for name in self.graph.symbols}
        for equality in self.needs.hard:
            left, right = str(equality.left), str(equality.right)
            if left in of and right in of and not equality.spreads and of[left] != of[right]:
                into, gone = sorted((of[left], of[right]), key=self.graph.symbols.index)
                of = {name: into if group == gone else group for name, group in of.items()}
        return of

    def _of_group(self, name: str) -> int | None:
        """The given size of a dim that must equal this one."""
        return next((n for other, n in self.given.items() if self.group_of.get(other) == self.group_of[name]), None)

    def found(self) -> Sizes:
        """The first sizes that fit; those that come nearest if none do."""
        for sizes in self._candidates():
            if self._fits(sizes):
                break
        full = self._full(self.best)
        return Sizes(full, self._unmet(full) if self.least[0] else "")

    def _candidates(self) -> Iterator[dict[str, int]]:
        """The usual sizes, then the same size for all but batches, then one dim after another."""
        first = {group: usual[0] for group, usual in self.usual.items()}
        yield first
        lengths = [group for group, usual in self.usual.items() if usual is not BATCHES]
        for size in dict.fromkeys([n for group in lengths for n in self.usual[group]] + list(LENGTHS)):
            yield first | dict.fromkeys(lengths, size)
        for _ in range(3):
            for group in self.groups:
                for size in dict.fromkeys((*self.usual[group], *self._solved(group), *OTHERS)):
                    yield self.best | {group: size}

    def _solved(self, group: str) -> list[int]:
        """Sizes at which sides of equalities meet that are straight lines of this dim."""
        sizes = []
        for equality in (*self.needs.hard, *self.needs.soft):
            gap = [self._gap(equality, self.best | {group: n}) for n in (64, 65, 66)]
            slope = gap[1] - gap[0]
            if slope and gap[2] - gap[1] == slope and gap[0] % slope == 0 and 64 - gap[0] // slope > 0:
                sizes.append(64 - gap[0] // slope)
        return sizes

    def _gap(self, equality: Equality, sizes: Mapping[str, int]) -> int:
        full = self._full(sizes)
        return dims.evaluate(equality.left, full) - dims.evaluate(equality.right, full)

    def _full(self, sizes: Mapping[str, int]) -> dict[str, int]:
        full = dict(self.given)
        for name in self.graph.symbols:
            if name not in full:
                known = self._of_group(name)
                full[name] = self._within(name, sizes[self.group_of[name]] if known is None else known)
        return full

    def _within(self, name: str, size: int) -> int:
        low, high = self.graph.bounds.get(name, (0, None))
        return max(size if high is None else min(size, high), low)

    def _fits(self, sizes: dict[str, int]) -> bool:
        """Whether to stop: all holds, or enough was tried."""
        self.tried += 1
        full = self._full(sizes)
        broken = [e for e in self.needs.hard if not e.holds(full)]
        hard = sum(e.one(full) is None for e in broken)
        if hard > self.least[0]:
            return self.tried >= MOST_TRIED
        soft = len(broken) - hard + sum(not e.holds(full) for e in self.needs.soft)
        soft += sum(dims.evaluate(dim, full) < 1 for dim in self.needs.extents)
        if (hard, soft) < self.least:
            self.best, self.least = dict(sizes), (hard, soft)
        return self.least == (0, 0) or self.tried >= MOST_TRIED

    def _unmet(self, full: Mapping[str, int]) -> str:
        broken = (e for e in self.needs.hard if not e.holds(full) and e.one(full) is None)
        return next((e.told(full) for e in islice(broken, 1)), "")


__all__ = ["Sizes", "fitting"]
