"""Finds which 64-bit integers fit in 32 bits. WGSL has no 64-bit integers, and indices must not pay for emulating them.

Index arithmetic that uses only loop axes and dims is assumed to fit; once the dims are known, `overflows` verifies it.
For all other expressions intervals are propagated, and whatever may exceed 32 bits is computed in 64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr

Interval = tuple[int, int]
Leaf = Callable[[Expr], Interval]

I32: Interval = (-(1 << 31), (1 << 31) - 1)
I64: Interval = (-(1 << 63), (1 << 63) - 1)
_PURE_LEAVES = ("axis", "dim")


def fits(interval: Interval) -> bool:
    return I32[0] <= interval[0] and interval[1] <= I32[1]


class Ranges:
    """Intervals of the i64 nodes of a kernel's expressions, before dims are known.

    positions   reductions whose result is a position along an axis, which fits
    """

    def __init__(self, positions: frozenset[int] = frozenset()) -> None:
        self.positions = positions
        self._pure: dict[Expr, bool] = {}
        self._known: dict[Expr, Interval] = {}
        self._seen: set[Expr] = set()  # all below these are known, as far as they have an interval

    def is_index(self, node: Expr) -> bool:
        """Whether a node is arithmetic over loop axes and dims, with no data in it."""
        for part in ex.walk([node], below=lambda part: part not in self._pure):
            if part not in self._pure:
                inner = bool(part.args) and part.kind in ex.INSTRUCTIONS and part.dtype is dtypes.i64
                leaf = part.kind in _PURE_LEAVES
                args = [a for a in part.args if a.kind != "const"]
                self._pure[part] = leaf or (inner and bool(args) and all(self._pure[a] for a in args))
        return self._pure[node]

    def fits(self, node: Expr) -> bool:
        """Whether an i64 node's value fits in 32 bits; index arithmetic is taken to."""
        return node.dtype is dtypes.i64 and fits(self.interval(node))

    def interval(self, node: Expr) -> Interval:
        for part in ex.walk([node], below=lambda part: part not in self._seen):
            if part.dtype is dtypes.i64 and part not in self._known:
                interval = I32 if self.is_index(part) else _interval(part, self._known, self._leaf)
                self._known[part] = interval
            self._seen.add(part)
        return self._known[node]

    def _leaf(self, node: Expr) -> Interval:
        return I32 if node.kind == "row" and node.attr in self.positions else I64


def overflows(check: Check, binding: Mapping[str, int]) -> bool:
    """Whether index arithmetic that was taken to fit in 32 bits does not, with these dims."""
    extents = [dims.evaluate(d, binding) for d in check.extents]
    if 0 in extents:
        return False

    def leaf(node: Expr) -> Interval:
        if node.kind == "axis":
            return 0, extents[node.attr] - 1
        value = dims.evaluate(node.attr, binding)
        return value, value

    known: dict[Expr, Interval] = {}
    for node in ex.walk(list(check.indices)):
        known[node] = _interval(node, known, leaf)
        if not fits(known[node]):
            return True
    return False


def _interval(node: Expr, known: Mapping[Expr, Interval], leaf: Leaf) -> Interval:
    """Least and greatest value of an i64 node, given its arguments'."""
    if node.kind == "const":
        value = ex.value_of(node)
        return value, value
    if node.kind == "cast":
        return _of_cast(node.args[0], known)
    if node.kind not in ex.INSTRUCTIONS:
        return leaf(node)
    rule = _RULES.get(node.kind)
    if rule is None:
        return I64
    args = [known[a] for a in (node.args[1:] if node.kind == "select" else node.args)]
    low, high = rule(*args)
    return (low, high) if I64[0] <= low and high <= I64[1] else I64


def _of_cast(source: Expr, known: Mapping[Expr, Interval]) -> Interval:
    dtype = source.dtype
    if dtype is dtypes.bool_:
        return 0, 1
    if dtype is dtypes.i64:
        return known[source]
    if dtype.kind == "int":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    if dtype.kind == "uint" and dtype.bits <= 32:
        return 0, (1 << dtype.bits) - 1
    return I64


def _corners(a: Interval, b: Interval) -> Interval:
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _quotient(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0:
        return (-max(map(abs, a)), max(map(abs, a)))
    ends: Sequence[int] = [_towards_zero(x, y) for x in a for y in b]
    return min(ends), max(ends)


def _towards_zero(a: int, b: int) -> int:
    return a // b if a >= 0 else -(-a // b)


def _remainder(a: Interval, b: Interval) -> Interval:
    most = max(max(map(abs, b)) - 1, 0)
    return (0 if a[0] >= 0 else max(-most, a[0])), (0 if a[1] <= 0 else min(most, a[1]))


_RULES: dict[str, Callable[..., Interval]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _corners,
    "neg": lambda a: (-a[1], -a[0]),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "div": _quotient,
    "rem": _remainder,
    "select": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "abs": lambda a: (0, max(map(abs, a))),
}


@dataclass(frozen=True)
class Check:
    """Index arithmetic that was taken to fit in 32 bits; whoever knows the dims must verify it (`ranges.overflows`).

    `extents` are those of the loop axes, by number.
    """

    indices: tuple[Expr, ...]
    extents: tuple[Dim, ...]
