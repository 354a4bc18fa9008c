"""What is looked at around a program: sizes before it runs, and behind it what data of the run had to be.

Its last result tells that (`passes/checks.py`). Backends see only sizes that are none too large and not negative.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx import flags
from rlx.backends.base import Backend, Bound, Capabilities, Executable, KernelTime, Options
from rlx.errors import InputError, OutOfMemory
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Graph, Node
from rlx.ir.literal import Array
from rlx.ops.control import Scan
from rlx.passes.checks import Check, add_checks

TIMES_MEMORY = 16
MOST_NESTED_TRIPS = 1 << 26
FEW = 16  # numbers that are compared one by one: what NumPy does with so few takes longer


Sizes = Mapping[tuple[Dim, ...], tuple[int, Node]]


def compile_checked(graph: Graph, backend: Backend, options: Options, ordinal: int) -> Executable:
    """The executable of a graph without measured dims. Raises UnsupportedOp, DeviceUnavailable, CompileError, and
    OutOfMemory for a value that no machine of this size holds."""
    Demands(graph).check()
    made = add_checks(graph, options.check_indices, most_trips(backend))
    return with_checks(backend.compile(made.graph, options, ordinal), made.checks)


def sizes(graph: Graph, found: dict[tuple[Dim, ...], tuple[int, Node]] | None = None) -> Sizes:
    """Shapes of a graph and its regions, each with the bytes of its widest element and a node that makes it."""
    found = {} if found is None else found
    for node in graph.nodes:
        for of in node.types:
            if of.dtype.itemsize > found.get(of.shape, (0, node))[0]:
                found[of.shape] = (of.dtype.itemsize, node)
        for region in node.regions:
            sizes(region, found)
    return found


def most_trips(backend: Backend) -> int:
    """That loops which data end may take in a run."""
    return flags.loop_trips() or backend.loop_trips


class Demands:
    """What is asked of the machine by a graph: sizes of values, and trips of loops in each other."""

    def __init__(self, graph: Graph) -> None:
        found = sizes(graph)
        known = set(graph.symbols)
        loops = [(trips, node) for trips, node in nested_trips(graph) if dims.symbols(trips) <= known]
        self.fixed = {shape: of for shape, of in found.items() if all(isinstance(d, int) for d in shape)}
        self.open = {
            shape: of
            for shape, of in found.items()
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
            raise InputError(f"[scan] expected loops in each other of at most {MOST_NESTED_TRIPS} trips, got {count}, {at}")


def check_sizes(sizes: Sizes, binding: Mapping[str, int], most: int) -> None:
    """Raises InputError for a negative dim, OutOfMemory for a value of more than `most` bytes."""
    for shape, (itemsize, node) in sizes.items():
        extents = [dims.evaluate(d, binding) for d in shape]
        at = f"at node {(node.source or node.name)!r}"
        if any(n < 0 for n in extents):
            raise InputError(f"[{node.op.name}] expected dims that are not negative, got {extents}, {at}")
        size = math.prod(extents) * itemsize
        if size > most:
            wanted = f"[{node.op.name}] expected a value of at most {most} bytes (RLX_VALUE_BYTES)"
            raise OutOfMemory(f"{wanted}, got {size} for {extents}, {at}")


def most_bytes() -> int:
    """Of a value whose size the model or its inputs tell. It need not lie in memory, as kernels make many values on
    the fly; what is far larger than all memory, nobody waits for."""
    return flags.value_bytes() or TIMES_MEMORY * memory_bytes()


def memory_bytes() -> int:
    """Bytes of the machine's memory; where the system does not say, as much as counts as none too many."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 36


def with_checks(executable: Executable, checks: Sequence[Check]) -> Executable:
    """An executable of a graph with checks, as one of the graph without them."""
    return CheckedExecutable(executable, tuple(checks)) if checks else executable


class CheckedExecutable(Executable):
    """The program, and the checks of its last result. Runs that fail them fail as a whole."""

    def __init__(self, inner: Executable, checks: tuple[Check, ...]) -> None:
        self.inner = inner
        self.checks = checks
        self.compile_ns = inner.compile_ns
        self.from_cache = inner.from_cache

    @property
    def compile_count(self) -> int:  # type: ignore[override]  # it may grow with every size
        return self.inner.compile_count

    def set_params(self, params: Mapping[str, Array]) -> None:
        self.inner.set_params(params)

    def bind(self, binding: Mapping[str, int]) -> Bound:
        return _CheckedBound(self.inner.bind(binding), self.checks, binding)

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    @property
    def weight_bytes(self) -> int:
        return self.inner.weight_bytes

    def clone(self, weights: bool = True) -> CheckedExecutable:
        return CheckedExecutable(self.inner.clone(weights), self.checks)

    def code(self) -> bytes:
        return self.inner.code()

    def write_package(self, path: str | os.PathLike[str], sizes: Mapping[str, int]) -> None:
        self.inner.write_package(path, sizes)

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), "checks": len(self.checks)}


class _CheckedBound(Bound):
    """A bound whose last result is looked at and kept back."""

    def __init__(self, inner: Bound, checks: tuple[Check, ...], binding: Mapping[str, int]) -> None:
        self.inner = inner
        self.checks = checks
        self.shapes = None if inner.shapes is None else inner.shapes[:-1]
        self._ends = [(dims.evaluate(c.low, binding), dims.evaluate(c.high, binding)) for c in checks]
        # -1 - n ≤ -1 - low, and n ≤ high - 1
        self._most = [end for low, high in self._ends for end in (-1 - low, high - 1)]
        self._limits = np.array([min(max(end, _LEAST), _MOST) for end in self._most], np.int64)

    @property
    def nbytes(self) -> int:  # type: ignore[override]  # it may grow
        return self.inner.nbytes

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array] | None = None) -> list[Array]:
        if out is None:
            results = self.inner(inputs)
        else:
            results = self.inner(inputs, [*out, np.empty(len(self._most), np.int64)])
        numbers = results.pop()
        if len(self._most) > FEW:
            if (numbers > self._limits).any():
                self._fail(numbers.tolist())
        else:
            for number, most in zip(numbers.tolist(), self._most):
                if number > most:
                    self._fail(numbers.tolist())
        return results

    def _fail(self, numbers: list[int]) -> None:
        """Raises InputError for the first check that does not hold."""
        for i, (check, (low, high)) in enumerate(zip(self.checks, self._ends)):
            least, most = -1 - numbers[2 * i], numbers[2 * i + 1]
            if most >= high or least < low:
                raise check.words.error(low, high, most if most >= high else least)

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        return self.inner.profile(inputs)


_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
