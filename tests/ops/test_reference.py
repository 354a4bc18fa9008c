"""References keep to the type rules, say what `scalar` says, and do not mind how arrays lie in memory."""

from __future__ import annotations

import numpy as np
import pytest

from ops.cases import Case, cases_of_every_op
from rlx.ir import dtype as dtypes
from rlx.ir import expr
from rlx.ir.expr import Expr
from rlx.ir.op import Elementwise, Tolerance
from support import assert_close, assert_close_on, run_on

CASES = cases_of_every_op()


@pytest.mark.devices("reference", "cpu", "cpu-*", "vulkan", "opengl", "xla", "mlx", "ane")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op_matches_reference(case: Case, device: str) -> None:
    actual = run_on(device, case.graph(), case.inputs())
    for i, expected in enumerate(case.reference()):
        assert_close_on(device, actual[f"y{i}"], expected, case.op.tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_keeps_to_the_type_rule(case: Case) -> None:
    types = case.graph().nodes[-1].types
    results = case.reference()
    assert [(a.dtype, a.shape) for a in results] == [(t.dtype.numpy, t.shape) for t in types]


@pytest.mark.parametrize("case", [c for c in CASES if isinstance(c.op, Elementwise)], ids=str)
def test_scalar_says_what_the_reference_says(case: Case) -> None:
    leaves = [Expr("operand", dtypes.of(a.dtype), (), i) for i, a in enumerate(case.arrays)]
    body = case.op.scalar(*leaves)
    actual = np.asarray(expr.evaluate(body, lambda leaf: case.arrays[leaf.attr]))
    (expected,) = case.reference()
    assert_close(np.broadcast_to(actual, expected.shape), expected, case.op.tolerance)


@pytest.mark.parametrize("case", [c for c in CASES if any(a.ndim for a in c.arrays)], ids=str)
def test_reference_takes_any_strides(case: Case) -> None:
    strided = []
    for a in case.arrays:
        wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]) if a.ndim else (), a.dtype)
        view = wide[..., ::2] if a.ndim else wide
        view[...] = a
        strided.append(view)
    results = case.op.reference(*strided)
    for actual, expected in zip(results if isinstance(results, tuple) else (results,), case.reference()):
        assert_close(np.asarray(actual), expected, Tolerance(1, scale=1))
