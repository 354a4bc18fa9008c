"""What backends share that hand a graph to a library op by op: a table of functions, and weights as arguments."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from rlx.backends.base import Capabilities, Executable
from rlx.errors import InputError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array

Lower = Callable[..., Any]


class Table(dict[str, Lower]):
    """By the name of an op: a function of the op, with numbers for dims, and of values of the library."""

    def lowers(self, *names: str) -> Callable[[Lower], Lower]:
        """Decorates the function of these ops."""

        def add(function: Lower) -> Lower:
            self.update(dict.fromkeys(names, function))
            return function

        return add


class WeightsAsArguments(Executable):
    """Weights are arguments of the program: setting others compiles nothing. Every size is a program of its own."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.compile_count = 0
        self._lock = threading.Lock()
        self._params: dict[str, Array] = {}
        self._weights: dict[str, Any] | None = None

    @abstractmethod
    def upload(self, params: Mapping[str, Array]) -> dict[str, Any]:
        """The arrays as values of the library."""

    def set_params(self, params: Mapping[str, Array]) -> None:
        with self._lock:
            self._params = {**self._params, **params}
            self._weights = None

    def params(self) -> dict[str, Array]:
        """The arrays that weights were set to."""
        with self._lock:
            return dict(self._params)

    def weights(self) -> dict[str, Any]:
        """The weights as values of the library, uploaded once. Raises InputError if one is missing."""
        with self._lock:
            if self._weights is None:
                missing = [v.name for v in self.graph.params if v.name not in self._params]
                if missing:
                    raise InputError(f"[run] expected params to be set, got none for {', '.join(missing)}")
                self._weights = self.upload(self._params)
            return self._weights

    @property
    def capabilities(self) -> Capabilities:
        """A new size, an active extent too, would be a new program."""
        return Capabilities(dynamic_dims=False, active_extent=False)
