"""The elementary functions hold their error bounds and C's special cases, with and without a fused multiply-add."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.codegen.scalar import maths
from rlx.ir import dtype as dtypes
from rlx.ir.expr import INSTRUCTIONS, Expr, apply, evaluate, walk

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

from maths_error import SUBJECTS, Subject, fused, legal, measure, run, ulps

BY_NAME = {subject.name: subject for subject in SUBJECTS}
ONE = [s for s in SUBJECTS if INSTRUCTIONS[s.name].arity == 1]
TWO = [s for s in SUBJECTS if INSTRUCTIONS[s.name].arity == 2]
ROUNDINGS = pytest.mark.parametrize("rounding", [nullcontext, fused], ids=["rounds-twice", "rounds-once"])

TINY = [1e-45, 1e-40, 1.1754944e-38, 1e-30, 1e-10]
EDGES = [0.0, *TINY, 0.5, 0.99999994, 1.0, 1.0000001, 1.5, 2.0, 3.0, 88.72283, 88.722855, 103.97, 104.1, 128.0, 150.0]
HUGE = [1e4, 1e10, 16777215.0, 16777217.0, 3.4028235e38, math.inf]


def signed(values: list[float]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([*values, *(-v for v in values), math.nan], np.float32)


def assert_like_numpy(subject: Subject, *inputs: Any) -> None:
    """Equal NaNs, infinities and signs (of zeros too); finite values within the bound."""
    actual = run(legal(subject.name), *inputs)
    with np.errstate(all="ignore"):
        exact = np.asarray(subject.exact(*(x.astype(np.float64) for x in inputs)))
        rounded = exact.astype(np.float32)
    shown = list(zip(*inputs, actual, rounded))
    for same in (np.isnan(actual) == np.isnan(rounded), np.isnan(actual) | (np.signbit(actual) == np.signbit(rounded))):
        assert same.all(), [row for row, ok in zip(shown, same) if not ok]
    with np.errstate(all="ignore"):
        close = np.isnan(rounded) | (actual == rounded) | (ulps(actual, exact) <= subject.bound)
    assert close.all(), [row for row, ok in zip(shown, close) if not ok]


def test_every_transcendental_instruction_is_covered() -> None:
    hard = {name for name, instruction in INSTRUCTIONS.items() if instruction.transcendental}
    assert hard == set(maths.FUNCTIONS) == set(BY_NAME)


@ROUNDINGS
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
def test_error_stays_within_the_bound(subject: Subject, rounding: Any) -> None:
    with rounding():
        error, where = measure(subject)
    assert error <= subject.bound, where


@ROUNDINGS
@pytest.mark.parametrize("subject", ONE, ids=lambda s: s.name)
def test_special_values(subject: Subject, rounding: Any) -> None:
    angle = subject.name in ("sin", "cos", "tan")
    with rounding():
        assert_like_numpy(subject, signed([*EDGES, *([1e4, math.inf] if angle else HUGE)]))


@ROUNDINGS
@pytest.mark.parametrize("subject", TWO, ids=lambda s: s.name)
def test_special_values_of_two(subject: Subject, rounding: Any) -> None:
    values = signed([*EDGES, *HUGE])
    first, second = np.repeat(values, len(values)), np.tile(values, len(values))
    with rounding():
        assert_like_numpy(subject, first, second)


@ROUNDINGS
@pytest.mark.parametrize("name", ["tanh", "erf", "sin", "cos"])
def test_never_beyond_one(name: str, rounding: Any) -> None:
    x = np.linspace(-20, 20, 1 << 18, dtype=np.float32)
    with rounding():
        assert np.abs(run(legal(name), x)).max() <= 1


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_huge_angles_are_finite_and_roughly_right_until_two_to_the_22(name: str) -> None:
    x = np.linspace(1e5, 4e6, 1 << 16).astype(np.float32)
    actual = run(legal(name), x)
    assert np.isfinite(actual).all()
    if name != "tan":
        assert np.abs(actual - getattr(np, name)(x.astype(np.float64))).max() < 0.3
        with fused():
            assert np.abs(run(legal(name), x) - getattr(np, name)(x.astype(np.float64))).max() < 1e-6
    beyond = run(legal(name), np.array([2.0**22, 1e30, -3e38], np.float32))
    np.testing.assert_array_equal(beyond, np.array([1, 1, 1] if name == "cos" else [0, 0, -0.0], np.float32))


def test_erf_and_tanh_are_accurate_absolutely() -> None:
    x = np.linspace(-6, 6, 1 << 18, dtype=np.float32)
    for name in ("erf", "tanh"):
        assert np.abs(run(legal(name), x) - BY_NAME[name].exact(x.astype(np.float64))).max() < 1.3e-7


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize("subject", ONE, ids=lambda s: s.name)
def test_narrow_floats_round_the_exact_value(subject: Subject, dtype: dtypes.DType) -> None:
    x = np.linspace(-3, 3, 1001).astype(dtype.numpy)
    root = maths.legalise(apply(subject.name, Expr("leaf", dtype, (), "a")))
    actual = np.asarray(evaluate(root, lambda leaf: x))
    assert actual.dtype == dtype.numpy
    with np.errstate(all="ignore"):
        expected = subject.exact(x.astype(np.float64)).astype(np.float32)
    tolerance = 2.0**-7 if dtype is dtypes.bf16 else 2.0**-10
    np.testing.assert_allclose(actual.astype(np.float32), expected, rtol=tolerance, atol=1e-6)


def test_native_instructions_and_f64_stay() -> None:
    a = Expr("leaf", dtypes.f32, (), "a")
    root = apply("exp", a) + apply("log", apply("tanh", a))
    kinds = [node.kind for node in walk([maths.legalise(root, native={"exp", "tanh"})])]
    assert kinds.count("exp") == 1 and kinds.count("tanh") == 1 and "log" not in kinds
    half = maths.legalise(apply("exp", Expr("leaf", dtypes.f16, (), "a")), native={"exp"})
    assert (half.dtype, half.args[0].kind, half.args[0].dtype) == (dtypes.f16, "exp", dtypes.f32)
    double = apply("exp", Expr("leaf", dtypes.f64, (), "a"))
    assert maths.legalise(double) is double


@pytest.mark.parametrize("name", sorted(maths.FUNCTIONS))
def test_no_saturating_cast_is_left(name: str) -> None:
    """A float to integer cast costs a renderer selects; integers are made by addition."""
    for node in walk([legal(name)]):
        assert not (node.kind == "cast" and node.dtype.is_integer)
        assert not getattr(INSTRUCTIONS.get(node.kind), "transcendental", False)
