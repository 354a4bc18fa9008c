"""Dims as a function sees them while it is traced: they know the sizes of the call.

A function may ask a dim what it likes: `if x.shape[0] > 8`, `range(n)`, `np.zeros(n)`. It is answered with the sizes of
the call that is traced, and the answer is noted: the trace serves the calls for which all answers are the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlx.ir import dim as dims
from rlx.ir.concrete import asked_by_rlx, callers_line, refuse
from rlx.ir.dim import Dim, Poly
from rlx.ir.graph import Value
from rlx.records import dataclass

_ASK: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a function was told of two dims, and where it asked."""

    left: Dim
    question: str
    right: Dim
    truth: bool
    line: str

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is true of these sizes too."""
        left, right = dims.evaluate(self.left, sizes), dims.evaluate(self.right, sizes)
        return _ASK[self.question](left, right) is self.truth

    def __str__(self) -> str:
        return f"{self.left} {self.question} {self.right} is {self.truth}, asked at {self.line}"


class Answers:
    """The sizes of the call that is traced, and what the function was told of them."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.given: dict[Answer, None] = {}

    @property
    def fixed(self) -> set[str]:
        """Dims that the function asked for as numbers."""
        of = (a.left for a in self.given if a.question == "==" and a.truth and isinstance(a.right, int))
        return {str(left) for left in of} & self.sizes.keys()

    def number(self, dim: Dim) -> int:
        """The size that a dim has in this call; the trace is for calls in which it is the same."""
        value = self._value(dim, "the number of it")
        self._note(Answer(plain(dim), "==", value, True, callers_line()))
        return value

    def ask(self, left: Dim, question: str, right: Any) -> bool:
        """How two dims compare in this call, and in all that the trace is for."""
        a, b = (self._value(each, f"{left} {question} {right}") for each in (left, right))
        truth = bool(_ASK[question](a, b))
        self._note(Answer(plain(left), question, plain(right), truth, callers_line()))
        return truth

    def _value(self, dim: Dim, what: str) -> int:
        if not dims.symbols(dim) <= self.sizes.keys():
            refuse("an op, which may compute with dims (x / n)", f"{what} of the dim {dim}", "jit")
        return dims.evaluate(dim, self.sizes)

    def _note(self, answer: Answer) -> None:
        if dims.symbols(answer.left) or dims.symbols(answer.right):
            self.given[answer] = None


class TracedDim(Poly):
    """A dim as a function sees it while it is traced. Arithmetic with integers and dims stays symbolic."""

    __slots__ = ("_answers",)

    def __init__(self, dim: Poly, answers: Answers) -> None:
        super().__init__(dim.terms)
        self._answers = answers

    __hash__ = Poly.__hash__

    def __eq__(self, other: object) -> bool:
        if asked_by_rlx() or not isinstance(other, (int, np.integer, Poly)):
            return super().__eq__(other)
        return self._answers.ask(self, "==", _whole(other))

    def __ne__(self, other: object) -> bool:
        if asked_by_rlx() or not isinstance(other, (int, np.integer, Poly)):
            return not super().__eq__(other)
        return not self._answers.ask(self, "==", _whole(other))

    def __lt__(self, other: Any) -> Any:
        return self._compared("<", other)

    def __le__(self, other: Any) -> Any:
        return self._compared("<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._compared(">", other)

    def __ge__(self, other: Any) -> Any:
        return self._compared(">=", other)

    def _compared(self, question: str, other: Any) -> Any:
        if isinstance(other, Value):
            return NotImplemented
        if isinstance(other, (int, np.integer, Poly)):
            return self._answers.ask(self, question, _whole(other))
        return _ASK[question](int(self), other)

    def __bool__(self) -> bool:
        return asked_by_rlx() or self._answers.ask(self, "!=", 0)

    def __index__(self) -> int:
        return self._answers.number(self)

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.__index__(), dtype)

    def __add__(self, other: Any) -> Any:
        return self._with(operator.add, super().__add__(other), self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._with(operator.sub, super().__sub__(other), self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._with(operator.sub, super().__rsub__(other), other, self)

    def __mul__(self, other: Any) -> Any:
        return self._with(operator.mul, super().__mul__(other), self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self._with(operator.neg, super().__neg__(), self)

    def __floordiv__(self, other: Any) -> Any:
        return self._with(operator.floordiv, super().__floordiv__(other), self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with(operator.floordiv, super().__rfloordiv__(other), other, self)

    def __mod__(self, other: Any) -> Any:
        return self._with(operator.mod, super().__mod__(other), self, other)

    def __truediv__(self, other: Any) -> Any:
        return self._with(operator.truediv, NotImplemented, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(operator.truediv, NotImplemented, other, self)

    def __pow__(self, other: Any) -> Any:
        return self._with(operator.pow, NotImplemented, self, other)

    def __rpow__(self, other: Any) -> Any:
        return self._with(operator.pow, NotImplemented, other, self)

    def _with(self, function: Callable[..., Any], symbolic: Any, *operands: Any) -> Any:
        """A result as a dim; with other numbers than integers it is a number, as this dim is then."""
        if symbolic is not NotImplemented:
            return traced(symbolic, self._answers)
        if not all(isinstance(each, (int, float, complex, Poly, np.generic)) for each in operands):
            return NotImplemented
        return function(*(self._answers.number(each) if isinstance(each, Poly) else each for each in operands))


def _whole(value: Any) -> Dim:
    return value if isinstance(value, Poly) else int(value)


def traced(dim: Dim, answers: Answers) -> Dim:
    """A dim as a function sees it."""
    return TracedDim(dim, answers) if isinstance(dim, Poly) else dim


def plain(dim: Dim) -> Dim:
    """A dim as graphs have it."""
    return Poly(dim.terms) if isinstance(dim, TracedDim) else dim
