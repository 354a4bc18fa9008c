"""Every error class that a user can meet. The message form is `[op] expected …, got …, at node <name>`."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    """A clause with the names that look like this one; empty if none does."""
    from difflib import get_close_matches  # few programs need it

    close = get_close_matches(name, list(known), n=most)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


class RlxError(Exception):
    """Base of all errors that rlx raises on purpose."""


class ShapeError(RlxError, ValueError):
    """Shapes or ranks do not fit together."""


class DTypeError(RlxError, TypeError):
    """A dtype that the op does not admit, or dtypes that do not go together."""


class GraphError(RlxError, ValueError):
    """A graph that breaks a rule of the IR (`ir/verify.py` is the list of rules)."""


class TracerError(GraphError):
    """Python or NumPy asked a value of a graph for its numbers, which are known only when the graph runs; the message
    names the line, and the function that does the same in a graph."""


class ModelError(RlxError, ValueError):
    """A model file that is damaged, hostile, or says something that its format forbids."""


class UnsupportedOp(RlxError, NotImplementedError):
    """Nodes that an importer or a device cannot take; the message names all of them at once."""


class InputError(RlxError, ValueError):
    """The arrays handed to `run` do not fit the graph's inputs: names, ranks, dims or dtypes."""


class RunTimeout(RlxError, TimeoutError):
    """A run took longer than its `timeout`, and was ended. Nothing that stays between runs has changed."""


class RunCancelled(RlxError):
    """A run was ended by its CancelToken. Nothing that stays between runs has changed."""


class ClosedError(RlxError, ValueError):
    """A program that was closed was asked for something."""


class FlagError(RlxError, ValueError):
    """An `RLX_*` variable holds a value that it does not admit."""


class OptionError(RlxError, ValueError):
    """An option names something that there is not: a pass, an op, a policy."""


class CompileError(RlxError, RuntimeError):
    """Code generation failed; the graph was accepted, so this is a defect of rlx."""


class ProfileError(RlxError, RuntimeError):
    """A program was asked for times that it does not keep."""


class CapabilityError(RlxError, NotImplementedError):
    """A program was asked for what its backend cannot do (`CompiledGraph.capabilities` tells what it can)."""


class DeviceUnavailable(RlxError, RuntimeError):
    """The device asked for is not on this machine, or not admitted by the policy; the message says why and what is."""


class MissingExtra(DeviceUnavailable, ImportError):
    """A feature needs a package that is not installed; the message has the command that installs it."""


class OutOfMemory(RlxError, MemoryError):
    """A buffer does not fit into the device's memory."""


class DriverError(RlxError, RuntimeError):
    """A driver, or the library that speaks with it, failed in a run; the message has its words."""


class DeviceLost(DriverError):
    """The device stopped answering while it worked."""


class StateLost(DeviceLost):
    """Handles or states (`names`) were on a device that failed and does not give them any more. Runs raise this until
    each has a value again (`bind_handle`)."""

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

    def __init__(self, graph: str, attempts: list[tuple[str, Exception]]) -> None:
        self.attempts = attempts
        lines = "".join(f"\n  {device}: {error}" for device, error in attempts) or " an empty chain"
        super().__init__(f"[device] expected a device of the chain to run the graph {graph!r}, none did:{lines}")
