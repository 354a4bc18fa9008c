"""A process that compiles, started before it is known what: when a graph is there, it has imported what it needs.

At most one waits at a time. It ends when the process that has started it does, or when nobody wants it for a while.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlx import locks
from rlx.records import dataclass

WAIT_S = 10.0
"""After which a process that nobody wants ends."""


@dataclass(frozen=True)
class _Waiting:
    process: subprocess.Popen[str]
    module: str
    place: tuple[str, Mapping[str, str]]
    owner: int


_lock = locks.lock()
_waiting: list[_Waiting] = []


def _place() -> tuple[str, Mapping[str, str]]:
    """What a process has of the one that starts it: the folder by which it finds others, and variables."""
    try:
        return os.getcwd(), dict(os.environ)
    except FileNotFoundError:  # that folder was removed
        return "", dict(os.environ)


def spawned(module: str, arguments: Sequence[str], waits: bool = False) -> subprocess.Popen[str]:
    """A process whose program is a module, and which goes on if this one ends. Raises OSError.

    waits   it gets its arguments later
    """
    above = str(Path(__file__).parents[3])
    path = os.pathsep.join([above, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, text=True,
    )  # fmt: skip


def start(module: str) -> None:
    """Has a process wait for a job, if none does, where another processor has time for its imports."""
    from rlx.backends.cpu import topology

    if os.name != "posix" or not sys.executable or topology.usable() < 2:
        return
    with _lock:
        if any(each.owner == os.getpid() and each.process.poll() is None for each in _waiting):
            return
        try:
            process = spawned(module, [], waits=True)
        except OSError:  # whoever needs it finds out why
            return
        _waiting[:] = [_Waiting(process, module, _place(), os.getpid())]
    threading.Thread(target=process.wait, name="rlx-ahead", daemon=True).start()  # so that no dead one is left


def given(module: str, arguments: Sequence[str]) -> subprocess.Popen[str] | None:
    """The process that waits, with a job; None if there is none that does as one would that starts now."""
    with _lock:
        found = _waiting.pop() if _waiting else None
    if found is None or found.owner != os.getpid():
        return None
    stdin = found.process.stdin
    assert stdin is not None  # a pipe
    if (found.module, found.place) != (module, _place()):
        stdin.close()
        return None
    try:
        stdin.write(json.dumps(list(arguments)) + "\n")
        stdin.close()
    except OSError:  # it has ended
        return None
    return found.process


def drop() -> None:
    """Ends the process that waits, if there is one."""
    with _lock:
        found = _waiting.pop() if _waiting else None
    if found is not None and found.process.stdin is not None and found.owner == os.getpid():
        found.process.stdin.close()


def job() -> list[str]:
    """In that process: the arguments that it is given. Ends the process if it is given none."""
    import select

    ready, _, _ = select.select([sys.stdin], [], [], WAIT_S)
    line = sys.stdin.readline() if ready else ""
    if not line:
        raise SystemExit(0)
    arguments: list[str] = json.loads(line)
    return arguments
