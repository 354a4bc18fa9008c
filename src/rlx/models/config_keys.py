"""Keys of a configuration, each checked when it is read. What is left over must not change what a model computes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlx.errors import ModelError

MOST = 1 << 31
_TELLING = (
    "act", "attention", "attn", "bias", "clip", "emb", "expert", "head", "hidden", "layer", "mlp", "moe", "multiplier",
    "norm", "position", "quant", "residual", "rope", "rotary", "router", "scal", "softcap", "theta", "window",
)  # fmt: skip
"""Parts of names of keys that say how a model computes."""


class Keys:
    """The keys of one object of a configuration.

    where    the object is, for messages
    family   that asks, for messages
    """

    def __init__(self, json_object: Mapping[str, Any], family: str, where: str = "config.json") -> None:
        self.family = family
        self.where = where
        self._object = {key: value for key, value in json_object.items() if value is not None}
        self._read: set[str] = set()

    def wrong(self, expected: str, actual: Any) -> ModelError:
        shown = repr(actual)
        shown = shown if len(shown) <= 100 else f"{shown[:97]}..."
        return ModelError(f"[{self.family}] expected {expected}, got {shown}, in {self.where}")

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key, not checked; null counts as absent."""
        self._read.add(name)
        return self._object.get(name, default)

    def skip(self, *names: str) -> None:
        """These keys change nothing."""
        self._read.update(names)

    def whole(self, name: str, default: int | None = None, least: int = 1, most: int = MOST - 1) -> int:
        """An integer from `least` to `most`."""
        value = self.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(f"{name} to be an integer from {least} to {most}", value)
        return value

    def number(self, name: str, default: float | None = None, least: float | None = None) -> float:
        """A finite number that is positive, or at least `least`."""
        value = self.get(name, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.wrong(f"{name} to be a number", value)
        if value < least if least is not None else value <= 0:
            raise self.wrong(f"{name} to be positive", value)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if type(value) is not bool:
            raise self.wrong(f"{name} to be true or false", value)
        return value

    def one_of(self, name: str, known: Sequence[str], default: str, also: str | None = None) -> str:
        """A word among those that are known, under this name or another that was used before."""
        value = self.get(name)
        if value is None:
            value = self.get(also, default) if also is not None else default
        if value not in known:
            raise self.wrong(f"{name} among {list(known)}", value)
        return str(value)

    def neutral(self, name: str, value: Any) -> None:
        """A key that must have the value with which it changes nothing, if it is there."""
        actual = self.get(name, value)
        if (type(actual) is bool and type(value) is not bool) or actual != value:
            raise self.wrong(f"{name} to be {value!r}: nothing else is implemented", actual)

    def finish(self) -> None:
        """Raises ModelError for a key that nobody read, has a value, and by its name says how the model computes."""
        for name, value in self._object.items():
            if name not in self._read and value not in (False, [], {}) and any(part in name for part in _TELLING):
                raise self.wrong(f"no {name!r}, which this version of rlx does not know", value)
