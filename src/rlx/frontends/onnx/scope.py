"""Names that a node of a model can see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from rlx.frontends.onnx.operand import Operand
from rlx.records import dataclass


@dataclass
class Scope:
    """Names that nodes can see: those of one graph or function body, and of what it is nested in."""

    opsets: Mapping[str, int]
    prefix: str = ""
    items: dict[str, Operand | None] = field(default_factory=dict)  # None: made by a node that could not be imported
    tensors: dict[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)  # what a function was called with
    absent: frozenset[str] = frozenset()  # a function's inputs that it was called without
    outer: Scope | None = None
    depth: int = 0

    def has(self, name: str) -> bool:
        """Whether the name stands for anything here, be it a node that could not be imported."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.items:
                return True
            scope = scope.outer
        return False

    def is_absent(self, name: str) -> bool:
        """Whether a name is that of an input which the function around was called without."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.items or name in scope.tensors:
                return False
            if name in scope.absent:
                return True
            scope = scope.outer
        return False
