"""Dims: integers, or integer polynomials over named symbols (`batch`, `2*seq+1`, `seq//2`, `min(seq, 512)`).

A polynomial is a sum of monomials; a factor of a monomial is a symbol's name or a `Call` (floor division, remainder,
minimum, maximum, broadcast) whose arguments are dims themselves. Constants are plain ints, so `isinstance(dim, int)`
asks whether a dim is known. Symbols stand for integers ≥ 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np

from rlx.arguments import is_index
from rlx.errors import ShapeError
from rlx.ir.concrete import refuse
from rlx.records import dataclass

NAMED = ("min", "max", "broadcast")  # functions that are written by their names


@dataclass(frozen=True)
class Call:
    """A function of dims that is no polynomial: `floordiv`, `mod`, `min`, `max` or `broadcast` of two dims."""

    function: str
    left: Dim
    right: Dim

    @cached_property
    def depth(self) -> int:
        """How deep functions are nested in it."""
        return 1 + max(_depth(self.left), _depth(self.right))

    @cached_property
    def text(self) -> str:
        if self.function in NAMED:
            return f"{self.function}({self.left}, {self.right})"
        symbol = "//" if self.function == "floordiv" else "%"
        return f"(({self.left}){symbol}({self.right}))"

    def __str__(self) -> str:
        return self.text


MAX_TERMS = 4096  # of a product; sizes in models have a few
MAX_DEPTH = 100  # nesting of functions; a pyramid of ten levels has some thirty
MAX_DEGREE = 64  # of a product, as ranks go
MOST_KEPT = 1 << 14  # sums and products that are remembered: a net has few, and asks for them again and again

Factor = str | Call
Monomial = tuple[Factor, ...]


def _order(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    return (-len(monomial), tuple(str(factor) for factor in monomial))


def _operator(function: Callable[[Any, Any], Dim]) -> Callable[[Any, Any], Any]:
    """An operator on dims and integers; other operands, such as values of graphs, are asked what it is."""

    def apply(self: Poly, other: Any) -> Any:
        operand = int(other) if isinstance(other, np.integer) else other
        return function(self, operand) if isinstance(operand, (int, Poly)) else NotImplemented

    return apply


class Poly:
    """A polynomial that is not constant. Immutable; equal polynomials compare and hash equal."""

    __slots__ = ("_hash", "_text", "terms")
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._text = ""

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self._hash == other._hash and self.terms == other.terms

    def __lt__(self, other: object) -> bool:
        refuse(f"the number of {self}", f"a comparison of it with {other}", "dim")

    __gt__ = __le__ = __ge__ = __lt__

    def __str__(self) -> str:
        if not self._text:
            self._text = self._written()
        return self._text

    def _written(self) -> str:
        parts = []
        for monomial, coefficient in self.terms:
            factors = [str(factor) for factor in monomial]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return "+".join(parts).replace("+-", "-")

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Callable[[str], Dim], tuple[str]]:
        return (parse, (str(self),))

    def __neg__(self) -> Dim:
        return mul(self, -1)

    __add__ = __radd__ = _operator(lambda a, b: add(a, b))
    __sub__ = _operator(lambda a, b: add(a, mul(b, -1)))
    __rsub__ = _operator(lambda a, b: add(b, mul(a, -1)))
    __mul__ = __rmul__ = _operator(lambda a, b: mul(a, b))
    __floordiv__ = _operator(lambda a, b: floordiv(a, b))
    __rfloordiv__ = _operator(lambda a, b: floordiv(b, a))
    __mod__ = _operator(lambda a, b: mod(a, b))


Dim = int | Poly
Shape = tuple[Dim, ...]
Interval = tuple[int, int | None]  # least and greatest value; None where there is no greatest
Bounds = Mapping[str, Interval]


def _from_terms(terms: Mapping[Monomial, int]) -> Dim:
    nonzero = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not nonzero:
        return 0
    if len(nonzero) == 1 and () in nonzero:
        return nonzero[()]
    return Poly(tuple(sorted(nonzero.items(), key=lambda item: _order(item[0]))))


def _terms(dim: Dim) -> dict[Monomial, int]:
    return dict(dim.terms) if isinstance(dim, Poly) else {(): dim}


def _depth(dim: Dim) -> int:
    if isinstance(dim, int):
        return 0
    return max((f.depth for monomial, _ in dim.terms for f in monomial if isinstance(f, Call)), default=0)


def _called(function: str, left: Dim, right: Dim) -> Dim:
    """A function of dims as a dim. Raises ShapeError where functions are nested too deep to be worked with."""
    call = Call(function, left, right)
    if call.depth > MAX_DEPTH:
        raise ShapeError(f"expected a dim of at most {MAX_DEPTH} functions in each other, got one more ({function})")
    return _from_terms({(call,): 1})


def symbol(name: str) -> Dim:
    """The dim called `name`. Names are identifiers."""
    if not name.isidentifier():
        raise ShapeError(f"expected an identifier as the name of a dim, got {name!r}")
    return Poly((((name,), 1),))


def add(a: Dim, b: Dim) -> Dim:
    return a + b if isinstance(a, int) and isinstance(b, int) else _sum(a, b)


@lru_cache(MOST_KEPT)
def _sum(a: Dim, b: Dim) -> Dim:
    terms = _terms(a)
    for monomial, coefficient in _terms(b).items():
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return _from_terms(terms)


def mul(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1:
        return b
    if b == 1:
        return a
    return _product(a, b)


@lru_cache(MOST_KEPT)
def _product(a: Dim, b: Dim) -> Dim:
    if len(_terms(a)) * len(_terms(b)) > MAX_TERMS:
        raise ShapeError(f"expected a dim of at most {MAX_TERMS} terms")
    terms: dict[Monomial, int] = {}
    for left, left_coefficient in _terms(a).items():
        for right, right_coefficient in _terms(b).items():
            if len(left) + len(right) > MAX_DEGREE:
                raise ShapeError(f"expected a dim of products of at most {MAX_DEGREE} factors")
            monomial = tuple(sorted(left + right, key=str))
            terms[monomial] = terms.get(monomial, 0) + left_coefficient * right_coefficient
    return _from_terms(terms)


def _divide(dividend: Dim, divisor: Dim) -> tuple[Dim, Dim]:
    """quotient, remainder with dividend = quotient·divisor + remainder; the quotient takes every term that divides."""
    divisor_terms = _terms(divisor)
    (lead, lead_coefficient), *_ = sorted(divisor_terms.items(), key=lambda item: _order(item[0]))
    quotient: Dim = 0
    rest = dividend
    result: Dim = 0
    for _ in range(64):
        if rest == 0:
            break
        (monomial, coefficient), *_ = sorted(_terms(rest).items(), key=lambda item: _order(item[0]))
        factors = list(monomial)
        divides = coefficient % lead_coefficient == 0
        for factor in lead:
            if factor in factors:
                factors.remove(factor)
            else:
                divides = False
        if divides:
            step = _from_terms({tuple(factors): coefficient // lead_coefficient})
            quotient = add(quotient, step)
            rest = add(rest, mul(mul(step, divisor), -1))
        else:
            term = _from_terms({monomial: coefficient})
            result = add(result, term)
            rest = add(rest, mul(term, -1))
    return quotient, add(result, rest)


def exact_div(a: Dim, b: Dim) -> Dim | None:
    """a / b when it is provably exact, else None."""
    if b == 0:
        return None
    quotient, remainder = _divide(a, b)
    return quotient if remainder == 0 else None


def floordiv(a: Dim, b: Dim) -> Dim:
    """⌊a / b⌋. Raises ShapeError on a zero divisor."""
    if b == 0:
        raise ShapeError(f"division of the dim {a} by zero")
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if isinstance(b, int):
        whole = {m: c // b for m, c in _terms(a).items() if c % b == 0}
        rest = _from_terms({m: c for m, c in _terms(a).items() if c % b})
        if rest == 0:
            return _from_terms(whole)
        if isinstance(rest, int):
            low, rest = rest // b, rest % b
            if not whole:
                return low
            if b > 0:
                return add(_from_terms(whole), low)
        return add(_from_terms(whole), _called("floordiv", rest, b))
    exact = exact_div(a, b)
    return exact if exact is not None else _called("floordiv", a, b)


def mod(a: Dim, b: Dim) -> Dim:
    """a - b·⌊a / b⌋. Raises ShapeError on a zero divisor."""
    if b == 0:
        raise ShapeError(f"remainder of the dim {a} by zero")
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if exact_div(a, b) is not None:
        return 0
    return _called("mod", a, b)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """⌈a / b⌉ for b > 0."""
    return mul(floordiv(mul(a, -1), b), -1)


def minimum(a: Dim, b: Dim) -> Dim:
    gap = add(a, mul(b, -1))
    return (a if gap <= 0 else b) if isinstance(gap, int) else _extreme("min", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    gap = add(a, mul(b, -1))
    if isinstance(gap, int):
        return a if gap >= 0 else b
    if a == 0 and _not_negative(b):
        return b
    if b == 0 and _not_negative(a):
        return a
    return _extreme("max", a, b)


def _extreme(function: str, a: Dim, b: Dim) -> Dim:
    """The least or the greatest of two dims. One that is among those of the other adds nothing, so that the extreme of
    many dims of which few differ nests no deeper than these."""
    left, right = sorted((a, b), key=str)
    for whole, other in ((left, right), (right, left)):
        if set(_parts(function, other)) <= set(_parts(function, whole)):
            return whole
    return _called(function, left, right)


def broadcast(a: Dim, b: Dim) -> Dim:
    """What two dims that broadcast come to: the other one where either is 1. Raises ShapeError for two that never do.

    Dims that differ and are not 1 have no such dim: whoever asks for it sees to it that they do not come.
    """
    parts = {*_parts("broadcast", a), *_parts("broadcast", b)} - {1}
    known = [part for part in parts if isinstance(part, int)]
    if len(known) > 1:
        raise ShapeError(f"expected dims that broadcast, got {a} against {b}")
    if known or not parts:
        return known[0] if known else 1
    *rest, result = sorted(parts, key=str)
    for part in reversed(rest):
        result = _called("broadcast", part, result)
    return result


def _parts(function: str, dim: Dim) -> list[Dim]:
    """The dims that a function of two, in any order and nesting, made a dim of; itself if it made none."""
    match dim:
        case Poly(terms=(((Call() as call,), 1),)) if call.function == function:
            return [*_parts(function, call.left), *_parts(function, call.right)]
    return [dim]


def taken_as_equal(dim: Dim) -> Dim:
    """The dim where all dims that broadcast in it are equal: the simplest stands for them."""
    if isinstance(dim, int) or "broadcast(" not in str(dim):
        return dim
    return _rebuilt(dim, symbol, {**_FUNCTIONS, "broadcast": simpler})


def simpler(a: Dim, b: Dim) -> Dim:
    """The one of two equal dims that is a number, or is written in fewer characters."""
    return min(a, b, key=lambda d: (isinstance(d, Poly), len(str(d)), str(d)))


def _not_negative(dim: Dim) -> bool:
    return bounds(dim, {})[0] >= 0


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dims; 1 of none."""
    result: Dim = 1
    for dim in dims:
        result = mul(result, dim)
    return result


def symbols(dim: Dim) -> set[str]:
    """Names of the symbols in a dim."""
    return set() if isinstance(dim, int) else set(_symbols(dim))


@lru_cache(MOST_KEPT)
def _symbols(dim: Poly) -> frozenset[str]:
    factors = (factor for monomial, _ in dim.terms for factor in monomial)
    return frozenset().union(*({f} if isinstance(f, str) else symbols(f.left) | symbols(f.right) for f in factors))


_CALLS: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
    "broadcast": lambda a, b: b if a == 1 else a,
}


def evaluate(dim: Dim, binding: Mapping[str, int]) -> int:
    """The dim's value. Raises ShapeError on a symbol that the binding lacks."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        value = coefficient
        for factor in monomial:
            if isinstance(factor, str):
                if factor not in binding:
                    raise ShapeError(f"the dim {factor!r} has no value")
                value *= binding[factor]
            else:
                left, right = evaluate(factor.left, binding), evaluate(factor.right, binding)
                value *= _CALLS[factor.function](left, right)
        total += value
    return total


def substitute(dim: Dim, replacements: Mapping[str, Dim]) -> Dim:
    """The dim with symbols replaced by dims."""
    if isinstance(dim, int) or not symbols(dim) & replacements.keys():
        return dim
    return _rebuilt(dim, lambda name: replacements.get(name, _from_terms({(name,): 1})), _FUNCTIONS)


_FUNCTIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum, "broadcast": broadcast,
}  # fmt: skip


def _rebuilt(dim: Dim, named: Callable[[str], Dim], functions: Mapping[str, Callable[[Dim, Dim], Dim]]) -> Dim:
    """The dim with other dims for its symbols, and its functions worked out anew."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        value: Dim = coefficient
        for factor in monomial:
            if isinstance(factor, str):
                value = mul(value, named(factor))
            else:
                left, right = (_rebuilt(part, named, functions) for part in (factor.left, factor.right))
                value = mul(value, functions[factor.function](left, right))
        total = add(total, value)
    return total


def bounds(dim: Dim, known: Bounds) -> Interval:
    """Least and greatest value (None = unbounded; a least value that is unbounded comes as a very negative int)."""
    return (dim, dim) if isinstance(dim, int) else _bounds(dim, tuple(known.items()))


@lru_cache(MOST_KEPT)
def _bounds(dim: Poly, known: tuple[tuple[str, Interval], ...]) -> Interval:
    low_sum, high_sum = 0, 0
    unbounded_low = unbounded_high = False
    for monomial, coefficient in dim.terms:
        factors = [_factor_bounds(factor, known) for factor in monomial]
        if any(low < 0 for low, _ in factors):
            return -(1 << 62), None
        highs = [high for _, high in factors if high is not None]
        low, high, open_high = prod(low for low, _ in factors), prod(highs), len(highs) < len(factors)
        if coefficient >= 0:
            low_sum += coefficient * low
            unbounded_high |= open_high
            high_sum += 0 if open_high else coefficient * high
        else:
            high_sum += coefficient * low
            unbounded_low |= open_high
            low_sum += 0 if open_high else coefficient * high
    return (-(1 << 62) if unbounded_low else low_sum), (None if unbounded_high else high_sum)


def _factor_bounds(factor: Factor, known: tuple[tuple[str, Interval], ...]) -> Interval:
    if isinstance(factor, str):
        return dict(known).get(factor, (0, None))
    left, right = ((d, d) if isinstance(d, int) else _bounds(d, known) for d in (factor.left, factor.right))
    match factor.function:
        case "min":
            highs = [high for high in (left[1], right[1]) if high is not None]
            return min(left[0], right[0]), min(highs) if highs else None
        case "max" | "broadcast" as function:
            high = None if left[1] is None or right[1] is None else max(left[1], right[1])
            return (max if function == "max" else min)(left[0], right[0]), high
        case "mod" if right[0] > 0:
            return 0, None if right[1] is None else right[1] - 1
        case "floordiv" if right[0] == right[1] and right[0] > 0 and left[0] > -(1 << 60):
            return left[0] // right[0], None if left[1] is None else left[1] // right[0]
        case "floordiv" if right[0] > 0 and left[0] >= 0:
            low = left[0] // right[1] if right[1] is not None else 0
            return low, None if left[1] is None else left[1] // right[0]
    return -(1 << 62), None


_OPERATORS: dict[str, tuple[int, Callable[[Dim, Dim], Dim]]] = {
    "+": (1, add), "-": (1, lambda a, b: add(a, mul(b, -1))), "*": (2, mul), "//": (2, floordiv), "%": (2, mod),
}  # fmt: skip
_TOKENS = re.compile(r"\s*([0-9]+|[^\W\d]\w*|//|.)", re.DOTALL)


@lru_cache(MOST_KEPT)
def parse(text: str) -> Dim:
    """Reads what `str` of a dim prints, and every expression of that form. Raises ShapeError.

    CPython's parser would do, but is not safe when several threads use it (SystemError: recursion depth mismatch).
    """
    if len(text) > 4096:
        raise ShapeError("expected a dim of at most 4096 characters")
    try:
        return _read(["", *reversed(_TOKENS.findall(text.strip()))], 0, "")
    except (RecursionError, ValueError) as error:
        raise ShapeError(f"expected a dim such as 4, batch or 2*seq+1, got {text!r} ({error})") from None


def _read(tokens: list[str], least: int, end: str | None = None) -> Dim:
    """What stands before an operator that binds no stronger than `least`; the next token is the last of the list."""
    dim = _operand(tokens)
    while (strength := _OPERATORS.get(tokens[-1], (0, add))[0]) > least:
        dim = _OPERATORS[tokens.pop()][1](dim, _read(tokens, strength))
    if end is not None and tokens.pop() != end:
        raise ValueError("only + - * // % min max broadcast of integers and names")
    return dim


def _operand(tokens: list[str]) -> Dim:
    token = tokens.pop()
    if token == "-":
        return mul(_operand(tokens), -1)
    if token == "(":
        return _read(tokens, 0, ")")
    if token in NAMED and tokens[-1] == "(":
        tokens.pop()
        return _FUNCTIONS[token](_read(tokens, 0, ","), _read(tokens, 0, ")"))
    return int(token) if token.isdecimal() else symbol(token)


def of(value: object) -> Dim:
    """A Dim of an int, a dim, or text. Raises ShapeError."""
    if type(value) is int or isinstance(value, Poly):
        return value
    if isinstance(value, str):
        return parse(value)
    if not is_index(value):
        raise ShapeError(f"expected an int or a name as a dim, got {value!r}")
    return int(value.__index__())
