"""What a dim can be where symbols lie between two values each."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.ir.dim import Call, Dim

Interval = tuple[int, int]


def interval(dim: Dim, known: Mapping[str, Interval]) -> Interval:
    """Values between which a dim lies, by the arithmetic of intervals: where a symbol occurs more than once the dim may
    have none of the outer ones. Raises KeyError for a symbol that is not known."""
    if isinstance(dim, int):
        return dim, dim
    low = high = 0
    for monomial, coefficient in dim.terms:
        term: Interval = (coefficient, coefficient)
        for factor in monomial:
            term = _product(term, known[factor] if isinstance(factor, str) else _of_call(factor, known))
        low, high = low + term[0], high + term[1]
    return low, high


def _product(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _of_call(call: Call, known: Mapping[str, Interval]) -> Interval:
    left, right = interval(call.left, known), interval(call.right, known)
    match call.function:
        case "min":
            return min(left[0], right[0]), min(left[1], right[1])
        case "max":
            return max(left[0], right[0]), max(left[1], right[1])
        case "broadcast":
            return min(left[0], right[0]), max(left[1], right[1])
        case "mod":
            return min(0, right[0]), max(0, right[1])
    divisors = {d for d in (*right, 1, -1) if d and right[0] <= d <= right[1]}
    corners = [number // divisor for number in left for divisor in divisors]
    corners += [0] if right[0] <= 0 <= right[1] else []  # what a division by 0 gives
    return min(corners), max(corners)
