"""What is looked at around a program: sizes before it runs, and behind it what data of the run had to be.

Its last result tells that (`passes/checks.py`). Backends see only sizes that are none too large and not negative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rlx import flags
from rlx.backends.base import Backend, Options
from rlx.backends.checked import with_checks
from rlx.backends.executable import Executable
from rlx.backends.failures import memory_bytes
from rlx.errors import InputError, OutOfMemory
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Node
from rlx.ops.control import Scan
from rlx.passes.checks import Checked, add_checks
from rlx.passes.state import guarded

TIMES_MEMORY = 16
MOST_NESTED_TRIPS = 1 << 26


Sizes = Mapping[tuple[Dim, ...], tuple[int, Node]]


def compile_checked(graph: Graph, backend: Backend, options: Options, ordinal: int) -> Executable:
    """The executable of a graph without measured dims. Raises UnsupportedOp, DeviceUnavailable, CompileError, and
    OutOfMemory for a value that no machine of this size holds."""
    Demands(graph).check()
    if not backend.tells_checks:
        return backend.compile(guarded(Checked(graph, ()), False).graph, options, ordinal)
    program = guarded(add_checks(graph, options.check_indices, most_trips(backend)), backend.writes_states)
    return with_checks(backend.compile(program.graph, options, ordinal), program.checks)


def sizes(graph: Graph, largest: dict[tuple[Dim, ...], tuple[int, Node]] | None = None) -> Sizes:
    """Shapes of a graph and its regions, each with the bytes of its widest element and a node that makes it."""
    largest = {} if largest is None else largest
    for node in graph.nodes:
        for of in node.types:
            if of.dtype.itemsize > largest.get(of.shape, (0, node))[0]:
                largest[of.shape] = (of.dtype.itemsize, node)
        for region in node.regions:
            sizes(region, largest)
    return largest


def most_trips(backend: Backend) -> int:
    """That loops which data end may take in a run."""
    return flags.loop_trips() or backend.loop_trips


class Demands:
    """What is asked of the machine by a graph: sizes of values, and trips of loops in each other."""

    def __init__(self, graph: Graph) -> None:
        by_shape = sizes(graph)
        known = set(graph.symbols)
        loops = [(trips, node) for trips, node in nested_trips(graph) if dims.symbols(trips) <= known]
        self.fixed = {shape: of for shape, of in by_shape.items() if all(isinstance(d, int) for d in shape)}
        self.open = {
            shape: of
            for shape, of in by_shape.items()
            if shape not in self.fixed and all(dims.symbols(d) <= known for d in shape)
        }
        self.fixed_trips = [(trips, node) for trips, node in loops if isinstance(trips, int)]
        self.open_trips = [(trips, node) for trips, node in loops if not isinstance(trips, int)]

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
        values = [(math.prod(dims.evaluate(d, binding) for d in shape) * of[0], shape, of[1]) for shape, of in known]
        size, shape, node = max(values, key=lambda each: each[0])
        extents = [dims.evaluate(d, binding) for d in shape]
        return f"the largest value is of {size} bytes, {extents}, at node {(node.source or node.name)!r}"


def _known(shape: tuple[Dim, ...], binding: Mapping[str, int]) -> bool:
    return all(dims.symbols(d) <= binding.keys() for d in shape)


def nested_trips(graph: Graph, around: Dim = 0) -> Iterator[tuple[Dim, Node]]:
    """Trips of each loop of known length that lies in others, together with those."""
    for node in graph.nodes:
        inside = around
        if isinstance(node.op, Scan):
            inside = node.op.length if around == 0 else dims.mul(around, node.op.length)
            if around != 0:
                yield inside, node
        for region in node.regions:
            yield from nested_trips(region, inside)


def _check_trips(loops: Sequence[tuple[Dim, Node]], binding: Mapping[str, int]) -> None:
    for trips, node in loops:
        count = dims.evaluate(trips, binding)
        if count > MOST_NESTED_TRIPS:
            at = f"at node {(node.source or node.name)!r}"
            raise InputError(
                f"[scan] expected loops in each other of at most {MOST_NESTED_TRIPS} trips, got {count}, {at}"
            )


def check_sizes(sizes: Sizes, binding: Mapping[str, int], most: int) -> None:
    """Raises InputError for a negative dim, OutOfMemory for a value of more than `most` bytes."""
    for shape, (itemsize, node) in sizes.items():
        extents = [dims.evaluate(d, binding) for d in shape]
        at = f"at node {(node.source or node.name)!r}"
        if any(n < 0 for n in extents):
            raise InputError(f"[{node.op.name}] expected dims that are not negative, got {extents}, {at}")
        size = math.prod(extents) * itemsize
        if size > most:
            limit = f"[{node.op.name}] expected a value of at most {most} bytes (RLX_VALUE_BYTES)"
            raise OutOfMemory(f"{limit}, got {size} for {extents}, {at}")


def most_bytes() -> int:
    """Of a value whose size the model or its inputs tell. It need not lie in memory, as kernels make many values on
    the fly; what is far larger than all memory, nobody waits for."""
    return flags.value_bytes() or TIMES_MEMORY * memory_bytes()
