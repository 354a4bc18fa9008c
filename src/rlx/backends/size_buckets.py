"""Few programs for all sizes, where a library compiles each size on its own: arrays are padded up to a bucket.

The first sizes that a program is bound for are compiled as they are: who has one size pays for no masks. A dim that
comes with another size *varies*: from then on it has the sizes of a ladder, and the graph is the one that
`passes.padding` makes for dims that vary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx import locks
from rlx.backends.executable import Bound, KernelTime, deliver, shapes_at
from rlx.backends.memory import DeviceArray, FrontArray, Where, on_host
from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.padding import Parts
from rlx.ir.symbols import symbols_within
from rlx.passes.padding import PaddedGraph, padded, reasons_of

STEP = 8
"""What buckets above `SMALL` are multiples of."""
SMALL = 16
STEPS = (STEP, 32, 128)
"""What they are multiples of where others do not fit: nets that halve an image five times want all of 32."""


def bucket(size: int) -> int:
    """The least size of the ladder that is no smaller: a power of √2, of larger ones the next multiple of `STEP`."""
    if size <= 1:
        return size
    power = (size - 1).bit_length()
    return next(rung for rung in (_rung(2 * power - 2), _rung(2 * power - 1), _rung(2 * power)) if rung >= size)


def _rung(half: int) -> int:
    """2 to the power of half of this, rounded."""
    whole = 1 << half // 2 if half % 2 == 0 else round(2 ** (half / 2))
    return whole if whole <= SMALL else -(-whole // STEP) * STEP


def rungs(most: int) -> int:
    """How many buckets there are up to a size."""
    return len({bucket(n) for n in range(1, most + 1)})


class SizeBuckets:
    """Which program serves which sizes of a graph. Clones share one. Safe to use from many threads."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._names = symbols_within(graph.nodes)
        self._first: dict[str, int] | None = None
        self._varying: frozenset[str] = frozenset()
        self._made: dict[frozenset[str], PaddedGraph | None] = {}
        self._reasons: dict[str, str] | None = None
        self._lock = locks.lock()

    @property
    def is_whole(self) -> bool:
        """Whether all dims may be padded."""
        return not self.describe()["dims_compiled_each"]

    def program_at(self, binding: Mapping[str, int]) -> tuple[PaddedGraph, dict[str, int]] | None:
        """The padded graph for these sizes and the sizes of its arrays; None if they are compiled as they are."""
        own = {name: n for name, n in binding.items() if name in self._names}
        with self._lock:
            if self._first is None:
                self._first = own
            if self._first == own:
                return None
            self._varying |= {name for name, n in own.items() if self._first.get(name) != n}
            program = self._padded(self._varying)
        if program is None or any(binding[name] < 1 for name in program.symbols):
            return None
        for step in STEPS:
            sizes = {n: self._size(n, size, step) if n in program.symbols else size for n, size in binding.items()}
            self._follow(program, sizes, binding)
            inner = _within(program.graph)
            if _fits(program.graph, sizes) and all(_fits(g, sizes) == _fits(g, binding) for g in inner):
                return program, sizes
        return None  # dims that hang together have buckets that do not

    def program_of(self, binding: Mapping[str, int]) -> tuple[frozenset[str], tuple[tuple[str, int], ...]]:
        """What tells the programs of sizes apart."""
        found = self.program_at(binding)
        symbols, sizes = (frozenset[str](), binding) if found is None else (found[0].symbols, found[1])
        return symbols, tuple(sorted(sizes.items()))

    def _size(self, name: str, size: int, step: int) -> int:
        """The bucket of a dim, larger ones as multiples of a step."""
        room, most = bucket(size), self.graph.bounds.get(name, (0, None))[1]
        room = -(-room // step) * step if room > SMALL else room
        return room if most is None else min(room, most)

    def _follow(self, program: PaddedGraph, sizes: dict[str, int], binding: Mapping[str, int]) -> None:
        """Gives dims that equal what others come to, as a mask's length that of a cache and a token, their sizes."""
        for equality in self.graph.equalities:
            for dim, other in ((equality.left, equality.right), (equality.right, equality.left)):
                name = str(dim)
                if name in program.symbols and name not in dims.symbols(other):
                    sizes[name] = max(dims.evaluate(other, sizes), binding[name])

    def _padded(self, symbols: frozenset[str]) -> PaddedGraph | None:
        if symbols not in self._made:
            self._made[symbols] = padded(self.graph, symbols)
        return self._made[symbols]

    def describe(self) -> dict[str, Any]:
        """Which dims may be padded, with how many buckets there are up to their bound, and of the others why not."""
        names = self._names
        if self._reasons is None:
            self._reasons = reasons_of(self.graph, names)
        most = {name: self.graph.bounds.get(name, (0, None))[1] for name in sorted(names - self._reasons.keys())}
        padded_dims = {name: None if bound is None else rungs(bound) for name, bound in most.items()}
        return {"padded_dims": padded_dims, "dims_compiled_each": dict(self._reasons)}


def _fits(graph: Graph, binding: Mapping[str, int]) -> bool:
    try:
        graph.bind(binding)
    except ShapeError:
        return False
    return True


def _within(graph: Graph) -> Iterator[Graph]:
    """The regions of a graph, at any depth: those of a conditional may fit at some sizes only."""
    for region in (region for node in graph.nodes for region in node.regions):
        yield region
        yield from _within(region)


class PaddedBound(Bound):
    """A program at the sizes of a bucket, for runs at one size in it.

    inner   takes padded arrays and then the numbers of the run, and gives results with padding
    put     a copy of an array where results that are wanted on the device lie
    """

    def __init__(
        self,
        inner: Bound,
        put: Callable[[Array], Array | DeviceArray],
        program: PaddedGraph,
        binding: Mapping[str, int],
        sizes: Mapping[str, int],
    ) -> None:
        self.inner = inner
        self.put = put
        inputs = program.graph.inputs[: len(program.graph.inputs) - len(program.sizes)]
        self.numbers = [np.array(dims.evaluate(d, binding), np.int64) for d in program.sizes]
        self.whole = shapes_at((value.type for value in inputs), sizes) or ()
        outputs = list(program.graph.outputs.values())
        types = [value.type for value in outputs]
        self.shapes = shapes_at(types, binding)
        self.is_front = [all(len(parts) <= 1 for parts in axes) for axes in program.axes]
        self.is_whole = [whole == shape for whole, shape in zip(shapes_at(types, sizes) or (), self.shapes or ())]
        self.cuts = [
            [_cut(parts or (d,), binding, sizes) for parts, d in zip(axes, value.shape)]
            for axes, value in zip(program.axes, outputs)
        ]

    @property
    def nbytes(self) -> int:  # type: ignore[override]  # of a program that others have too
        return self.inner.nbytes

    def __call__(self, inputs: Sequence[Any], out: Sequence[Array | None] | None = None) -> list[Array]:
        results = self.inner(self._padded(inputs))
        return deliver([r if self.is_whole[at] else self._front(r, at) for at, r in enumerate(results)], out)

    def deliver_to(
        self, where: Sequence[Where], inputs: Sequence[Any], out: Sequence[Array | None] | None = None
    ) -> list[Any]:
        """Results that are wanted on the device stay there with their padding; one whose padding does not lie behind
        what counts goes through the host."""
        moved = [place == "device" and not front for place, front in zip(where, self.is_front)]
        there: list[Where] = ["host" if moves else place for place, moves in zip(where, moved)]
        results = self.inner.deliver_to(there, self._padded(inputs))
        delivered: list[Any] = [
            r if r is None or whole else self._on_device(r, at) if isinstance(r, DeviceArray) else self._front(r, at)
            for at, (r, whole) in enumerate(zip(results, self.is_whole))
        ]
        delivered = [self.put(r) if moves else r for r, moves in zip(delivered, moved)]
        return delivered if out is None else deliver(delivered, out)

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        return self.inner.profile(self._padded(inputs))

    def _padded(self, inputs: Sequence[Array | DeviceArray]) -> list[Any]:
        padded_inputs: list[Any] = []
        for array, shape in zip(inputs, self.whole):
            if isinstance(array, FrontArray) and array.whole.shape == shape:
                array = array.whole
            elif tuple(array.shape) != shape:
                (held,) = on_host([array])
                array = np.zeros(shape, held.dtype)
                array[tuple(slice(n) for n in held.shape)] = held
            padded_inputs.append(array)
        return [*padded_inputs, *self.numbers]

    def _on_device(self, result: DeviceArray, at: int) -> FrontArray:
        assert self.shapes is not None  # all dims of a binding have a size
        return FrontArray(result, self.shapes[at])

    def _front(self, result: Array, at: int) -> Array:
        """What counts of a result, in an array of its own."""
        assert self.shapes is not None  # all dims of a binding have a size
        split = result.reshape([n for parts in self.cuts[at] for n, _ in parts])
        kept = split[tuple(slice(n) for parts in self.cuts[at] for _, n in parts)]
        return np.ascontiguousarray(kept).reshape(self.shapes[at])


def _cut(parts: Parts, binding: Mapping[str, int], sizes: Mapping[str, int]) -> list[tuple[int, int]]:
    """Of each part of an axis, how long it is and how much of it counts."""
    return [(dims.evaluate(d, sizes), dims.evaluate(d, binding)) for d in parts]
