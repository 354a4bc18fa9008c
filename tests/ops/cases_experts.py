"""Cases of products by matrices that rows choose: few rows and many, experts without rows, ids that lie outside."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ops.case import Case, array, case, specimen
from rlx.ir import dtype as dtypes


@specimen("grouped_matmul")
def _grouped(name: str) -> Iterator[Case]:
    random = np.random.default_rng(0)
    for dtype in (dtypes.f32, dtypes.f64, dtypes.f16, dtypes.bf16):
        for rows in (3, 40):
            ids = random.integers(0, 4, rows).astype(np.int32)
            yield case(name, f"{rows}-rows", array((rows, 9), dtype), array((4, 9, 20), dtype, seed=1), ids)
    x, weights = array((50, 8)), array((5, 8, 17), seed=2)
    for what, ids in (
        ("one-expert", np.full(50, 3)),
        ("full-tiles", np.repeat([4, 0, 4], [16, 32, 2])),
        ("outside", random.integers(-9, 9, 50)),
        ("extreme", np.where(np.arange(50) % 2, 1 << 62, -(1 << 62))),
    ):
        yield case(name, what, x, weights, ids.astype(np.int64))
    spoilt = x.copy()
    spoilt[7], spoilt[9, 3] = np.nan, np.inf
    yield case(name, "nan", spoilt, weights, np.arange(50) % 5)
    yield case(name, "one", array((1, 1)), array((1, 1, 1)), np.zeros(1, np.int32))
    yield case(name, "no-rows", array((0, 4)), array((2, 4, 3)), np.zeros(0, np.int32))
    yield case(name, "no-experts", array((20, 4)), array((0, 4, 3)), np.zeros(20, np.int32))
    yield case(name, "no-sum", array((20, 0)), array((3, 0, 3)), np.zeros(20, np.int32))
