"""What arguments are called in NumPy and torch, and what they are called here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container
from typing import Any, TypeVar, cast

from rlx.errors import GraphError, did_you_mean

Called = TypeVar("Called", bound=Callable[..., Any])

_SPELLINGS = {
    "axis": ("axis", "axes"),
    "axes": ("axes", "axis", "permutation"),
    "dim": ("axis", "axes"),
    "dims": ("axes", "permutation"),
    "keepdim": ("keepdims",),
}


def spelled(name: str, accepted: Container[str]) -> str:
    """The name that an argument has here; itself if it is another."""
    if name in accepted or name not in _SPELLINGS:
        return name
    return next((own for own in _SPELLINGS[name] if own in accepted), name)


def respelled(owner: str, accepted: Container[str], keywords: dict[str, Any]) -> dict[str, Any]:
    """Arguments under the names that they have here. Raises GraphError for one that comes under two."""
    own: dict[str, Any] = {}
    for name, value in keywords.items():
        known = spelled(name, accepted)
        if known in own:
            both = " and as ".join(n for n in keywords if spelled(n, accepted) == known)
            raise GraphError(f"[{owner}] expected {known} once, got it as {both}")
        own[known] = value
    return own


def lenient_method(method: Called) -> Called:
    """A method of values that takes other names of its arguments too, and whose errors of calls are those of rlx."""
    name = method.__name__
    signature = inspect.signature(method)
    accepted = [each for each in signature.parameters if each != "self"]

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        own = respelled(name, accepted, keywords)
        for unknown in own.keys() - set(accepted):
            near = did_you_mean(unknown, accepted)
            raise GraphError(f"[{name}] expected the arguments {', '.join(accepted)}, got {unknown!r}{near}")
        try:
            signature.bind(self, *arguments, **own)
        except TypeError as error:
            raise GraphError(f"[{name}] expected the arguments {', '.join(accepted)}: {error}") from None
        return method(self, *arguments, **own)

    return cast(Called, call)
