"""The promotion table, and what counts as close."""

from __future__ import annotations

import itertools
import pickle

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.ir import dtype as dtypes
from rlx.ir.compare import epsilon, mismatch
from rlx.ir.op import EXACT, Tolerance

SHARED = [dtypes.ALL[name] for name in ("bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "f32", "f64")]


@pytest.mark.parametrize(("a", "b"), list(itertools.product(SHARED, SHARED)), ids=str)
def test_promotion_is_that_of_the_array_api(a: dtypes.DType, b: dtypes.DType) -> None:
    dtype = dtypes.promote(a, b)
    assert dtype is dtypes.promote(b, a)
    if a.kind == b.kind or not (a.is_float or b.is_float):
        assert dtype.numpy == np.promote_types(a.numpy, b.numpy)
    else:
        assert dtype is (a if a.is_float else b), "integers do not widen floats"


def test_promotion_beyond_numpy() -> None:
    assert dtypes.promote(rlx.f16, rlx.bf16) is rlx.f32
    assert dtypes.promote(rlx.f8e4m3, rlx.f16) is rlx.f16
    assert dtypes.promote(rlx.c64, rlx.f64) is rlx.c128
    with pytest.raises(rlx.DTypeError, match="no integer type holds both i64 and u64"):
        dtypes.promote(rlx.i64, rlx.u64)


def test_dtypes_are_found_and_pickled() -> None:
    for dtype in dtypes.ALL.values():
        assert dtypes.of(dtype.numpy) is dtypes.of(dtype.name) is pickle.loads(pickle.dumps(dtype)) is dtype
    assert dtypes.of(">f4") is rlx.f32
    with pytest.raises(rlx.DTypeError, match="got 'float33'"):
        dtypes.of("float33")
    with pytest.raises(rlx.DTypeError, match="expected one of"):
        dtypes.of(np.dtype("U3"))


@pytest.mark.parametrize(
    ("dtype", "expected"), [("f32", 2.0**-23), ("f16", 2.0**-10), ("bf16", 2.0**-7), ("f8e4m3", 2.0**-3)]
)
def test_epsilon(dtype: str, expected: float) -> None:
    assert epsilon(dtypes.of(dtype)) == expected


def test_what_is_close() -> None:
    one = np.array([1.0, np.nan, np.inf, -0.0], np.float32)
    assert mismatch(one, one, EXACT) is None
    near = one + np.array([2.0**-22, 0, 0, 0], np.float32)
    assert mismatch(near, one, Tolerance(2)) is None
    difference = mismatch(near, one, Tolerance(1))
    assert (
        difference is not None
        and difference.index == (0,)
        and difference.ulps == 2
        and "expected 1.0" in str(difference)
    )
    assert mismatch(np.array([3e38], np.float32), np.array([np.inf], np.float32), Tolerance(1e9)) is not None
    assert mismatch(np.array([1.0], np.float32), np.array([np.nan], np.float32), Tolerance(1e9)) is not None
    assert "expected float32[1], got float64[1]" in str(mismatch(np.ones(1), np.ones(1, np.float32), EXACT))
    half = np.array([1.0], ml_dtypes.bfloat16)
    assert mismatch(half, half + half, Tolerance(1)) is not None
    assert mismatch(np.array([1, 2]), np.array([1, 3]), Tolerance(99)) is not None


@pytest.mark.parametrize("dtype", [rlx.f16, rlx.bf16, rlx.f8e4m3, rlx.f8e5m2])
def test_narrow_floats_may_be_one_step_off_and_no_more(dtype: dtypes.DType) -> None:
    """They are computed in f32: rounding to what is stored is all that they lose."""
    bits = np.uint8 if dtype.itemsize == 1 else np.uint16
    one = np.asarray([1, 2, 0.5], dtype.numpy)
    near, far = ((one.view(bits) + bits(n)).view(dtype.numpy) for n in (1, 2))
    assert mismatch(near, one, Tolerance(64)) is None and mismatch(near, one, EXACT) is not None
    assert mismatch(far, one, Tolerance(64)) is not None and mismatch(far, one, Tolerance(64, stored=2)) is None
    none = np.zeros(3, dtype.numpy)
    least = np.ones(3, bits)
    assert mismatch(least.view(dtype.numpy), none, Tolerance(64)) is None
    assert mismatch((least + bits(1)).view(dtype.numpy), none, Tolerance(64)) is not None
