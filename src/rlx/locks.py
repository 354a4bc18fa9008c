"""Locks that are free in the child of a fork, and other state that a child must reset.

The child of a fork has one thread. A lock that another thread of the parent held would stay locked in it forever, so it
is created again there. The data that the lock guards are as the other thread left them between two steps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

_locks: WeakSet[Any] = WeakSet()
_clears: list[Callable[[], None]] = []
_resets: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()
"""What to call with an object, by the object. A `WeakMethod` complains if a process ends before its object is gone."""


def lock() -> threading.Lock:
    """A lock that is free in the child of a fork."""
    new = threading.Lock()
    _locks.add(new)
    return new


def rlock() -> threading.RLock:
    """As `lock`; the thread that holds it may take it again."""
    new = threading.RLock()
    _locks.add(new)
    return new


def forget_after_fork(clear: Callable[[], None]) -> None:
    """Calls a function of a module in the child of a fork."""
    _clears.append(clear)


def after_fork(owner: Any, reset: Callable[[Any], None]) -> None:
    """Calls a function with an object in the child of a fork, as long as the object lives."""
    _resets[owner] = reset


def _in_child() -> None:
    for each in list(_locks):
        each._at_fork_reinit()
    for clear in _clears:
        clear()
    for owner, reset in list(_resets.items()):
        reset(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
