"""Products of bytes in float32, in parts that hold every sum exactly."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.ops.quant import DynamicQuantize
from rlx.ops.quant_recurrent import _parts, _product


@pytest.mark.parametrize("rows", [0, 1, 257, 514, 515, 1500])
@pytest.mark.parametrize(("dtype", "zero"), [("i1", 0), ("i1", -128), ("u1", 255), ("u1", 3)])
def test_sums_are_exact(rows: int, dtype: str, zero: int) -> None:
    random = np.random.default_rng(rows)
    limits = np.iinfo(dtype)
    w = random.choice([limits.min, limits.max, 1], (rows, 3)).astype(dtype)
    x = random.choice([-1.0, 1.0, 0.3], (2, 5, rows)).astype(np.float32)
    quantised, step, zero_point = DynamicQuantize().reference(x)
    total = (quantised.astype(np.int64) - zero_point) @ (w.astype(np.int64) - zero)
    scale = np.array([0.5], np.float32)
    expected = total.astype(np.float32) * (step * scale)
    np.testing.assert_array_equal(_product(x, _parts(w, np.array([zero], dtype)), scale), expected)
