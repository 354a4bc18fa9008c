"""What a graph demands of the machine: sizes of values, and trips of nested loops, checked before a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rlx import flags
from rlx.backends.failures import memory_bytes
from rlx.errors import InputError, OutOfMemory
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.records import dataclass

if TYPE_CHECKING:
    from rlx.ir.graph import Graph, Node

TIMES_MEMORY = 16
MOST_NESTED_TRIPS = 1 << 26


@dataclass(frozen=True)
class Place:
    """A node, for messages: its op, and its name in the model."""

    op: str
    label: str

    @staticmethod
    def of(node: Node) -> Place:
        return Place(node.op.name, node.source or node.name)


Sizes = Mapping[tuple[Dim, ...], tuple[int, Place]]
"""Shapes, each with the bytes of its widest element and a node that makes it."""
Trips = Sequence[tuple[Dim, Place]]


def places(shapes: Mapping[tuple[Dim, ...], tuple[int, Node]]) -> Sizes:
    return {shape: (itemsize, Place.of(node)) for shape, (itemsize, node) in shapes.items()}


def sizes(
    graph: Graph, shapes: dict[tuple[Dim, ...], tuple[int, Node]] | None = None
) -> Mapping[tuple[Dim, ...], tuple[int, Node]]:
    """Shapes of a graph and its regions, each with the bytes of its widest element and a node that makes it."""
    shapes = {} if shapes is None else shapes
    for node in graph.nodes:
        for of in node.types:
            if of.dtype.itemsize > shapes.get(of.shape, (0, node))[0]:
                shapes[of.shape] = (of.dtype.itemsize, node)
        for region in node.regions:
            sizes(region, shapes)
    return shapes


@dataclass(frozen=True)
class Demands:
    """Sizes of values and trips of loops: `fixed` are those that no dim can change."""

    fixed: Sizes
    open: Sizes
    fixed_trips: Trips
    open_trips: Trips

    @staticmethod
    def of(graph: Graph) -> Demands:
        shapes = places(sizes(graph))
        known = set(graph.symbols)
        loops = [(trips, Place.of(node)) for trips, node in nested_trips(graph) if dims.symbols(trips) <= known]
        fixed = {shape: of for shape, of in shapes.items() if all(isinstance(d, int) for d in shape)}
        return Demands(
            fixed=fixed,
            open={
                shape: of
                for shape, of in shapes.items()
                if shape not in fixed and all(dims.symbols(d) <= known for d in shape)
            },
            fixed_trips=[(trips, place) for trips, place in loops if isinstance(trips, int)],
            open_trips=[(trips, place) for trips, place in loops if not isinstance(trips, int)],
        )

    def check(self) -> None:
        """Raises InputError, OutOfMemory for what no dim can change."""
        check_sizes(self.fixed, {}, most_bytes())
        _check_trips(self.fixed_trips, {})

    def check_at(self, binding: Mapping[str, int]) -> None:
        """Raises InputError, OutOfMemory."""
        check_sizes(self.open, binding, most_bytes())
        _check_trips(self.open_trips, binding)

    def largest(self, binding: Mapping[str, int]) -> str:
        """The largest value of all, for people; it need not be the one that no memory is left for."""
        known = [(shape, of) for shape, of in {**self.fixed, **self.open}.items() if _known(shape, binding)]
        if not known:
            return "it has no values of known size"
        candidates = [
            (math.prod(dims.evaluate(d, binding) for d in shape) * of[0], shape, of[1]) for shape, of in known
        ]
        size, shape, place = max(candidates, key=lambda each: each[0])
        extents = [dims.evaluate(d, binding) for d in shape]
        return f"the largest value is of {size} bytes, {extents}, at node {place.label!r}"


def _known(shape: tuple[Dim, ...], binding: Mapping[str, int]) -> bool:
    return all(dims.symbols(d) <= binding.keys() for d in shape)


def nested_trips(graph: Graph, around: Dim = 0) -> Iterator[tuple[Dim, Node]]:
    """Trips of each loop of known length that lies in others, together with those."""
    from rlx.ops.control import Scan

    for node in graph.nodes:
        inside = around
        if isinstance(node.op, Scan):
            inside = node.op.length if around == 0 else dims.mul(around, node.op.length)
            if around != 0:
                yield inside, node
        for region in node.regions:
            yield from nested_trips(region, inside)


def _check_trips(loops: Trips, binding: Mapping[str, int]) -> None:
    for trips, place in loops:
        count = dims.evaluate(trips, binding)
        if count > MOST_NESTED_TRIPS:
            at = f"at node {place.label!r}"
            raise InputError(
                f"[scan] expected loops in each other of at most {MOST_NESTED_TRIPS} trips, got {count}, {at}"
            )


def check_sizes(sizes: Sizes, binding: Mapping[str, int], most: int) -> None:
    """Raises InputError for a negative dim, OutOfMemory for a value of more than `most` bytes."""
    for shape, (itemsize, place) in sizes.items():
        extents = [dims.evaluate(d, binding) for d in shape]
        at = f"at node {place.label!r}"
        if any(n < 0 for n in extents):
            raise InputError(f"[{place.op}] expected dims that are not negative, got {extents}, {at}")
        size = math.prod(extents) * itemsize
        if size > most:
            expected = f"[{place.op}] expected a value of at most {most} bytes (RLX_VALUE_BYTES)"
            raise OutOfMemory(f"{expected}, got {size} for {extents}, {at}")


def most_bytes() -> int:
    """Of a value whose size the model or its inputs tell. It need not lie in memory, as kernels make many values on
    the fly; what is far larger than all memory, nobody waits for."""
    return flags.value_bytes() or TIMES_MEMORY * memory_bytes()
