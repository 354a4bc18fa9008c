"""What a compiled graph keeps from run to run: inputs with values of their own, results that go back into them, and how
far along a dim its inputs count. A `Mode` is never changed; a run sees one from its start to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rlx.errors import InputError
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.type import TensorType


class Observer(Protocol):
    """Who wants to see values of runs that are no results."""

    @property
    def watched(self) -> Mapping[str, Value]:
        """Values of the graph, by names that no output has."""
        ...

    def see(self, arrays: Sequence[Array]) -> None:
        """What they were in a run, in order."""
        ...


@dataclass(frozen=True)
class Mode:
    """handles   arrays of inputs that callers may leave out, read-only
    feeds     output → the input whose handle it becomes after a run
    extents   dim → how many entries along it count
    observers who sees other values of the runs
    """

    handles: Mapping[str, Array] = field(default_factory=dict)
    feeds: Mapping[str, str] = field(default_factory=dict)
    extents: Mapping[str, int] = field(default_factory=dict)
    observers: tuple[Observer, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.handles or self.feeds or self.extents or self.observers)

    def unobserved(self) -> Mode:
        """The same, but that nobody watches."""
        return replace(self, observers=())

    def merge(self, inputs: Mapping[str, Any] | Sequence[Any], names: Sequence[str]) -> Any:
        """Inputs of a call with handles where it brings none; by position come all, or those without a handle.

        What does not fit is left for the signature to refuse.
        """
        if isinstance(inputs, Mapping):
            return {**self.handles, **inputs}
        open_ = [name for name in names if name not in self.handles]
        if isinstance(inputs, (list, tuple)) and len(inputs) == len(open_):
            return {**self.handles, **dict(zip(open_, inputs))}
        return inputs

    def fed(self, results: Mapping[str, Array], copy: bool) -> dict[str, Array]:
        """The handles after a run. Fed results become read-only: they are the state from now on.

        copy   the results lie in arrays of the caller, which may write to them
        """
        handles = dict(self.handles)
        for output, name in self.feeds.items():
            value = results[output].copy() if copy else results[output]
            value.flags.writeable = False
            handles[name] = value
        return handles


PLAIN = Mode()
"""Nothing is kept: the mode of nearly all programs, told by identity."""


def check_feeds(graph: Graph, feeds: Mapping[str, str], handles: Mapping[str, Array]) -> None:
    """Raises InputError for a feed of unknown names, without a handle, or from a type that the input does not take."""
    inputs = {value.name: value.type for value in graph.inputs}
    for output, name in feeds.items():
        if output not in graph.outputs:
            raise InputError(f"[set_feeds] expected outputs among {list(graph.outputs)}, got {output!r}")
        if name not in inputs:
            raise InputError(f"[set_feeds] expected inputs among {list(inputs)}, got {name!r}")
        if name not in handles:
            raise InputError(f"[set_feeds] expected a handle of input {name!r}, got none: bind_handle gives it a value")
        given, taken = graph.outputs[output].type, inputs[name]
        if not _flows(given, taken):
            raise InputError(f"[set_feeds] expected {taken} for input {name!r}, got output {output!r} of {given}")
    doubled = {name for name in feeds.values() if list(feeds.values()).count(name) > 1}
    if doubled:
        raise InputError(f"[set_feeds] expected one output for each input, got several for {sorted(doubled)}")


def _flows(given: TensorType, taken: TensorType) -> bool:
    """Whether every value of one type has the other; a dim with a name takes any extent."""
    if given.dtype is not taken.dtype or given.rank != taken.rank:
        return False
    return all(to == of or not isinstance(to, int) for of, to in zip(given.shape, taken.shape))
