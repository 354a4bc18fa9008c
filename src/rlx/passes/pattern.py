"""Patterns over values: which op, on which operands, with which attributes. What they capture has names.

    x = Var("x")
    Is(Transpose, Is(Transpose, x, permutation=Var("p")), permutation=Var("q"))

A match is a dict from names to Values and attributes. A name that comes twice must capture the same thing twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from rlx.ir.graph import Value
from rlx.ir.literal import Array
from rlx.ir.op import Constant, Op
from rlx.ops.elementwise import Add, BitwiseAnd, BitwiseOr, BitwiseXor, Eq, Maximum, Minimum, Mul, Ne

Found = dict[str, Any]

COMMUTATIVE: tuple[type[Op], ...] = (Add, Mul, Minimum, Maximum, BitwiseAnd, BitwiseOr, BitwiseXor, Eq, Ne)


class Pattern(ABC):
    """Something that a value may match. `named` are the names under which it captures nodes that it looked into."""

    roots: tuple[type[Op], ...] = (Op,)
    named: frozenset[str] = frozenset()

    @abstractmethod
    def find(self, value: Value, match: Found) -> Iterable[Found]:
        """Every way to match, given what is captured already."""

    def admits(self, root: type[Op], operands: Sequence[type[Op]]) -> bool:
        """Whether a node of this op, on results of such ops, may match."""
        return issubclass(root, self.roots)


class Var(Pattern):
    """Any value; or, in place of an attribute, any attribute."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find(self, value: Value, match: Found) -> Iterable[Found]:
        captured = capture(match, self.name, value)
        return () if captured is None else (captured,)


def capture(match: Found, name: str, what: Any) -> Found | None:
    """The match with one name more; None if the name stands for something else."""
    if name in match:
        return match if type(match[name]) is type(what) and match[name] == what else None
    return {**match, name: what}


class Const(Pattern):
    """A constant; with `equals`, one whose every element is this number (0.0 is not -0.0); with `where`, one whose
    array passes the test."""

    roots = (Constant,)

    def __init__(
        self, equals: float | None = None, name: str | None = None, where: Callable[[Array], bool] | None = None
    ) -> None:
        self.equals = equals
        self.name = name
        self.where = where

    def find(self, value: Value, match: Found) -> Iterable[Found]:
        array = value.constant
        if array is None or array.size == 0:
            return ()
        if self.equals is not None and not is_all(array, self.equals):
            return ()
        if self.where is not None and not self.where(array):
            return ()
        captured = match if self.name is None else capture(match, self.name, value)
        return () if captured is None else (captured,)


def is_all(array: Array, number: float) -> bool:
    """Whether every element is this number, zeros of the same sign."""
    first = array.reshape(-1)[0]
    if not (first == number and bool(np.all(array == first))):
        return False
    if number != 0 or array.dtype.kind in "biu":
        return True
    return bool(np.all(np.signbit(array) == np.signbit(np.float64(number))))


class Is(Pattern):
    """A node of one of these ops (or of a class derived from it) on operands that match, in either order where the op
    does not care. `once` asks that nothing else takes its result; `name` captures the value itself."""

    def __init__(
        self,
        ops: type[Op] | tuple[type[Op], ...],
        *operands: Pattern,
        once: bool = False,
        name: str | None = None,
        **attributes: Any,
    ) -> None:
        self.roots = ops if isinstance(ops, tuple) else (ops,)
        self.operands = operands
        self.once = once
        self.name = name
        self.attributes = attributes
        self.named = frozenset([] if name is None else [name]).union(*(pattern.named for pattern in operands))

    def find(self, value: Value, match: Found) -> Iterable[Found]:
        op, inputs = value.op, value.node.inputs
        if not isinstance(op, self.roots) or (self.operands and len(inputs) != len(self.operands)):
            return ()
        captured: Found | None = match
        if self.name is not None:
            captured = capture(match, self.name, value)
        for attribute, expected in self.attributes.items():
            if captured is None:
                return ()
            have = getattr(op, attribute)
            if isinstance(expected, Var):
                captured = capture(captured, expected.name, have)
            elif type(have) is not type(expected) or have != expected:
                return ()
        if captured is None or (self.once and value.graph.use_count(value) != 1):
            return ()
        if not self.operands:
            return (captured,)
        if len(inputs) == 2 and isinstance(op, COMMUTATIVE):
            return chain(self._operands(inputs, captured), self._operands(inputs[::-1], captured))
        return self._operands(inputs, captured)

    def admits(self, root: type[Op], operands: Sequence[type[Op]]) -> bool:
        if not issubclass(root, self.roots):
            return False
        if not self.operands:
            return True
        orders = (operands, operands[::-1]) if len(operands) == 2 and issubclass(root, COMMUTATIVE) else (operands,)
        return len(operands) == len(self.operands) and any(
            all(issubclass(op, pattern.roots) for op, pattern in zip(order, self.operands)) for order in orders
        )

    def _operands(self, inputs: tuple[Value, ...], match: Found, at: int = 0) -> Iterable[Found]:
        """Every way to match the operands from one on."""
        found = self.operands[at].find(inputs[at], match)
        if at + 1 == len(inputs):
            return found
        return (whole for captured in found for whole in self._operands(inputs, captured, at + 1))


class Either(Pattern):
    """What any of these patterns matches."""

    def __init__(self, *patterns: Pattern) -> None:
        self.patterns = patterns
        self.roots = tuple(root for pattern in patterns for root in pattern.roots)
        self.named = frozenset().union(*(pattern.named for pattern in patterns))

    def find(self, value: Value, match: Found) -> Iterable[Found]:
        return (found for pattern in self.patterns for found in pattern.find(value, match))


class Where(Pattern):
    """What a function finds: for shapes of graph that patterns cannot say. It is asked about values of these ops that
    have the `attribute`, if one is named, and an operand made by the op `operand`."""

    def __init__(
        self,
        ops: type[Op] | tuple[type[Op], ...],
        search: Callable[[Value], Found | None],
        attribute: str | None = None,
        operand: type[Op] | None = None,
    ) -> None:
        self.roots = ops if isinstance(ops, tuple) else (ops,)
        self.search = search
        self.attribute = attribute
        self.operand = operand

    def admits(self, root: type[Op], operands: Sequence[type[Op]]) -> bool:
        return (
            super().admits(root, operands)
            and (self.attribute is None or self.attribute in root.attribute_names)
            and (self.operand is None or any(issubclass(op, self.operand) for op in operands))
        )

    def find(self, value: Value, match: Found) -> Iterable[Found]:
        captures = self.search(value) if isinstance(value.op, self.roots) else None
        return () if captures is None else ({**match, **captures},)
