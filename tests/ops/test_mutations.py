"""Tolerances mean something: wrong answers are found wrong, for every case of every op.

The reference's own answer is spoilt in each of several ways. Where that changes it by more than rounding could, the
comparison that the suite uses must refuse it.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import skips
from ops.cases import Case, cases_of_every_op
from rlx.ir import dtype as dtypes
from rlx.ir.compare import mismatch, spacing
from rlx.ir.literal import Array

CASES = cases_of_every_op()
STEPS = 3.0
"""Distances to the next number of the dtype by which a spoilt element must be off: rounding takes one and a half."""
LEAST = 1e-4
"""And by how much of it, or of 1 where it is less: sums that cancel are off by the rounding of their terms."""


def changed_by(factor: float) -> Callable[[Array], Array]:
    def change(a: Array) -> Array:
        wide = a.astype(np.complex128 if dtypes.of(a.dtype).is_complex else np.float64)
        return (wide * factor).astype(a.dtype)

    return change


def one_changed(a: Array) -> Array:
    """The greatest finite element by a fifth."""
    changed = a.copy()
    size = np.where(np.isfinite(a), np.abs(a), 0).astype(np.float64).reshape(-1)
    at = int(size.argmax())
    changed.reshape(-1)[at] = changed_by(0.8)(changed.reshape(-1)[at : at + 1])[0]
    return changed


def nan_for_infinities(a: Array) -> Array:
    return np.where(np.isinf(a), np.asarray(np.nan, a.dtype), a)


def infinities_for_the_greatest(a: Array) -> Array:
    changed = a.copy()
    size = np.where(np.isfinite(a), np.abs(a), 0).astype(np.float64).reshape(-1)
    changed.reshape(-1)[int(size.argmax())] = np.asarray(np.inf, a.dtype)
    return changed


def greatest_for_infinities(a: Array) -> Array:
    return np.where(np.isinf(a), np.asarray(ml_dtypes.finfo(a.dtype).max, a.dtype), a)


def rows_swapped(a: Array) -> Array:
    """The two rows that are most unlike."""
    rows = a.reshape(a.shape[0], -1) if a.ndim else a.reshape(1, -1)
    return np.concatenate([rows[-1:], rows[1:-1], rows[:1]]).reshape(a.shape) if len(rows) > 1 else a


MUTATIONS: dict[str, Callable[[Array], Array]] = {
    "zeros": np.zeros_like,
    "times 1.05": changed_by(1.05),
    "one changed": one_changed,
    "NaN for infinities": nan_for_infinities,
    "infinity for the greatest": infinities_for_the_greatest,
    "the greatest for infinities": greatest_for_infinities,
    "rows swapped": rows_swapped,
}


def is_visible(spoilt: Array, right: Array) -> bool:
    """Whether an element differs by more than rounding could."""
    dtype = dtypes.of(right.dtype)
    if not dtype.is_inexact:
        return bool((spoilt != right).any())
    wide = np.complex128 if dtype.is_complex else np.float64
    a, b = spoilt.astype(wide), right.astype(wide)
    with np.errstate(all="ignore"):
        least = np.where(np.isfinite(b), LEAST * np.maximum(np.abs(b), 1), 0)
        if not dtype.is_complex:
            least = np.where(np.isfinite(b), np.maximum(least, STEPS * spacing(right, dtype)), 0)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        return bool((~same & ~(np.abs(a - b) <= least)).any())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_spoilt_answers_are_refused(case: Case) -> None:
    for right in case.reference():
        inexact = dtypes.of(right.dtype).is_inexact
        allowed = {case.op.tolerance, *(rules.tolerance(case.op.tolerance) for rules in skips.RULES.values())}
        assert all(mismatch(right, right.copy(), tolerance) is None for tolerance in allowed)
        for what, mutate in MUTATIONS.items():
            if not right.size or not (inexact or what in ("zeros", "rows swapped")):
                continue
            with np.errstate(all="ignore"):
                spoilt = mutate(right)
            if is_visible(spoilt, right):
                for tolerance in allowed:
                    assert mismatch(spoilt, right, tolerance) is not None, f"{what} passes within {tolerance}"


def test_spoilt_answers_are_visible() -> None:
    """Most are: the test above would hold nothing else."""
    visible = dict.fromkeys(MUTATIONS, 0)
    for case in CASES:
        for right in case.reference():
            if right.size and dtypes.of(right.dtype).is_float:
                with np.errstate(all="ignore"):
                    for what, mutate in MUTATIONS.items():
                        visible[what] += is_visible(mutate(right), right)
    assert min(visible[what] for what in ("zeros", "times 1.05", "one changed", "rows swapped")) > 500, visible
    assert min(visible.values()) > 50, visible
