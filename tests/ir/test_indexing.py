"""Slices on dims agree with NumPy's, for known extents and for symbolic ones once they are bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx.ir.graph import Graph
from rlx.ir.indexing import plan, resolve_reshape
from support import run_on

ENDS = st.one_of(st.none(), st.integers(-7, 7))
SLICES = st.builds(slice, ENDS, ENDS, st.sampled_from((None, 1, 2, 3, -1, -2)))
KEYS = st.lists(st.one_of(SLICES, st.just(None), st.integers(-3, 2)), max_size=4)


@settings(max_examples=300, deadline=None)
@given(key=KEYS, symbolic=st.booleans())
def test_indexing_is_that_of_numpy(key: list[object], symbolic: bool) -> None:
    shape = (5, 4, 3)
    if sum(k is not None for k in key) > len(shape):
        key = [k for k in key if k is None] + [k for k in key if k is not None][:3]
    x = np.arange(60, dtype=np.int32).reshape(shape)
    graph = Graph()
    value = graph.input("x", ("a", "b", "c") if symbolic else shape, "i32")
    graph.output(value[tuple(key)], name="y")
    actual = run_on("reference", graph, {"x": x})["y"]
    np.testing.assert_array_equal(actual, x[tuple(key)])  # type: ignore[index]


def test_ellipsis_and_errors() -> None:
    x = Graph().input("x", (2, 3, 4))
    assert x[..., 0].shape == (2, 3)
    assert x[0, ..., None].shape == (3, 4, 1)
    for key, what in (((0, 0, 0, 0), "at most 3 indices"), ((..., ...), "one ellipsis"), ((9,), r"index in \[-2, 2\)")):
        with pytest.raises(rlx.ShapeError, match=what):
            plan(x.shape, key)
    with pytest.raises(rlx.ShapeError, match="not zero"):
        x[::0]


@pytest.mark.parametrize(
    ("shape", "target", "expected"),
    [
        (("n", 6), (-1, 3), "(2*n, 3)"),
        (("n", 6), ("n", 2, -1), "(n, 2, 3)"),
        ((0, 4), (-1, 2), "(0, 2)"),
        (("n",), (-1, 4), "(((n)//(4)), 4)"),
    ],
)
def test_reshape_works_out_minus_one(shape: tuple[object, ...], target: tuple[object, ...], expected: str) -> None:
    x = Graph().input("x", shape)
    assert str(x.reshape(*target).shape) == expected


def test_reshape_that_does_not_fit() -> None:
    with pytest.raises(rlx.ShapeError, match="to divide 6 elements"):
        resolve_reshape((2, 3), (-1, 4))
    with pytest.raises(rlx.ShapeError, match="at most one -1"):
        resolve_reshape((2, 3), (-1, -1))
    with pytest.raises(rlx.ShapeError, match="6 against 7"):
        Graph().input("x", (2, 3)).reshape(7)
