"""Conversions of narrow floats in compiled code, against ml_dtypes: every code, ties, and f32 of every size."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import rlx
from rlx.codegen.scalar import small_floats as narrow
from rlx.ir.dtype import DType
from rlx.ir.literal import Array
from support import run_on


@cache
def numbers() -> Array:
    """f32 bit patterns at random, and numbers about 1."""
    random = np.random.default_rng(0)
    anything = random.integers(0, 2**32, 60_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = (random.standard_normal(30_000) * np.exp2(random.integers(-20, 20, 30_000))).astype(np.float32)
    return np.concatenate([anything, usual, np.array([0, -0.0, np.inf, -np.inf, np.nan, -np.nan], np.float32)])


@pytest.mark.parametrize("dtype", narrow.DTYPES, ids=str)
def test_conversions_give_the_bits_of_ml_dtypes(device: str, dtype: DType) -> None:
    graph = rlx.Graph("conversions")
    wide, short = graph.input("wide", ("n",), "f32"), graph.input("short", ("m",), dtype)
    graph.output(wide.cast(dtype), short.cast("f32"))
    codes = np.arange(1 << dtype.bits).astype(narrow.bits_dtype(dtype).numpy)
    with np.errstate(all="ignore"):
        values = codes.view(dtype.numpy).astype(np.float32)
        ordered = np.sort(values[np.isfinite(values)])
        halves = ((ordered[1:].astype(np.float64) + ordered[:-1]) / 2).astype(np.float32)
        beside = [np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf)]
        x = np.concatenate([numbers(), ordered, halves, *beside])
        expected = x.astype(dtype.numpy)
    actual, back = run_on(device, graph, {"wide": x, "short": codes.view(dtype.numpy)}).values()
    same = (actual.view(codes.dtype) == expected.view(codes.dtype)) | (
        np.isnan(actual.astype(np.float32)) & np.isnan(expected.astype(np.float32))
    )
    assert same.all(), f"{x[~same][:5]} gave {actual[~same][:5]}, expected {expected[~same][:5]}"
    np.testing.assert_array_equal(back, values)
