"""Every error class that a user can meet. The message form is `[op] expected …, got …, at node <name>`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar


def did_you_mean(name: object, known: Iterable[str], most: int = 1) -> str:
    """A clause with the names that look like this one, in any case of letters; empty if none does."""
    from difflib import get_close_matches  # few programs need it

    by_small: dict[str, list[str]] = {}
    for each in known:
        by_small.setdefault(each.lower(), []).append(each)
    close = [each for small in get_close_matches(str(name).lower(), by_small, n=most) for each in by_small[small]][
        :most
    ]
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


class RlxError(Exception):
    """Base of all errors that rlx raises on purpose.

    code   stays the same from version to version; docs/errors.md has a section for each. Tracebacks end with it
    """

    code: ClassVar[str] = "RLX000"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.add_note(f"{self.code}: docs/errors.md tells what it can mean and what helps")


class ShapeError(RlxError, ValueError):
    """Shapes or ranks do not fit together."""

    code = "RLX101"


class DTypeError(RlxError, TypeError):
    """A dtype that the op does not admit, or dtypes that do not go together."""

    code = "RLX102"


class GraphError(RlxError, ValueError):
    """A graph that breaks a rule of the IR (`ir/verify.py` is the list of rules)."""

    code = "RLX103"


class TracerError(GraphError):
    """Python or NumPy asked a value of a graph for its numbers, which are known only when the graph runs; the message
    names the line, and the function that does the same in a graph."""

    code = "RLX104"


class ModelError(RlxError, ValueError):
    """A model file that is damaged, hostile, or says something that its format forbids."""

    code = "RLX201"


class UnsupportedOp(RlxError, NotImplementedError):
    """Nodes that an importer or a device cannot take; the message names all of them at once."""

    code = "RLX202"


class InputError(RlxError, ValueError):
    """The arrays handed to `run` do not fit the graph's inputs: names, ranks, dims or dtypes."""

    code = "RLX301"


class RunTimeout(RlxError, TimeoutError):
    """A run took longer than its `timeout`, and was ended. Nothing that stays between runs has changed."""

    code = "RLX302"


class RunCancelled(RlxError):
    """A run was ended by its CancelToken. Nothing that stays between runs has changed."""

    code = "RLX303"


class ClosedError(RlxError, ValueError):
    """A program that was closed was asked for something."""

    code = "RLX304"


class FlagError(RlxError, ValueError):
    """An `RLX_*` variable holds a value that it does not admit."""

    code = "RLX401"


class OptionError(RlxError, ValueError):
    """An option names something that there is not: a pass, an op, a policy."""

    code = "RLX402"


class ArgumentError(OptionError, TypeError):
    """An argument of another kind than what the function takes."""

    code = "RLX403"


class CompileError(RlxError, RuntimeError):
    """Code generation failed; the graph was accepted, so this is a defect of rlx."""

    code = "RLX601"


class ProfileError(RlxError, RuntimeError):
    """A program was asked for times that it does not keep."""

    code = "RLX305"


class CapabilityError(RlxError, NotImplementedError):
    """A program was asked for what its backend cannot do (`CompiledGraph.capabilities` tells what it can)."""

    code = "RLX306"


class DeviceUnavailable(RlxError, RuntimeError):
    """The device asked for is not on this machine, or not admitted by the policy; the message says why and what is."""

    code = "RLX501"


class MissingExtra(DeviceUnavailable, ImportError):
    """A feature needs a package that is not installed; the message has the command that installs it."""

    code = "RLX502"


class OutOfMemory(RlxError, MemoryError):
    """A buffer does not fit into the device's memory."""

    code = "RLX503"


class DriverError(RlxError, RuntimeError):
    """A driver, or the library that speaks with it, failed in a run; the message has its words."""

    code = "RLX504"


class DeviceLost(DriverError):
    """The device stopped answering while it worked."""

    code = "RLX505"


class StateLost(DeviceLost):
    """Handles or states (`names`) were on a device that failed and does not give them any more. Runs raise this until
    each has a value again (`bind_handle`)."""

    code = "RLX506"

    def __init__(self, device: str, names: list[str], reason: str) -> None:
        self.device = device
        self.names = names
        self.reason = reason
        super().__init__(
            f"[state] expected {', '.join(map(repr, names))} from {device} for the next run, got none: {reason}; "
            f"bind_handle gives new values"
        )

    def __reduce__(self) -> tuple[type[StateLost], tuple[str, list[str], str]]:
        return StateLost, (self.device, self.names, self.reason)


OF_CALLERS = (
    ShapeError, DTypeError, GraphError, ModelError, InputError, FlagError, OptionError, RunTimeout, RunCancelled,
    ClosedError,
)  # fmt: skip
"""What no other device would do better: the caller asked for something wrong, or wanted no more."""


class FallbackError(RlxError, RuntimeError):
    """No device of a chain ran a graph. `attempts` are (device, error) in the order in which they were tried."""

    code = "RLX507"

    def __init__(self, graph: str, attempts: list[tuple[str, Exception]]) -> None:
        self.attempts = attempts
        lines = "".join(f"\n  {device}: {error}" for device, error in attempts) or " an empty chain"
        super().__init__(f"[device] expected a device of the chain to run the graph {graph!r}, none did:{lines}")
        self.graph = graph

    def __reduce__(self) -> tuple[type[FallbackError], tuple[str, list[tuple[str, Exception]]]]:
        return FallbackError, (self.graph, self.attempts)
