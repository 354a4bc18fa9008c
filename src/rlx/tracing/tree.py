"""Nested tuples, lists and dicts of arrays: their leaves in order, and their structure, which hashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Structure = tuple[Any, ...]
"""("leaf",), ("none",), or ("tuple" | "list" | "dict", its type, the keys of a dict, structures of its parts)."""
LEAF: Structure = ("leaf",)
NONE: Structure = ("none",)


def flatten(tree: Any, leaves: list[Any], paths: list[str] | None = None, path: str = "") -> Structure:
    """The structure of a tree, whose leaves go to the end of a list, and where they lie in it to that of another."""
    kind = type(tree)
    if tree is None:
        return NONE
    if kind is dict:
        keys = tuple(tree)
        parts = tuple([flatten(tree[key], leaves, paths, f"{path}.{key}") for key in keys])
        return ("dict", kind, keys, parts)
    if isinstance(tree, (tuple, list)):
        parts = tuple([flatten(each, leaves, paths, f"{path}.{i}") for i, each in enumerate(tree)])
        return ("tuple" if isinstance(tree, tuple) else "list", kind, None, parts)
    leaves.append(tree)
    if paths is not None:
        paths.append(path)
    return LEAF


def rebuild(structure: Structure, leaves: Iterator[Any]) -> Any:
    """The tree of this structure with these leaves."""
    kind = structure[0]
    if kind == "leaf":
        return next(leaves)
    if kind == "none":
        return None
    _, cls, keys, parts = structure
    built = [rebuild(part, leaves) for part in parts]
    if kind == "dict":
        return dict(zip(keys, built))
    return cls(*built) if hasattr(cls, "_fields") else cls(built)  # a named tuple takes its parts one by one


def builder(structure: Structure) -> Callable[[list[Any]], Any]:
    """As `rebuild`, made once for many lists of leaves."""
    if structure == LEAF:
        return lambda leaves: leaves[0]
    return lambda leaves: rebuild(structure, iter(leaves))


def shown(structure: Structure) -> str:
    """The structure for messages, with `*` for leaves."""
    kind = structure[0]
    if kind in ("leaf", "none"):
        return "*" if kind == "leaf" else "None"
    parts = [shown(part) for part in structure[3]]
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(structure[2], parts)) + "}"
    inside = ", ".join(parts)
    return f"[{inside}]" if kind == "list" else f"({inside}{',' if len(parts) == 1 else ''})"
