"""Code shared by backends that hand a graph to a library op by op: a table of functions, and weights as arguments."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np

from rlx import flags, locks
from rlx.backends.executable import Bound, Capabilities, Executable
from rlx.backends.size_buckets import PaddedBound, SizeBuckets
from rlx.errors import InputError
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import LEAVES
from rlx.ops.control import If, Scan
from rlx.ops.writing import written_in_place
from rlx.passes import prepare
from rlx.records import dataclass

Lower = Callable[..., Any]


class Table(dict[str, Lower]):
    """By the name of an op: a function of the op, with numbers for dims, and of values of the library."""

    def lowers(self, *names: str) -> Callable[[Lower], Lower]:
        """Decorates the function of these ops."""

        def add(function: Lower) -> Lower:
            self.update(dict.fromkeys(names, function))
            return function

        return add


def calls(graph: Graph, binding: Mapping[str, int]) -> float:
    """How many functions of the library a run calls for a graph that is made ready: those of bodies as often as these
    run, and half of those of a conditional. Loops that data end count once."""
    total = 0.0
    for node in graph.nodes:
        if isinstance(node.op, LEAVES):
            continue
        inner = sum(calls(region, binding) for region in node.regions)
        if isinstance(node.op, Scan):
            inner *= dims.evaluate(node.op.length, binding)
        elif isinstance(node.op, If):
            inner /= 2
        total += 1 + inner
    return total


Size = tuple[tuple[str, ...], tuple[tuple[str, int], ...]]
"""Dims that may be padded, and the sizes of arrays."""


@dataclass(eq=False)
class Shared:
    """A program of the library at some size, which bounds of several executables may hold."""

    program: Any


def written_outputs(graph: Graph) -> dict[int, int]:
    """Outputs that take the memory of a state, by their places: the place of that among the inputs."""
    names, outputs = [v.name for v in graph.inputs], list(graph.outputs)
    return {outputs.index(graph.states[name]): names.index(name) for name in written_in_place(graph)}


class WeightsAsArguments(Executable):
    """Weights are arguments of the program: setting others compiles nothing. Every size is a program of its own, or
    those of a bucket have one.

    preparing   what weights alone decide is computed by these when they are set, and is weights to `graph`
    programs    those that bounds hold, by size and by dims that may be padded, for clones to share
    buckets     which sizes share a program; None where that saves nothing
    written     outputs that take the memory of a state, by their places: the place of that among the inputs
    """

    def __init__(self, graph: Graph, in_buckets: bool) -> None:
        self.preparing, self.graph = prepare.split(graph)
        self._wanted = [v.name for v in graph.params]
        self.written = written_outputs(self.graph)
        self.compile_count = 0
        self.buckets = SizeBuckets(self.graph) if in_buckets and flags.size_buckets() else None
        self._lock = locks.lock()
        self.programs: WeakValueDictionary[Size, Shared] = WeakValueDictionary()
        self._params: dict[str, Array] = {}
        self._weights: dict[str, Any] | None = None
        self._reserved: frozenset[str] = frozenset()
        self._changed: set[str] = set()
        self._parts: dict[frozenset[str], tuple[Graph, ...]] = {}

    @abstractmethod
    def upload(self, params: Mapping[str, Array]) -> dict[str, Any]:
        """The arrays as values of the library."""

    @abstractmethod
    def compute(self, graph: Graph, weights: Mapping[str, Any]) -> Sequence[Any]:
        """The outputs of a graph that takes weights only."""

    @abstractmethod
    def bound(self, graph: Graph, binding: Mapping[str, int], padded: tuple[str, ...] = ()) -> Bound:
        """The graph, or that in which these dims are padded, at one size of its arrays."""

    @abstractmethod
    def with_part(self, whole: Any, part: Any, at: int) -> Any:
        """An array of the library with another element at a place of its first axis, in the same memory where that can
        be: nobody has the old one."""

    def bind(self, binding: Mapping[str, int]) -> Bound:
        found = self.buckets.program_at(binding) if self.buckets is not None else None
        if found is None:
            return self.bound(self.graph, binding)
        program, sizes = found
        inner = self.bound(program.graph, sizes, tuple(sorted(program.symbols)))
        return PaddedBound(inner, partial(self.put, ""), program, binding, sizes)

    def set_params(self, params: Mapping[str, Array]) -> None:
        with self._lock:
            self._params = {**self._params, **params}
            self._changed |= params.keys()

    def params(self) -> dict[str, Array]:
        """The arrays that weights were set to."""
        with self._lock:
            return dict(self._params)

    def weights(self) -> dict[str, Any]:
        """What `graph` takes, as values of the library: of weights that were set those alone are made anew.

        Raises InputError if a weight is missing.
        """
        with self._lock:
            if self._weights is None or self._changed:
                missing = [n for n in self._wanted if n not in self._params and n not in self._reserved]
                if missing:
                    raise InputError(f"[run] expected params to be set, got none for {', '.join(missing)}")
                known = self._weights or self._room()
                parts = self.preparing if self._weights is None else self._behind(frozenset(self._changed))
                names = {v.name for part in parts for v in part.params}
                names |= {v.name for v in self.graph.params if v.name in self._changed or v.name not in known}
                values = self.upload({name: a for name, a in self._params.items() if name in names})
                for part in parts:
                    values |= zip(part.outputs, self.compute(part, values))
                self._weights = {v.name: values.get(v.name, known.get(v.name)) for v in self.graph.params}
                self._changed = set()
            return self._weights

    def _room(self) -> dict[str, Any]:
        """Reserved weights, of zeros."""
        of = {v.name: v.type for v in self.graph.params if v.name in self._reserved}
        shapes = {name: tuple(dims.evaluate(d, {}) for d in each.shape) for name, each in of.items()}
        return self.upload({name: np.zeros(shapes[name], each.dtype.numpy) for name, each in of.items()})

    def reserve(self, name: str) -> bool:
        prepared = {v.name for part in self.preparing for v in part.params}
        if name in prepared or all(v.name != name for v in self.graph.params):
            return False
        self._reserved |= {name}
        return True

    def write_part(self, name: str, at: int, array: Array) -> None:
        weights = self.weights()
        with self._lock:
            part = self.upload({name: array})[name]
            weights[name] = self.with_part(weights.pop(name), part, at)

    def give_back(self) -> None:
        with self._lock:
            self._weights, self._changed = None, set(self._params)

    def _behind(self, changed: frozenset[str]) -> tuple[Graph, ...]:
        """Of `preparing` what hangs on these weights."""
        if changed not in self._parts:
            behind = [prepare.behind(part, changed) for part in self.preparing]
            self._parts[changed] = tuple(part for part in behind if part is not None)
        return self._parts[changed]

    def clone(self, weights: bool = True) -> Self:
        """Shares what was compiled, and the weights on the device until one of the two gets others."""
        with self._lock:
            clone = copy.copy(self)
            clone._lock = locks.lock()
            clone._changed = set(self._changed)
            if not weights:
                clone._params, clone._weights, clone._changed = {}, None, set()
            return clone

    def describe(self) -> dict[str, Any]:
        buckets = {} if self.buckets is None else self.buckets.describe()
        return {"written_in_place": [self.graph.inputs[at].name for at in self.written.values()], **buckets}

    @property
    def writes_states(self) -> bool:
        return bool(self.written)

    @property
    def capabilities(self) -> Capabilities:
        """A new size may be a new program."""
        return Capabilities(dynamic_dims=False, shared_code=True)
