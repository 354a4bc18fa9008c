"""Einstein's summation: products of any number of operands, by the names of their axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Tolerance, op
from rlx.ir.type import TensorType
from rlx.ops import build

Array = np.ndarray[Any, Any]
Term = tuple[str, Value]
"""Names of the axes, one character each, and the operand."""


def parse(equation: str, ranks: tuple[int, ...]) -> tuple[list[str], str]:
    """Axis names of every operand and of the result. An ellipsis becomes names of its own, aligned at the right.

    Raises ShapeError.
    """
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ShapeError(f"expected {len(terms)} operands for {equation!r}, got {len(ranks)}")
    most = max((rank - len(term) + 3 for term, rank in zip(terms, ranks) if "..." in term), default=0)
    hidden = "".join(chr(0x2460 + i) for i in range(max(most, 0)))
    axes_of_operands = []
    for term, rank in zip(terms, ranks):
        rest = rank - len(term) + 3 if "..." in term else 0
        axes = term.replace("...", hidden[len(hidden) - rest :] if rest > 0 else "", 1)
        if rest < 0 or len(axes) != rank or not all(c.isalpha() or c in hidden for c in axes):
            raise ShapeError(f"expected {term!r} to name the axes of an operand of rank {rank}, in {equation!r}")
        axes_of_operands.append(axes)
    names = "".join(axes_of_operands)
    if not arrow:
        return axes_of_operands, hidden + "".join(sorted(c for c in set(names) - set(hidden) if names.count(c) == 1))
    result = out.replace("...", hidden, 1)
    if len(set(result)) != len(result) or any(c not in names for c in result):
        raise ShapeError(f"expected a result of axes of the operands, each once, got {out!r}")
    return axes_of_operands, result


@op
class Einsum(Composite):
    """Sum of products over all axes that the result does not name. Axes named alike go together; those of 1 repeat.

    operands   number [...], as many as the equation has terms; "ii" takes a diagonal, "..." the axes left over
    Source: the notation of numpy.einsum.
    """

    equation: str
    tolerance = Tolerance(256, scale=4)

    def infer(self, *operands: TensorType) -> TensorType:
        for of in operands:
            expect.kind(of, "int", "uint", "float", "complex")
        expect.same_dtype(*operands)
        terms, out = parse(self.equation, tuple(of.rank for of in operands))
        sizes = _sizes(terms, [of.shape for of in operands], self.equation)
        return operands[0].with_shape(sizes[name] for name in out)

    def reference(self, *operands: Array) -> Array:
        wide = np.float64 if dtypes.of(operands[0].dtype).is_float else operands[0].dtype
        with np.errstate(all="ignore"):
            result = np.einsum(self.equation.replace(" ", ""), *(a.astype(wide) for a in operands))
            return np.asarray(result).astype(operands[0].dtype)

    def decompose(self, *operands: Value) -> Value:
        """The first two are joined until one is left; what nobody asks for any more is summed at once."""
        names, out = parse(self.equation, tuple(v.rank for v in operands))
        sizes = _sizes(names, [v.shape for v in operands], self.equation)
        terms = [_plain(name, value, sizes) for name, value in zip(names, operands)]
        while len(terms) > 1:
            needed = "".join(name for name, _ in terms[2:]) + out
            terms[:2] = [_join(terms[0], terms[1], needed)]
        name, value = _summed(terms[0], out)
        order = tuple(name.index(c) for c in out)
        value = value if order == tuple(range(value.rank)) else value.transpose(*order)
        return value.reshape(tuple(sizes[c] for c in out))


def _sizes(terms: list[str], shapes: list[tuple[Dim, ...]], equation: str) -> dict[str, Dim]:
    sizes: dict[str, Dim] = {}
    for term, shape in zip(terms, shapes):
        for name, first, dim in ((name, shape[term.index(name)], dim) for name, dim in zip(term, shape)):
            expect.same_dim(first, dim, f"axes of one operand differ in {equation!r}")
            (sizes[name],) = expect.broadcast((sizes.get(name, 1),), (dim,), what=f"axes differ in {equation!r}")
    return sizes


def _plain(name: str, value: Value, sizes: dict[str, Dim]) -> Term:
    """Without diagonals, and without axes of 1 that repeat."""
    while len(set(name)) < len(name):
        first = next(i for i, c in enumerate(name) if name.count(c) > 1)
        second = name.index(name[first], first + 1)
        value = _diagonal(value, first, second)
        name = name[:second] + name[second + 1 :]
    axes = [i for i, c in enumerate(name) if value.shape[i] != 1 or sizes[c] == 1]
    return "".join(name[i] for i in axes), value.reshape(tuple(value.shape[i] for i in axes))


def _diagonal(x: Value, first: int, second: int) -> Value:
    """The elements with equal positions along two axes; `second` falls away."""
    row, column = (
        build.iota(x.graph, shape=tuple(d if i in (first, second) else 1 for i, d in enumerate(x.shape)), dtype="i64",
                   axis=axis)
        for axis in (first, second)
    )  # fmt: skip
    return build.reduce_sum(build.select(build.eq(row, column), x, 0), axes=(second,))


def _summed(term: Term, needed: str) -> Term:
    """Axes that nobody asks for any more are summed away."""
    name, value = term
    axes = tuple(i for i, c in enumerate(name) if c not in needed)
    return ("".join(c for c in name if c in needed), build.reduce_sum(value, axes=axes)) if axes else term


def _join(left: Term, right: Term, needed: str) -> Term:
    (a, x), (b, y) = _summed(left, right[0] + needed), _summed(right, left[0] + needed)
    batch = [c for c in a if c in b and c in needed]
    inner = [c for c in a if c in b and c not in needed]
    if not inner:
        return _product((a, x), (b, y))
    product = build.dot_general(
        x, y,
        lhs_contract=tuple(a.index(c) for c in inner), rhs_contract=tuple(b.index(c) for c in inner),
        lhs_batch=tuple(a.index(c) for c in batch), rhs_batch=tuple(b.index(c) for c in batch),
    )  # fmt: skip
    shared = set(batch) | set(inner)
    return "".join([*batch, *(c for c in a if c not in shared), *(c for c in b if c not in shared)]), product


def _product(left: Term, right: Term) -> Term:
    """Without a sum: element by element, axes laid out like the left operand's, then the right one's own."""
    (a, x), (b, y) = left, right
    own = [c for c in b if c not in a]
    order = [c for c in a if c in b] + own
    y = y.transpose(*(b.index(c) for c in order)) if order != list(b) else y
    sizes = dict(zip(order, y.shape))
    y = y.reshape(tuple(sizes.get(c, 1) for c in [*a, *own]))
    return a + "".join(own), x.reshape((*x.shape, *([1] * len(own)))) * y
