"""What backends share that hand a graph to a library op by op: a table of functions, and weights as arguments."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakValueDictionary

from rlx import locks
from rlx.backends.executable import Capabilities, Executable
from rlx.errors import InputError
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import LEAVES
from rlx.ops.control import If, Scan
from rlx.passes import prepare

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


Binding = tuple[tuple[str, int], ...]


@dataclass(eq=False)
class Shared:
    """A program of the library at some size, which bounds of several executables may hold."""

    program: Any


class WeightsAsArguments(Executable):
    """Weights are arguments of the program: setting others compiles nothing. Every size is a program of its own.

    preparing   what weights alone decide is computed by these when they are set, and is weights to `graph`
    programs    those that bounds hold, by size, for clones to share
    """

    def __init__(self, graph: Graph) -> None:
        self.preparing, self.graph = prepare.split(graph)
        self._wanted = [v.name for v in graph.params]
        self.compile_count = 0
        self._lock = locks.lock()
        self.programs: WeakValueDictionary[Binding, Shared] = WeakValueDictionary()
        self._params: dict[str, Array] = {}
        self._weights: dict[str, Any] | None = None

    @abstractmethod
    def upload(self, params: Mapping[str, Array]) -> dict[str, Any]:
        """The arrays as values of the library."""

    @abstractmethod
    def compute(self, graph: Graph, weights: Mapping[str, Any]) -> Sequence[Any]:
        """The outputs of a graph that takes weights only."""

    def set_params(self, params: Mapping[str, Array]) -> None:
        with self._lock:
            self._params = {**self._params, **params}
            self._weights = None

    def params(self) -> dict[str, Array]:
        """The arrays that weights were set to."""
        with self._lock:
            return dict(self._params)

    def weights(self) -> dict[str, Any]:
        """What `graph` takes, as values of the library: made once. Raises InputError if a weight is missing."""
        with self._lock:
            if self._weights is None:
                missing = [name for name in self._wanted if name not in self._params]
                if missing:
                    raise InputError(f"[run] expected params to be set, got none for {', '.join(missing)}")
                values = self.upload(self._params)
                for part in self.preparing:
                    values |= zip(part.outputs, self.compute(part, values))
                self._weights = {v.name: values[v.name] for v in self.graph.params}
            return self._weights

    def clone(self, weights: bool = True) -> Self:
        made = copy.copy(self)
        with self._lock:
            made._lock = locks.lock()
            made._params = self._params if weights else {}
            made._weights = self._weights if weights else None  # replaced as a whole, never changed
        return made

    @property
    def capabilities(self) -> Capabilities:
        """A new size, an active extent too, would be a new program."""
        return Capabilities(dynamic_dims=False, active_extent=False, shared_code=True)
