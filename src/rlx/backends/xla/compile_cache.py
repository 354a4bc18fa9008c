"""Compiled programs on disk. They hold for one version of jax and one processor; who names them must see to that."""

from __future__ import annotations

import pickle
from typing import Any

from rlx import disk


def read(key: str, arguments: tuple[Any, ...], results: int, device: Any) -> Any:
    """The program that takes such arguments and gives a tuple of so many results; None if it is not there.

    A damaged entry never gets here: `disk` checks digests. Like all of the cache it is trusted to be the user's own.
    """
    import jax
    from jax.experimental import serialize_executable

    body = disk.read(key) if key else None
    if body is None:
        return None
    taken = jax.tree_util.tree_structure((arguments, {}))
    given = jax.tree_util.tree_structure(tuple(range(results)))
    try:
        return serialize_executable.deserialize_and_load(body, taken, given, device.client, [device])
    except (ValueError, TypeError, RuntimeError, AttributeError, pickle.UnpicklingError):
        return None  # of another build of the same version: it is compiled again, and written over


def write(key: str, program: Any) -> None:
    """Keeps a program. One whose constants jax passes as arguments cannot be kept."""
    from jax.experimental import serialize_executable

    if not key:
        return
    try:
        body, _, _ = serialize_executable.serialize(program)
    except (NotImplementedError, ValueError):
        return
    disk.write(key, body)
