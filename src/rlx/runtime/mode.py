"""What a compiled graph keeps from run to run: handles (inputs with persistent values), feeds (results that go back
into inputs), and active extents. A `Mode` is immutable; a run sees one mode from start to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol

from rlx.backends.memory import DeviceArray
from rlx.errors import InputError, did_you_mean
from rlx.ir.literal import Array
from rlx.records import dataclass
from rlx.runtime.interface import Interface

if TYPE_CHECKING:
    from rlx.ir.graph import Value
    from rlx.passes.held_experts import Budget

Kept = Array | DeviceArray
"""What stays between runs: on the device where that has memory of its own."""


class Observer(Protocol):
    """Sees values of runs that are not results."""

    @property
    def watched(self) -> Mapping[str, Value]:
        """Values of the graph, by names that no output has."""
        ...

    @property
    def budget(self) -> Budget | None:
        """How many experts are to be on the device where it can hold some only; None is as compiled."""
        ...

    def see(self, arrays: Sequence[Array]) -> None:
        """What they were in a run, in order."""
        ...


@dataclass(frozen=True)
class Mode:
    """handles   arrays of inputs that callers may leave out, read-only
    feeds     output → the input whose handle it becomes after a run
    extents   dim → how many entries along it count
    states    arrays of the program's states. Runs write into them: whoever gives one away gives a copy
    observers who sees other values of the runs
    away      the rest is with another program of the graph, and is brought before the next run (`shared_state.py`)
    """

    handles: Mapping[str, Kept] = field(default_factory=dict)
    feeds: Mapping[str, str] = field(default_factory=dict)
    extents: Mapping[str, int] = field(default_factory=dict)
    observers: tuple[Observer, ...] = ()
    states: Mapping[str, Kept] = field(default_factory=dict)
    away: bool = False

    def __bool__(self) -> bool:
        return bool(self.handles or self.feeds or self.extents or self.observers or self.states or self.away)

    def copied(self) -> Mode:
        """The same with arrays of states of its own."""
        return replace(self, states={name: array.copy() for name, array in self.states.items()})

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

    def fed(self, results: Mapping[str, Kept], copy: bool) -> dict[str, Kept]:
        """The handles after a run. Fed results become read-only: they are the state from now on.

        copy   the results lie in arrays of the caller, which may write to them
        """
        handles = dict(self.handles)
        for output, name in self.feeds.items():
            value = results[output]
            if not isinstance(value, DeviceArray):
                value = value.copy() if copy else value
                value.flags.writeable = False
            handles[name] = value
        return handles


PLAIN = Mode()
"""Nothing is kept: the mode of nearly all programs, told by identity."""


def check_feeds(interface: Interface, feeds: Mapping[str, str], handles: Mapping[str, Kept]) -> None:
    """Raises InputError for a feed of unknown names, without a handle, or from a type that the input does not take."""
    inputs = {name: of for name, of in interface.inputs.items() if name not in interface.states}
    results = interface.results
    for output, name in feeds.items():
        if output not in results:
            near = did_you_mean(output, results)
            raise InputError(f"[set_feeds] expected outputs among {list(results)}, got {output!r}{near}")
        if name not in inputs:
            near = did_you_mean(name, inputs)
            raise InputError(f"[set_feeds] expected inputs among {list(inputs)}, got {name!r}{near}")
        if name not in handles:
            raise InputError(f"[set_feeds] expected a handle of input {name!r}, got none: bind_handle gives it a value")
        output_type, input_type = results[output], inputs[name]
        if not output_type.flows_into(input_type):
            raise InputError(
                f"[set_feeds] expected {input_type} for input {name!r}, got output {output!r} of {output_type}"
            )
    doubled = {name for name in feeds.values() if list(feeds.values()).count(name) > 1}
    if doubled:
        raise InputError(f"[set_feeds] expected one output for each input, got several for {sorted(doubled)}")
