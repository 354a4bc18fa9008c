"""Compares arrays within an op's tolerance."""

from __future__ import annotations

import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from rlx.records import dataclass


@dataclass(frozen=True)
class Mismatch:
    """How two arrays differ: in type, or in `count` elements, of which the worst is at `index`, `ulps` off."""

    what: str
    count: int = 0
    index: tuple[int, ...] = ()
    ulps: float = 0.0

    def __str__(self) -> str:
        return self.what


def epsilon(dtype: DType) -> float:
    """Distance from 1 to the next number of a float or complex dtype."""
    if dtype.is_complex:
        return float(np.finfo(dtype.numpy).eps)
    one = np.ones((), dtype.numpy)
    bits = one.view(f"u{dtype.itemsize}") + np.asarray(1, f"u{dtype.itemsize}")
    return float(bits.view(dtype.numpy).astype(np.float64)) - 1.0


def spacing(array: Array, dtype: DType) -> Array:
    """The distance of each number to the next of the dtype, away from zero, as f64."""
    size = np.abs(array.astype(np.float64))
    least = float(np.asarray(1, f"u{dtype.itemsize}").view(dtype.numpy))
    _, exponent = np.frexp(size)
    return np.where(size > 0, np.maximum(np.ldexp(epsilon(dtype), exponent - 1), least), least)


def bound(expected: Array, tolerance: Tolerance) -> Array:
    """How far each element may be off."""
    dtype = dtypes.of(expected.dtype)
    wide = expected.astype(np.complex128 if dtype.is_complex else np.float64)
    computed = epsilon(dtypes.f32 if dtype.itemsize < 4 else dtype)
    allowed = tolerance.ulps * computed * (np.abs(wide) + tolerance.scale)
    if dtype.itemsize < 4 and tolerance.ulps:
        allowed = allowed + tolerance.stored * spacing(expected, dtype)
    return np.asarray(allowed)


def mismatch(actual: Array, expected: Array, tolerance: Tolerance) -> Mismatch | None:
    """None if `actual` has the dtype and shape of `expected` and every element is within its bound; NaN equals NaN, an
    infinity itself. Integers and bools must be equal."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return Mismatch(f"expected {expected.dtype}{list(expected.shape)}, got {actual.dtype}{list(actual.shape)}")
    dtype = dtypes.of(expected.dtype)
    if not dtype.is_inexact:
        wrong = np.asarray(actual != expected)
        return _describe(actual, expected, wrong, wrong.astype(np.float64)) if wrong.any() else None
    wide = np.complex128 if dtype.is_complex else np.float64
    a, b = actual.astype(wide), expected.astype(wide)
    with np.errstate(all="ignore"):
        off = np.abs(a - b) / (epsilon(dtype) * (np.abs(b) + tolerance.scale))
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        wrong = ~(same | (np.abs(a - b) <= bound(expected, tolerance)))
        # An infinite expectation admits any difference above; only the same infinity is right.
        wrong |= np.isinf(b) & ~same
    return _describe(actual, expected, wrong, np.where(np.isnan(off), np.inf, off)) if wrong.any() else None


def _describe(actual: Array, expected: Array, wrong: Array, off: Array) -> Mismatch:
    at = np.unravel_index(int(np.argmax(np.where(wrong, off, -1.0))), wrong.shape)
    index = tuple(int(i) for i in at)
    count = int(wrong.sum())
    text = (
        f"{count} of {wrong.size} elements differ, worst at {list(index)}: "
        f"expected {expected[index]}, got {actual[index]} ({float(off[index]):.3g} ulps)"
    )
    return Mismatch(text, count, index, float(off[index]))
