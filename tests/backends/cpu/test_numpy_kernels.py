"""Quick NumPy kernels against the references of their ops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.case import Case, array
from ops.cases import cases_of_every_op
from rlx.backends.cpu import numpy_kernels, numpy_rows
from rlx.backends.cpu.numpy_kernels import KERNELS
from rlx.ir import dtype as dtypes
from rlx.ir.compare import mismatch
from rlx.ir.interpreter import evaluate
from rlx.ops.contraction import Einsum
from rlx.ops.convolution import Conv, ConvTranspose
from rlx.ops.linalg import DotGeneral
from rlx.ops.recurrent import Lstm

CASES = [case for case in cases_of_every_op() if type(case.op) in KERNELS]


def check(case: Case) -> None:
    """That a kernel is as near to the reference as compiled code must be."""
    for actual, expected in zip(evaluate(case.graph(), case.inputs(), {}, {}, None, KERNELS), case.reference()):
        wrong = mismatch(actual, expected, case.op.tolerance)
        assert wrong is None, f"{case}: {wrong}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cases(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cases_in_short_pieces(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_rows, "CACHE_ELEMENTS", 7)
    monkeypatch.setattr(numpy_kernels, "COLUMN_ELEMENTS", 7)
    check(case)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_products_by_the_names_of_axes(data: st.DataObject) -> None:
    """Any order of axes that go together, that are summed and that one operand has alone."""
    left, right, out = (data.draw(st.permutations(of)) for of in ("abij", "abkl", "aijkl"))
    sizes = dict(zip("abijkl", (2, 3, 4, 5, 1, 2)))
    op = Einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}")
    arrays = tuple(array(tuple(sizes[c] for c in names), dtypes.f32, n) for n, names in enumerate((left, right)))
    assert KERNELS[Einsum](op, *arrays) is not NotImplemented
    check(Case(op, arrays, "any"))


@pytest.mark.parametrize("equation", ["ii,ij->j", "ij,jk->k", "ij,kl->il", "ij,jk"])
def test_other_products_by_the_names_of_axes(equation: str) -> None:
    """A diagonal, a sum of one operand's own, axes of 1 that repeat."""
    shapes = {"ii,ij->j": ((3, 3), (3, 2)), "ij,jk": ((2, 1), (4, 3))}.get(equation, ((2, 3), (3, 4)))
    arrays = tuple(array(shape, dtypes.f32, n) for n, shape in enumerate(shapes))
    check(Case(Einsum(equation), arrays, "any"))


def test_every_kernel_is_used() -> None:
    with np.errstate(all="ignore"):
        taken = {type(c.op) for c in CASES if KERNELS[type(c.op)](c.op, *c.arrays) is not NotImplemented}
    assert taken == set(KERNELS)


sizes = st.integers(1, 3)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_convolutions(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    groups, share, outputs = data.draw(sizes), data.draw(sizes), data.draw(sizes)
    window, strides, dilations, low, high = (
        tuple(data.draw(st.lists(of, min_size=rank, max_size=rank)))
        for of in (sizes, sizes, sizes, st.integers(-1, 3), st.integers(-1, 3))
    )
    space = tuple(data.draw(st.lists(st.integers(3, 9), min_size=rank, max_size=rank)))
    x = array((data.draw(st.integers(0, 2)), groups * share, *space), dtypes.f32, 1, data.draw(st.booleans()))
    w = array((groups * outputs, share, *window), dtypes.f32, 2)
    check(Case(Conv(strides, dilations, low, high, groups), (x, w), "any"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_transposed_convolutions(data: st.DataObject) -> None:
    channels, outputs = data.draw(sizes), data.draw(sizes)
    window, strides, dilations, low, high, extra = (
        tuple(data.draw(st.lists(of, min_size=2, max_size=2)))
        for of in (sizes, sizes, sizes, st.integers(0, 1), st.integers(0, 1), st.integers(0, 1))
    )
    x = array((data.draw(sizes), channels, 5, 4), dtypes.f32, 1, data.draw(st.booleans()))
    w = array((channels, outputs, *window), dtypes.f32, 2)
    check(Case(ConvTranspose(strides, dilations, low, high, extra), (x, w), "any"))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_lstm(data: st.DataObject) -> None:
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    steps, batch, size, hidden = (data.draw(sizes) for _ in range(4))
    shapes = [
        (steps, batch, size), (count, 4 * hidden, size), (count, 4 * hidden, hidden), (count, 8 * hidden),
        (count, batch, hidden), (count, batch, hidden),
    ]  # fmt: skip
    arrays = [array(shape, dtypes.f32, number) for number, shape in enumerate(shapes)]
    assert KERNELS[Lstm](Lstm(direction), *arrays) is not NotImplemented
    check(Case(Lstm(direction), tuple(arrays), "any"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_products_with_axes_in_any_order(data: st.DataObject) -> None:
    dims = [2, 3, 4, 5]
    left, right = data.draw(st.permutations(range(4))), data.draw(st.permutations(range(4)))
    batch = data.draw(st.integers(0, 2))
    contract = data.draw(st.integers(0, 2))
    shapes = np.ones((2, 4), int)
    for number in range(batch + contract):
        shapes[0, left[number]] = shapes[1, right[number]] = dims[number]
    for number in range(batch + contract, 4):
        shapes[0, left[number]], shapes[1, right[number]] = dims[number], dims[-number]
    op = DotGeneral(
        tuple(left[batch : batch + contract]), tuple(right[batch : batch + contract]),
        tuple(left[:batch]), tuple(right[:batch]),
    )  # fmt: skip
    operands = (array(tuple(map(int, shapes[0])), dtypes.f32, 1), array(tuple(map(int, shapes[1])), dtypes.f32, 2))
    check(Case(op, operands, "any"))
