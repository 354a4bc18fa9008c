"""Turns failures of drivers and their libraries into errors of rlx. Code that has a graph on several devices can then
tell a device that failed from a caller's request that no device can fulfil."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn

from rlx.errors import CompileError, DeviceLost, DriverError, OutOfMemory, RlxError

Step = Literal["compile", "bind", "weights", "run"]

_MEMORY = re.compile(
    r"out[ _-]?of[ _-]?memory|resource_exhausted|(un)?able to allocate|attempting to allocate|insufficient memory"
    r"|bad_alloc|not enough memory",
    re.IGNORECASE,
)
_LOST = re.compile(r"\b(lost|removed|unplugged)\b|\bgpu hang\b", re.IGNORECASE)
_EXPECTED = {"compile": "a program for", "bind": "buffers on", "weights": "weights on", "run": "results of"}
_OWN = ("builtins", "numpy", "rlx")
"""Where the classes of errors come from that say that code is wrong: they stay as they are."""


def structured(error: Exception, step: Step, device: str) -> RlxError | None:
    """What a failure on a device is in rlx's classes; None for an error that no driver raised.

    Libraries have classes of their own, or RuntimeError for everything: their words tell what they are. Any error of a
    compile is one, as libraries refuse what they compile with all classes of errors.
    """
    if isinstance(error, RlxError):
        return error
    text = " ".join(str(error).split()) or type(error).__name__
    message = f"[{step}] expected {_EXPECTED[step]} {device}, got {text}"
    if isinstance(error, MemoryError) or _MEMORY.search(f"{type(error).__name__} {text}"):
        return OutOfMemory(message)
    foreign = type(error).__module__.partition(".")[0] not in _OWN
    if step != "compile" and not foreign and not isinstance(error, (RuntimeError, OSError)):
        return None
    if _LOST.search(text):
        return DeviceLost(message)
    return CompileError(message) if step == "compile" else DriverError(message)


def reraise(error: Exception, step: Step, device: str) -> NoReturn:
    """Raises the error as `structured` has it."""
    translated = structured(error, step, device)
    if translated is None or translated is error:
        raise error
    raise translated from error


@contextmanager
def translated(step: Step, device: str) -> Iterator[None]:
    """What a backend does in here fails with errors of rlx."""
    try:
        yield
    except Exception as error:
        reraise(error, step, device)


def memory_bytes() -> int:
    """Bytes of the machine's memory; where the system does not say, as much as counts as none too many."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 36
