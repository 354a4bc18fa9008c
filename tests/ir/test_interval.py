"""What dims can be where symbols lie between two values."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.interval import interval

n, m = dims.symbol("n"), dims.symbol("m")

leaves = st.one_of(st.just(n), st.just(m), st.integers(-3, 5))


def joined(parts: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    def ceildiv(a: Dim, b: Dim) -> Dim:
        return dims.ceildiv(a, b) if isinstance(b, int) and b > 0 else dims.add(a, b)

    def floordiv(a: Dim, b: Dim) -> Dim:
        return dims.floordiv(a, b) if b != 0 else a

    def mod(a: Dim, b: Dim) -> Dim:
        return dims.mod(a, b) if b != 0 else a

    functions = [dims.add, dims.mul, dims.minimum, dims.maximum, ceildiv, floordiv, mod]
    return st.builds(lambda function, a, b: function(a, b), st.sampled_from(functions), parts, parts)


@given(st.recursive(leaves, joined, max_leaves=6), st.integers(0, 4), st.integers(0, 3), st.integers(0, 4))
def test_no_value_lies_outside(dim: Dim, low: int, width: int, other: int) -> None:
    least, greatest = interval(dim, {"n": (low, low + width), "m": (other, other + 1)})
    for n_value, m_value in itertools.product(range(low, low + width + 1), (other, other + 1)):
        assert least <= dims.evaluate(dim, {"n": n_value, "m": m_value}) <= greatest


@pytest.mark.parametrize("dim, expected", [
    (dims.ceildiv(n, 4), (1, 3)),
    (dims.maximum(dims.add(1, dims.mul(dims.floordiv(n, 8), -1)), 0), (0, 1)),
    (dims.mul(dims.add(n, 2), 3), (15, 36)),
    (7, (7, 7)),
])  # fmt: skip
def test_ends_are_values_where_symbols_occur_once(dim: Dim, expected: tuple[int, int]) -> None:
    assert interval(dim, {"n": (3, 10)}) == expected
