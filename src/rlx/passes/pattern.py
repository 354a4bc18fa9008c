"""Patterns over values: which op, on which operands, with which attributes. What they capture has names.

    x = Var("x")
    Is(Transpose, Is(Transpose, x, permutation=Var("p")), permutation=Var("q"))

A match is a dict from names to Values and attributes. A name that comes twice must capture the same thing twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
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
    def find(self, value: Value, match: Found) -> Iterator[Found]:
        """Every way to match, given what is captured already."""

    def admits(self, value: Value) -> bool:
        """False for most values that do not match: a quick look, before `find` takes its time."""
        return True


class Var(Pattern):
    """Any value; or, in place of an attribute, any attribute."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find(self, value: Value, match: Found) -> Iterator[Found]:
        captured = capture(match, self.name, value)
        if captured is not None:
            yield captured


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

    def find(self, value: Value, match: Found) -> Iterator[Found]:
        array = value.constant
        if array is None or array.size == 0:
            return
        if self.equals is not None and not is_all(array, self.equals):
            return
        if self.where is not None and not self.where(array):
            return
        captured = match if self.name is None else capture(match, self.name, value)
        if captured is not None:
            yield captured


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

    def find(self, value: Value, match: Found) -> Iterator[Found]:
        op, inputs = value.op, value.node.inputs
        if not isinstance(op, self.roots) or (self.operands and len(inputs) != len(self.operands)):
            return
        captured: Found | None = match
        if self.name is not None:
            captured = capture(match, self.name, value)
        if captured is None:
            return
        for attribute, expected in self.attributes.items():
            have = getattr(op, attribute)
            if isinstance(expected, Var):
                captured = capture(captured, expected.name, have)
                if captured is None:
                    return
            elif type(have) is not type(expected) or have != expected:
                return
        if self.once and value.graph.use_count(value) != 1:
            return
        yield from self._operands(inputs, captured, 0) if self.operands else iter((captured,))
        if len(self.operands) == 2 and isinstance(op, COMMUTATIVE):
            yield from self._operands(inputs[::-1], captured, 0)

    def admits(self, value: Value) -> bool:
        operands, inputs = self.operands, value.node.inputs
        if not operands:
            return True
        if len(inputs) != len(operands):
            return False
        for operand, pattern in zip(inputs, operands):
            if not isinstance(operand.node.op, pattern.roots):
                break
        else:
            return True
        if len(operands) != 2 or not isinstance(value.node.op, COMMUTATIVE):
            return False
        return isinstance(inputs[0].node.op, operands[1].roots) and isinstance(inputs[1].node.op, operands[0].roots)

    def _operands(self, inputs: tuple[Value, ...], match: Found, at: int) -> Iterator[Found]:
        if at == len(inputs):
            yield match
            return
        for captured in self.operands[at].find(inputs[at], match):
            yield from self._operands(inputs, captured, at + 1)


class Either(Pattern):
    """What any of these patterns matches."""

    def __init__(self, *patterns: Pattern) -> None:
        self.patterns = patterns
        self.roots = tuple(root for pattern in patterns for root in pattern.roots)
        self.named = frozenset().union(*(pattern.named for pattern in patterns))

    def find(self, value: Value, match: Found) -> Iterator[Found]:
        for pattern in self.patterns:
            yield from pattern.find(value, match)


class Where(Pattern):
    """What a function finds: for shapes of graph that patterns cannot say."""

    def __init__(self, ops: type[Op] | tuple[type[Op], ...], search: Callable[[Value], Found | None]) -> None:
        self.roots = ops if isinstance(ops, tuple) else (ops,)
        self.search = search

    def find(self, value: Value, match: Found) -> Iterator[Found]:
        if isinstance(value.op, self.roots):
            captures = self.search(value)
            if captures is not None:
                yield {**match, **captures}
